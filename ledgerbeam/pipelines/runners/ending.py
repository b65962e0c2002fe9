"""The end of a run: its result, and messages about remaining work."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

from ledgerbeam._base.redaction import printable, without_secrets
from ledgerbeam.errors import LedgerError
from ledgerbeam.ledger import LedgerStore
from ledgerbeam.pipelines.calls.result import JobInterrupt, Result
from ledgerbeam.pipelines.console.reporter import count_nulled
from ledgerbeam.pipelines.console.run_console import RunConsole
from ledgerbeam.pipelines.console.run_progress import count
from ledgerbeam.pipelines.jobs.spec import JobSpec
from ledgerbeam.pipelines.report.accounts import shown_records
from ledgerbeam.pipelines.report.ledger import Ledger
from ledgerbeam.pipelines.runners.run import RunOutcome

SHOWN_FAILURES = 3


def done_json(outcome: RunOutcome) -> dict[str, Any]:
    """Return the totals of a run."""
    records = shown_records(outcome.run_records)
    return {**outcome.done._asdict(), "written": outcome.done.records, "records": records}


@dataclass(frozen=True)
class Ending:
    """The end of a run, with the parts of its `Result`.

    Attributes:
        made: Result of the product that is made of its outputs.
        passed_over: Number of listed files that are no sources; None if it is not known.
        is_partial: Whether the run selected only some sources.
        ledger: The ledger of the last stage, which the user asks about.
        stages: Results of the stages, by name, if there are several.
    """

    job: JobSpec
    store: LedgerStore
    outcome: RunOutcome
    made: list[Any]
    passed_over: int | None
    is_partial: bool
    command: str
    ledger: str
    stages: Mapping[str, dict[str, Any]]

    def told(self, console: RunConsole) -> Result:
        """Return the result, and show it and the remaining work.

        Raises:
            JobInterrupt: Ctrl-C ended the run.
            LedgerError: Sources are open although nothing has failed.
        """
        result = self._result()
        console.ended(result)
        for line in self._lines():
            console.warn(line)
        if self.outcome.interrupted:
            tasks = self.outcome.status["tasks"]["done"]
            raise JobInterrupt(f"{count(tasks, 'task')} are recorded; the same call goes on with the others", result)
        for line in self._left():
            console.warn(line)
        return result

    def _result(self) -> Result:
        outcome, product = self.outcome, self.job.product()
        ledger = Ledger(self.store, self.job.storage_options)
        return Result(
            command=self.command,
            sources=outcome.completed,
            tasks=outcome.done.tasks,
            records=outcome.run_records,
            seconds=outcome.seconds,
            complete=outcome.is_complete,
            interrupted=outcome.interrupted,
            ledger=self.ledger,
            output=(self.job.output if product is None else product.place(self.job)) or None,
            outputs=ledger.outputs(),
            failures=ledger.failures(),
            rejects=ledger.rejects(),
            summary=self._summary(),
            warnings=(*self._stale(), *self._left_by_choice()),
            _stats=ledger.stats,
        )

    def _summary(self) -> dict[str, Any]:
        product, outcome = self.job.product(), self.outcome
        nulled = count_nulled(self.store)
        return {
            "ledger": self.ledger,
            "output": self.job.output,
            **({} if product is None else {product.name: self.made}),
            "seconds": round(outcome.seconds, 3),
            "skipped": outcome.skipped,
            "passed_over": self.passed_over,
            "interrupted": outcome.interrupted,
            "out_of_date": outcome.out_of_date,
            "unrecorded": outcome.unrecorded,
            "limited": outcome.limited,
            "submitted": outcome.submitted,
            **outcome.status,
            "records": shown_records(outcome.records),
            "done": done_json(outcome),
            **({} if nulled is None else {"nulled": nulled}),
            **({"stages": dict(self.stages)} if self.stages else {}),
        }

    def _lines(self) -> Iterator[str]:
        """Yield messages about rejected records and failed tasks."""
        status, ledger = self.outcome.status, shlex.quote(self.ledger)
        rejected = sum(status["records"]["rejected"].values())
        if rejected:
            yield f"{count(rejected, 'record')} rejected so far; to see them: ledgerbeam ledger rejects {ledger}"
        if failed := status["tasks"]["failed"]:
            shown = list(islice(self.store.failures(), SHOWN_FAILURES))
            which = " those that are not quarantined" if any(row.quarantined for row in shown) else ""
            yield (
                f"{count(failed, 'task')} of {count(status['sources']['failed'], 'source')} failed; run the same "
                f"command again to retry{which}; to see all: ledgerbeam ledger failures {ledger}"
            )
            product = self.job.product()
            if product is not None:
                yield product.not_made(self.job)
            for row in shown:
                yield f"  {printable(without_secrets(row.error or row.reason))}"

    def _stale(self) -> Iterator[str]:
        """Yield messages about problems of the outputs without a failed task."""
        outcome, where = self.outcome, self.job.output or "the indexes"
        if outcome.out_of_date:
            yield (
                f"{where}: {count(outcome.out_of_date, 'output')} out of date left beside the right ones, since "
                "another run may still be at work on this ledger; once that has ended, run the same command again: it "
                "removes them"
            )
        if outcome.unrecorded:
            yield f"{where}: {count(outcome.unrecorded, 'shard')} there that this ledger has not recorded"

    def _left_by_choice(self) -> Iterator[str]:
        """Yield a message with the number of sources that a partial run has left open."""
        left = self.outcome.status["sources"]["open"]
        if left and self.is_partial and not self.outcome.limited and not self.outcome.interrupted:
            yield (
                f"{count(left, 'source')} left open, since this run was to do only some; run the same command without "
                "--only-failed and --only-rejected to do them"
            )

    def _left(self) -> Iterator[str]:
        """Yield messages about the remaining work."""
        outcome, job = self.outcome, self.job
        if outcome.out_of_date:
            yield next(self._stale())
        yield from self._left_by_choice()
        left = outcome.status["sources"]["open"]
        if outcome.submitted:
            yield (
                "when the service has run what is staged, run the same command again without --template_location: it "
                f"does what is left and removes what is out of date; until then: ledgerbeam ledger status {job.ledger}"
            )
        elif outcome.limited:
            yield (
                f"stopped after {count(int(job.task_limit or 0), 'task')}, as --limit-tasks asks; "
                f"{count(left, 'source')} of those listed so far left open; the same command continues with them"
            )
        elif left and not self.is_partial:
            raise LedgerError(f"{job.ledger}: {count(left, 'source')} left open, though nothing failed; {job.why_open}")
