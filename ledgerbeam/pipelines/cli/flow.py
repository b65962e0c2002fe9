"""``ledgerbeam run`` and ``ledgerbeam plan``: bring the outputs of a flow up to date, or show the pending work."""

from __future__ import annotations

import argparse

from ledgerbeam.pipelines.calls.call_spec import CallSpec
from ledgerbeam.pipelines.calls.options import FLOW_ARGUMENTS, ConsoleOptions, FlowOptions
from ledgerbeam.pipelines.cli.arguments import add_call

RUN = CallSpec("run", "bring all steps of a flow up to date", FlowOptions, FLOW_ARGUMENTS)
PLAN = CallSpec("plan", "show what a run of a flow would do, and why; write nothing", ConsoleOptions, FLOW_ARGUMENTS)


def add_plan(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``plan``."""
    add_call(parser, PLAN)
    parser.set_defaults(only_prints=True, dry_run=True)


def plan(args: argparse.Namespace, _: list[str]) -> int:
    """Plan a flow. Returns 0."""
    from ledgerbeam.pipelines.console.reporter import print_json
    from ledgerbeam.pipelines.flows.flow import plan_flow

    found = plan_flow(args.flow, *getattr(args, "steps", ()))
    if args.json:
        print_json(found.as_json())
    else:
        print("\n".join(found.lines()))
    return 0


def add_run(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``run``."""
    add_call(parser, RUN)


def run(args: argparse.Namespace, beam_args: list[str]) -> int:
    """Run a flow.

    Returns:
        0; 3 if some tasks failed or a step is incomplete; 130 if the run was interrupted; otherwise the status of the
        first error.

    Raises:
        LedgerbeamError: A step is invalid. No step was started.
    """
    import sys

    from ledgerbeam.pipelines.calls.result import Result
    from ledgerbeam.pipelines.cli.call import INTERRUPTED
    from ledgerbeam.pipelines.cli.summary import NOT_ALL, exit_status, summary_lines
    from ledgerbeam.pipelines.console.reporter import Reporter, print_json
    from ledgerbeam.pipelines.console.run_console import RunConsole
    from ledgerbeam.pipelines.flows.flow import Flow
    from ledgerbeam.pipelines.flows.run import FlowInterrupt, run_steps, steps_line
    from ledgerbeam.pipelines.flows.step import FlowRunOptions

    def ended(told: RunConsole, result: Result) -> None:
        for line in summary_lines(result, sys.argv[1:]):
            told.say(line)

    console = Reporter(as_json=args.json, quiet=args.quiet, command=sys.argv[1:])
    given = {name: getattr(args, name) for name in RUN.rows if hasattr(args, name)}
    how = FlowRunOptions(**{**given, "options": tuple(beam_args)})
    try:
        flow = Flow.from_file(args.flow)
        made = run_steps(flow.title, flow.prepared(getattr(args, "steps", ()), how), how, console, ended)
    except FlowInterrupt as interrupt:
        if args.json:
            print_json(interrupt.run.as_json())
        return INTERRUPTED
    if args.json:
        print_json(made.as_json())
    else:
        for line in steps_line(made):
            console.say(line)
    for error in made.errors.values():  # the console has shown each
        if args.debug:
            raise error
        return error.exit_status
    return NOT_ALL if made.left else max(map(exit_status, made.steps.values()), default=0)
