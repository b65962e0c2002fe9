"""A process that a function has forked, and that comes back from it, does no work of the task."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ledgerbeam.ledger import Source, Task
from ledgerbeam.transforms import GroupRecords, MapRecords
from ledgerbeam.user_code.guards import running_user_code
from tests.transforms.exchange.test_gather import exchange

HERE = __name__
calls: list[int] = []


@pytest.fixture(autouse=True)
def _noted(tmp_path: Path) -> Iterator[None]:
    calls[:] = [os.open(tmp_path / "calls", os.O_CREAT | os.O_APPEND | os.O_WRONLY)]
    yield
    os.close(calls.pop())


def forks_once(value: Any) -> Any:
    """Note a call of this process or of a child; the first call forks, and waits for what the child does."""
    os.write(calls[0], b".")
    if os.fstat(calls[0]).st_size == 1 and (child := os.fork()):
        os.waitpid(child, 0)
    return value


def forks_in_group(key: Any, records: Any) -> Any:
    return list(forks_once(records))


def task_of(count: int) -> Task:
    return Task(Source("/data/a.jsonl", 100, "1"), 0, count, ((0, 1),), [{"id": number} for number in range(count)])


@pytest.mark.parametrize(("batch", "expected"), [(None, 6), (2, 3)])
def test_of_records_and_batches(tmp_path: Path, batch: int | None, expected: int) -> None:
    mapper = MapRecords(f"{HERE}:forks_once", "jsonl", batch=batch)
    with running_user_code():
        mapper(task_of(6))
    assert (tmp_path / "calls").stat().st_size == expected


def test_of_groups(tmp_path: Path) -> None:
    stages = exchange(tmp_path, [{"k": number} for number in range(4)])
    with running_user_code():
        stages.gather(GroupRecords(forks_in_group, "jsonl", by="k"))
    assert (tmp_path / "calls").stat().st_size == 4
