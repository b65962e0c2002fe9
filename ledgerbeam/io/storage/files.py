"""Read and delete whole files by URL. Writing is in `publish`, listing in `listing`."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence

from ledgerbeam.errors import StorageError
from ledgerbeam.io.storage.client import Options, call, filesystem
from ledgerbeam.io.storage.fetch import fetch_many
from ledgerbeam.io.storage.responses import storage_error
from ledgerbeam.io.storage.stat import FileInfo, open_local
from ledgerbeam.io.storage.urls import canonical_url, is_local, store_of


def read_bytes(url: str, options: Options | None = None, listed: FileInfo | None = None) -> bytes:
    """Read a whole source: one request if it is remote.

    Raises:
        ChangedSourceError: The source changed since it was listed.
        SourceNotFoundError: The source does not exist; also UsageError and StorageError as in `stat`.
    """
    return read_many_files([url], options, None if listed is None else [listed])[0]


def read_many_files(
    urls: Iterable[str], options: Options | None = None, listed: Sequence[FileInfo] | None = None
) -> list[bytes]:
    """Read whole small sources, remote ones up to `CONCURRENCY` at a time.

    Args:
        urls: Local paths, or URLs of one store. All contents are kept in memory.
        options: Storage options.
        listed: The listed properties of each; only that version is read.

    Returns:
        The contents, in the order of `urls`.

    Raises:
        ChangedSourceError: One of them changed since it was listed.
        SourceNotFoundError: One of them does not exist; also UsageError and StorageError as in `stat`.
    """
    names = [canonical_url(url) for url in urls]
    found: dict[int, bytes] = {
        i: _read_local(url, None if listed is None else listed[i]) for i, url in enumerate(names) if is_local(url)
    }
    rest = [i for i in range(len(names)) if i not in found]
    if rest:
        store = filesystem(names[rest[0]], options)
        whole = store_of(names[rest[0]]).whole_read
        nothing = [None] * len(rest)
        versions = None if listed is None else [listed[i] for i in rest]
        contents = fetch_many(store, [names[i] for i in rest], nothing, nothing, versions, **whole)
        found.update(zip(rest, contents, strict=True))
    return [found[i] for i in range(len(names))]


def _read_local(url: str, listed: FileInfo | None) -> bytes:
    with open_local(url, listed) as descriptor, open(descriptor, "rb", buffering=0, closefd=False) as file:
        data: bytes = file.readall()
        return data


def delete(url: str, options: Options | None = None) -> None:
    """Delete a file or an object; one that does not exist is ignored.

    Raises:
        StorageError: No permission, or the store did not respond.
    """
    url = canonical_url(url)
    try:
        if is_local(url):
            os.unlink(url)
            return
        store = filesystem(url, options)
        call(url, "delete", store.rm_file, url)
        store.invalidate_cache(url)
    except FileNotFoundError:
        pass
    except StorageError:
        raise
    except OSError as error:
        raise storage_error(error, url, "delete") from error
