"""Kills of a job that pays for calls: they are paid again only if they were in flight."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fault.paid_calls import run

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def test_kills_on_one_host(tmp_path: Path) -> None:
    figures = run(5, root=tmp_path)
    assert not figures.problems, figures


@pytest.mark.s3
def test_kills_on_two_hosts(tmp_path: Path) -> None:
    figures = run(3, hosts=2, s3=True, root=tmp_path)
    assert not figures.problems, figures
