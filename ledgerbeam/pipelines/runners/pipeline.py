"""Beam pipelines of jobs, and their run on the local runner with forked workers.

FnApiRunner starts a worker by a command. Here the command is `worker_relay`, which requests a worker from a fork server
and exits with the status of the worker. The server is forked from the wave's process before that uses gRPC or starts a
thread of Beam, since the import of Beam can take longer than the job. Only workers import user code.

Beam promises nothing about FnApiRunner, its provision info and the main function of a worker. All uses are here, and
`tests/pipelines/runners/test_fn_api.py` checks a version of Beam; `make oldest-beam` runs it
on the oldest supported version.
"""

from __future__ import annotations

import functools
import json
import os
import secrets
import signal
import socket
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import apache_beam as beam
import numpy as np
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.portability.api import beam_provision_api_pb2
from apache_beam.runners.job.utils import dict_to_struct
from apache_beam.runners.portability.fn_api_runner.fn_runner import ExtendedProvisionInfo, FnApiRunner
from apache_beam.runners.runner import PipelineRunner
from apache_beam.runners.worker import sdk_worker_main
from apache_beam.transforms.environments import SubprocessSDKEnvironment

from ledgerbeam._base.process import beam_parts
from ledgerbeam.errors import LedgerbeamError
from ledgerbeam.ledger.worker.inflight import InflightMarks
from ledgerbeam.ledger.worker.reports import begin_times, end_work, report_error
from ledgerbeam.ledger.worker.run_folders import TaskBudget
from ledgerbeam.ledger.worker.task_board import BoardPlace
from ledgerbeam.pipelines.jobs.spec import JobSpec, Part
from ledgerbeam.pipelines.runners import worker_relay
from ledgerbeam.pipelines.runners.board import BoardSchedule
from ledgerbeam.pipelines.runners.forking import ForkServer, fork_to
from ledgerbeam.pipelines.runners.job_files import STARTED, load_committed, load_sources, touch
from ledgerbeam.pipelines.runners.profiles import begin_profile
from ledgerbeam.transforms.chain.base import ChainValues, LedgerHandle, give_values
from ledgerbeam.user_code.modules import recorded_modules
from ledgerbeam.user_code.objects import close_objects

DEVICES = "CUDA_VISIBLE_DEVICES"


def run_locally(spec: JobSpec, part: Part, path: str, beam_args: Sequence[str]) -> None:
    """Run a part of the job on FnApiRunner: the chain, for a wave file, or the rest, for a file of committed tasks.

    A single worker is this process; several workers are separate processes.
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


def fn_api_runner(log_level: str, worker_command: str | None = None) -> PipelineRunner:
    """Return a FnApiRunner whose worker processes log from a level, which it does not pass by default."""
    options = {"beam:option:default_sdk_harness_log_level:v1": log_level.upper()}
    info = beam_provision_api_pb2.ProvisionInfo(
        retrieval_token="unused-retrieval-token",  # noqa: S106 - required by Beam; nothing is retrieved
        pipeline_options=dict_to_struct(options),
    )
    workers = None if worker_command is None else SubprocessSDKEnvironment.from_command_string(worker_command)
    return FnApiRunner(workers, provision_info=ExtendedProvisionInfo(info))


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
    """Return a part of the pipeline of a job for the local runner, where the launcher lists and skips sources."""
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


@contextmanager
def fork_server(run_dir: str, devices: Sequence[str] = (), *, profile: bool = False) -> Iterator[str]:
    """Run a fork server. Enter the context after Beam is imported and before it runs anything.

    Args:
        devices: Ids of CUDA devices. Each worker sees one, in turn. Empty leaves the environment unchanged.

    Yields:
        The shell command that starts a worker, with ``exec`` so that no shell process stays.
    """
    name = f"ledgerbeam-{os.getpid()}-{secrets.token_hex(8)}"
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(f"\0{name}")
    listener.listen()
    server = _Workers(listener, run_dir, devices, profile=profile)
    pid = fork_to(server.serve, "ledgerbeam-fork")
    listener.close()
    try:
        yield f'exec "{sys.executable}" -I -S "{worker_relay.__file__}" {name}'
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)  # otherwise the wait for the wave's process group would not end


class _Workers(ForkServer):
    name = "ledgerbeam-work"
    leads = False

    def __init__(self, listener: socket.socket, run_dir: str, devices: Sequence[str], *, profile: bool) -> None:
        super().__init__(listener)
        self._run_dir = run_dir
        self._profile = profile
        self._devices = devices
        self._device: dict[str, str] = {}
        self._started = 0

    def accepted(self) -> None:
        self._device = one_device(self._devices, self._started)
        self._started += 1

    def work(self, request: bytes, descriptors: list[int]) -> int:
        for number, output in enumerate(descriptors, start=1):
            os.dup2(output, number)
            os.close(output)
        os.environ.clear()
        os.environ.update(json.loads(request) | self._device)
        np.random.seed(None)
        marks = InflightMarks(self._run_dir)
        try:
            marks.register()  # the process is visible before its first task
        except LedgerbeamError as error:
            report_error(self._run_dir, error)
            return 1
        begin_times(self._run_dir)
        if self._profile:
            begin_profile(self._run_dir)
        sdk_worker_main.main([])  # with the addresses in the environment, until FnApiRunner closes the channel
        close_objects()
        end_work()
        marks.close()
        return 0


def one_device(devices: Sequence[str], position: int) -> dict[str, str]:
    """Return the environment variable that shows a worker one device. Workers take the devices in turn."""
    return {DEVICES: devices[position % len(devices)]} if devices else {}
