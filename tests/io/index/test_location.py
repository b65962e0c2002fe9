from __future__ import annotations

import uuid
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgerbeam.errors import UsageError
from ledgerbeam.io.index.file import IndexLocation, index_bytes
from ledgerbeam.io.storage import client
from ledgerbeam.io.storage.client import Options
from tests.cases import each
from tests.conftest import GcsServer

PARTS = st.lists(st.sampled_from(["a", "b", "", ".", "..", "%", "%2E", "%25", "%2E2E", "s3", "file"]), max_size=5)


@each(
    ("location", "source", "index"),
    [
        (IndexLocation(), "/b/x.jsonl", "/b/x.jsonl.idx"),
        (IndexLocation(), "s3a://b/x.tar", "s3://b/x.tar.idx"),
        (IndexLocation("/r"), "/b/x", "/r/file/b/x.idx"),
        (IndexLocation("/r/"), "s3://b/x", "/r/s3/b/x.idx"),
        (IndexLocation("/"), "s3://b/x", "/s3/b/x.idx"),
        (IndexLocation("s3://r/p/"), "/b/x", "s3://r/p/file/b/x.idx"),
        (IndexLocation("gcs://r"), "s3://b/x", "gs://r/s3/b/x.idx"),
        (IndexLocation("/r", "lhotse"), "/b/x", "/r/b/x.idx"),
        (IndexLocation("/r", "lhotse"), "/b/../c/x", "/r/c/x.idx"),
        (IndexLocation("s3://r", "lhotse"), "s3://b/x", "s3://r/b/x.idx"),
        (IndexLocation(explicit="/i/y.idx"), "s3://b/x", "/i/y.idx"),
    ],
)
def test_where_an_index_lies(location: IndexLocation, source: str, index: str) -> None:
    assert location.url_for(source) == index


def test_relative_roots_and_sources_are_below_the_working_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("/usr")
    assert IndexLocation("r").url_for("x") == "/usr/r/file/usr/x.idx"


def test_nothing_leaves_the_root() -> None:
    with pytest.raises(UsageError, match="outside"):
        IndexLocation("/r", "lhotse").url_for("s3://b/../../x")
    assert ".." not in IndexLocation("/r").url_for("s3://b/../../x").split("/")


@given(PARTS, PARTS)
def test_no_two_sources_share_an_index(one: list[str], other: list[str]) -> None:
    location = IndexLocation("/r")
    sources = {f"s3://b/{'/'.join(parts)}" for parts in (one, other)}
    found = {location.url_for(source) for source in sources}
    assert len(found) == len(sources)
    for index in found:
        assert not {"", ".", ".."} & set(index.removeprefix("/r/s3/").split("/"))


KEYS = ["in/a//b.idx", "/b.idx", "in/a/./b.idx", "b.idx"]


def check_published_by_its_key(place: str, key: str, options: Options) -> None:
    """Without its empty part, the name could be the index of another source."""
    offsets = np.array([0, 5], "<u8")
    IndexLocation().publish(f"{place}/{key}", index_bytes(offsets), options)
    store = client.filesystem(place, options)
    names = [name.lstrip("/") for name in store.find(place)]  # of what is kept in memory all begin with one
    assert names == [f"{place.partition('://')[2]}/{key}"]
    IndexLocation().publish(f"{place}/{key}", index_bytes(2 * offsets), options)
    assert store.cat_file(f"{place}/{key}") == index_bytes(2 * offsets)


@pytest.mark.parametrize("key", KEYS)
def test_an_index_is_published_by_its_very_key(key: str) -> None:
    check_published_by_its_key(f"memory://{uuid.uuid4().hex}", key, {})


@pytest.mark.stores
@pytest.mark.parametrize("key", KEYS)
def test_on_a_store_it_is_published_by_its_very_key(gcs: GcsServer, key: str) -> None:
    check_published_by_its_key(gcs.place(), key, gcs.options)


@pytest.mark.parametrize("arguments", [{"root": "/r", "explicit": "/x.idx"}, {"rule": "flat"}])
def test_contradictions_are_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        IndexLocation(**arguments)
