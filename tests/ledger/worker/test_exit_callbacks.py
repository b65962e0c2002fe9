"""Exit callbacks run once each, and only in the process that registered them."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from ledgerbeam.ledger.worker.reports import at_end, end_work


@pytest.fixture(autouse=True)
def _nothing_of_others() -> None:
    end_work()


def test_what_was_added_last_is_called_first_and_all_of_it_once() -> None:
    called: list[int] = []
    for number in range(3):
        at_end(lambda number=number: called.append(number))  # type: ignore[misc]
    end_work()
    assert called == [2, 1, 0]
    end_work()
    assert called == [2, 1, 0]


def test_what_is_called_may_add_more() -> None:
    called: list[str] = []

    def last() -> None:
        called.append("last")
        at_end(lambda: called.append("after it"))

    at_end(lambda: called.append("first"))
    at_end(last)
    end_work()
    assert called == ["last", "after it", "first"]


def test_what_raises_is_not_called_again_and_the_rest_is_left_for_the_next_call() -> None:
    called: list[str] = []

    def refuse() -> None:
        called.append("refused")
        raise ValueError("no")

    at_end(lambda: called.append("first"))
    at_end(refuse)
    with pytest.raises(ValueError, match="no"):
        end_work()
    end_work()
    assert called == ["refused", "first"]


FORKS = """
import os, threading
from ledgerbeam.ledger.worker import exit_callbacks

exit_callbacks.at_end(lambda: print("of", here, flush=True))
here = "the parent"
held, go_on = threading.Event(), threading.Event()

def hold():
    with exit_callbacks._lock:
        held.set()
        go_on.wait()

thread = threading.Thread(target=hold)
thread.start()
held.wait()
child = os.fork()  # while another thread holds the lock
if child == 0:
    here = "the child"
    exit_callbacks.at_end(lambda: print("its own", flush=True))
    exit_callbacks.end_work()
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
go_on.set()
thread.join()
exit_callbacks.end_work()
"""


def test_a_forked_process_ends_what_it_has_begun_alone() -> None:
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", FORKS]
    found = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60, env=dict(os.environ))
    assert found.stdout.splitlines() == ["its own", "of the parent"]
