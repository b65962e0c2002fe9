"""Job of ``map``: functions of a user, called with every record."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Self

from ledgerbeam.io import ShardEncoder
from ledgerbeam.io.json_values import NanRule
from ledgerbeam.ledger import Job
from ledgerbeam.ledger.model.job import Json
from ledgerbeam.pipelines.jobs.checks import RejectLimit, parse_on_error
from ledgerbeam.pipelines.jobs.one_stage import published_metadata
from ledgerbeam.pipelines.jobs.shard_job import ShardJob, columns_format
from ledgerbeam.pipelines.jobs.sources import ListedFiles
from ledgerbeam.pipelines.jobs.spec import Product
from ledgerbeam.pipelines.jobs.user_function import user_function
from ledgerbeam.pipelines.outputs.columns import PARAMETER, inferred_batch_schema
from ledgerbeam.sources.forms import ARROW_ROWS, RecordForm
from ledgerbeam.user_code.functions import changed_parts
from ledgerbeam.user_code.functions_of_job import JobFunction, job_functions
from ledgerbeam.user_code.loading import Reference, import_object
from ledgerbeam.user_code.modules import reference_to
from ledgerbeam.user_code.objects import check_object, depends_on_batches, is_async

if TYPE_CHECKING:
    from ledgerbeam.transforms import MapRecords


@dataclass(frozen=True)
class MappedFunction:
    """One of the functions of a map. The results of one function are the records of the next."""

    label: str  # name of the function, unique among the functions of the job
    reference: Reference  # ``module:object``, or the object itself: a function, another callable object, or a class
    made_of: dict[str, dict[str, str]]  # hashes of the code of the object, in groups by name; see `UserFunction`
    values: dict[str, Any] = field(default_factory=dict)  # keyword arguments of the function, or of the class
    # Maximum number of records of a batch; None for single records, or for Arrow batches of `ARROW_ROWS`.
    batch: int | None = None
    batch_matters: bool = False  # whether the object declares that its results depend on the size of batches
    is_async: bool = False  # whether a call of the object returns a coroutine

    def parameters(self) -> dict[str, Json]:
        """Return the parameters of the results: the code of the object, and its values."""
        return {**self.made_of, **({"set": dict(self.values)} if self.values else {})}


def mapped_functions(
    given: str | Callable[..., Any] | Sequence[str | Callable[..., Any]],
    values: Mapping[str, Any],
    batch: Mapping[str, int] | None,
    style: str | None,
) -> tuple[MappedFunction, ...]:
    """Return the functions of a map, given as one function or a list. See `job_functions` for the options.

    Raises:
        FunctionError: A function cannot be imported, called with records, or sent to other processes.
        UsageError: There is no function, or an option does not fit the functions.
    """
    listed: Sequence[Any] = given if isinstance(given, (list, tuple)) else [given]
    named = [(reference_to(import_object(one)) or one) if isinstance(one, str) else one for one in listed]
    found: list[MappedFunction] = []
    for one, function in zip(named, job_functions(named, values, batch, style=style), strict=True):
        own = dict(function.object.values)
        made = user_function(one, own, style)
        target = check_object(
            made.reference, own, style=style, batched=function.object.batched, may_be_async=function.object.may_be_async
        )
        facts = depends_on_batches(target), is_async(target)
        found.append(MappedFunction(function.label, made.reference, made.made_of, own, function.batch, *facts))
    return tuple(found)


@dataclass(frozen=True, kw_only=True)
class MapJob(ShardJob):
    """Calls functions of the user with every record, or with batches of records, and writes the results."""

    command = "map"

    files: ListedFiles  # the sources
    functions: tuple[MappedFunction, ...]  # in order, at least one
    watched: dict[str, str] = field(default_factory=dict)  # checksums of the files that functions read, by their URLs
    form: RecordForm = "records"  # argument of the functions: ``records``, or ``arrow`` for record batches
    style: str | None = None  # convention of another library that the functions follow; None for none
    nan: NanRule = "refuse"  # treatment of NaN and infinities in JSONL
    # Treatment of faulty records: ``fail``, or ``reject`` with a limit; see `parse_on_error`. It is not part of the
    # job's identity.
    on_error: str = "fail"
    keep_dropped: bool = False  # whether dropped records are written beside the rejected ones
    # Longest time for one record, in seconds; None for no limit. Like `on_error`, it is not part of the job's identity:
    # with a larger value, the same job can repeat the records that took too long.
    record_timeout: float | None = None
    in_flight: int | None = None  # most records for which a worker calls async functions at once; None for the default
    published: str | None = None  # format whose metadata is published beside the outputs; None for none

    @classmethod
    def read_fields(cls, fields: dict[str, Any]) -> dict[str, Any]:
        if "function" not in fields:
            return fields
        # A version that had one function, whose fields were those of the job.
        own = ("made_of", "values", "batch", "batch_matters")
        reference = fields["function"]
        name = reference if isinstance(reference, str) else reference["name"]
        function = {"label": name.rpartition(":")[2], "reference": reference, **{field: fields[field] for field in own}}
        others = {field: value for field, value in fields.items() if field not in ("function", *own)}
        return {**others, "functions": [function]}

    def sources(self) -> ListedFiles:
        return replace(self.files, form=self.form)

    def parameters(self) -> dict[str, Json]:
        """Return the parameters of the outputs: the functions, their code and values, and the watched files.

        Each module, value and file has its own parameter, and so does each part of an object without a module. So a
        mismatch names the part that changed, and of several functions the one that changed.
        """
        found = {one.label: one.parameters() for one in self.functions}
        # The size of a function's batches can decide which results of it are in one batch of a later function.
        if any(one.batch_matters for one in self.functions):
            for one in self.functions:
                if size := one.batch or (ARROW_ROWS if self.form == "arrow" else None):
                    found[one.label]["batch"] = size
        names: list[Json] = [str(one.reference) for one in self.functions]
        shaping: dict[str, Json] = {"nan": self.nan, "function": names, "functions": found}
        if len(names) == 1:
            shaping = {"nan": self.nan, "function": names[0], **found[self.functions[0].label]}
        if self.watched:
            shaping["watched file"] = dict(self.watched)
        if self.form != "records":
            shaping["as"] = self.form
        if self.style is not None:
            shaping["style"] = self.style
        if self.keep_dropped:
            shaping["keep_dropped"] = True
        return shaping

    def work(self, wrap: Callable[[JobFunction, RecordForm], JobFunction] | None = None) -> MapRecords:
        """Return the function that processes the records of a task. `wrap` replaces each function of the user."""
        from ledgerbeam.transforms import MapRecords  # noqa: PLC0415 - slow to import

        functions = job_functions(
            [one.reference for one in self.functions],
            {f"{one.label}.{name}": value for one in self.functions for name, value in one.values.items()},
            {one.label: one.batch for one in self.functions if one.batch is not None},
            self.watched,
            self.style,
        )
        return MapRecords(
            functions if wrap is None else [wrap(one, self.form) for one in functions],
            self.output_format,
            form=self.form,
            nan=self.nan,
            on_error="fail" if self.on_error == "fail" else "reject",
            keep_dropped=self.keep_dropped,
            record_timeout=self.record_timeout,
            in_flight=self.in_flight,
            per_record=self.per_record,
        )

    def changed_code(self) -> list[str]:
        changed = (changed_parts(one.reference, one.made_of, one.values, self.style) for one in self.functions)
        return sorted({part for parts in changed for part in parts})

    @property
    def reject_limit(self) -> RejectLimit | None:
        return parse_on_error(self.on_error)

    can_be_audited = True

    @property
    def calls_are_async(self) -> bool:
        return any(one.is_async for one in self.functions)

    @property
    def per_record(self) -> bool:
        """Whether the outputs have one row for each record: columns beside the records."""
        return False

    decisions = (PARAMETER, *ShardJob.decisions)

    def with_recorded(self, stored: Job) -> Self:
        recorded = stored.parameters.get(PARAMETER)
        job = self._with_schema(recorded) if self._lacks_schema and isinstance(recorded, str) else self
        return super(MapJob, job).with_recorded(stored)

    def with_decisions(self, say: Callable[[str], None]) -> Self:
        return super(MapJob, self.with_batch_schema()).with_decisions(say)

    def with_batch_schema(self) -> Self:
        """Return the job with the schema for batches of its JSON lines. Without a given schema, it is inferred."""
        if not self._lacks_schema:
            return self
        return self._with_schema(inferred_batch_schema(self.files.opened_files(self.storage_options), self.pages()))

    @property
    def _lacks_schema(self) -> bool:
        return self.form == "arrow" and self.files.batch_schema is None

    def _with_schema(self, schema: str | None) -> Self:
        return replace(self, files=replace(self.files, batch_schema=schema))

    def trial_work(self, wrap: Callable[[JobFunction, RecordForm], JobFunction] | None = None) -> MapRecords:
        """Return the function that maps sampled records one by one. It raises errors instead of rejecting records.

        Functions that `wrap` has replaced are called in this process, so they have no time limit.
        """
        seconds = self.record_timeout if wrap is None else None
        job = replace(self, on_error="fail", record_timeout=seconds)
        work = job.work(wrap).with_storage_options(self.storage_options)
        work.per_record = False  # a sampled record is alone
        return work

    def product(self) -> Product | None:
        return published_metadata(self.published)


@dataclass(frozen=True, kw_only=True)
class AnnotateJob(MapJob):
    """Calls functions of the user with every record, and writes their results as columns beside the records."""

    command = "annotate"

    @property
    def per_record(self) -> bool:
        return True

    def encoder(self) -> ShardEncoder:
        return columns_format(self.output_format)
