"""Removal of superseded outputs, of scan parts of complete sources, and of temporary files of killed writers.

Nothing outside of the folders of the job is ever removed, even if the ledger names it.
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
from ledgerbeam.io.storage.files import first_link
from ledgerbeam.io.storage.objects import ObjectFolder
from ledgerbeam.io.storage.publish import remove_stale_temporaries
from ledgerbeam.io.storage.urls import canonical_url, is_local
from ledgerbeam.ledger import LedgerStore
from ledgerbeam.pipelines.jobs.spec import JobSpec

_PART = re.compile(r"[0-9a-f]{32}-\d+\.part")
"""Names of the parts of indexes, see `transforms.index`."""

_INDEX_SUFFIXES = (".idx", ".gzidx")


def remove_superseded(spec: JobSpec, store: LedgerStore) -> list[str]:
    """Remove outputs that sources no longer produce, and the parts of published indexes.

    Call it only while no worker writes to the ledger. An object that is published but not yet recorded looks stale.

    Returns:
        Names of stale outputs outside of the job's folders, which are kept.

    Raises:
        LedgerDamagedError: An output in the ledger leads out of the job's folders. Nothing was removed.
        StorageError: A file or object cannot be removed.
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
    """Remove the outputs of sources that are missing from the last listing, and make the ledger forget the sources.

    It is for jobs in which each output depends on all sources, so that an output of a missing source would be wrong.
    After a kill, the next run of the job finds the outputs missing and forgets their sources.

    Returns:
        Number of removed outputs.

    Raises:
        LedgerDamagedError: An output in the ledger leads out of the job's folder. Nothing was removed.
        StorageError: A file or object cannot be removed.
    """
    gone = store.gone_ids()
    if not gone or spec.output is None:
        return 0
    names = [row.output.name for row in store.outputs(ordered=False) if row.source_id in gone]
    remove_below(spec.output, names, spec.storage_options, ledger=spec.ledger)
    store.forget_sources(gone)
    return len(names)


def count_superseded(store: LedgerStore) -> int:
    """Return the number of outputs that `remove_superseded` would remove."""
    store.refresh()
    return len(store.stale_outputs())


def _remove_parts(spec: JobSpec, store: LedgerStore) -> None:
    remove_stale_temporaries(spec.work_folder)
    parts = [name for name in ObjectFolder(spec.work_folder, spec.storage_options).names("") if _PART.fullmatch(name)]
    done = store.completed_mask([bytes.fromhex(name.partition("-")[0]) for name in parts])
    remove_below(spec.work_folder, compress(parts, done), spec.storage_options, ledger=spec.ledger)


def _place(spec: JobSpec, name: str) -> tuple[str | None, str]:
    """Return the folder of the job that contains an output, and the name relative to it; None if no folder does.

    An index job names its outputs by URL. For nested folders the result is the innermost.
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
    """Remove the temporary files of killed writers in all folders of the job; those of live writers stay."""
    for folder in spec.folders():
        remove_stale_temporaries(folder)


def remove_below(root: str, names: Iterable[str], options: Options, *, ledger: str, prune: bool = False) -> None:
    """Remove objects below a folder, durably. Missing ones are skipped. A link is removed, not followed.

    All names are checked by `_require_below` before the first removal.

    Args:
        root: The folder; it may be a link itself.
        names: Names relative to `root`.
        options: Storage options.
        ledger: URL of the ledger with these names, for messages.
        prune: Whether to remove local folders that become empty, including `root`.

    Raises:
        LedgerDamagedError: A name leads out of the folder, by ``..`` or through a link.
        StorageError: The store refused the removal.
    """
    chosen = list(names)
    parents = _require_below(root, chosen, ledger=ledger)
    ObjectFolder(root, options).delete(chosen)
    for empty in parents if prune else ():
        with suppress(OSError):  # not empty
            while _is_below(empty, root):
                os.rmdir(empty)
                empty = os.path.dirname(empty)  # noqa: PLW2901


def _require_below(root: str, names: Sequence[str], *, ledger: str) -> set[str]:
    """Check that names are below a folder. A program that can write to a ledger can store any name in it.

    Args:
        root: The folder; it may be a link itself.
        names: Names relative to `root`.
        ledger: URL of the ledger with these names, for messages.

    Returns:
        The local folders of the files.

    Raises:
        LedgerDamagedError: A name leads out of the folder, by ``..`` or through a link.
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
    """Check that a folder of a ledger's own files is a folder, if it exists, and not a link to another one.

    Raises:
        StorageError: It is a link or a file.
    """
    if is_local(url) and os.path.lexists(url) and (os.path.islink(url) or not os.path.isdir(url)):
        raise StorageError(
            f"{url}: expected a folder for notes, marks or parts of indexes of the ledger, found a link or a file, "
            "which stays unchanged. Move it away and run the same command again"
        )


def _is_below(path: str, root: str) -> bool:
    """Return whether a path is that of a folder, or leads below it."""
    return f"{path}/".startswith(f"{canonical_url(root).rstrip('/')}/")


def _refuse(name: str, root: str, ledger: str) -> None:
    raise LedgerDamagedError(
        f"ledger {ledger}: the stale output {name!r} leads out of {root}; nothing was removed. If a link in that "
        "folder leads elsewhere, put a folder in its place. Otherwise another program has changed the ledger: restore "
        "it from a copy, or give another --ledger"
    )
