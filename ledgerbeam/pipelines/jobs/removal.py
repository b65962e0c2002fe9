"""Removing what a job has written: whatever a ledger says, never anything outside of the folder that it is for."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress

from ledgerbeam.errors import LedgerDamagedError, StorageError
from ledgerbeam.io import ObjectFolder, Options, is_local

__all__ = ["remove_below", "require_own_folder"]


def remove_below(root: str, names: Iterable[str], options: Options, *, ledger: str, prune: bool = False) -> None:
    """Removes objects below a folder, durably; those that are gone are passed over. A link is removed, not followed.

    All names are looked at before anything is removed: whoever can write to a ledger can put any name in it.

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
    folder = ObjectFolder(root, options)
    chosen = list(names)
    if is_local(folder.url):
        inside: dict[str, bool] = {}
        for name in chosen:
            parent = os.path.dirname(f"{folder.url}/{name}")
            if parent not in inside:
                inside[parent] = _is_below(parent, folder.url)
            if not inside[parent]:
                _refuse(name, root, ledger)
    for name in chosen:
        if not name or "\0" in name or ".." in name.split("/"):
            _refuse(name, root, ledger)
    folder.delete(chosen)
    if prune and is_local(folder.url):
        parents = {os.path.dirname(f"{folder.url}/{name}") for name in chosen}
        for parent in sorted(parents, key=len, reverse=True):
            empty = parent
            with suppress(OSError):  # something else is in it
                while _is_below(empty, folder.url):
                    os.rmdir(empty)
                    empty = os.path.dirname(empty)


def require_own_folder(url: str) -> None:
    """Checks that a folder that a ledger makes in its own is one, if it is there: not a link to another's.

    Raises:
        StorageError: If something else lies there.
    """
    if is_local(url) and os.path.lexists(url) and (os.path.islink(url) or not os.path.isdir(url)):
        raise StorageError(
            f"{url}: expected a folder, in which the ledger keeps notes and parts of indexes, and found a link or a "
            "file; it is not touched. Move it away and run the same command again"
        )


def _is_below(path: str, root: str) -> bool:
    """Tells whether a path is a folder or below it, links resolved."""
    with suppress(ValueError):  # a name with a NUL
        base = os.path.realpath(root)
        return os.path.commonpath([base, os.path.realpath(path)]) == base
    return False


def _refuse(name: str, root: str, ledger: str) -> None:
    raise LedgerDamagedError(
        f"ledger {ledger}: it names {name!r} as an output that is out of date, which leads out of {root}; nothing was "
        "removed. If a link in that folder leads elsewhere, put a folder in its place; else somebody has changed the "
        "ledger: restore it from a copy, or give another --ledger"
    )
