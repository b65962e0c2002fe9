"""Each mistake that has a name makes the test fail that is named beside it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.mutation.loading import ROOT
from tests.mutation.named import NAMED, mutant_of


@pytest.mark.parametrize("name", NAMED)
def test_a_mistake_stands_in_the_code_as_it_is(name: str) -> None:
    mutant_of(name, NAMED[name])


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_every_mistake_fails_its_test() -> None:
    command = [sys.executable, "-m", "tests.mutation.named"]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout + found.stderr
