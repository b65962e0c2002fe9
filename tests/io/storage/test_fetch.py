"""Concurrent requests to a scripted store: retries, and the errors of failed requests."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from ledgerbeam.errors import ChangedSourceError, SourceNotFoundError, StorageError
from ledgerbeam.io.storage import client
from ledgerbeam.io.storage.fetch import fetch_many
from ledgerbeam.io.storage.stat import FileInfo

URLS = [f"sftp://host/{name}" for name in "abcd"]
AWAY = ConnectionResetError("away")


class Store:
    """A store that returns scripted answers for each object, and then the name of the object."""

    def __init__(self, **answers: Sequence[bytes | Exception]) -> None:
        self._answers = {name: list(found) for name, found in answers.items()}
        self.asked: list[str] = []
        self.options: list[dict[str, Any]] = []
        self.versions = dict.fromkeys("abcd", "v1")

    def _answer(self, url: str, start: int | None, stop: int | None) -> bytes | Exception:
        name = url[-1]
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
        """Do nothing: there is no cache."""

    def info(self, url: str) -> dict[str, Any]:
        return {"name": url, "size": 10, "type": "file", "etag": self.versions[url[-1]]}


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


def test_what_is_final_when_it_is_asked_again_beside_others_is_final() -> None:
    store = Store(b=[AWAY] * 2, c=[AWAY, PermissionError("c")], d=[AWAY])
    with pytest.raises(StorageError, match="sftp://host/c"):
        fetch(store)
    assert store.asked == ["a", "b", "c", "d", "b", "c", "d"]


def test_what_is_final_once_some_have_come_is_final() -> None:
    store = Store(a=[AWAY], b=[AWAY, AWAY, PermissionError("b")])
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

    with pytest.raises(ChangedSourceError, match="version v2"):
        fetch(Replaced(), versions=["v1"] * 4)
