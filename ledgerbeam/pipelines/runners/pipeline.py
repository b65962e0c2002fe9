"""The Beam graphs of the jobs: from open sources to the ledger, the same on every runner."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.pvalue import PCollection
from apache_beam.runners.portability.fn_api_runner.fn_runner import FnApiRunner
from apache_beam.transforms.environments import Environment, SubprocessSDKEnvironment

from ledgerbeam.io import Megatron, Shar, ShardEncoder
from ledgerbeam.io.shar.cuts import parse_fields
from ledgerbeam.ledger import PendingSource, Task
from ledgerbeam.pipelines.jobs.opening import file_sources, job_sources
from ledgerbeam.pipelines.jobs.spec import JobSpec
from ledgerbeam.pipelines.runners.fork_server import fork_server
from ledgerbeam.pipelines.runners.wave_files import load_sources
from ledgerbeam.transforms import (
    BuildIndexes,
    CommitTasks,
    LedgerHandle,
    MapRecords,
    MatchSources,
    PlanIndexes,
    PlanTasks,
    ProcessTask,
    ReadTasks,
    SkipCompleted,
    TokenizeRecords,
    TokenShards,
    WriteTasks,
)

__all__ = ["expand_job", "match_open_sources", "run_locally"]


def run_locally(spec: JobSpec, wave_path: str, beam_args: Sequence[str]) -> None:
    """Runs the job on FnApiRunner for the sources of a wave file; one worker is this process, several are their own.

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
    pipeline = beam.Pipeline(FnApiRunner(workers), options)
    wave = pipeline | "Wave" >> beam.Create([wave_path], reshuffle=False)
    expand_job(wave | "LoadSources" >> beam.FlatMap(load_sources).with_output_types(PendingSource), spec)
    pipeline.run().wait_until_finish()


def _ledger_handle(spec: JobSpec) -> LedgerHandle:
    """Returns how the workers of a job reach its ledger."""
    return LedgerHandle(
        spec.ledger,
        spec.job().fingerprint,
        spec.flush_interval,
        spec.flush_entries,
        spec.run_dir,
        spec.storage_options,
        spec.run,
    )


def match_open_sources(pipeline: beam.Pipeline, spec: JobSpec) -> PCollection[PendingSource]:
    """Lists a job's sources inside the pipeline, for runners that are not local."""
    skip = SkipCompleted(_ledger_handle(spec), spec.packer())
    sources: PCollection[PendingSource] = pipeline | MatchSources(spec.listing()) | skip
    return sources


def expand_job(sources: PCollection[PendingSource], spec: JobSpec) -> PCollection[None]:
    """Applies the transforms of a job to its open sources."""
    ledger = _ledger_handle(spec)
    opened, task_records = job_sources(spec), spec.settings.get("task_records")
    spread = sources | "SpreadSources" >> beam.Reshuffle()
    if spec.pipeline == "index":
        written: Any = (
            spread
            | PlanIndexes(spec.task_bytes, file_sources(spec))
            | "SpreadTasks" >> beam.Reshuffle()
            | BuildIndexes(ledger, spec.work, file_sources(spec))
        )
    else:
        function, shards = _work(spec)
        written = (
            spread
            | PlanTasks(ledger, opened, None if task_records else spec.task_bytes, task_records)
            | "SpreadTasks" >> beam.Reshuffle()
            | ReadTasks(opened, ledger)
            | ProcessTask(function, ledger)
            | WriteTasks(str(spec.output), shards, spec.base, spec.storage_options, ledger)
        )
    committed: PCollection[None] = written | CommitTasks(ledger)
    return committed


def _work(spec: JobSpec) -> tuple[Callable[[Task], Any], str | ShardEncoder]:
    """Returns what a job does with each task, and how it writes what comes of it."""
    settings, to = spec.settings, str(spec.to)
    if spec.pipeline == "tokenize":
        tokenize = TokenizeRecords(
            str(spec.tokenizer),
            settings["tokenizer"],
            tuple(settings["keys"]),
            settings["split"],
            spec.storage_options,
        )
        return tokenize, TokenShards(tuple(settings["suffixes"]), settings["dtype"], settings["eod"])
    nan = settings.get("nan", "refuse")
    function = MapRecords(str(spec.function), to, check_purity=spec.check_purity, nan=nan)
    if to == "shar":
        return function, Shar(tuple(parse_fields(settings["fields"]).items()))
    return function, Megatron(settings["dtype"]) if to == "megatron" else to
