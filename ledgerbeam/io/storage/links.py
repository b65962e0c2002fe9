"""Links below a folder that somebody owns: nothing is written or removed through them.

The owner of a folder knows the files in it by their paths. A link to another folder would lead these paths to files of
others. The folder itself, and the folders above it, may be links.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator

from ledgerbeam.errors import UsageError
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
