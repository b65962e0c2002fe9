"""Concurrent and conditional requests to scripted stores. The reads of real stores are in `test_listed_versions`."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Sequence
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from fsspec import asyn

from ledgerbeam.errors import ChangedSourceError, SourceNotFoundError, StorageError
from ledgerbeam.io.storage import client
from ledgerbeam.io.storage import stat as storage_stat
from ledgerbeam.io.storage.fetch import OtherVersionError, cat_listed, fetch_many, takes_conditions
from ledgerbeam.io.storage.stat import FileInfo, stat, stat_many
from tests.cases import each

DATA = bytes(range(100))
URLS = [f"sftp://host/{name}" for name in "abcd"]
AWAY = ConnectionResetError("away")


class Store:
    """A store without conditions: scripted answers for each object, then its name. Its client caches properties."""

    def __init__(self, **answers: Sequence[bytes | Exception]) -> None:
        self._answers = {name: list(found) for name, found in answers.items()}
        self.asked: list[str] = []
        self.options: list[dict[str, Any]] = []
        self.versions = dict.fromkeys("abcd", "v1")
        self.is_fresh = False

    def _answer(self, url: str, start: int | None, stop: int | None) -> bytes | Exception:
        name = url[-1]
        self.is_fresh = False
        self.asked.append(name)
        left = self._answers.get(name)
        return left.pop(0) if left else f"{name}{start}{stop}".encode()

    def cat_ranges(self, urls: Sequence[str], starts: Any, stops: Any, **options: Any) -> list[bytes | Exception]:
        self.options.append(options)
        return [self._answer(*one) for one in zip(urls, starts, stops, strict=True)]

    def cat_file(self, url: str, start: int | None, end: int | None) -> bytes:
        found = self._answer(url, start, end)
        if isinstance(found, Exception):
            raise found
        return found

    def invalidate_cache(self) -> None:
        self.is_fresh = True

    def info(self, url: str) -> dict[str, Any]:
        version = self.versions[url[-1]] if self.is_fresh else "v1"
        return {"name": url, "size": 10, "type": "file", "etag": version}


class Refused(Exception):  # noqa: N818 - of a client
    """A response with a status."""

    def __init__(self, status: int) -> None:
        super().__init__(f"status {status}")
        self.response = SimpleNamespace(status_code=status, headers={})


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "PAUSE_SECONDS", 0)


def fetch(store: Store, *, versions: Sequence[str] | None = None, **options: Any) -> list[bytes]:
    listed = None if versions is None else [FileInfo(url, 10, one) for url, one in zip(URLS, versions, strict=True)]
    return fetch_many(store, URLS, [0, 1, 2, 3], [5, 6, 7, 8], listed, **options)


WHOLE = [b"a05", b"b16", b"c27", b"d38"]


@pytest.mark.parametrize("versions", [None, ["v1"] * 4])
def test_what_fails_for_a_moment_is_asked_again_alone_and_comes_in_its_place(versions: list[str] | None) -> None:
    store = Store(b=[AWAY, AWAY], d=[AWAY])
    assert fetch(store, versions=versions) == WHOLE
    assert store.asked == ["a", "b", "c", "d", "b", "d", "b"]


def test_attempts_count_anew_while_some_succeed() -> None:
    almost = client.ATTEMPTS - 1
    store = Store(a=[AWAY] * almost, b=[AWAY] * 2 * almost)
    assert fetch(store) == WHOLE
    store = Store(a=[AWAY] * 100)
    with pytest.raises(StorageError, match="sftp://host/a"):
        fetch(store)
    assert client.ATTEMPTS <= store.asked.count("a") <= 2 * client.ATTEMPTS
    assert store.asked.count("d") == 1


def test_each_object_is_of_the_version_that_was_listed_of_it() -> None:
    store = Store()
    store.versions.update(b="v2", d="v3")
    assert fetch(store, versions=["v1", "v2", "v1", "v3"]) == WHOLE
    with pytest.raises(ChangedSourceError, match=r"sftp://host/d: .* version v1, found version v3"):
        fetch(store, versions=["v1", "v2", "v1", "v1"])


def test_the_number_of_requests_at_once_is_told_to_stores_that_take_it() -> None:
    store = Store()
    fetch(store, sizes="of a store")
    store.async_impl = True  # type: ignore[attr-defined]
    fetch(store)
    assert store.options == [
        {"on_error": "return", "sizes": "of a store"},
        {"on_error": "return", "batch_size": client.CONCURRENCY},
    ]


@pytest.mark.parametrize(
    ("error", "expected", "listed"),
    [
        (FileNotFoundError("c"), SourceNotFoundError, ChangedSourceError),
        (Refused(412), StorageError, ChangedSourceError),
        (PermissionError("c"), StorageError, StorageError),
        (StorageError("worded"), StorageError, StorageError),
    ],
)
def test_what_is_final_is_told_of_its_object_and_not_asked_again(
    error: Exception, expected: type[StorageError], listed: type[StorageError]
) -> None:
    for versions, kind in ((None, expected), (["v1"] * 4, listed)):
        store = Store(b=[AWAY], c=[error])
        with pytest.raises(StorageError) as caught:
            fetch(store, versions=versions)
        assert type(caught.value) is kind
        assert caught.value is error if isinstance(error, StorageError) else "sftp://host/c" in str(caught.value)
        assert store.asked == ["a", "b", "c", "d"]


def test_what_is_final_is_final_in_later_attempts_too() -> None:
    store = Store(b=[AWAY] * 2, c=[AWAY, PermissionError("c")], d=[AWAY])
    with pytest.raises(StorageError, match="sftp://host/c"):
        fetch(store)
    assert store.asked == ["a", "b", "c", "d", "b", "c", "d"]
    store = Store(a=[AWAY], b=[AWAY, AWAY, PermissionError("b")])  # once some have come
    with pytest.raises(StorageError, match="sftp://host/b"):
        fetch(store)
    assert store.asked == ["a", "b", "c", "d", "a", "b", "b"]


def test_nothing_asks_nothing() -> None:
    store = Store()
    assert fetch_many(store, [], [], []) == []
    assert store.asked == []


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_store_without_conditions_is_asked_for_the_version_behind_the_read(moment: str) -> None:
    class Replaced(Store):
        def cat_file(self, url: str, start: int | None, end: int | None) -> bytes:
            if moment == "before":
                self.versions[url[-1]] = "v2"
            found = super().cat_file(url, start, end)
            self.versions[url[-1]] = "v2"
            return found

    assert takes_conditions("/a/local/file")
    assert not takes_conditions(URLS[0])
    with pytest.raises(ChangedSourceError, match="version v2"):
        fetch(Replaced(), versions=["v1"] * 4)


def test_what_a_store_is_asked_is_answered_by_no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store()
    store.versions["b"] = "v2"
    monkeypatch.setattr(storage_stat, "filesystem", lambda *_: store)
    assert stat(URLS[1]).version == "v2"
    urls = ["hf://datasets/owner/name/b", URLS[1], URLS[0]]  # of several stores, one by one
    assert [(info.url, info.version) for info in stat_many(urls)] == list(zip(urls, ["v2", "v2", "v1"], strict=True))


class FailedConditionError(Exception):
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


class Conditional:
    """The clients of S3, GCS and Azure at once.

    Args:
        version: Version of every object.
        obeys: Whether it checks conditions.
        tells: Whether its responses name the version.
        more: Length that responses of S3 report beyond that of the body, if they report one.
    """

    retries = 1
    max_concurrency = 3
    _timeout_kwargs: ClassVar[dict[str, Any]] = {"read_timeout": 7}

    def __init__(self, version: str = "v1", *, obeys: bool = True, tells: bool = True, more: int | None = None) -> None:
        self.loop = asyn.get_loop()
        self.version, self.obeys, self.tells, self.more = version, obeys, tells, more
        self.asked: list[str] = []
        self.bodies: list[Body] = []
        self.options: dict[str, Any] = {}
        self.service_client = SimpleNamespace(get_blob_client=self._client)

    def _answer(self, key: str, condition: str | None) -> None:
        self.asked.append(key)
        if self.obeys and condition not in (None, self.version):
            raise FailedConditionError(condition)

    def split_path(self, url: str) -> tuple[str, str, None]:
        bucket, _, key = url.partition("://")[2].partition("/")
        return bucket, key, None

    async def _call_s3(self, method: str, Bucket: str, Key: str, **request: Any) -> dict[str, Any]:  # noqa: N803
        assert (method, Bucket) == ("get_object", "bucket")
        condition = request.get("IfMatch")
        assert condition is None or condition[0] == condition[-1] == '"'
        self._answer(Key, condition and condition.strip('"'))
        data = ranged(DATA, request.get("Range"))
        self.bodies.append(Body(data))
        heads = {"ETag": f'"{self.version}"'} if self.tells else {}
        length = {} if self.more is None else {"ContentLength": len(data) + self.more}
        return {"Body": self.bodies[-1], **heads, **length}

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


def read(store: Any, scheme: str, *ranges: tuple[int | None, int | None], versions: Sequence[str] = ()) -> list[Any]:
    urls = [f"{scheme}://bucket/key{number}" for number in range(len(ranges))]
    starts, stops = zip(*ranges, strict=True)
    return list(cat_listed(store, urls, starts, stops, versions or ["v1"] * len(urls)))


def test_ranges_and_whole_objects_come_in_order_a_request_each(scheme: str) -> None:
    store = Conditional()
    assert takes_conditions(f"{scheme}://bucket/key")
    assert read(store, scheme, (0, 10), (None, None), (95, 100), (7, 8)) == [DATA[:10], DATA, DATA[95:], DATA[7:8]]
    assert sorted(store.asked) == ["key0", "key1", "key2", "key3"]
    assert not any(body.open for body in store.bodies)


@each("bounds", [(0, 10), (90, 100), (None, None)])
def test_another_version_is_refused_by_the_store_or_by_who_reads_its_answer(
    scheme: str, bounds: tuple[int | None, int | None]
) -> None:
    """Some servers ignore the condition, and others do not name the version."""
    (found,) = read(Conditional("v2", tells=False), scheme, bounds)
    assert isinstance(found, FailedConditionError)
    assert str(found) == "v1"
    assert read(Conditional("v1", tells=False), scheme, bounds) == [DATA[slice(*bounds)]]
    store = Conditional("v2", obeys=False)
    (found,) = read(store, scheme, bounds)
    assert isinstance(found, OtherVersionError)
    assert str(found) == "v2"
    assert not any(body.open for body in store.bodies)
    found = read(Conditional(), scheme, *[bounds] * 3, versions=["v1", "v0", "v1"])
    assert [type(one) for one in found] == [bytes, FailedConditionError, bytes]


def test_what_s3_says_of_the_length_of_an_answer_changes_nothing_of_it() -> None:
    """A truncated response is not padded: the reader finds that it is short."""
    for more in (0, 1, 50):
        found = read(Conditional(more=more), "s3", (0, 10), (None, None), (7, 8))
        assert found == [DATA[:10], DATA, DATA[7:8]]


def test_files_of_the_hub_come_in_order_and_in_the_version_that_was_listed() -> None:
    store = SimpleNamespace(read_version=lambda url, start, stop: ("v2" if url[-1] == "1" else "v1", DATA[start:stop]))
    first, other, last = read(store, "hf", (0, 10), (3, 4), (95, 100))
    assert (first, last) == (DATA[:10], DATA[95:])
    assert isinstance(other, OtherVersionError)


def test_azure_is_told_how_the_client_was_set_up() -> None:
    store = Conditional()
    read(store, "az", (0, 10))
    assert (store.options["max_concurrency"], store.options["read_timeout"]) == (3, 7)
