"""A worker process of a local job: ``python -m ledgerbeam.pipelines.worker RUN_DIR``, started by FnApiRunner."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

from ledgerbeam.ledger import InflightMarks
from ledgerbeam.pipelines.logs import quiet_beam

__all__ = ["main", "worker_command"]

_PR_SET_PDEATHSIG = 1  # of linux/prctl.h


def worker_command(run_dir: str) -> str:
    """Returns the shell command that starts a worker: ``exec``, so that no shell stands between it and a signal."""
    return f'exec "{sys.executable}" -m ledgerbeam.pipelines.worker "{run_dir}"'


def main(run_dir: str) -> None:
    """Serves the runner until it closes the channel. The process shows at once that it lives, before any task."""
    _die_with_parent()
    marks = InflightMarks(run_dir)
    marks.register()
    quiet_beam()
    from apache_beam.runners.worker import sdk_worker_main  # noqa: PLC0415 - after logging is set up

    sdk_worker_main.main([])
    marks.close()


def _die_with_parent() -> None:
    """Has the kernel kill this process with the one that runs the wave: a worker without a runner only complains."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


if __name__ == "__main__":
    main(sys.argv[1])
    sys.stdout.flush()
    os._exit(0)
