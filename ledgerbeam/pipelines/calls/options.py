"""Options that several calls share. Calls, commands, steps of flows and the reference take them from here."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from os import PathLike
from typing import TYPE_CHECKING, Annotated, Any, Literal, Required, TypedDict

from ledgerbeam.io.exchange.order import By
from ledgerbeam.pipelines.calls.call_spec import Argument, Option
from ledgerbeam.pipelines.calls.values import MAPPED, OutputFormats, named_sources, parse_reason, path, paths

if TYPE_CHECKING:  # help does without it
    from ledgerbeam.pipelines.console.reporter import RunConsole

Place = str | PathLike[str]
Places = Place | Iterable[Place]
Size = int | str
OnJobChange = Literal["refuse", "restart", "accept"]
Existing = Literal["replace", "keep"]
LogLevel = Literal["debug", "info", "warning", "error"]

SOURCES, OUTPUT, KEYS, FUNCTION = "sources", "output", "keys", "function"
REJECTS, WORK, LEDGER, CONSOLE = "rejected records", "tasks and workers", "ledger and restart", "console"
STEPS = "steps"
PYTHON = ""  # group of the options that the command line does not have

_PROGRESS = Option(PYTHON, unset="on a terminal and in a notebook")
_BEAM_OPTIONS = Option(PYTHON, default=(), unset="the local runner")


class ConsoleOptions(TypedDict, total=False):
    """Options of every call."""

    progress: Annotated["bool | RunConsole | None", "show progress on standard error", _PROGRESS]
    debug: Annotated[bool, "raise the error of a worker with its whole traceback", Option(PYTHON, default=False)]


class StoreOptions(TypedDict, total=False):
    """Options of calls that open stores."""

    storage_options: Annotated[
        Mapping[str, Any] | str | None, "options for fsspec, passed on unchanged", Option(SOURCES, "JSON")
    ]


class ListOptions(TypedDict, total=False):
    """Options of calls whose sources may be in a list."""

    sources_from: Annotated[
        Place | None, "file with one source URL a line, in place of `patterns`", Option(SOURCES, "FILE")
    ]


class SharOptions(TypedDict, total=False):
    """Options of calls that read folders of Shar."""

    from_: Annotated[
        Literal["shar"] | None,
        "`shar`: read `patterns` as folders of Shar datasets; each cut is a sample, with the cut as json and its "
        "fields as members",
        Option(SOURCES),
    ]


class IndexOptions(TypedDict, total=False):
    """Options of calls that read or write indexes."""

    index_root: Annotated[
        Place | None,
        "folder for the indexes, with subfolders like those of the sources",
        Option(SOURCES, "URL", unset="beside the sources"),
    ]
    index_rule: Annotated[
        Literal["scheme", "lhotse"],
        "names of indexes below `index_root`: by scheme and path of the source, or the names that lhotse gives",
        Option(SOURCES, default="scheme"),
    ]
    group: Annotated[
        Literal["auto", "pairs", "key"], "grouping of tar members into samples", Option(SOURCES, default="auto")
    ]


class ColumnOptions(TypedDict, total=False):
    """Options of calls that can read some columns alone."""

    columns: Annotated[
        str | Iterable[str],
        "read only these columns of Parquet and Arrow files",
        Option(SOURCES, "NAME,...", default=(), unset="all"),
    ]


class ReadOptions(ColumnOptions, total=False):
    """Options of jobs that read records of files."""

    no_index: Annotated[
        bool, "refuse sources without an index instead of indexing them", Option(SOURCES, default=False)
    ]
    pack: Annotated[Size | None, "pack small sources into output shards of about this size", Option(OUTPUT, "BYTES")]


class ColumnFolderOptions(TypedDict, total=False):
    """Options of calls that read columns beside the records."""

    with_: Annotated[
        Places,
        "folder of columns that `annotate` wrote for the sources; may be repeated",
        Option(SOURCES, "URL", default=(), repeats=True),
    ]


class SelectionOptions(ColumnFolderOptions, total=False):
    """Options of jobs that can read some of the records, chosen by columns beside them."""

    where: Annotated[
        str | Callable[..., Any] | None,
        "read only records for which this condition holds: SQL over the names of the columns (needs DuckDB), or "
        "module:function that takes a pyarrow.RecordBatch of the columns and returns a mask",
        Option(SOURCES, "CONDITION", unset="all records", more="The function may be the object itself."),
    ]


class BaseOptions(TypedDict, total=False):
    """Options of jobs whose outputs are named after their sources."""

    base: Annotated[
        Place | None,
        "folder that output names are relative to",
        Option(OUTPUT, "URL", unset="the fixed part of the patterns; with `sources_from` names are whole paths"),
    ]


class FolderOptions(TypedDict, total=False):
    """Options of jobs that write."""

    output: Annotated[Required[Place], "folder to write below", Option(OUTPUT, "URL")]
    existing: Annotated[
        Existing | None,
        "treatment of shards below `output` that belong to another ledger or to none: remove them first, or leave them",
        Option(OUTPUT, unset="refuse to write there"),
    ]


class FormatOptions(FolderOptions, total=False):
    """Options of jobs that write in a chosen format."""

    to: Annotated[
        Required[str],
        "format of the outputs, which are also indexed: {choices}",
        Option(OUTPUT, "FORMAT", choices=OutputFormats(MAPPED)),
    ]


class TableOptions(TypedDict, total=False):
    """Options of jobs that write Parquet or Arrow files."""

    schema: Annotated[
        Place | None,
        "for Parquet and Arrow: a Parquet or Arrow file with this schema, or JSON as `ledgerbeam schema` prints it",
        Option(
            OUTPUT,
            "FILE",
            unset="the schema of the sources if they have columns and rows stay unchanged, else inferred from some "
            "records",
        ),
    ]
    row_group_bytes: Annotated[
        Size | None, "for Parquet and Arrow: size of a row group in memory", Option(OUTPUT, "BYTES", unset="128M")
    ]
    page_bytes: Annotated[Size | None, "for Parquet: size of a page in memory", Option(OUTPUT, "BYTES", unset="1M")]


class ShardOptions(FormatOptions, TableOptions, total=False):
    """Options of jobs that write shards."""

    compress: Annotated[
        str | None,
        "compress the shards of jsonl, tar or text with `zstd` or `zstd:LEVEL`, LEVEL from 1 to 22; each record "
        "can still be read alone",
        Option(OUTPUT, "zstd[:LEVEL]", unset="no compression; LEVEL 3"),
    ]
    frame: Annotated[
        Size | None,
        "bytes that are compressed as one piece and decompressed to read one record; larger frames make smaller "
        "files and slower random reads",
        Option(OUTPUT, "BYTES", unset="16K"),
    ]


# Change of the options of a call with `MarkOptions`.
MARKED: Mapping[str, Mapping[str, Any]] = {"to": {"default": None, "unset": "required, except with `mark`"}}


class MarkOptions(TypedDict, total=False):
    """Options of jobs that decide about records."""

    mark: Annotated[bool, "write columns with the decisions, not the records", Option(OUTPUT, default=False)]


class PartsOptions(TypedDict, total=False):
    """Options of jobs that write Megatron datasets."""

    dtype: Annotated[str | None, "for Megatron: dtype of the tokens", Option(OUTPUT, "NAME", unset="int32")]
    drop_parts: Annotated[
        bool,
        "for Megatron: remove the parts of the dataset after the merge; after a change of a source, all parts are "
        "then made again",
        Option(OUTPUT, default=False),
    ]


class FieldOptions(TypedDict, total=False):
    """Options of jobs that can write Shar."""

    fields: Annotated[
        str | Mapping[str, str] | None,
        "for Shar: fields of the cuts and the members that they come from, such as `recording=wav,label=cls`",
        Option(OUTPUT, "NAME=EXTENSION,...", more='Also a mapping: `{"recording": "wav"}`.'),
    ]


class JobOptions(TypedDict, total=False):
    """Options of all jobs."""

    task_bytes: Annotated[
        Size, "size of a task, the unit of restart inside a source", Option(WORK, "BYTES", default="16M")
    ]
    workers: Annotated[int | None, "local worker processes", Option(WORK, "N", unset="all cores")]
    dry_run: Annotated[
        bool,
        "report what would be done and why; write nothing, not even a ledger",
        Option(WORK, default=False, more="`Result.summary` has the report."),
    ]
    ledger: Annotated[
        Place | None,
        "URL of the ledger, which records progress",
        Option(LEDGER, "URL", unset="a folder below .ledgerbeam/ for this command, sources and output"),
    ]
    on_job_change: Annotated[
        OnJobChange,
        "treatment of a ledger that belongs to another job: refuse it, restart everything, or accept finished work",
        Option(LEDGER, default="refuse", more="`refuse` raises `JobMismatchError`."),
    ]
    flush_interval: Annotated[
        float,
        "longest time that a completed task waits for its commit, in seconds",
        Option(LEDGER, "SECONDS", default=1.0),
    ]
    only_failed: Annotated[
        str | None,
        "run only sources with a failure whose reason matches this shell pattern; `ledger failures` shows reasons",
        Option(LEDGER, "REASON"),
    ]
    log_level: Annotated[
        LogLevel, "lowest level of log messages of functions to show", Option(CONSOLE, default="warning")
    ]
    options: Annotated[Sequence[str], 'Beam options, such as `["--runner=PrismRunner"]`', _BEAM_OPTIONS]


class ProfileOptions(TypedDict, total=False):
    """Options of calls that run one job."""

    profile: Annotated[
        Place | None,
        "file or URL to write a profile to: time of the workers by function, for https://www.speedscope.app",
        Option(WORK, "FILE"),
    ]


class LimitOptions(ProfileOptions, total=False):
    """Options of jobs that can stop early."""

    limit_tasks: Annotated[
        int | None,
        "stop after N tasks are done or have failed; run the same job again to do the other tasks",
        Option(WORK, "N"),
    ]


class AuditOptions(TypedDict, total=False):
    """Options of jobs that call a function of the user."""

    audit: Annotated[
        str | float | None,
        "share of the finished tasks, such as `5%`, that are computed again in a fresh process, to check that "
        "results depend on their records only; or `off`",
        Option(FUNCTION, "SHARE|off", unset="1%, at least two tasks, within 2% of the workers' time"),
    ]


class RejectOptions(AuditOptions, total=False):
    """Options of jobs that can store rejected records instead of failing their tasks."""

    on_error: Annotated[
        str,
        "treatment of a record that cannot be decoded, or that the function rejects or raises an error for: `fail` "
        "its task, or `reject` the record into OUTPUT/_rejects, up to a number of records or a share such as 0.1%",
        Option(REJECTS, "fail|reject[:LIMIT]", default="fail"),
    ]
    only_rejected: Annotated[
        str | bool | None,
        "run again only tasks that rejected records for a reason that matches this shell pattern; without REASON, for "
        "any reason; `ledger rejects` shows reasons",
        Option(REJECTS, "REASON", const="*", parse=parse_reason, more="True stands for any reason."),
    ]


class KeyOptions(TypedDict, total=False):
    """Options of calls with one key."""

    by: Annotated[
        Required[By],
        "key: the name of a field, a.b for a nested value, several names with commas; or module:function that "
        "returns the key of a record. A missing field is null",
        Option(KEYS, "KEY", more="Names may be a list, and the function may be the object itself."),
    ]


class StageOptions(TypedDict, total=False):
    """Options of exchanges."""

    max_slices: Annotated[
        int,
        "most slices of run files that a stage reads, fixed when the job starts; a larger exchange takes more rounds",
        Option(WORK, "N", default=10_000_000),
    ]
    keep_runs: Annotated[
        bool,
        "keep the run files after the job; if sources are added later, only the added sources are scattered",
        Option(WORK, default=False),
    ]


class BucketOptions(StageOptions, total=False):
    """Options of exchanges that move records."""

    shard_bytes: Annotated[
        Size, "approximate size of a shard before compression", Option(OUTPUT, "BYTES", default="64M")
    ]
    bucket_bytes: Annotated[
        Size | None,
        "size of a bucket; a change of one record repeats the whole bucket",
        Option(WORK, "BYTES", unset="size of a shard"),
    ]


class FileOptions(StoreOptions, ListOptions, IndexOptions, total=False):
    """Options of calls that read files."""


class RecordOptions(FileOptions, ReadOptions, total=False):
    """Options of jobs that read records."""


class AnyJobOptions(JobOptions, ConsoleOptions, total=False):
    """Options of all calls that run jobs."""


class FlowOptions(TypedDict, total=False):
    """Options of a run of a flow."""

    workers: Annotated[
        int | None, "local worker processes", Option(STEPS, "N", unset="as the step says, else all cores")
    ]
    on_job_change: Annotated[
        OnJobChange,
        "treatment of a step whose function or options have changed: refuse it, do everything again, or accept "
        "what is done",
        Option(STEPS, default="restart"),
    ]
    existing: Annotated[
        Existing | None,
        "treatment of shards in the output folders that belong to another ledger or to none: remove them first, or "
        "leave them",
        Option(STEPS, unset="refuse to write there"),
    ]
    log_level: Annotated[
        LogLevel | None,
        "lowest level of log messages of functions to show",
        Option(CONSOLE, unset="as the step says, else warning"),
    ]
    options: Annotated[Iterable[str], 'Beam options, such as `["--runner=PrismRunner"]`', _BEAM_OPTIONS]
    progress: Annotated[bool | None, "show progress on standard error", _PROGRESS]
    debug: Annotated[bool, "raise the error of a worker with its whole traceback", Option(PYTHON, default=False)]


class PipelineRunOptions(TypedDict, total=False):
    """Options of a run of a user's own pipeline. For None, the options of the pipeline decide."""

    ledger: Annotated[
        str | None, "URL of the ledger", Option(PYTHON, unset="a folder below .ledgerbeam/ in the working folder")
    ]
    name: Annotated[str | None, "name of the pipeline, a part of the job's identity", Option(PYTHON)]
    parameters: Annotated[
        Mapping[str, Any] | None,
        "other values that shape the outputs; the ledger of a job with other values is refused",
        Option(PYTHON),
    ]
    on_job_change: Annotated[
        OnJobChange | None,
        "treatment of a ledger that belongs to another job: refuse it, restart everything, or accept finished work",
        Option(PYTHON, unset="refuse"),
    ]
    existing: Annotated[
        Existing | None,
        "treatment of shards below the output that belong to another ledger or to none: remove them first, or "
        "leave them",
        Option(PYTHON, unset="refuse to write there"),
    ]
    workers: Annotated[
        int | None, "worker processes of the local runner", Option(PYTHON, "N", unset="one for each core")
    ]
    storage_options: Annotated[
        Mapping[str, Any] | None, "options for fsspec, passed on unchanged", Option(PYTHON, "JSON")
    ]
    answers: Annotated[
        Place | None,
        "folder that keeps the answers of ledgerbeam.remember for other runs and jobs",
        Option(PYTHON, unset="answers are deleted when their source is complete"),
    ]
    rate: Annotated[
        str | Sequence[str] | None,
        "most calls of `ledgerbeam.remember` in any second, minute or hour: `500/min`; or most tokens of them: "
        "`200000tokens/min`",
        Option(PYTHON, unset="no limit"),
    ]
    budget: Annotated[
        int | str | Sequence[int | str] | None,
        "most calls of `ledgerbeam.remember` in all runs, or most tokens of them: `5000000tokens`",
        Option(PYTHON, unset="no limit"),
    ]
    flush_interval: Annotated[
        float | None,
        "longest time that a completed task waits for its commit, in seconds",
        Option(PYTHON, "SECONDS", unset="1 second"),
    ]
    audit: Annotated[
        str | float | None,
        "share of the finished tasks, such as `5%`, whose `MapRecords` or `GroupRecords` is computed again in a "
        "fresh process, to check that results depend on their records only; or `off`. Chains with other functions "
        "are not audited",
        Option(PYTHON, unset="1%, at least two tasks, within 2% of the workers' time"),
    ]
    progress: Annotated[bool | None, "show progress on standard error", _PROGRESS]


URLS = "source URLs, with *, ?, [...], ** and {a,b} or {000..127} braces"

PATTERNS = Argument("patterns", Places, "PATTERN", URLS, named_sources, several=True)
FILE_PATTERNS = Argument("patterns", Places, "PATTERN", URLS, paths, several=True)  # not outputs of jobs

ANY_FORMAT: Mapping[str, Any] = {
    "text": "format of the outputs, which are also indexed: {choices}; webdataset, energon, lit: tar and metadata"
}
FUNCTION_ERROR = "FunctionError: A function cannot be imported, or cannot be sent to the workers."
FLOW_ARGUMENTS = (
    Argument("flow", str, "FILE", "flow in TOML: jobs that read the outputs of earlier jobs", path),
    Argument("steps", str, "STEP", "only these steps, and the steps that they read", list, several=True),
)
