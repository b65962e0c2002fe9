"""Runs a part of the suite in a table of environments: what shells, schedulers, containers and users hand down.

``python -m tests.environments [NAME ...] [-- PYTEST ARGUMENT ...]``; without names, in each of the table, and ends with
one line for each. Without arguments for pytest, it runs `SAMPLE`.
"""

from __future__ import annotations

import argparse
import os
import pty
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Never

from tests.servers.process import Process

ROOT = Path(__file__).resolve().parents[1]

SAMPLE = (
    "tests/servers/test_process.py",
    "tests/ledger/lmdb/test_kills.py::test_kills_at_named_points",
    "tests/ledger/worker/test_inflight.py",
    "tests/io/storage/test_publish.py",
    "tests/pipelines/runners/test_working_folder.py::test_sigterm_ends_a_job_however_its_parent_had_set_it",
    "tests/pipelines/runners/test_forking.py",
    "tests/test_layers.py",
    *("-m", "not s3 and not stores", "-q", "-n0"),
)
"""Tests of processes, signals, files and words, the quickest of each."""

LIMIT_SECONDS = 900

FOLDER_VARIABLE = "LEDGERBEAM_TEST_FOLDER"

NOBODY = 65_534


@dataclass(frozen=True)
class Surroundings:
    """What a process inherits. None keeps what the caller has."""

    env: Mapping[str, str | None] = field(default_factory=dict)  # None removes a variable
    ignored: Sequence[signal.Signals] = ()  # as `nohup` and a shell's ``&`` leave signals
    blocked: Sequence[signal.Signals] = ()  # signals that wait, as threads of a supervisor leave them
    umask: int | None = None
    closed: Sequence[int] = ()  # descriptors
    terminal: bool = False  # standard input, output and error are one
    user: int | None = None  # id of the user and group
    folder: str = "tmp"  # for temporary files
    home: int | None = None  # mode of an empty home


_SIGNALS = (
    *(signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE, signal.SIGQUIT),
    *(signal.SIGCHLD, signal.SIGALRM, signal.SIGUSR1),
)


def _variables(words: str) -> dict[str, str]:
    return dict(word.split("=") for word in words.split())


ENVIRONMENTS = {
    "background": Surroundings(ignored=(signal.SIGINT, signal.SIGQUIT, signal.SIGHUP), closed=(0,)),
    "ignored": Surroundings(ignored=_SIGNALS),
    "blocked": Surroundings(blocked=_SIGNALS),
    "posix": Surroundings(
        env=_variables(
            "LANG=C LC_ALL=POSIX PYTHONUTF8=0 PYTHONCOERCECLOCALE=0 TERM=dumb NO_COLOR=1 TZ=Asia/Kathmandu "
            "PYTHONHASHSEED=4294967295"
        ),
        umask=0o077,
    ),
    "turkish": Surroundings(
        env={
            **_variables("LANG=tr_TR.UTF-8 LANGUAGE=tr PYTHONUTF8=1 FORCE_COLOR=1 COLUMNS=20"),
            **_variables("TZ=Pacific/Apia PYTHONHASHSEED=0"),
            "LC_ALL": None,
        },
        umask=0,
    ),
    "homeless": Surroundings(env={"HOME": None, "USER": None, "LOGNAME": None, "CI": "true"}, folder="a b'"),
    "no-home": Surroundings(env={"HOME": "/nonexistent", "XDG_CACHE_HOME": None, "CI": None}),
    "terminal": Surroundings(env={"COLUMNS": "20", "TERM": "xterm-256color"}, terminal=True),
    "somebody": Surroundings(user=NOBODY, home=0o700),
}


def missing(name: str) -> str | None:
    """Return why an environment cannot be made here; None when it can."""
    user = ENVIRONMENTS[name].user
    if user is None:
        return None
    if os.geteuid() != 0:
        return "only root becomes somebody else"
    command = [sys.executable, "-c", "import ledgerbeam"]
    try:
        subprocess.run(command, cwd=ROOT, user=user, group=user, capture_output=True, check=True)
    except (PermissionError, subprocess.CalledProcessError) as error:
        return f"another user cannot run {sys.executable} here: {error}"
    return None


def run(name: str, arguments: Sequence[str], logs: Path) -> int:
    """Run pytest in an environment, in a process of its own that prints to `NAME.log`; return its exit status.

    Raises ServerError if it took longer than `LIMIT_SECONDS`.
    """
    with tempfile.TemporaryDirectory(prefix="ledgerbeam-environment-") as folder:
        Path(folder).chmod(0o755)
        command = [sys.executable, "-m", "tests.environments", "--inside", name, "--"]
        # No cache: the folder of the repository may not be the user's.
        pytest = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments]
        env = {FOLDER_VARIABLE: folder, "PYTHONPATH": str(ROOT)}
        with Process([*command, *pytest], name=name, folder=logs, env=env) as process:
            return process.wait(LIMIT_SECONDS)


def enter(around: Surroundings, command: list[str]) -> Never:
    """Turn this process into a command in an environment, or into the terminal of one."""
    root = Path(os.environ.pop(FOLDER_VARIABLE))
    changes: dict[str, str | None] = {"TMPDIR": str(root / around.folder), **around.env}
    Path(root / around.folder).mkdir()
    if around.home is not None:
        changes["HOME"] = str(root / "home")
        (root / "home").mkdir(mode=around.home)
    for name, value in changes.items():
        os.environ.pop(name, None)
        if value is not None:
            os.environ[name] = value
    if around.umask is not None:
        os.umask(around.umask)
    if around.user is not None:
        for path in (root / around.folder, root / "home"):
            os.chown(path, around.user, around.user)
        os.setgroups([])
        os.setgid(around.user)
        os.setuid(around.user)
    for number in around.ignored:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, around.blocked)
    if around.terminal:
        sys.exit(os.waitstatus_to_exitcode(pty.spawn(command)))
    for descriptor in around.closed:
        os.close(descriptor)
    os.execvp(command[0], command)


def main() -> int:
    """Return 0 if the sample passed in every environment."""
    words = sys.argv[1:]
    cut = words.index("--") if "--" in words else len(words)
    parser = argparse.ArgumentParser(prog="python -m tests.environments", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(ENVIRONMENTS)}")
    parser.add_argument("--inside", choices=ENVIRONMENTS, help=argparse.SUPPRESS)
    options = parser.parse_args(words[:cut])
    rest = words[cut + 1 :]
    if options.inside:
        enter(ENVIRONMENTS[options.inside], rest)
    logs = Path(tempfile.mkdtemp(prefix="ledgerbeam-environments-"))
    bad = []
    for name in options.names or ENVIRONMENTS:
        why = missing(name)
        if why:
            print(f"{name:12}  skipped: {why}", flush=True)
            continue
        started = time.monotonic()
        status = run(name, rest or SAMPLE, logs)
        last = (logs / f"{name}.log").read_text(errors="replace").strip().splitlines()[-1:]
        print(f"{name:12}  status {status}, {time.monotonic() - started:.0f} s  {''.join(last)}", flush=True)
        bad += [name] if status else []
    if bad:
        print(f"failed: {' '.join(bad)}; their logs: {logs}")
    else:
        shutil.rmtree(logs)
    return int(bool(bad))


if __name__ == "__main__":
    sys.exit(main())
