"""``ledgerbeam ledger ...``: table of the actions, which show or change a ledger during or after its job."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Callable
from dataclasses import dataclass

from ledgerbeam.pipelines.calls.options import StoreOptions
from ledgerbeam.pipelines.calls.values import parse_count, parse_seconds
from ledgerbeam.pipelines.cli.arguments import Command, Parser, add_base_options, add_json, add_options, set_usage

Arguments = Callable[[argparse.ArgumentParser], None]


@dataclass(frozen=True)
class _Action:
    """An action on a ledger.

    Attributes:
        text: Help text.
        does: Module and function of the action. The function takes the open ledger and the arguments, and returns the
            exit status. The module is imported on use, because most actions need few dependencies.
        add: Adds the options of the action.
        changes: Whether the action changes the ledger.
        only_prints: Whether the action writes nothing and its exit status has no meaning of its own.
    """

    text: str
    does: str
    add: Arguments = lambda _: None
    changes: bool = False
    only_prints: bool = True


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the actions with their options."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True, parser_class=Parser)
    for name, action in _ACTIONS.items():
        text = f"{action.text[0].upper()}{action.text[1:]}."
        added = actions.add_parser(name, help=action.text, description=text, allow_abbrev=False)
        added.set_defaults(only_prints=action.only_prints)
        add_base_options(added)
        added.add_argument("url", metavar="URL", help="the ledger")
        add_json(added, "print JSON")
        add_options(added, StoreOptions)
        action.add(added)
        set_usage(added)


def _run(args: argparse.Namespace, _: list[str]) -> int:
    """Run one action on a ledger. Returns its exit status."""
    from ledgerbeam.ledger.opening import open_store

    action = _ACTIONS[args.action]
    store = open_store(args.url, args.storage_options, create=False, read_only=not action.changes)
    module, _colon, name = action.does.partition(":")
    status: int = getattr(importlib.import_module(f"{__name__}.{module}"), name)(store, args)
    return status


def _status(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--check-sources",
        action="store_true",
        help="also check every source for changes since the listing: one request per source",
    )
    parser.add_argument("--by-host", action="store_true", help="print the state and the work of each host and run")


def _watch(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--interval", type=parse_seconds, default=5.0, metavar="SECONDS", help="time between two updates (default: 5)"
    )
    parser.add_argument("--once", action="store_true", help="print once, then exit")


def _audit(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--share", default="1%", metavar="SHARE", help="share of the finished tasks, at least two tasks (default: 1%%)"
    )


def _rejects(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--reason", metavar="PATTERN", help="show only matching reasons, a shell pattern")
    parser.add_argument("--source", metavar="PATTERN", help="show only matching source URLs, a shell pattern")
    parser.add_argument(
        "--limit", type=parse_count, default=5, metavar="N", help="number of examples per reason (default: 5)"
    )


def _verify(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--sizes-only", action="store_true", help="check only existence and size; do not read contents")


def _export(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--output", required=True, metavar="URL", help="file to write, or the folder of all tables")
    parser.add_argument("--format", choices=["jsonl", "parquet"], default="jsonl", help="default: jsonl")
    parser.add_argument(
        "--table",
        choices=["sources", "counts", "outputs", "failures", "runs", "history", "durations"],
        help="table to write (default: all tables, one file for each below --output)",
    )


def _stats(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--name", metavar="NAME", help="show only this statistic")


def _metrics(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--prometheus", action="store_true", help="print the Prometheus text format")


def _report(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--output", required=True, metavar="URL", help="file to write, for example report.html")


def _forget(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("patterns", metavar="PATTERN", nargs="+", help="source URLs, with *, ? and [...]")
    parser.add_argument("--failures-only", action="store_true", help="forget only failures and quarantine, not results")


_ACTIONS = {
    "status": _Action("show progress, rates and runs of the job", "status:status", _status),
    "watch": _Action("show all hosts repeatedly until the job is complete", "watch:watch", _watch),
    "failures": _Action("show failed tasks by reason, with the commands to retry them", "rows:failures"),
    "rejects": _Action("show rejected records by reason", "rows:rejects", _rejects),
    "outputs": _Action("list the outputs of the job in order", "rows:outputs"),
    "stats": _Action(
        "show the statistics that the function recorded with ledgerbeam.stats, over all recorded tasks",
        "rows:stats",
        _stats,
    ),
    "metrics": _Action("print metrics of the job for a monitoring system", "rows:metrics", _metrics),
    "verify": _Action(
        "check that every output has its recorded size and checksum (for indexes: 'index verify')",
        "checks:verify",
        _verify,
        only_prints=False,
    ),
    "audit": _Action(
        "repeat a share of the finished tasks in a fresh process and compare the results",
        "checks:audit",
        _audit,
        changes=True,
        only_prints=False,
    ),
    "export": _Action("write the tables of the ledger to files", "write:export", _export, only_prints=False),
    "report": _Action("write an HTML report of the job", "write:report", _report, only_prints=False),
    "compact": _Action(
        "replace the many objects of a remote ledger by one snapshot", "write:compact", changes=True, only_prints=False
    ),
    "forget": _Action("forget sources, to repeat them", "write:forget", _forget, changes=True, only_prints=False),
}

COMMANDS = {"ledger": Command("show, check or change a ledger", _add_arguments, _run)}
