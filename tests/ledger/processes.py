"""Python programs that tests run in processes of their own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

PRELUDE = """
import os, sys, time
from ledgerbeam.ledger import *
from ledgerbeam.ledger.lmdb.store import *
from ledgerbeam.ledger.model.identity import *
from ledgerbeam.ledger.model.rows import *
from ledgerbeam.ledger.opening import *
from ledgerbeam.ledger.selection import *
from ledgerbeam.ledger.worker.inflight import *
from ledgerbeam.ledger.worker.writer import *

from tests.ledger.builders import *
from tests.ledger.processes import fork_beside
"""


def fork_beside(lock: AbstractContextManager[Any], act: Callable[[], object]) -> int:
    """Fork while another thread holds a lock; return the exit status of the child, which calls a function."""
    held, go_on = threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            held.set()
            go_on.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    child = os.fork()
    if child == 0:
        signal.alarm(20)  # for a thread that is not there it would wait for ever
        act()
        os._exit(0)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    go_on.set()
    thread.join()
    return status


def start(program: str, *arguments: str) -> subprocess.Popen[str]:
    """Start a program; its arguments are ``sys.argv[1:]``."""
    return subprocess.Popen(
        [sys.executable, "-c", PRELUDE + program, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def finish(process: subprocess.Popen[str]) -> str:
    """Wait for a program that must succeed; return its output."""
    output, errors = process.communicate(timeout=120)
    if process.returncode:
        raise AssertionError(f"exit status {process.returncode}: {errors}")
    return output


def run(program: str, *arguments: str) -> str:
    """Run a program that must succeed; return its output."""
    return finish(start(program, *arguments))
