"""Access to bytes by URL: the one module from which the rest of the package takes its reads.

Descriptions of sources, ranged and whole reads, deletion. Writing is in `publish`, listing in `listing`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from ledgerbeam.errors import SourceNotFoundError, StorageError
from ledgerbeam.io.file_info import FileInfo, folder_error, info_of, stat, stat_many
from ledgerbeam.io.ranges import RangeReader, fetch_many
from ledgerbeam.io.remote import (
    CONCURRENCY,
    Options,
    call,
    canonical_url,
    filesystem,
    is_local,
    storage_error,
)

__all__ = [
    "CONCURRENCY",
    "FileInfo",
    "Options",
    "RangeReader",
    "canonical_url",
    "delete",
    "filesystem",
    "info_of",
    "is_local",
    "read_bytes",
    "read_many_files",
    "stat",
    "stat_many",
]


def read_bytes(url: str, options: Options | None = None) -> bytes:
    """Reads a whole source: one request when it is remote.

    Raises:
        SourceNotFoundError: There is no such source; also UsageError and StorageError as in `stat`.
    """
    return read_many_files([url], options)[0]


def read_many_files(urls: Iterable[str], options: Options | None = None) -> list[bytes]:
    """Reads whole small sources, remote ones up to `CONCURRENCY` at a time.

    Args:
        urls: Local paths or URLs; remote ones all of one store. All contents are held in memory.
        options: Storage options.

    Returns:
        The content of each, in the order asked.

    Raises:
        SourceNotFoundError: One of them does not exist; also UsageError and StorageError as in `stat`.
    """
    names = [canonical_url(url) for url in urls]
    found: dict[int, bytes] = {i: _read_local(url) for i, url in enumerate(names) if is_local(url)}
    rest = [i for i in range(len(names)) if i not in found]
    if rest:
        store = filesystem(names[rest[0]], options)
        # s3fs would first ask for the length in order to fetch large objects in parts.
        whole = {"max_concurrency": 1} if names[rest[0]].startswith("s3://") else {}
        nothing = [None] * len(rest)
        contents = fetch_many(store, [names[i] for i in rest], nothing, nothing, **whole)
        found.update(zip(rest, contents, strict=True))
    return [found[i] for i in range(len(names))]


def _read_local(url: str) -> bytes:
    try:
        with open(url, "rb", buffering=0) as file:
            return file.readall()
    except IsADirectoryError as error:
        raise folder_error(url) from error
    except OSError as error:
        raise storage_error(error, url, "read") from error


def delete(url: str, options: Options | None = None, *, missing_ok: bool = True) -> None:
    """Deletes one file or object.

    Raises:
        SourceNotFoundError: It does not exist and `missing_ok` is false.
        StorageError: No permission, or the store did not answer.
    """
    url = canonical_url(url)
    try:
        if is_local(url):
            os.unlink(url)
            return
        if not missing_ok:
            stat(url, options)  # object stores delete what is not there without a word
        store = filesystem(url, options)
        call(url, "delete", store.rm_file, url)
        store.invalidate_cache(url)
    except SourceNotFoundError:
        if not missing_ok:
            raise
    except FileNotFoundError as error:
        if not missing_ok:
            raise storage_error(error, url, "delete") from error
    except StorageError:
        raise
    except OSError as error:
        raise storage_error(error, url, "delete") from error
