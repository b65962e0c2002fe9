"""The Beam graphs of the jobs: from open sources to the ledger, the same on every runner."""

from __future__ import annotations

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
from ledgerbeam.pipelines.jobs.spec import JobSpec
from ledgerbeam.pipelines.runners.fork_server import fork_server
from ledgerbeam.pipelines.runners.wave_files import STARTED, load_sources, touch
from ledgerbeam.transforms import CommitTasks, LedgerHandle, MatchSources, SkipCompleted

__all__ = ["expand_job", "match_open_sources", "run_locally"]


def run_locally(spec: JobSpec, wave_path: str, beam_args: Sequence[str]) -> None:
    """Run the job on FnApiRunner for the sources of a wave file; one worker is this process, several are their own.

    Raises:
        Exception: Whatever a worker ended with, as Beam rebuilds it.
    """
    if spec.workers == 1:
        _run(spec, wave_path, beam_args, None)
        return
    with fork_server(str(spec.run_dir)) as command:
        _run(spec, wave_path, beam_args, SubprocessSDKEnvironment.from_command_string(command))


def _run(spec: JobSpec, wave_path: str, beam_args: Sequence[str], workers: Environment | None) -> None:
    options = PipelineOptions([f"--direct_num_workers={spec.workers}", *beam_args])
    pipeline = beam.Pipeline(FnApiRunner(workers, provision_info=_provision_info(spec)), options)
    wave = pipeline | "Wave" >> beam.Create([wave_path], reshuffle=False)
    expand_job(wave | "LoadSources" >> beam.FlatMap(load_sources).with_output_types(PendingSource), spec)
    touch(str(spec.run_dir), STARTED)
    pipeline.run().wait_until_finish()


def _provision_info(spec: JobSpec) -> ExtendedProvisionInfo:
    """Return what FnApiRunner tells its worker processes of the options: by itself, nothing."""
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
    written: Any = sources | "SpreadSources" >> beam.Reshuffle() | plan | "SpreadTasks" >> beam.Reshuffle()
    for stage in stages:
        written |= stage
    committed: PCollection[None] = written | CommitTasks(ledger)
    return committed
