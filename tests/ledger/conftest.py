"""A fresh ledger in a folder of the test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ledgerbeam.ledger.lmdb.store import LmdbStore


@pytest.fixture
def store(tmp_path: Path) -> Iterator[LmdbStore]:
    made = LmdbStore(str(tmp_path / "ledger"))
    made.open(create=True)
    yield made
    made.close()
