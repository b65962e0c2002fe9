"""Properties of sources in the forms of different stores, names that are not files, whole files, and foreign files."""

from __future__ import annotations

import datetime as dt
import os
import re
import threading
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from ledgerbeam.errors import ChangedSourceError, SourceNotFoundError, StorageError, UsageError
from ledgerbeam.io.storage import client
from ledgerbeam.io.storage import files as storage
from ledgerbeam.io.storage import stat as storage_stat
from ledgerbeam.io.storage.client import ask_each
from ledgerbeam.io.storage.files import refuse_foreign
from ledgerbeam.io.storage.publish import publish_bytes
from ledgerbeam.io.storage.ranges import RangeReader
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
from tests.conftest import S3Requests
from tests.io.conftest import Place

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
        ({"updated": "2024-01-02T03:04:05.006+00:00"}, "1704164645006000000-10"),
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
    names = ("LastModified", "last_modified", "mtime", "updated", "Last-Modified", "created")
    said = {name: 6.0 - place for place, name in enumerate(names)}
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


def test_urls_of_a_store_are_asked_for_at_once_and_answered_in_their_order() -> None:
    """Each call waits until the other calls have started."""
    urls = [f"s3://bucket/{name}" for name in "bca"]
    together = threading.Barrier(len(urls), timeout=5)

    def ask(url: str) -> str:
        together.wait()
        return url.upper()

    assert ask_each(ask, urls) == [url.upper() for url in urls]


def test_stat_tells_size_and_version(place: Place) -> None:
    url = place / "a/b.jsonl"
    publish_bytes(url, b"one", place.options)
    first = stat(url, place.options)
    assert (first.url, first.size) == (url, 3)
    assert first == stat(url, place.options)
    publish_bytes(url, b"two", place.options)
    second = stat(url, place.options)
    assert second.version != first.version
    assert second.modified_ns >= first.modified_ns > 1_700_000_000 * 10**9


@pytest.mark.s3
def test_stat_sees_a_change_by_others_after_a_listing(s3_place: Place) -> None:
    others = {**(s3_place.options or {}), "default_fill_cache": False}  # another client, with a separate cache
    publish_bytes(s3_place / "x", b"1", s3_place.options)
    client.filesystem(s3_place.url, s3_place.options).ls(s3_place.url)
    publish_bytes(s3_place / "x", b"12", others)
    assert stat(s3_place / "x", s3_place.options).size == 2


def test_what_is_missing_is_named(place: Place) -> None:
    url, kept = place / "nothing.jsonl", place / "kept"
    for name in (url, kept):
        publish_bytes(name, b"1", place.options)
    storage.delete(url, place.options)
    for ask in (
        lambda: stat(url, place.options),
        lambda: stat_object(url, place.options),
        lambda: stat_object(place / "folder/nothing.jsonl", place.options),
        lambda: RangeReader(url, place.options).read(0, 1),
        lambda: RangeReader(url, place.options).size,
        lambda: storage.read_bytes(url, place.options),
        lambda: storage.read_many_files([kept, url], place.options),
    ):
        with pytest.raises(SourceNotFoundError, match=r"nothing\.jsonl"):
            ask()
    storage.delete(url, place.options)


def test_a_folder_is_no_source(place: Place) -> None:
    publish_bytes(place / "folder/x.jsonl", b"", place.options)
    with pytest.raises(UsageError, match="folder: expected a file, found a folder"):
        stat(place / "folder", place.options)


def test_whole_files_are_read_and_described_together(place: Place) -> None:
    contents = [b"a" * n for n in (*range(40), 0, 2000)]
    urls = [place / f"{i}.jsonl" for i in range(len(contents))]
    for url, content in zip(urls, contents, strict=True):
        publish_bytes(url, content, place.options)
    assert storage.read_many_files(urls, place.options) == contents
    assert storage.read_many_files([], place.options) == []
    infos = [(info.url, info.size) for info in stat_many(urls, place.options)]
    assert infos == list(zip(urls, map(len, contents), strict=True))


def test_an_object_that_may_not_be_there_is_described_as_any(place: Place) -> None:
    publish_bytes(place / "x", b"1", place.options)
    found, other = stat_object(place / "x", place.options), stat(place / "x", place.options)
    assert (found, found.modified_ns) == (other, other.modified_ns)


@pytest.mark.s3
def test_what_is_not_there_takes_one_request(s3_place: Place, s3_requests: S3Requests) -> None:
    with pytest.raises(SourceNotFoundError):
        stat_object(s3_place / "missing.idx", s3_place.options)
    assert s3_requests.take() == ["head_object"]


def test_missing_permission_says_so(tmp_path: Path, nobody: AbstractContextManager[None]) -> None:
    path = str(tmp_path / "x")
    publish_bytes(path, b"abc")
    os.chmod(path, 0)
    with nobody:
        for ask in (lambda: RangeReader(path).read(0, 1), lambda: storage.read_bytes(path)):
            with pytest.raises(StorageError, match="permission"):
                ask()


@pytest.mark.s3
@pytest.mark.minio("checks no signatures")
def test_wrong_credentials_say_so(s3_place: Place) -> None:
    wrong = {**(s3_place.options or {}), "secret": "wrong-secret"}
    with pytest.raises(StorageError, match="credentials"):
        stat(s3_place / "x", wrong)


# foreign files with the name of an output are recognised by their first and last bytes, and kept

LOOKS = re.compile(rb"begin(?s:.*)end\Z").match


@each("between", [0, 60_000, 65_528, 131_000, 500_001])
def test_the_beginning_and_the_end_are_looked_at(tmp_path: Path, between: int) -> None:
    for root in (f"{tmp_path}/{between}", f"memory://foreign-{between}"):
        ours, other, none = f"{root}/ours", f"{root}/other", f"{root}/none"
        assert refuse_foreign({ours: LOOKS}, {}, kind="ours") == []
        publish_bytes(ours, b"begin" + bytes(between) + b"end")
        assert refuse_foreign({ours: LOOKS, none: LOOKS}, {}, kind="ours") == [ours]
        publish_bytes(other, b"begin" + bytes(between) + b"other")
        for free in (none, ours):
            with pytest.raises(UsageError, match=rf"{other}: expected no file, or ours, .*move it away, or give"):
                refuse_foreign({free: LOOKS, other: LOOKS}, {}, kind="ours")


def test_of_a_large_file_the_beginning_and_the_end_alone_are_read(tmp_path: Path) -> None:
    seen: list[bytes] = []

    def looks(content: bytes) -> bool:
        seen.append(content)
        return True

    data = b"".join(b"%07d\n" % number for number in range(125_000)) + b"end"
    (tmp_path / "large").write_bytes(data)
    refuse_foreign({str(tmp_path / "large"): looks}, {}, kind="large")
    end = data[(len(data) - 65_536) // 8 * 8 :]
    assert seen == [data[:65_536] + end]
