"""Python programs that tests run in processes of their own."""

from __future__ import annotations

import subprocess
import sys

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
"""


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
