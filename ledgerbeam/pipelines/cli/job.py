"""From the options of a command to its call in Python, and from the result to lines and an exit status."""

from __future__ import annotations

import argparse
import inspect
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from ledgerbeam.pipelines.calls.result import JobInterrupt, Result
from ledgerbeam.pipelines.cli.dry_run import dry_run_lines
from ledgerbeam.pipelines.cli.sample import sample_lines
from ledgerbeam.pipelines.cli.summary import exit_status, summary_lines
from ledgerbeam.pipelines.console.reporter import Reporter, print_json
from ledgerbeam.pipelines.console.run_console import RunConsole

INTERRUPTED = 130


class _CommandLine(Reporter):
    """Prints how a run ended as soon as that is known: before what is wrong with it."""

    def ended(self, result: Result) -> None:
        if self.as_json:
            print_json(result.summary)
        else:
            for line in summary_lines(result, sys.argv[1:]):
                self.say(line)


def call_with(
    call: Callable[..., Result],
    args: argparse.Namespace,
    beam_args: Sequence[str] = (),
    console: RunConsole | None = None,
) -> Result:
    """Call what a command does with the options that it was given; all others are as the signature has them.

    Args:
        call: Its parameters have the names of the options.
        args: Of the command.
        beam_args: Beam options of the user.
        console: Told of it; by default one that prints.
    """
    given = {**vars(args), "options": list(beam_args), "progress": console or Reporter(as_json=args.json)}
    positional: list[Any] = []
    named: dict[str, Any] = {}
    for name, parameter in inspect.signature(call).parameters.items():
        if name not in given:
            continue
        match parameter.kind:
            case parameter.VAR_POSITIONAL:
                positional += given[name]
            case parameter.POSITIONAL_OR_KEYWORD:
                positional.append(given[name])
            case _:
                named[name] = given[name]
    return call(*positional, **named)


def run_job_command(call: Callable[..., Result], args: argparse.Namespace, beam_args: Sequence[str]) -> int:
    """Run a job as its command asks, and print how it ended.

    Args:
        call: Runs it.
        args: Of the command.
        beam_args: Beam options of the user.

    Returns:
        0, also of a dry run, 3 if some tasks failed or outputs out of date were left, or 130 if it was interrupted.
    """
    console = _CommandLine(as_json=args.json, quiet=args.quiet, command=sys.argv[1:])
    try:
        result = call_with(call, args, beam_args, console)
    except JobInterrupt:
        return INTERRUPTED
    if getattr(args, "dry_run", False):
        _print(result, dry_run_lines, console)
        return 0
    if hasattr(args, "sample"):
        _print(result, sample_lines, console)
        return 0
    return exit_status(result)


def _print(result: Result, lines: Callable[[Mapping[str, Any]], Iterable[str]], console: Reporter) -> None:
    if console.as_json:
        print_json(result.summary)
    else:
        for line in lines(result.summary):
            console.say(line)
