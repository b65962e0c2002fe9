"""Processes that run the waves of local jobs or the transforms after their chains, and the server that forks them.

Command: ``python -m ledgerbeam.pipelines.runners.wave SOCKET IMPORTS LEVEL SCHEME...``, with the descriptor of the
socket for requests, what to import before the first wave (``beam`` or ``chain``), the level of logging, and the URL
schemes of stores whose clients to import.

The launcher watches a wave, and the wave watches the launcher. When the launcher's end of standard input closes, the
whole process group is killed, so no process outlives a killed launcher.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import tempfile
import threading
import traceback
from collections.abc import Sequence
from functools import partial
from typing import Never

import numpy as np

from ledgerbeam._base.forking import ForkServer
from ledgerbeam._base.process import hold_standard_descriptors, show_log
from ledgerbeam.errors import LedgerbeamError
from ledgerbeam.io.storage.client import import_client
from ledgerbeam.ledger.worker.reports import report_error
from ledgerbeam.pipelines.calls.call import refuse_calls
from ledgerbeam.pipelines.jobs.spec import Part
from ledgerbeam.pipelines.runners.chain import run_chain, run_workers, status_of, work_as
from ledgerbeam.pipelines.runners.job_files import DIED, DONE, STARTED, load_job_file, take_import_path, touch
from ledgerbeam.pipelines.runners.waves import BEAM, imports_of
from ledgerbeam.user_code.guards import describe_error, ignore_interrupt

_IN_WORKER = (
    "a worker cannot start a job: the module of the job's function starts one when it is imported; put the call under "
    'if __name__ == "__main__", or the function into another module'
)

_RUNNERS = ("apache_beam", "concurrent", "grpc", "ledgerbeam")  # packages that run threads of the runner


def main(argv: Sequence[str]) -> Never:
    """Import modules for waves, and fork waves until the launcher ends."""
    hold_standard_descriptors()
    waves, imports, level, *schemes = argv
    show_log(level)
    listener = socket.socket(fileno=int(waves))
    if imports == BEAM:
        import ledgerbeam.pipelines.runners.pipeline  # noqa: F401, PLC0415 - after logging is set up: its import logs
    from ledgerbeam.transforms.chain import plan, process, read, write  # noqa: F401, PLC0415

    for scheme in schemes:
        import_client(scheme)
    _Waves(listener).serve(lifeline=0)


class _Waves(ForkServer):
    name = "ledgerbeam-wave"
    leads = True

    def work(self, request: bytes, descriptors: list[int]) -> int:  # noqa: ARG002 - there are none
        content = json.loads(request)
        os.environ.clear()
        os.environ.update(content["environment"])
        tempfile.tempdir = None  # it may have been set before the fork
        np.random.seed(None)  # some versions of NumPy create the generator at import, so all waves would have the same
        launcher = os.dup(0)
        with open(os.devnull, "rb") as nothing:  # children of user code must not read from the launcher
            os.dup2(nothing.fileno(), 0)
        threading.Thread(target=_die_with_launcher, args=(launcher,), daemon=True).start()
        spec_path, part, path, *beam_args = content["arguments"]
        try:
            return _wave(spec_path, part, path, beam_args)
        except LedgerbeamError as error:
            report_error(os.path.dirname(spec_path), error)  # to the launcher, like errors of workers
            return 1


def _wave(spec_path: str, part: Part, path: str, beam_args: Sequence[str]) -> int:
    """Run a wave or the transforms after the chain, on Beam or directly. Return 0, or 1 after a reported error.

    At the end of a wave, each task is done or failed.
    """
    spec = load_job_file(spec_path)
    take_import_path(spec.import_path)
    refuse_calls(_IN_WORKER)
    run_dir = str(spec.run_dir)
    threading.excepthook = lambda failure: _report_thread(run_dir, failure)
    signal.signal(signal.SIGINT, ignore_interrupt)  # the launcher handles the interrupt and ends this process
    on_beam = imports_of(spec, beam_args) == BEAM
    if on_beam:
        from ledgerbeam.pipelines.runners.pipeline import run_locally  # noqa: PLC0415 - `main` has imported it

        work = partial(run_locally, spec, part, path, beam_args)
    else:
        touch(run_dir, STARTED)
        work = partial(run_chain, spec, path)
    if spec.workers == 1:
        status = work_as(spec, 0, work)
    else:
        status = status_of(run_dir, work) if on_beam else run_workers(spec, work)
    if status == 0:
        touch(run_dir, DONE)
    return status


def _report_thread(run_dir: str, failure: threading.ExceptHookArgs) -> None:
    """Report the death of a thread of the runner to the launcher, because other threads may wait for it."""
    for frame, _ in traceback.walk_tb(failure.exc_traceback):
        module = frame.f_globals.get("__name__", "")
        if module not in ("threading", __name__):
            if module.partition(".")[0] in _RUNNERS and failure.exc_value is not None:
                try:
                    touch(run_dir, DIED, describe_error(failure.exc_value))
                except LedgerbeamError:  # on a full disk the file is empty; if there is none, exit
                    if not os.path.exists(os.path.join(run_dir, DIED)):
                        os._exit(1)
            return


def _die_with_launcher(launcher: int) -> None:
    os.read(launcher, 1)
    os.killpg(os.getpgrp(), signal.SIGKILL)


if __name__ == "__main__":
    main(sys.argv[1:])
