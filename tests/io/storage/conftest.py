"""Places to test against: a local folder, fsspec's memory store and a real S3 server."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

NOBODY = 65534
_numbers = itertools.count()


@dataclass(frozen=True)
class Place:
    """A fresh, empty folder or prefix of some store."""

    url: str
    options: dict[str, Any] | None = None

    def __truediv__(self, name: str) -> str:
        return f"{self.url}/{name}"


@pytest.fixture(params=["local", "memory", pytest.param("s3", marks=pytest.mark.s3)])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """Each kind of store in turn."""
    if request.param == "local":
        return Place(str(tmp_path / "place"))
    if request.param == "memory":
        return Place(f"memory://bucket-{next(_numbers)}")
    return request.getfixturevalue("s3_place")


@pytest.fixture
def s3_place(request: pytest.FixtureRequest) -> Place:
    """A fresh bucket."""
    server = request.getfixturevalue("s3")
    return Place(f"s3://{server.bucket()}", server.options)


@contextmanager
def as_nobody() -> Iterator[None]:
    """Runs without the right of root to read and write everything."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.fixture
def nobody() -> AbstractContextManager[None]:
    """A context in which file permissions count, also for root."""
    return as_nobody()
