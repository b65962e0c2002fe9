"""Files whose listed records are left out or read alone, and the buckets of an exchange."""

from __future__ import annotations

import bz2
import gzip
import json
import pickle
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ledgerbeam.errors import NotIndexableError, RunFileError, SourceNotFoundError, UsageError
from ledgerbeam.io import Sample
from ledgerbeam.io.exchange.merge import Bound
from ledgerbeam.io.exchange.run_file import encode_run
from ledgerbeam.io.exchange.slices import RunFile, RunLayout, SliceTables, SomeUrls
from ledgerbeam.io.index.file import IndexLocation
from ledgerbeam.io.listing.left_out import LeftOut
from ledgerbeam.io.listing.pages import Page
from ledgerbeam.ledger import Source
from ledgerbeam.sources import FileSources
from ledgerbeam.sources.buckets import (
    BucketListing,
    BucketSources,
    GatheredRecords,
    OpenedBucket,
    bucket_page,
)
from ledgerbeam.sources.forms import FILE_SHIFT
from ledgerbeam.sources.kind import TaskLimits
from ledgerbeam.sources.listed import (
    LIST_SCHEME,
    ChosenSources,
    FileLists,
    ListBuckets,
    RemainingSources,
    SourceLists,
    WithEarlierFiles,
    bucket_of,
    file_key,
    with_lists,
)
from ledgerbeam.sources.listing import SourceListing
from tests.sources.data import lines, listed, put, put_index, tar

BUCKETS = 4


class Dropped:
    """The dropped records of files, as an exchange writes them."""

    def __init__(self, folder: Path, *runs: dict[str, list[int]]) -> None:
        self.tables = SliceTables(str(folder), "state")
        cuts = [(bucket * 2**64 // BUCKETS).to_bytes(8, "big") for bucket in range(1, BUCKETS)]
        files = []
        for number, dropped in enumerate(runs):
            rows = sorted((file_key(url), place) for url, places in dropped.items() for place in places)
            numbers = np.array([place for _, place in rows], np.uint64)
            data = encode_run([key for key, _ in rows], numbers, [b"note %d" % place for _, place in rows], cuts)
            (folder / f"{number}.run").write_bytes(data)
            files.append(RunFile(f"{number}.run", len(data), SomeUrls.of(("bucket:///part-000000",))))
        found = self.tables.write(RunLayout.of_one(files, BUCKETS))
        self.listing = folder / "buckets.json"
        self.listing.write_bytes(orjson.dumps({"versions": [row.version for row in found]}))
        self.buckets = ListBuckets(str(self.listing))

    def sources(self, **options: Any) -> RemainingSources:
        return RemainingSources(FileSources(form="placed", **options), self.tables, self.buckets)

    def chosen(self, **options: Any) -> ChosenSources:
        return ChosenSources(FileSources(form="placed", **options), self.tables, self.buckets)


def indexed(folder: Path, count: int, places: list[int]) -> tuple[Source, Source, Dropped]:
    """Return an indexed file of lines, its source with the list of these places, and the lists."""
    one = put(folder / "in" / "a.jsonl", lines(count))
    put_index(one)
    lists = Dropped(folder, {one.url: places})
    (source,) = with_lists([one], lists.buckets, None)
    return one, source, lists


def read(sources: RemainingSources, source: Source, task_bytes: int = 10**6) -> tuple[list[Any], int]:
    """Return the records that are left of a source with their places, and how many are not."""
    found, dropped = [], 0
    kind = sources.kind_of(source)
    cut = kind.cut(source, TaskLimits(task_bytes))
    opened = kind.open(cut.source)
    for start, stop in cut.spans:
        some = opened.read_span(start, stop)
        assert len(some) == len(some.records)
        for part in some.records.parts:
            found += list(zip([part.url] * len(part), part.numbers.tolist(), part.records(), strict=True))
        dropped += some.dropped
    opened.close()
    return found, dropped


def test_all_is_left_but_what_is_dropped_of_this_file(tmp_path: Path) -> None:
    one, other = (put(tmp_path / "in" / name, lines(5, word)) for name, word in (("a.jsonl", "a"), ("b.jsonl", "b")))
    for file in (one, other):
        put_index(file)
    dropped = Dropped(tmp_path, {one.url: [1], "/else": [0, 2]}, {one.url: [4]})
    left, whole = with_lists([one, other], dropped.buckets, None)
    for task_bytes in (1, 10**6):
        found, gone = read(dropped.sources(), left, task_bytes)
        assert ([place for _, place, _ in found], gone) == ([0, 2, 3], 2)
        assert {url for url, _, _ in found} == {one.url}
        assert len({str(record) for _, _, record in found}) == 3
        assert len(read(dropped.sources(), whole, task_bytes)[0]) == 5


def test_each_file_of_a_pack_is_left_without_its_own(tmp_path: Path) -> None:
    files = [put(tmp_path / "in" / f"{name}.jsonl", lines(3, name)) for name in "abc"]
    index = IndexLocation(root=str(tmp_path / "indexes"))
    dropped = Dropped(tmp_path, {files[0].url: [2], files[2].url: [0, 1, 2]})
    (pack,) = with_lists(files, dropped.buckets, 10**6)
    found, gone = read(dropped.sources(index=index), pack)
    assert [(url, place) for url, place, _ in found] == [
        *((files[0].url, place) for place in (0, 1)),
        *((files[1].url, place) for place in range(3)),
    ]
    assert gone == 4


def test_a_source_is_the_file_and_what_is_dropped_of_it(tmp_path: Path) -> None:
    files = [Source(f"/in/{n}", 10, "1") for n in range(40)]
    before = Dropped(tmp_path, {files[0].url: [1]}).buckets
    versions = before.versions()
    one, packs = list(with_lists(files, before, None)), list(with_lists(files, before, 100))
    assert [source.members[0] for source in one] == files
    assert {source.members[1].url for source in one} == {f"{LIST_SCHEME}{file.url}" for file in files}
    assert {len(source.members) for source in one} == {2}
    assert [source.size for source in one] == [10] * 40
    after = Dropped(tmp_path, {files[0].url: [1, 2]}).buckets
    changed = {old.url for old, new in zip(one, with_lists(files, after, None), strict=True) if old.id != new.id}
    bucket = bucket_of(files[0].url, BUCKETS)
    assert len(changed) == sum(bucket_of(file.url, BUCKETS) == bucket for file in files) < 40
    assert sum(map(bool, versions)) == 1
    assert [file for pack in packs for file in pack.members[:-1]] == files
    assert 1 < len(packs) < 40
    assert [source.id for source in packs] != [source.id for source in with_lists(files, after, 100)]


def test_buckets_are_of_one_size() -> None:
    found = [bucket_of(f"/in/{n}", 3) for n in range(3000)]
    assert set(found) == {0, 1, 2}
    assert all(900 < found.count(bucket) < 1100 for bucket in range(3))


def test_names_are_checked_of_files_alone(tmp_path: Path) -> None:
    sources = Dropped(tmp_path).sources()
    sources.check_names(["/in/a.jsonl", f"{LIST_SCHEME}/in/a.nothing"])
    with pytest.raises(UsageError, match="nothing"):
        sources.check_names(["/in/a.nothing"])
    sources.check_names(["/in/a.jsonl.bz2"])
    with pytest.raises(NotIndexableError):
        sources.check_names(["/in/a.jsonl.bz2"], by_position=True)


def test_lists_that_are_not_those_that_were_listed_are_refused(tmp_path: Path) -> None:
    one, source, dropped = indexed(tmp_path, 3, [1])
    listed = dropped.listing.read_bytes()
    Dropped(tmp_path, {one.url: [2]})
    dropped.listing.write_bytes(listed)
    with pytest.raises(RunFileError, match="in version"):
        read(dropped.sources(), source)


def test_the_times_of_files_are_those_of_the_files(tmp_path: Path) -> None:
    one, source, dropped = indexed(tmp_path, 3, [0])
    kind = dropped.sources().kind_of(source)
    assert [file.url for file in kind.files(source)] == [one.url]
    cut = kind.cut(source, TaskLimits())
    assert (cut.source.id, cut.source.members[-1]) == (source.id, source.members[-1])
    opened = kind.open(cut.source)
    assert len(opened.read_each(0, 3)) == 2
    assert len(opened.read_raw(0, 3)) == 3
    opened.close()


def chosen(sources: ChosenSources, source: Source, task_bytes: int = 10**6) -> list[tuple[int, Any, bytes]]:
    """Return number, record and note of the listed records of a source."""
    kind = sources.kind_of(source)
    cut = kind.cut(source, TaskLimits(task_bytes))
    found = []
    if cut.stream is not None:
        with kind.open_stream(cut.source, cut.stream.format) as reader:
            found = [reader.read(span) for span in cut.stream.places]
    elif cut.spans:
        opened = kind.open(cut.source)
        found = [opened.read_span(start, stop) for start, stop in cut.spans]
        opened.close()
    parts = [part for some in found for part in some.parts]
    rows = (zip(part.numbers.tolist(), part.records(), part.notes, strict=True) for part in parts)
    return list(chain.from_iterable(rows))


@pytest.mark.parametrize("task_bytes", [1, 40, 10**6])
@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz", "a.jsonl.bz2", "a.tar", "a.parquet"])
def test_records_that_are_listed_are_read_alone_with_what_stands_there(
    tmp_path: Path, name: str, task_bytes: int
) -> None:
    rows = [{"id": f"a{number}"} for number in range(9)]
    if name.endswith("tar"):
        one = put(tmp_path / "in" / name, tar(*(f"{number}.json" for number in range(9))))
        rows = [Sample(str(number), {"json": b"{} "}) for number in range(9)]  # type: ignore[misc]
    elif name.endswith("parquet"):
        table = pa.Table.from_pylist(rows)
        (tmp_path / "in").mkdir()
        pq.write_table(table, tmp_path / "in" / name, row_group_size=2)
        one = listed(tmp_path / "in" / name)
    else:
        data = lines(9)
        packed = {"gz": gzip.compress(data), "bz2": bz2.compress(data)}.get(name.rpartition(".")[2], data)
        one = put(tmp_path / "in" / name, packed)
    lists = Dropped(tmp_path, {one.url: [7], "/else": [0]}, {one.url: [2, 3]})
    (source,) = with_lists([one], lists.buckets, None)
    index = IndexLocation(root=str(tmp_path / "indexes"))
    found = chosen(lists.chosen(index=index), source, task_bytes)
    assert found == [(number, rows[number], b"note %d" % number) for number in (2, 3, 7)]


def test_a_file_without_listed_records_is_not_even_opened(tmp_path: Path) -> None:
    one = put(tmp_path / "in" / "a.jsonl", lines(3))
    lists = Dropped(tmp_path, {"/else": [0]})
    (source,) = with_lists([one], lists.buckets, None)
    Path(one.url).unlink()
    assert chosen(lists.chosen(), source) == []


def test_a_span_without_listed_records_is_not_read(tmp_path: Path) -> None:
    one, source, lists = indexed(tmp_path, 4, [2])
    opened = lists.chosen().kind_of(source).open(source)
    Path(one.url).unlink()
    for start, stop in ((0, 1), (0, 2), (3, 4)):
        assert len(opened.read_span(start, stop)) == 0
    with pytest.raises(SourceNotFoundError):
        opened.read_span(2, 3)


@pytest.mark.parametrize("task_records", [2, 9])
@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.bz2"])
def test_the_lists_of_spans_are_read_without_the_records(tmp_path: Path, name: str, task_records: int) -> None:
    one = put(tmp_path / "in" / name, bz2.compress(lines(7)) if name.endswith("bz2") else lines(7))
    lists = Dropped(tmp_path, {one.url: [1, 4, 5]})
    (source,) = with_lists([one], lists.buckets, None)
    files = FileSources(form="placed", index=IndexLocation(root=str(tmp_path / "indexes")))
    kind = SourceLists(files, lists.tables, lists.buckets).kind_of(source)
    cut = kind.cut(source, TaskLimits(task_records=task_records))
    if cut.stream is not None:
        with kind.open_stream(cut.source, cut.stream.format) as reader:
            found = [reader.read(span) for span in cut.stream.places]
    else:
        opened = kind.open(cut.source)
        Path(one.url).unlink()
        found = [opened.read_span(start, stop) for start, stop in cut.spans]
    assert [len(some) for some in found] == ([7] if task_records == 9 else [2, 2, 2, 1])
    rows = (zip(some.places.tolist(), some.notes, strict=True) for some in found)
    assert [[*some] for some in rows] == (
        [[(1, b"note 1"), (4, b"note 4"), (5, b"note 5")]]
        if task_records == 9
        else [[(1, b"note 1")], [], [(0, b"note 4"), (1, b"note 5")], []]
    )


def test_each_file_of_a_pack_is_read_by_its_own_list(tmp_path: Path) -> None:
    files = [put(tmp_path / "in" / f"{name}.jsonl", lines(3, name)) for name in "abc"]
    lists = Dropped(tmp_path, {files[0].url: [2], files[2].url: [0, 1]})
    (pack,) = with_lists(files, lists.buckets, 10**6)
    sources = lists.chosen(index=IndexLocation(root=str(tmp_path / "indexes")))
    assert [(number, record["id"]) for number, record, _ in chosen(sources, pack)] == [(2, "a2"), (0, "c0"), (1, "c1")]
    kind = sources.kind_of(pack)
    cut = kind.cut(pack, TaskLimits())
    (span,) = cut.spans
    places = kind.open(cut.source).read_span(*span).places.tolist()
    assert places == [2, 2 << 40, (2 << 40) + 1], "by the place of the file in the pack"


def test_files_whose_lists_lie_together_are_listed_once(tmp_path: Path) -> None:
    """With more files than buckets, two files share a bucket, and it is read for both."""
    files = [put(tmp_path / "in" / f"{name}.jsonl", lines(3, name)) for name in "abcdefgh"]
    lists = Dropped(tmp_path, {file.url: [2, 1] for file in files})
    found = FileLists(lists.chosen(), Source.pack(files)).by_url
    assert {url: (one.numbers.tolist(), one.notes) for url, one in found.items()} == {
        file.url: ([1, 2], [b"note 1", b"note 2"]) for file in files
    }


def test_the_records_that_are_left_of_a_stream_are_read_with_their_bytes(tmp_path: Path) -> None:
    one = put(tmp_path / "in" / "a.jsonl.bz2", bz2.compress(lines(5)))
    lists = Dropped(tmp_path, {one.url: [1, 3]})
    (source,) = with_lists([one], lists.buckets, None)
    kind = lists.sources().kind_of(source)
    cut = kind.cut(source, TaskLimits(task_records=2))
    assert cut.stream is not None
    with kind.open_stream(cut.source, cut.stream.format) as reader:
        for read_span in (reader.read, reader.read_each):
            found = read_span(cut.stream.places[0])
            assert ([part.numbers.tolist() for part in found.records.parts], found.dropped) == ([[0]], 1)
        assert [raw.data for raw in reader.read_raw(cut.stream.places[0])] == lines(2).splitlines()


def test_buckets_are_counted_by_the_first_eight_bytes_of_a_key() -> None:
    for url in (f"/in/{number}" for number in range(50)):
        share = int.from_bytes(file_key(url)[:8], "big") / 2**64
        for buckets in (1, 2, 7, 1000):
            found = bucket_of(url, buckets)
            assert 0 <= found < buckets
            assert found == int(share * buckets)
    assert len({file_key(f"/in/{number}") for number in range(50)}) == 50
    assert {len(file_key(name)) for name in ("", "/in/a", "/in/\udcff")} == {16}


def earlier(folder: Path, state: str = "state") -> WithEarlierFiles:
    return WithEarlierFiles(SourceListing((str(folder / "in" / "*.jsonl"),)), str(folder / "earlier.json"), state)


@pytest.mark.parametrize("files", [[], [Source("/data/\udcff.jsonl", 3, "7"), Source("/data/b.jsonl", 4, "8")]])
def test_files_of_earlier_jobs_are_listed_behind_the_others(tmp_path: Path, files: list[Source]) -> None:
    own = put(tmp_path / "in" / "a.jsonl", lines(1))
    listing = earlier(tmp_path)
    assert listing.title == listing.files.title
    assert listing.earlier() is None  # not written yet
    first = Page([own.url], [own.size], [own.version])
    assert list(listing.pages()) == [first]
    listing.write(files)
    page = Page([file.url for file in files], [file.size for file in files], [file.version for file in files])
    assert listing.earlier() == page
    assert list(listing.pages()) == [first, *[page] * bool(files)]
    assert earlier(tmp_path, "of other lists").earlier() is None


def test_what_a_listing_leaves_out_is_told_with_earlier_files_too(tmp_path: Path) -> None:
    put(tmp_path / "in" / "a.jsonl", lines(1))
    left_out = LeftOut()
    seen: list[LeftOut | None] = []

    class Listing(SourceListing):
        def pages(self, left_out: LeftOut | None = None) -> Any:
            seen.append(left_out)
            return super().pages(left_out)

    listing = WithEarlierFiles(Listing((str(tmp_path / "in" / "*"),)), str(tmp_path / "earlier.json"), "state")
    assert len(list(listing.pages(left_out))) == 1
    assert seen == [left_out]


def test_the_lists_of_a_pack_are_named_alike_whichever_file_comes_first(tmp_path: Path) -> None:
    listing = tmp_path / "buckets.json"
    listing.write_bytes(orjson.dumps({"versions": [f"v{bucket}" for bucket in range(16)]}))
    by_bucket = {bucket_of(f"/in/{number}", 16): Source(f"/in/{number}", 10, "1") for number in range(300)}
    versions = set()
    for files in ([by_bucket[0], by_bucket[8]], [by_bucket[8], by_bucket[0]]):
        (pack,) = with_lists(files, ListBuckets(str(listing)), 100)
        versions.add(pack.members[-1].version)
    (version,) = versions
    assert len(version) == 32
    (other,) = with_lists([by_bucket[0], by_bucket[1]], ListBuckets(str(listing)), 100)
    assert other.members[-1].version != version


@pytest.mark.parametrize("number", [0, 2])
def test_the_first_and_the_last_record_of_a_file_are_found(tmp_path: Path, number: int) -> None:
    _, source, lists = indexed(tmp_path, 3, [number])
    for task_bytes in (1, 10**6):
        assert [found for found, _, _ in chosen(lists.chosen(), source, task_bytes)] == [number]


def test_a_pack_of_two_files_is_cut_with_the_times_of_its_files(tmp_path: Path) -> None:
    files = [put(tmp_path / "in" / f"{name}.jsonl", lines(3, name)) for name in "ab"]
    lists = Dropped(tmp_path, {files[1].url: [0]})
    (pack,) = with_lists(files, lists.buckets, 10**6)
    assert [record["id"] for _, record, _ in chosen(lists.chosen(), pack)] == ["b0"]
    for source in (pack, *with_lists(files[1:], lists.buckets, None)):
        cut = lists.chosen().kind_of(source).cut(source, TaskLimits())
        assert cut.source.id == source.id
        assert [member.url for member in cut.source.members] == [member.url for member in source.members]
    assert cut.source.members[0].changed_ns > 0


def test_the_index_of_a_file_that_has_changed_is_not_believed(tmp_path: Path) -> None:
    one = put(tmp_path / "in" / "a.jsonl", lines(3))
    put_index(one, np.array([0, 26, 39], np.uint64))
    lists = Dropped(tmp_path, {one.url: [0]})
    (source,) = with_lists([one], lists.buckets, None)
    kind = lists.sources().kind_of(source)
    limits = TaskLimits(task_records=1)
    assert kind.cut(source, limits).spans == [(0, 1), (1, 2)]
    assert kind.cut(source, limits, changed=True).spans == [(0, 1), (1, 2), (2, 3)]


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
        return sources.open(self.sources[1])


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
    assert list(chain.from_iterable(each)) == list(chain.from_iterable(bucket.read_each(0, parts))) == expected
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
    with pytest.raises(RunFileError, match=r"^3\.run: expected the number of a file below 2, found 2"):
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
        with pytest.raises(RunFileError, match=r"at most 2\^24 source files in one merge, found 16,777,21"):
            list(bucket.read_span(0, 1).renumbered())
