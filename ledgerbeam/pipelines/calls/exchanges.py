"""``sort``, ``shuffle``, ``repartition``, ``group``, ``join`` and ``split``: exchange records by key."""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal, Required, Unpack

from ledgerbeam.errors import UsageError
from ledgerbeam.io.exchange.order import By
from ledgerbeam.pipelines.calls.call import Runnable, Values, public, run_call
from ledgerbeam.pipelines.calls.call_spec import Argument, CallSpec, Option
from ledgerbeam.pipelines.calls.options import (
    FUNCTION_ERROR,
    KEYS,
    MARKED,
    OUTPUT,
    PATTERNS,
    SOURCES,
    URLS,
    AnyJobOptions,
    AuditOptions,
    BaseOptions,
    BucketOptions,
    IndexOptions,
    KeyOptions,
    LimitOptions,
    ListOptions,
    MarkOptions,
    Places,
    ReadOptions,
    RecordOptions,
    SelectionOptions,
    ShardOptions,
    StoreOptions,
)
from ledgerbeam.pipelines.calls.values import named_sources, parse_count, parse_shares

if TYPE_CHECKING:
    from ledgerbeam.pipelines.calls.result import Result


class ExchangeOptions(StoreOptions, IndexOptions, ReadOptions, ShardOptions, BucketOptions, AnyJobOptions, total=False):
    """Options of exchanges that move records."""


class SplitOptions(
    RecordOptions, ShardOptions, MarkOptions, KeyOptions, BaseOptions, LimitOptions, AnyJobOptions, total=False
):
    """Options of `split`."""

    parts: Annotated[
        Required[str | int | Mapping[str, int]],
        "names and shares of the parts, such as train=98,val=2; or a number of equal parts",
        Option(
            KEYS,
            "NAME=SHARE,...",
            parse=lambda value: dict(parse_shares(value)),
            more='Also a mapping: `{"train": 98, "val": 2}`.',
        ),
    ]


class RepartitionOptions(ExchangeOptions, ListOptions, total=False):
    """Options of `repartition`."""


class SortOptions(RepartitionOptions, SelectionOptions, KeyOptions, total=False):
    """Options of `sort`."""

    descending: Annotated[bool, "put the greatest key first", Option(KEYS, default=False)]
    nulls: Annotated[Literal["first", "last"], "place of the records whose key is null", Option(KEYS, default="last")]


class ShuffleOptions(RepartitionOptions, total=False):
    """Options of `shuffle`."""

    seed: Annotated[int, "seed of the order", Option(OUTPUT, "N", default=0, parse=partial(parse_count, least=0))]


class GroupOptions(RepartitionOptions, KeyOptions, AuditOptions, total=False):
    """Options of `group`."""


class JoinOptions(ExchangeOptions, KeyOptions, total=False):
    """Options of `join`."""

    right_by: Annotated[
        By | None, "key of the records of the right side", Option(KEYS, "KEY", unset="the key of the left side")
    ]
    right_columns: Annotated[
        str | Iterable[str],
        "read only these columns of the files of the right side",
        Option(SOURCES, "NAME,...", default=(), unset="all"),
    ]
    how: Annotated[
        Literal["inner", "left", "semi", "anti"],
        "records to write: pairs with the same key (inner), and also records of the left side without a match "
        "(left); or unchanged records of the left side with a match (semi), or without one (anti)",
        Option(OUTPUT, default="inner"),
    ]
    suffix: Annotated[
        str | None,
        "suffix for the name of a field of the right side that the left side also has",
        Option(OUTPUT, "TEXT", unset="such a field is an error"),
    ]
    as_: Annotated[
        str | None,
        "name of a field, or of a member of a sample, that holds the whole record of the right side in place of its "
        "fields. Without a match the field is null",
        Option(OUTPUT, "NAME"),
    ]


_FUNCTION = str | Callable[..., Any]
_CHANGES: Mapping[str, Mapping[str, Any]] = {
    "task_bytes": {"text": "size of a task of the first stage, which makes one run file", "default": "64M"},
    "pack": {"group": SOURCES, "text": "pack small sources, so that a run file has about this size"},
}
SPLIT = CallSpec(
    "split",
    "divide records into parts, by a key",
    SplitOptions,
    (PATTERNS,),
    changes={
        **MARKED,
        "mark": {"text": "write a column for each record, `part`, not the records"},
        "output": {"text": "folder to write below, with a folder for each part"},
    },
    raises=(FUNCTION_ERROR,),
)
SORT = CallSpec(
    "sort",
    "write all records in the order of a key",
    SortOptions,
    (PATTERNS,),
    changes=_CHANGES,
    raises=(FUNCTION_ERROR,),
)
SHUFFLE = CallSpec(
    "shuffle", "write all records in an order that a seed decides", ShuffleOptions, (PATTERNS,), changes=_CHANGES
)
REPARTITION = CallSpec(
    "repartition",
    "write all records in their order, in shards of another size",
    RepartitionOptions,
    (PATTERNS,),
    changes=_CHANGES,
)
GROUP = CallSpec(
    "group",
    "call a function with each key and its records",
    GroupOptions,
    (
        Argument(
            "function",
            _FUNCTION,
            "module:function",
            "function of a key and an iterator of its records that returns a record, None, a list, Drop or Route; or a "
            "class, built once in each worker process",
            lambda value: value,
            more="The name `module:object`, or the object itself. Records are in the order of sources and records.",
        ),
        PATTERNS,
    ),
    changes=_CHANGES,
    raises=(FUNCTION_ERROR,),
)
JOIN = CallSpec(
    "join",
    "join the records of two sides by key",
    JoinOptions,
    (
        Argument("left", Places, "LEFT", f"{URLS}, of the left side", lambda value: named_sources([value])),
        Argument("right", Places, "RIGHT", "source URLs of the right side", lambda value: named_sources([value])),
    ),
    changes={
        **_CHANGES,
        "columns": {"text": "read only these columns of the Parquet and Arrow files of the left side"},
    },
    raises=(FUNCTION_ERROR,),
)


def _build_sort(values: Values) -> Runnable:
    from ledgerbeam.pipelines.calls.job_values import gather_values, job_call, key_choice
    from ledgerbeam.pipelines.exchange.commands import SortJob

    key = key_choice(values.by, "key", descending=values.descending, nulls=values.nulls)
    return job_call(SortJob, values, key=key, **gather_values(values))


@public(SORT, _build_sort)
def sort(*patterns: Places, **options: Unpack[SortOptions]) -> "Result":
    """Write all records in the order of a key. The shards, in the order of their names, are the sorted corpus."""
    return run_call(SORT, (patterns,), options)


def _build_shuffle(values: Values) -> Runnable:
    from ledgerbeam.pipelines.calls.job_values import gather_values, job_call
    from ledgerbeam.pipelines.exchange.commands import ShuffleJob
    from ledgerbeam.pipelines.exchange.partition import KeyChoice

    return job_call(ShuffleJob, values, key=KeyChoice("shuffle", seed=values.seed), **gather_values(values))


@public(SHUFFLE, _build_shuffle)
def shuffle(*patterns: Places, **options: Unpack[ShuffleOptions]) -> "Result":
    """Write all records in a random order, computed from a seed, the names of the files and the record numbers."""
    return run_call(SHUFFLE, (patterns,), options)


def _build_repartition(values: Values) -> Runnable:
    from ledgerbeam.pipelines.calls.job_values import gather_values, job_call
    from ledgerbeam.pipelines.exchange.commands import RepartitionJob
    from ledgerbeam.pipelines.exchange.partition import KeyChoice

    return job_call(RepartitionJob, values, key=KeyChoice("place"), **gather_values(values))


@public(REPARTITION, _build_repartition)
def repartition(*patterns: Places, **options: Unpack[RepartitionOptions]) -> "Result":
    """Write all records in unchanged order, in shards of about equal size."""
    return run_call(REPARTITION, (patterns,), options)


def _build_group(values: Values) -> Runnable:
    from ledgerbeam.pipelines.calls.job_values import gather_values, job_call, key_choice
    from ledgerbeam.pipelines.exchange.commands import GroupJob
    from ledgerbeam.pipelines.jobs.checks import audit_text
    from ledgerbeam.pipelines.jobs.user_function import user_function
    from ledgerbeam.user_code.objects import OF_A_GROUP, check_object

    gathered = gather_values(values)
    reduce = user_function(values.function)
    check_object(reduce.reference, {}, OF_A_GROUP)
    return job_call(
        GroupJob,
        values,
        key=key_choice(values.by, "hash"),
        function=reduce.reference,
        made_of=reduce.made_of,
        audit=audit_text(values.audit),
        **gathered,
    )


@public(GROUP, _build_group)
def group(function: _FUNCTION, *patterns: Places, **options: Unpack[GroupOptions]) -> "Result":
    """Call a function with each key and an iterator of its records, and write the records that it returns."""
    return run_call(GROUP, (function, patterns), options)


def _build_join(values: Values) -> Runnable:
    from ledgerbeam.pipelines.calls.job_values import file_sources_of, gather_values, job_call, key_choice
    from ledgerbeam.pipelines.exchange.commands import JoinJob

    left = file_sources_of(values, patterns=values.left)
    right = file_sources_of(values, patterns=values.right, columns=values.right_columns)
    gathered = gather_values(values, left)
    key = key_choice(values.by, "hash")
    if values.right_by is None:
        right_key = key_choice(values.by, "match")
    else:
        right_key = key_choice(values.right_by, "match", option="right_by")
    suffix, under = values.suffix, values.as_
    if values.how in ("semi", "anti") and not suffix is under is None:
        raise UsageError(f"--how {values.how} writes records of the left side alone: leave --suffix and --as out")
    if suffix is not None and under is not None:
        raise UsageError("--as makes one field of the right record, and --suffix renames fields of it: give one option")
    if "" in (suffix, under):
        raise UsageError("--suffix and --as: expected a text, found an empty one; give a text, or leave the option out")
    job = {"key": key, "right": right, "right_key": right_key, "how": values.how, "suffix": suffix, "under": under}
    return job_call(JoinJob, values, **job, **gathered)


@public(JOIN, _build_join)
def join(left: Places, right: Places, **options: Unpack[JoinOptions]) -> "Result":
    """Join the records of two sides that have the same key.

    A joined record has the fields of the left record, then the fields of the right record that are not the key. A key
    that is null or missing matches nothing.
    """
    return run_call(JOIN, (left, right), options)


def _build_split(values: Values) -> Runnable:
    from ledgerbeam.pipelines.calls.job_values import decision_values, file_sources_of, job_call, key_choice
    from ledgerbeam.pipelines.exchange.commands import SplitJob

    files, key = file_sources_of(values), key_choice(values.by, "hash")
    written = decision_values(values, "ledgerbeam.transforms.exchange.keys:part_column")
    return job_call(SplitJob, values, files=files, key=key, parts=tuple(values.parts.items()), **written)


@public(SPLIT, _build_split)
def split(*patterns: Places, **options: Unpack[SplitOptions]) -> "Result":
    """Divide records into parts, such as train and val. All records with the same key are in the same part."""
    return run_call(SPLIT, (patterns,), options)
