"""Run files of hashes are those that records of these keys have, and are merged to the same."""

from __future__ import annotations

import random
from hashlib import blake2b
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ledgerbeam.errors import RunFileError
from ledgerbeam.io.exchange.hash_run import (
    LEADING,
    Edges,
    Hashes,
    HashRows,
    encode_hashes,
    hash_order,
    hash_rows,
    hashes_in,
    large_star,
    leading_hashes,
    merged_hashes,
    ranked,
    small_star,
)
from ledgerbeam.io.exchange.merge import Bound, SliceOf, cut_slices, merged, read_tables
from ledgerbeam.io.exchange.run_file import encode_run, parse_footer, tail_bytes
from tests.cases import each

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
@given(documents(), st.sampled_from([1, 32, 33, 66, 70, 100, 10**6]))
def test_a_run_of_hashes_is_that_of_its_records(
    found: tuple[int, list[list[tuple[int, int]]], list[bytes] | None], block_bytes: int
) -> None:
    width, rows, payloads = found
    numbers = np.arange(len(rows), dtype=np.uint64) * np.uint64(3)
    data = encode_hashes(hashes_of(rows, width), numbers, payloads, CUTS, block_bytes)
    keys = [key_of(*key) for row in rows for key in row]
    each = [payload for payload in payloads or [b""] * len(rows) for _ in range(width)]
    assert data == encode_run(keys, np.repeat(numbers, width), each, CUTS, block_bytes)


def test_hashes_of_one_for_each_record_need_no_second_dimension() -> None:
    high, low = np.array([7, 3, 7], np.uint64), np.array([1, 9, 0], np.uint64)
    numbers, payloads = np.array([2, 3, 8], np.uint64), [b"two", b"", b"eight"]
    keys = [key_of(7, 1), key_of(3, 9), key_of(7, 0)]
    assert encode_hashes(Hashes(high, low), numbers, payloads, []) == encode_run(keys, numbers, payloads, [])


def slices_of(
    folder: Path, runs: list[list[tuple[int, int]]], scores: list[bool], leading: int | None = None
) -> list[SliceOf]:
    """Write runs of blocks of about four records; of each run so many are leading ones, None for all."""
    found = []
    for run, (rows, scored) in enumerate(zip(runs, scores, strict=True)):
        path = folder / f"{run}.run"
        payloads = [b"%d" % n for n in range(len(rows))] if scored else None
        numbers = [n if leading is None or n < leading else LEADING + n for n in range(len(rows))]
        data = encode_hashes(hashes_of([[row] for row in rows], 1), np.array(numbers, np.uint64), payloads, [], 150)
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
    RUNS,
    st.lists(st.booleans(), min_size=4, max_size=4),
    st.sampled_from([1, 7, 10**6]),
    st.sampled_from([3, 10, 10**6]),
    st.booleans(),
)
def test_hashes_are_merged_as_all_records_are(  # noqa: PLR0917 - drawn together
    tmp_path: Path, runs: list[list[tuple[int, int]]], scores: list[bool], held: int, part: int, within_keys: bool
) -> None:
    slices = slices_of(tmp_path, runs, scores[: len(runs)])
    tables = read_tables(slices, None)
    bounds = cut_slices(slices, tables, part, within_keys=within_keys)
    for start, stop in pairwise([None, *bounds, None]):
        parts = list(merged_hashes(slices, tables, start, stop, None, held_rows=held))
        expected = [row for one in merged(slices, tables, start, stop, None) for row in zip(*one, strict=True)]
        assert rows_in(parts) == expected
        for rows in parts:
            keys = [row[0] for row in rows_in([rows])]
            assert rows.begin_groups().tolist() == [n == 0 or keys[n - 1] != keys[n] for n in range(len(keys))]


def test_a_part_of_hashes_begins_and_ends_at_any_record(tmp_path: Path) -> None:
    runs = [[(n % 5, n % 2) for n in range(size)] for size in (17, 9, 0, 12)]
    slices = slices_of(tmp_path, runs, [True, False, True, True])
    tables = read_tables(slices, None)
    rows = rows_in(list(merged_hashes(slices, tables, None, None, None, held_rows=100)))
    assert rows == sorted(
        (key_of(*key), run, n, b"" if run == 1 else b"%d" % n)
        for run, keys in enumerate(runs)
        for n, key in enumerate(keys)
    )
    for first in range(len(rows)):
        last = min(first + 7, len(rows) - 1)
        bounds = Bound(*rows[first][:3]), Bound(*rows[last][:3])
        assert rows_in(list(merged_hashes(slices, tables, *bounds, None, held_rows=2))) == rows[first:last]


def test_more_than_twice_the_held_hashes_are_yielded_in_pieces(tmp_path: Path) -> None:
    slices = slices_of(tmp_path, [[(n, n) for n in range(40)]], [False])
    tables = read_tables(slices, None)

    def sizes(held: int, start: Bound | None = None, stop: Bound | None = None) -> list[int]:
        return [len(rows) for rows in merged_hashes(slices, tables, start, stop, None, held_rows=held)]

    assert sizes(20) == [40]
    assert sizes(19) == [20, 20]
    assert sizes(4) == [4] * 10
    bounds = [Bound(key_of(n, n), 0, n) for n in (8, 24)]
    assert sizes(4, *bounds) == [4] * 4
    assert sizes(4, bounds[0]) == [4] * 8
    assert sizes(4, None, bounds[1]) == [4] * 6
    assert sizes(8, *bounds) == [16]
    assert sizes(7, *bounds) == [8, 4, 4]


def test_many_records_of_one_hash_are_yielded_in_pieces(tmp_path: Path) -> None:
    slices = slices_of(tmp_path, [[(5, 5)] * 24, [(5, 5)] * 8], [False, False])
    parts = list(merged_hashes(slices, read_tables(slices, None), None, None, None, held_rows=8))
    assert [len(rows) for rows in parts] == [8] * 4
    assert [row[1:3] for row in rows_in(parts)] == [(0, n) for n in range(24)] + [(1, n) for n in range(8)]
    assert all(rows.payloads is None for rows in parts)


def damage_blocks_but(slices: list[SliceOf], kept: list[set[int]]) -> None:
    """Overwrite all blocks of run files but some."""
    for one, table, blocks in zip(slices, read_tables(slices, None), kept, strict=True):
        data = bytearray(Path(one.url).read_bytes())
        for block, (start, stop) in enumerate(pairwise(table.starts)):
            if block not in blocks:
                data[start:stop] = bytes(stop - start)
        Path(one.url).write_bytes(data)


@pytest.mark.parametrize(
    ("first", "last", "kept"),
    [(8, 16, {2, 3}), (9, 15, {2, 3}), (9, 17, {2, 3, 4}), (0, 4, {0}), (28, None, {7}), (None, 5, {0, 1})],
)
def test_a_part_of_hashes_reads_its_own_blocks_alone(
    tmp_path: Path, first: int | None, last: int | None, kept: set[int]
) -> None:
    slices = slices_of(tmp_path, [[(n, n) for n in range(32)], [(99, n) for n in range(8)]], [False, False])
    tables = read_tables(slices, None)
    damage_blocks_but(slices, [kept, set() if last is not None else {0, 1}])
    start, stop = (None if n is None else Bound(key_of(n, n), 0, n) for n in (first, last))
    found = rows_in(list(merged_hashes(slices, tables, start, stop, None, held_rows=100)))
    assert [row[2] for row in found if row[1] == 0] == list(range(first or 0, 32 if last is None else last))
    for block in kept:
        damage_blocks_but(slices, [kept - {block}, set()])
        with pytest.raises(RunFileError, match="does not match its checksum"):
            list(merged_hashes(slices, tables, start, stop, None, held_rows=100))


def test_leading_records_of_hashes_come_in_the_order_of_hash_and_run(tmp_path: Path) -> None:
    runs = [[(n % 4, n % 3) for n in range(36)], [(1, 1)] * 9, [(2, 7)] * 5, [(9, 9)]]
    slices = slices_of(tmp_path, runs, [True, False, True, False], leading=20)
    tables = read_tables(slices, None)
    every = rows_in(list(merged_hashes(slices, tables, None, None, None, held_rows=1000)))
    assert max(row[2] for row in every) == LEADING + 35
    assert LEADING == 2**32, "run files that lie there have it"
    for wanted in ([(1, 1)], [(0, 0), (1, 1), (2, 7), (3, 2)], [(2, 7)], [(7, 7)], [(9, 9)], sorted(set(runs[0]))):
        keys = [key_of(*key) for key in wanted]
        found = rows_in([leading_hashes(slices, tables, keys, None)])
        assert found == [row for row in every if row[0] in keys and row[2] < LEADING]


def test_leading_records_are_read_of_their_own_blocks_alone(tmp_path: Path) -> None:
    slices = slices_of(tmp_path, [[(3, 3)] * 8 + [(5, 5)] * 24, [(9, 9)] * 4], [False, False], leading=14)
    tables = read_tables(slices, None)
    damage_blocks_but(slices, [{1, 2, 3}, set()])
    rows = leading_hashes(slices, tables, [key_of(5, 5)], None)
    assert rows_in([rows]) == [(key_of(5, 5), 0, n, b"") for n in range(8, 14)]
    assert rows.payloads is None


def test_of_no_hashes_there_are_no_leading_records(tmp_path: Path) -> None:
    slices = slices_of(tmp_path, [[(1, 1)]], [True])
    rows = leading_hashes(slices, read_tables(slices, None), [], None)
    columns = rows.high, rows.low, rows.runs, rows.numbers
    assert [(len(one), one.dtype.name) for one in columns] == [
        (0, name) for name in ("uint64", "uint64", "uint32", "uint64")
    ]
    assert rows.payloads is None
    assert len(rows) == len(rows.begin_groups()) == 0


@ANY
@given(st.lists(KEYS | st.tuples(st.integers(0, 2), st.integers(0, 2)), max_size=40))
def test_hashes_are_ordered_by_both_halves_and_equal_ones_stay_in_order(keys: list[tuple[int, int]]) -> None:
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


Pairs = list[tuple[int, int]]


def components(pairs: Pairs) -> dict[int, int]:
    """Return for each node but the least ones the least that it is connected to, by union-find."""
    parent: dict[int, int] = {}

    def find(node: int) -> int:
        while parent.setdefault(node, node) != node:
            node = parent[node]
        return node

    for one, other in pairs:
        roots = find(one), find(other)
        parent[max(roots)] = min(roots)
    return {node: find(node) for node in parent if find(node) != node}


def edges_of(pairs: Pairs) -> Edges:
    both = np.array(pairs, np.int64).reshape(-1, 2)
    return Edges(both[:, 0], both[:, 1])


def both_ways(edges: Edges) -> Edges:
    return Edges(np.concatenate(edges), np.concatenate(edges[::-1]))


def turned(pairs: Pairs, count: int, *, divided: bool = False) -> tuple[Edges, int]:
    """Return the edges after the last round, and the number of rounds."""
    edges = edges_of([(one, other) for one, other in pairs if one != other])
    rounds = 0
    while True:
        whole = both_ways(edges)
        rounds += 1
        before = whole.to < whole.of
        parts = [np.ones(len(whole.of), np.bool_)]
        if divided:  # each part has its own edges, and of each node all that come before it
            first = np.arange(len(whole.of)) % 2 == 0
            parts = [first, ~first]
        found, changes = [], 0
        for part in parts:
            seen = part | before
            star, more = large_star(Edges(whole.of[seen], whole.to[seen]), count, part[seen])
            found.append(star)
            changes += more
        edges = Edges(*map(np.concatenate, zip(*found, strict=True)))
        assert (edges.to < edges.of).all()
        if not changes:
            return edges, rounds
        edges = small_star(edges, count)
        assert (edges.to < edges.of).all()
        rounds += 1


@settings(deadline=None, max_examples=300)
@given(st.lists(st.tuples(st.integers(0, 15), st.integers(0, 15)), max_size=40), st.booleans())
def test_rounds_connect_what_union_find_connects(pairs: Pairs, divided: bool) -> None:
    edges, _ = turned(pairs, 16, divided=divided)
    assert dict(zip(*(lane.tolist() for lane in edges), strict=True)) == components(pairs)
    if not divided:
        assert len(edges.of) == len(components(pairs)), "each edge comes once"


def shuffled(pairs: Pairs, count: int) -> Pairs:
    names = list(range(count))
    random.Random(count).shuffle(names)
    return [(names[one], names[other]) for one, other in pairs]


@each(
    ("pairs", "most"),
    [
        ([(n, n + 1) for n in range(999)], 25),
        (shuffled([(n, n + 1) for n in range(999)], 1000), 17),
        (shuffled([(0, n) for n in range(1, 1000)], 1000), 5),
        (shuffled([(n - n % 4, n) for n in range(1000)], 1000), 5),
        ([(0, n) for n in range(1, 1000)], 1),
    ],
    ids=["a chain in order", "a chain", "a star", "many small ones", "a star around the least"],
)
def test_a_few_rounds_are_enough(pairs: Pairs, most: int) -> None:
    edges, rounds = turned(pairs, 1000)
    assert dict(zip(*(lane.tolist() for lane in edges), strict=True)) == components(pairs)
    assert rounds <= most


def test_a_round_counts_what_keeps_edges_from_being_stars() -> None:
    own = np.ones(4, np.bool_)
    _, changes = large_star(both_ways(edges_of([(0, 1), (0, 2)])), 3, own)
    assert changes == 0
    _, changes = large_star(both_ways(edges_of([(0, 1), (1, 2)])), 3, own)
    assert changes == 1, "2 comes to 0 by way of 1"
    _, changes = large_star(both_ways(edges_of([(0, 2), (1, 2)])), 3, own)
    assert changes == 1, "2 has two that come before it"


def test_nodes_come_in_the_order_of_both_halves() -> None:
    ones = Hashes(np.array([1, 0, 1, 1], np.uint64), np.array([5, 9, 2, 5], np.uint64))
    others = Hashes(np.array([1, 2], np.uint64), np.array([2, 5], np.uint64))
    nodes, places = ranked(ones, others)
    assert list(zip(*(lane.tolist() for lane in nodes), strict=True)) == [(0, 9), (1, 2), (1, 5), (2, 5)]
    assert [some.tolist() for some in places] == [[2, 0, 1, 2], [1, 3]]


def test_hashes_are_bytes_and_back() -> None:
    data = b"".join(blake2b(bytes([n]), digest_size=16).digest() for n in range(5))
    rows = hash_rows(hashes_in(data))
    assert list(rows) == [rows[n] for n in range(5)] == [data[16 * n : 16 * n + 16] for n in range(5)]
    assert len(hash_rows(hashes_in(b""))) == 0
