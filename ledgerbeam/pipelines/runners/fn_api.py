"""Internals of Beam that local runs use: FnApiRunner, its provision info, and the main function of a worker.

Beam promises nothing about them, so all uses are here. `tests/pipelines/runners/test_fn_api.py` checks a version of
Beam; continuous integration runs it on the oldest and the newest supported version.
"""

from __future__ import annotations

from apache_beam.portability.api import beam_provision_api_pb2
from apache_beam.runners.job.utils import dict_to_struct
from apache_beam.runners.portability.fn_api_runner.fn_runner import ExtendedProvisionInfo, FnApiRunner
from apache_beam.runners.runner import PipelineRunner
from apache_beam.runners.worker import sdk_worker_main
from apache_beam.transforms.environments import SubprocessSDKEnvironment


def fn_api_runner(log_level: str, worker_command: str | None = None) -> PipelineRunner:
    """Return a FnApiRunner.

    Args:
        log_level: Level of log messages of worker processes, which FnApiRunner does not pass by default.
        worker_command: Shell command that starts a worker process. None runs one worker in this process.
    """
    options = {"beam:option:default_sdk_harness_log_level:v1": log_level.upper()}
    provision = ExtendedProvisionInfo(
        beam_provision_api_pb2.ProvisionInfo(
            retrieval_token="unused-retrieval-token",  # noqa: S106 - required by Beam; nothing is retrieved
            pipeline_options=dict_to_struct(options),
        )
    )
    workers = None if worker_command is None else SubprocessSDKEnvironment.from_command_string(worker_command)
    return FnApiRunner(workers, provision_info=provision)


def serve_worker() -> None:
    """Serve FnApiRunner as a worker, with the addresses in the environment, until it closes the channel."""
    sdk_worker_main.main([])
