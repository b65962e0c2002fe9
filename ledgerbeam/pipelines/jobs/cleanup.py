"""What a run removes: superseded outputs, scan parts of complete sources, and what killed writers have left."""

from __future__ import annotations

import re
from itertools import compress

from ledgerbeam.io import ObjectFolder, canonical_url
from ledgerbeam.io.storage.publish import remove_stale_temporaries
from ledgerbeam.ledger import LedgerStore
from ledgerbeam.pipelines.jobs.removal import remove_below, require_below, require_own_folder
from ledgerbeam.pipelines.jobs.spec import JobSpec

__all__ = ["count_superseded", "remove_superseded", "sweep_temporaries"]

_PART = re.compile(r"[0-9a-f]{32}-\d+\.part")
"""The names of the parts of indexes, see `transforms.index`."""

INDEX_SUFFIXES = (".idx", ".gzidx")


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
    names = {root: [name for other, name in places if other == root] for root, _ in places if root is not None}
    for root, below in names.items():
        require_below(root, below, ledger=spec.ledger)
    for root, below in names.items():
        remove_below(root, below, spec.storage_options, ledger=spec.ledger)
    store.drop_stale(stale)
    _remove_parts(spec, store)
    return [name for root, name in places if root is None]


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
        if url.endswith(INDEX_SUFFIXES) and url.startswith(root):
            return folder, url.removeprefix(root)
    return None, name


def sweep_temporaries(spec: JobSpec) -> None:
    """Remove the hidden files of writers that were killed, wherever the job writes; those of live writers stay."""
    for folder in spec.folders():
        remove_stale_temporaries(folder)
