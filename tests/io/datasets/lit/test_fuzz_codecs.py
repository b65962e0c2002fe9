"""Damaged members of LIT samples, by codec: `python -m tests.io.datasets.lit.test_fuzz_codecs INPUTS [SEED]`.

A codec may raise any error of a decoder, which `LitDataset` turns into RecordError. Its memory is bounded: for the
run-length code by the limit of values, for all others by the size of the member.
"""

from __future__ import annotations

import random
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from ledgerbeam.errors import RecordError
from ledgerbeam.io.datasets.audio import Audio
from ledgerbeam.io.datasets.lit.codecs import CODECS, MOST_LABELS, decode_rle
from tests.io.damage import damaged, mangled
from tests.io.fuzzing import Trial, fuzz_briefly, main

_MOST_VALUES = 100_000


def codec_trial(_: Path) -> Trial:
    labels = np.arange(48, dtype=np.uint16).reshape(6, 8) // 5
    values = {
        "CLS": 7,
        "CSV": [["a", "b"], ["c, d", "e"]],
        "TXT": "some text",
        "MP4": b"\0\0\0\x18ftypisom",
        "NPZ": {"a": labels, "b": labels[0]},
        "WAV": (labels.astype(np.int16).ravel(), 8000),
        "JSON": {"a": [1, 2.5, "x"], "b": None},
        "NPY": labels,
        "RLE": labels.astype(np.int32),
        "SEG8": labels.astype(np.uint8),
        "SEG16": labels,
        "SEG24": labels.astype(np.uint32) * 70_000,
        "SEG32": labels.astype(np.uint32) * 2**24,
    }
    members = {name: CODECS[name].encode(value, name.lower()) for name, value in values.items()}
    fields = {"RLE": [1, 9, 17, 25], "SEG8": [16, 20, 24], "NPY": [8], "NPZ": [18, 22], "WAV": [4, 16, 22, 40]}

    def trial(chance: random.Random) -> str:
        name = chance.choice(list(members))
        if name in ("CLS", "CSV", "JSON", "MP4", "TXT"):
            data = damaged(members[name], chance)
        else:
            places = fields.get("SEG8" if name.startswith("SEG") else name, [])
            data = mangled(members[name], chance, places, 4 if name.startswith("SEG") else 8)
            if name.startswith("SEG") and chance.random() < 0.7:
                data = _summed(data)
        try:
            found: Any = decode_rle(data, _MOST_VALUES) if name == "RLE" else CODECS[name].decode(data)
        except MemoryError:
            raise
        except Exception as error:  # `LitDataset` does so too
            raise RecordError(name) from error
        if isinstance(found, Audio):
            assert found.samples.nbytes <= 4 * len(data)
        if isinstance(found, np.ndarray):
            assert found.size <= _MOST_VALUES if name == "RLE" else found.nbytes <= 4 * MOST_LABELS * len(data)
        return f"{name} read"

    return trial


def _summed(data: bytes) -> bytes:
    """Make the checksum of a PNG's first chunk fit again."""
    return data[:29] + zlib.crc32(data[12:29]).to_bytes(4) + data[33:] if len(data) > 33 else data


def test_damaged_members_take_little_memory(tmp_path: Path) -> None:
    outcomes = fuzz_briefly(codec_trial(tmp_path), 1500)
    assert outcomes["RecordError"] > 500
    for name in ("CLS", "CSV", "JSON", "NPY", "NPZ", "RLE", "TXT", "WAV", "SEG8", "SEG16", "SEG24", "SEG32"):
        assert outcomes[f"{name} read"] > 5


if __name__ == "__main__":
    main(codec_trial)
