"""Peers in processes. `scripts/conformance.sh` makes an environment for each."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.peer import Peer, peer_python

SKIPPED = 'run "make conformance"'


def run_ledgerbeam(folder: Path, *words: str) -> None:
    command = [sys.executable, "-m", "ledgerbeam", *words]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def _peer(module: str) -> Any:
    """Return a fixture of a peer. It skips unless the tests run under `make conformance`, where it must not skip."""

    @pytest.fixture(scope="session")
    def peer() -> Iterator[Peer]:
        if "LEDGERBEAM_CONFORMANCE" not in os.environ:
            pytest.skip(SKIPPED)
        python = peer_python()
        if python is None:
            pytest.fail("the peers' environment is not complete: run scripts/peers.sh")
        with Peer(f"tests.conformance.{module}", python) as started:
            yield started

    return peer


lhotse = _peer("peer_lhotse")
webdataset = _peer("peer_webdataset")
wids = _peer("peer_wids")
torch_loader = _peer("peer_lit_torch")
energon = _peer("peer_energon")
megatron = _peer("peer_megatron")
torch = _peer("peer_torch")
columns = _peer("peer_columns")
payloads = _peer("peer_payloads")
packs = nodes = _peer("peer_lhotse_graph")
samplers = _peer("peer_lhotse_sampler")
