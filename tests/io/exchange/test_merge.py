"""Slices of many blocks are merged in order, however few of them are held at once."""

from __future__ import annotations

import random
from itertools import chain, pairwise
from pathlib import Path

import fsspec
import numpy as np
import pytest

from ledgerbeam.io.exchange import merge
from ledgerbeam.io.exchange.merge import Bound, SliceOf, cut_slices, merged, read_ranges, read_tables
from ledgerbeam.io.exchange.run_file import encode_run, parse_footer, tail_bytes
from tests.memory import peak_of

Row = tuple[bytes, int, int, bytes]


def written(folder: Path, run: int, rows: list[tuple[bytes, int, bytes]]) -> SliceOf:
    keys, numbers, payloads = map(list, zip(*rows, strict=True))
    data = encode_run(keys, np.array(numbers, np.uint64), payloads, [], 100)
    path = folder / f"{run}.run"
    path.write_bytes(data)
    (entry,) = parse_footer(data[-tail_bytes(1) :], len(data), 1, str(path))
    return SliceOf(str(path), run, entry)


@pytest.fixture
def rows() -> list[list[Row]]:
    """Records of four runs, whose keys are mixed: some are common, and some of those are a run's own."""
    chosen = random.Random(7)
    keys = [b"%02d" % number for number in range(20)]
    found = []
    for run in range(4):
        some = keys[run:] + [b"hot"] * 30 if run % 2 else keys[5 : 15 - run]
        found.append([(chosen.choice(some), run, 2 * number, b"%d.%d" % (run, number)) for number in range(120)])
    return found


@pytest.fixture
def slices(rows: list[list[Row]], tmp_path: Path) -> list[SliceOf]:
    return [written(tmp_path, run, [(key, n, data) for key, _, n, data in some]) for run, some in enumerate(rows)]


def read(slices: list[SliceOf], start: Bound | None, stop: Bound | None, held: int | None) -> list[Row]:
    parts = merged(slices, read_tables(slices, None), start, stop, None, held_bytes=held)
    return list(chain.from_iterable(zip(*part, strict=True) for part in parts))


@pytest.mark.parametrize("held", [1, 400, 1000, 4000, None])
def test_runs_of_many_blocks_are_merged_in_order(
    rows: list[list[Row]], slices: list[SliceOf], held: int | None
) -> None:
    assert min(len(table.keys) for table in read_tables(slices, None)) > 20
    assert read(slices, None, None, held) == sorted(chain.from_iterable(rows))


def test_what_may_be_held_as_a_whole_is_read_at_once_however_unequal_the_runs_are(tmp_path: Path) -> None:
    counts = (2000, 50, 3)
    slices = [
        written(tmp_path, run, [(b"%05d" % n, n, b"x" * 50) for n in range(count)]) for run, count in enumerate(counts)
    ]
    tables = read_tables(slices, None)
    size = sum(sum(table.plain) for table in tables)
    assert len(tables[0].plain) > 100
    assert [len(part.keys) for part in merged(slices, tables, None, None, None, held_bytes=size)] == [sum(counts)]
    most = max(len(part.keys) for part in merged(slices, tables, None, None, None, held_bytes=size // 4))
    assert sum(counts) / 6 < most < sum(counts) / 3


@pytest.mark.parametrize("held", [1, 10**6])
def test_a_part_begins_and_ends_where_it_is_told(rows: list[list[Row]], slices: list[SliceOf], held: int) -> None:
    every = sorted(chain.from_iterable(rows))
    chosen = random.Random(3)
    places = [Bound(*every[place][:3]) for place in sorted(chosen.sample(range(1, len(every)), 12))]
    others = [
        Bound(b"hot"),
        Bound(b"hot", 1, 1),
        Bound(b"hot", 2),
        Bound(b"hot", 3, 239),
        Bound(b"09", 9),
        Bound(b"zz"),
    ]
    for start, stop in pairwise([None, *sorted(places + others), None]):
        expected = [row for row in every if (start is None or row >= start) and (stop is None or row[:3] < stop)]
        assert read(slices, start, stop, held) == expected


@pytest.mark.parametrize("within_keys", [True, False])
def test_parts_are_of_about_one_size(rows: list[list[Row]], slices: list[SliceOf], within_keys: bool) -> None:
    tables = read_tables(slices, None)
    total = sum(len(row[3]) + 1 for row in chain.from_iterable(rows))
    assert total == sum(chain.from_iterable(table.sizes for table in tables))
    bounds = cut_slices(slices, tables, 300, within_keys=within_keys)
    assert bounds == sorted(set(bounds))
    parts = [read(slices, *ends, None) for ends in pairwise([None, *bounds, None])]
    assert list(chain.from_iterable(parts)) == sorted(chain.from_iterable(rows))
    sizes = [sum(len(row[3]) + 1 for row in part) for part in parts]
    if within_keys:
        assert len(parts) == round(total / 300)
        assert 100 < min(sizes) <= max(sizes) < 500
    else:
        assert all(bound == Bound(bound.key) for bound in bounds)
        assert not any({row[0] for row in one} & {row[0] for row in other} for one, other in pairwise(parts))
    assert cut_slices(slices, tables, 10**6, within_keys=within_keys) == []
    assert cut_slices([], [], 300, within_keys=within_keys) == []


def test_ranges_of_local_and_other_files_are_read_in_their_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(merge, "_AT_ONCE", 2)
    store = fsspec.filesystem("memory")
    urls = [str(tmp_path / "a"), str(tmp_path / "b")]
    for name in "ab":
        (tmp_path / name).write_bytes(name.encode() * 9 + b"!")
        store.pipe_file(f"/merge/{name}", name.encode() * 9 + b"!")
    for one, other in (urls, ("memory://merge/a", "memory://merge/b")):
        ranges = [(one, 8, 10), (other, 9, 10), (one, 0, 3), (other, 4, 4), (other, 0, 1)]
        assert read_ranges(ranges, None) == [b"a!", b"!", b"aaa", b"", b"b"]
    assert read_ranges([], None) == []


def test_what_is_decoded_is_not_held_as_it_was_read(tmp_path: Path) -> None:
    chance = random.Random(3)
    slices = []
    for run in range(8):
        keys = [b"%05d" % n for n in range(200)]
        data = encode_run(keys, np.arange(200, dtype=np.uint64), [chance.randbytes(5000) for _ in keys], [])
        (tmp_path / f"{run}.run").write_bytes(data)
        (entry,) = parse_footer(data[-tail_bytes(1) :], len(data), 1, "a.run")
        slices.append(SliceOf(str(tmp_path / f"{run}.run"), run, entry))
    size = 8 * 200 * 5000
    tables = read_tables(slices, None)
    (found,), peak = peak_of(lambda: list(merged(slices, tables, None, None, None)))
    assert sum(map(len, found.payloads)) == size
    assert peak < 1.4 * size
