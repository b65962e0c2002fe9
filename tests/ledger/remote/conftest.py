from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.ledger.remote.test_store import Hosts


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    """Hosts of one remote ledger; their stores are closed behind the test."""
    hosts = Hosts(tmp_path)
    yield hosts
    hosts.close()
