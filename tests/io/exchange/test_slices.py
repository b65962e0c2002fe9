"""Slices of buckets: gathered from run files, and looked up; division of an order into buckets, and plans of merges."""

from __future__ import annotations

import base64
import json
import os
import zlib
from itertools import pairwise, product
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgerbeam.errors import LedgerDamagedError, RunFileError
from ledgerbeam.io.exchange import slices
from ledgerbeam.io.exchange.run_file import (
    BLOCK_BYTES,
    ENTRY,
    NO_TASK,
    RunBlock,
    encode_run,
    encode_sorted,
    tail_bytes,
    task_mark,
)
from ledgerbeam.io.exchange.slices import (
    EARLIER,
    MOST_BUCKETS,
    MOST_MERGES,
    NO_MERGES,
    RUNS,
    SLICES,
    BucketRow,
    Merges,
    Partition,
    RunFile,
    RunLayout,
    SliceTables,
    SomeUrls,
    bucket_name,
    neighbours,
    plan_merges,
    slices_read,
)
from ledgerbeam.io.lines.rows import ByteRows
from tests.cases import each

CUTS = [b"b", b"c", b"d"]


def written(folder: Path, name: str, *keys: bytes, sources: tuple[str, ...] = ("/in/a",)) -> RunFile:
    numbers = np.arange(len(keys), dtype=np.uint64)
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(encode_run(list(keys), numbers, [key * 2 for key in keys], CUTS))
    return RunFile(name, path.stat().st_size, SomeUrls.of(sources))


def test_what_is_written_is_read_whatever_the_names_are(tmp_path: Path) -> None:
    names = ("/in/a\udcff\udcfe.jsonl", "/in/é\U0001f600\"'\\\n.jsonl")
    runs = [written(tmp_path, "a\udcff/1.run", b"a", b"c", sources=names), written(tmp_path, "2.run", b"a")]
    tables = SliceTables(str(tmp_path), "state")
    rows = tables.write(RunLayout.of_one(runs, 4))
    assert [(row.size, row.records) for row in rows] == [(6, 2), (0, 0), (3, 1), (0, 0)]
    assert sorted(path.name for path in tmp_path.glob("state*")) == ["state.runs", "state.slices"]
    found = tables.layout()
    assert [(run.name, [*run.sources]) for run in found.runs] == [(run.name, [*run.sources]) for run in runs]
    for bucket, of in enumerate([[0, 1], [], [0], []]):
        some = tables.slices(found, bucket_name(bucket), rows[bucket].version)
        assert [(one.run, one.url) for one in some] == [(run, f"{tmp_path}/{runs[run].name}") for run in of]
        assert all(one.entry["records"] == 1 for one in some)
    assert (tmp_path / f"state{SLICES}").stat().st_size == 4 * 2 * ENTRY.itemsize


def test_a_version_is_of_the_names_and_contents_of_slices(tmp_path: Path) -> None:
    """Two exchanges whose buckets differ never have sources of one identity."""

    def versions(*runs: RunFile) -> list[str]:
        return [row.version for row in SliceTables(str(tmp_path), "state").write(RunLayout.of_one(runs, 4))]

    one, other = written(tmp_path, "1.run", b"a", b"c"), written(tmp_path, "2.run", b"a")
    both = versions(one, other)
    assert both[1] == both[3] == ""
    assert {len(version) for version in both} == {0, 32}
    assert versions(other, one)[0] != both[0]
    assert versions(other, one)[2] == both[2]  # of one slice alone
    assert versions(one, written(tmp_path, "3.run", b"a"))[0] != both[0]
    assert versions(one, written(tmp_path, "2.run", b"aa"))[0] != both[0]
    written(tmp_path, "2.run", b"a", b"d")
    again = versions(one, written(tmp_path, "2.run", b"a", b"d"))
    assert again[:3] == both[:3]
    assert again[3] != ""


def test_buckets_are_tabulated_a_few_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = [written(tmp_path, f"{number}.run", b"a", b"b", b"%d" % number, b"x") for number in range(5)]
    tables = SliceTables(str(tmp_path), "state")
    rows = tables.write(RunLayout.of_one(runs, 4))
    data = (tmp_path / f"state{SLICES}").read_bytes()
    monkeypatch.setattr(slices, "_AT_ONCE", 2)
    for held in (1, ENTRY.itemsize * 5 * 2, ENTRY.itemsize * 5 * 3):
        monkeypatch.setattr(slices, "HELD_BYTES", held)
        assert tables.write(RunLayout.of_one(runs, 4)) == rows
        assert (tmp_path / f"state{SLICES}").read_bytes() == data


def test_an_exchange_of_nothing_has_empty_buckets(tmp_path: Path) -> None:
    tables = SliceTables(str(tmp_path), "state")
    assert tables.write(RunLayout.of_one([], 3)) == [BucketRow(0, 0, "")] * 3
    assert tables.layout().runs == []
    assert tables.slices(tables.layout(), bucket_name(1), "") == []


def test_tables_of_other_slices_are_refused(tmp_path: Path) -> None:
    tables = SliceTables(str(tmp_path), "state")
    runs = [written(tmp_path, "1.run", b"a", b"c")]
    version = tables.write(RunLayout.of_one(runs, 4))[0].version
    with pytest.raises(
        RunFileError, match=r"expected bucket part-000002 in version .* delete this file and run the same command"
    ):
        tables.slices(tables.layout(), bucket_name(2), version)
    path = tmp_path / f"state{SLICES}"
    data = bytearray(path.read_bytes())
    data[ENTRY.itemsize - 1] ^= 1
    path.write_bytes(data)
    with pytest.raises(RunFileError, match=f"{path}: expected bucket part-000000"):
        tables.slices(tables.layout(), bucket_name(0), version)


def test_a_run_file_of_other_buckets_is_refused(tmp_path: Path) -> None:
    runs = [written(tmp_path, "1.run", b"a", b"c")]
    for buckets in (3, 5):
        with pytest.raises(RunFileError, match=r"1\.run: "):
            SliceTables(str(tmp_path), "state").write(RunLayout.of_one(runs, buckets))
    assert not (tmp_path / f"state{SLICES}").exists()
    assert (tmp_path / f"state{RUNS}").exists()


def test_a_run_file_that_is_empty_is_refused(tmp_path: Path) -> None:
    (tmp_path / "1.run").touch()
    with pytest.raises(RunFileError, match=r"1\.run: .*expected a run file that ends with"):
        SliceTables(str(tmp_path), "state").write(RunLayout.of_one([RunFile("1.run", 0, SomeUrls.of([]))], 4))


def test_of_a_run_file_the_end_alone_is_read_for_the_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = [written(tmp_path, f"{number}.run", *[b"%d" % number * 50] * 40) for number in range(3)]
    pread, sizes = os.pread, list[int]()

    def noted(descriptor: int, size: int, start: int) -> bytes:
        sizes.append(size)
        return pread(descriptor, size, start)

    monkeypatch.setattr(os, "pread", noted)
    rows = SliceTables(str(tmp_path), "state").write(RunLayout.of_one(runs, 4))
    assert [row.records for row in rows] == [120, 0, 0, 0]
    assert min(run.size for run in runs) > tail_bytes(4)
    assert sizes == [tail_bytes(4)] * 3


def groups(*runs: tuple[str, SomeUrls] | tuple[str, SomeUrls, int]) -> list[str]:
    """Return the names of the cells of the first bucket whose run files are merged."""
    layout = RunLayout.of_one([RunFile(run[0], 1, *run[1:]) for run in runs], 3, 9)
    assert RunLayout.decode(layout.encode()).cells == layout.cells
    return [name for name, cell in layout.cells.items() if cell.bucket == 0]


def test_a_run_file_lies_elsewhere_if_an_earlier_job_has_written_it_whatever_its_name_is(tmp_path: Path) -> None:
    runs = [written(tmp_path, f"{EARLIER}{name}.run", b"a") for name in ("1", "/2")]
    tables = SliceTables(str(tmp_path), "state")
    assert [row.records for row in tables.write(RunLayout.of_one(runs, 4))] == [2, 0, 0, 0]
    assert [run.url("/runs") for run in tables.layout().runs] == [f"/runs/{EARLIER}1.run", f"/runs/{EARLIER}/2.run"]
    assert RunFile(f"{EARLIER}/first/1.run", 0, SomeUrls.of([]), -1).url("/runs") == "/first/1.run"
    assert RunFile("part-0.run", 0, SomeUrls.of([]), -1).url("/runs") == "/runs/part-0.run"


def test_a_group_is_another_one_if_a_place_among_its_sources_is_another() -> None:
    """Also a run file without records in a bucket moves the places of those behind it."""
    urls = ["a", "b", "c", "d"]
    one = groups(("1", SomeUrls(urls, 0, 1)), ("3", SomeUrls(urls, 1, 2)))
    assert one == groups(("1", SomeUrls(["x", *urls], 1, 2)), ("3", SomeUrls(["x", *urls], 2, 3)))
    others = [
        groups(("1", SomeUrls(urls, 0, 1)), ("2", SomeUrls(urls, 1, 2)), ("3", SomeUrls(urls, 2, 3))),
        groups(("1", SomeUrls(["a", "x", "b"], 0, 1)), ("3", SomeUrls(["a", "x", "b"], 2, 3))),
        groups(("1", SomeUrls(urls, 0, 2)), ("3", SomeUrls(urls, 2, 3))),
        groups(("1", SomeUrls(["a", "x"], 0, 1)), ("3", SomeUrls(["a", "x"], 1, 2))),
        groups(("1", SomeUrls(urls, 0, 1)), ("4", SomeUrls(urls, 1, 2))),
    ]
    assert len({*map(str, [one, *others])}) == 6


def test_runs_of_two_sides_are_in_no_group_together() -> None:
    urls = ["a", "b", "c", "d"]
    runs = [(name, SomeUrls(urls, place, place + 1), place // 2) for place, name in enumerate("1234")]
    assert groups(*runs) == groups(*runs[:2]) + groups(*runs[2:])


def test_a_layout_is_written_with_each_list_of_sources_once() -> None:
    first, other = ["a", "b"], ["a", "c", "\udcff"]
    runs = [
        RunFile("1", 5, SomeUrls(first, 0, 1)),
        RunFile("2", 6, SomeUrls(other, 1, 3), 1),
        RunFile("3", 7, SomeUrls(first, 1, 2)),
        RunFile("4", 8, SomeUrls(other, 0, 1), -1),
    ]
    data = RunLayout.of_one(runs, 2).encode()
    assert json.loads(data) == {
        "urls": [*first, *other],
        "runs": [["1", 0, 1, 0], ["2", 3, 5, 1], ["3", 1, 2, 0], ["4", 2, 3, -1]],
        "areas": [[0, 4, 0, 2, [[0, ""]]]],
    }
    again = RunLayout.decode(data)
    assert [(run.name, run.size, [*run.sources], run.side) for run in again.runs] == [
        ("1", 0, ["a"], 0),
        ("2", 0, ["c", "\udcff"], 1),
        ("3", 0, ["b"], 0),
        ("4", 0, ["a"], -1),
    ]
    assert again.areas == [(range(4), range(2), [(0, "")])]


def test_what_is_merged_is_laid_out_by_the_buckets_of_each_range(tmp_path: Path) -> None:
    """A range without run files has no slices; of each other one every cell is found where it was written."""
    urls = list("abcde")
    firsts = [RunFile(f"{n}.run", 1, SomeUrls(urls, n, n + 1), n // 3) for n in range(5)]
    layout = RunLayout.of_one(firsts, 3, 2)
    assert [(cell.bucket, [*cell.runs]) for cell in layout.cells.values()] == [
        (bucket, group) for bucket in range(3) for group in ([0, 1], [2], [3, 4])
    ]
    assert [cell.place for cell in layout.cells.values()] == [
        56 * (5 * bucket + first) for bucket in range(3) for first in (0, 2, 3)
    ]
    inner = [range(2), range(2, 3), range(3, 6)]
    files: list[list[tuple[str, int, bytes]]] = []
    held: dict[str, list[bytes]] = {}
    for place, cell in enumerate(layout.cells.values()):
        if cell.bucket == 1:
            files.append([])
            continue
        buckets = inner[cell.bucket]
        files.append([])
        for part in range(1 + place % 2):
            name = f"{cell.bucket}-{place}-{part}.run"
            keys = [b"%d" % bucket for bucket in buckets if (bucket + place + part) % 3]
            cuts = [b"%d" % bucket for bucket in buckets[1:]]
            numbers = np.arange(len(keys), dtype=np.uint64)
            (tmp_path / name).write_bytes(
                encode_run(keys, numbers, [b"xy"] * len(keys), cuts, mark=task_mark(b"s", place))
            )
            files[-1].append((name, (tmp_path / name).stat().st_size, task_mark(b"s", place)))
            held[name] = keys
    for fan in (None, 2):
        merged = layout.merged(files, inner, fan)
        assert [run.name for run in merged.runs] == list(held)
        assert [(area.runs.start, area.runs.stop, area.buckets) for area in merged.areas] == [
            (0, 4, inner[0]),
            (4, 4, inner[1]),
            (4, 8, inner[2]),
        ]
        assert [run.side for run in merged.runs] == [0, 0, 0, 1, 0, 0, 0, 1]
        assert [[*run.sources] for run in merged.runs[:4]] == [["a", "b"], ["c"], ["c"], ["d", "e"]]
        tables = SliceTables(str(tmp_path), f"state{fan}")
        rows = tables.write(merged)
        found = tables.layout()
        assert found.cells == merged.cells
        assert len(rows) == len(merged.cells)
        for (name, cell), row in zip(found.cells.items(), rows, strict=True):
            some = [run for run in cell.runs if b"%d" % cell.bucket in held[merged.runs[run].name]]
            assert (row.records, row.size) == (len(some), 3 * len(some))
            slices_found = tables.slices(found, name, row.version)
            assert [(one.run, one.url) for one in slices_found] == [
                (run - cell.runs.start, f"{tmp_path}/{merged.runs[run].name}") for run in some
            ]
        if fan is None:
            assert sum(row.records for row in rows) == sum(map(len, held.values()))
            assert list(found.cells)[:3] == ["part-000000", "part-000001", "part-000002"]


def test_a_range_without_run_files_has_none_behind_the_next_merge_either() -> None:
    layout = RunLayout.of_one([RunFile("1", 1, SomeUrls.of(["a"]))], 2, 2)
    merged = layout.merged([[], [("m", 7, NO_TASK)]], [range(2), range(2, 4)], 2)
    assert [cell.bucket for cell in merged.cells.values()] == [2, 3]
    again = merged.merged([[(name, 7, NO_TASK)] for name in "no"], [range(n, n + 1) for n in range(4)], None)
    assert [(area.runs, area.buckets) for area in again.areas] == [
        (range(0), range(1)),
        (range(0), range(1, 2)),
        (range(1), range(2, 3)),
        (range(1, 2), range(3, 4)),
    ]


def test_no_bucket_of_an_earlier_job_is_called_as_another() -> None:
    assert bucket_name(7) == "part-000007"
    assert bucket_name(7, "ab") == "part-000007-ab"
    assert bucket_name(1234567) == "part-1234567"
    assert not RunFile("a", 0, SomeUrls.of([])).is_earlier
    assert RunFile("a", 0, SomeUrls.of([]), -1).is_earlier


# the division of an order into buckets


@pytest.mark.parametrize("cuts", [[], [b""], [b"a"], [b"a", b"a\0", b"b", b"\xff"]])
def test_cuts_are_recorded_and_read_again(cuts: list[bytes]) -> None:
    partition = Partition.of_cuts(cuts)
    assert (partition.buckets, partition.block_bytes, partition.merges) == (len(cuts) + 1, BLOCK_BYTES, NO_MERGES)
    assert partition.cuts() == cuts
    assert Partition.recorded(partition.parameters()) == partition
    assert Partition.of_cuts(cuts, 77).block_bytes == 77
    assert Partition.recorded(Partition.of_cuts(cuts, 77).parameters()) == Partition.of_cuts(cuts, 77)


def test_what_is_recorded_is_a_function_of_the_cuts_alone() -> None:
    """It is part of the identity of a job: other bytes would name other outputs."""
    assert base64.b85decode(Partition.of_cuts([b"a"] * 50).sampled) == zlib.compress(orjson.dumps(["61"] * 50), 9)
    assert Partition(3).parameters() == {"partition": {"buckets": 3, "block_bytes": BLOCK_BYTES}}
    assert Partition(3, "x", 5, Merges(2, 4)).parameters() == {
        "partition": {"buckets": 3, "block_bytes": 5, "merges": 2, "fan": 4, "cuts": "x"}
    }


def test_keys_that_begin_with_a_hash_are_cut_evenly() -> None:
    assert Partition(1).cuts() == []
    assert Partition(2).cuts() == [bytes([128, *bytes(7)])]
    third = 2**64 // 3
    assert Partition(3).cuts() == [third.to_bytes(8, "big"), (2 * 2**64 // 3).to_bytes(8, "big")]


def test_what_is_not_said_has_its_default() -> None:
    assert Partition.recorded({"partition": {"buckets": 1}}) == Partition(1, "", BLOCK_BYTES, NO_MERGES)
    whole = {"buckets": MOST_BUCKETS, "block_bytes": 1, "merges": MOST_MERGES, "fan": 2, "cuts": "c"}
    assert Partition.recorded({"partition": whole}) == Partition(MOST_BUCKETS, "c", 1, Merges(MOST_MERGES, 2))
    assert MOST_BUCKETS == 10_000_000
    assert MOST_MERGES == 16


WRONG: tuple[dict[str, Any], ...] = (
    *({"buckets": value} for value in (0, -1, True, 1.0, "3", None, MOST_BUCKETS + 1)),
    *({"block_bytes": value} for value in (0, "1", None)),
    *({"cuts": value} for value in (None, ["61"])),
    *({"merges": value, "fan": 2} for value in (MOST_MERGES + 1, -1, True, 1.0, "1")),
    *({"fan": value} for value in (0, "2")),
    *({"merges": 1, "fan": value} for value in (0, 1, "3")),
    {"merges": 1},
)


@each(
    "parameters",
    [{}, {"partition": None}, {"partition": [1]}, *({"partition": {"buckets": 3} | some} for some in WRONG)],
)
def test_a_partition_that_no_job_has_decided_is_none(parameters: dict[str, Any]) -> None:
    assert Partition.recorded(parameters) is None


def packed(value: Any) -> str:
    return base64.b85encode(zlib.compress(orjson.dumps(value))).decode()


@each(
    ("buckets", "sampled"),
    [
        (3, "\0"),
        (3, "abc"),
        (3, packed(["61", "62"])[:-5]),
        (3, base64.b85encode(zlib.compress(b"{")).decode()),
        (3, packed(["61", "6"])),
        (3, packed(["61", None])),
        (3, packed(7)),
        (2, packed(["61", "62"])),
        (4, packed(["61", "62"])),
        (3, packed(["62", "61"])),
        (3, packed(["61", "61"])),
        (4, packed(["61", "63", "62"])),
    ],
)
def test_cuts_that_do_not_read_are_damage_of_the_ledger(buckets: int, sampled: str) -> None:
    with pytest.raises(LedgerDamagedError, match="the cuts between the buckets of this job cannot be decoded: "):
        Partition(buckets, sampled).cuts()


def test_ranges_of_buckets_become_narrower_level_by_level() -> None:
    partition = Partition(10, merges=Merges(2, 3))
    assert [partition.ranges(level) for level in range(5)] == [
        [0, 10],
        [0, 3, 6, 10],
        [0, 1, 2, 3, 4, 5, 6, 7, 8, 10],
        list(range(11)),
        list(range(11)),
    ]
    assert partition.inner(0) == [range(3)]
    assert partition.inner(1) == [range(3), range(3, 6), range(6, 9)]
    assert partition.inner(2) == [*(range(place, place + 1) for place in range(8)), range(8, 10)]
    cuts = partition.cuts()
    assert [partition.cuts_of(level) for level in range(4)] == [[], [cuts[2], cuts[5]], [*cuts[:8]], cuts]
    assert Partition(5).ranges(0) == [0, 5]
    assert Partition(5).ranges(1) == [0, 1, 2, 3, 4, 5]


def test_hundred_terabytes_in_tasks_of_a_gigabyte_take_three_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = (100_000, 100_000, 100_000, 10_000_000)
    found = plan_merges(*limits)
    assert found is not None
    assert found.number == 2
    read = list(slices_read(found, 100_000, 100_000, 100_000))
    assert len(read) == 3
    assert max(read) <= 10_000_000
    for most, is_planned in ((1, False), (2, True), (3, True)):
        monkeypatch.setattr(slices, "MOST_MERGES", most)
        assert plan_merges(*limits) == (found if is_planned else None)


def test_a_run_file_that_comes_or_goes_changes_the_groups_around_it() -> None:
    names = [f"{number}.run" for number in range(10_000)]
    groups = {tuple(group) for group in neighbours(zip(names, names, strict=True), 30)}
    for place in (0, 17, 5_000, 9_999):
        others = names[:place] + names[place + 1 :]
        found = {tuple(group) for group in neighbours(zip(others, others, strict=True), 30)}
        assert len(groups ^ found) < 40, place


@given(buckets=st.integers(1, 300), number=st.integers(0, 5), fan=st.integers(2, 9))
def test_each_range_is_cut_into_those_of_the_next_level(buckets: int, number: int, fan: int) -> None:
    slices = Partition(buckets, merges=Merges(number, fan) if number else NO_MERGES)
    assert slices.ranges(0) == [0, buckets]
    assert slices.ranges(number + 1) == list(range(buckets + 1))
    for level in range(number + 1):
        inner = slices.inner(level)
        assert [place for some in inner for place in some] == list(range(len(slices.ranges(level + 1)) - 1))
        assert all(len(some) >= 1 for some in inner)
        assert level == number or all(len(some) <= fan for some in inner)
        cuts = slices.cuts_of(level + 1)
        assert cuts == sorted(set(cuts))
        assert set(slices.cuts_of(level)) <= set(cuts)
    assert slices.cuts_of(number + 1) == list(slices.cuts())


KEYS = st.lists(st.binary(max_size=3), max_size=60).map(sorted)


@given(keys=KEYS, cuts=st.sets(st.binary(min_size=1, max_size=3), max_size=5).map(sorted), data=st.data())
def test_what_comes_in_its_order_is_written_as_what_is_there_at_once(
    keys: list[bytes], cuts: list[bytes], data: st.DataObject
) -> None:
    numbers = np.arange(len(keys), dtype=np.uint64) * np.uint64(7)
    payloads = [key * 5 for key in keys]
    places = data.draw(st.lists(st.integers(0, len(keys)), max_size=6).map(sorted))
    parts = [
        RunBlock(ByteRows.of(keys[first:last]), numbers[first:last], ByteRows.of(payloads[first:last]))
        for first, last in pairwise([0, *places, len(keys)])
    ]
    assert encode_sorted(parts, cuts, 40) == (encode_run(keys, numbers, payloads, cuts, 40), len(keys))


def test_each_group_ends_where_the_name_of_a_run_file_says_or_at_most_four_thirds_of_the_fan() -> None:
    names = [f"{number}.run" for number in range(300)]
    for fan, least, most in ((2, 2, 2), (3, 2, 4), (4, 3, 5), (9, 6, 12), (30, 20, 40)):
        expected: list[list[str]] = [[]]
        for name in names:
            group = expected[-1]
            group.append(name)
            if len(group) == most or (
                len(group) >= least and crc32(name.encode()) % max(1, (most - least + 1) // 2) == 0
            ):
                expected.append([])
        assert list(neighbours(zip(names, names, strict=True), fan)) == [group for group in expected if group]
    assert list(neighbours([], 2)) == []
    assert list(neighbours([(1, "a\udcff")], 2)) == [[1]]


@each(
    ("merges", "sides", "read"),
    [
        (NO_MERGES, 1, [2000]),
        (Merges(1, 3), 1, [300, 20 * 50]),
        (Merges(1, 3), 2, [300, 20 * 51]),
        (Merges(2, 3), 1, [300, 3 * 50 * 3, 20 * 25]),
        (Merges(2, 4), 1, [400, 4 * 34 * 4, 20 * 12]),
        (Merges(1, 50), 1, [5000, 20 * 10]),
        (Merges(2, 50), 1, [5000, 5000, 20 * 10]),
        (Merges(2, 4), 3, [400, 4 * 36 * 4, 20 * 14]),
    ],
)
def test_how_many_slices_are_read_is_what_the_groups_leave(merges: Merges, sides: int, read: list[int]) -> None:
    """Hundred run files of ten buckets, which have twenty parts."""
    assert list(slices_read(merges, 100, 10, 20, sides)) == read
    if sides == 1:
        assert list(slices_read(merges, 100, 10, 20)) == read


def test_a_plan_has_the_fewest_merges_and_reads_least() -> None:
    """Against all plans that there are, looked at one by one."""
    for runs, buckets, parts, most, sides in product(
        (1, 3, 8, 20), (1, 4, 9), (9, 30), (8, 20, 39, 60, 160, 200), (1, 2)
    ):
        found = plan_merges(runs, buckets, parts, most, sides)
        if runs * parts <= most:
            assert found == NO_MERGES
            continue
        expected = None
        for number in range(1, 5):
            plans = [Merges(number, fan) for fan in range(2, runs + 1)]
            read = {plan: list(slices_read(plan, runs, buckets, parts, sides)) for plan in plans}
            fits = [plan for plan in plans if max(read[plan]) <= most]
            if fits:
                expected = min(fits, key=lambda plan: (sum(read[plan]), plan.fan))
                break
        assert found == expected, (runs, buckets, parts, most, sides)
