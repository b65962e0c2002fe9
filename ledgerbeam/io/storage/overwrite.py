"""TODO."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Protocol

from ledgerbeam.errors import SourceNotFoundError, UsageError
from ledgerbeam.io.storage.client import Options
from ledgerbeam.io.storage.ranges import RangeReader
from ledgerbeam.io.storage.stat import stat
from ledgerbeam.io.storage.urls import canonical_url, is_local


def first_link(root: str, folder: str) -> str | None:
    """Return the first link on the way from a folder to one below it; None if there is none.

    Args:
        root: Canonical path of a local folder; it may be a link itself.
        folder: The folder below it, or `root`.
    """
    path = root.rstrip("/")
    for part in filter(None, folder[len(path) :].split("/")):
        path = f"{path}/{part}"
        if os.path.islink(path):
            return path
    return None


def refuse_links(root: str, folders: Iterable[str]) -> None:
    """Check that no link lies on the way from a folder to those below it; there are none on an object store.

    Args:
        root: Canonical URL of a folder.
        folders: Canonical URLs of folders below it, or itself.

    Raises:
        UsageError: If there is one.
    """
    if is_local(root):
        for folder in folders:
            if (link := first_link(root, folder)) is not None:
                raise _is_link(link, root)


def refuse_folder_links(root: str, *, owned_by: str) -> None:
    """Check that no folder below a folder is a link, however deep, but in folders with owners of their own.

    Args:
        root: A folder, or URL; it need not exist.
        owned_by: Name of the folder that an owned folder has.

    Raises:
        UsageError: If there is one.
    """
    if is_local(root):
        link = next(_folder_links(canonical_url(root), owned_by), None)
        if link is not None:
            raise _is_link(link, root)


def _folder_links(root: str, owned_by: str) -> Iterator[str]:
    """Yield the links to folders below a local folder; see `refuse_folder_links`."""
    for here, names, _ in os.walk(root):
        if here != root and owned_by in names:
            names.clear()
        yield from (path for name in names if os.path.islink(path := os.path.join(here, name)))


def _is_link(link: str, root: str) -> UsageError:
    return UsageError(
        f"{link}: expected a folder, found a link: what is written below {root} could replace files of others; put a "
        "folder in its place, or give another folder"
    )


_LOOKED_AT = 64 * 1024
_WORD = 8


class Looks(Protocol):
    """How a file of a kind looks; a compiled regular expression is one."""

    def match(self, content: bytes, /) -> object:
        """Return something true if a file may be of the kind.

        Args:
            content: The whole file, or of a large one the beginning and the end, from a multiple of 8 bytes.
        """


def refuse_foreign(
    files: Mapping[str, Looks],
    options: Options | None,
    *,
    kind: str,
    remedy: str = "or give another name",
) -> list[str]:
    """Check that files that are to be written are not there, or that such ones are, which are replaced.

    Args:
        files: How each one looks, by its URL.
        options: Storage options.
        kind: What they are, for the message.
        remedy: What to do once a file of others is moved away, or instead.

    Returns:
        The URLs of those that are there.

    Raises:
        UsageError: One is there that looks otherwise; also StorageError.
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
        if not looks.match(content):
            raise UsageError(
                f"{found.url}: expected no file, or {kind}, which is replaced; found another file: move it away, "
                f"{remedy}"
            )
        there.append(url)
    return there
