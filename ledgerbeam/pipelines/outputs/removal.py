"""What a job removes: superseded outputs, scan parts of complete sources, and what killed writers have left.

Whatever a ledger says, never anything outside of the folder that it is for.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import compress

from ledgerbeam.errors import LedgerDamagedError, StorageError
from ledgerbeam.io import Options
from ledgerbeam.io.storage.objects import ObjectFolder
from ledgerbeam.io.storage.overwrite import first_link
from ledgerbeam.io.storage.publish import remove_stale_temporaries
from ledgerbeam.io.storage.urls import canonical_url, is_local
from ledgerbeam.ledger import LedgerStore
from ledgerbeam.pipelines.jobs.spec import JobSpec

_PART = re.compile(r"[0-9a-f]{32}-\d+\.part")
"""The names of the parts of indexes, see `transforms.index`."""

_INDEX_SUFFIXES = (".idx", ".gzidx")


def remove_superseded(spec: JobSpec, store: LedgerStore) -> list[str]:
    """Remove outputs that no source yields any more, and the parts of indexes that are published.

    Call it when no worker is at work on the ledger: between publishing an object and recording it, it looks stale.

    Returns:
        Names of outputs out of date that were left, since they lie where this job does not write.

    Raises:
        LedgerDamagedError: If the ledger names an output that leads out of the job's folders. Nothing was removed.
        StorageError: If something cannot be removed.
    """
    require_own_folder(spec.work_folder)
    store.refresh()
    stale = store.stale_outputs()
    places = [_place(spec, name) for name in stale]
    names = defaultdict[str, list[str]](list)
    for root, name in places:
        if root is not None:
            names[root].append(name)
    for root, below in names.items():
        _require_below(root, below, ledger=spec.ledger)
    for root, below in names.items():
        remove_below(root, below, spec.storage_options, ledger=spec.ledger)
    store.drop_stale(stale)
    _remove_parts(spec, store)
    return [name for root, name in places if root is None]


def remove_gone(spec: JobSpec, store: LedgerStore) -> int:
    """Remove the outputs of sources that the last listing no longer had, and make the ledger forget them.

    It is for a job of which each output depends on all sources: what is left of one that is gone would be wrong. A job
    that is killed in between finds the outputs lost, and forgets their sources then.

    Returns:
        How many outputs there were.

    Raises:
        LedgerDamagedError: If the ledger names an output that leads out of the job's folder. Nothing was removed.
        StorageError: If something cannot be removed.
    """
    gone = store.gone_ids()
    if not gone or spec.output is None:
        return 0
    names = [row.output.name for row in store.outputs(ordered=False) if row.source_id in gone]
    remove_below(spec.output, names, spec.storage_options, ledger=spec.ledger)
    store.forget_sources(gone)
    return len(names)


def count_superseded(store: LedgerStore) -> int:
    """Return how many outputs `remove_superseded` would remove."""
    store.refresh()
    return len(store.stale_outputs())


def _remove_parts(spec: JobSpec, store: LedgerStore) -> None:
    remove_stale_temporaries(spec.work_folder)
    parts = [name for name in ObjectFolder(spec.work_folder, spec.storage_options).names("") if _PART.fullmatch(name)]
    done = store.completed_mask([bytes.fromhex(name.partition("-")[0]) for name in parts])
    remove_below(spec.work_folder, compress(parts, done), spec.storage_options, ledger=spec.ledger)


def _place(spec: JobSpec, name: str) -> tuple[str | None, str]:
    """Return the folder of the job below which an output lies, and its name there; no folder if it is below none.

    An index job names its outputs by their URL. Of folders in each other it is the innermost.
    """
    if spec.output is not None:
        return spec.output, name
    url = canonical_url(name)
    for folder in sorted(spec.folders(), reverse=True):
        root = f"{folder.rstrip('/')}/"
        if url.endswith(_INDEX_SUFFIXES) and url.startswith(root):
            return folder, url.removeprefix(root)
    return None, name


def sweep_temporaries(spec: JobSpec) -> None:
    """Remove the hidden files of writers that were killed, wherever the job writes; those of live writers stay."""
    for folder in spec.folders():
        remove_stale_temporaries(folder)


def remove_below(root: str, names: Iterable[str], options: Options, *, ledger: str, prune: bool = False) -> None:
    """Remove objects below a folder, durably; those that are gone are passed over. A link is removed, not followed.

    All names are looked at, as by `_require_below`, before anything is removed.

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
    parents = _require_below(root, chosen, ledger=ledger)
    ObjectFolder(root, options).delete(chosen)
    for empty in parents if prune else ():
        with suppress(OSError):  # something else is in it
            while _is_below(empty, root):
                os.rmdir(empty)
                empty = os.path.dirname(empty)  # noqa: PLW2901


def _require_below(root: str, names: Sequence[str], *, ledger: str) -> set[str]:
    """Check that names lie below a folder: a program that can write to a ledger can put any name in it.

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
    outside = {parent for parent in parents if first_link(base, parent) is not None}
    for name in names:
        if os.path.dirname(f"{base}/{name}") in outside:
            _refuse(name, root, ledger)
    return parents


def require_own_folder(url: str) -> None:
    """Check that a folder that a ledger makes for itself is one, if it is there: not a link to another's.

    Raises:
        StorageError: If something else lies there.
    """
    if is_local(url) and os.path.lexists(url) and (os.path.islink(url) or not os.path.isdir(url)):
        raise StorageError(
            f"{url}: expected a folder in which the ledger keeps notes, marks or parts of indexes, and found a link or "
            "a file; it is not touched. Move it away and run the same command again"
        )


def _is_below(path: str, root: str) -> bool:
    """Return whether a path is that of a folder, or leads below it."""
    return f"{path}/".startswith(f"{canonical_url(root).rstrip('/')}/")


def _refuse(name: str, root: str, ledger: str) -> None:
    raise LedgerDamagedError(
        f"ledger {ledger}: it names {name!r} as an output that is out of date, which leads out of {root}; nothing was "
        "removed. If a link in that folder leads elsewhere, put a folder in its place; else somebody has changed the "
        "ledger: restore it from a copy, or give another --ledger"
    )
