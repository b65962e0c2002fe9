"""A small campaign of kills over near deduplication."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fault.duplicates import run
from tests.servers import s3


@pytest.mark.slow
@pytest.mark.s3
def test_near_deduplication_on_s3_killed_all_over_its_stages(tmp_path: Path) -> None:
    if missing := s3.missing():
        pytest.skip(missing)
    found = run(20_000, 6, 3, tmp_path)
    assert not found.wrong
    assert found.kills >= 3
