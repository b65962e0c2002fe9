"""How a run of a job ended: what is printed of it, and the exit status."""

from __future__ import annotations

import shlex
import sys
from dataclasses import dataclass
from itertools import islice
from typing import Any

from ledgerbeam.errors import LedgerError
from ledgerbeam.ledger import LedgerStore
from ledgerbeam.pipelines.console import Reporter, count, count_nulled, print_json
from ledgerbeam.pipelines.jobs.spec import JobSpec
from ledgerbeam.pipelines.report.accounts import account_lines, shown_records
from ledgerbeam.pipelines.runners.run import RunOutcome
from ledgerbeam.redaction import HIDDEN, command_without_secrets, printable, without_secrets

__all__ = ["RunSummary"]

SHOWN_FAILURES = 3
DONE, NOT_ALL, INTERRUPTED = 0, 3, 130


@dataclass(frozen=True)
class RunSummary:
    """How a run ended.

    Attributes:
        job: The job.
        store: Its ledger.
        outcome: Of the run.
        made: What was made of the outputs.
        passed_over: How many names that wildcards matched are not of sources; None if it is not known.
        is_partial: Whether the run was to do only some sources.
    """

    job: JobSpec
    store: LedgerStore
    outcome: RunOutcome
    made: list[Any]
    passed_over: int | None
    is_partial: bool

    def print(self, reporter: Reporter) -> int:
        """Print the summary, and warnings of what is left.

        Returns:
            The exit status.

        Raises:
            LedgerError: If sources are left open though nothing failed.
        """
        nulled = count_nulled(self.store)
        if reporter.as_json:
            print_json({**self._as_json(), **({} if nulled is None else {"nulled": nulled})})
        else:
            reporter.say(self._interrupted() if self.outcome.interrupted else self._finished())
            if nulled:
                shown = count(nulled, "number")
                reporter.say(f"{shown} that JSON does not have (NaN, infinities) written as null so far")
            if not self.outcome.records.is_plain:
                lines = account_lines(self.outcome.records)
                reporter.say("\n".join(f"{name} so far: {line}" for name, line in lines))
        rejected = sum(self.outcome.status["records"]["rejected"].values())
        if rejected:
            reporter.warn(
                f"{count(rejected, 'record')} rejected so far; to see them: "
                f"ledgerbeam ledger rejects {shlex.quote(self.job.ledger)}"
            )
        failed = self.outcome.status["tasks"]["failed"]
        if failed:
            self._warn_of_failures(reporter)
        if self.outcome.interrupted:
            return INTERRUPTED
        self._warn_of_left(reporter)
        return NOT_ALL if failed or self.outcome.out_of_date or self.outcome.unrecorded else DONE

    def _as_json(self) -> dict[str, Any]:
        product, outcome = self.job.product(), self.outcome
        return {
            "ledger": self.job.ledger,
            "output": self.job.output,
            **({} if product is None else {product.name: self.made}),
            "seconds": round(outcome.seconds, 3),
            "skipped": outcome.skipped,
            "passed_over": self.passed_over,
            "interrupted": outcome.interrupted,
            "out_of_date": outcome.out_of_date,
            "unrecorded": outcome.unrecorded,
            "limited": outcome.limited,
            **outcome.status,
            "records": shown_records(outcome.records),
            "done": {**outcome.done._asdict(), "records": shown_records(outcome.run_records)},
        }

    def _interrupted(self) -> str:
        sources, tasks = self.outcome.status["sources"], self.outcome.status["tasks"]
        recorded = f"{count(tasks['done'], 'task')} and {count(sources['complete'], 'source')}"
        command = shlex.join(["ledgerbeam", *command_without_secrets(sys.argv[1:])])
        hint = f"\nput your own in place of {HIDDEN}, or in the environment of the store's client"
        return (
            f"interrupted: {recorded} are recorded; to go on, run the same command again:\n  {command}"
            f"{hint if HIDDEN in command else ''}"
        )

    def _finished(self) -> str:
        outcome, product = self.outcome, self.job.product()
        sources, tasks = outcome.status["sources"], outcome.status["tasks"]
        where = self.job.output if product is None else product.place(self.job)
        return (
            f"{'finished' if tasks['failed'] else 'done'}: {count(sources['complete'], 'source')} complete "
            f"({outcome.skipped:,} skipped as complete before), {count(outcome.done.tasks, 'task')} and "
            f"{count(outcome.done.records, 'record')} in this run, {outcome.seconds:,.1f} s"
            f"{f' -> {where}' if where else ''}"
        )

    def _warn_of_failures(self, reporter: Reporter) -> None:
        sources, tasks = self.outcome.status["sources"], self.outcome.status["tasks"]
        reporter.warn(
            f"{count(tasks['failed'], 'task')} of {count(sources['failed'], 'source')} failed; run the same command "
            f"again to retry; to see all: ledgerbeam ledger failures {shlex.quote(self.job.ledger)}"
        )
        product = self.job.product()
        if product is not None:
            reporter.warn(product.not_made(self.job))
        for row in islice(self.store.failures(), SHOWN_FAILURES):
            reporter.warn(f"  {printable(without_secrets(row.error or row.reason))}")

    def _warn_of_left(self, reporter: Reporter) -> None:
        outcome, job = self.outcome, self.job
        if outcome.out_of_date:
            reporter.warn(
                f"{job.output or 'the indexes'}: {count(outcome.out_of_date, 'output')} out of date left beside the "
                "right ones, since another run may still be at work on this ledger; once that has ended, run the same "
                "command again: it removes them"
            )
        left = outcome.status["sources"]["open"]
        if outcome.limited:
            reporter.warn(
                f"stopped after {count(int(job.task_limit or 0), 'task')}, as --limit-tasks asks; "
                f"{count(left, 'source')} of those listed so far left open; the same command continues with them"
            )
        elif left and self.is_partial:
            reporter.warn(f"{count(left, 'source')} left open, since this run was to do only some")
        elif left:
            raise LedgerError(
                f"{job.ledger}: {count(left, 'source')} left open, though nothing failed; "
                "another run may have taken the ledger over; run the same command again"
            )
