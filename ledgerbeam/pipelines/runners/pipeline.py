"""Beam pipelines of jobs, and their run on the local runner with forked workers.

FnApiRunner starts a worker by a command. Here the command is `worker_relay`, which requests a worker from a fork server
and exits with the status of the worker. The server is a fork of the process of the wave, because another import of
Beam can take longer than the job. The fork is made before the process uses gRPC or starts a thread of Beam. Only
workers import user code.

FnApiRunner, its provision info and the main function of a worker are no public API of Beam, and used only here.
`tests/pipelines/runners/test_fn_api.py` checks them; `make oldest-beam` checks the oldest supported version of Beam.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import socket
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.portability.api import beam_provision_api_pb2
from apache_beam.runners.job.utils import dict_to_struct
from apache_beam.runners.portability.fn_api_runner.fn_runner import ExtendedProvisionInfo, FnApiRunner
from apache_beam.runners.runner import PipelineRunner
from apache_beam.runners.worker import sdk_worker_main
from apache_beam.transforms.environments import SubprocessSDKEnvironment

from ledgerbeam._base.forking import ForkServer, fork_to, listening
from ledgerbeam.pipelines.jobs.spec import JobSpec, Part
from ledgerbeam.pipelines.runners import worker_relay
from ledgerbeam.pipelines.runners.chain import ledger_handle, local_values, work_as
from ledgerbeam.pipelines.runners.job_files import STARTED, touch
from ledgerbeam.transforms.chain.base import ChainValues
from ledgerbeam.transforms.on_beam import give_values


def run_locally(spec: JobSpec, part: Part, path: str, beam_args: Sequence[str]) -> None:
    """Run a part of the job on FnApiRunner: the chain on a wave file, or the rest after it on committed tasks.

    A single worker is this process; several workers are separate processes.
    """
    # Several workers are forked from a process that has imported all of Beam, and this process runs no user code.
    with nullcontext() if spec.workers == 1 else fork_server(spec) as command:
        options = PipelineOptions([f"--direct_num_workers={spec.workers}", *beam_args])
        pipeline = local_pipeline(spec, part, path, fn_api_runner(spec.log_level, command), options)
        touch(str(spec.run_dir), STARTED)
        pipeline.run().wait_until_finish()


def fn_api_runner(log_level: str, worker_command: str | None = None) -> PipelineRunner:
    """Return a FnApiRunner whose worker processes log from `log_level`. Beam's own does not pass a level to them."""
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
        ledger=ledger_handle(spec),
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
    """Return the chain of a job, or the transforms after it, for the local runner, whose launcher lists the sources."""
    pipeline = spec.pipeline(part, runner, options)
    give_values(pipeline, local_values(spec, path, is_rest=part == "rest"))
    return pipeline


@contextmanager
def fork_server(spec: JobSpec) -> Iterator[str]:
    """Run a fork server for a job. Enter the context after the import of Beam, before Beam runs anything.

    Yields:
        The shell command that starts a worker, with ``exec`` so that no shell process stays.
    """
    name = f"ledgerbeam-{os.getpid()}-{secrets.token_hex(8)}"
    with listening(f"\0{name}") as listener:
        pid = fork_to(_Workers(listener, spec).serve, "ledgerbeam-fork")
    try:
        yield f'exec "{sys.executable}" -I -S "{worker_relay.__file__}" {name}'
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)  # otherwise the wait for the wave's process group would not end


class _Workers(ForkServer):
    name = "ledgerbeam-work"
    leads = False

    def __init__(self, listener: socket.socket, spec: JobSpec) -> None:
        super().__init__(listener)
        self._spec = spec
        self._started = 0

    def accepted(self, request: bytes) -> None:  # noqa: ARG002 - all are alike
        self._started += 1

    def work(self, request: bytes, descriptors: list[int]) -> int:
        for number, output in enumerate(descriptors, start=1):
            os.dup2(output, number)
            os.close(output)
        os.environ.clear()
        os.environ.update(json.loads(request))
        # Until FnApiRunner closes the channel, with the addresses in the environment.
        return work_as(self._spec, self._started - 1, lambda: sdk_worker_main.main([]))
