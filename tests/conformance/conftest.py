"""Peers in processes. `scripts/conformance.sh` makes an environment for each."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from benchmarks.peer import Peer, peer_python

SKIPPED = 'run "make conformance"'


def start(module: str) -> Iterator[Peer]:
    """Start a peer; skip unless the tests run under `make conformance`, where they must not be skipped."""
    if "LEDGERBEAM_CONFORMANCE" not in os.environ:
        pytest.skip(SKIPPED)
    python = peer_python()
    if python is None:
        pytest.fail("the peers' environment is not complete: run scripts/peers.sh")
    with Peer(f"tests.conformance.{module}", python) as peer:
        yield peer


@pytest.fixture(scope="session")
def lhotse() -> Iterator[Peer]:
    yield from start("peer_lhotse")


@pytest.fixture(scope="session")
def webdataset() -> Iterator[Peer]:
    yield from start("peer_webdataset")


@pytest.fixture(scope="session")
def wids() -> Iterator[Peer]:
    yield from start("peer_wids")


@pytest.fixture(scope="session")
def torch_loader() -> Iterator[Peer]:
    yield from start("peer_lit_torch")


@pytest.fixture(scope="session")
def energon() -> Iterator[Peer]:
    yield from start("peer_energon")


@pytest.fixture(scope="session")
def megatron() -> Iterator[Peer]:
    yield from start("peer_megatron")


@pytest.fixture(scope="session")
def torch() -> Iterator[Peer]:
    yield from start("peer_torch")


@pytest.fixture(scope="session")
def columns() -> Iterator[Peer]:
    yield from start("peer_columns")
