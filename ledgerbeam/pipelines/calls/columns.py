"""``annotate`` and ``select``: columns beside the records of sources, and the records that they select."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Required, Unpack

from ledgerbeam.errors import UsageError
from ledgerbeam.io.listing.patterns import canonical_pattern
from ledgerbeam.pipelines.calls.call import Runnable, Values, public, run_call
from ledgerbeam.pipelines.calls.call_spec import CallSpec, Option
from ledgerbeam.pipelines.calls.map import FUNCTIONS, Function, FunctionOptions, map_call
from ledgerbeam.pipelines.calls.options import (
    KEYS,
    OUTPUT,
    PATTERNS,
    AnyJobOptions,
    BaseOptions,
    FolderOptions,
    LimitOptions,
    Places,
    RecordOptions,
    RejectOptions,
    SelectionOptions,
    ShardOptions,
    SharOptions,
    TableOptions,
)

if TYPE_CHECKING:
    from ledgerbeam.pipelines.calls.result import Result


class AnnotateOptions(
    RecordOptions,
    SharOptions,
    FolderOptions,
    TableOptions,
    BaseOptions,
    FunctionOptions,
    RejectOptions,
    LimitOptions,
    AnyJobOptions,
    total=False,
):
    """Options of `annotate`."""


class SelectOptions(
    RecordOptions, SelectionOptions, SharOptions, ShardOptions, BaseOptions, LimitOptions, AnyJobOptions, total=False
):
    """Options of `select`."""


class DecontaminateOptions(SelectOptions, total=False):
    """Options of `decontaminate`."""

    against: Annotated[
        Required[Places],
        "file of an evaluation set, of any format, or a pattern; all texts in its records count; may be repeated",
        Option(KEYS, "FILE", repeats=True),
    ]
    ngram: Annotated[int, "number of words in an n-gram", Option(KEYS, "N", default=13)]
    field: Annotated[
        str, "field with the text of a record, a.b for a nested value", Option(KEYS, "NAME", default="text")
    ]
    mark: Annotated[
        bool,
        "write columns for each record, not the other records: `contaminated_by`, `contaminated_ngram` and "
        "`contaminated_share`",
        Option(OUTPUT, default=False),
    ]


ANNOTATE = CallSpec(
    "annotate",
    "write columns beside the records: one row of values for each",
    AnnotateOptions,
    (FUNCTIONS, PATTERNS),
    changes={"output": {"text": "folder of columns to write: Parquet files, and their catalog"}},
    raises=("FunctionError: The function cannot be imported or called, or cannot be sent to the workers.",),
)
DECONTAMINATE = CallSpec(
    "decontaminate",
    "write the records that share no n-gram with evaluation sets",
    DecontaminateOptions,
    (PATTERNS,),
    changes={"to": {"default": None, "unset": "required, except with `mark`"}},
)
SELECT = CallSpec("select", "write the records that a condition over columns selects", SelectOptions, (PATTERNS,))


def _build_annotate(values: Values) -> Runnable:
    from ledgerbeam.pipelines.calls.job_values import table_shards
    from ledgerbeam.pipelines.jobs.map import AnnotateJob

    if values.pack is not None:
        raise UsageError("--pack: annotate writes columns for each source; leave --pack out")
    return map_call(AnnotateJob, values, {**table_shards(values, "parquet"), "published": "columns"})


@public(ANNOTATE, _build_annotate)
def annotate(
    function: Function | Sequence[Function], *patterns: Places, **options: Unpack[AnnotateOptions]
) -> "Result":
    """Write columns beside the records of sources: one row of values for each record.

    The function returns a mapping of names to values, or None for nulls. Records are not copied: ``select``, and
    ``where`` of other calls, read them by the columns.
    """
    return run_call(ANNOTATE, (function, patterns), options)


def _build_select(values: Values) -> Runnable:
    from ledgerbeam.pipelines.calls.job_values import file_sources_of, job_call, output_values
    from ledgerbeam.pipelines.jobs.one_stage import SelectJob

    if values.where is None:
        raise UsageError("select: expected a condition: give --with URL and --where CONDITION")
    return job_call(SelectJob, values, files=file_sources_of(values), **output_values(values))


@public(SELECT, _build_select)
def select(*patterns: Places, **options: Unpack[SelectOptions]) -> "Result":
    """Write the records for which a condition over their columns holds, unchanged."""
    return run_call(SELECT, (patterns,), options)


def _build_decontaminate(values: Values) -> Runnable:
    from ledgerbeam.pipelines.calls.job_values import file_sources_of, folder, job_call, output_values
    from ledgerbeam.pipelines.jobs.one_stage import DecontaminateJob
    from ledgerbeam.sources.listing import SourceListing
    from ledgerbeam.transforms.dedup.decontaminate import COLUMNS
    from ledgerbeam.user_code.objects import watched_checksums

    if values.mark and (values.to is not None or values.pack is not None):
        raise UsageError("--mark writes columns: leave --to and --pack out")
    if not values.mark and values.to is None:
        raise UsageError("decontaminate: give --to FORMAT, or --mark for columns")
    if values.mark and values.where is not None:
        raise UsageError("--mark writes columns for all records: leave --with and --where out")
    options = values.storage_options
    patterns = tuple(map(canonical_pattern, values.against))
    against = [url for page in SourceListing(patterns, storage_options=options or {}).pages() for url in page.urls]
    written = {"output": folder(values.output), **_marks(values, COLUMNS)} if values.mark else output_values(values)
    return job_call(
        DecontaminateJob,
        values,
        files=file_sources_of(values),
        against=watched_checksums(against, options),
        ngram=values.ngram,
        field=values.field,
        mark=values.mark,
        **written,
    )


def _marks(values: Values, columns: Mapping[str, str]) -> dict[str, Any]:
    """Return the fields of `ShardJob` for columns, given by name and type."""
    import pyarrow as pa

    from ledgerbeam.io.columns.schema import JobSchema
    from ledgerbeam.pipelines.calls.job_values import table_shards

    written = table_shards(values, "parquet")
    schema = pa.schema([(name, pa.type_for_alias(kind)) for name, kind in columns.items()])
    return {**written, "layout": written["layout"].decided(JobSchema({"": schema})), "published": "columns"}


@public(DECONTAMINATE, _build_decontaminate)
def decontaminate(*patterns: Places, **options: Unpack[DecontaminateOptions]) -> "Result":
    """Write the records that share no n-gram of words with evaluation sets; or mark those that do."""
    return run_call(DECONTAMINATE, (patterns,), options)
