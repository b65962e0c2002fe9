"""Audio, arrays and messages that we encode, as lhotse, webdataset and the libraries of the formats read them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.peer import Peer
from tests.conformance.conftest import start


@pytest.fixture(scope="module")
def payloads() -> Iterator[Peer]:
    yield from start("peer_payloads")


def test_lhotse_reads_what_was_written_from_arrays(payloads: Peer, tmp_path: Path) -> None:
    found = payloads.ask("shar", folder=str(tmp_path), count=8)
    assert [cut["id"] for cut in found] == [f"cut-{number}" for number in range(8)]
    for number, cut in enumerate(found):
        assert cut["type"] == ("MultiCut" if number % 2 else "MonoCut")
        assert cut["duration"] == pytest.approx(1 + number / 100)
        assert cut["label"] == f"label-{number}"
        assert cut["same"]
        lossless, *lossy = cut["custom"]
        assert lossless <= 1 / 32768
        assert max(lossy) < 0.05
        assert cut["vector"] == (list(range(number)) if number % 3 else None)
        assert cut["track"] == ([float(number)] * 2 if number % 3 else None)
        assert cut["frames"] == (100 if number % 3 else None)


def test_wav_is_the_bytes_that_lhotse_writes(payloads: Peer) -> None:
    for ours, theirs in payloads.ask("wav_bytes"):
        assert ours == theirs


def test_codecs_that_need_packages(payloads: Peer) -> None:
    found = payloads.ask("codecs")
    assert found["flac"] <= 1 / 32768
    assert found["same flac"] is True
    assert found["mp3"] < 0.05
    assert found["float wav"] == 0
    assert found["msgpack"] is True
    assert found["webdataset txt"] is True
    assert found["webdataset msgpack"] is True
    assert found["webdataset npz"] == [0, 1, 2]
    assert found["no mp3"].startswith("ValueError: expected audio that mp3 can hold, found (2, 16000) at 7 Hz")
    assert "Error" in found["no audio"]
