"""Commands that run a call: pass the arguments to the call, print its result, and return an exit status."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ledgerbeam.pipelines.calls.call import call_of, spec_of
from ledgerbeam.pipelines.calls.result import JobInterrupt, Result
from ledgerbeam.pipelines.cli.summary import (
    dry_run_lines,
    exit_status,
    merge_lines,
    publish_lines,
    sample_lines,
    summary_lines,
    verify_lines,
)
from ledgerbeam.pipelines.console.reporter import Reporter, print_json

INTERRUPTED = 130

_LINES: dict[str, Callable[[Result], Iterator[str]]] = {
    "merge": merge_lines,
    "publish": publish_lines,
    "verify": verify_lines,
}
"""Functions that yield the result lines of calls without a job."""


class _CommandLine(Reporter):
    """Prints the result of a run before the warnings about it."""

    def ended(self, result: Result) -> None:
        if self.as_json:
            print_json(result.summary)
        else:
            for line in summary_lines(result, sys.argv[1:]):
                self.say(line)


def run_call(name: str, args: argparse.Namespace, beam_args: Sequence[str]) -> int:
    """Run the call of a command, and print its result.

    Args:
        name: Name of the call.
        args: Arguments of the command.
        beam_args: Beam options of the user.

    Returns:
        0, also of a dry run; 3 if tasks failed or outputs are out of date; 130 if the run was interrupted; 1 if
        ``verify`` finds an index that does not match its source.
    """
    if name in _LINES:
        result = _called(name, args, beam_args, Reporter(as_json=args.json))
        _print(result, _LINES[name](result), args, print)
        return 1 if name == "verify" and not result.complete else 0
    console = _CommandLine(as_json=args.json, quiet=args.quiet, command=sys.argv[1:])
    try:
        result = _called(name, args, beam_args, console)
    except JobInterrupt:
        return INTERRUPTED
    if getattr(args, "dry_run", False):
        _print(result, dry_run_lines(result.summary), args, console.say)
        return 0
    if hasattr(args, "sample"):
        _print(result, sample_lines(result.summary), args, console.say)
        return 0
    return exit_status(result)


def _called(name: str, args: argparse.Namespace, beam_args: Sequence[str], console: Reporter) -> Result:
    """Run the call of a command with the given arguments. The call has defaults for all others."""
    spec = spec_of(name)
    given = {**vars(args), "options": list(beam_args), "progress": console}
    positional: list[Any] = []
    for one in spec.arguments:
        positional += given.get(one.name, ()) if one.several else [given[one.name]]
    return call_of(name)(*positional, **{option: given[option] for option in spec.rows if option in given})


def _print(result: Result, lines: Iterator[str], args: argparse.Namespace, say: Callable[[str], None]) -> None:
    if args.json:
        print_json(result.summary)
    else:
        for line in lines:
            say(line)
