from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ledgerbeam.ledger import LedgerStore
from ledgerbeam.ledger.model.job import Job
from ledgerbeam.ledger.opening import open_local_store


@pytest.fixture
def store(tmp_path: Path) -> Iterator[LedgerStore]:
    """A local ledger of a job that has done nothing."""
    made = open_local_store(str(tmp_path / "L"), create=True)
    made.open_job(Job("map", {}))
    yield made
    made.close()
