"""Damaged compressed files, read as streams.

`python -m tests.io.compression.test_fuzz_streams INPUTS [SEED]`.
"""

from __future__ import annotations

import bz2
import gzip
import lzma
import random
from pathlib import Path

import lz4.frame
import zstandard

from ledgerbeam.io.compression.streams import BLOCK, decompressed_pieces
from tests.io.fuzzing import Trial, fuzz_briefly, main, mangled

_DATA = random.Random(5).randbytes(400) * 5
_MOST = 32 * BLOCK
"""Greatest size of a block of Zstandard in bytes."""


def compression_trial(_: Path) -> Trial:
    frames = {
        "gzip": gzip.compress(_DATA) + gzip.compress(b"more") + bytes(7),
        "bzip2": bz2.compress(_DATA) + bz2.compress(b"more"),
        "xz": lzma.compress(_DATA, check=lzma.CHECK_CRC32, preset=0) + bytes(4),
        "zstd": zstandard.ZstdCompressor(write_checksum=True).compress(_DATA) + zstandard.compress(b"more"),
        "lz4": lz4.frame.compress(_DATA, content_checksum=True, block_size=lz4.frame.BLOCKSIZE_MAX64KB),
    }

    def trial(chance: random.Random) -> str:
        name = chance.choice(list(frames))
        data = mangled(frames[name], chance, [0, 4, 8, -8, -4], chance.choice([1, 4, 8]))
        cut = chance.randrange(len(data) + 1)
        made = 0
        for block in decompressed_pieces(iter([data[:cut], data[cut:]]), name, "x"):
            assert len(block) <= _MOST
            made += len(block)
        return f"read {name}, {'as it was' if made >= len(_DATA) else 'less'}"

    return trial


def test_damaged_compressed_files_give_typed_errors(tmp_path: Path) -> None:
    outcomes = fuzz_briefly(compression_trial(tmp_path), 800, most=20_000_000, name="x: ")
    assert outcomes["SourceError"] > 500
    assert sum(count for outcome, count in outcomes.items() if outcome.startswith("read ")) > 5


if __name__ == "__main__":
    main(compression_trial)
