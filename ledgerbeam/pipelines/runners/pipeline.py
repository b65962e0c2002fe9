"""Beam pipelines of jobs, with the values for their transforms, and their run on the local runner."""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.runner import PipelineRunner

from ledgerbeam._base.process import beam_parts
from ledgerbeam.ledger.worker.reports import end_work
from ledgerbeam.ledger.worker.run_folders import TaskBudget
from ledgerbeam.ledger.worker.stopwatch import begin_times
from ledgerbeam.ledger.worker.task_board import BoardPlace
from ledgerbeam.pipelines.jobs.spec import JobSpec, Part
from ledgerbeam.pipelines.runners.board import BoardSchedule
from ledgerbeam.pipelines.runners.fn_api import fn_api_runner
from ledgerbeam.pipelines.runners.fork_server import fork_server, one_device
from ledgerbeam.pipelines.runners.profiler import begin_profile
from ledgerbeam.pipelines.runners.wave_files import STARTED, load_committed, load_sources, touch
from ledgerbeam.transforms.chain.base import ChainValues, give_values
from ledgerbeam.transforms.chain.worker import LedgerHandle
from ledgerbeam.user_code.modules import recorded_modules
from ledgerbeam.user_code.objects import close_objects


def run_locally(spec: JobSpec, part: Part, path: str, beam_args: Sequence[str]) -> None:
    """Run a part of the job on FnApiRunner. A single worker is this process; several workers are separate processes.

    Args:
        spec: The job.
        part: The chain, for the sources of a wave file; or the rest, for the committed tasks.
        path: Path of the wave file or of the file of committed tasks.
        beam_args: Beam options of the user.

    Raises:
        Exception: The error of a worker, as Beam rebuilds it.
    """
    if spec.workers == 1:
        os.environ.update(one_device(spec.devices, 0))
        begin_times(str(spec.run_dir))
        if spec.profile is not None:
            begin_profile(str(spec.run_dir))
        try:
            _run(spec, part, path, beam_args, None)
        finally:
            close_objects()
            end_work()
        return
    # This process runs no user code. Workers are forked from a process that has imported all of Beam.
    server = fork_server(str(spec.run_dir), spec.devices, profile=spec.profile is not None)
    with server as command, beam_parts(spec.parts_of_beam()):
        _run(spec, part, path, beam_args, command)


def _run(spec: JobSpec, part: Part, path: str, beam_args: Sequence[str], worker_command: str | None) -> None:
    options = PipelineOptions([f"--direct_num_workers={spec.workers}", *beam_args])
    runner = fn_api_runner(spec.log_level, worker_command)
    with beam_parts(spec.parts_of_beam()):
        pipeline = local_pipeline(spec, part, path, runner, options)
    touch(str(spec.run_dir), STARTED)
    pipeline.run().wait_until_finish()


def _ledger_handle(spec: JobSpec) -> LedgerHandle:
    """Return the handle by which workers of a job open its ledger."""
    job = spec.identity()
    return LedgerHandle(
        spec.ledger,
        job.fingerprint,
        spec.flush_interval,
        spec.flush_entries,
        spec.run_dir,
        spec.storage_options,
        spec.run,
        recorded_modules(job.parameters),
    )


def job_pipeline(spec: JobSpec, options: PipelineOptions) -> beam.Pipeline:
    """Return the whole pipeline of a job, including listing and skipping, for the runner that the options name."""
    pipeline = spec.pipeline("whole", None, options)
    sources, limit = spec.sources(), spec.reject_limit
    values = ChainValues(
        ledger=_ledger_handle(spec),
        listing=spec.listing(),
        packer=spec.packer(),
        sources=sources.opened(spec.storage_options),
        base=sources.base,
        storage_options=spec.storage_options,
        most_rejected=None if limit is None else limit.most,
        has_downstream=spec.has_downstream,
        partition=spec.run_partition,
    )
    give_values(pipeline, values)
    return pipeline


def local_pipeline(
    spec: JobSpec, part: Part, path: str, runner: PipelineRunner, options: PipelineOptions
) -> beam.Pipeline:
    """Return a part of the pipeline of a job for the local runner, where the launcher lists and skips sources.

    Args:
        spec: The job.
        part: See `run_locally`.
        path: See `run_locally`.
        runner: Runner of the pipeline.
        options: Beam options.
    """
    pipeline = spec.pipeline(part, runner, options)
    sources = spec.sources()
    values = ChainValues(
        ledger=_ledger_handle(spec),
        open_sources=functools.partial(load_sources, path),
        sources=sources.opened(spec.storage_options),
        base=sources.base,
        storage_options=spec.storage_options,
        schedule=None if spec.run_dir is None else BoardSchedule(BoardPlace(spec.run_dir, spec.run, spec.workers)),
        budget=None if spec.task_limit is None else TaskBudget.below(str(spec.run_dir)),
        has_downstream=spec.has_downstream,
        committed=functools.partial(load_committed, path) if part == "rest" else None,
        partition=spec.run_partition,
    )
    give_values(pipeline, values)
    return pipeline
