"""Fixtures for tests of io: stores, and the two implementations of the hot loops.

The stores are a local folder, fsspec's memory store, an S3 server, and emulators of GCS and Azure.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ledgerbeam.io import native
from tests.servers.azure import AzureServer
from tests.servers.gcs import GcsServer

STORES = (
    pytest.param("s3", marks=pytest.mark.s3),
    pytest.param("gcs", marks=pytest.mark.stores),
    pytest.param("azure", marks=pytest.mark.stores),
)
NOBODY = 65534
_numbers = itertools.count()


@dataclass(frozen=True)
class Place:
    """A fresh, empty folder or prefix of some store."""

    url: str
    options: dict[str, Any] | None = None

    def __truediv__(self, name: str) -> str:
        return f"{self.url}/{name}"


@pytest.fixture(params=["local", "memory", *STORES])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """Each kind of store in turn."""
    if request.param == "local":
        return Place(str(tmp_path / "place"))
    if request.param == "memory":
        return Place(f"memory://bucket-{next(_numbers)}")
    return store_place(request)


def store_place(request: pytest.FixtureRequest) -> Place:
    """Return a fresh bucket of the store in the parameter of a fixture, one of `STORES`."""
    if request.param == "s3":
        return request.getfixturevalue("s3_place")
    server: GcsServer | AzureServer = request.getfixturevalue(request.param)
    return Place(server.place(), server.options)


@pytest.fixture
def s3_place(request: pytest.FixtureRequest) -> Place:
    """A fresh bucket."""
    server = request.getfixturevalue("s3")
    return Place(f"s3://{server.bucket()}", server.options)


@contextmanager
def as_nobody() -> Iterator[None]:
    """Run without root's permission to read and write everything."""
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


@pytest.fixture(scope="module", params=["compiled", "python"])
def implementation(request: pytest.FixtureRequest) -> Iterator[str]:
    """Run all tests of a module with the compiled module, then with Python."""
    if request.param == "compiled" and native.compiled is None:
        pytest.skip('no compiled module: run "make setup" where there is a C compiler, LEDGERBEAM_PURE_PYTHON unset')
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "python":
            patch.setattr(native, "compiled", None)
        yield request.param
