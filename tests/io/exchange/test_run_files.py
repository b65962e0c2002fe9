"""Run files: round trips, merges in order, and typed errors of damage."""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ledgerbeam.errors import ChangedSourceError, RunFileError, SourceNotFoundError
from ledgerbeam.io.exchange.merge import Bound, Merged, SliceOf, cut_slices, merged, read_tables
from ledgerbeam.io.exchange.payloads import is_json_text, payload_of, record_of
from ledgerbeam.io.exchange.run_file import encode_run, open_block, parse_footer, parse_table, tail_bytes
from ledgerbeam.io.tar.sample import Sample

Row = tuple[bytes, int, bytes]

CUTS = [b"b", b"d", b"dd", b"x"]
KEYS = st.binary(max_size=3) | st.sampled_from([b"a", b"b", b"dd", b"hot"])
RUNS = st.lists(st.lists(st.tuples(KEYS, st.binary(min_size=1, max_size=40)), max_size=40), min_size=1, max_size=5)


def written(folder: Path, run: int, rows: list[tuple[bytes, bytes]]) -> str:
    numbers = np.arange(len(rows), dtype=np.uint64) * np.uint64(3)
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
    return list(chain.from_iterable(zip(*part, strict=True) for part in parts))


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
    urls = [written(tmp_path, run, rows) for run, rows in enumerate(runs)]
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


def test_a_heavy_key_is_cut_into_parts(tmp_path: Path) -> None:
    urls = [written(tmp_path, run, [(b"hot", b"x" * 50)] * 100) for run in range(3)]
    bucket = bisect_right(CUTS, b"hot")
    parts = read_bucket(urls, bucket, held=10**6, part=2000)
    assert len(parts) == 8
    assert min(map(len, parts)) > 20
    assert len(read_bucket(urls, bucket, held=10**6, part=2000, within=False)) == 1


def test_no_more_blocks_are_held_than_allowed(tmp_path: Path) -> None:
    urls = [written(tmp_path, run, [(b"k%05d" % number, b"x" * 50) for number in range(500)]) for run in range(3)]
    slices = slices_of(urls, bisect_right(CUTS, b"k"))
    found = list(merged(slices, read_tables(slices, None), None, None, None, held_bytes=1))
    assert max(len(part.keys) for part in found) <= 3 * 3  # a block has three records here
    assert len(rows_of(found)) == 1500


def test_a_run_file_is_a_function_of_its_records(tmp_path: Path) -> None:
    rows = [(b"%d" % (7 * number % 11), b"%d" % number) for number in range(100)]
    one, other = (Path(written(tmp_path, run, rows)).read_bytes() for run in range(2))
    assert one == other
    assert one.startswith(b"LBRUN")
    assert encode_run([], np.zeros(0, np.uint64), [], CUTS)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=400)
@given(st.data())
def test_any_damage_is_found(tmp_path: Path, data: st.DataObject) -> None:
    rows = [(b"%d" % (7 * number % 11), b"record %d" % number) for number in range(60)]
    url = written(tmp_path, 0, rows)
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
    url = written(tmp_path, 0, [(b"a", b"x" * 100)] * 50)
    slices = slices_of([url], 0)
    tables = read_tables(slices, None)
    Path(url).write_bytes(Path(url).read_bytes()[:20])
    with pytest.raises(ChangedSourceError):
        list(merged(slices, tables, None, None, None))
    Path(url).unlink()
    with pytest.raises(SourceNotFoundError):
        list(merged(slices, tables, None, None, None))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**80), 2**80) | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(JSON)
def test_json_values_come_back(value: Any) -> None:
    payload = payload_of(value)
    assert repr(record_of(payload)) == repr(value)
    if is_json_text(payload):
        assert b"\n" not in payload


@given(st.text(), st.dictionaries(st.text(), st.binary(), max_size=4))
def test_samples_come_back(key: str, members: dict[str, bytes]) -> None:
    found = record_of(payload_of(Sample(key, members)))
    assert isinstance(found, Sample)
    assert (found.key, list(found.items())) == (key, list(members.items()))


def test_no_bound_is_less_than_the_beginning() -> None:
    assert Bound(b"a") < Bound(b"a", 0, 1) < Bound(b"a", 1) < Bound(b"b")


def test_a_block_has_128_kib_at_most_and_is_compressed_fast_unless_told_otherwise() -> None:
    count = 600
    texts = [hashlib.sha256(b"%d" % number).hexdigest().encode() * 16 for number in range(count)]
    data = encode_run([b"%05d" % number for number in range(count)], np.arange(count, dtype=np.uint64), texts, [])
    (entry,) = parse_footer(data[-tail_bytes(1) :], len(data), 1, "a.run")
    start, size = int(entry["start"]), int(entry["table"])
    table = parse_table(data[start : start + size], entry, "a.run")
    assert len(table.plain) == 5
    assert all(127 * 1024 < size <= 128 * 1024 for size in table.plain[:-1])
    first = data[table.starts[0] : table.starts[1]]
    plain = open_block(first, table, 0, "a.run").plain
    assert first == zstandard.ZstdCompressor(level=-3).compress(plain)
