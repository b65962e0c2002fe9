"""The parts that the tasks of a job have written, as one Megatron dataset for each key."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass

import numpy as np

from ledgerbeam.io import ObjectFolder, remove_stale_temporaries
from ledgerbeam.io.megatron import Layout, merge_megatron, write_megatron
from ledgerbeam.io.megatron.index import BLOCK, MegatronIndex
from ledgerbeam.ledger import LedgerStore, dataset_manifest, fault_point
from ledgerbeam.pipelines.jobs.removal import remove_below
from ledgerbeam.pipelines.jobs.spec import JobSpec
from ledgerbeam.pipelines.jobs.stamp import OutputStamp

__all__ = ["MegatronParts", "MergedDataset"]

_DATA, _INDEX = ".bin", ".idx"


@dataclass(frozen=True)
class MergedDataset:
    """A dataset that was merged.

    Attributes:
        prefix: What the names of its two files begin with.
        dtype: Name of the tokens' dtype.
        documents: How many there are.
        empty_documents: How many of them have no sequence.
        sequences: How many there are.
        tokens: How many there are.
        parts: Of how many parts it was made.
    """

    prefix: str
    dtype: str
    documents: int
    empty_documents: int
    sequences: int
    tokens: int
    parts: int


class MegatronParts:
    """The parts of a job whose sources are all complete, in the order of its dataset manifest.

    What was merged last is noted beside the ledger, so that parts that were merged and dropped need not be there.

    Args:
        spec: The job; one with a `merged`.
        store: Its ledger.
    """

    def __init__(self, spec: JobSpec, store: LedgerStore) -> None:
        self._spec = spec
        self._store = store
        self._options = spec.storage_options
        self._folder = ObjectFolder(str(spec.output), spec.storage_options)
        self._shards = list(dataset_manifest(store))
        self._note = OutputStamp(spec, "merged", self._shards)

    def merged(self) -> list[MergedDataset] | None:
        """Returns the datasets if they are these very parts, merged, and of the size they had; else None."""
        note = self._note.read()
        try:
            return None if note is None else [MergedDataset(**facts) for facts in note["datasets"]]
        except (KeyError, TypeError):  # not what was noted here
            return None

    def merge(self) -> list[MergedDataset]:
        """Merges the parts; the parts stay.

        Raises:
            LedgerbeamError: If a part does not read, or the result cannot be written.
        """
        if self._note.begin():  # a merge was killed
            remove_stale_temporaries(os.path.dirname(str(self._spec.merged)))
        datasets = [self._merge(suffix) for suffix in self._spec.settings["suffixes"]]
        fault_point("merge.after")
        files = [f"{dataset.prefix}{ending}" for dataset in datasets for ending in (_DATA, _INDEX)]
        self._note.end(files, datasets=[asdict(dataset) for dataset in datasets])
        return datasets

    def drop(self) -> None:
        """Removes the parts, once they are merged."""
        there = set(self._folder.names(""))
        names = {name for shard in self._shards for name in (shard.name, shard.index) if name is not None}
        remove_below(self._folder.url, sorted(names & there), self._options, ledger=self._store.url, prune=True)

    def _merge(self, suffix: str) -> MergedDataset:
        prefix = f"{self._spec.merged}{suffix}"
        shards = [shard for shard in self._shards if shard.name.endswith(f"-{shard.first:010d}{suffix}{_DATA}")]
        parts = [f"{self._folder.url}/{shard.name.removesuffix(_DATA)}" for shard in shards]
        if parts:
            layout = merge_megatron(parts, prefix, self._options)
        else:
            with write_megatron(prefix, self._spec.settings["dtype"], self._options) as builder:
                layout = builder.layout
        return MergedDataset(
            prefix,
            layout.dtype.name,
            layout.documents,
            self._empty_documents(prefix, layout),
            layout.sequences,
            sum(shard.size for shard in shards) // layout.dtype.itemsize,
            len(parts),
        )

    def _empty_documents(self, prefix: str, layout: Layout) -> int:
        index = MegatronIndex(prefix, self._options)
        empty = before = 0
        for start in range(0, layout.documents, BLOCK):
            ends = index.document_ends(start, min(start + BLOCK, layout.documents))
            empty += int(np.count_nonzero(np.diff(ends, prepend=before) == 0))
            before = int(ends[-1])
        index.close()
        return empty
