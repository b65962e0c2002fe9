"""Conditional reads through scripted clients: the requests, and the checks of the responses. Changes of local sources.

The reads of real stores are in `test_listed_versions`.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from fsspec import asyn

from ledgerbeam.errors import ChangedSourceError, DiskFullError, LedgerError, SourceError
from ledgerbeam.io.storage import stat as storage_stat
from ledgerbeam.io.storage.fetch import OtherVersionError, cat_listed, takes_conditions
from ledgerbeam.io.storage.stat import SourceWatch, open_descriptor, stat, stat_many

DATA = bytes(range(100))


class RefusedError(Exception):
    """Status 412."""


class Body:
    """The body of a response. It records whether it was closed."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.open = True

    async def read(self, size: int = -1) -> bytes:
        assert self.open
        stop = len(self._data) if size < 0 else size
        data, self._data = self._data[:stop], self._data[stop:]
        return data

    def close(self) -> None:
        self.open = False


def ranged(data: bytes, header: str | None) -> bytes:
    """Return the response of a server to a range."""
    if header is None:
        return data
    first, last = header.removeprefix("bytes=").split("-")
    return data[int(first) : int(last) + 1]


class Store:
    """The clients of S3, GCS and Azure at once.

    Args:
        version: Version of every object.
        obeys: Whether it checks conditions.
        tells: Whether its responses name the version.
    """

    retries = 1
    max_concurrency = 3
    _timeout_kwargs: ClassVar[dict[str, Any]] = {"read_timeout": 7}

    def __init__(self, version: str = "v1", *, obeys: bool = True, tells: bool = True) -> None:
        self.loop = asyn.get_loop()
        self.version, self.obeys, self.tells = version, obeys, tells
        self.asked: list[str] = []
        self.bodies: list[Body] = []
        self.options: dict[str, Any] = {}
        self.service_client = SimpleNamespace(get_blob_client=self._client)

    def _answer(self, key: str, condition: str | None) -> None:
        self.asked.append(key)
        if self.obeys and condition not in (None, self.version):
            raise RefusedError(condition)

    def split_path(self, url: str) -> tuple[str, str, None]:
        bucket, _, key = url.partition("://")[2].partition("/")
        return bucket, key, None

    async def _call_s3(self, method: str, Bucket: str, Key: str, **request: Any) -> dict[str, Any]:  # noqa: N803
        assert (method, Bucket) == ("get_object", "bucket")
        condition = request.get("IfMatch")
        assert condition is None or condition[0] == condition[-1] == '"'
        self._answer(Key, condition and condition.strip('"'))
        self.bodies.append(Body(ranged(DATA, request.get("Range"))))
        return {"Body": self.bodies[-1], **({"ETag": f'"{self.version}"'} if self.tells else {})}

    def url(self, url: str) -> str:
        return url

    async def _call(self, method: str, url: str, *, headers: dict[str, str], **query: Any) -> tuple[Any, bytes]:
        assert method == "GET"
        assert None not in headers.values()
        self._answer(url.rpartition("/")[2], query.get("ifGenerationMatch"))
        return {"X-Goog-Generation": self.version} if self.tells else {}, ranged(DATA, headers.get("Range"))

    def _strip_protocol(self, url: str) -> str:
        return url

    @contextlib.asynccontextmanager
    async def _client(self, container: str, blob: str) -> AsyncIterator[Any]:
        assert container == "bucket"

        async def download_blob(*, offset: int | None, length: int | None, **options: Any) -> Any:
            self.options = options
            condition = options.get("etag") if options.get("match_condition") is not None else None
            self._answer(blob, condition and condition.strip('"'))
            data = DATA if offset is None or length is None else DATA[offset : offset + length]
            etag = f'"{self.version}"' if self.tells else None
            return SimpleNamespace(properties=SimpleNamespace(etag=etag), readall=Body(data).read)

        yield SimpleNamespace(download_blob=download_blob)


@pytest.fixture(params=["s3", "gs", "az", "abfs", "abfss"])
def scheme(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def read(store: Any, scheme: str, *ranges: tuple[int | None, int | None], version: str = "v1") -> list[Any]:
    urls = [f"{scheme}://bucket/key{number}" for number in range(len(ranges))]
    starts, stops = zip(*ranges, strict=True)
    return list(cat_listed(store, urls, starts, stops, [version] * len(urls)))


def test_ranges_and_whole_objects_come_in_order_a_request_each(scheme: str) -> None:
    store = Store()
    assert takes_conditions(f"{scheme}://bucket/key")
    assert read(store, scheme, (0, 10), (None, None), (95, 100), (7, 8)) == [DATA[:10], DATA, DATA[95:], DATA[7:8]]
    assert sorted(store.asked) == ["key0", "key1", "key2", "key3"]
    assert not any(body.open for body in store.bodies)


BOUNDS = pytest.mark.parametrize("bounds", [(0, 10), (90, 100), (None, None)])


@BOUNDS
def test_the_store_is_asked_for_the_version_that_was_listed(scheme: str, bounds: tuple[int | None, int | None]) -> None:
    """Only the store can check the version: its responses do not name it."""
    (found,) = read(Store("v2", tells=False), scheme, bounds)
    assert isinstance(found, RefusedError)
    assert str(found) == "v1"
    assert read(Store("v1", tells=False), scheme, bounds) == [DATA[slice(*bounds)]]


@BOUNDS
def test_what_answers_in_another_version_is_refused(scheme: str, bounds: tuple[int | None, int | None]) -> None:
    """Some servers ignore the condition."""
    store = Store("v2", obeys=False)
    (found,) = read(store, scheme, bounds)
    assert isinstance(found, OtherVersionError)
    assert str(found) == "v2"
    assert not any(body.open for body in store.bodies)


class Telling(Store):
    """An S3 store that reports a greater length than the body has."""

    def __init__(self, more: int = 0) -> None:
        super().__init__()
        self.more = more

    async def _call_s3(self, method: str, Bucket: str, Key: str, **request: Any) -> dict[str, Any]:  # noqa: N803
        answer = await super()._call_s3(method, Bucket, Key, **request)
        return {**answer, "ContentLength": len(ranged(DATA, request.get("Range"))) + self.more}


def test_what_s3_says_of_the_length_of_an_answer_changes_nothing_of_it() -> None:
    """A truncated response is not padded: the reader finds that it is short."""
    for more in (0, 1, 50):
        found = read(Telling(more), "s3", (0, 10), (None, None), (7, 8))
        assert found == [DATA[:10], DATA, DATA[7:8]]


def test_a_local_file_is_read_in_the_version_that_was_listed_without_asking_again() -> None:
    assert takes_conditions("/bucket/key")


def test_errors_stand_in_the_places_of_what_was_asked_for(scheme: str) -> None:
    store = Store()
    urls = [f"{scheme}://bucket/key{number}" for number in range(3)]
    found = cat_listed(store, urls, [0] * 3, [5] * 3, ["v1", "v0", "v1"])
    assert [type(one) for one in found] == [bytes, RefusedError, bytes]


def test_files_of_the_hub_come_in_order_and_in_the_version_that_was_listed() -> None:
    store = SimpleNamespace(read_version=lambda url, start, stop: ("v2" if url[-1] == "1" else "v1", DATA[start:stop]))
    first, other, last = read(store, "hf", (0, 10), (3, 4), (95, 100))
    assert (first, last) == (DATA[:10], DATA[95:])
    assert isinstance(other, OtherVersionError)


def test_azure_is_told_how_the_client_was_set_up() -> None:
    store = Store()
    read(store, "az", (0, 10))
    assert (store.options["max_concurrency"], store.options["read_timeout"]) == (3, 7)


class Plain:
    """A store without conditions, whose client caches objects."""

    def __init__(self, version: str) -> None:
        self.version = version
        self.is_fresh = False

    def cat_file(self, url: str, start: int | None, end: int | None) -> bytes:
        self.is_fresh = False
        if "gone" in url:
            raise FileNotFoundError(url)
        return DATA[start:end]

    def invalidate_cache(self) -> None:
        self.is_fresh = True

    def info(self, url: str) -> dict[str, Any]:
        return {"name": url, "size": 100, "type": "file", "etag": self.version if self.is_fresh else "v1"}


def test_a_store_without_conditions_is_asked_afterwards_what_it_holds() -> None:
    assert not takes_conditions("sftp://bucket/key")
    version = "v1"
    assert read(Plain("v1"), "sftp", (0, 10), (None, None), version=version) == [DATA[:10], DATA]
    found = read(Plain("v2"), "sftp", (0, 10), version=version)
    assert [type(one) for one in found] == [OtherVersionError]
    (gone,) = cat_listed(Plain("v1"), ["sftp://bucket/gone"], [None], [None], [version])
    assert isinstance(gone, FileNotFoundError)


@pytest.mark.parametrize("later", [1, 1000, 10**9])
@pytest.mark.parametrize("what", ["watch", "descriptor", "changed"])
def test_a_file_that_was_written_a_moment_later_is_another(tmp_path: Path, what: str, later: int) -> None:
    path = tmp_path / "source"
    path.write_bytes(b"0123456789")
    os.utime(path, ns=(10**18, 10**18))
    listed = stat(str(path))
    if what == "changed":  # its time of change cannot be set, so what was listed has another
        listed = replace(listed, changed_ns=os.stat(path).st_ctime_ns - later)
    else:
        os.utime(path, ns=(10**18 + later, 10**18 + later))
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(ChangedSourceError, match="changed since it was listed"):
        open_descriptor(str(path), listed) if what == "descriptor" else SourceWatch([listed])
    assert len(os.listdir("/proc/self/fd")) <= before


def test_a_pipe_in_the_place_of_an_empty_source_is_no_source_though_its_size_and_time_are_the_same(
    tmp_path: Path,
) -> None:
    """Opening it for reading would wait forever."""
    path = tmp_path / "source"
    path.touch()
    os.utime(path, ns=(10**18, 10**18))
    listed = stat(str(path))
    path.unlink()
    os.mkfifo(path)
    os.utime(path, ns=(10**18, 10**18))
    with pytest.raises(ChangedSourceError, match="source: changed since it was listed"):
        SourceWatch([listed])


def test_an_open_file_is_the_one_that_is_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, other = tmp_path / "source", tmp_path / "other"
    path.write_bytes(b"0123456789")
    listed = stat(str(path))
    opened = os.open

    def replaced(name: str, flags: int) -> int:
        descriptor = opened(name, flags)
        monkeypatch.undo()
        other.write_bytes(b"another, which is longer")
        os.replace(other, path)
        return descriptor

    monkeypatch.setattr(os, "open", replaced)
    descriptor = open_descriptor(str(path), listed)
    assert os.read(descriptor, 100) == b"0123456789"
    os.close(descriptor)


@pytest.mark.parametrize(
    ("error", "is_looked_at"),
    [(SourceError("damaged"), True), (DiskFullError("full"), False), (LedgerError("gone"), False), (OSError(), False)],
)
def test_what_fails_in_a_source_that_changed_is_its_change(
    tmp_path: Path, error: Exception, is_looked_at: bool
) -> None:
    path = tmp_path / "source"
    path.write_bytes(b"0123456789")

    def work() -> None:
        with SourceWatch([stat(str(path))]):
            path.write_bytes(b"01234")
            raise error

    with pytest.raises(ChangedSourceError if is_looked_at else type(error)) as caught:
        work()
    assert caught.value.__cause__ is error if is_looked_at else caught.value is error


def test_what_a_store_is_asked_is_answered_by_no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage_stat, "filesystem", lambda *_: Plain("v2"))
    assert stat("sftp://bucket/key").version == "v2"


def test_files_of_the_hub_and_of_others_are_asked_for_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage_stat, "filesystem", lambda *_: Plain("v2"))
    urls = ["hf://datasets/owner/name/file", "sftp://bucket/key"]
    assert [(info.url, info.version) for info in stat_many(urls)] == [(url, "v2") for url in urls]
