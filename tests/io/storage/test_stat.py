"""Properties of sources in the forms of different stores, and names that are not files."""

from __future__ import annotations

import datetime as dt
import os
import re
import socket
import threading
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from ledgerbeam.errors import ChangedSourceError, SourceNotFoundError, StorageError, UsageError
from ledgerbeam.io.storage import stat as storage_stat
from ledgerbeam.io.storage.client import ask_each
from ledgerbeam.io.storage.stat import (
    FileInfo,
    content_name,
    info_of,
    open_descriptor,
    open_local,
    require_listed,
    stat,
    stat_many,
    stat_object,
)
from tests.cases import each

URL = "gs://bucket/key"
AT = 1_704_164_645_678_901_000
DATE = dt.datetime(2024, 1, 2, 3, 4, 5, 678_901, dt.UTC)


@each(
    ("said", "version"),
    [
        ({"generation": 17, "ETag": '"tag"', "etag": "other"}, "17"),
        ({"ETag": '"tag"', "etag": "other", "blob_id": "git"}, "tag"),
        ({"generation": None, "ETag": "", "etag": '"other"', "mtime": 1.0}, "other"),
        ({"lfs": SimpleNamespace(sha256="sha"), "blob_id": "git", "xet_hash": "xet"}, "sha"),
        ({"lfs": None, "blob_id": "git", "xet_hash": "xet"}, "git"),
        ({"xet_hash": "xet"}, "xet"),
        ({"mtime": 1.5}, "1500000000-10"),
    ],
)
def test_the_version_is_what_tells_most_of_the_content(said: Mapping[str, Any], version: str) -> None:
    assert info_of(URL, {"size": 10, "type": "file", **said}) == FileInfo(URL, 10, version)


def test_the_hash_of_a_content_is_none_where_none_is_said() -> None:
    assert content_name({}) is None
    assert content_name({"lfs": SimpleNamespace(), "blob_id": ""}) is None
    assert content_name({"blob_id": 17}) == "17"


@each(
    ("moment", "modified"),
    [
        (DATE, AT),
        (DATE.astimezone(dt.timezone(dt.timedelta(hours=5))), AT),
        ("2024-01-02T03:04:05.678901+00:00", AT),
        ("2024-01-02T05:04:05.678901+02:00", AT),
        ("Tue, 02 Jan 2024 03:04:05 GMT", AT // 10**9 * 10**9),
        (AT / 1e9, AT),
        (AT // 10**9, AT // 10**9 * 10**9),
        (0.000_001_4, 1_000),
        (0.000_001_6, 2_000),
        (dt.datetime(1969, 12, 31, 23, 59, 59, tzinfo=dt.UTC), -(10**9)),
        ("yesterday", 0),
        (b"2024", 0),
        (None, 0),
    ],
)
def test_a_time_is_exact_to_a_millionth_of_a_second_in_whatever_form_it_is_said(moment: object, modified: int) -> None:
    assert info_of(URL, {"size": 10, "etag": "v", "mtime": moment}).modified_ns == modified


def test_the_time_is_that_of_the_last_modification_if_it_is_said() -> None:
    said = {
        "LastModified": 6.0,
        "last_modified": 5.0,
        "mtime": 4.0,
        "updated": 3.0,
        "Last-Modified": 2.0,
        "created": 1.0,
    }
    for name, seconds in list(said.items()):
        assert info_of(URL, {"size": 10, "etag": "v", **said}).modified_ns == seconds * 10**9
        said[name] = 0.0
    assert info_of(URL, {"size": 10, "etag": "v", **said}).modified_ns == 0


@each(
    ("said", "kind", "problem"),
    [
        ({"type": "directory", "size": 0, "etag": "v"}, UsageError, "found a folder"),
        ({"type": "file", "etag": "v"}, StorageError, "reports no size"),
        ({"type": "file", "size": None, "etag": "v"}, StorageError, "reports no size"),
        ({"type": "file", "size": 0}, StorageError, "neither ETag, generation nor modification time"),
        ({"type": "file", "size": 0, "mtime": "never"}, StorageError, "neither ETag, generation nor modification time"),
    ],
)
def test_what_cannot_be_checked_for_changes_is_refused(
    said: Mapping[str, Any], kind: type[Exception], problem: str
) -> None:
    with pytest.raises(kind, match=f"{re.escape(URL)}.*{problem}"):
        info_of(URL, said)


def test_times_do_not_tell_files_apart() -> None:
    one = FileInfo(URL, 1, "v", 5, 6)
    assert one == FileInfo(URL, 1, "v")
    assert (FileInfo(URL, 1, "v").modified_ns, FileInfo(URL, 1, "v").changed_ns) == (0, 0)
    assert one == replace(one, modified_ns=7, changed_ns=8)
    assert len({one, replace(one, size=2), replace(one, version="w"), replace(one, url="other")}) == 4


@pytest.mark.parametrize("kind", ["a folder", "a pipe", "a socket", "a device"])
def test_only_a_file_is_a_source(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "x"
    place = "/dev/null" if kind == "a device" else str(path)
    with socket.socket(socket.AF_UNIX) as listening:
        if kind == "a folder":
            path.mkdir()
        elif kind == "a pipe":
            os.mkfifo(path)
        elif kind == "a socket":
            listening.bind(str(path))
        before = len(os.listdir("/proc/self/fd"))
        with pytest.raises(UsageError, match=f"{place}: expected a file.*, found {kind}"):
            stat(place)
        with pytest.raises(ChangedSourceError, match=f"found none .*{place}: .*found {kind}"):
            require_listed(FileInfo(place, 1, "1"))
        if kind != "a socket":  # which cannot be opened
            with pytest.raises(UsageError, match=f"{place}: expected a file.*, found {kind}"):
                open_descriptor(place)
        assert len(os.listdir("/proc/self/fd")) == before


def test_a_file_that_changed_in_size_or_version_is_another(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"0123456789")
    os.utime(path, ns=(AT, AT))
    listed = stat(str(path))
    assert (listed.size, listed.version, listed.modified_ns) == (10, str(AT), AT)
    assert require_listed(listed) == listed
    assert require_listed(replace(listed, modified_ns=0)).modified_ns == AT
    with open_local(str(path), listed) as descriptor:
        assert os.read(descriptor, 20) == b"0123456789"
    for other in (replace(listed, size=9), replace(listed, version=str(AT - 1))):
        for look in (require_listed, lambda info: open_descriptor(str(path), info)):
            with pytest.raises(
                ChangedSourceError, match=f"expected {other.size} bytes of version {other.version}, found 10 .* {AT}"
            ):
                look(other)
    path.unlink()
    with pytest.raises(ChangedSourceError, match="found none"):
        require_listed(listed)


def test_an_open_file_is_closed_whatever_happens_and_what_the_system_refuses_is_named(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"x")
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(StorageError, match=str(path)), open_local(str(path)):
        raise OSError("failed")
    with pytest.raises(ValueError, match="of the caller"), open_local(str(path)):
        raise ValueError("of the caller")
    missing = str(tmp_path / "gone")
    with pytest.raises(SourceNotFoundError, match=missing), open_local(missing):
        pass
    with pytest.raises(SourceNotFoundError, match=missing):
        stat(missing)
    for impossible in (f"{path}\0", f"{path}{'x' * 300}"):
        with pytest.raises(StorageError), open_local(impossible):
            pass
        with pytest.raises(StorageError):
            stat(impossible)
    assert len(os.listdir("/proc/self/fd")) == before


class Head:
    """The client of S3 for the head of an object."""

    kwargs: ClassVar[dict[str, str]] = {"RequestPayer": "requester"}
    there = True

    def split_path(self, url: str) -> tuple[str, str, None]:
        bucket, _, key = url.partition("://")[2].partition("/")
        return bucket, key, None

    def call_s3(self, method: str, options: Mapping[str, str], **request: str) -> dict[str, Any]:
        assert (method, options) == ("head_object", self.kwargs)
        assert request == {"Bucket": "bucket", "Key": "deep/key"}
        if not self.there:
            raise FileNotFoundError("deep/key")
        return {"ContentLength": 10, "ETag": '"tag"', "LastModified": DATE}

    def invalidate_cache(self) -> None:
        """Do nothing: there is no cache."""

    def info(self, url: str) -> dict[str, Any]:
        return {"type": "file", "size": 7, "etag": "other"}


def test_an_object_of_s3_that_may_not_be_there_is_asked_for_by_its_name_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    head = Head()
    monkeypatch.setattr(storage_stat, "filesystem", lambda *_: head)
    found = stat_object("s3://bucket/deep/key")
    assert (found, found.modified_ns) == (FileInfo("s3://bucket/deep/key", 10, "tag"), AT)
    assert stat_object("gs://bucket/deep/key") == FileInfo("gs://bucket/deep/key", 7, "other")
    head.there = False
    with pytest.raises(SourceNotFoundError, match="s3://bucket/deep/key"):
        stat_object("s3://bucket/deep/key")


def test_files_of_the_hub_are_described_in_runs_and_one_that_is_missing_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[list[str]] = []

    def describe(urls: list[str]) -> list[dict[str, Any] | None]:
        asked.append(urls)
        return [None if "gone" in url else {"size": len(asked), "blob_id": url[-1]} for url in urls]

    monkeypatch.setattr(storage_stat, "filesystem", lambda *_: SimpleNamespace(describe=describe))
    urls = [f"hf://datasets/owner/name/{number}" for number in range(1001)]
    assert [(info.url, info.version) for info in stat_many(urls)] == [(url, url[-1]) for url in urls]
    assert sorted(asked) == sorted([urls[:500], urls[500:1000], urls[1000:]]), "the Hub takes so many at once"
    with pytest.raises(SourceNotFoundError, match="datasets/owner/name/gone"):
        stat_many([*urls, "hf://datasets/owner/name/gone"])


def test_urls_of_a_store_are_asked_for_at_once_and_answered_in_their_order() -> None:
    """Each call waits until the other calls have started."""
    urls = [f"s3://bucket/{name}" for name in "bca"]
    together = threading.Barrier(len(urls), timeout=5)

    def ask(url: str) -> str:
        together.wait()
        return url.upper()

    assert ask_each(ask, urls) == [url.upper() for url in urls]
