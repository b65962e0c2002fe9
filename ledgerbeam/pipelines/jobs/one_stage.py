"""Jobs of one stage without a key and without a function: convert, materialize and index."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ledgerbeam._base.extensions import load_extension
from ledgerbeam.io import ShardEncoder, conversion
from ledgerbeam.io.formats.registry import format_named
from ledgerbeam.ledger import Job, LedgerStore, Task
from ledgerbeam.ledger.model.job import Json
from ledgerbeam.pipelines.jobs.shard_job import ShardJob, columns_format
from ledgerbeam.pipelines.jobs.sources import FilesToIndex, GraphPasses, ListedFiles, OutputPlace
from ledgerbeam.pipelines.jobs.spec import JobSpec, Product
from ledgerbeam.pipelines.outputs.columns import COLUMN_FORMATS

if TYPE_CHECKING:
    from ledgerbeam.transforms.chain.base import ChainStep
    from ledgerbeam.transforms.mapping.function import ConvertRecords


@dataclass(frozen=True, kw_only=True)
class _ConvertingJob(ShardJob):
    """A job that writes any record in the form that the output format needs."""

    keeps_columns = True

    fields: tuple[tuple[str, str], ...] = ()  # for ``shar``: name of each field, and the suffix of its members
    dataset: DatasetParts | None = None  # for ``megatron``: the dataset that the shards are merged into
    published: str | None = None  # format whose metadata is published beside the outputs; None for none

    def parameters(self) -> dict[str, Json]:
        shaping: dict[str, Json] = {"function": f"convert:{self._conversion}", "conversion": conversion.VERSION}
        if self.dataset is not None:
            shaping |= {"suffixes": list(self.dataset.suffixes), "dtype": self.dataset.dtype}
        if self.to == "shar":
            shaping |= load_extension("ledgerbeam.encoders", self.to)(self.fields).parameters()
        return shaping

    def work(self) -> ConvertRecords:
        from ledgerbeam.transforms.mapping.function import ConvertRecords  # noqa: PLC0415 - slow to import

        return ConvertRecords(self._conversion, self.output_format)

    def trial_work(self) -> ConvertRecords:
        return self.work()

    def encoder(self) -> str | ShardEncoder:
        if self.dataset is None and self.to != "shar":
            return self.output_format
        options: Any = self.fields if self.dataset is None else self.dataset.dtype
        encoder: ShardEncoder = load_extension("ledgerbeam.encoders", self.to)(options)
        return encoder

    def product(self) -> Product | None:
        if self.dataset is None:
            return published_metadata(self.published)
        merged: Product = load_extension("ledgerbeam.products", "megatron")(**asdict(self.dataset))
        return merged

    @property
    def _conversion(self) -> str:
        return conversion.conversion_of(self.to)


@dataclass(frozen=True, kw_only=True)
class ConvertJob(_ConvertingJob):
    """Writes every record of files in another format."""

    command = "convert"

    files: ListedFiles

    def sources(self) -> ListedFiles:
        return self.files


@dataclass(frozen=True, kw_only=True)
class SelectJob(ShardJob):
    """Writes the selected records of files unchanged, or without the ranges that a column has for each."""

    command = "select"
    keeps_columns = True

    files: ListedFiles
    cut: str = ""  # field from whose text the ranges are cut; empty for none

    def sources(self) -> ListedFiles:
        # Rows of columnar files are written without Python objects for them.
        are_rows = not self.cut and self.to in COLUMN_FORMATS and all(map(_names_columns, self.files.patterns or ("",)))
        return replace(self.files, form="arrow" if are_rows else "placed")

    def parameters(self) -> dict[str, Json]:
        return {"conversion": conversion.VERSION, **({"cut": self.cut} if self.cut else {})}

    def work(self) -> Callable[[Task], Any]:
        from ledgerbeam.transforms.mapping.unchanged import KeepPlaced  # noqa: PLC0415 - slow to import

        keep = KeepPlaced(conversion.conversion_of(self.to), self.output_format)
        if not self.cut:
            return keep
        from ledgerbeam.transforms.dedup.lines import CutRecords  # noqa: PLC0415 - slow to import

        return CutRecords(self.cut, keep)

    def trial_work(self) -> ConvertRecords:
        from ledgerbeam.transforms.mapping.function import ConvertRecords  # noqa: PLC0415 - slow to import

        return ConvertRecords(conversion.conversion_of(self.to), self.output_format)


def _names_columns(pattern: str) -> bool:
    return pattern.endswith(tuple(suffix for name in COLUMN_FORMATS for suffix in format_named(name).suffixes))


@dataclass(frozen=True, kw_only=True)
class MarkingJob(ShardJob):
    """A job that decides about records: it writes the decisions as columns, or the records as they say."""

    mark: bool = False  # whether to write columns

    def parameters(self) -> dict[str, Json]:
        return {"mark": True} if self.mark else {}

    def encoder(self) -> str | ShardEncoder:
        return columns_format(self.output_format) if self.mark else self.output_format

    def product(self) -> Product | None:
        return published_metadata("columns" if self.mark else None)


@dataclass(frozen=True, kw_only=True)
class DecontaminateJob(MarkingJob, SelectJob):
    """Writes the records that share no n-gram with evaluation sets, or columns that mark the others."""

    command = "decontaminate"

    def sources(self) -> ListedFiles:
        return replace(self.files, form="placed")

    against: dict[str, str]  # checksums of the files of evaluation sets, by URL
    ngram: int  # number of words in an n-gram
    field: str  # field with the text of a record

    def parameters(self) -> dict[str, Json]:
        from ledgerbeam.transforms.dedup.minhash import VERSION  # noqa: PLC0415 - brings NumPy

        rules: dict[str, Json] = {"against": dict(self.against), "ngram": self.ngram, "field": self.field}
        return {**super().parameters(), **rules, "conversion": conversion.VERSION, "words": VERSION}

    def doubts(self, store: LedgerStore) -> Iterator[str]:
        from ledgerbeam.ledger import merged_statistics  # noqa: PLC0415 - after the job
        from ledgerbeam.transforms.dedup.decontaminate import WITHOUT_TEXT, EvaluationSets  # noqa: PLC0415

        for url, short in EvaluationSets(list(self.against), self.ngram, self.storage_options).short.items():
            yield f"{url}: texts with fewer than {self.ngram} words are not searched for: {short:,}"
        found, records = merged_statistics(store, WITHOUT_TEXT).get(WITHOUT_TEXT), store.status()["records"]["read"]
        if found is not None and found.value() >= records:
            yield (
                f"none of {records:,} records has the field {self.field!r}, so none was compared; if the name is "
                "wrong, give the right --field and --on-job-change=restart"
            )

    def work(self) -> Callable[[Task], Any]:
        from ledgerbeam.transforms.dedup.decontaminate import CONTAMINATED, DecontaminateRecords  # noqa: PLC0415
        from ledgerbeam.transforms.mapping.unchanged import KeepPlaced  # noqa: PLC0415 - slow to import

        keep = KeepPlaced(conversion.conversion_of(self.to), self.output_format, CONTAMINATED)
        return DecontaminateRecords(self.against, self.ngram, self.field, self.mark, keep, self.storage_options)


@dataclass(frozen=True, kw_only=True)
class MaterializeJob(_ConvertingJob):
    """Writes the items of an iterator graph in its order."""

    command = "materialize"

    passes: GraphPasses

    def sources(self) -> GraphPasses:
        return self.passes


def published_metadata(form: str | None) -> Product | None:
    """Return the metadata of a format that a job publishes beside its shards; None for no format."""
    if form is None:
        return None
    from ledgerbeam.pipelines.outputs.published import PublishedMetadata  # noqa: PLC0415 - for few jobs

    return PublishedMetadata(form)


@dataclass(frozen=True)
class DatasetParts:
    """Datasets that are merged from the shards of a job. These shards are called parts."""

    prefix: str  # prefix of the names of all files of the datasets
    suffixes: tuple[str, ...]  # for each dataset, the suffix that follows the prefix
    dtype: str  # name of the tokens' dtype
    drop: bool = False  # whether the parts are removed after the merge

    @property
    def prefixes(self) -> list[str]:
        """The prefix of each dataset."""
        return [f"{self.prefix}{suffix}" for suffix in self.suffixes]


@dataclass(frozen=True, kw_only=True)
class IndexJob(JobSpec):
    """Writes the index of every source, beside it or below a root. The ledger names the indexes by their URLs."""

    command = "index"

    # The sources. The size of a task is the size of the byte ranges that large files are scanned in.
    files: ListedFiles
    force: bool = False  # whether an index replaces any file of its name

    def sources(self) -> FilesToIndex:
        return self._to_index

    @cached_property
    def _to_index(self) -> FilesToIndex:
        return FilesToIndex(**vars(self.files))

    def output_places(self) -> list[OutputPlace]:
        return self.files.index_places()

    def identity(self) -> Job:
        where = {"index_root": self.files.index_root, "index_rule": self.files.index_rule}
        return Job(self.command, {**self.files.parameters(), **where})

    def chain_steps(self) -> list[ChainStep]:
        from ledgerbeam.transforms.chain.index import BuildIndexesStep, PlanIndexesStep  # noqa: PLC0415 - workers need them

        return [PlanIndexesStep(self.files.task_bytes), BuildIndexesStep(self.work_folder, self.force)]

    def _named_output(self) -> str:
        return self.files.index_root or ""
