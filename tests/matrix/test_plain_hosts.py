"""The row of plain hosts: three share one job by its ledger alone; one is killed, one stopped, one cut off."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fault.hosts import WORKERS, Plan, run_hosts
from tests.matrix.conftest import notes, rows
from tests.matrix.runs import Row
from tests.servers import hosts

pytestmark = [pytest.mark.s3, pytest.mark.slow, pytest.mark.timeout(900)]

PLAN = Plan(tasks=90, seconds=4.0, starts=(0.0, 5.0, 15.0), killed=40.0, stopped=(45.0, 20.0), cut=(50.0, 10.0))
"""Shorter than `python -m tests.fault.hosts`: its makespan, mostly of starting, is told and not judged."""


def test_plain_hosts_share_a_job(tmp_path: Path) -> None:
    if (missing := hosts.missing()) is not None:
        pytest.skip(missing)
    row = Row("plain hosts")
    rows.append(row)
    row.passed.update(dict.fromkeys(("killed launcher", "identical"), False))
    figures = run_hosts(tmp_path, PLAN)
    row.killed, row.seconds = 1, figures.makespan
    row.passed["identical"] = figures.identical
    row.passed["killed launcher"] = not any(figures.statuses)
    notes.append(f"plain hosts: {'; '.join(' '.join(line.split()) for line in figures.lines())}")
    assert figures.identical
    assert not any(figures.statuses)
    assert figures.ended >= figures.tasks
    # What the dead one had in work, and what was taken over from those that stood still.
    assert figures.begun <= figures.tasks + 4 * WORKERS, list(figures.lines())
    assert all(counts.get("PUT", 0.0) <= 1.2 for counts in figures.claims.values()), figures.claims
