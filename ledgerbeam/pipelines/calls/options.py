"""Options that several calls share. Calls, commands, steps of flows and the reference take them from here."""

from collections.abc import Iterable, Mapping, Sequence
from os import PathLike
from typing import TYPE_CHECKING, Annotated, Any, Literal, Required, TypedDict

from ledgerbeam.io.exchange.order import By
from ledgerbeam.pipelines.calls.call_spec import Argument, Option
from ledgerbeam.pipelines.calls.values import MAPPED, OutputFormats, named_sources, parse_reason, path, paths

if TYPE_CHECKING:  # help does without it
    from ledgerbeam.pipelines.console.run_console import RunConsole

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


_PROGRESS = Option(PYTHON, "show progress on standard error", unset="on a terminal and in a notebook")
_DEBUG = Option(PYTHON, "raise the error of a worker with its whole traceback", default=False)
_BEAM_OPTIONS = Option(PYTHON, 'Beam options, such as `["--runner=PrismRunner"]`', default=(), unset="the local runner")


class ConsoleOptions(TypedDict, total=False):
    """Options of every call."""

    progress: Annotated["bool | RunConsole | None", _PROGRESS]
    debug: Annotated[bool, _DEBUG]


class StoreOptions(TypedDict, total=False):
    """Options of calls that open stores."""

    storage_options: Annotated[
        Mapping[str, Any] | str | None, Option(SOURCES, "options for fsspec, passed on unchanged", "JSON")
    ]


class ListOptions(TypedDict, total=False):
    """Options of calls whose sources may be in a list."""

    sources_from: Annotated[
        Place | None, Option(SOURCES, "file with one source URL a line, in place of `patterns`", "FILE")
    ]


class SharOptions(TypedDict, total=False):
    """Options of calls that read folders of Shar."""

    from_: Annotated[
        Literal["shar"] | None,
        Option(
            SOURCES,
            "`shar`: read `patterns` as folders of Shar datasets; a record is a sample: the cut as json, its fields as "
            "members",
        ),
    ]


class IndexOptions(TypedDict, total=False):
    """Options of calls that read or write indexes."""

    index_root: Annotated[
        Place | None, Option(SOURCES, "mirrored tree that holds the indexes", "URL", unset="beside the sources")
    ]
    index_rule: Annotated[
        Literal["scheme", "lhotse"],
        Option(
            SOURCES,
            "names of sources in the mirrored tree: by scheme and path, or the names that lhotse gives",
            default="scheme",
        ),
    ]
    group: Annotated[
        Literal["auto", "pairs", "key"], Option(SOURCES, "grouping of tar members into samples", default="auto")
    ]


class ColumnOptions(TypedDict, total=False):
    """Options of calls that can read some columns alone."""

    columns: Annotated[
        str | Iterable[str],
        Option(SOURCES, "read only these columns of Parquet and Arrow files", "NAME,...", default=(), unset="all"),
    ]


class ReadOptions(ColumnOptions, total=False):
    """Options of jobs that read records of files."""

    no_index: Annotated[
        bool, Option(SOURCES, "refuse sources without an index instead of indexing them", default=False)
    ]
    pack: Annotated[Size | None, Option(OUTPUT, "pack small sources into output shards of about this size", "BYTES")]


class BaseOptions(TypedDict, total=False):
    """Options of jobs whose outputs are named after their sources."""

    base: Annotated[
        Place | None,
        Option(
            OUTPUT,
            "folder that output names are relative to",
            "URL",
            unset="the fixed part of the patterns; with `sources_from` names have whole paths",
        ),
    ]


class FolderOptions(TypedDict, total=False):
    """Options of jobs that write."""

    output: Required[Annotated[Place, Option(OUTPUT, "folder to write below", "URL")]]
    existing: Annotated[
        Existing | None,
        Option(
            OUTPUT,
            "treatment of shards below `output` that belong to another ledger or to none: remove them first, or leave "
            "them",
            unset="refuse to write there",
        ),
    ]


class ShardOptions(FolderOptions, total=False):
    """Options of jobs that write shards."""

    to: Required[
        Annotated[
            str, Option(OUTPUT, "format, indexed in the same pass: {choices}", "FORMAT", choices=OutputFormats(MAPPED))
        ]
    ]
    schema: Annotated[
        Place | None,
        Option(
            OUTPUT,
            "for Parquet and Arrow: a Parquet or Arrow file with this schema, or JSON as `ledgerbeam schema` prints it",
            "FILE",
            unset="the schema of the sources if they have columns and rows stay unchanged, else inferred from some "
            "records",
        ),
    ]
    row_group_bytes: Annotated[
        Size | None, Option(OUTPUT, "for Parquet and Arrow: size of a row group in memory", "BYTES", unset="128M")
    ]
    page_bytes: Annotated[Size | None, Option(OUTPUT, "for Parquet: size of a page in memory", "BYTES", unset="1M")]
    compress: Annotated[
        str | None,
        Option(
            OUTPUT,
            "compress the shards of jsonl, tar or text with `zstd` or `zstd:LEVEL`, LEVEL from 1 to 22; each record "
            "can still be read alone",
            "zstd[:LEVEL]",
            unset="no compression; LEVEL 3",
        ),
    ]
    frame: Annotated[
        Size | None,
        Option(
            OUTPUT,
            "bytes that are compressed as one piece and decompressed to read one record; larger frames make smaller "
            "files and slower random reads",
            "BYTES",
            unset="16K",
        ),
    ]


class PartsOptions(TypedDict, total=False):
    """Options of jobs that write Megatron datasets."""

    dtype: Annotated[str | None, Option(OUTPUT, "for Megatron: dtype of the tokens", "NAME", unset="int32")]
    drop_parts: Annotated[
        bool,
        Option(
            OUTPUT,
            "for Megatron: remove the parts of the dataset after they are merged; a later change then makes all parts "
            "again",
            default=False,
        ),
    ]


class FieldOptions(TypedDict, total=False):
    """Options of jobs that can write Shar."""

    fields: Annotated[
        str | Mapping[str, str] | None,
        Option(
            OUTPUT,
            "for Shar: fields of the cuts and the members that they come from, such as `recording=wav,label=cls`",
            "NAME=EXTENSION,...",
            more='Also a mapping: `{"recording": "wav"}`.',
        ),
    ]


class JobOptions(TypedDict, total=False):
    """Options of all jobs."""

    task_bytes: Annotated[
        Size, Option(WORK, "size of a task, the unit of restart inside a source", "BYTES", default="16M")
    ]
    workers: Annotated[int | None, Option(WORK, "local worker processes", "N", unset="all cores")]
    dry_run: Annotated[
        bool,
        Option(
            WORK,
            "report what would be done and why; write nothing, not even a ledger",
            default=False,
            more="`Result.summary` has the report.",
        ),
    ]
    ledger: Annotated[
        Place | None,
        Option(
            LEDGER,
            "URL of the ledger, which records progress",
            "URL",
            unset="below .ledgerbeam/, by command, sources and output",
        ),
    ]
    on_job_change: Annotated[
        OnJobChange,
        Option(
            LEDGER,
            "treatment of the ledger of a job that did something else: refuse it, restart everything, or accept what "
            "is done",
            default="refuse",
            more="`refuse` raises `JobMismatchError`.",
        ),
    ]
    flush_interval: Annotated[
        float,
        Option(LEDGER, "longest time that a completed task waits for its commit, in seconds", "SECONDS", default=1.0),
    ]
    only_failed: Annotated[
        str | None,
        Option(
            LEDGER,
            "do only the sources with a failure of this reason, a shell pattern; `ledger failures` shows reasons",
            "REASON",
        ),
    ]
    log_level: Annotated[
        LogLevel, Option(CONSOLE, "lowest level of log messages of functions to show", default="warning")
    ]
    options: Annotated[Sequence[str], _BEAM_OPTIONS]


class ProfileOptions(TypedDict, total=False):
    """Options of calls that run one job."""

    profile: Annotated[
        Place | None,
        Option(
            WORK,
            "file or URL to write a profile to: time of the workers by function, for https://www.speedscope.app",
            "FILE",
        ),
    ]


class LimitOptions(ProfileOptions, total=False):
    """Options of jobs that can stop early."""

    limit_tasks: Annotated[
        int | None,
        Option(WORK, "stop after N tasks are done or have failed; the same job resumes with the others", "N"),
    ]


class AuditOptions(TypedDict, total=False):
    """Options of jobs that call a function of the user."""

    audit: Annotated[
        str | float | None,
        Option(
            FUNCTION,
            "share of the finished tasks, such as `5%`, that are computed again in a fresh process, to check that "
            "results depend on their records only; or `off`",
            "SHARE|off",
            unset="1%, at least two tasks, within 2% of the workers' time",
        ),
    ]


class RejectOptions(AuditOptions, total=False):
    """Options of jobs that can set records aside."""

    on_error: Annotated[
        str,
        Option(
            REJECTS,
            "treatment of a record that cannot be decoded, or that the function rejects or raises an error for: `fail` "
            "its task, or `reject` the record into OUTPUT/_rejects, up to a number of records or a share such as 0.1%",
            "fail|reject[:LIMIT]",
            default="fail",
        ),
    ]
    only_rejected: Annotated[
        str | bool | None,
        Option(
            REJECTS,
            "do again only the tasks that rejected records for this reason, a shell pattern; without REASON for any; "
            "`ledger rejects` shows reasons",
            "REASON",
            const="*",
            parse=parse_reason,
            more="True stands for any reason.",
        ),
    ]


class KeyOptions(TypedDict, total=False):
    """Options of calls with one key."""

    by: Required[
        Annotated[
            By,
            Option(
                KEYS,
                "key: the name of a field, a.b for a nested value, several names with commas; or module:function that "
                "returns the key of a record. A missing field is null",
                "KEY",
                more="Names may be a list, and the function may be the object itself.",
            ),
        ]
    ]


class StageOptions(TypedDict, total=False):
    """Options of exchanges."""

    max_slices: Annotated[
        int,
        Option(
            WORK,
            "most slices of run files that a stage reads, fixed when the job starts; a larger exchange takes more "
            "rounds",
            "N",
            default=10_000_000,
        ),
    ]
    keep_runs: Annotated[
        bool,
        Option(
            WORK,
            "keep the run files after the job; if sources are added later, only those are scattered",
            default=False,
        ),
    ]


class BucketOptions(StageOptions, total=False):
    """Options of exchanges that move records."""

    shard_bytes: Annotated[
        Size, Option(OUTPUT, "approximate size of a shard before compression", "BYTES", default="64M")
    ]
    bucket_bytes: Annotated[
        Size | None,
        Option(
            WORK, "size of a bucket, which is done again if a record in it changes", "BYTES", unset="size of a shard"
        ),
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
        int | None, Option(STEPS, "local worker processes", "N", unset="as the step says, else all cores")
    ]
    on_job_change: Annotated[
        OnJobChange,
        Option(
            STEPS,
            "treatment of a step whose function or options have changed: refuse it, do everything again, or accept "
            "what is done",
            default="restart",
        ),
    ]
    existing: Annotated[
        Existing | None,
        Option(
            STEPS,
            "treatment of shards in the output folders that belong to another ledger or to none: remove them first, or "
            "leave them",
            unset="refuse to write there",
        ),
    ]
    log_level: Annotated[
        LogLevel | None,
        Option(CONSOLE, "lowest level of log messages of functions to show", unset="as the step says, else warning"),
    ]
    options: Annotated[Iterable[str], _BEAM_OPTIONS]
    progress: Annotated[bool | None, _PROGRESS]
    debug: Annotated[bool, _DEBUG]


class PipelineRunOptions(TypedDict, total=False):
    """Options of a run of a pipeline that a user has built. None leaves an option to the options of the pipeline."""

    ledger: Annotated[
        str | None, Option(PYTHON, "URL of the ledger", unset="a folder below .ledgerbeam/ in the working folder")
    ]
    name: Annotated[str | None, Option(PYTHON, "name of the pipeline, a part of the job's identity")]
    parameters: Annotated[
        Mapping[str, Any] | None,
        Option(PYTHON, "other values that shape the outputs; the ledger of a job with other values is refused"),
    ]
    on_job_change: Annotated[
        OnJobChange | None,
        Option(
            PYTHON,
            "treatment of the ledger of a job that did something else: refuse it, restart everything, or accept what "
            "is done",
            unset="refuse",
        ),
    ]
    existing: Annotated[
        Existing | None,
        Option(
            PYTHON,
            "treatment of shards below the output that belong to another ledger or to none: remove them first, or "
            "leave them",
            unset="refuse to write there",
        ),
    ]
    workers: Annotated[
        int | None, Option(PYTHON, "worker processes of the local runner", "N", unset="one for each core")
    ]
    storage_options: Annotated[
        Mapping[str, Any] | None, Option(PYTHON, "options for fsspec, passed on unchanged", "JSON")
    ]
    flush_interval: Annotated[
        float | None,
        Option(
            PYTHON, "longest time that a completed task waits for its commit, in seconds", "SECONDS", unset="1 second"
        ),
    ]
    audit: Annotated[
        str | float | None,
        Option(
            PYTHON,
            "share of the finished tasks, such as `5%`, whose `MapRecords` or `GroupRecords` is computed again in a "
            "fresh process, to check that results depend on their records only; or `off`. Chains with other functions "
            "are not audited",
            unset="1%, at least two tasks, within 2% of the workers' time",
        ),
    ]
    progress: Annotated[bool | None, _PROGRESS]


URLS = "source URLs, with *, ?, [...], ** and {a,b} or {000..127} braces"

PATTERNS = Argument("patterns", Places, "PATTERN", URLS, named_sources, several=True)
FILE_PATTERNS = Argument("patterns", Places, "PATTERN", URLS, paths, several=True)
"""Patterns that cannot be outputs of other jobs."""

ANY_FORMAT: Mapping[str, Any] = {
    "text": "format, indexed in the same pass: {choices}; webdataset, energon, lit: tar and its metadata"
}
FUNCTION_ERROR = "FunctionError: A function cannot be imported, or cannot be sent to the workers."
FLOW_ARGUMENTS = (
    Argument("flow", str, "FILE", "flow in TOML: jobs that read what earlier ones have written", path),
    Argument("steps", str, "STEP", "only these steps, and the steps that they read", list, several=True),
)
