"""The fork server of audits: a fresh interpreter that has not imported the user's modules.

Command: ``python -m ledgerbeam.pipelines.runners.audit_server SOCKET JOB``, with the descriptor of the socket for
requests and the file of the job. Its hash seed differs from the workers', so an audit finds results that depend on
the order of a set. The server dies with its launcher.
"""

from __future__ import annotations

import os
import pickle
import signal
import socket
import sys
import time
from collections.abc import Sequence
from typing import Any, Never

from ledgerbeam._base.forking import ForkServer
from ledgerbeam._base.process import hold_standard_descriptors
from ledgerbeam._base.redaction import without_secrets
from ledgerbeam.errors import LedgerbeamError
from ledgerbeam.io.storage.client import import_client
from ledgerbeam.ledger.selection import AuditAnswer, AuditRequest
from ledgerbeam.pipelines.calls.call import refuse_calls
from ledgerbeam.pipelines.runners.job_files import load_job_file, take_import_path
from ledgerbeam.transforms.mapping.audit import AuditedWork, audit_task
from ledgerbeam.user_code.guards import describe_error, ignore_interrupt
from ledgerbeam.user_code.objects import close_objects

_IN_AUDIT = "an audit cannot start a job; put the call in the function's module under if __name__ == '__main__'"


def main(argv: Sequence[str]) -> Never:
    """Fork audits until the launcher ends."""
    hold_standard_descriptors()
    listener, path = argv
    job = load_job_file(path)
    work = job.audited()
    for scheme in job.schemes():
        import_client(scheme)
    _Audits(socket.socket(fileno=int(listener)), work, job.import_path).serve(lifeline=0)


class _Audits(ForkServer):
    name = "ledgerbeam-audt"
    leads = True

    def __init__(self, listener: socket.socket, work: AuditedWork, import_path: tuple[str, ...]) -> None:
        super().__init__(listener)
        self._of = work
        self._import_path = import_path
        self._started = time.process_time()

    def work(self, request: bytes, descriptors: list[int]) -> int:  # noqa: ARG002 - audits have no descriptors
        path, asked = pickle.loads(request)  # noqa: S301 - the server checks that the request comes from the same user
        _silence()
        signal.signal(signal.SIGINT, ignore_interrupt)  # the launcher handles the interrupt and ends this process
        take_import_path(self._import_path)
        refuse_calls(_IN_AUDIT)
        began = time.process_time()
        here = os.getpid()
        answer = self._answer(asked)
        if os.getpid() != here:  # a process that the function forked has returned from it
            os._exit(0)
        with open(f"{path}.part", "wb") as file:
            pickle.dump((answer, time.process_time() - began, self._started), file)
        os.replace(f"{path}.part", path)
        close_objects()
        return 0

    def _answer(self, asked: AuditRequest) -> AuditAnswer:
        try:
            return audit_task(self._of, asked)
        except LedgerbeamError as error:
            return AuditAnswer(problem=str(error))
        except BaseException as error:  # noqa: BLE001 - user code may raise anything
            return AuditAnswer(problem=without_secrets(describe_error(error)))


def _silence() -> None:
    """Discard the output of user code: the workers have shown it already."""
    nothing: Any = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(nothing, number)
    os.close(nothing)


if __name__ == "__main__":
    main(sys.argv[1:])
