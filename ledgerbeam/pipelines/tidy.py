"""What a run removes: superseded outputs, scan parts of complete sources, and what killed writers have left."""

from __future__ import annotations

import os
import shutil
import time
from itertools import compress

from ledgerbeam.io import (
    ObjectFolder,
    canonical_url,
    delete,
    expand_braces,
    fixed_part,
    is_local,
    remove_stale_temporaries,
)
from ledgerbeam.ledger import LedgerStore, dead_marks, live_pids
from ledgerbeam.ledgers import scratch_folder
from ledgerbeam.pipelines.spec import JobSpec

__all__ = ["drop_dead_runs", "remove_superseded", "sweep_temporaries"]

PART_SUFFIX = ".part"
"""How the names of the parts of indexes end, see `transforms.index`."""

INDEX_SUFFIXES = (".idx", ".gzidx")

BEGIN_SECONDS = 60.0
"""How long a run may take from making its folder to marking it."""


def remove_superseded(spec: JobSpec, store: LedgerStore) -> None:
    """Removes outputs that no source yields any more, and the parts of indexes that are published.

    Call it when no worker is at work on the ledger: between publishing an object and recording it, it looks stale.
    """
    store.refresh()
    stale = store.stale_outputs()
    for name in stale:
        if spec.output is not None:
            delete(f"{spec.output}/{name}", spec.storage_options, missing_ok=True)
        elif _is_index_of_job(spec, name):
            delete(name, spec.storage_options, missing_ok=True)
    store.drop_stale(stale)
    work = spec.work
    remove_stale_temporaries(work)
    folder = ObjectFolder(work, spec.storage_options)
    parts = [name for name in folder.names("") if name.endswith(PART_SUFFIX)]
    ids = [bytes.fromhex(name.partition("-")[0]) for name in parts]
    folder.delete(compress(parts, store.completed_mask(ids)))


def _is_index_of_job(spec: JobSpec, name: str) -> bool:
    """Tells whether an output of an index job, which names its outputs by their URL, lies where the job writes.

    Whoever can write to a ledger can name any file in it.
    """
    url = canonical_url(name)
    return url.endswith(INDEX_SUFFIXES) and any(url.startswith(f"{folder.rstrip('/')}/") for folder in _folders(spec))


def _folders(spec: JobSpec) -> set[str]:
    """Returns the folders below which the job writes."""
    folders = {spec.output, spec.index_root}
    if spec.index_root is None:
        folders.update(fixed_part(plain) for pattern in spec.patterns for plain in expand_braces(pattern))
    return {canonical_url(folder) for folder in folders if folder is not None}


def sweep_temporaries(spec: JobSpec) -> None:
    """Removes the hidden files of writers that were killed, wherever the job writes; those of live writers stay."""
    for folder in sorted(folder for folder in _folders(spec) if is_local(folder)):
        remove_stale_temporaries(folder)


def drop_dead_runs(spec: JobSpec) -> list[int]:
    """Removes the folders of runs whose launcher has died.

    Returns:
        Process ids of the launchers of other runs that are still at work on this ledger.
    """
    runs = os.path.join(scratch_folder(spec.ledger), "run")
    alive: list[int] = []
    for name in sorted(os.listdir(runs)) if os.path.isdir(runs) else []:
        folder = os.path.join(runs, name)
        launchers = live_pids(folder)
        alive += launchers
        # A folder without any mark is that of a run which has just begun, unless it is old.
        if not launchers and (dead_marks(folder) or time.time() - os.stat(folder).st_mtime > BEGIN_SECONDS):
            shutil.rmtree(folder, ignore_errors=True)  # what cannot be removed now is tried again by the next run
    return alive
