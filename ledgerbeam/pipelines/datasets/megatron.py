"""Megatron datasets: the job of ``ledgerbeam tokenize``, and the merge of the shards of tasks, here called parts.

A note, a file beside the ledger, describes the last merge. Once it is written, the merged parts may be removed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import accumulate, pairwise
from typing import Any, ClassVar

from ledgerbeam._base.lazy import np
from ledgerbeam.errors import LedgerbeamError, LedgerError, SourceNotFoundError, UsageError
from ledgerbeam.io import Options, ShardEncoder
from ledgerbeam.io.compression.content import is_older
from ledgerbeam.io.datasets.megatron import Layout, merge_megatron, write_megatron
from ledgerbeam.io.datasets.megatron.index import BLOCK, MegatronIndex
from ledgerbeam.io.datasets.megatron.layout import dataset_prefix, dtype_code
from ledgerbeam.io.datasets.megatron.tokenizer import SpecialTokens
from ledgerbeam.io.storage.client import ask_each
from ledgerbeam.io.storage.objects import ObjectFolder
from ledgerbeam.io.storage.publish import remove_stale_temporaries
from ledgerbeam.io.storage.stat import FileInfo, stat, stat_many
from ledgerbeam.ledger import LedgerStore, OutputShard, Task, dataset_manifest
from ledgerbeam.ledger.model.faults import fault_point
from ledgerbeam.ledger.model.job import Json
from ledgerbeam.pipelines.console.run_progress import count
from ledgerbeam.pipelines.jobs.checks import RejectLimit, parse_on_error
from ledgerbeam.pipelines.jobs.one_stage import DatasetParts
from ledgerbeam.pipelines.jobs.shard_job import ShardJob
from ledgerbeam.pipelines.jobs.sources import ListedFiles
from ledgerbeam.pipelines.jobs.spec import JobSpec, Product, work_folder_of
from ledgerbeam.pipelines.outputs.published import OutputStamp, checksum_at, content_problem
from ledgerbeam.pipelines.outputs.recorded import forget_lost, remove_below
from ledgerbeam.user_code.functions import changed_parts
from ledgerbeam.user_code.loading import Reference

_DATA, _INDEX = ".bin", ".idx"
_NOTE = "merged"


@dataclass(frozen=True, kw_only=True)
class TokenizeJob(ShardJob):
    """Tokenizes texts of JSONL records. At the end the shards are merged into one dataset for each key."""

    command = "tokenize"
    can_be_audited = True

    to: str = "megatron"
    files: ListedFiles
    tokenizer: str  # ``bytes``, or the URL of a tokenizer's file
    checksum: str  # checksum of that file
    keys: tuple[str, ...]  # keys of the texts in a record
    eod: int | None  # ID of the token that ends each document; None for no token
    special_tokens: SpecialTokens = "text"  # treatment of names of special tokens in texts
    split: Reference | None = None  # function that splits a text into a list of texts, or its name; None for no split
    # Hashes of the code of this function, in groups by name; see `UserFunction`.
    made_of: dict[str, dict[str, str]] = field(default_factory=lambda: {"module": {}})
    on_error: str = "fail"  # treatment of faulty records; see `parse_on_error`. Not part of the job's identity.
    dataset: MergedParts

    def sources(self) -> ListedFiles:
        return self.files

    def parameters(self) -> dict[str, Json]:
        """Return the parameters of the outputs. The tokenizer is identified by its content, not by its URL."""
        return {
            "tokenizer": self.checksum,
            "keys": list(self.keys),
            "suffixes": list(self.dataset.suffixes),
            "eod": self.eod,
            "special_tokens": self.special_tokens,
            "split": None if self.split is None else str(self.split),
            **self.made_of,
            "dtype": self.dataset.dtype,
        }

    def work(self) -> Callable[[Task], Any]:
        from ledgerbeam.transforms import TokenizeRecords  # noqa: PLC0415 - slow to import

        return TokenizeRecords(
            self.tokenizer,
            self.checksum,
            self.keys,
            self.split,
            special_tokens=self.special_tokens,
            eod=self.eod,
            on_error="fail" if self.reject_limit is None else "reject",
        )

    @property
    def reject_limit(self) -> RejectLimit | None:
        return parse_on_error(self.on_error)

    def encoder(self) -> ShardEncoder:
        from ledgerbeam.io.datasets.megatron.format import TokenShards  # noqa: PLC0415 - imports numpy

        return TokenShards(dict(zip(self.keys, self.dataset.suffixes, strict=True)), self.dataset.dtype, self.eod)

    def changed_code(self) -> list[str]:
        return [] if self.split is None else changed_parts(self.split, self.made_of)

    def product(self) -> MergedParts:
        return self.dataset


@dataclass(frozen=True)
class MergedDataset:
    """A merged dataset."""

    prefix: str  # common prefix of the names of its two files
    dtype: str  # name of the dtype of the tokens
    documents: int  # number of documents
    empty_documents: int  # number of documents without a sequence
    sequences: int  # number of sequences
    tokens: int  # number of tokens
    parts: int  # number of parts


@dataclass(frozen=True)
class MergedParts(DatasetParts, Product):
    """The Megatron datasets of a job, merged from its parts."""

    name: ClassVar[str] = "datasets"
    replaces_shards: ClassVar[bool] = True  # the parts are not needed after the merge

    @classmethod
    def of_options(cls, output: str, dtype: str, suffixes: tuple[str, ...], *, drop: bool) -> MergedParts:
        """Return the datasets of ``--output`` and ``--dtype``. UsageError: unknown dtype, or `output` is a folder."""
        name = dtype_name(dtype)
        if output.endswith("/"):
            raise UsageError(f"--output {output}: expected a prefix of files, such as {output}texts, found a folder")
        return cls(dataset_prefix(output), suffixes, name, drop)

    @staticmethod
    def noted(store: LedgerStore, options: Options) -> list[NotedDataset]:
        """Return the datasets that were merged from the present parts of a job; none if the job is not complete."""
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
        except (KeyError, TypeError, AttributeError, LedgerError):  # another note, or datasets of other parts
            return []

    @property
    def folder(self) -> str:
        return f"{self.prefix}.parts"

    def place(self, job: JobSpec) -> str:  # noqa: ARG002 - the datasets are outside of the output folder
        return self.prefix

    def files(self) -> list[str]:
        return [f"{prefix}{ending}" for prefix in self.prefixes for ending in (_DATA, _INDEX)]

    def is_made(self, job: JobSpec, store: LedgerStore) -> bool:
        return _Parts(self, job, store).merged() is not None

    def make(
        self, job: JobSpec, store: LedgerStore, *, rewrite: Callable[[int], bool], say: Callable[[str], None]
    ) -> list[dict[str, Any]]:
        """Merge the parts of a complete job, if they are not merged yet. Missing parts are first written again."""
        parts = _Parts(self, job, store)
        datasets = parts.merged()
        is_merged = datasets is not None
        if datasets is None:
            if lost := forget_lost(job, store):
                if not rewrite(lost):
                    return []
                parts = _Parts(self, job, store)
            try:
                datasets = parts.merge()
            except LedgerbeamError:
                # Another launcher of the job may have merged and removed the parts meanwhile.
                found = parts.merged()
                if found is None:
                    raise
                datasets = found
        for dataset in datasets:
            say(_described(dataset, "up to date: " if is_merged else f"{count(dataset.parts, 'part')} merged -> "))
        if self.drop:
            parts.drop()
        return [asdict(dataset) for dataset in datasets]

    def not_made(self, job: JobSpec) -> str:  # noqa: ARG002 - the prefix is enough
        return f"{self.prefix}: not merged, because documents are missing; files of an earlier merge stay"


class _Parts:
    """The parts of a complete job, in the order of its dataset manifest, and the note of their last merge."""

    def __init__(self, product: MergedParts, job: JobSpec, store: LedgerStore) -> None:
        self._product = product
        self._store = store
        self._options = job.storage_options
        self._folder = ObjectFolder(str(job.output), job.storage_options)
        manifest = dataset_manifest(store)
        self._shards = list(manifest)
        self._note = OutputStamp(job.work_folder, _NOTE, manifest.fingerprint, self._shards, self._options)

    def merged(self) -> list[MergedDataset] | None:
        """Return the datasets, if they were merged from these parts and have their recorded sizes; else None."""
        note = self._note.read()
        try:
            found = None if note is None else [MergedDataset(**facts) for facts in note["datasets"]]
        except (KeyError, TypeError):  # not a note of this version
            return None
        return None if found is not None and self._were_rewritten() else found

    def _were_rewritten(self) -> bool:
        """Return whether to merge again: parts were written after the merge, and have their recorded content.

        If a part has other content, the merged datasets are the only good copy, and stay.
        """
        made = stat_many(self._product.files(), self._options)
        there = set(self._folder.names(""))  # one request if all were removed
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
        except SourceNotFoundError:  # another launcher removes them
            return None

    def merge(self) -> list[MergedDataset]:
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
    """A merged dataset, as the note of the last merge describes it."""

    prefix: str  # common prefix of the names of its two files
    parts: Sequence[OutputShard]  # the parts of its ``.bin``, in order
    index_size: int  # size of its ``.idx``, in bytes
    index_checksum: str  # checksum of its ``.idx``, see `identity`

    @property
    def size(self) -> int:
        """Size of the ``.bin``, in bytes."""
        return sum(part.size for part in self.parts)

    def spans(self) -> Iterator[tuple[OutputShard, tuple[int, int]]]:
        """Yield each part with the start and the end of its bytes in the ``.bin``."""
        ends = accumulate((part.size for part in self.parts), initial=0)
        yield from zip(self.parts, pairwise(ends), strict=True)


def dtype_name(name: str) -> str:
    """Return the name of a dtype of Megatron as numpy writes it. UsageError if Megatron has no such dtype."""
    try:
        dtype_code(name)
    except UsageError as error:
        raise UsageError(f"dtype: {error}") from None
    return np.dtype(name).name


def parts_by_dataset(
    shards: Sequence[OutputShard], suffixes: Sequence[str], *, ledger: str
) -> dict[str, Sequence[OutputShard]]:
    """Return the parts of each dataset of a job, by the suffix of its name, in the order of the manifest.

    Each task writes one part of every dataset, and the manifest sorts the parts of a task by name. So the position of a
    part determines its dataset, for any names of sources and keys. LedgerError: the shards are not parts of datasets.
    """
    by_name = sorted(suffixes, key=lambda suffix: suffix + _DATA)
    parts = {suffix: shards[place :: len(by_name)] for place, suffix in enumerate(by_name)}
    for suffix, found in parts.items():
        other = next((shard.name for shard in found if not shard.name.endswith(suffix + _DATA)), None)
        if other is not None:
            raise LedgerError(
                f"ledger {ledger}: expected a file *{suffix}{_DATA} from each task, found {other}; run the job again "
                "with another --ledger and --output"
            )
    return parts


def _described(dataset: MergedDataset, what: str) -> str:
    return (
        f"{what}{dataset.prefix}: {count(dataset.documents, 'document')} ({dataset.empty_documents:,} empty), "
        f"{count(dataset.sequences, 'sequence')}, {count(dataset.tokens, 'token')} of {dataset.dtype}"
    )
