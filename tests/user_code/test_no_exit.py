"""User code that would end the launcher at once, as if all were done."""

from __future__ import annotations

import os
import threading

import pytest

from ledgerbeam.user_code import no_exit as no_exit_module
from ledgerbeam.user_code.no_exit import no_exit


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
    with pytest.raises(SystemExit):  # the process of this test goes on
        named(7)
    assert ended == [7]
