"""A process that a user's function forks never does the work of the one that it came from."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ledgerbeam.user_code.forks import children, end_child, user_code
from ledgerbeam.user_code.no_exit import no_exit

RETURNS = """
import os, sys
from ledgerbeam.user_code.forks import user_code
from ledgerbeam.user_code.no_exit import no_exit

def way(how):
    if os.fork():
        os.wait()
    elif how == "raises":
        raise ValueError("in the child")
    elif how == "exits":
        sys.exit(0)

around = {around}
try:
    with around():
        way("{how}")
except BaseException as error:
    print("went on as", error)
print("went on")
"""


@pytest.mark.parametrize("around", ["user_code", "no_exit"])
@pytest.mark.parametrize("how", ["returns", "raises", "exits"])
def test_a_child_that_comes_back_ends_there_with_a_word(around: str, how: str) -> None:
    code = RETURNS.format(around=around, how=how)
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert (ran.returncode, ran.stdout) == (0, "went on\n")
    assert "came back from the function; it ends here" in ran.stderr
    assert len(ran.stderr.splitlines()) == 1


def test_a_child_that_does_its_own_work_is_left_alone(tmp_path: Path) -> None:
    with user_code():
        pid = os.fork()
        if pid == 0:
            try:
                with user_code(), no_exit():  # of its own
                    (tmp_path / "done").write_text(str(children[0]), encoding="utf-8")
            finally:
                os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert (tmp_path / "done").read_text(encoding="utf-8") == str(os.getpid())
    assert children == []


def test_what_is_forked_elsewhere_is_no_child_of_a_function() -> None:
    with user_code():
        pass
    pid = os.fork()
    if pid == 0:
        os._exit(len(children))
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_a_child_without_standard_error_ends_too() -> None:
    pid = os.fork()
    if pid == 0:
        children.append(1)
        os.close(2)
        end_child()
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 1


@pytest.mark.parametrize("is_named", [True, False], ids=["that the process names", "that is left where it names none"])
def test_the_word_goes_to_the_standard_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_named: bool) -> None:
    with open(tmp_path / "said", "w", encoding="utf-8") as said:
        monkeypatch.setattr(sys, "__stderr__", said if is_named else None)
        pid = os.fork()
        if pid == 0:
            children.append(1)
            if not is_named:
                os.dup2(said.fileno(), 2)
            end_child()
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 1
    assert "came back from the function; it ends here" in (tmp_path / "said").read_text(encoding="utf-8")


def test_pools_work() -> None:
    with user_code(), multiprocessing.get_context("fork").Pool(2) as pool:
        assert pool.map(abs, [-1, -2]) == [1, 2]
