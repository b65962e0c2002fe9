"""Whole files by URL: reads, deletion, and checks before they are written or removed.

The owner of a folder identifies its files by their paths. A link to another folder would redirect these paths to
foreign files. The folder itself, and its parents, may be links. Writing is in `publish`, listing in `listing`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import orjson

from ledgerbeam.errors import SourceError, SourceNotFoundError, StorageError, UsageError
from ledgerbeam.io.storage.client import Options, call, filesystem
from ledgerbeam.io.storage.fetch import fetch_many
from ledgerbeam.io.storage.ranges import RangeReader
from ledgerbeam.io.storage.responses import storage_error
from ledgerbeam.io.storage.stat import FileInfo, open_local, stat
from ledgerbeam.io.storage.urls import canonical_url, is_local, store_of

_LOOKED_AT = 64 * 1024
_WORD = 8


def read_bytes(url: str, options: Options | None = None, listed: FileInfo | None = None) -> bytes:
    """Read a whole source: one request if it is remote.

    Raises:
        ChangedSourceError: The source changed since it was listed.
    """
    return read_many_files([url], options, None if listed is None else [listed])[0]


def read_json(url: str, options: Options | None, what: str) -> dict[str, Any]:
    """Read a JSON object from a file. SourceError: it is not one; the message has `what`, such as ``a wids index``."""
    try:
        content = orjson.loads(read_bytes(url, options))
    except orjson.JSONDecodeError as error:
        raise SourceError(f"{url}: expected {what}, found bad JSON: {error}") from error
    if not isinstance(content, dict):
        raise SourceError(f"{url}: expected {what}, an object, found {type(content).__name__}")
    return content


def read_many_files(
    urls: Iterable[str], options: Options | None = None, listed: Sequence[FileInfo] | None = None
) -> list[bytes]:
    """Read whole small sources of one store in the order of `urls`, remote ones up to `CONCURRENCY` at a time.

    Raises:
        ChangedSourceError: A source changed since it was listed; also the errors of `stat`.
    """
    names = [canonical_url(url) for url in urls]
    found: dict[int, bytes] = {}
    for i, url in enumerate(names):
        if is_local(url):
            of = None if listed is None else listed[i]
            with open_local(url, of) as descriptor, open(descriptor, "rb", buffering=0, closefd=False) as file:
                found[i] = file.readall()
    if rest := [i for i in range(len(names)) if i not in found]:
        store = filesystem(names[rest[0]], options)
        whole = store_of(names[rest[0]]).whole_read
        nothing = [None] * len(rest)
        versions = None if listed is None else [listed[i] for i in rest]
        contents = fetch_many(store, [names[i] for i in rest], nothing, nothing, versions, **whole)
        found.update(zip(rest, contents, strict=True))
    return [found[i] for i in range(len(names))]


def delete(url: str, options: Options | None = None) -> None:
    """Delete a file or an object; one that does not exist is ignored."""
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


def first_link(root: str, folder: str) -> str | None:
    """Return the first link on the path from a folder to a subfolder; None if no part is a link."""
    path = root.rstrip("/")
    for part in filter(None, folder[len(path) :].split("/")):
        path = f"{path}/{part}"
        if os.path.islink(path):
            return path
    return None


def refuse_links(root: str, folders: Iterable[str]) -> None:
    """Raise UsageError if a part of the path from `root` to one of `folders` is a link. Object stores have no links."""
    if is_local(root):
        for folder in folders:
            if (link := first_link(root, folder)) is not None:
                raise _is_link(link, root)


def refuse_folder_links(root: str, *, owned_by: str) -> None:
    """Raise UsageError if a folder below `root` is a link, at any depth.

    Subfolders with other owners, marked by a subfolder of the name `owned_by`, are skipped.
    """
    if is_local(root):
        top = canonical_url(root)
        for here, names, _ in os.walk(top):
            if here != top and owned_by in names:
                names.clear()
            for name in names:
                if os.path.islink(path := os.path.join(here, name)):
                    raise _is_link(path, root)


def _is_link(link: str, root: str) -> UsageError:
    return UsageError(
        f"{link}: expected a folder, found a link, so outputs below {root} could replace foreign files; put a folder "
        "in its place, or give another output folder"
    )


Looks: TypeAlias = Callable[[bytes], object]
"""Returns a true value if a file may be of a kind, such as `match` of a regular expression, given its whole content.
For a large file, it gets the first and the last bytes; the last ones start at a multiple of 8."""


def refuse_foreign(
    files: Mapping[str, Looks], options: Options | None, *, kind: str, remedy: str = "or give another name"
) -> list[str]:
    """Check that the files at some URLs do not exist, or are earlier files of the same kind, which may be replaced.

    Raises:
        UsageError: A file of another kind exists; also StorageError.
    """
    there = []
    for url, looks in files.items():
        try:
            found = stat(url, options)
        except SourceNotFoundError:
            continue
        with RangeReader(url, options, listed=found) as reader:
            content = reader.read(0, min(found.size, _LOOKED_AT))
            behind = max(_LOOKED_AT, (found.size - _LOOKED_AT) // _WORD * _WORD)
            if behind < found.size:
                content += reader.read(behind, found.size)
        if not looks(content):
            raise UsageError(
                f"{found.url}: expected no file, or {kind}, which would be replaced; found another file: move it away, "
                f"{remedy}"
            )
        there.append(url)
    return there
