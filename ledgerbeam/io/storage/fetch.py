"""Concurrent ranged requests: which of them are retried, and which error a failed one raises."""

from __future__ import annotations

from typing import Any

from ledgerbeam.errors import LedgerbeamError, SourceNotFoundError, StorageError
from ledgerbeam.io.storage.client import CONCURRENCY, call, http_status, is_transient, storage_error
from ledgerbeam.io.storage.stat import FileInfo, changed_error
from ledgerbeam.io.storage.unchanged import OtherVersionError, cat_listed
from ledgerbeam.io.storage.urls import store_of

_NO_MATCH = 412  # HTTP status of a condition that does not hold


def fetch_many(
    store: Any,
    urls: list[str],
    starts: list[Any],
    stops: list[Any],
    listed: list[FileInfo] | None = None,
    **kwargs: Any,
) -> list[bytes]:
    """Run ranged requests concurrently; only those that fail for a transient reason are repeated.

    A store that throttles rejects some of many requests in each round, so the count of attempts starts again as long as
    some of the requests succeed.

    Args:
        store: The fsspec file system of all objects.
        urls: URLs of the objects.
        starts: First byte of each range; None for the whole object.
        stops: End of each range, exclusive; None for the whole object.
        listed: The listed properties of each object; only bytes of that version are returned.
        **kwargs: Arguments for `cat_ranges` of the store.

    Raises:
        ChangedSourceError: An object changed since it was listed; also StorageError.
    """
    found: list[Any] = [None] * len(urls)
    left = list(range(len(urls)))
    if getattr(store, "async_impl", False):
        kwargs["batch_size"] = CONCURRENCY

    def fetch() -> None:
        nonlocal left
        ranges = [urls[i] for i in left], [starts[i] for i in left], [stops[i] for i in left]
        if listed is None and store_of(urls[0]).api != "http":  # a web server may send another range
            answers = store.cat_ranges(*ranges, on_error="return", **kwargs)
        else:
            versions = [None if listed is None else listed[i].version for i in left]
            answers = cat_listed(store, *ranges, versions)
        again = []
        for position, answer in zip(left, answers, strict=True):
            if isinstance(answer, LedgerbeamError):
                raise answer
            if isinstance(answer, BaseException):
                if not is_transient(answer):
                    raise _final(answer, urls[position], None if listed is None else listed[position]) from answer
                again.append(position)
            found[position] = answer
        left = again
        if left:
            raise found[left[0]]

    while left:
        before = len(left)
        try:
            call(urls[left[0]], "read", fetch)
        except StorageError as error:
            if len(left) == before or not is_transient(error.__cause__ or error):
                raise
    return found


def _final(error: BaseException, url: str, listed: FileInfo | None) -> StorageError:
    """Return the error to raise for a failed read."""
    worded = storage_error(error, url, "read")
    if listed is None:
        return worded
    if isinstance(error, OtherVersionError):
        return changed_error(listed, f"version {error}")
    if http_status(error) == _NO_MATCH:
        return changed_error(listed, "another version")
    if isinstance(worded, SourceNotFoundError):
        return changed_error(listed, "none: it was deleted")
    return worded
