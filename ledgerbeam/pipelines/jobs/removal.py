"""Removing what a job has written: whatever a ledger says, never anything outside of the folder that it is for."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from contextlib import suppress

from ledgerbeam.errors import LedgerDamagedError, StorageError
from ledgerbeam.io import ObjectFolder, Options, canonical_url
from ledgerbeam.io.storage.urls import is_local

__all__ = ["remove_below", "require_below", "require_own_folder"]


def remove_below(root: str, names: Iterable[str], options: Options, *, ledger: str, prune: bool = False) -> None:
    """Remove objects below a folder, durably; those that are gone are passed over. A link is removed, not followed.

    All names are looked at, as by `require_below`, before anything is removed.

    Args:
        root: The folder; it may be a link itself.
        names: Relative to it.
        options: Storage options.
        ledger: Whose names these are, for messages.
        prune: Whether local folders that this leaves empty go too, `root` among them.

    Raises:
        LedgerDamagedError: If a name leads out of the folder, by ``..`` or through a link.
        StorageError: If the store refused.
    """
    chosen = list(names)
    parents = require_below(root, chosen, ledger=ledger)
    ObjectFolder(root, options).delete(chosen)
    for empty in parents if prune else ():
        with suppress(OSError):  # something else is in it
            while _is_below(empty, root):
                os.rmdir(empty)
                empty = os.path.dirname(empty)  # noqa: PLW2901


def require_below(root: str, names: Sequence[str], *, ledger: str) -> set[str]:
    """Check that names lie below a folder: whoever can write to a ledger can put any name in it.

    Args:
        root: The folder; it may be a link itself.
        names: Relative to it.
        ledger: Whose names these are, for messages.

    Returns:
        The local folders that they lie in.

    Raises:
        LedgerDamagedError: If a name leads out of the folder, by ``..`` or through a link.
    """
    for name in names:
        if not name or "\0" in name or ".." in name.split("/"):
            _refuse(name, root, ledger)
    if not is_local(root):
        return set()
    base = canonical_url(root).rstrip("/")
    parents = {os.path.dirname(f"{base}/{name}") for name in names}
    outside = {parent for parent in parents if not _is_below(parent, root)}
    for name in names:
        if os.path.dirname(f"{base}/{name}") in outside:
            _refuse(name, root, ledger)
    return parents


def require_own_folder(url: str) -> None:
    """Check that a folder that a ledger makes in its own is one, if it is there: not a link to another's.

    Raises:
        StorageError: If something else lies there.
    """
    if is_local(url) and os.path.lexists(url) and (os.path.islink(url) or not os.path.isdir(url)):
        raise StorageError(
            f"{url}: expected a folder, in which the ledger keeps notes and parts of indexes, and found a link or a "
            "file; it is not touched. Move it away and run the same command again"
        )


def _is_below(path: str, root: str) -> bool:
    """Return whether a path is a folder or below it, links resolved."""
    base = os.path.realpath(canonical_url(root))
    return os.path.commonpath([base, os.path.realpath(path)]) == base


def _refuse(name: str, root: str, ledger: str) -> None:
    raise LedgerDamagedError(
        f"ledger {ledger}: it names {name!r} as an output that is out of date, which leads out of {root}; nothing was "
        "removed. If a link in that folder leads elsewhere, put a folder in its place; else somebody has changed the "
        "ledger: restore it from a copy, or give another --ledger"
    )
