"""User code that would end the launcher at once, as if all were done."""

from __future__ import annotations

import importlib
import multiprocessing
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from ledgerbeam.user_code import guards as no_exit_module
from ledgerbeam.user_code.guards import children, end_child, no_exit, raised_at, running_user_code
from tests.cases import each


def test_it_is_an_exception_here_and_an_end_in_children() -> None:
    real = os._exit
    with no_exit():
        named = os._exit
        with pytest.raises(SystemExit, match=r"os\._exit\(3\)"):
            os._exit(3)
        for end in (os._exit, named):
            child = os.fork()
            if not child:
                end(5)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 5
    assert os._exit is real
    child = os.fork()
    if not child:
        named(6)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 6


def test_the_first_of_two_threads_to_leave_does_not_open_the_door() -> None:
    real, entered, leave = os._exit, threading.Event(), threading.Event()

    def other() -> None:
        with no_exit():
            entered.set()
            leave.wait(30)

    thread = threading.Thread(target=other)
    with no_exit():
        thread.start()
        assert entered.wait(30)
    with pytest.raises(SystemExit):
        os._exit(4)  # not 0: if it ended this process, all tests would seem to have passed
    leave.set()
    thread.join()
    assert os._exit is real


def test_who_has_kept_the_name_ends_the_process_once_all_have_left(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[int] = []
    with no_exit():
        named = os._exit
    monkeypatch.setattr(no_exit_module, "_real", ended.append)
    with pytest.raises(SystemExit):  # the process of this test continues
        named(7)
    assert ended == [7]


RETURNS = """
import os, sys
from ledgerbeam.user_code.guards import running_user_code
from ledgerbeam.user_code.guards import no_exit

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


@each("around", ["running_user_code", "no_exit"])
@each("how", ["returns", "raises", "exits"])
def test_a_child_that_comes_back_ends_there_with_a_word(around: str, how: str) -> None:
    code = RETURNS.format(around=around, how=how)
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert (ran.returncode, ran.stdout) == (0, "went on\n")
    assert "returned from the function; it ends here" in ran.stderr
    assert len(ran.stderr.splitlines()) == 1


def test_a_child_that_does_its_own_work_is_left_alone(tmp_path: Path) -> None:
    with running_user_code():
        pid = os.fork()
        if pid == 0:
            try:
                with running_user_code(), no_exit():  # of this process
                    (tmp_path / "done").write_text(str(children[0]), encoding="utf-8")
            finally:
                os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert (tmp_path / "done").read_text(encoding="utf-8") == str(os.getpid())
    assert children == []


def test_what_is_forked_elsewhere_is_no_child_of_a_function() -> None:
    with running_user_code():
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
    assert "returned from the function; it ends here" in (tmp_path / "said").read_text(encoding="utf-8")


def test_pools_work() -> None:
    with running_user_code(), multiprocessing.get_context("fork").Pool(2) as pool:
        assert pool.map(abs, [-1, -2]) == [1, 2]


CODE = "def fall():\n    raise ValueError('down')\n"


@pytest.mark.parametrize(
    ("module", "path"),
    [
        ("stumbling", "stumbling.py"),
        ("stumbled.over", "stumbled/over.py"),
        ("stumbled.deep.over", "stumbled/deep/over.py"),
        ("stumbled.deep", "stumbled/deep/__init__.py"),
    ],
)
def test_the_folder_of_an_installation_is_no_part_of_a_place(
    module: str, path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / path
    for folder in file.relative_to(tmp_path).parents[:-1]:
        (tmp_path / folder).mkdir(exist_ok=True, parents=True)
        (tmp_path / folder / "__init__.py").touch()
    file.write_text(CODE)
    monkeypatch.syspath_prepend(tmp_path)
    for name in [name for name in sys.modules if name.startswith("stumbl")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(ValueError, match="down") as caught:
        importlib.import_module(module).fall()
    assert raised_at(caught.value) == f"{path}:2"


def test_what_was_never_raised_has_no_place() -> None:
    assert raised_at(ValueError("down")) == ""


def test_the_place_is_that_of_the_innermost_call() -> None:
    names: dict[str, Any] = {"__name__": "deep.down"}
    source = "def first(): second()\ndef second(): third()\ndef third(): raise ValueError\nfirst()\n"
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - it has no message
        exec(compile(source, "/a/b/deep/down.py", "exec"), names)
    assert raised_at(caught.value) == "deep/down.py:3"


@pytest.mark.parametrize("names", [{}, {"__name__": 5}, {"__name__": None}])
def test_of_code_without_a_module_the_file_alone_is_told(names: dict[str, Any]) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - it has no message
        exec(compile("raise ValueError", "/a/b/cell.py", "exec"), dict(names))
    assert raised_at(caught.value) == "cell.py:1"
