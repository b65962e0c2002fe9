"""``annotate`` and ``select``: columns beside the records of sources, and the records that they select."""

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Required, Unpack

from ledgerbeam.errors import UsageError
from ledgerbeam.io.listing.patterns import canonical_pattern
from ledgerbeam.pipelines.calls.call import Runnable, Values, public, run_call
from ledgerbeam.pipelines.calls.call_spec import CallSpec, Option
from ledgerbeam.pipelines.calls.map import FUNCTIONS, Function, FunctionOptions, map_call
from ledgerbeam.pipelines.calls.options import (
    KEYS,
    MARKED,
    PATTERNS,
    AnyJobOptions,
    BaseOptions,
    FolderOptions,
    LimitOptions,
    MarkOptions,
    Places,
    RecordOptions,
    RejectOptions,
    SelectionOptions,
    ShardOptions,
    SharOptions,
    TableOptions,
)
from ledgerbeam.pipelines.calls.values import given

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


class _SelectingOptions(
    RecordOptions, SelectionOptions, SharOptions, ShardOptions, BaseOptions, LimitOptions, AnyJobOptions, total=False
):
    """Options of `select` and `decontaminate`."""


class SelectOptions(_SelectingOptions, total=False):
    """Options of `select`."""

    cut: Annotated[
        str | None,
        "cut the ranges of a column out of the text in a field. Ranges are pairs of first character and the one after "
        "the last, from 0; a range of whole lines takes a line break with it",
        Option(KEYS, "FIELD=COLUMN", more="`FIELD` alone takes the column `duplicate_lines`."),
    ]


class DecontaminateOptions(_SelectingOptions, MarkOptions, total=False):
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
    changes={
        **MARKED,
        "mark": {
            "text": "write columns for each record, not the other records: `contaminated_by`, `contaminated_ngram` and "
            "`contaminated_share`"
        },
    },
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


def _parse_cut(value: str) -> tuple[str, str]:
    """Return the field and the column of ``--cut``."""
    field, equals, column = str(value).partition("=")
    if not field or (equals and not column):
        raise argparse.ArgumentTypeError(f"expected FIELD=COLUMN such as text=duplicate_lines, found {value!r:.40}")
    return field, column or "duplicate_lines"


def _build_select(values: Values) -> Runnable:
    from ledgerbeam.pipelines.calls.job_values import file_sources_of, job_call, output_values
    from ledgerbeam.pipelines.jobs.one_stage import SelectJob

    if values.where is None and values.cut is None:
        raise UsageError("select: expected a condition: give --with URL and --where CONDITION")
    field, column = ("", "") if values.cut is None else given("cut", values.cut, _parse_cut)
    files = file_sources_of(values, notes=column)
    if field and files.read_as:
        raise UsageError(f"--cut does not change cuts of Shar; leave it out, or leave --from {files.read_as} out")
    return job_call(SelectJob, values, files=files, cut=field, **output_values(values))


@public(SELECT, _build_select)
def select(*patterns: Places, **options: Unpack[SelectOptions]) -> "Result":
    """Write the records for which a condition over their columns holds, unchanged."""
    return run_call(SELECT, (patterns,), options)


def _build_decontaminate(values: Values) -> Runnable:
    from ledgerbeam.pipelines.calls.job_values import decision_values, file_sources_of, job_call
    from ledgerbeam.pipelines.jobs.one_stage import DecontaminateJob
    from ledgerbeam.sources.listing import SourceListing
    from ledgerbeam.user_code.objects import watched_checksums

    if values.mark and values.where is not None:
        raise UsageError("--mark writes columns for all records: leave --with and --where out")
    options = values.storage_options
    patterns = tuple(map(canonical_pattern, values.against))
    against = [url for page in SourceListing(patterns, storage_options=options or {}).pages() for url in page.urls]
    return job_call(
        DecontaminateJob,
        values,
        files=file_sources_of(values),
        against=watched_checksums(against, options),
        ngram=values.ngram,
        field=values.field,
        **decision_values(values, "ledgerbeam.transforms.dedup.decontaminate:contamination_columns"),
    )


@public(DECONTAMINATE, _build_decontaminate)
def decontaminate(*patterns: Places, **options: Unpack[DecontaminateOptions]) -> "Result":
    """Write the records that share no n-gram of words with evaluation sets; or mark those that do."""
    return run_call(DECONTAMINATE, (patterns,), options)
