"""A fresh ledger in a folder of the test, and hosts of a fresh remote ledger."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ledgerbeam.ledger.lmdb.store import LmdbStore
from tests.ledger.remote.test_store import Hosts


@pytest.fixture
def store(tmp_path: Path) -> Iterator[LmdbStore]:
    made = LmdbStore(str(tmp_path / "ledger"))
    made.open(create=True)
    yield made
    made.close()


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    hosts = Hosts(tmp_path)
    yield hosts
    hosts.close()
