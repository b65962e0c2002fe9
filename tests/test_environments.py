"""A sample of the suite passes in whatever environment it is started; the long form is `tests.environments` itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.environments import ENVIRONMENTS, SAMPLE, missing, run

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_the_sample_passes(tmp_path: Path, name: str) -> None:
    why = missing(name)
    if why:
        pytest.skip(why)
    assert run(name, SAMPLE, tmp_path) == 0, (tmp_path / f"{name}.log").read_text(encoding="utf-8", errors="replace")
