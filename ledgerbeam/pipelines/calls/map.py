"""``map``: apply a function to every record."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypedDict, Unpack, cast

from ledgerbeam.errors import UsageError
from ledgerbeam.pipelines.calls.call import Runnable, Values, public, run_call
from ledgerbeam.pipelines.calls.call_spec import Argument, CallSpec, Option
from ledgerbeam.pipelines.calls.options import (
    ANY_FORMAT,
    FUNCTION,
    OUTPUT,
    PATTERNS,
    REJECTS,
    WORK,
    AnyJobOptions,
    BaseOptions,
    LimitOptions,
    Place,
    Places,
    RecordOptions,
    RejectOptions,
    SelectionOptions,
    ShardOptions,
    SharOptions,
)
from ledgerbeam.pipelines.calls.values import MAPPED, TARS_WITH_METADATA, OutputFormats, parse_batch

if TYPE_CHECKING:
    from ledgerbeam.pipelines.calls.result import Result
    from ledgerbeam.pipelines.jobs.map import MapJob


Function = str | Callable[..., Any]  # name of a function, or the object itself


class FunctionOptions(TypedDict, total=False):
    """Options of jobs that call functions with records."""

    set: Annotated[
        Mapping[str, Any] | Sequence[str] | None,
        "keyword argument of the function or class, as JSON or else text; part of the job; may be repeated. Of several "
        "functions: of all that take it, or with LABEL.NAME of one",
        Option(FUNCTION, "[LABEL.]NAME=VALUE", repeats=True, more="A mapping, or a list of `NAME=VALUE`."),
    ]
    watch_file: Annotated[
        Places,
        "file or URL that the function reads; its content is part of the job; may be repeated",
        Option(FUNCTION, "FILE", default=(), repeats=True),
    ]
    batch: Annotated[
        int | Mapping[str, int] | Sequence[str] | None,
        "call the function with lists of up to N records; it returns a list of the same length. With `as_` arrow: "
        "most rows of a batch. With LABEL=N only one of several functions; may be repeated",
        Option(
            FUNCTION,
            "[LABEL=]N",
            unset="single records; 65536 rows",
            parse=parse_batch,
            repeats=True,
            more="A number, or a mapping of labels to numbers.",
        ),
    ]
    as_: Annotated[
        Literal["records", "arrow"],
        "call the function with records, or with a pyarrow.RecordBatch; it then returns a batch, a frame, or Rows",
        Option(FUNCTION, default="records"),
    ]
    batch_schema: Annotated[
        Place | None,
        "with `as_` arrow: file with the schema of the JSON lines, in JSON",
        Option(FUNCTION, "FILE", unset="the columns of the first lines"),
    ]
    devices: Annotated[
        str | Iterable[str | int],
        "IDs of CUDA devices; each worker process sees one, and workers share devices if there are fewer",
        Option(FUNCTION, "ID,...", default=()),
    ]
    style: Annotated[
        str | None,
        "convention of another library that the functions follow, such as `datasets`; part of the job",
        Option(FUNCTION, "NAME", unset="the results that ledgerbeam defines"),
    ]
    keep_dropped: Annotated[
        bool,
        "write the dropped records to OUTPUT/_dropped, with their reason and function; part of the job",
        Option(REJECTS, default=False),
    ]
    record_timeout: Annotated[
        float | None,
        "longest time for one record; a record that takes longer, or that ends its worker, is treated as `on_error` "
        "says, alone",
        Option(REJECTS, "SECONDS", unset="no limit"),
    ]
    in_flight: Annotated[
        int | None,
        "of an async function: most records for which each worker calls it at once",
        Option(FUNCTION, "N", unset="32"),
    ]
    rate: Annotated[
        str | Sequence[str] | None,
        "most calls of `ledgerbeam.remember` in any second, minute or hour, by all workers and hosts: 500/min; or most "
        "tokens of them: 200000tokens/min; may be repeated",
        Option(FUNCTION, "N[tokens]/s|min|h", unset="no limit", repeats=True),
    ]
    budget: Annotated[
        int | str | Sequence[int | str] | None,
        "most calls of `ledgerbeam.remember` in all runs of the job, or most tokens of them: 5000000tokens; then the "
        "run ends, and the same command with a larger budget resumes it",
        Option(FUNCTION, "N[tokens]", unset="no limit", repeats=True),
    ]
    answers: Annotated[
        Place | None,
        "of an async function: folder that keeps the answers of ledgerbeam.remember for other runs and jobs",
        Option(FUNCTION, "URL", unset="answers are deleted when their source is complete"),
    ]
    sample: Annotated[
        int | None,
        "call the function with N records from all sources, in this process; report the results, write nothing",
        Option(WORK, "N", more="`Result.summary` has the results."),
    ]


class MapOptions(
    RecordOptions,
    SelectionOptions,
    SharOptions,
    ShardOptions,
    BaseOptions,
    FunctionOptions,
    RejectOptions,
    LimitOptions,
    AnyJobOptions,
    total=False,
):
    """Options of `map`."""

    nan: Annotated[
        Literal["refuse", "null"],
        "treatment of NaN and infinities in JSONL: fail the task, or write null and count them",
        Option(OUTPUT, default="refuse"),
    ]


FUNCTIONS = Argument(
    "function",
    Function | Sequence[Function],
    "module:function",
    "function of one record that returns a record, None, a list, Drop, Reject or Route; or a class, built once "
    "in each worker process",
    lambda value: value,
    more="The name `module:object`, or the object itself. An object that no module holds (of a script or a "
    "notebook, a lambda, a closure, a partial) is sent to the workers with everything that it captures, which "
    "is part of the job. Of a list of functions, each takes the results of the function before.",
    flag="--then",
    flag_text="another function, which takes the results of the function before; may be repeated",
)

MAP = CallSpec(
    "map",
    "apply a function to every record",
    MapOptions,
    (
        FUNCTIONS,
        PATTERNS,
    ),
    changes={"to": {**ANY_FORMAT, "choices": OutputFormats(MAPPED, TARS_WITH_METADATA)}},
    raises=("FunctionError: The function cannot be imported or called, or cannot be sent to the workers.",),
)


def _build_map(values: Values) -> Runnable:
    from ledgerbeam.pipelines.calls.job_values import shards
    from ledgerbeam.pipelines.jobs.map import MapJob

    if values.nan != "refuse" and values.to != "jsonl":
        raise UsageError(f"--nan {values.nan} is for --to jsonl, found --to {values.to}")
    written = shards(values, MAPPED)
    if values.as_ == "arrow":
        _check_arrow(values.to, written["to"], values.from_)
    return map_call(MapJob, values, {**written, "nan": values.nan})


def map_call(kind: "type[MapJob]", values: Values, written: Mapping[str, Any]) -> Runnable:
    """Return the call of a job that calls functions with records. `written` has its fields that shape the outputs."""
    from ledgerbeam.pipelines.calls.job_values import file_sources_of, folder, job_call
    from ledgerbeam.pipelines.jobs.checks import audit_text, parse_on_error
    from ledgerbeam.pipelines.jobs.map import mapped_functions
    from ledgerbeam.pipelines.outputs.columns import read_batch_schema
    from ledgerbeam.user_code.objects import read_values, watched_checksums

    parse_on_error(values.on_error)
    if values.as_ != "arrow" and values.batch_schema is not None:
        raise UsageError("--batch-schema is for --as arrow; leave it out")
    functions = mapped_functions(values.function, read_values(values.set or {}), values.batch, values.style)
    _check_async(values, [one.is_async for one in functions])
    files = file_sources_of(values)
    if values.batch_schema is not None:
        files = replace(files, batch_schema=read_batch_schema(values.batch_schema, values.storage_options))
    call = job_call(
        kind,
        values,
        files=files,
        functions=functions,
        watched=watched_checksums(values.watch_file, values.storage_options),
        form=values.as_,
        style=values.style,
        audit=audit_text(values.audit),
        output=folder(values.output),
        on_error=values.on_error,
        keep_dropped=values.keep_dropped,
        record_timeout=values.record_timeout,
        in_flight=values.in_flight,
        devices=values.devices,
        **written,
    )
    if values.sample is None:
        return call
    if values.profile is not None:
        raise UsageError("--profile cannot be used with --sample: leave one of them out")
    for option, chosen in (("--only-failed", values.only_failed), ("--only-rejected", values.only_rejected)):
        if chosen:
            raise UsageError(f"{option} reads the ledger, and --sample reads none: leave one of them out")
    from ledgerbeam.pipelines.preview.dry_run import SampleCall  # brings pyarrow

    return SampleCall(cast("MapJob", call.job).with_batch_schema(), values.sample)


@public(MAP, _build_map)
def map(  # noqa: A001 - as the command is called
    function: Function | Sequence[Function], *patterns: Places, **options: Unpack[MapOptions]
) -> "Result":
    """Apply a function to every record, and write the results.

        def clean(record, shortest=20):
            text = " ".join(record["text"].split())
            return {**record, "text": text} if len(text) >= shortest else None        # None: the record is dropped

        result = ledgerbeam.map(clean, "texts/*.jsonl", output="clean", to="jsonl", set={"shortest": 50})
        print(result)                            # <Result of map: complete; this run: 3 sources, 12 tasks, ...>
        result.raise_for_failures()              # the first errors, if tasks failed; the same call tries them again
        names = [row["name"] for row in result.outputs]

    If the function raises an error, or returns a value that the format `to` cannot hold, only its task fails. With
    ``on_error="reject"`` only the record is rejected. A result must depend on its record only. Sizes are bytes, or
    texts such as ``"20K"``.
    """
    return run_call(MAP, (function, patterns), options)


def _check_async(values: Values, are_async: Sequence[bool]) -> None:
    """Raise `UsageError` for options that do not fit the kinds of the functions."""
    for option, given in (
        ("in-flight", values.in_flight),
        ("rate", values.rate),
        ("budget", values.budget),
        ("answers", values.answers),
    ):
        if given is not None and not any(are_async):
            raise UsageError(f"--{option} is for async functions, and there is none; leave it out, or use `async def`")
    if values.in_flight is not None and values.in_flight < 1:
        raise UsageError(f"--in-flight: expected at least 1 record, found {values.in_flight}")
    if values.record_timeout is not None and any(are_async) and not all(are_async):
        raise UsageError("--record-timeout: expected functions that are all async, or none of them; map in two steps")


def _check_arrow(to: str, written: str, read_as: str | None) -> None:
    """Raise `UsageError` for a format that Arrow batches cannot be read from or written to."""
    from ledgerbeam.sources.forms import ARROW_OUTPUTS

    if written not in ARROW_OUTPUTS:
        raise UsageError(f"--as arrow writes one of {', '.join(ARROW_OUTPUTS)}, found --to {to}; leave --as arrow out")
    if read_as is not None:
        raise UsageError(f"--as arrow reads Parquet, Arrow, JSONL and text, found --from {read_as}; leave one out")
