"""Commands that run a call: pass the arguments to the call, print its result, and return an exit status."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from rich.filesize import decimal

from ledgerbeam._base.interrupts import INTERRUPTED
from ledgerbeam._base.redaction import HIDDEN, command_without_secrets, printable, without_secrets
from ledgerbeam.ledger.model.accounts import RecordCounts
from ledgerbeam.pipelines.calls.call import call_of, spec_of
from ledgerbeam.pipelines.calls.result import JobInterrupt, Result
from ledgerbeam.pipelines.console.reporter import Reporter, print_json
from ledgerbeam.pipelines.console.run_progress import count, duration
from ledgerbeam.pipelines.report.accounts import account_lines

DONE, NOT_ALL = 0, 3
SHOWN_CHARACTERS = 300
_WHY = {
    "new": "not in the ledger yet",
    "changed": "changed since they were processed",
    "failed": "with failed tasks",
    "open": "started or waiting",
    "complete": "skipped",
    "gone": "no longer listed; their outputs are kept",
}


class _CommandLine(Reporter):
    """Prints the result of a run, and then the warnings about this result."""

    def ended(self, result: Result) -> None:
        if self.as_json:
            print_json(result.summary)
        else:
            for line in summary_lines(result, sys.argv[1:]):
                self.say(line)


def run_call(name: str, args: argparse.Namespace, beam_args: Sequence[str]) -> int:
    """Run the call of a command, and print its result.

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
        values = given.get(one.name, ()) if one.several else [given[one.name]]
        positional += [[*values, *given[one.flag]]] if one.flag in given else values
    return call_of(name)(*positional, **{option: given[option] for option in spec.rows if option in given})


def _print(result: Result, lines: Iterator[str], args: argparse.Namespace, say: Callable[[str], None]) -> None:
    if args.json:
        print_json(result.summary)
    else:
        for line in lines:
            say(printable(without_secrets(line)))


def exit_status(result: Result) -> int:
    """Return the exit status after a run that was not interrupted."""
    return NOT_ALL if len(result.failures) or result.warnings else DONE


def summary_lines(result: Result, words: Sequence[str]) -> Iterator[str]:
    """Yield the result lines of a run; `words` are its command line."""
    if result.summary["submitted"]:
        yield f"submitted to the service: {result.command} -> {result.output or 'indexes'}"
    else:
        yield _interrupted(result, words) if result.interrupted else _finished(result)
    if nulled := result.summary.get("nulled"):
        yield f"{count(nulled, 'number')} that JSON does not have (NaN, infinities) written as null so far"
    records = RecordCounts(**result.summary["records"])
    if not records.is_plain:
        yield "\n".join(f"{name} so far: {line}" for name, line in account_lines(records))


def _interrupted(result: Result, words: Sequence[str]) -> str:
    sources, tasks = result.summary["sources"], result.summary["tasks"]
    recorded = _stages(result) or f"{count(tasks['done'], 'task')} and {count(sources['complete'], 'source')}"
    command = shlex.join(["ledgerbeam", *command_without_secrets(words)])
    hint = f"\nreplace {HIDDEN} with your own, or set it in the environment of the store's client"
    said = f"interrupted: {recorded} are recorded; to resume, run the same command again:\n  {command}"
    return said + hint if HIDDEN in command else said


def _stages(result: Result) -> str:
    """Return the number of done tasks of each started stage, in words; empty for a job of one stage."""
    return ", ".join(
        f"{name} ({'complete' if stage['complete'] else count(stage['tasks']['done'], 'task')})"
        for name, stage in result.summary.get("stages", {}).items()
    )


def _finished(result: Result) -> str:
    sources, tasks, done = (result.summary[name] for name in ("sources", "tasks", "done"))
    gone = count(result.summary["gone"], "known source") if result.summary["gone"] else ""
    skipped = f" ({result.summary['skipped']:,} skipped as complete before)"
    complete = f"{count(sources['complete'], 'source')} complete{skipped}"
    if not result.complete:
        complete = _stages(result) or complete
    return (
        f"{'finished' if tasks['failed'] else 'done'}: {complete}, {count(done['tasks'], 'task')} and "
        f"{count(done['written'], 'record')} in this run, {result.seconds:,.1f} s"
        f"{f'; {gone} no longer listed (see ledger status)' if gone else ''}"
        f"{f' -> {result.output}' if result.output else ''}"
    )


def _verify_lines(result: Result) -> Iterator[str]:
    checked, problems = count(result.sources, "source"), count(len(result.failures), "problem")
    yield f"{checked}, {count(result.records.read, 'record')}, {problems}"


def _merge_lines(result: Result) -> Iterator[str]:
    facts = result.summary
    held = f"{count(facts['documents'], 'document')}, {count(facts['sequences'], 'sequence')}, {facts['dtype']}"
    yield f"{count(facts['merged'], 'dataset')} merged -> {facts['output']}: {held}"


def _publish_lines(result: Result) -> Iterator[str]:
    facts = result.summary
    if "format" in facts:
        shards, records = count(facts["shards"], "shard"), count(facts["records"], "record")
        yield f"{shards} with {records} published as {facts['format']}:"
        yield from (f"  {url}" for url in facts["published"])
        yield from (f"key of {role}: {key}" for role, key in facts.get("keys", {}).items())
    if "to" not in facts:
        return
    if facts["commit"] is None:
        yield f"up to date: {facts['to']}, {count(facts['same'], 'file')}"
    else:
        verbs = ("added", "replaced", "removed")
        sent = ", ".join(f"{count(len(facts[verb]), 'file')} {verb}" for verb in verbs if facts[verb])
        said = sent or "its note renewed"
        yield f"published: {facts['to']}, {said}, {facts['same']:,} as before, commit {facts['commit']}"
    yield from (f"changed on the Hub, and kept: {name}" for name in facts["kept"])


def dry_run_lines(preview: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines of a preview, which is a JSON object."""
    yield f"ledger: {preview['ledger']} ({'new' if preview['new'] else 'exists'})"
    yield from (f"the job has changed: {line}" for line in preview["differences"])
    for state, why in _WHY.items():
        if number := preview["sources"][state]:
            yield f"{count(number, 'source')} {state} ({why}): {_examples(number, preview['examples'][state])}"
    removed = preview["removed"]
    if removed["count"]:
        shown = _examples(removed["count"], removed["examples"])
        yield f"{count(removed['count'], 'output')} out of date, removed at the end: {shown}"
    yield from (f"the run would be refused: {line}" for text in preview["refused"] for line in text.splitlines())
    if found := preview.get("selected"):
        yield (
            f"selected: {found['records']:,} of {count(found['of_records'], 'record')}, "
            f"{count(found['ranges'], 'range')}, about {decimal(found['bytes'])} of {decimal(found['of_bytes'])}"
        )
    yield f"about {count(preview['tasks'], 'task')} to do; nothing was written"
    as_it_is, *others = preview["costs"]
    if preview["tasks"]:
        known = "" if as_it_is["basis"] != "law" else ", without the time of a function"
        yield f"predicted: {cost_line(as_it_is)}{known}"
    yield from (f"  with {cost['change']}: {cost_line(cost)}" for cost in others)


def cost_line(cost: Mapping[str, Any]) -> str:
    """Return an estimated cost as a line; `cost` is a `Cost` as a JSON object."""
    written = "" if cost["output_bytes"] is None else f" ({decimal(cost['output_bytes'])})"
    parts = [
        f"about {duration(cost['seconds'])}",
        count(cost["tasks"], "task"),
        f"{decimal(cost['read_bytes'])} to read",
        count(cost["outputs"], "output") + written,
        *([count(cost["requests"], "request")] if cost["requests"] else []),
        f"{decimal(cost['ledger_bytes'])} of ledger",
        f"{decimal(cost['memory_bytes'])} of memory a worker",
    ]
    return ", ".join(parts)


def _examples(number: int, examples: list[str]) -> str:
    return ", ".join(examples) + (", ..." if number > len(examples) else "")


def sample_lines(summary: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines of the summary of a sample."""
    runs = summary["sample"]
    for run in runs:
        yield from _sample_lines(run)
    yield from (f"statistic {name}: {value}" for name, value in summary["statistics"].items())
    seconds = summary["seconds"]
    median = ""
    if seconds["median"] is not None:
        median = f"set up in {duration(seconds['set_up'])}, {1000 * seconds['median']:,.3g} ms a record (median), "
    shown = ", ".join(f"{number:,} {outcome}" for outcome, number in summary["records"].items())
    yield f"{count(len(runs), 'record')}: {shown or 'none'}; {median}nothing was written"


def _sample_lines(run: Mapping[str, Any]) -> list[str]:
    place = f"{run['source']}, record {run['record']}"
    took = f"{1000 * run['seconds']:,.3g} ms"
    if run["outcome"] == "unreadable":
        return [f"{place} cannot be read: {run['error']}"]
    traced = [f"  {line}" for trial in run.get("functions", ()) for line in _trial_lines(trial)]
    if run["outcome"] == "kept":
        return [f"{place} kept, {took}", *(traced or (f"  {line}" for line in _result_lines(run["results"])))]
    error = [f"  {run['error']}"] if run["error"] else []
    return [f"{place} {run['outcome']}, {took}: {run['reason']}", *traced, *error]


def _result_lines(results: Mapping[str, Sequence[Any]]) -> list[str]:
    return [f"{route and f'{route}: '}{_cut(one)}" for route, found in results.items() for one in found]


def _trial_lines(trial: Mapping[str, Any]) -> Iterator[str]:
    """Yield what one of several functions did to a record: a line for each of its results, each reason and an error."""
    said = _result_lines(trial["results"])
    for outcome in ("dropped", "rejected"):
        said += [f"{outcome}: {reason}{f' ({n:,})' if n > 1 else ''}" for reason, n in trial[outcome].items()]
    said += [f"error: {trial['error']}"] if trial["error"] else []
    yield from (f"{trial['function']}: {line}" for line in said)


def _cut(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}..."


# Functions that yield the result lines of calls without a job.
_LINES: dict[str, Callable[[Result], Iterator[str]]] = {
    "merge": _merge_lines,
    "publish": _publish_lines,
    "verify": _verify_lines,
}
