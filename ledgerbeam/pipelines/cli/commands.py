"""Commands without a call: ``run`` and ``plan`` of flows, ``show`` and ``schema``."""

from __future__ import annotations

import argparse
import json
import os
import sys
from dataclasses import replace
from functools import partial

from ledgerbeam._base.interrupts import INTERRUPTED
from ledgerbeam.errors import UsageError
from ledgerbeam.pipelines.calls.call_spec import CallSpec
from ledgerbeam.pipelines.calls.options import (
    FLOW_ARGUMENTS,
    ColumnFolderOptions,
    ColumnOptions,
    ConsoleOptions,
    FlowOptions,
    IndexOptions,
    StoreOptions,
)
from ledgerbeam.pipelines.cli.parser import Command, add_call, add_json, add_options

_RUN = CallSpec("run", "bring all steps of a flow up to date", FlowOptions, FLOW_ARGUMENTS)
_PLAN = CallSpec("plan", "show what a run of a flow would do, and why; write nothing", ConsoleOptions, FLOW_ARGUMENTS)


def _add_plan(parser: argparse.ArgumentParser) -> None:
    add_call(parser, _PLAN)
    parser.set_defaults(only_prints=True, dry_run=True)


def _plan(args: argparse.Namespace, _: list[str]) -> int:
    from ledgerbeam.pipelines.console.reporter import print_json
    from ledgerbeam.pipelines.flows.flow import plan_flow

    found = plan_flow(args.flow, *getattr(args, "steps", ()))
    if args.json:
        print_json(found.as_json())
    else:
        print("\n".join(found.lines()))
    return 0


def _run(args: argparse.Namespace, beam_args: list[str]) -> int:
    """Run a flow. Return 0; 3 if tasks failed or a step is incomplete; 130 after Ctrl-C; or the status of an error."""
    from ledgerbeam.pipelines.calls.result import Result
    from ledgerbeam.pipelines.cli.call import NOT_ALL, exit_status, summary_lines
    from ledgerbeam.pipelines.console.reporter import Reporter, RunConsole, print_json
    from ledgerbeam.pipelines.flows.flow import Flow
    from ledgerbeam.pipelines.flows.run import FlowInterrupt, run_steps, steps_line
    from ledgerbeam.pipelines.flows.step import FlowRunOptions

    def ended(told: RunConsole, result: Result) -> None:
        for line in summary_lines(result, sys.argv[1:]):
            told.say(line)

    console = Reporter(as_json=args.json, quiet=args.quiet, command=sys.argv[1:])
    given = {name: getattr(args, name) for name in _RUN.rows if hasattr(args, name)}
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
        console.say(steps_line(made))
    for error in made.errors.values():  # the console has shown each
        if args.debug:
            raise error
        return error.exit_status
    return NOT_ALL if made.left else max(map(exit_status, made.steps.values()), default=0)


def _add_show(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(only_prints=True)
    parser.add_argument("source", metavar="SOURCE", help="one source URL")
    text = "record numbers; negative numbers count from the end"
    # Without a default, argparse requires a value if other arguments are missing.
    parser.add_argument("records", metavar="N", nargs="*", type=int, default=None, help=text)
    for options in (StoreOptions, ColumnOptions, IndexOptions, ColumnFolderOptions):
        add_options(parser, options)
    add_json(parser, "print JSON")


def _show(args: argparse.Namespace, _: list[str]) -> int:
    from ledgerbeam.io.index.file import IndexLocation
    from ledgerbeam.io.storage.urls import canonical_url
    from ledgerbeam.pipelines.report.sources import Shown, print_facts_of, print_records

    location = IndexLocation(root=args.index_root and canonical_url(args.index_root), rule=args.index_rule)
    shown = Shown(canonical_url(args.source), location, args.storage_options, args.group, args.columns)
    shown = replace(shown, beside=tuple(canonical_url(url).rstrip("/") for url in args.with_))
    if args.records:
        print_records(shown, args.records, as_json=args.json)
    else:
        print_facts_of(shown, as_json=args.json)
    return 0


def _add_schema(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(only_prints=True)
    text = "a Parquet or Arrow file, a schema in JSON, or the ledger of a job that writes Parquet or Arrow"
    parser.add_argument("url", metavar="URL", help=text)
    add_options(parser, StoreOptions)


def _schema(args: argparse.Namespace, _: list[str]) -> int:
    from ledgerbeam._base.redaction import printable
    from ledgerbeam.io.storage.urls import canonical_url, is_local
    from ledgerbeam.ledger.opening import open_store
    from ledgerbeam.pipelines.outputs.columns import is_schema_file, read_schema, recorded_schema

    url = canonical_url(args.url)
    if is_schema_file(url):
        schemas = read_schema(url, args.storage_options)
    elif is_local(url) and os.path.isfile(url):
        raise UsageError(
            f"{url}: expected a Parquet or Arrow file, a schema in JSON, or a ledger, found another file; to see the "
            "schema that a job would infer, use --dry-run, for example with ledgerbeam convert --to parquet"
        )
    else:
        job = open_store(url, args.storage_options, create=False, read_only=True).job()
        found = None if job is None else recorded_schema(job)
        if found is None:
            remedy = "use the ledger of a job with --to parquet or --to arrow"
            raise UsageError(f"ledger {url}: its job has no schema; {remedy}")
        schemas = found
    print(printable(json.dumps(schemas.as_json(), indent=2, ensure_ascii=False)))
    return 0


COMMANDS = {
    "plan": Command(_PLAN.summary, _add_plan, _plan),
    "run": Command(_RUN.summary, partial(add_call, spec=_RUN), _run),
    "show": Command("print facts about a source, or some of its records", _add_show, _show),
    "schema": Command("print a schema for --schema", _add_schema, _schema),
}
