"""``convert`` and ``materialize``: write records, or the items of an iterator graph, in a format."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal, Unpack

from ledgerbeam.pipelines.calls.call import Runnable, Values, public, run_call
from ledgerbeam.pipelines.calls.call_spec import Argument, CallSpec, Option
from ledgerbeam.pipelines.calls.options import (
    ANY_FORMAT,
    OUTPUT,
    PATTERNS,
    WORK,
    AnyJobOptions,
    BaseOptions,
    FieldOptions,
    LimitOptions,
    PartsOptions,
    Places,
    RecordOptions,
    SelectionOptions,
    ShardOptions,
    SharOptions,
    StoreOptions,
)
from ledgerbeam.pipelines.calls.values import CONVERTED, TARS_WITH_METADATA, OutputFormats

if TYPE_CHECKING:
    from ledgerbeam.pipelines.calls.result import Result


class ConversionOptions(ShardOptions, FieldOptions, PartsOptions, total=False):
    """Options of jobs that write records in any format."""


class ConvertOptions(
    RecordOptions,
    SelectionOptions,
    SharOptions,
    ConversionOptions,
    BaseOptions,
    LimitOptions,
    AnyJobOptions,
    total=False,
):
    """Options of `convert`."""

    pack_by: Annotated[
        Literal["order", "folder"],
        "pack all sources in their order, or each folder of sources separately, such as the folder of each route",
        Option(OUTPUT, default="order"),
    ]


class MaterializeOptions(StoreOptions, ConversionOptions, LimitOptions, AnyJobOptions, total=False):
    """Options of `materialize`."""

    epochs: Annotated[int, "number of passes, each in its own order", Option(WORK, "N", default=1)]
    task_records: Annotated[
        int | None,
        "number of places of the graph in a task, and so the most items of a shard",
        Option(WORK, "N", unset="derived from `task_bytes`"),
    ]


_CONVERSION_CHANGES: Mapping[str, Mapping[str, Any]] = {
    "output": {"text": "folder to write below; for megatron the prefix of the dataset"},
    "to": {**ANY_FORMAT, "choices": OutputFormats(CONVERTED, TARS_WITH_METADATA)},
}

CONVERT = CallSpec(
    "convert", "write every record in another format", ConvertOptions, (PATTERNS,), changes=_CONVERSION_CHANGES
)
MATERIALIZE = CallSpec(
    "materialize",
    "write the items of an iterator graph in its order",
    MaterializeOptions,
    (
        Argument(
            "graph",
            str | Callable[[], Any],
            "module:function",
            "function that returns the graph; or module:object that is a graph",
            lambda value: value,
            more="The name of a function, or the function itself.",
        ),
    ),
    changes={
        **_CONVERSION_CHANGES,
        "task_bytes": {"text": "size of a task, by the mean size of the records that the graph reads"},
        "storage_options": {"group": OUTPUT},
    },
    raises=("FunctionError: The graph cannot be built, or its function cannot be sent to the workers.",),
)


def _build_convert(values: Values) -> Runnable:
    from ledgerbeam.pipelines.calls.job_values import conversion, file_sources_of, job_call
    from ledgerbeam.pipelines.jobs.one_stage import ConvertJob

    return job_call(ConvertJob, values, files=file_sources_of(values), **conversion(values))


@public(CONVERT, _build_convert)
def convert(*patterns: Places, **options: Unpack[ConvertOptions]) -> "Result":
    """Write every record in another format."""
    return run_call(CONVERT, (patterns,), options)


def _build_materialize(values: Values) -> Runnable:
    from ledgerbeam.pipelines.calls.job_values import conversion, job_call
    from ledgerbeam.pipelines.jobs.one_stage import MaterializeJob
    from ledgerbeam.pipelines.jobs.sources import GraphPasses
    from ledgerbeam.pipelines.jobs.user_function import user_function

    converted = conversion(values)
    built = user_function(values.graph)
    passes = GraphPasses(
        reference=built.reference,
        made_of=built.made_of,
        epochs=values.epochs,
        task_bytes=values.task_bytes,
        task_records=values.task_records,
    )
    return job_call(MaterializeJob, values, passes=passes, **converted)


@public(MATERIALIZE, _build_materialize)
def materialize(graph: str | Callable[[], Any], **options: Unpack[MaterializeOptions]) -> "Result":
    """Write the items of an iterator graph in its order."""
    return run_call(MATERIALIZE, (graph,), options)
