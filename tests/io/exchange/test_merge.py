"""Slices of run files are merged in order, with any number of blocks in memory; damage is found."""

from __future__ import annotations

import random
from bisect import bisect_right
from dataclasses import replace
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ledgerbeam.errors import ChangedSourceError, RunFileError, SourceNotFoundError
from ledgerbeam.io.exchange import merge
from ledgerbeam.io.exchange.merge import Bound, Merged, SliceOf, cut_slices, merged, read_ranges, read_tables
from ledgerbeam.io.exchange.run_file import BlockTable, encode_run, parse_footer, tail_bytes
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
    return list(chain.from_iterable(part.rows() for part in parts))


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
    places = [Bound(*every[place][:3]) for place in {*range(1, 9), *chosen.sample(range(1, len(every)), 12)}]
    hot = [Bound(b"hot"), Bound(b"hot", 1, 1), Bound(b"hot", 2), Bound(b"hot", 3, 239)]
    others = [*hot, Bound(b"09", 9), Bound(b"zz")]
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


def table_of(*blocks: tuple[bytes, int, int]) -> BlockTable:
    """Return a table of blocks, of each its first key, the number of its first record and its size."""
    keys, numbers, sizes = ([block[place] for block in blocks] for place in range(3))
    count = len(blocks)
    return BlockTable([0] * (count + 1), sizes, sizes, [1] * count, keys, numbers, [b""] * count)  # type: ignore[arg-type]


def cut(tables: list[BlockTable], part_bytes: int, *, within: bool = True, together: int = 0) -> list[Bound]:
    slices = [SliceOf(f"{run}.run", run, None) for run in range(len(tables))]
    return cut_slices(slices, tables, part_bytes, within_keys=within, together=together)


def test_a_part_begins_with_the_block_at_which_its_share_has_gone_by() -> None:
    tables = [table_of(*((b"%d" % n, n, 10) for n in range(some, 10, 2))) for some in range(2)]
    expected = {24: "358", 25: "358", 30: "47", 40: "5", 50: "5", 66: "5", 67: "", 100: "", 500: ""}
    for part_bytes, keys in expected.items():
        bounds = [Bound(key.encode(), int(key) % 2, int(key)) for key in keys]
        assert cut(tables, part_bytes) == bounds, part_bytes
        assert cut(tables, part_bytes, within=False) == [Bound(bound.key) for bound in bounds]
    assert len(cut(tables, 10)) == 9
    small = table_of(*((b"%d" % n, n, 2) for n in range(10)))
    assert cut([small], 3) == [Bound(b"%d" % n, 0, n) for n in (2, 3, 5, 6, 8, 9)]
    assert len(cut(tables, 1)) == 9  # no part is smaller than a block


def test_the_records_of_a_key_stay_together_as_told() -> None:
    tables = [table_of((b"k", 0, 10), (b"k", 5, 10)) for _ in range(3)]
    every = [Bound(b"k", run, number) for run in range(3) for number in (0, 5)]
    assert cut(tables, 10) == every[1:]
    assert cut(tables, 10, together=1) == every[2:]
    assert cut(tables, 10, together=2) == every[4:]
    assert cut(tables, 10, together=3) == cut(tables, 10, within=False) == []
    before = table_of((b"a", 0, 10), (b"k", 3, 10), (b"k", 9, 10))
    assert cut([before], 10) == [Bound(b"k", 0, 3), Bound(b"k", 0, 9)]
    assert cut([before], 10, together=1) == cut([before], 10, within=False) == [Bound(b"k")]
    assert cut([before, tables[0]], 10, together=1) == [Bound(b"k"), Bound(b"k", 1), Bound(b"k", 1, 5)]


def test_a_range_that_is_cut_off_is_a_changed_source_in_any_store(tmp_path: Path) -> None:
    store = fsspec.filesystem("memory")
    store.pipe_file("/merge/short", b"12345")
    (tmp_path / "short").write_bytes(b"12345")
    for url in (str(tmp_path / "short"), "memory://merge/short"):
        assert read_ranges([(url, 0, 5), (url, 4, 5)], None) == [b"12345", b"5"]
        with pytest.raises(ChangedSourceError):
            read_ranges([(url, 0, 5), (url, 3, 6)], None)
        with pytest.raises(SourceNotFoundError):
            read_ranges([(f"{url}er", 0, 1)], None)


def rounds_of(
    counts: list[int], held_blocks: int, tmp_path: Path, *, start: Bound | None = None, stop: Bound | None = None
) -> list[int]:
    """Return how many blocks each round of requests asks for, of runs of so many blocks of one size."""
    store = fsspec.filesystem("memory")
    slices = []
    for run, count in enumerate(counts):
        local = written(tmp_path, run, [(b"%05d" % n, n, b"x" * 79) for n in range(count)])
        store.pipe_file(f"/merge/{run}.run", Path(local.url).read_bytes())
        slices.append(replace(local, url=f"memory://merge/{run}.run"))
    tables = read_tables(slices, None)
    size = tables[0].plain[0]
    assert {plain for table in tables for plain in table.plain} == {size}
    places = [{start: block for block, start in enumerate(table.starts)} for table in tables]
    asked: list[int] = []

    def noting(self: Any, paths: list[str], starts: list[int], ends: list[int], **options: Any) -> list[bytes]:
        at = [places[int(Path(path).stem)] for path in paths]
        asked.append(sum(of[end] - of[start] for of, start, end in zip(at, starts, ends, strict=True)))
        files = [self.store[self._strip_protocol(path)].getvalue() for path in paths]
        return [data[begin:end] for data, begin, end in zip(files, starts, ends, strict=True)]

    def refusing(*args: Any, **options: Any) -> Any:
        raise AssertionError("what was read is read again")

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(type(store), "cat_ranges", noting)
        patched.setattr(type(store), "cat_file", refusing)
        patched.setattr(type(store), "_open", refusing)
        parts = list(merged(slices, tables, start, stop, None, held_bytes=held_blocks * size))
    rows = list(chain.from_iterable(part.rows() for part in parts))
    every = [(b"%05d" % n, run, n) for run, count in enumerate(counts) for n in range(count)]
    expected = [row for row in sorted(every) if (start is None or row >= start) and (stop is None or row < stop)]
    assert [row[:3] for row in rows] == expected
    return asked


def test_a_part_reads_its_own_blocks_alone(tmp_path: Path) -> None:
    for first, stop in ((0, 12), (0, 3), (1, 2), (5, 9), (11, 12)):
        ends = {"start": Bound(b"%05d" % first, 0, first), "stop": Bound(b"%05d" % stop)}
        assert sum(rounds_of([12], 12, tmp_path, **ends)) == stop - first
        of_the_key = {"start": Bound(b"%05d" % first), "stop": ends["stop"]}  # the block before may reach in
        assert sum(rounds_of([12], 12, tmp_path, **of_the_key)) == stop - max(0, first - 1)
    assert sum(rounds_of([12, 12], 24, tmp_path, stop=Bound(b"00004"))) == 8


def test_of_nothing_comes_nothing(tmp_path: Path) -> None:
    slices = [written(tmp_path, 0, [(b"k", 0, b"x")])]
    assert list(merged([], [], None, None, None)) == []
    assert list(merged(slices, read_tables(slices, None), None, Bound(b""), None)) == []


def test_each_slice_is_read_in_as_few_requests_as_its_share_allows(tmp_path: Path) -> None:
    assert rounds_of([12], 12, tmp_path) == [12]
    assert rounds_of([12], 11, tmp_path) == [11, 1]
    assert rounds_of([12], 4, tmp_path) == [4, 4, 4]
    assert rounds_of([5], 1, tmp_path) == [1] * 5
    assert rounds_of([8, 8], 8, tmp_path) == [8, 4, 4]
    assert rounds_of([8, 4], 12, tmp_path) == [12]


CUTS = [b"b", b"d", b"dd", b"x"]
KEYS = st.binary(max_size=3) | st.sampled_from([b"a", b"b", b"dd", b"hot"])
RUNS = st.lists(st.lists(st.tuples(KEYS, st.binary(min_size=1, max_size=40)), max_size=40), min_size=1, max_size=5)


def write_run(folder: Path, run: int, rows: list[tuple[bytes, bytes]], first: int = 0) -> str:
    numbers = np.uint64(first) + np.arange(len(rows), dtype=np.uint64) * np.uint64(3)
    path = folder / f"{run}.run"
    path.write_bytes(encode_run([key for key, _ in rows], numbers, [data for _, data in rows], CUTS, 200))
    return str(path)


def slices_of(urls: list[str], bucket: int) -> list[SliceOf]:
    found = []
    for run, url in enumerate(urls):
        data = Path(url).read_bytes()
        entry = parse_footer(data[-tail_bytes(len(CUTS) + 1) :], len(data), len(CUTS) + 1, url)[bucket]
        if entry["records"]:
            found.append(SliceOf(url, run, entry))
    return found


def rows_of(parts: list[Merged]) -> list[tuple[bytes, int, int, bytes]]:
    return list(chain.from_iterable(part.rows() for part in parts))


def read_bucket(urls: list[str], bucket: int, *, held: int, part: int, within: bool = True) -> list[list[Any]]:
    slices = slices_of(urls, bucket)
    tables = read_tables(slices, None)
    bounds = [None, *cut_slices(slices, tables, part, within_keys=within), None]
    return [rows_of(list(merged(slices, tables, *ends, None, held_bytes=held))) for ends in pairwise(bounds)]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=150)
@given(RUNS, st.sampled_from([1, 300, 10**6]), st.sampled_from([1, 200, 1000, 10**6]), st.booleans())
def test_all_records_come_back_in_their_order(
    tmp_path: Path, runs: list[list[tuple[bytes, bytes]]], held: int, part: int, within: bool
) -> None:
    urls = [write_run(tmp_path, run, rows) for run, rows in enumerate(runs)]
    expected: list[list[Any]] = [[] for _ in range(len(CUTS) + 1)]
    for run, rows in enumerate(runs):
        for number, (key, data) in enumerate(rows):
            expected[bisect_right(CUTS, key)].append((key, run, 3 * number, data))
    for bucket, rows_expected in enumerate(expected):
        parts = read_bucket(urls, bucket, held=held, part=part, within=within)
        assert list(chain.from_iterable(parts)) == sorted(rows_expected)
        if not within:
            firsts = [{row[0] for row in rows} for rows in parts]
            assert all(not one & other for one, other in pairwise(firsts))


@pytest.mark.parametrize("first", [2**53, 2**60, 2**64 - 2**12])
def test_records_of_the_last_files_of_a_large_pack_are_read_once(tmp_path: Path, first: int) -> None:
    """The upper bits of a number are the file."""
    urls = [write_run(tmp_path, run, [(b"k", b"%d" % number) for number in range(1000)], first) for run in range(2)]
    parts = read_bucket(urls, bisect_right(CUTS, b"k"), held=1, part=500)
    assert len(parts) > 10
    expected = [(run, first + 3 * number) for run in range(2) for number in range(1000)]
    assert [row[1:3] for rows in parts for row in rows] == expected


def test_no_more_blocks_are_held_than_allowed(tmp_path: Path) -> None:
    urls = [write_run(tmp_path, run, [(b"k%05d" % number, b"x" * 50) for number in range(500)]) for run in range(3)]
    slices = slices_of(urls, bisect_right(CUTS, b"k"))
    found = list(merged(slices, read_tables(slices, None), None, None, None, held_bytes=1))
    assert max(len(part.keys) for part in found) <= 3 * 3  # a block has three records here
    assert len(rows_of(found)) == 1500


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=400)
@given(st.data())
def test_any_damage_is_found(tmp_path: Path, data: st.DataObject) -> None:
    rows = [(b"%d" % (7 * number % 11), b"record %d" % number) for number in range(60)]
    url = write_run(tmp_path, 0, rows)
    whole = Path(url).read_bytes()
    expected = [read_bucket([url], bucket, held=10**6, part=10**6) for bucket in range(len(CUTS) + 1)]
    place = data.draw(st.integers(0, len(whole) - 1))
    kind = data.draw(st.sampled_from(["flip", "cut", "more", "zeros"]))
    match kind:
        case "flip":
            bit = 1 << data.draw(st.integers(0, 7))
            damaged = whole[:place] + bytes([whole[place] ^ bit]) + whole[place + 1 :]
        case "cut":
            damaged = whole[:place]
        case "more":
            damaged = whole[:place] + data.draw(st.binary(min_size=1, max_size=9)) + whole[place:]
        case _:
            damaged = whole[:place] + bytes(len(whole) - place)
    Path(url).write_bytes(damaged)

    def read() -> list[list[list[Any]]]:
        return [read_bucket([url], bucket, held=10**6, part=10**6) for bucket in range(len(CUTS) + 1)]

    if place < 8 and kind == "flip":  # the magic at the beginning is not looked at by those who read slices
        assert read() == expected
    elif damaged != whole:
        with pytest.raises(RunFileError, match="delete this file") as raised:
            read()
        assert url in str(raised.value)


def test_a_file_that_is_gone_or_cut_off_after_its_footer_was_read(tmp_path: Path) -> None:
    url = write_run(tmp_path, 0, [(b"a", b"x" * 100)] * 50)
    slices = slices_of([url], 0)
    tables = read_tables(slices, None)
    Path(url).write_bytes(Path(url).read_bytes()[:20])
    with pytest.raises(ChangedSourceError):
        list(merged(slices, tables, None, None, None))
    Path(url).unlink()
    with pytest.raises(SourceNotFoundError):
        list(merged(slices, tables, None, None, None))
