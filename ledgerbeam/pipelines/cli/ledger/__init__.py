"""``ledgerbeam ledger ...``: table of the actions, which show or change a ledger during or after its job."""

from __future__ import annotations

import argparse
import importlib
import shlex
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from ledgerbeam._base.redaction import printable
from ledgerbeam.errors import LedgerNotFoundError, StorageError
from ledgerbeam.pipelines.calls.options import StoreOptions
from ledgerbeam.pipelines.calls.values import parse_count, parse_seconds
from ledgerbeam.pipelines.cli.parser import Command, Parser, add_json, add_options, add_parser, set_usage


@dataclass(frozen=True)
class _Action:
    """An action on a ledger.

    Its module has a function with the name of the action. This takes the open ledger and the arguments, and returns the
    exit status. The module is imported on use, because most actions need few dependencies.
    """

    text: str
    module: str
    arguments: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # parameters of `add_argument` by option
    changes: bool = False  # whether the action changes the ledger
    only_prints: bool = True  # whether it writes nothing and its exit status has no meaning of its own


def _flag(text: str) -> dict[str, Any]:
    return {"action": "store_true", "help": text}


def _value(metavar: str, text: str, **more: Any) -> dict[str, Any]:
    return {"metavar": metavar, "help": text, **more}


_ACTIONS = {
    "status": _Action(
        "show progress, rates and runs of the job",
        "status",
        {
            "--check-sources": _flag("also check every source for changes since the listing: one request per source"),
            "--by-host": _flag("print the state and the work of each host and run"),
        },
    ),
    "watch": _Action(
        "show all hosts repeatedly until the job is complete",
        "watch",
        {
            "--interval": _value("SECONDS", "time between two updates (default: 5)", type=parse_seconds, default=5.0),
            "--once": _flag("print once, then exit"),
        },
    ),
    "failures": _Action("show failed tasks by reason, with the commands to retry them", "rows"),
    "rejects": _Action(
        "show rejected records by reason",
        "rows",
        {
            "--reason": _value("PATTERN", "show only matching reasons, a shell pattern"),
            "--source": _value("PATTERN", "show only matching source URLs, a shell pattern"),
            "--limit": _value("N", "number of examples per reason (default: 5)", type=parse_count, default=5),
            "--dropped": _flag("show the dropped records of a job with --keep-dropped instead"),
        },
    ),
    "outputs": _Action("list the outputs of the job in order", "rows"),
    "stats": _Action(
        "show the statistics that the function recorded with ledgerbeam.stats, over all recorded tasks",
        "rows",
        {"--name": _value("NAME", "show only this statistic")},
    ),
    "answers": _Action(
        "show, export or forget the answers that ledgerbeam.remember keeps: for unfinished sources, or with --answers",
        "answers",
        {
            "--output": _value("FILE", "write them to a file, as JSON lines, or as Parquet if it ends with .parquet"),
            "--forget": _flag("delete all of them; the calls are made again"),
        },
        changes=True,
    ),
    "metrics": _Action(
        "print metrics of the job for a monitoring system",
        "rows",
        {"--prometheus": _flag("print the Prometheus text format")},
    ),
    "verify": _Action(
        "check that every output has its recorded size and checksum (for indexes: 'index verify')",
        "checks",
        {"--sizes-only": _flag("check only existence and size; do not read contents")},
        only_prints=False,
    ),
    "audit": _Action(
        "repeat a share of the finished tasks in a fresh process and compare the results",
        "checks",
        {"--share": _value("SHARE", "share of the finished tasks, at least two tasks (default: 1%%)", default="1%")},
        changes=True,
        only_prints=False,
    ),
    "export": _Action(
        "write the tables of the ledger to files",
        "write",
        {
            "--output": _value("URL", "file to write, or the folder of all tables", required=True),
            "--format": {"choices": ["jsonl", "parquet"], "default": "jsonl", "help": "default: jsonl"},
            "--table": {
                "choices": ["sources", "counts", "outputs", "failures", "runs", "history", "durations"],
                "help": "table to write (default: all tables, one file for each below --output)",
            },
        },
        only_prints=False,
    ),
    "report": _Action(
        "write an HTML report of the job",
        "write",
        {"--output": _value("URL", "file to write, for example report.html", required=True)},
        only_prints=False,
    ),
    "compact": _Action(
        "replace the many objects of a remote ledger by one snapshot", "write", changes=True, only_prints=False
    ),
    "forget": _Action(
        "forget sources, so that the next run processes them again",
        "write",
        {
            "patterns": _value("PATTERN", "source URLs, with *, ? and [...]", nargs="+"),
            "--failures-only": _flag("forget only failures and quarantine, not results"),
        },
        changes=True,
        only_prints=False,
    ),
}


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True, parser_class=Parser)
    for name, action in _ACTIONS.items():
        added = add_parser(actions, name, action.text)
        added.set_defaults(only_prints=action.only_prints)
        added.add_argument("url", metavar="URL", help="the ledger")
        add_json(added, "print JSON")
        add_options(added, StoreOptions)
        for flag, options in action.arguments.items():
            added.add_argument(flag, **options)
        set_usage(added)


def _run(args: argparse.Namespace, _: list[str]) -> int:
    from ledgerbeam.ledger.opening import open_store

    action = _ACTIONS[args.action]
    try:
        store = open_store(args.url, args.storage_options, create=False, read_only=not action.changes)
    except LedgerNotFoundError as error:
        from ledgerbeam.pipelines.outputs.owner import owners_of

        owners: list[str] = []
        with suppress(StorageError):  # then the folder does not help
            owners = owners_of(args.url, args.storage_options)
        if not owners:
            raise
        shown = printable(" or ".join(map(shlex.quote, owners)))
        raise LedgerNotFoundError(f"{args.url}: expected a ledger, found an output folder; give {shown}") from error
    return getattr(importlib.import_module(f"{__name__}.{action.module}"), args.action)(store, args)


COMMANDS = {"ledger": Command("show, check or change a ledger", _add_arguments, _run)}
