"""One clean run for all tests of the suite, and a folder in memory."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fault.campaign import run_clean
from tests.fault.corpus import Clean
from tests.fault.processes import end_all, mark_of_this_process, processes
from tests.fault.replay import memory_folder


@pytest.fixture(scope="session")
def clean(tmp_path_factory: pytest.TempPathFactory) -> Clean:
    """What a run that nobody disturbs leaves."""
    return run_clean(tmp_path_factory.mktemp("fault") / "clean")


@pytest.fixture(autouse=True)
def _leave_nothing() -> Iterator[None]:
    yield
    left = processes(mark_of_this_process())
    end_all()
    assert not left


@pytest.fixture
def memory() -> Iterator[Path]:
    """A folder in memory: what is tested is not the disk."""
    with tempfile.TemporaryDirectory(dir=memory_folder()) as folder:
        yield Path(folder)
