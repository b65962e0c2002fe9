"""Closed standard descriptors, and only these, are opened on the null device."""

from __future__ import annotations

import os
import stat
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from itertools import chain, combinations
from pathlib import Path

import pytest

from ledgerbeam._base.process import hold_standard_descriptors

CLOSED = list(chain.from_iterable(combinations(range(3), count) for count in range(4)))


def in_child(act: Callable[[], None], log: Path) -> str:
    """Run a function in a forked process and return its result."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            act()
            status = 0
        except BaseException:  # noqa: BLE001 - the process ends with it
            log.write_text(traceback.format_exc(), encoding="utf-8")
        finally:
            os._exit(status)
    _, status = os.waitpid(child, 0)
    return log.read_text(encoding="utf-8") if log.exists() else f"status {status}" if status else ""


@pytest.mark.parametrize("closed", CLOSED, ids=str)
def test_what_is_closed_is_opened_and_what_is_open_stays(tmp_path: Path, closed: tuple[int, ...]) -> None:
    def act() -> None:
        mine = os.open(tmp_path / "mine", os.O_RDWR | os.O_CREAT)
        for descriptor in range(3):
            os.dup2(mine, descriptor)
        os.close(free := os.dup(mine))
        for descriptor in closed:
            os.close(descriptor)
        hold_standard_descriptors()
        for descriptor in range(3):
            is_null = stat.S_ISCHR(os.fstat(descriptor).st_mode)
            assert is_null == (descriptor in closed)
            assert os.get_inheritable(descriptor)
            if is_null:
                assert os.write(descriptor, b"x") == 1
                assert os.read(descriptor, 1) == b""
        other = os.open(tmp_path / "other", os.O_WRONLY | os.O_CREAT)
        assert other == free  # nothing else was left open

    assert in_child(act, tmp_path / "log") == ""


def test_no_other_descriptor_is_opened(tmp_path: Path) -> None:
    def act() -> None:
        with suppress(OSError):  # it is none
            os.close(3)
        hold_standard_descriptors()
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(3)

    assert in_child(act, tmp_path / "log") == ""


@pytest.mark.parametrize("name", ["stdin", "stdout", "stderr"])
def test_a_stream_that_was_closed_takes_what_is_printed_and_drops_it(tmp_path: Path, name: str) -> None:
    def act() -> None:
        before = {other: getattr(sys, other) for other in ("stdin", "stdout", "stderr")}
        setattr(sys, name, None)
        hold_standard_descriptors()
        for other, stream in before.items():
            assert (getattr(sys, other) is stream) == (other != name)
        if name == "stdin":
            assert sys.stdin.read() == ""
        else:
            print("text \udcff", file=getattr(sys, name), flush=True)

    assert in_child(act, tmp_path / "log") == ""
