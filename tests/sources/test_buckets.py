"""The buckets of an exchange as sources: names, parts, and the runs of a part."""

from __future__ import annotations

import json
import pickle
from itertools import chain
from pathlib import Path

import numpy as np
import pytest

from ledgerbeam.errors import RunFileError
from ledgerbeam.io.exchange.merge import Bound
from ledgerbeam.io.exchange.run_file import encode_run
from ledgerbeam.io.exchange.slices import RunFile, RunLayout, SliceTables, SomeUrls
from ledgerbeam.ledger import Source
from ledgerbeam.sources.buckets import (
    BucketKind,
    BucketListing,
    BucketSources,
    GatheredRecords,
    OpenedBucket,
    bucket_page,
)
from ledgerbeam.sources.forms import FILE_SHIFT
from ledgerbeam.sources.kind import TaskLimits

FILE = 1 << int(FILE_SHIFT)
URLS = [f"/in/{name}" for name in "abcdef"]
SIDES = (-1, 0, 0, 1, 2)


class Exchange:
    """Run files of five runs, the fourth of two files, with ten records of one key each, in two buckets."""

    def __init__(self, folder: Path) -> None:
        runs = []
        for run, side in enumerate(SIDES):
            keys = [b"a" if run == 4 else b"k"] * 10
            numbers = np.arange(10, dtype=np.uint64)
            if run == 3:
                numbers[5:] += np.uint64(FILE)
            data = encode_run(keys, numbers, [b'"%d.%d"' % (run, n) for n in range(10)], [b"b"], 64)
            (folder / f"{run}.run").write_bytes(data)
            runs.append(RunFile(f"{run}.run", len(data), SomeUrls(URLS, run + (run > 3), run + 1 + (run > 2)), side))
        self.tables = SliceTables(str(folder), "state")
        rows = self.tables.write(RunLayout.of_one(runs, 2))
        page = bucket_page([row.size for row in rows], [row.version for row in rows])
        self.sources = list(map(Source, page.urls, page.sizes, page.versions))

    def bucket(self, part_bytes: int = 10**6, beside: int = 0) -> OpenedBucket:
        sources = BucketSources(self.tables, part_bytes, beside=beside)
        return BucketKind(sources).open_bucket(self.sources[1])


@pytest.fixture
def exchange(tmp_path: Path) -> Exchange:
    return Exchange(tmp_path)


def test_buckets_are_listed_by_their_numbers_or_names(tmp_path: Path) -> None:
    page = bucket_page([7, 0], ["v", ""])
    assert [url.rpartition("/")[2] for url in page.urls] == ["part-000000", "part-000001"]
    named = bucket_page([7, 0], ["v", ""], ["x", "y"])
    assert [url.rpartition("/")[2] for url in named.urls] == ["x", "y"]
    base = BucketSources(SliceTables("/runs", "s"), 1).base
    assert all(url.startswith(base) for url in (*page.urls, *named.urls))
    (tmp_path / "names").write_text(json.dumps({"sizes": [7, 0], "versions": ["v", ""], "names": ["x", "y"]}))
    listing = BucketListing(str(tmp_path / "names"))
    assert listing.title == str(tmp_path / "names")
    (found,) = listing.pages()
    assert (found.urls, found.sizes, found.versions) == (named.urls, [7, 0], ["v", ""])


def test_what_opens_buckets_travels_with_all_that_it_was_told() -> None:
    sources = BucketSources(SliceTables("/runs", "s", {"a": 1}), 5, within_keys=False, beside=2)
    again = pickle.loads(pickle.dumps(sources))
    assert (again, repr(again)) == (sources, repr(sources))
    assert (again.tables, again.part_bytes, again.within_keys, again.beside) == (sources.tables, 5, False, 2)


def test_a_bucket_is_divided_once_it_is_larger_than_one_and_a_half_parts(exchange: Exchange) -> None:
    bucket = exchange.sources[1]
    size = bucket.size
    assert size == 40 * (len(b'"0.0"') + 1) == 240
    for part_bytes, parts in ((240, 1), (160, 1), (159, 2), (120, 2), (60, 4)):
        kind = BucketSources(exchange.tables, part_bytes).kind_of(bucket)
        assert kind.cut(bucket, TaskLimits()).spans == [(part, part + 1) for part in range(parts)], part_bytes
        assert kind.files(bucket) == []
    whole = BucketSources(exchange.tables, 60, within_keys=False).kind_of(bucket)
    assert whole.cut(bucket, TaskLimits()).spans == [(0, 1)]
    empty = Source(bucket.url, 0, "")
    assert BucketSources(exchange.tables, 60).kind_of(empty).cut(empty, TaskLimits()).spans == []


def test_parts_are_read_one_by_one_or_together(exchange: Exchange) -> None:
    bucket = exchange.bucket(60)
    parts = len(bucket.bounds) - 1
    expected = [f"{run}.{n}" for run in range(4) for n in range(10)]
    each = [[record for some in bucket.read_span(part, part + 1) for record in some] for part in range(parts)]
    assert (
        list(chain.from_iterable(each))
        == [record for some in bucket.read_each(0, parts) for record in some]
        == expected
    )
    records = bucket.read_span(1, 3)
    assert records.marking() is records
    assert [json.loads(payload) for part in records.merged() for payload in part.payloads] == each[1] + each[2]
    assert records.passed == len(each[1] + each[2])
    raw = bucket.read_raw(0, parts)
    assert [one[:2] for one in raw] == [(URLS[run + (run == 3 and n > 4)], n) for run in range(4) for n in range(10)]
    assert [json.loads(payload) for payload in bucket.read_span(0, 1).unmerged()] == expected
    assert [bucket.number, exchange.bucket().read_span(0, 1).bucket] == [1, 1]


def test_the_records_of_a_pass_are_known_once_it_has_come_to_its_end(exchange: Exchange) -> None:
    records = exchange.bucket().read_span(0, 1)
    given = iter(records)
    first = next(given)
    assert records.passed is None
    assert len(first) + sum(map(len, given)) == records.passed


def test_which_runs_are_earlier_ones_and_which_stand_beside_is_known(exchange: Exchange) -> None:
    for beside, number in ((0, 0), (1, 2), (2, 3), (3, 4)):
        records = exchange.bucket(beside=beside).read_span(0, 1)
        assert (records.beside, records.earlier) == (number, 1)


def test_a_key_in_whose_middle_a_part_begins_or_ends_is_known(exchange: Exchange) -> None:
    bucket = exchange.bucket()
    for start, stop, keys in (
        (None, None, []),
        (Bound(b"k"), Bound(b"l"), []),
        (Bound(b"k", 1), None, [b"k"]),
        (None, Bound(b"k", 0, 1), [b"k"]),
        (Bound(b"k", 1), Bound(b"k", 2), [b"k"]),
        (Bound(b"m", 0, 3), Bound(b"c", 1), [b"c", b"m"]),
    ):
        assert GatheredRecords(bucket, start, stop).cut_keys == keys


def test_what_was_begun_comes_of_the_runs_beside_alone(exchange: Exchange) -> None:
    bucket = exchange.bucket()
    for beside in (1, 2, 3):
        bucket.beside = beside
        for start, runs in (
            (None, 0),
            (Bound(b"k"), 0),
            (Bound(b"k", beside - 1, 3), 0),
            (Bound(b"k", beside), beside),
            (Bound(b"k", 3, 1), beside),
        ):
            found = [run for part in GatheredRecords(bucket, start, None).begun() for run in part.runs]
            assert found == [run for run in range(runs) for _ in range(10)], (beside, start)


@pytest.mark.parametrize("beside", [0, 1, 2])
def test_what_stands_beside_is_never_cut(exchange: Exchange, beside: int) -> None:
    """Else a part would have to read what another one begins with."""
    bucket = exchange.bucket(30, beside=beside)
    starts = [bound for bound in bucket.bounds if bound is not None]
    assert len(starts) > 1
    assert all(bound.run >= bucket.beside or (bound.run, bound.number) == (0, 0) for bound in starts)
    assert any(bound.run < 2 for bound in starts) is (beside == 0)


def test_a_place_is_the_file_of_the_run_and_the_number_in_it(exchange: Exchange) -> None:
    records = exchange.bucket().read_span(0, 1)
    assert records.place(0, 9) == ("/in/a", 9)
    assert records.place(3, FILE - 1) == ("/in/d", FILE - 1)
    assert records.place(3, FILE) == ("/in/e", 0)
    with pytest.raises(RunFileError, match=r"^3\.run: expected a record of 2 files, found one of file 2"):
        records.place(3, 2 * FILE)


def test_records_of_many_runs_are_numbered_as_those_of_one(exchange: Exchange) -> None:
    bucket = exchange.bucket()
    found = [number for part in bucket.read_span(0, 1).renumbered() for number in part.numbers]
    assert found == [(run + (run == 3 and n > 4)) * FILE + n for run in range(4) for n in range(10)]
    # In a group that begins behind other files they count from its own first one.
    whole = bucket.runs
    urls = ["/in/0", "/in/1", *URLS]
    bucket.runs = [run._replace(sources=SomeUrls(urls, run.sources.start + 2, run.sources.stop + 2)) for run in whole]
    assert [number for part in bucket.read_span(0, 1).renumbered() for number in part.numbers] == found
    first, *others = whole
    for files, fits in ((2**24 - 1, True), (2**24, False), (2**24 + 1, False)):
        last = others[-1]._replace(sources=SomeUrls(URLS, files - 1, files))
        bucket.runs = [first, *others[:-1], last]
        if fits:
            assert sum(len(part.keys) for part in bucket.read_span(0, 1).renumbered()) == 40
            continue
        with pytest.raises(RunFileError, match=r"runs of at most 2\^24 files together, found 16,777,21"):
            list(bucket.read_span(0, 1).renumbered())
