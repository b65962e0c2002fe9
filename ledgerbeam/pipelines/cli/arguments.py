"""Options that several commands share, in groups, and how values are read. Other options are in their command."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

from ledgerbeam.errors import UsageError
from ledgerbeam.pipelines.calls.values import (
    CONVERTED,
    TARS_WITH_METADATA,
    OutputFormats,
    parse_columns,
    parse_count,
    parse_options,
    parse_seconds,
    parse_size,
)

LOG_LEVELS = ("debug", "info", "warning", "error")

Options = argparse._ArgumentGroup | argparse.ArgumentParser  # noqa: SLF001 - the type of a group has no public name


class Parser(argparse.ArgumentParser):
    """Raises what argparse would exit with, so that one place prints errors and chooses the exit status."""

    def error(self, message: str) -> NoReturn:
        """Raise UsageError."""
        raise UsageError(f"{message}; see: {self.prog} --help")


def add_base_options(parser: argparse.ArgumentParser) -> None:
    """Add what every command takes."""
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")


def take_defaults_of_call(parser: argparse.ArgumentParser) -> None:
    """Give the options of a command no defaults: what is not given is left to the signature of its call."""
    parser.argument_default = argparse.SUPPRESS


def _default(options: Options, value: Any) -> Any:
    """Return the default of an option that commands with a call share with others."""
    return value if options.argument_default is None else options.argument_default


def set_usage(parser: argparse.ArgumentParser) -> None:
    """Have the help of a command begin with what it must be given; the options below it are many."""
    parser.usage = " ".join([parser.prog, *must_be_given(parser), "[OPTION ...]"])


def must_be_given(parser: argparse.ArgumentParser) -> Iterator[str]:
    """Yield the arguments and options that a command does not do without."""
    for action in parser._actions:  # noqa: SLF001 - argparse has no public list of them
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001
            yield "|".join(action.choices)
            yield from must_be_given(next(iter(action.choices.values())))
        elif not action.option_strings:
            several = {"*": f"[{action.metavar} ...]", "+": f"{action.metavar}..."}.get(str(action.nargs))
            is_sources = action.dest == "patterns"  # of which a list can take the place
            yield f"{action.metavar}..." if is_sources else several or str(action.metavar)
    for action in parser._actions:  # noqa: SLF001
        if action.option_strings and action.required:
            yield f"{action.option_strings[0]} {action.metavar}"


def add_json(parser: Options, text: str = "print one JSON object") -> None:
    """Add ``--json``."""
    parser.add_argument("--json", action="store_true", default=False, help=text)


def add_storage(parser: Options) -> None:
    """Add ``--storage-options``."""
    parser.add_argument(
        "--storage-options",
        type=parse_options,
        default=_default(parser, {}),
        metavar="JSON",
        help="passed to fsspec unchanged",
    )


def add_sources(parser: argparse.ArgumentParser) -> argparse._ArgumentGroup:
    """Add patterns, or a list in place of them; returns the group of options of sources."""
    sources = parser.add_argument_group("sources")
    sources.add_argument(
        "patterns",
        metavar="PATTERN",
        nargs="*",
        default=sources.argument_default,  # else argparse asks for some where others are missing
        help="source URLs, with *, ?, [...], ** and {a,b} or {000..127} braces",
    )
    sources.add_argument(
        "--sources-from", metavar="FILE", help="a list of source URLs, one a line, in place of patterns"
    )
    add_storage(sources)
    return sources


def add_read_as(sources: Options) -> None:
    """Add ``--from``."""
    sources.add_argument(
        "--from",
        dest="from_",
        choices=["shar"],
        help="PATTERNs are folders of Shar datasets; a record is a sample: the cut as json, its fields as members",
    )


def add_columns(sources: Options) -> None:
    """Add ``--columns``."""
    sources.add_argument(
        "--columns",
        type=parse_columns,
        default=_default(sources, ()),
        metavar="NAME,...",
        help="read only these columns of Parquet and Arrow files (default: all)",
    )


def add_to(output: Options, own: Sequence[str]) -> None:
    """Add ``--to``: some formats, those of other packages, and the tars with metadata."""
    tars = ", ".join(TARS_WITH_METADATA)
    output.add_argument(
        "--to",
        required=True,
        metavar="FORMAT",
        choices=OutputFormats(own, TARS_WITH_METADATA),
        help=f"format, indexed in the same pass: %(choices)s; {tars}: tar, and the metadata beside it",
    )


def add_compression(output: Options) -> None:
    """Add ``--compress`` and ``--frame``."""
    output.add_argument(
        "--compress",
        metavar="zstd[:LEVEL]",
        help="compress the shards of jsonl or tar, so that any record can still be read alone, at a level from 1 to "
        "22 (default: 3)",
    )
    output.add_argument(
        "--frame",
        type=parse_size,
        metavar="BYTES",
        help="what is compressed as one piece and read for one record: larger is smaller files and slower random "
        "reads (default: 16K)",
    )


def add_conversion(parser: argparse.ArgumentParser) -> argparse._ArgumentGroup:
    """Add where any records are written, and as what; returns the group of options of the output."""
    output = parser.add_argument_group("output")
    output.add_argument(
        "--output", required=True, metavar="URL", help="folder to write below; for megatron prefix of the dataset"
    )
    add_to(output, CONVERTED)
    add_layout(output)
    add_compression(output)
    output.add_argument(
        "--fields",
        metavar="NAME=EXTENSION,...",
        help="fields of the cuts and the members they come from, for --to shar (recording=wav,label=cls)",
    )
    add_existing(output)
    add_dataset(output, "dtype of the tokens, for --to megatron (default: int32)")
    return output


def add_layout(output: Options) -> None:
    """Add how files of columns are written."""
    output.add_argument(
        "--schema",
        metavar="FILE",
        help="for --to parquet and arrow: a Parquet or Arrow file with this schema, or JSON as 'ledgerbeam schema' "
        "prints it (default: that of the sources if they are of columns and rows stay as they are, else inferred from "
        "some records)",
    )
    output.add_argument(
        "--row-group-bytes",
        type=parse_size,
        metavar="BYTES",
        help="for --to parquet and arrow: size of a row group in memory (default: 128M)",
    )
    output.add_argument(
        "--page-bytes",
        type=parse_size,
        metavar="BYTES",
        help="for --to parquet: size of a page in memory (default: 1M)",
    )


def add_on_error(parser: argparse.ArgumentParser, which: str, folder: str) -> None:
    """Add what becomes of records that cannot be used.

    Args:
        parser: Of the command.
        which: Says of a record that it cannot be used.
        folder: Where rejected records are put.
    """
    rejects = parser.add_argument_group("rejected records")
    rejects.add_argument(
        "--on-error",
        metavar="fail|reject[:LIMIT]",
        help=f"a record {which}: fail its task, or put it into {folder} and go on, up to a number of records or a "
        "share such as 0.1%% (default: fail)",
    )
    rejects.add_argument(
        "--only-rejected",
        nargs="?",
        const="*",
        metavar="REASON",
        help="do again only the tasks that rejected records for this reason, a shell pattern (default: for any); "
        "'ledger rejects' shows reasons",
    )


def add_audit(parser: Options) -> None:
    """Add the option of jobs that call a function of the user."""
    parser.add_argument(
        "--audit",
        metavar="SHARE|off",
        help="share of the finished tasks that are computed again in a fresh process, to see that results depend on "
        "their records only (default: 1%%, at least two tasks, as far as it takes at most 2%% of the workers' time)",
    )


def add_existing(output: Options) -> None:
    """Add ``--existing``."""
    output.add_argument(
        "--existing",
        choices=["replace", "keep"],
        help="what to do with shards of another ledger, or of none, below --output: remove them first, or leave them "
        "(default: refuse to write there)",
    )


def add_dataset(output: Options, dtype_help: str) -> None:
    """Add how a Megatron dataset is made."""
    output.add_argument("--dtype", metavar="NAME", help=dtype_help)
    output.add_argument(
        "--drop-parts",
        action="store_true",
        help="remove the parts of a Megatron dataset once they are merged; a change then makes them all anew",
    )


def add_shards(parser: argparse.ArgumentParser, sources: Options, output: Options) -> None:
    """Add what jobs share that read files and write shards."""
    output.add_argument(
        "--base",
        metavar="URL",
        help="folder that output names are relative to (default: the fixed part of the patterns; for --sources-from: "
        "none, names have whole paths)",
    )
    output.add_argument(
        "--pack", type=parse_size, metavar="BYTES", help="pack small sources into output shards of about this size"
    )
    sources.add_argument("--no-index", action="store_true", help="refuse sources without an index instead of indexing")
    add_columns(sources)
    add_index_place(sources)
    work = add_job(parser, task_bytes="16M", task_help="size of a task, the unit of restart inside a source")
    add_limit(work)


def add_limit(work: Options) -> None:
    """Add ``--limit-tasks``."""
    work.add_argument(
        "--limit-tasks",
        type=parse_count,
        metavar="N",
        help="stop once N tasks have been done or have failed; the same command continues with the others",
    )


def add_index_place(sources: Options) -> None:
    """Add where indexes lie, and what in a tar they are of."""
    sources.add_argument(
        "--index-root", metavar="URL", help="mirrored tree that holds the indexes (default: beside the sources)"
    )
    sources.add_argument(
        "--index-rule",
        choices=["scheme", "lhotse"],
        default=_default(sources, "scheme"),
        help="how the mirrored tree names sources: by scheme and path, or as lhotse does",
    )
    sources.add_argument(
        "--group",
        choices=["auto", "pairs", "key"],
        default=_default(sources, "auto"),
        help="how tar members make samples",
    )


def add_job(
    parser: argparse.ArgumentParser, *, task_bytes: str, task_help: str, one_job: bool = True
) -> argparse._ArgumentGroup:
    """Add what every job takes; returns the group of options of tasks and workers.

    Args:
        parser: Of the command.
        task_bytes: The default, for help.
        task_help: What a task is.
        one_job: Whether the command runs one job; one that runs several has no options that are of one.
    """
    work = parser.add_argument_group("tasks and workers")
    work.add_argument(
        "--task-bytes",
        type=parse_size,
        metavar="BYTES",
        help=f"{task_help} (default: {task_bytes})",
    )
    work.add_argument(
        "--workers",
        type=parse_count,
        metavar="N",
        help="local worker processes (default: all cores)",
    )
    if one_job:
        work.add_argument(
            "--profile",
            metavar="FILE",
            help="write where the time of the workers went, by function, for https://www.speedscope.app",
        )
    work.add_argument(
        "--dry-run", action="store_true", help="say what would be done and why; write nothing, not even a ledger"
    )
    ledger = parser.add_argument_group("ledger and restart")
    ledger.add_argument(
        "--ledger",
        metavar="URL",
        help="where progress is kept (default: below .ledgerbeam/, by command, sources and output)",
    )
    ledger.add_argument(
        "--on-job-change",
        choices=["refuse", "restart", "accept"],
        help="what to do with the ledger of a job that did something else",
    )
    ledger.add_argument(
        "--flush-interval",
        type=parse_seconds,
        metavar="SECONDS",
        help="longest time that a completion waits for its commit (default: 1)",
    )
    ledger.add_argument(
        "--only-failed",
        metavar="REASON",
        help="do only the sources with a failure of this reason, a shell pattern; 'ledger failures' shows reasons",
    )
    console = parser.add_argument_group("console")
    add_json(console, "print one JSON object at the end")
    console.add_argument("--quiet", action="store_true", default=False, help="no progress")
    console.add_argument(
        "--log-level",
        choices=LOG_LEVELS,
        help="show log messages of functions from this level on (default: warning)",
    )
    parser.set_defaults(behind_dashes="beam options")
    parser.epilog = "Beam options follow '--', for example: -- --runner=PrismRunner"
    return work
