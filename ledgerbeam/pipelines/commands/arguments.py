"""The command line's arguments: one parser, its groups shared by the commands."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable
from typing import Any, NoReturn

from ledgerbeam import __version__
from ledgerbeam.errors import UsageError
from ledgerbeam.io.formats.registry import entry_point_names

__all__ = ["build_parser", "parse_count", "parse_options", "parse_part", "parse_seconds", "parse_size"]

_OF_TAR = ["webdataset", "energon", "lit"]
_TO_HELP = f"format to write; indexed in the same pass; {', '.join(_OF_TAR)}: tar, and the metadata beside it"


class _Parser(argparse.ArgumentParser):
    """Raises what argparse would exit with, so that one place prints errors and chooses the exit status."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}; see: {self.prog} --help")


def _cores() -> int:
    return len(os.sched_getaffinity(0))


def build_parser() -> argparse.ArgumentParser:
    """Returns the parser of the whole command line. Parsing raises `UsageError` instead of exiting."""
    parser = _Parser(
        prog="ledgerbeam",
        description="Index, process and restart: batch jobs over manifests and shards that lose nothing when they die.",
        epilog="Beam options follow '--', for example: ledgerbeam map ... -- --runner=PrismRunner",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"ledgerbeam {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True, parser_class=_Parser)
    _add_index(commands)
    _add_map(commands)
    _add_convert(commands)
    _add_tokenize(commands)
    _add_materialize(commands)
    _add_merge(commands)
    _add_publish(commands)
    _add_verify(commands)
    _add_show(commands)
    _add_ledger(commands)
    return parser


def _command(commands: Any, name: str, text: str) -> argparse.ArgumentParser:
    command: argparse.ArgumentParser = commands.add_parser(
        name, help=text, description=text[0].upper() + text[1:] + ".", allow_abbrev=False
    )
    command.add_argument("--debug", action="store_true", help="show the traceback of an error")
    return command


def _add_index(commands: Any) -> None:
    index = _command(commands, "index", "write the index of every source, restartable")
    _add_sources(index)
    _add_job(index, task_bytes="256M", task_help="size of the byte ranges that a large JSONL file is scanned in")
    _add_index_place(index)
    index.add_argument("--force", action="store_true", help="index again what the ledger holds as indexed")


def _add_map(commands: Any) -> None:
    mapper = _command(commands, "map", "apply a function to every record, restartable")
    mapper.add_argument("function", metavar="module:function", help="takes one record; returns one, None or a list")
    _add_sources(mapper)
    _add_read_as(mapper)
    mapper.add_argument("--output", required=True, metavar="URL", help="folder to write below")
    mapper.add_argument("--to", required=True, choices=["jsonl", "tar", *_OF_TAR, *entry_point_names()], help=_TO_HELP)
    _add_existing(mapper)
    _add_shards(mapper)
    mapper.add_argument(
        "--nan",
        choices=["refuse", "null"],
        default="refuse",
        help="NaN and infinities in JSONL: fail the task, or write null and count them (default: refuse)",
    )
    mapper.add_argument(
        "--no-purity-check",
        action="store_true",
        help="do not map the first records twice to see that the function is deterministic",
    )


def _add_convert(commands: Any) -> None:
    convert = _command(commands, "convert", "write every record in another format, restartable")
    _add_sources(convert)
    _add_read_as(convert)
    _add_conversion(convert)
    _add_dataset(convert, "dtype of the tokens, for --to megatron (default: int32)")
    _add_shards(convert)


def _add_read_as(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--from",
        dest="read_as",
        choices=["shar"],
        help="PATTERNs are folders of Shar datasets; a record is a sample: the cut as json, its fields as members",
    )


def _add_conversion(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--output", required=True, metavar="URL", help="folder to write below; for megatron prefix of the dataset"
    )
    command.add_argument(
        "--to",
        required=True,
        choices=["jsonl", "tar", "shar", "megatron", *_OF_TAR, *entry_point_names()],
        help=_TO_HELP,
    )
    command.add_argument(
        "--fields",
        metavar="NAME=EXTENSION,...",
        help="fields of the cuts and the members they come from, for --to shar (recording=wav,label=cls)",
    )
    _add_existing(command)


def _add_tokenize(commands: Any) -> None:
    tokenize = _command(commands, "tokenize", "make a Megatron dataset of the texts in JSONL, restartable")
    _add_sources(tokenize)
    tokenize.add_argument("--output", required=True, metavar="PREFIX", help="prefix of the dataset's two files")
    _add_existing(tokenize)
    tokenize.add_argument(
        "--tokenizer", required=True, metavar="FILE", help="a tokenizer.json of Hugging Face tokenizers, or: bytes"
    )
    tokenize.add_argument(
        "--key",
        dest="keys",
        action="append",
        metavar="NAME",
        help="name of the text in a record, a.b for a nested one (default: text); several make a dataset each",
    )
    tokenize.add_argument(
        "--append-eod",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="end each document with a token",
    )
    tokenize.add_argument("--eod", metavar="TOKEN", help="name of that token (default: the first usual one there is)")
    tokenize.add_argument(
        "--split-sentences",
        metavar="module:function",
        help="makes a list of texts of one; each is a sequence of the document",
    )
    _add_dataset(tokenize, "dtype of the tokens (default: uint16 for a vocabulary below 65,500, else int32)")
    _add_shards(tokenize)


def _add_materialize(commands: Any) -> None:
    materialize = _command(commands, "materialize", "write the items of an iterator graph in its order, restartable")
    materialize.add_argument("graph", metavar="module:function", help="returns the graph; or module:object that is one")
    _add_conversion(materialize)
    materialize.add_argument(
        "--epochs", type=parse_count, default=1, metavar="N", help="how many passes, each in its own order (default: 1)"
    )
    materialize.add_argument(
        "--task-records",
        type=parse_count,
        metavar="N",
        help="places of a task, and so the most items of a shard (default: as --task-bytes has it)",
    )
    _add_storage(materialize)
    _add_dataset(materialize, "dtype of the tokens, for --to megatron (default: int32)")
    _add_job(
        materialize,
        task_bytes="16M",
        task_help="size of a task by the mean size of the records that the graph reads",
    )


def _add_merge(commands: Any) -> None:
    merge = _command(commands, "merge", "join Megatron datasets in the order given")
    merge.add_argument(
        "patterns", metavar="PREFIX", nargs="*", help="prefixes, with *, ? and {a,b}; what one matches is sorted"
    )
    merge.add_argument("--output", required=True, metavar="PREFIX", help="prefix of the result")
    _add_storage(merge)
    merge.add_argument("--json", action="store_true", help="print one JSON object")


def _add_publish(commands: Any) -> None:
    publish = _command(commands, "publish", "make a dataset of what a complete job has written")
    publish.add_argument("url", metavar="LEDGER", help="the job's ledger")
    publish.add_argument(
        "--as",
        dest="format",
        required=True,
        choices=["energon", "idxpack", "lit", "megatron", "shar", "wids"],
        help="whose index files and metadata to write",
    )
    publish.add_argument("--output", metavar="URL", help="where the file of idxpack or shar goes, or megatron's prefix")
    publish.add_argument("--name", metavar="NAME", help="of the dataset (default: the last part of the job's output)")
    publish.add_argument(
        "--part",
        dest="parts",
        action="append",
        type=parse_part,
        metavar="NAME=PATTERN",
        help="a part of energon or lit and the shards in it, a shell pattern; the first that matches counts "
        "(default: train=*)",
    )
    _add_storage(publish)
    publish.add_argument("--json", action="store_true", help="print one JSON object")


def _add_verify(commands: Any) -> None:
    verify = _command(commands, "verify", "check that indexes fit their sources")
    _add_sources(verify)
    _add_index_place(verify)
    verify.add_argument("--deep", action="store_true", help="scan the sources again and decode every record")
    verify.add_argument("--json", action="store_true", help="print one JSON object")


def _add_show(commands: Any) -> None:
    show = _command(commands, "show", "print what a source holds, or some of its records")
    show.add_argument("source", metavar="SOURCE")
    show.add_argument(
        "records", metavar="N", nargs="*", type=int, help="record numbers; negative ones count from the end"
    )
    _add_storage(show)
    _add_index_place(show)
    show.add_argument("--json", action="store_true", help="print JSON")


def _add_ledger(commands: Any) -> None:
    ledger = _command(commands, "ledger", "look at a ledger, or make it forget")
    actions = ledger.add_subparsers(dest="action", metavar="ACTION", required=True, parser_class=_Parser)
    status = _action(actions, "status", "how far the job is, how fast it goes, and what its runs did")
    status.add_argument(
        "--check-sources",
        action="store_true",
        help="also ask for every source whether it has changed since it was listed: one request each",
    )
    _action(actions, "failures", "the tasks that failed, by reason, with the commands that try them again")
    _action(actions, "outputs", "what the job has written, in order")
    verify = _action(actions, "verify", "check that every output exists with its recorded size and checksum")
    verify.add_argument("--sizes-only", action="store_true", help="read nothing: check that outputs exist, and sizes")
    export = _action(actions, "export", "write the tables of the ledger to files")
    export.add_argument("--output", required=True, metavar="URL", help="file to write, or the folder of all tables")
    export.add_argument("--format", choices=["jsonl", "parquet"], default="jsonl", help="default: jsonl")
    export.add_argument(
        "--table",
        choices=["sources", "outputs", "failures", "runs", "history", "durations"],
        help="what to write (default: every table, each to a file of its own below --output)",
    )
    report = _action(actions, "report", "write one HTML page that shows how the job went")
    report.add_argument("--output", required=True, metavar="URL", help="file to write, for example report.html")
    _action(actions, "compact", "put one snapshot in the place of the many objects of a remote ledger")
    forget = _action(actions, "forget", "make the job do sources again")
    forget.add_argument("patterns", metavar="PATTERN", nargs="+", help="source URLs, with *, ? and [...]")
    forget.add_argument("--failures-only", action="store_true", help="forget only failures and quarantine")


def _action(actions: Any, name: str, text: str) -> argparse.ArgumentParser:
    action = _command(actions, name, text)
    action.add_argument("url", metavar="URL", help="the ledger")
    action.add_argument("--json", action="store_true", help="print JSON")
    _add_storage(action)
    return action


def _add_storage(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--storage-options", type=parse_options, default={}, metavar="JSON", help="passed to fsspec untouched"
    )


def _add_sources(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "patterns",
        metavar="PATTERN",
        nargs="*",
        help="source URLs, with *, ?, [...], ** and {a,b} or {000..127} braces",
    )
    parser.add_argument(
        "--sources-from", metavar="FILE", help="a list of source URLs, one a line, in place of patterns"
    )
    _add_storage(parser)


def _add_existing(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--existing",
        choices=["replace", "keep"],
        help="what to do with shards of another ledger, or of none, below --output: remove them first, or leave them "
        "(default: refuse to write there)",
    )


def _add_dataset(parser: argparse.ArgumentParser, dtype_help: str) -> None:
    parser.add_argument("--dtype", metavar="NAME", help=dtype_help)
    parser.add_argument(
        "--drop-parts",
        action="store_true",
        help="remove the parts of a Megatron dataset once they are merged; a change then makes them all anew",
    )


def _add_shards(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--base",
        metavar="URL",
        help="folder that output names are relative to (default: the fixed "
        "part of the patterns; for --sources-from: none, names hold whole paths)",
    )
    parser.add_argument(
        "--pack",
        type=parse_size,
        metavar="BYTES",
        help="pack small sources into output shards of about this size",
    )
    parser.add_argument("--no-index", action="store_true", help="refuse sources without an index instead of indexing")
    _add_job(parser, task_bytes="16M", task_help="size of a task, the unit of restart inside a source")
    _add_index_place(parser)


def _add_index_place(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--index-root",
        metavar="URL",
        help="mirrored tree that holds the indexes (default: beside the sources)",
    )
    parser.add_argument(
        "--index-rule",
        choices=["scheme", "lhotse"],
        default="scheme",
        help="how the mirrored tree names sources: with the scheme kept apart, or as lhotse does",
    )
    parser.add_argument(
        "--group", choices=["auto", "pairs", "key"], default="auto", help="how tar members make samples"
    )


def _add_job(parser: argparse.ArgumentParser, *, task_bytes: str, task_help: str) -> None:
    size: Callable[[str], int] = parse_size
    parser.add_argument(
        "--ledger",
        metavar="URL",
        help="where progress is kept (default: below .ledgerbeam/, by command, sources and output)",
    )
    parser.add_argument(
        "--on-job-change",
        choices=["refuse", "restart", "accept"],
        default="refuse",
        help="what to do with the ledger of a job that did something else",
    )
    parser.add_argument(
        "--workers",
        type=parse_count,
        default=_cores(),
        metavar="N",
        help="local worker processes (default: all cores)",
    )
    parser.add_argument(
        "--task-bytes",
        type=size,
        default=task_bytes,
        metavar="BYTES",
        help=f"{task_help} (default: {task_bytes})",
    )
    parser.add_argument(
        "--flush-interval",
        type=parse_seconds,
        default=1.0,
        metavar="SECONDS",
        help="longest time that a completion waits for its commit (default: 1)",
    )
    parser.add_argument(
        "--only-failed",
        metavar="REASON",
        help="do only the sources with a failure of this reason, a shell pattern; 'ledger failures' shows reasons",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object at the end")
    parser.add_argument("--quiet", action="store_true", help="no progress")


_UNITS = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}


def parse_size(text: str) -> int:
    """Reads a number of bytes such as ``1000000``, ``64K``, ``16MiB``; units are powers of 1024."""
    lowered = text.strip().lower().removesuffix("b").removesuffix("i")
    digits = lowered.rstrip("kmgt")
    unit = lowered[len(digits) :]
    try:
        size = int(float(digits) * _UNITS[unit])
    except (ValueError, KeyError, OverflowError):
        raise argparse.ArgumentTypeError(f"expected a size such as 16M, found {text!r}") from None
    if size < 1:
        raise argparse.ArgumentTypeError(f"expected at least 1 byte, found {text!r}")
    return size


def parse_count(text: str) -> int:
    """Reads a whole number from 1."""
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number from 1, found {text!r}")
    return int(text)


def parse_seconds(text: str) -> float:
    """Reads seconds from 0.01 to 3,600."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0.01 <= value <= 3600:
        raise argparse.ArgumentTypeError(f"expected seconds from 0.01 to 3600, found {text!r}")
    return value


def parse_options(text: str) -> dict[str, Any]:
    """Reads a JSON object."""
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError("expected a JSON object, found something else, not shown as it may be secret")
    return value


def parse_part(text: str) -> tuple[str, str]:
    """Reads ``NAME=PATTERN`` as a pair."""
    name, _, pattern = text.partition("=")
    if not name or not pattern:
        raise argparse.ArgumentTypeError(f"expected NAME=PATTERN such as 'val=b*', found {text!r}")
    return name, pattern
