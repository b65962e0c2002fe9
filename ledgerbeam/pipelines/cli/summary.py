"""How a run of a job ended: what the command line prints of it, and the exit status."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence

from ledgerbeam._base.redaction import HIDDEN, command_without_secrets
from ledgerbeam.ledger.model.accounts import RecordCounts
from ledgerbeam.pipelines.calls.result import Result
from ledgerbeam.pipelines.console.run_progress import count
from ledgerbeam.pipelines.report.accounts import account_lines

DONE, NOT_ALL = 0, 3


def exit_status(result: Result) -> int:
    """Return what the command line exits with after a run that was not interrupted."""
    return NOT_ALL if len(result.failures) or result.warnings else DONE


def summary_lines(result: Result, words: Sequence[str]) -> Iterator[str]:
    """Yield the lines that tell how a run ended.

    Args:
        result: Of the run.
        words: The command line that asked for it.
    """
    if result.summary["submitted"]:
        yield f"staged, for the service to run: {result.command} -> {result.output or 'indexes'}"
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
    hint = f"\nput your own in place of {HIDDEN}, or in the environment of the store's client"
    return (
        f"interrupted: {recorded} are recorded; to go on, run the same command again:\n  {command}"
        f"{hint if HIDDEN in command else ''}"
    )


def _stages(result: Result) -> str:
    """Return how far each stage is that was begun; empty for a job of one stage."""
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
        f"{'finished' if tasks['failed'] else 'done'}: "
        f"{complete}, {count(done['tasks'], 'task')} and "
        f"{count(done['written'], 'record')} in this run, {result.seconds:,.1f} s"
        f"{f'; {gone} no longer listed (see ledger status)' if gone else ''}"
        f"{f' -> {result.output}' if result.output else ''}"
    )
