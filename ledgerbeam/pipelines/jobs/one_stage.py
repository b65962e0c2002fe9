"""Jobs of one stage without a key: map, convert, materialize and index."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

from ledgerbeam._base.extensions import load_extension
from ledgerbeam.io import ShardEncoder, conversion
from ledgerbeam.io.json_values import NanRule
from ledgerbeam.ledger import Job
from ledgerbeam.ledger.model.job import Json
from ledgerbeam.pipelines.jobs.checks import RejectLimit, parse_on_error
from ledgerbeam.pipelines.jobs.shard_job import ShardJob
from ledgerbeam.pipelines.jobs.sources import FilesToIndex, GraphPasses, ListedFiles, OutputPlace
from ledgerbeam.pipelines.jobs.spec import JobSpec, Product
from ledgerbeam.pipelines.outputs.columns import PARAMETER, decide_batch_schema, with_recorded_batch_schema
from ledgerbeam.sources.forms import ARROW_ROWS, RecordForm
from ledgerbeam.user_code.functions import changed_parts
from ledgerbeam.user_code.loading import Reference

if TYPE_CHECKING:
    from ledgerbeam.transforms import MapRecords
    from ledgerbeam.transforms.chain.base import ChainStep
    from ledgerbeam.transforms.mapping.function import ConvertRecords


@dataclass(frozen=True, kw_only=True)
class MapJob(ShardJob):
    """Calls a user's function or object with every record, or with batches of records, and writes the results."""

    command = "map"
    can_be_audited = True

    files: ListedFiles  # the sources
    function: Reference  # ``module:object``, or the object itself: a function, an object that can be called, or a class
    made_of: dict[str, dict[str, str]]  # hashes of the code of the object, in groups by name; see `UserFunction`
    values: dict[str, Any] = field(default_factory=dict)  # keyword arguments of the function, or of the class
    watched: dict[str, str] = field(default_factory=dict)  # checksums of the files that the object reads, by their URLs
    form: RecordForm = "records"  # argument of the object: ``records``, or ``arrow`` for record batches
    # Maximum number of records of a batch; None for single records, or for Arrow batches of `ARROW_ROWS`.
    batch: int | None = None
    batch_matters: bool = False  # whether the object declares that its results depend on the size of batches
    nan: NanRule = "refuse"  # treatment of NaN and infinities in JSONL
    # Treatment of faulty records: ``fail``, or ``reject`` with a limit; see `parse_on_error`. It is not part of the
    # job's identity.
    on_error: str = "fail"
    published: str | None = None  # format whose metadata is published beside the outputs; None for none

    def sources(self) -> ListedFiles:
        return replace(self.files, form=self.form)

    def with_files(self, files: ListedFiles) -> Self:
        """Return the job with other sources."""
        return replace(self, files=files)

    def parameters(self) -> dict[str, Json]:
        """Return the parameters of the outputs: the function or object, its code, its values and its watched files.

        Each module, value and file has its own parameter, and so does each part of an object without a module. So a
        mismatch names the part that changed.
        """
        shaping: dict[str, Json] = {"function": str(self.function), **self.made_of, "nan": self.nan}
        if self.values:
            shaping["set"] = dict(self.values)
        if self.watched:
            shaping["watched file"] = dict(self.watched)
        if self.form != "records":
            shaping["as"] = self.form
        size = self.batch or (ARROW_ROWS if self.form == "arrow" else None)
        if size is not None and self.batch_matters:
            shaping["batch"] = size
        return shaping

    def work(self) -> MapRecords:
        from ledgerbeam.transforms import MapRecords  # noqa: PLC0415 - slow to import

        return MapRecords(
            self.function,
            self.output_format,
            values=self.values,
            batch=self.batch,
            form=self.form,
            watched=self.watched,
            nan=self.nan,
            on_error="fail" if self.on_error == "fail" else "reject",
        )

    def changed_code(self) -> list[str]:
        return changed_parts(self.function, self.made_of)

    @property
    def reject_limit(self) -> RejectLimit | None:
        return parse_on_error(self.on_error)

    decisions = (PARAMETER, *ShardJob.decisions)

    def with_recorded(self, stored: Job) -> Self:
        return super(MapJob, with_recorded_batch_schema(self, stored)).with_recorded(stored)

    def with_decisions(self, say: Callable[[str], None]) -> Self:
        return super(MapJob, decide_batch_schema(self)).with_decisions(say)

    def trial_work(self) -> MapRecords:
        """Return the function that maps sampled records one by one. It raises errors instead of rejecting records."""
        return replace(self, on_error="fail").work().with_storage_options(self.storage_options)

    def encoder(self) -> str | ShardEncoder:
        return self.output_format

    def product(self) -> Product | None:
        if self.published is None:
            return None
        from ledgerbeam.pipelines.outputs.published import PublishedMetadata  # noqa: PLC0415 - for few jobs

        return PublishedMetadata(self.published)


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
        if self.published is None:
            if self.dataset is None:
                return None
            merged: Product = load_extension("ledgerbeam.products", "megatron")(**asdict(self.dataset))
            return merged
        from ledgerbeam.pipelines.outputs.published import PublishedMetadata  # noqa: PLC0415 - for few jobs

        return PublishedMetadata(self.published)

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
class MaterializeJob(_ConvertingJob):
    """Writes the items of an iterator graph in its order."""

    command = "materialize"

    passes: GraphPasses

    def sources(self) -> GraphPasses:
        return self.passes


@dataclass(frozen=True)
class DatasetParts:
    """Datasets that are merged from the shards of a job. These shards are called parts."""

    prefix: str  # prefix of the names of all files of the datasets
    suffixes: tuple[str, ...]  # for each dataset, the suffix that follows the prefix
    dtype: str  # name of the tokens' dtype
    drop: bool = False  # whether the parts are removed after the merge


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
