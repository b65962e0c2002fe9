"""Processes that run the waves of local jobs or the transforms after their chains, and the server that forks them.

Command: ``python -m ledgerbeam.pipelines.runners.wave WAVES AHEAD PARTS LEVEL SCHEME...``, with the descriptors of the
sockets for requests of waves and of indexes ahead, the parts of Beam to import, the level of logging, and the URL
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
from contextlib import suppress
from typing import Never, cast

import numpy as np

from ledgerbeam._base.process import BeamParts, beam_parts, hold_standard_descriptors, show_log
from ledgerbeam.errors import LedgerbeamError
from ledgerbeam.io.storage.client import import_client
from ledgerbeam.ledger.worker.inflight import InflightMarks
from ledgerbeam.ledger.worker.reports import report_error
from ledgerbeam.ledger.worker.writer import close_shared_writers
from ledgerbeam.pipelines.calls.call import refuse_calls
from ledgerbeam.pipelines.jobs.spec import Part
from ledgerbeam.pipelines.runners.forking import ForkServer, fork_to
from ledgerbeam.pipelines.runners.job_files import DIED, DONE, TRACEBACK, load_job_file, take_import_path, touch
from ledgerbeam.pipelines.runners.waves import make_indexes
from ledgerbeam.user_code.guards import describe_error, ignore_interrupt

_IN_WORKER = (
    "a worker of a job called for a job: the module of its function does so when it is imported; put the call under "
    'if __name__ == "__main__", or the function into a module of its own'
)

_RUNNERS = ("apache_beam", "concurrent", "grpc", "ledgerbeam")  # packages that run threads of the runner


def main(argv: Sequence[str]) -> Never:
    """Import modules for waves, and fork waves until the launcher ends."""
    hold_standard_descriptors()
    waves, ahead, parts, level, *schemes = argv
    show_log(level)
    listener = socket.socket(fileno=int(waves))
    with socket.socket(fileno=int(ahead)) as listener_ahead:
        fork_to(lambda: _ahead(listener_ahead, listener), "ledgerbeam-idxs")
    with beam_parts(cast(BeamParts, parts)):  # after logging is set up, because the import of Beam logs
        import ledgerbeam.pipelines.runners.pipeline  # noqa: F401, PLC0415
        from ledgerbeam.transforms.chain import commit, plan, process, read, write  # noqa: F401, PLC0415
    for scheme in schemes:
        import_client(scheme)
    _Waves(listener).serve(lifeline=0)


def _ahead(listener_ahead: socket.socket, waves: socket.socket) -> Never:
    """Fork processes that build indexes ahead, until the server of waves ends."""
    waves.close()
    _Ahead(listener_ahead).serve()


class _Waves(ForkServer):
    name = "ledgerbeam-wave"
    leads = True

    def work(self, request: bytes, descriptors: list[int]) -> int:  # noqa: ARG002 - there are none
        arguments = _apply_request(request)
        tempfile.tempdir = None  # it may have been set before the fork
        np.random.seed(None)  # some versions of NumPy create the generator at import, so all waves would have the same
        return _wave(arguments)


class _Ahead(ForkServer):
    name = "ledgerbeam-idx"
    leads = True

    def work(self, request: bytes, descriptors: list[int]) -> int:  # noqa: ARG002 - there are none
        with suppress(LedgerbeamError):  # the list or the folder was removed, because no more indexes are wanted
            make_indexes(*_apply_request(request))
        return 0


def _apply_request(request: bytes) -> list[str]:
    """Apply the environment of a request from the launcher; return the arguments."""
    content = json.loads(request)
    os.environ.clear()
    os.environ.update(content["environment"])
    return content["arguments"]


def _wave(arguments: Sequence[str]) -> int:
    """Run one part of a job. Return 0 when it is done; for a wave, when every task has been done or has failed.

    A LedgerbeamError that ends this process is left for the launcher, like errors of workers, and the status is 1.
    """
    launcher = os.dup(0)
    with open(os.devnull, "rb") as nothing:  # children of user code must not read from the launcher
        os.dup2(nothing.fileno(), 0)
    threading.Thread(target=_die_with_launcher, args=(launcher,), daemon=True).start()
    spec_path, part, path, *beam_args = arguments
    try:
        return _run_part(spec_path, cast(Part, part), path, beam_args)
    except LedgerbeamError as error:
        report_error(os.path.dirname(spec_path), error)
        return 1


def _run_part(spec_path: str, part: Part, path: str, beam_args: Sequence[str]) -> int:
    spec = load_job_file(spec_path)
    take_import_path(spec.import_path)
    refuse_calls(_IN_WORKER)
    run_dir = str(spec.run_dir)
    threading.excepthook = lambda failure: _report_thread(run_dir, failure)
    signal.signal(signal.SIGINT, ignore_interrupt)  # the launcher handles the interrupt and ends this process
    if spec.workers == 1:
        InflightMarks(run_dir).register()
    from ledgerbeam.pipelines.runners.pipeline import run_locally  # noqa: PLC0415 - `main` has imported it

    try:
        run_locally(spec, part, path, beam_args)
    except Exception as error:
        with suppress(LedgerbeamError):  # the error that ended the wave is reported
            close_shared_writers()
        if isinstance(error, LedgerbeamError):
            raise
        touch(run_dir, TRACEBACK, traceback.format_exc())
        return 1
    touch(run_dir, DONE)
    return 0


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
