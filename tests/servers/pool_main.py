"""Beam's worker pool, for several runners' processes on one host.

Every task manager and executor numbers its workers from 1, and the pool knows a worker by that number alone. When two
of them share a pool, the end of the one's worker is taken for the end of the other's, which is killed in the middle of
its work. Here nobody is killed on request: a worker ends by itself when its runner closes the control channel.
"""

from __future__ import annotations

import sys
from typing import Any
from unittest import mock

from apache_beam.portability.api import beam_fn_api_pb2
from apache_beam.runners.worker import worker_pool_main


class SharedPool(worker_pool_main.BeamFnExternalWorkerPoolServicer):
    """A pool that lets its workers end by themselves."""

    def StopWorker(self, stop_worker_request: Any, unused_context: Any) -> Any:
        for process in self._worker_processes.values():
            process.poll()  # reaps what has ended
        return beam_fn_api_pb2.StopWorkerResponse()


if __name__ == "__main__":
    with mock.patch.object(worker_pool_main, "BeamFnExternalWorkerPoolServicer", SharedPool):
        worker_pool_main.main(sys.argv)
