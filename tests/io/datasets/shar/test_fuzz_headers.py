"""Damaged payloads whose headers become manifests.

Run more: ``python -m tests.io.datasets.shar.test_fuzz_headers INPUTS [SEED]``.
"""

from __future__ import annotations

import io
import random
import struct
from pathlib import Path

import numpy as np

from ledgerbeam.io.datasets.shar.payloads import array_shape, audio_header
from tests.io.damage import damaged, mangled
from tests.io.datasets.shar.content import npy, wav
from tests.io.fuzzing import Trial, fuzz_briefly, main

_NPY = [
    b"(",
    b")",
    b",",
    b"'",
    b"{",
    b"}",
    b"[" * 60,
    b"(" * 200,
    b"-1",
    b"9" * 30,
    b"1L",
    b"\n",
    b"#",
    b"\\",
    b"O",
    b"\xff",
    b"\0",
]


def header_trial(_: Path) -> Trial:
    wide = io.BytesIO()
    np.save(wide, np.zeros((2, 3, 1), [("a", "<u2"), ("b", "S3")]), allow_pickle=False)
    newer = io.BytesIO()
    np.lib.format.write_array(newer, np.arange(5), version=(3, 0))
    arrays = [npy(3), wide.getvalue(), newer.getvalue()]
    flac = (
        b"fLaC\0\0\0\x22"
        + struct.pack(">HH", 4096, 4096)
        + bytes(6)
        + (16000 << 44 | 15 << 36 | 800).to_bytes(8)
        + bytes(16)
    )
    extended = wav(2)
    extended = extended[:12] + b"LIST" + struct.pack("<I", 5) + b"hello\0" + extended[12:]
    audio = [wav(0)[:200], wav(1, channels=2)[:80], extended[:120], wav(3)[:60].replace(b"RIFF", b"RIFX"), flac]

    def trial(chance: random.Random) -> str:
        if chance.random() < 0.5:
            data = mangled(
                chance.choice(audio), chance, [4, 16, 18, 20, 22, 24, 28, 32, 34, 40], width=chance.choice([2, 4])
            )
            found = audio_header(data, "wav")
            assert found.sampling_rate > 0
            assert found.channels > 0
            assert found.samples > 0
            assert data[:4] == b"fLaC" or found.samples <= 8 * len(data)
            return "read audio"
        data = chance.choice(arrays)
        if chance.random() < 0.6:
            at, part = chance.randrange(6, 120), chance.choice(_NPY)
            data = data[:at] + part + data[at + chance.choice([0, len(part)]) :]
            if chance.random() < 0.2:
                data = damaged(data, chance)
        else:
            data = mangled(data, chance, [6, 7, 8, 9], width=chance.choice([1, 2]))
        shape = array_shape(data, "npy")
        assert all(length >= 0 for length in shape)
        return "read an array"

    return trial


def test_damaged_headers_give_typed_errors(tmp_path: Path) -> None:
    outcomes = fuzz_briefly(header_trial(tmp_path), 2000)
    assert outcomes["RecordError"] > 800
    assert min(outcomes["read audio"], outcomes["read an array"]) > 20


if __name__ == "__main__":
    main(header_trial)
