"""Damaged Parquet and Arrow files: typed errors only.

A long run: `python -m tests.io.columns.test_fuzz parquet|arrow INPUTS [SEED [FIRST]]`. What ends the process is kept
as a file in the working folder.
"""

from __future__ import annotations

import multiprocessing
import random
import resource
import sys
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import cache, partial
from pathlib import Path

import pytest

from ledgerbeam.errors import RecordError
from ledgerbeam.io import ArrowFormat, ParquetFormat
from tests.io.columns.tables import COMPRESSIONS, arrow_bytes, parquet_bytes, table
from tests.io.fuzzing import NUMBERS, fuzz, mangled

_ROOM = 2 << 30
_CHUNK = 5000


@cache
def parquet_files() -> list[bytes]:
    """Return small sound files of all types, compressions, encodings and versions of pages."""
    found = [parquet_bytes(table(9), compression=name, row_group_size=4) for name in COMPRESSIONS]
    narrow = ["int64", "string", "list", "decimal", "fixed"]
    found += [
        parquet_bytes(
            table(40, *narrow),
            compression="zstd" if is_dictionary else "none",
            data_page_version=version,
            use_dictionary=is_dictionary,
            write_page_index=True,
            write_page_checksum=version == "1.0",
            data_page_size=64,
        )
        for version in ("1.0", "2.0")
        for is_dictionary in (True, False)
    ]
    encodings = {"int64": "DELTA_BINARY_PACKED", "string": "DELTA_BYTE_ARRAY", "binary": "DELTA_LENGTH_BYTE_ARRAY"}
    encodings |= {"float64": "BYTE_STREAM_SPLIT", "bool": "RLE"}
    found.append(parquet_bytes(table(40, *encodings), use_dictionary=False, column_encoding=encodings))
    found += [
        parquet_bytes(table(40, name), compression="none") for name in ("string", "list", "struct", "map", "words")
    ]
    found.append(parquet_bytes(table(0, "int64")))
    return found


@cache
def arrow_files() -> list[bytes]:
    """Return small sound files of all types and compressions."""
    found = [arrow_bytes(table(9), 4, compression) for compression in (None, "lz4", "zstd")]
    found += [
        arrow_bytes(table(20, name)) for name in ("string", "list", "struct", "map", "words", "string_view", "json")
    ]
    found.append(arrow_bytes(table(0, "int64")))
    return found


def _damaged(sound: bytes, footer: int, end: int, chance: random.Random) -> bytes:
    """Damage a file; mostly its footer, mostly so that the length of that fits again; `end` bytes follow it."""
    begin = len(sound) - end - footer
    what = chance.random()
    if what < 0.3:
        return mangled(sound, chance, (-8, -10), 4)
    if what < 0.6:
        changed = mangled(sound[begin : begin + footer], chance)
        return sound[:begin] + changed + len(changed).to_bytes(4, "little") + sound[len(sound) - end + 4 :]
    data = bytearray(sound)
    for _ in range(chance.choice([1, 1, 2, 4])):
        low, high = (begin, begin + footer) if chance.random() < 0.5 else (0, begin)
        at = chance.randrange(low, max(high, low + 1))
        if chance.random() < 0.5:
            data[at] = chance.choice((0, 1, 127, 128, 255, chance.randrange(256)))
        else:
            size = chance.choice([2, 4, 8])
            data[at : at + size] = (chance.choice(NUMBERS) & (1 << 8 * size) - 1).to_bytes(size, "little")
    return bytes(data)


# By name: the format, its sound files, and the bytes after the length of the footer.
KINDS: dict[str, tuple[ParquetFormat | ArrowFormat, Callable[[], list[bytes]], int]] = {
    "parquet": (ParquetFormat(), parquet_files, 8),
    "arrow": (ArrowFormat(), arrow_files, 10),
}


def damaged_file(what: str, chance: random.Random) -> bytes:
    """Return a damaged file of a format."""
    _, files, end = KINDS[what]
    sound = chance.choice(files())
    return _damaged(sound, int.from_bytes(sound[-end : 4 - end], "little"), end, chance)


def trial(what: str, chance: random.Random) -> str:
    """Read a damaged file of a format."""
    with KINDS[what][0].open_bytes(damaged_file(what, chance), f"x.{what}") as reader:
        count = len(reader)
        for start in range(0, min(count, 10_000), 1000):
            try:
                reader.read_span(start, min(start + 1000, count))
            except RecordError:
                reader.read_raw(start, min(start + 10, count))
                raise
        reader.facts()
    return "read"


_reading = multiprocessing.Value("q")  # number of the input that is read, in memory that processes share


def main() -> None:
    """Do a long run in processes of limited memory; the death of one is the end of one input only."""
    what, inputs, seed, first = [*sys.argv[1:], "1", "0"][:4]
    outcomes: Counter[str] = Counter()
    started, number, end = time.monotonic(), int(first), int(first) + int(inputs)
    while number < end:
        numbers = range(number, min(number + _CHUNK, end))
        number = numbers.stop
        with ProcessPoolExecutor(1, multiprocessing.get_context("fork")) as pool:
            try:
                outcomes += pool.submit(_work, what, int(seed), numbers).result()
            except BrokenProcessPool:
                number = _reading.value + 1
                outcomes["died"] += 1
                keep(what, int(seed), _reading.value)
        print(f"{number - int(first):,} in {time.monotonic() - started:,.0f} s: {dict(outcomes)}", flush=True)


def _work(what: str, seed: int, numbers: range) -> Counter[str]:
    resource.setrlimit(resource.RLIMIT_AS, (_ROOM, -1))
    outcomes: Counter[str] = Counter()
    for number in numbers:
        _reading.value = number
        outcomes += fuzz(partial(trial, what), 1, seed, first=number, name="x.")
    return outcomes


def keep(what: str, seed: int, number: int) -> None:
    """Write an input that ends the process to the working folder."""
    chance = random.Random()
    chance.seed(seed << 40 | number)
    Path(f"{what}-{seed}-{number}.bin").write_bytes(damaged_file(what, chance))
    print(f"input {number} of seed {seed} ends the process: {what}-{seed}-{number}.bin", flush=True)


@pytest.mark.slow
@pytest.mark.parametrize("what", KINDS)
def test_damaged_files_give_typed_errors_only(what: str) -> None:
    outcomes = fuzz(partial(trial, what), 1500, 1, name="x.")
    assert outcomes["read"] > 50
    assert outcomes["SourceError"] > 500


if __name__ == "__main__":
    main()
