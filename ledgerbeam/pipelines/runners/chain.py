"""The chain of a job on the local runner, in its worker processes and without Beam.

Each worker draws tasks from the board until none is left. A task goes through all steps before the next one is drawn.
When the board is empty, a worker plans further sources of the wave and posts their tasks.
"""

from __future__ import annotations

import functools
import os
import signal
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import islice, zip_longest

import numpy as np

from ledgerbeam._base.forking import fork_to
from ledgerbeam.errors import BudgetSpentError, LedgerbeamError
from ledgerbeam.ledger.selection import PendingSource
from ledgerbeam.ledger.worker.inflight import InflightMarks, dead_marks
from ledgerbeam.ledger.worker.reports import begin_times, end_work, report_error, reported_errors
from ledgerbeam.ledger.worker.run_folders import TaskBudget
from ledgerbeam.ledger.worker.task_board import Board, BoardPlace, task_board
from ledgerbeam.ledger.worker.writer import close_shared_writers
from ledgerbeam.pipelines.jobs.spec import JobSpec
from ledgerbeam.pipelines.runners.job_files import DIED, TRACEBACK, load_rows, touch
from ledgerbeam.pipelines.runners.profiles import begin_profile
from ledgerbeam.transforms.chain.base import ChainStep, ChainValues, LedgerHandle, Spread, StepWork, Works
from ledgerbeam.transforms.chain.commit import CommitStep
from ledgerbeam.transforms.chain.schedule import Ticket
from ledgerbeam.user_code.modules import recorded_modules
from ledgerbeam.user_code.objects import close_objects

DEVICES = "CUDA_VISIBLE_DEVICES"
SPENT = BudgetSpentError.exit_status  # exit status of a worker that ended because a budget is spent


def ledger_handle(spec: JobSpec) -> LedgerHandle:
    """Return the handle by which workers of a job open its ledger."""
    job = spec.identity()
    return LedgerHandle(
        spec.ledger,
        job.fingerprint,
        spec.flush_interval,
        spec.flush_entries,
        spec.run_dir,
        spec.storage_options,
        spec.answers,
        spec.limits,
        spec.run,
        recorded_modules(job.parameters),
    )


def local_values(spec: JobSpec, path: str, *, is_rest: bool = False) -> ChainValues:
    """Return the values of a job for the local runner, where the launcher lists and skips sources.

    `path` is the file with the sources of a wave, or with `is_rest` the file with the committed tasks of the run.
    """
    sources = spec.sources()
    return ChainValues(
        ledger=ledger_handle(spec),
        open_sources=functools.partial(load_rows, path),
        sources=sources.opened(spec.storage_options),
        base=sources.base,
        storage_options=spec.storage_options,
        board=None if spec.run_dir is None else BoardPlace(spec.run_dir, spec.run, spec.workers),
        budget=None if spec.task_limit is None else TaskBudget.below(str(spec.run_dir)),
        has_downstream=spec.has_downstream,
        committed=functools.partial(load_rows, path) if is_rest else None,
        partition=spec.run_partition,
    )


def run_chain(spec: JobSpec, path: str) -> None:
    """Plan the sources of a wave file and do their tasks, in this process."""
    values = local_values(spec, path)
    (_, planning, (drawing, *doing)) = _phases([*spec.chain_steps(), CommitStep()], values)
    planned, done = Works(planning), Works(doing)
    board = task_board(str(spec.run_dir))
    shares = _shares(load_rows(path), board, spec.workers)

    def plan_more() -> bool:
        sources = next(shares, [])
        if values.budget is None or values.budget.left():  # else no task of theirs would start
            planned.run(sources)
        board.end_sources(len(sources))
        return bool(sources)

    done.run(drawing.process(Ticket(plan_more)) or ())
    planned.close()
    done.close()


def _phases(steps: Sequence[ChainStep], values: ChainValues) -> list[list[StepWork]]:
    """Return the work of all steps in phases. A new phase starts where elements are spread over the workers."""
    parts = [part for step in steps for _, part in step.parts()]
    phases: list[list[StepWork]] = [[]]
    for part, behind in zip_longest(parts, parts[1:]):
        if isinstance(part, Spread):
            phases.append([])
        else:
            takes_blocks = behind is not None and behind.takes_blocks
            phases[-1].append(part.make_work(replace(values, in_blocks=takes_blocks)))
    return phases


def _shares(sources: Iterator[PendingSource], board: Board, workers: int) -> Iterator[list[PendingSource]]:
    """Yield sources that no other worker plans, until all are taken."""
    passed = 0
    while taken := board.take_sources(workers):
        yield list(islice(sources, taken.start - passed, taken.stop - passed))
        passed = taken.stop


def run_workers(spec: JobSpec, work: Callable[[], object]) -> int:
    """Fork the workers of a job, each to call a function, and wait for them. Return 0 if all succeed, `SPENT`, or 1.

    If a worker dies without an error, this process waits until the launcher kills all processes of the wave.
    """
    run_dir = str(spec.run_dir)
    numbers = range(spec.workers)
    running = {fork_to(functools.partial(work_as, spec, number, work), "ledgerbeam-work") for number in numbers}
    found = 0
    while running:
        pid, status = os.wait()
        if pid not in running:  # a process that user code has left
            continue
        running.remove(pid)
        ended = os.waitstatus_to_exitcode(status)
        if ended == SPENT:  # the calls of the other workers are paid, so these end by themselves
            found = SPENT
            continue
        if ended == 0 and all(worker.pid != pid for worker in dead_marks(run_dir)):
            continue
        if not os.path.exists(os.path.join(run_dir, TRACEBACK)) and not reported_errors(run_dir):
            touch(run_dir, DIED)
            signal.pause()
        return 1
    return found


def work_as(spec: JobSpec, number: int, work: Callable[[], object]) -> int:
    """Call a function in this process, as the worker of a job with this number; return the exit status.

    An error is written to the folder of the run, see `status_of`.
    """
    run_dir = str(spec.run_dir)
    if spec.devices:  # workers take them in turn
        os.environ[DEVICES] = spec.devices[number % len(spec.devices)]
    np.random.seed(None)  # else all workers would have the generator of the process that forked them
    marks = InflightMarks(run_dir)

    def begun() -> None:
        marks.register()  # the process is visible before its first task
        begin_times(run_dir)
        if spec.profile is not None:
            begin_profile(run_dir)
        work()

    try:
        status = status_of(run_dir, begun)
    finally:
        close_objects()
        end_work()
    if status in (0, SPENT):
        marks.close()
    return status


def status_of(run_dir: str, work: Callable[[], object]) -> int:
    """Call a function and return 0. If it raises an error, write it to the folder of the run and return another number.

    This is `SPENT` if a budget is spent, else 1.
    """
    try:
        work()
    except Exception as error:  # noqa: BLE001 - the launcher reports it
        with suppress(LedgerbeamError):  # the error that ended the work is reported
            close_shared_writers()
        if isinstance(error, LedgerbeamError):
            report_error(run_dir, error)
        else:
            touch(run_dir, TRACEBACK, traceback.format_exc())
        return SPENT if type(error) is BudgetSpentError else 1
    return 0
