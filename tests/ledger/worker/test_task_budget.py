"""One limit for all workers of a wave: each task is begun by one of them, and no more than there may be."""

from __future__ import annotations

import fcntl
import threading
from pathlib import Path

import pytest

from ledgerbeam.errors import StorageError
from ledgerbeam.ledger.worker.run_folders import TaskBudget


def test_workers_take_what_is_left_and_no_more(tmp_path: Path) -> None:
    budget = TaskBudget.below(str(tmp_path))
    budget.make(1200)
    assert budget.left() == 1200
    assert [budget.claim(tasks) for tasks in (1000, 150, 0, 60, 1)] == [1000, 150, 0, 50, 0]
    assert budget.left() == 0
    assert (tmp_path / "task-budget").read_bytes() == b"0".rjust(20), "a shorter number leaves digits of a longer one"


def test_a_budget_is_made_once(tmp_path: Path) -> None:
    budget = TaskBudget.below(str(tmp_path))
    budget.make(3)
    with pytest.raises(StorageError, match="task-budget: cannot be written"):
        budget.make(4)
    assert budget.left() == 3


def test_two_workers_do_not_take_the_same_task(tmp_path: Path) -> None:
    budget, granted = TaskBudget.below(str(tmp_path)), list[int]()
    budget.make(1)
    with open(budget.path, "r+", encoding="ascii") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        thread = threading.Thread(target=lambda: granted.append(budget.claim(1)))
        thread.start()
        thread.join(0.1)
        assert granted == []
        other.write("0".rjust(20))
    thread.join()
    assert granted == [0]
