"""Run files of hashes are those that records of these keys have, and are merged to the same."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ledgerbeam.errors import RunFileError
from ledgerbeam.io.exchange.hash_run import Hashes, HashRows, encode_hashes, hash_order, merged_hashes
from ledgerbeam.io.exchange.merge import Bound, SliceOf, cut_slices, merged, read_tables
from ledgerbeam.io.exchange.run_file import encode_run, parse_footer, tail_bytes

Row = tuple[bytes, int, int, bytes]

CUTS = [bytes([64]), bytes([64]) * 16, bytes([128]) + b"\0" * 7 + b"x"]
HALVES = st.sampled_from([0, 1, 64 << 56, int.from_bytes(bytes([64]) * 8, "big"), 128 << 56, 2**64 - 1]) | st.integers(
    0, 2**64 - 1
)
KEYS = st.tuples(HALVES, HALVES)
ANY = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=100)


def hashes_of(rows: list[list[tuple[int, int]]], width: int) -> Hashes:
    table = np.array(rows, np.uint64).reshape(len(rows), width, 2)
    return Hashes(table[:, :, 0].copy(), table[:, :, 1].copy())


def key_of(high: int, low: int) -> bytes:
    return high.to_bytes(8, "big") + low.to_bytes(8, "big")


@st.composite
def documents(draw: st.DrawFn) -> tuple[int, list[list[tuple[int, int]]], list[bytes] | None]:
    width = draw(st.integers(1, 3))
    rows = draw(st.lists(st.lists(KEYS, min_size=width, max_size=width), max_size=12))
    payloads = draw(st.none() | st.lists(st.binary(max_size=9), min_size=len(rows), max_size=len(rows)))
    return width, rows, payloads


@ANY
@given(documents(), st.sampled_from([1, 70, 100, 10**6]))
def test_a_run_of_hashes_is_that_of_its_records(
    found: tuple[int, list[list[tuple[int, int]]], list[bytes] | None], block_bytes: int
) -> None:
    width, rows, payloads = found
    numbers = np.arange(len(rows), dtype=np.uint64) * np.uint64(3)
    data = encode_hashes(hashes_of(rows, width), numbers, payloads, CUTS, block_bytes)
    keys = [key_of(*key) for row in rows for key in row]
    each = [payload for payload in payloads or [b""] * len(rows) for _ in range(width)]
    assert data == encode_run(keys, np.repeat(numbers, width), each, CUTS, block_bytes)


def slices_of(folder: Path, runs: list[list[tuple[int, int]]], scores: list[bool]) -> list[SliceOf]:
    found = []
    for run, (rows, scored) in enumerate(zip(runs, scores, strict=True)):
        path = folder / f"{run}.run"
        payloads = [b"%d" % n for n in range(len(rows))] if scored else None
        data = encode_hashes(
            hashes_of([[row] for row in rows], 1), np.arange(len(rows), dtype=np.uint64), payloads, [], 150
        )
        path.write_bytes(data)
        (entry,) = parse_footer(data[-tail_bytes(1) :], len(data), 1, str(path))
        if entry["records"]:
            found.append(SliceOf(str(path), run, entry))
    return found


def rows_in(parts: list[HashRows]) -> list[Row]:
    return [
        (key_of(int(high), int(low)), int(run), int(number), b"" if rows.payloads is None else rows.payloads[place])
        for rows in parts
        for place, (high, low, run, number) in enumerate(zip(rows.high, rows.low, rows.runs, rows.numbers, strict=True))
    ]


RUNS = st.lists(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2)), max_size=40) | st.lists(KEYS, max_size=20),
    min_size=1,
    max_size=4,
)


@ANY
@given(
    RUNS, st.lists(st.booleans(), min_size=4, max_size=4), st.sampled_from([1, 7, 10**6]), st.sampled_from([3, 10**6])
)
def test_hashes_are_merged_as_all_records_are(
    tmp_path: Path, runs: list[list[tuple[int, int]]], scores: list[bool], held: int, part: int
) -> None:
    slices = slices_of(tmp_path, runs, scores[: len(runs)])
    tables = read_tables(slices, None)
    bounds: list[Bound | None] = [None, *cut_slices(slices, tables, part, within_keys=False), None]
    for start, stop in pairwise(bounds):
        parts = list(merged_hashes(slices, tables, start, stop, None, held_rows=held))
        expected = [row for one in merged(slices, tables, start, stop, None) for row in zip(*one, strict=True)]
        assert rows_in(parts) == expected
        for rows in parts:
            keys = [row[0] for row in rows_in([rows])]
            assert rows.begin_groups().tolist() == [n == 0 or keys[n - 1] != keys[n] for n in range(len(keys))]


@ANY
@given(st.lists(KEYS, max_size=40))
def test_hashes_are_ordered_by_both_halves(keys: list[tuple[int, int]]) -> None:
    columns = np.array(keys, np.uint64).reshape(-1, 2)
    expected = sorted(range(len(keys)), key=keys.__getitem__)
    assert hash_order(columns[:, 0], columns[:, 1]).tolist() == expected


def test_keys_that_are_no_hashes_are_damage(tmp_path: Path) -> None:
    path = tmp_path / "x.run"
    data = encode_run([b"short"], np.zeros(1, np.uint64), [b""], [])
    path.write_bytes(data)
    (entry,) = parse_footer(data[-tail_bytes(1) :], len(data), 1, str(path))
    slices = [SliceOf(str(path), 0, entry)]
    with pytest.raises(RunFileError, match=r"x\.run: expected keys of 16 bytes each"):
        list(merged_hashes(slices, read_tables(slices, None), None, None, None, held_rows=9))
