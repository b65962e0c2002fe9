"""Damaged Parquet and Arrow files: typed errors only.

A long run: `python -m tests.io.columns.test_fuzz parquet|arrow INPUTS [SEED [FIRST]]`. What ends the process is kept
as a file in the working folder.
"""

from __future__ import annotations

import mmap
import os
import random
import resource
import sys
import time
from collections import Counter
from collections.abc import Callable
from functools import cache

import pytest

from ledgerbeam.errors import RecordError
from ledgerbeam.io import ArrowFormat, ParquetFormat
from tests.io.columns.tables import COMPRESSIONS, arrow_bytes, parquet_bytes, table
from tests.io.fuzzing import NUMBERS, Trial, fuzz, mangled

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


def damaged_parquet(chance: random.Random) -> bytes:
    """Return a damaged Parquet file."""
    sound = chance.choice(parquet_files())
    return _damaged(sound, int.from_bytes(sound[-8:-4], "little"), 8, chance)


def damaged_arrow(chance: random.Random) -> bytes:
    """Return a damaged Arrow file."""
    sound = chance.choice(arrow_files())
    return _damaged(sound, int.from_bytes(sound[-10:-6], "little"), 10, chance)


def parquet_trial(chance: random.Random) -> str:
    """Read a damaged Parquet file."""
    with ParquetFormat().open_bytes(damaged_parquet(chance), "x.parquet") as reader:
        return _read(reader)


def arrow_trial(chance: random.Random) -> str:
    """Read a damaged Arrow file."""
    with ArrowFormat().open_bytes(damaged_arrow(chance), "x.arrow") as reader:
        return _read(reader)


def _read(reader: object) -> str:
    count = len(reader)  # type: ignore[arg-type]
    for start in range(0, min(count, 10_000), 1000):
        try:
            reader.read_span(start, min(start + 1000, count))  # type: ignore[attr-defined]
        except RecordError:
            reader.read_raw(start, min(start + 10, count))  # type: ignore[attr-defined]
            raise
    reader.facts()  # type: ignore[attr-defined]
    return "read"


TRIALS: dict[str, tuple[Trial, Callable[[random.Random], bytes]]] = {
    "parquet": (parquet_trial, damaged_parquet),
    "arrow": (arrow_trial, damaged_arrow),
}


def main() -> None:
    """Do a long run in processes of limited memory; the death of one is the end of one input only."""
    what, inputs, seed, first = [*sys.argv[1:], "1", "0"][:4]
    trial, make = TRIALS[what]
    place = mmap.mmap(-1, 8)
    outcomes: Counter[str] = Counter()
    started, number, end = time.monotonic(), int(first), int(first) + int(inputs)
    while number < end:
        stop = min(number + _CHUNK, end)
        reading, writing = os.pipe()
        child = os.fork()
        if not child:
            _work(trial, int(seed), range(number, stop), place, writing)
        os.close(writing)
        with open(reading, "rb") as told:
            lines = told.read().decode().splitlines()
        _, status, used = os.wait4(child, 0)
        outcomes.update(lines)
        if status:
            died = int.from_bytes(place[:8], "little")
            name = f"{what}-{seed}-{died}.bin"
            data = make(_chance(int(seed), died))
            with open(name, "wb") as file:
                file.write(data)
            print(f"input {died} of seed {seed} ends the process with status {status}: {name}", flush=True)
            outcomes[f"status {status}"] += 1
            stop = died + 1
        number = stop
        seconds = time.monotonic() - started
        print(f"{number - int(first):,} in {seconds:,.0f} s, {used.ru_maxrss >> 10} MiB: {dict(outcomes)}", flush=True)


def _chance(seed: int, number: int) -> random.Random:
    chance = random.Random()
    chance.seed(seed << 40 | number)
    return chance


def _work(trial: Trial, seed: int, numbers: range, place: mmap.mmap, told: int) -> None:
    """Read inputs in a child, which ends here."""
    status = 1
    try:
        fuzz(trial, 1, seed + 1)
        resource.setrlimit(resource.RLIMIT_AS, (_ROOM, -1))
        with open(told, "w", encoding="utf-8") as out:
            for number in numbers:
                place[:8] = number.to_bytes(8, "little")
                out.writelines(f"{outcome}\n" for outcome in fuzz(trial, 1, seed, first=number, name="x."))
        status = 0
    except BaseException as error:  # noqa: BLE001 - the process ends here
        print(repr(error), getattr(error, "__notes__", ""), repr(error.__cause__), file=sys.stderr, flush=True)
    finally:
        os._exit(status)


@pytest.mark.slow
@pytest.mark.parametrize("what", TRIALS)
def test_damaged_files_give_typed_errors_only(what: str) -> None:
    outcomes = fuzz(TRIALS[what][0], 1500, 1, name="x.")
    assert outcomes["read"] > 50
    assert outcomes["SourceError"] > 500


if __name__ == "__main__":
    main()
