"""Runs of a flow: the remaining work of each step, one step after the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

from ledgerbeam._base.redaction import without_secrets
from ledgerbeam.errors import LedgerbeamError, LedgerError
from ledgerbeam.ledger.opening import open_store
from ledgerbeam.pipelines.calls.result import JobInterrupt, Result
from ledgerbeam.pipelines.console.reporter import PartConsole, RunConsole
from ledgerbeam.pipelines.console.run_progress import count
from ledgerbeam.pipelines.flows.plan import job_changes
from ledgerbeam.pipelines.flows.step import FlowRunOptions, PreparedStep, errors_at
from ledgerbeam.pipelines.jobs.listing import listed_ids
from ledgerbeam.pipelines.runners.waves import Waves
from ledgerbeam.sources.listing import missing_outputs_warning

_SHOWN = 3


@dataclass(frozen=True)
class FlowRun:
    """The result of a run of a flow.

    Attributes:
        flow: Name of the flow in messages.
        order: Names of all steps of the run, in order.
        steps: The result of each step that started, in order.
        left: By step, the reason why the step is not up to date: it did not start, or its sources changed meanwhile.
        errors: By step, the error that ended the step. Work recorded before the error is kept.
    """

    flow: str
    order: tuple[str, ...]
    steps: dict[str, Result] = field(default_factory=dict)
    left: dict[str, str] = field(default_factory=dict)
    errors: dict[str, LedgerbeamError] = field(default_factory=dict)

    @property
    def complete(self) -> bool:
        """Whether every step is complete."""
        return not self.left and not self.errors and all(result.complete for result in self.steps.values())

    @property
    def tasks(self) -> int:
        """Number of tasks of this run."""
        return sum(result.tasks for result in self.steps.values())

    def __getitem__(self, step: str) -> Result:
        return self.steps[step]

    def raise_for_failures(self) -> Self:
        """Return the run if nothing failed.

        Raises:
            TasksFailedError: Tasks failed, or outputs are damaged.
            LedgerError: A step is not up to date for another reason.
            LedgerbeamError: A step ended with this error.
        """
        for error in self.errors.values():
            raise error
        for result in self.steps.values():
            result.raise_for_failures()
        for step, reason in self.left.items():
            raise LedgerError(f"{self.flow}: step {step}: {reason}")
        return self

    def as_json(self) -> dict[str, Any]:
        """Return the run as a JSON object with the summary of each step."""
        steps = {name: self._summary(name) for name in self.order}
        return {"flow": self.flow, "complete": self.complete, "steps": steps}

    def _summary(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = dict(self.steps[name].summary) if name in self.steps else {"complete": False}
        if name in self.left:
            found |= {"complete": False, "left": self.left[name]}
        if name in self.errors:
            found["error"] = without_secrets(str(self.errors[name]))
        return found

    def __repr__(self) -> str:
        state = "complete" if self.complete else "not complete"
        return f"<FlowRun of {self.flow}: {state}, {count(len(self.steps), 'step')}, {count(self.tasks, 'task')}>"


class FlowInterrupt(JobInterrupt):
    """Ctrl-C ended a run of a flow. Its state is saved, and the same call resumes it.

    Attributes:
        result: Result of the interrupted step.
        run: Results of all steps so far.
    """

    def __init__(self, message: str, result: Result | None = None, run: FlowRun | None = None) -> None:
        super().__init__(message, result)
        self.run = FlowRun("", ()) if run is None else run


def run_steps(
    title: str,
    steps: Sequence[PreparedStep],
    how: FlowRunOptions,
    console: RunConsole,
    ended: Callable[[RunConsole, Result], None] | None = None,
) -> FlowRun:
    """Run the remaining work of the steps of a flow, each after the steps that it reads. Raises FlowInterrupt.

    `ended` prints the result of a step instead of the console.
    """
    made = FlowRun(title, tuple(step.name for step in steps))
    schemes = {scheme for step in steps for scheme in step.call.job.schemes()}
    with Waves(how.log_level or "warning", sorted(schemes)) as waves:
        for step in steps:
            of_step = _StepConsole(console, step.name, ended)
            waits = [name for name in step.waits_for if name not in made.steps or name in made.left]
            waits += [name for name in step.waits_for if name in made.steps and not made.steps[name].complete]
            if waits:
                made.left[step.name] = (
                    f"not started: it reads step {waits[0]}; complete step {waits[0]}, then run the same command again"
                )
                of_step.warn(made.left[step.name])
                continue
            try:
                with errors_at(step.step.place):
                    if step.again is not None:
                        step = replace(step, call=step.again())  # noqa: PLW2901
                    for outputs in step.reads:
                        if line := missing_outputs_warning(outputs, step.call.job.storage_options):
                            of_step.warn(line)
                    made.steps[step.name] = _run_step(step, how, of_step, waves)
            except LedgerbeamError as error:
                made.errors[step.name] = error
                console.warn(f"error: {error}")
                continue
            except JobInterrupt as error:
                made.steps[step.name] = error.result
                made.left.update({one.name: "the run was interrupted" for one in steps if one.name not in made.steps})
                raise FlowInterrupt(str(error), error.result, made) from error
            result = made.steps[step.name]
            if result.tasks and result.complete and step.reads and not _is_current(step):
                made.left[step.name] = "its sources changed while it ran; run the same command again"
                of_step.warn(made.left[step.name])
    return made


def _run_step(step: PreparedStep, how: FlowRunOptions, console: RunConsole, waves: Waves) -> Result:
    """Run the remaining work of a step. If its job changed, first print the values that differ."""
    changes = job_changes(step.call) if how.on_job_change != "refuse" else []
    if changes:
        more = f", and {count(len(changes) - _SHOWN, 'more value')}" if len(changes) > _SHOWN else ""
        heads = [change.splitlines()[0] for change in changes[:_SHOWN]]
        what = "so everything runs again" if how.on_job_change == "restart" else "but completed work is kept"
        console.say(f"the job changed, {what}: {'; '.join(heads)}{more}")
    return step.call.result(console, waves)


def _is_current(step: PreparedStep) -> bool:
    """Return whether a step has read the present outputs of earlier steps, which another launcher may have changed."""
    for reader in step.call.readers():
        if not getattr(reader.sources(), "recorded", ()):
            continue
        store = open_store(reader.ledger, reader.storage_options, create=False, read_only=True)
        try:
            ids = listed_ids(reader, reader.pages())
        except LedgerError:
            return False
        if not all(store.completed_mask(ids)) or len({*ids}) != store.source_count() - len(store.gone_ids()):
            return False
    return True


class _StepConsole(PartConsole):
    """The console of one step. Each line starts with the name of the step."""

    def __init__(self, console: RunConsole, name: str, ended: Callable[[RunConsole, Result], None] | None) -> None:
        super().__init__(console, name)
        self._ended = ended

    def say(self, text: str) -> None:
        super().say(self._named(text))

    def warn(self, text: str) -> None:
        super().warn(self._named(text))

    def _named(self, text: str) -> str:
        return "\n".join(f"{self._name}: {line}" for line in text.split("\n"))

    def ended(self, result: Result) -> None:
        if self._ended is None:
            super().ended(result)
        else:
            self._ended(self, result)


def steps_line(made: FlowRun) -> str:
    """Return one line with the result of all steps."""
    done = sum(result.complete and name not in made.left for name, result in made.steps.items())
    state = "done" if made.complete else "finished"
    return f"{state}: {done} of {count(len(made.order), 'step')} complete, {count(made.tasks, 'task')} in this run"
