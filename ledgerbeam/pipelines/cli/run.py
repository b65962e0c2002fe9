"""``ledgerbeam run``: bring the outputs of a flow up to date."""

from __future__ import annotations

import argparse

from ledgerbeam.pipelines.calls.values import parse_count
from ledgerbeam.pipelines.cli.arguments import LOG_LEVELS, add_existing, add_json

SUMMARY = "bring all steps of a flow up to date"


def add_flow(parser: argparse.ArgumentParser) -> None:
    """Add the file of a flow, and names of its steps."""
    parser.add_argument("flow", metavar="FILE", help="a flow in TOML: jobs that read what earlier ones have written")
    parser.add_argument(
        "steps",
        metavar="STEP",
        nargs="*",
        default=None,  # else argparse asks for some where others are missing
        help="only these steps, and those that they read",
    )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    add_flow(parser)
    work = parser.add_argument_group("steps")
    work.add_argument(
        "--workers", type=parse_count, metavar="N", help="local worker processes (default: as the step says, all cores)"
    )
    work.add_argument(
        "--on-job-change",
        choices=["refuse", "restart", "accept"],
        default="restart",
        help="what becomes of what a step has done once its function or its options are others: all of it is done "
        "again (default), kept, or the step is refused",
    )
    add_existing(work)
    console = parser.add_argument_group("console")
    add_json(console, "print one JSON object at the end")
    console.add_argument("--quiet", action="store_true", help="no progress")
    console.add_argument(
        "--log-level", choices=LOG_LEVELS, help="show log messages of functions from this level on (default: warning)"
    )
    parser.set_defaults(behind_dashes="beam options")
    parser.epilog = "Beam options follow '--', for example: -- --runner=PrismRunner"


def run(args: argparse.Namespace, beam_args: list[str]) -> int:
    """Run a flow.

    Returns:
        0, 3 if some tasks failed or a step is left, 130 if it was interrupted; else the status of the first error.

    Raises:
        LedgerbeamError: A step cannot mean anything; nothing was done.
    """
    import sys

    from ledgerbeam.pipelines.calls.result import Result
    from ledgerbeam.pipelines.cli.job import INTERRUPTED
    from ledgerbeam.pipelines.cli.summary import NOT_ALL, exit_status, summary_lines
    from ledgerbeam.pipelines.console.reporter import Reporter, print_json
    from ledgerbeam.pipelines.console.run_console import RunConsole
    from ledgerbeam.pipelines.flows.flow import Flow, FlowRunOptions
    from ledgerbeam.pipelines.flows.run import FlowInterrupt, run_flow, steps_line

    def ended(told: RunConsole, result: Result) -> None:
        for line in summary_lines(result, sys.argv[1:]):
            told.say(line)

    console = Reporter(as_json=args.json, quiet=args.quiet, command=sys.argv[1:])
    how = FlowRunOptions(
        on_job_change=args.on_job_change,
        existing=args.existing,
        workers=args.workers,
        log_level=args.log_level,
        options=tuple(beam_args),
        debug=args.debug,
    )
    try:
        made = run_flow(Flow.from_file(args.flow), args.steps, how, console, ended)
    except FlowInterrupt as interrupt:
        if args.json:
            print_json(interrupt.run.as_json())
        return INTERRUPTED
    if args.json:
        print_json(made.as_json())
    else:
        for line in steps_line(made):
            console.say(line)
    for error in made.errors.values():  # which were told of as they came
        if args.debug:
            raise error
        return error.exit_status
    return NOT_ALL if made.left else max(map(exit_status, made.steps.values()), default=0)
