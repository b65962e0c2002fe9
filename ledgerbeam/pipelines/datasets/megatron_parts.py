"""The parts that the tasks of a job have written, as one Megatron dataset for each key."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate, pairwise
from typing import Any, ClassVar

from ledgerbeam._base.lazy import np
from ledgerbeam.errors import LedgerbeamError, LedgerError, SourceNotFoundError
from ledgerbeam.io import Options
from ledgerbeam.io.compression.content import is_older
from ledgerbeam.io.datasets.megatron import Layout, merge_megatron, write_megatron
from ledgerbeam.io.datasets.megatron.index import BLOCK, MegatronIndex
from ledgerbeam.io.listing.pages import Page
from ledgerbeam.io.storage.concurrency import ask_each
from ledgerbeam.io.storage.objects import ObjectFolder
from ledgerbeam.io.storage.publish import remove_stale_temporaries
from ledgerbeam.io.storage.stat import FileInfo, stat, stat_many
from ledgerbeam.ledger import LedgerStore, OutputShard, dataset_manifest
from ledgerbeam.ledger.model.faults import fault_point
from ledgerbeam.pipelines.console.run_progress import count
from ledgerbeam.pipelines.jobs.convert import DatasetParts
from ledgerbeam.pipelines.jobs.spec import JobSpec, work_folder_of
from ledgerbeam.pipelines.outputs.contents import checksum_at, content_problem
from ledgerbeam.pipelines.outputs.recorded import forget_lost
from ledgerbeam.pipelines.outputs.removal import remove_below
from ledgerbeam.pipelines.outputs.stamp import OutputStamp

PARTS_SUFFIX = ".parts"
"""What follows a dataset's prefix in the name of the folder of its parts."""

_DATA, _INDEX = ".bin", ".idx"
_NOTE = "merged"


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


@dataclass(frozen=True)
class MergedParts(DatasetParts):
    """The datasets that the shards of a job, their parts, are merged into: a `Product`."""

    name: ClassVar[str] = "datasets"

    @property
    def replaces_shards(self) -> bool:
        """True: the parts are not needed once they are merged."""
        return True

    def place(self, job: JobSpec) -> str:  # noqa: ARG002 - the parts lie elsewhere
        """Return the prefix."""
        return self.prefix

    def files(self) -> list[str]:
        """Return the URLs of the files of the datasets."""
        return [f"{self.prefix}{suffix}{ending}" for suffix in self.suffixes for ending in (_DATA, _INDEX)]

    def check(self, page: Page, job: JobSpec) -> None:
        """Accept every page: parts of any names can be merged."""

    def is_made(self, job: JobSpec, store: LedgerStore) -> bool:
        """Return whether the parts of a complete job are merged, and the datasets are there."""
        return _Parts(self, job, store).merged() is not None

    def make(
        self, job: JobSpec, store: LedgerStore, *, rewrite: Callable[[int], bool], say: Callable[[str], None]
    ) -> list[dict[str, Any]]:
        """Merge the parts of a complete job unless that is done; parts that are missing are written again first."""
        parts = _Parts(self, job, store)
        datasets = parts.merged()
        if datasets is None:
            if lost := forget_lost(job, store):
                if not rewrite(lost):
                    return []
                parts = _Parts(self, job, store)
            try:
                datasets = parts.merge()
            except LedgerbeamError:
                # Another launcher of the job may have merged them, and dropped the parts, while this one did.
                found = parts.merged()
                if found is None:
                    raise
                datasets = found
            for dataset in datasets:
                say(_described(dataset, f"{count(dataset.parts, 'part')} merged -> "))
        else:
            for dataset in datasets:
                say(_described(dataset, "up to date: "))
        if self.drop:
            parts.drop()
        return [asdict(dataset) for dataset in datasets]

    def not_made(self, job: JobSpec) -> str:  # noqa: ARG002 - the prefix says enough
        """Return a warning that nothing was merged since tasks have failed."""
        return f"{self.prefix}: not merged, since documents are missing; what was there before stays"


class _Parts:
    """The parts of a job whose sources are all complete, in the order of its dataset manifest.

    What was merged last is noted beside the ledger, so that parts that were merged and dropped need not be there.
    """

    def __init__(self, product: MergedParts, job: JobSpec, store: LedgerStore) -> None:
        self._product = product
        self._store = store
        self._options = job.storage_options
        self._folder = ObjectFolder(str(job.output), job.storage_options)
        manifest = dataset_manifest(store)
        self._shards = list(manifest)
        self._note = OutputStamp(job.work_folder, _NOTE, manifest.fingerprint, self._shards, self._options)

    def merged(self) -> list[MergedDataset] | None:
        """Return the datasets if they are these very parts, merged, and of the size they had; else None."""
        note = self._note.read()
        try:
            found = None if note is None else [MergedDataset(**facts) for facts in note["datasets"]]
        except (KeyError, TypeError):  # not what was noted here
            return None
        return None if found is not None and self._were_rewritten() else found

    def _were_rewritten(self) -> bool:
        """Return whether parts were written again since they were merged: another file may have been in their place.

        If one of them is now such a file, what was merged before is all that is right.
        """
        made = stat_many(self._product.files(), self._options)
        there = set(self._folder.names(""))  # one request where all were dropped
        shards = [shard for shard in self._shards if shard.name in there]
        parts = ask_each(self._part, [f"{self._folder.url}/{shard.name}" for shard in shards])
        later = [
            (part.url, shard.size, shard.checksum)
            for part, shard in zip(parts, shards, strict=True)
            if part is not None and any(is_older(one, part) for one in made)
        ]
        return bool(later) and not any(content_problem(*row, self._options) for row in later)

    def _part(self, url: str) -> FileInfo | None:
        try:
            return stat(url, self._options)
        except SourceNotFoundError:  # another launcher drops them
            return None

    def merge(self) -> list[MergedDataset]:
        """Merge the parts; the parts stay.

        Raises:
            LedgerbeamError: If a part does not read, or the result cannot be written.
        """
        if self._note.begin():  # a merge was killed
            remove_stale_temporaries(os.path.dirname(self._product.prefix))
        parts = parts_by_dataset(self._shards, self._product.suffixes, ledger=self._store.url)
        datasets = [self._merge(suffix, parts[suffix]) for suffix in self._product.suffixes]
        fault_point("merge.after")
        indexes = {dataset.prefix: checksum_at(dataset.prefix + _INDEX, self._options) for dataset in datasets}
        self._note.end(
            self._product.files(),
            datasets=[asdict(dataset) for dataset in datasets],
            suffixes=dict(zip(indexes, self._product.suffixes, strict=True)),
            indexes=indexes,
        )
        return datasets

    def drop(self) -> None:
        """Remove the parts, once they are merged."""
        there = set(self._folder.names(""))
        names = {name for shard in self._shards for name in (shard.name, shard.index) if name is not None}
        remove_below(self._folder.url, sorted(names & there), self._options, ledger=self._store.url, prune=True)

    def _merge(self, suffix: str, shards: Sequence[OutputShard]) -> MergedDataset:
        prefix = f"{self._product.prefix}{suffix}"
        parts = [f"{self._folder.url}/{shard.name}" for shard in shards]
        if parts:
            layout = merge_megatron(parts, prefix, self._options)
        else:
            with write_megatron(prefix, self._product.dtype, self._options) as builder:
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
        index = MegatronIndex(prefix + _INDEX, self._options)
        empty = before = 0
        for start in range(0, layout.documents, BLOCK):
            ends = index.document_ends(start, min(start + BLOCK, layout.documents))
            empty += int(np.count_nonzero(np.diff(ends, prepend=before) == 0))
            before = int(ends[-1])
        index.close()
        return empty


@dataclass(frozen=True)
class NotedDataset:
    """A dataset that was merged, as it was then.

    Attributes:
        prefix: What the names of its two files begin with.
        parts: What its ``.bin`` is made of, in order.
        index_size: Bytes of its ``.idx``.
        index_checksum: Of the content of that, see `identity`.
    """

    prefix: str
    parts: Sequence[OutputShard]
    index_size: int
    index_checksum: str

    @property
    def size(self) -> int:
        """Bytes of the ``.bin``."""
        return sum(part.size for part in self.parts)

    def spans(self) -> Iterator[tuple[OutputShard, tuple[int, int]]]:
        """Yield each part with its first byte in the ``.bin``, and the one behind it."""
        ends = accumulate((part.size for part in self.parts), initial=0)
        yield from zip(self.parts, pairwise(ends), strict=True)


def noted_datasets(store: LedgerStore, options: Options) -> list[NotedDataset]:
    """Return what a job has merged of the very parts that it has: nothing while it is not complete.

    Args:
        store: The job's ledger.
        options: Storage options.

    Raises:
        LedgerError: The ledger changes meanwhile; also StorageError.
    """
    work = work_folder_of(store.url)
    if not store.status()["complete"] or f"{_NOTE}.json" not in ObjectFolder(work, options).names(""):
        return []
    manifest = dataset_manifest(store)
    shards = list(manifest)
    note = OutputStamp(work, _NOTE, manifest.fingerprint, shards, options).noted() or {}
    try:
        sizes, indexes, suffixes = note["files"], note["indexes"], note["suffixes"]
        parts = parts_by_dataset(shards, list(suffixes.values()), ledger=store.url)
        return [
            NotedDataset(prefix, parts[suffix], sizes[prefix + _INDEX], indexes[prefix])
            for prefix, suffix in suffixes.items()
        ]
    except (KeyError, TypeError, AttributeError, LedgerError):  # not merged of these, or not what was noted here
        return []


def suffixes_of(store: LedgerStore) -> list[str]:
    """Return what the names of the datasets end with that a job writes parts of; one of no suffix unless it says so.

    Args:
        store: The job's ledger.
    """
    job = store.job()
    found = None if job is None else job.parameters.get("suffixes")
    return [str(suffix) for suffix in found] if isinstance(found, list) else [""]


def parts_by_dataset(
    shards: Sequence[OutputShard], suffixes: Sequence[str], *, ledger: str
) -> dict[str, Sequence[OutputShard]]:
    """Return the parts of each dataset of a job, by what its name ends with, in the order of the manifest.

    Each task has written a part of every dataset, and the manifest has those of a task by name. So their place says
    which is which, whatever the names of the sources and of the keys are.

    Args:
        shards: Of the dataset manifest.
        suffixes: What the names of the datasets end with.
        ledger: URL of the job's ledger, for messages.

    Raises:
        LedgerError: These are not the parts of such datasets.
    """
    by_name = sorted(suffixes, key=lambda suffix: suffix + _DATA)
    parts = {suffix: shards[place :: len(by_name)] for place, suffix in enumerate(by_name)}
    for suffix, found in parts.items():
        other = next((shard.name for shard in found if not shard.name.endswith(suffix + _DATA)), None)
        if other is not None:
            raise LedgerError(
                f"ledger {ledger}: expected that each task has written a part {suffix}{_DATA}, found {other}; run the "
                "job anew with another --ledger and --output"
            )
    return parts


def _described(dataset: MergedDataset, what: str) -> str:
    return (
        f"{what}{dataset.prefix}: {count(dataset.documents, 'document')} ({dataset.empty_documents:,} empty), "
        f"{count(dataset.sequences, 'sequence')}, {count(dataset.tokens, 'token')} of {dataset.dtype}"
    )
