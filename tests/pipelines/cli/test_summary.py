"""The result line of a run."""

from __future__ import annotations

from typing import Any

import pytest

from ledgerbeam.ledger.model.accounts import RecordCounts
from ledgerbeam.pipelines.calls.result import Result
from ledgerbeam.pipelines.cli.call import summary_lines


def stage(done: int, *, complete: bool) -> dict[str, Any]:
    return {"complete": complete, "tasks": {"done": done, "failed": 0}}


def exchange(**values: Any) -> Result:
    """Return an exchange whose second stage is not complete."""
    summary = {
        "submitted": False,
        "records": RecordCounts().as_dict(),
        "sources": {"complete": 0, "open": 8, "failed": 0},
        "tasks": {"done": 15, "failed": 1},
        "done": {"tasks": 3, "written": 5},
        "skipped": 0,
        "gone": 0,
        "stages": {"scatter": stage(12, complete=True), "gather": stage(3, complete=False)},
    }
    return Result("sort", complete=False, summary=summary, **values)


@pytest.mark.parametrize(("interrupted", "word"), [(True, "interrupted: "), (False, "finished: ")])
def test_an_exchange_that_is_not_complete_is_told_by_its_stages(interrupted: bool, word: str) -> None:
    (line,) = summary_lines(exchange(interrupted=interrupted), ["sort"])
    assert line.startswith(f"{word}scatter (complete), gather (3 tasks)")
    assert "0 sources" not in line
