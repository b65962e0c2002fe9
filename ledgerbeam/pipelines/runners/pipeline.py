"""The Beam graphs of the jobs: from open sources to the ledger, the same on every runner."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.portability.api import beam_provision_api_pb2
from apache_beam.pvalue import PCollection
from apache_beam.runners.job.utils import dict_to_struct
from apache_beam.runners.portability.fn_api_runner.fn_runner import ExtendedProvisionInfo, FnApiRunner
from apache_beam.transforms.environments import Environment, SubprocessSDKEnvironment

from ledgerbeam.ledger.selection import PendingSource
from ledgerbeam.ledger.worker.task_budget import TaskBudget
from ledgerbeam.pipelines.jobs.spec import JobSpec
from ledgerbeam.pipelines.runners.fork_server import fork_server, one_device
from ledgerbeam.pipelines.runners.wave_files import STARTED, load_sources, touch
from ledgerbeam.transforms import CommitTasks, LedgerHandle, MatchSources, SkipCompleted
from ledgerbeam.transforms.limit import LimitTasks
from ledgerbeam.transforms.user_object import close_objects

__all__ = ["expand_job", "match_open_sources", "run_locally"]


def run_locally(spec: JobSpec, wave_path: str, beam_args: Sequence[str]) -> None:
    """Run the job on FnApiRunner for the sources of a wave file; one worker is this process, several are their own.

    Raises:
        Exception: Whatever a worker ended with, as Beam rebuilds it.
    """
    if spec.workers == 1:
        os.environ.update(one_device(spec.devices, 0))
        try:
            _run(spec, wave_path, beam_args, None)
        finally:
            close_objects()
        return
    with fork_server(str(spec.run_dir), spec.devices) as command:
        _run(spec, wave_path, beam_args, SubprocessSDKEnvironment.from_command_string(command))


def _run(spec: JobSpec, wave_path: str, beam_args: Sequence[str], workers: Environment | None) -> None:
    options = PipelineOptions([f"--direct_num_workers={spec.workers}", *beam_args])
    pipeline = beam.Pipeline(FnApiRunner(workers, provision_info=_provision_info(spec)), options)
    wave = pipeline | "Wave" >> beam.Create([wave_path], reshuffle=False)
    expand_job(wave | "LoadSources" >> beam.FlatMap(load_sources).with_output_types(PendingSource), spec)
    touch(str(spec.run_dir), STARTED)
    pipeline.run().wait_until_finish()


def _provision_info(spec: JobSpec) -> ExtendedProvisionInfo:
    """Return the options for FnApiRunner's worker processes, which by default get none."""
    told = {"beam:option:default_sdk_harness_log_level:v1": spec.log_level.upper()}
    return ExtendedProvisionInfo(
        beam_provision_api_pb2.ProvisionInfo(
            retrieval_token="unused-retrieval-token",  # noqa: S106 - Beam's own; nothing is retrieved
            pipeline_options=dict_to_struct(told),
        )
    )


def _ledger_handle(spec: JobSpec) -> LedgerHandle:
    """Return how the workers of a job reach its ledger."""
    return LedgerHandle(
        spec.ledger,
        spec.identity().fingerprint,
        spec.flush_interval,
        spec.flush_entries,
        spec.run_dir,
        spec.storage_options,
        spec.run,
    )


def match_open_sources(pipeline: beam.Pipeline, spec: JobSpec) -> PCollection[PendingSource]:
    """List a job's sources inside the pipeline, for runners that are not local."""
    skip = SkipCompleted(_ledger_handle(spec), spec.sources().packer())
    sources: PCollection[PendingSource] = pipeline | MatchSources(spec.listing()) | skip
    return sources


def expand_job(sources: PCollection[PendingSource], spec: JobSpec) -> PCollection[None]:
    """Apply the transforms of a job to its open sources."""
    ledger = _ledger_handle(spec)
    plan, *stages = spec.stages(ledger)
    planned: Any = sources | "SpreadSources" >> beam.Reshuffle() | plan
    if spec.task_limit is not None:
        planned |= LimitTasks(TaskBudget.below(str(spec.run_dir)))
    written: Any = planned | "SpreadTasks" >> beam.Reshuffle()
    for stage in stages:
        written |= stage
    # Where a launcher looks at the ledger meanwhile, it holds all workers to the limit.
    most = None if spec.reject_limit is None or spec.run_dir is not None else spec.reject_limit.most
    committed: PCollection[None] = written | CommitTasks(ledger, most)
    return committed
