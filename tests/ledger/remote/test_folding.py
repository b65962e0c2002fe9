"""The collector of cycles is paused while rows are folded, and is as it was before when the last fold has ended."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Iterator

import pytest

from ledgerbeam.ledger.remote.replay import _Pauses, collector_paused


@pytest.fixture(autouse=True)
def _as_it_was() -> Iterator[None]:
    gc.enable()
    yield
    gc.enable()


def test_it_is_off_until_the_last_of_several_has_ended() -> None:
    entered, leave = threading.Event(), threading.Event()

    def other() -> None:
        with collector_paused():
            entered.set()
            leave.wait()

    thread = threading.Thread(target=other)
    with collector_paused():
        thread.start()
        entered.wait()
    assert not gc.isenabled()
    leave.set()
    thread.join()
    assert gc.isenabled()


def test_who_has_switched_it_off_finds_it_off() -> None:
    gc.disable()
    with collector_paused(), collector_paused():
        assert not gc.isenabled()
    assert not gc.isenabled()


def test_an_error_ends_the_pause() -> None:
    with pytest.raises(ValueError, match="what is read"), collector_paused():
        raise ValueError("what is read")
    assert gc.isenabled()


def test_a_process_that_is_forked_waits_for_no_thread_of_its_parent() -> None:
    pauses = _Pauses()
    pauses.begin()
    held = pauses._lock
    with held:  # by a thread that is not in the other process
        pauses.forget_parent()
        assert gc.isenabled()
        pauses.begin()
        assert not gc.isenabled()
        pauses.end()
        assert gc.isenabled()


def test_a_process_that_is_forked_after_a_pause_leaves_it_off_that_was_switched_off_since() -> None:
    with collector_paused():
        pass
    gc.disable()
    child = os.fork()
    if child == 0:
        os._exit(int(gc.isenabled()))
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0


@pytest.mark.parametrize("was_on", [True, False])
def test_a_process_that_is_forked_meanwhile_has_it_as_it_was(was_on: bool) -> None:
    if not was_on:
        gc.disable()
    with collector_paused():
        child = os.fork()
        if child == 0:
            found = gc.isenabled()
            with collector_paused():
                off = not gc.isenabled()
            os._exit(0 if found == was_on and off and gc.isenabled() == was_on else 1)
        _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
