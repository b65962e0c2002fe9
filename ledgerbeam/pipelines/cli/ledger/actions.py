"""``ledgerbeam ledger ...``: look at a ledger while its job runs or after it, or make it forget."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Callable
from dataclasses import dataclass

from ledgerbeam.pipelines.calls.values import parse_count, parse_seconds
from ledgerbeam.pipelines.cli.arguments import (
    Parser,
    add_base_options,
    add_json,
    add_storage,
    set_usage,
)

SUMMARY = "look at a ledger, or make it forget"

Arguments = Callable[[argparse.ArgumentParser], None]


@dataclass(frozen=True)
class _Action:
    """Something that can be done with a ledger.

    Attributes:
        text: What, for help.
        does: Module and function, which takes the open ledger and the arguments and returns the exit status; imported
            on use, since most actions need little.
        add: Adds the options of its own.
        changes: Whether it changes the ledger.
        only_prints: Whether it writes nothing, and its status says nothing.
    """

    text: str
    does: str
    add: Arguments = lambda _: None
    changes: bool = False
    only_prints: bool = True


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the actions, each with its options."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True, parser_class=Parser)
    for name, action in _ACTIONS.items():
        text = f"{action.text[0].upper()}{action.text[1:]}."
        added = actions.add_parser(name, help=action.text, description=text, allow_abbrev=False)
        added.set_defaults(only_prints=action.only_prints)
        add_base_options(added)
        added.add_argument("url", metavar="URL", help="the ledger")
        add_json(added, "print JSON")
        add_storage(added)
        action.add(added)
        set_usage(added)


def run(args: argparse.Namespace, _: list[str]) -> int:
    """Run one action on a ledger. Returns its exit status."""
    from ledgerbeam.ledger.opening import open_store

    action = _ACTIONS[args.action]
    store = open_store(args.url, args.storage_options, create=False, read_only=not action.changes)
    module, _colon, name = action.does.partition(":")
    status: int = getattr(importlib.import_module(f"ledgerbeam.pipelines.cli.ledger.{module}"), name)(store, args)
    return status


def _status(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--check-sources",
        action="store_true",
        help="also ask for every source whether it has changed since it was listed: one request each",
    )
    parser.add_argument("--by-host", action="store_true", help="print what each host does and has done, run by run")


def _watch(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--interval",
        type=parse_seconds,
        default=5.0,
        metavar="SECONDS",
        help="time between two looks (default: 5)",
    )
    parser.add_argument("--once", action="store_true", help="look once")


def _audit(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--share",
        default="1%",
        metavar="SHARE",
        help="share of the finished tasks, at least two tasks (default: 1%%)",
    )


def _rejects(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--reason", metavar="PATTERN", help="only those of this reason, a shell pattern")
    parser.add_argument("--source", metavar="PATTERN", help="only those of these source URLs, a shell pattern")
    parser.add_argument(
        "--limit", type=parse_count, default=5, metavar="N", help="most examples of each reason (default: 5)"
    )


def _verify(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--sizes-only", action="store_true", help="read nothing: check that outputs exist, and sizes")


def _export(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--output", required=True, metavar="URL", help="file to write, or the folder of all tables")
    parser.add_argument("--format", choices=["jsonl", "parquet"], default="jsonl", help="default: jsonl")
    parser.add_argument(
        "--table",
        choices=["sources", "counts", "outputs", "failures", "runs", "history", "durations"],
        help="what to write (default: every table, each to a file of its own below --output)",
    )


def _stats(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--name", metavar="NAME", help="only this statistic")


def _metrics(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--prometheus", action="store_true", help="print the text format that Prometheus reads")


def _report(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--output", required=True, metavar="URL", help="file to write, for example report.html")


def _forget(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("patterns", metavar="PATTERN", nargs="+", help="source URLs, with *, ? and [...]")
    parser.add_argument("--failures-only", action="store_true", help="forget only failures and quarantine")


_ACTIONS = {
    "status": _Action("how far the job is, how fast it goes, and what its runs did", "status:status", _status),
    "watch": _Action("what every host does, again and again until the job is complete", "watch:watch", _watch),
    "failures": _Action("the tasks that failed, by reason, with the commands that try them again", "failures:failures"),
    "rejects": _Action("the records that were rejected, by reason", "rejects:rejects", _rejects),
    "outputs": _Action("what the job has written, in order", "outputs:outputs"),
    "stats": _Action(
        "what the function has counted and measured by ledgerbeam.stats, over all recorded tasks",
        "stats:stats",
        _stats,
    ),
    "metrics": _Action("how far the job is, as numbers that a monitor collects", "metrics:metrics", _metrics),
    "verify": _Action(
        "check that every output exists with its recorded size and checksum (of indexes: 'index verify')",
        "verify:verify",
        _verify,
        only_prints=False,
    ),
    "audit": _Action(
        "compute a share of the finished tasks again in a fresh process, and compare the results",
        "audit:audit",
        _audit,
        changes=True,
        only_prints=False,
    ),
    "export": _Action("write the tables of the ledger to files", "export:export", _export, only_prints=False),
    "report": _Action("write one HTML page that shows how the job went", "report:report", _report, only_prints=False),
    "compact": _Action(
        "put one snapshot in the place of the many objects of a remote ledger",
        "changes:compact",
        changes=True,
        only_prints=False,
    ),
    "forget": _Action("make the job do sources again", "changes:forget", _forget, changes=True, only_prints=False),
}
