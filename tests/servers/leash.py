"""Runs one command so that it, and whatever it starts, ends when the process that asked for it does.

A command line: `leash.py REPORT GRACE REMOVE COMMAND...`. It needs nothing but the standard library. The process id of
the command is written to the descriptor REPORT. When the standard input closes, which it does however the asking
process ends, or on SIGTERM, the whole tree gets SIGTERM, and GRACE seconds later SIGKILL; then the folder REMOVE
(empty for none) is removed.
"""

from __future__ import annotations

import ctypes
import os
import select
import shutil
import signal
import sys
import time
from types import FrameType

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
POLL_SECONDS = 0.02


def descendants(pid: int) -> list[int]:
    """List the living processes below one, parents before their children; zombies do not count."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if not name.isdecimal():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                state, parent = file.read().rpartition(b")")[2].split()[:2]
        except OSError:
            continue  # it has just ended
        if state != b"Z":
            children.setdefault(int(parent), []).append(int(name))
    found = []
    waiting = [pid]
    while waiting:
        below = children.get(waiting.pop(0), [])
        found += below
        waiting += below
    return found


def signal_all(pids: list[int], number: int) -> None:
    """Send a signal to those of the processes that are still there."""
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue


def _start(command: list[str]) -> int:
    leash = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    try:
        # Should the leash itself be killed, its command goes too.
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != leash:
            os._exit(1)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.execvp(command[0], command)
    except OSError as error:
        os.write(2, f"{command[0]}: {error}\n".encode())
    os._exit(127)


def _reap(flags: int) -> dict[int, int]:
    ended = {}
    try:
        while True:
            pid, status = os.waitpid(-1, flags)
            if not pid:
                break
            ended[pid] = os.waitstatus_to_exitcode(status)
    except ChildProcessError:
        pass
    return ended


def _end_tree(grace: float) -> None:
    me = os.getpid()
    signal_all(descendants(me), signal.SIGTERM)
    deadline = time.monotonic() + grace
    while left := descendants(me):
        if time.monotonic() > deadline:
            signal_all(left, signal.SIGKILL)
        time.sleep(POLL_SECONDS)
        _reap(os.WNOHANG)
    _reap(0)  # a process whose threads have not all ended looks like a zombie, but is not gone


def main(report: int, grace: float, remove: str, command: list[str]) -> int:
    """Run the command; return its exit status, or 128 plus the number of the signal that ended it."""
    asked = False

    def on_signal(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        asked = True

    wake, woken = os.pipe()
    os.set_blocking(woken, False)
    signal.set_wakeup_fd(woken)
    signal.signal(signal.SIGTERM, on_signal)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
    pid = _start(command)
    os.write(report, b"%d" % pid)
    os.close(report)
    status: int | None = None
    while status is None and not asked:
        ready, _, _ = select.select([0, wake], [], [])
        if wake in ready:
            os.read(wake, 4096)
        asked = asked or (0 in ready and not os.read(0, 1))
        status = _reap(os.WNOHANG).get(pid)
    _end_tree(grace)
    if remove:
        shutil.rmtree(remove, ignore_errors=True)  # the processes that wrote there are gone
    if status is None:
        return 0
    return status if status >= 0 else 128 - status


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), float(sys.argv[2]), sys.argv[3], sys.argv[4:]))
