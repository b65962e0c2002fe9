"""Run files between two stages of an exchange, their partition into buckets, and their removal."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest

from ledgerbeam._base.names import REJECTS
from ledgerbeam.errors import LedgerDamagedError, ScatterIncompleteError, StorageError
from ledgerbeam.io.exchange.run_file import BLOCK_BYTES, encode_run, task_mark
from ledgerbeam.io.exchange.slices import MOST_BUCKETS, Merges, Partition, SliceTables
from ledgerbeam.ledger import Job, LedgerStore, Source
from ledgerbeam.ledger.lmdb.store import LmdbStore
from ledgerbeam.ledger.model.rows import Leaf, Output, OutputRow
from ledgerbeam.ledger.model.task import pack_sources
from ledgerbeam.ledger.opening import open_local_store
from ledgerbeam.pipelines.exchange.buckets import (
    FoundBuckets,
    Reading,
    RunFiles,
    RunWriter,
    are_complete,
    remove_internal,
)
from ledgerbeam.pipelines.jobs.map import MapJob, MappedFunction
from ledgerbeam.pipelines.jobs.sources import ListedFiles
from ledgerbeam.pipelines.jobs.spec import JobSpec
from ledgerbeam.sources.buckets import BucketSources
from ledgerbeam.sources.forms import FILE_SHIFT
from tests.cases import each
from tests.disk import Disk

FILE = 1 << FILE_SHIFT
PARTITION = Partition.of_cuts([b"m"], 150)
Row = tuple[bytes, int]
"""Key and number of a record in its source."""


class Place:
    """A folder of run files, and the ledgers of the jobs that have written them."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.runs = root / "runs"
        self.stores: list[LedgerStore] = []

    def store(self, name: str) -> LedgerStore:
        store = open_local_store(str(self.root / name), create=True)
        self.stores.append(store)
        return store

    def writer(self, name: str, below: str = "", **how: Any) -> RunWriter:
        """Return a job that has written nothing yet."""
        return RunWriter(Job("scatter", {"name": name}), str(self.runs / below).rstrip("/"), self.store(name), **how)

    def reading(self, partition: Partition = PARTITION, **how: Any) -> Reading:
        return Reading(str(self.runs), str(self.root / "work" / "buckets.json"), {}, partition, **how)

    def write(
        self, writer: RunWriter, source: Source, name: str, rows: Sequence[Row], *, route: str = "", whole: bool = True
    ) -> None:
        """Publish a run file of a source, and record it."""
        payloads = [b'"%s"' % key for key, _ in rows]
        keys, numbers = [key for key, _ in rows], np.array([n for _, n in rows], np.uint64)
        data = encode_run(keys, numbers, payloads, [b"m"], 150, mark=task_mark(source.id, 0))
        path = Path(writer.folder) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        writer.store.register([source])
        listed(writer)
        if not whole:
            return
        output = Output(name, len(data), f"sum of {name}", len(rows), route=route)
        writer.store.commit([Leaf(source.id, (), "published", (output,), len(rows), len(data))])

    def files(self, name: str = "a", rows: Sequence[Row] = ((b"a", 0),)) -> RunFiles:
        """Publish the run file of one source, and return the run files."""
        writer = self.writer("w")
        self.write(writer, source(name), f"{name}.run", rows)
        return RunFiles.written([writer], self.reading())


def listed(writer: RunWriter, *gone: Source) -> None:
    """Note that all sources were listed, but for some that are gone."""
    run = writer.store.begin_run({"token": "t"})
    writer.store.note_listing(run, listed=1, finished=True, gone={one.id for one in gone})


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path)
    yield made
    for store in made.stores:
        store.close()


def source(name: str, version: str = "1") -> Source:
    return Source(f"/in/{name}", 10, version)


def records_of(files: RunFiles) -> list[list[Any]]:
    """Return of each bucket its records, by key, side, file and number there."""
    found = files.tabulate()
    sources = BucketSources(SliceTables(files.reading.folder, files.state), 10**6)
    page = found.page()
    buckets: list[list[Any]] = []
    for url, size, version in zip(page.urls, page.sizes, page.versions, strict=True):
        bucket = Source(url, size, version)
        if not version:
            buckets.append([])
            continue
        opened = sources.kind_of(bucket).open(bucket)
        records: Any = opened.read_span(0, 1)
        buckets.append(
            [
                (key, records._bucket.runs[run].side, *records.place(run, number))
                for part in records.merged()
                for key, run, number in zip(part.keys, part.runs, part.numbers, strict=True)
            ]
        )
    return buckets


def test_run_files_are_those_of_the_writers_in_the_order_of_these_and_their_sources(place: Place) -> None:
    left, right = place.writer("left", "l"), place.writer("right", "r")
    place.write(right, source("c"), "c.run", [(b"a", 0), (b"z", 1)])
    place.write(left, source("b"), "sub/b.run", [(b"z", 5)])
    place.write(left, source("a"), "a.run", [(b"a", 7)])
    files = RunFiles.written([left, right], place.reading())
    assert len(files) == 3
    assert files.size == sum(path.stat().st_size for path in place.runs.rglob("*.run"))
    assert records_of(files) == [
        [(b"a", 0, "/in/a", 7), (b"a", 1, "/in/c", 0)],
        [(b"z", 0, "/in/b", 5), (b"z", 1, "/in/c", 1)],
    ]
    other = RunFiles.written([right, left], place.reading())
    assert records_of(other)[0] == [(b"a", 0, "/in/c", 0), (b"a", 1, "/in/a", 7)]
    assert other.state != files.state


def test_a_file_of_an_earlier_job_stands_before_all_others(place: Place) -> None:
    earlier = place.writer("earlier", "../old", is_earlier=True)
    also = place.writer("own", earlier_urls={"/in/x"})
    place.write(earlier, source("o"), "o.run", [(b"a", 3)])
    place.write(also, source("x"), "x.run", [(b"a", 4)])
    place.write(also, source("y"), "y.run", [(b"a", 5)])
    files = RunFiles.written([earlier, also], place.reading())
    found = records_of(files)[0]
    assert [(side, number) for _, side, _, number in found] == [(-1, 3), (0, 4), (0, 5)]
    marks = {url.removesuffix(url[-5:]) for _, _, url, _ in found[:2]}
    assert [url[-5:] for _, _, url, _ in found] == ["/in/o", "/in/x", "/in/y"]
    assert len(marks) == 1
    assert marks != {""}
    assert found[2][2] == "/in/y"


def test_records_of_a_pack_are_those_of_its_files_and_what_was_made_has_its_run_file_alone(place: Place) -> None:
    (pack,) = pack_sources([source("a"), source("b")], target_bytes=100)
    for number, (as_read, urls) in enumerate(((True, ["/in/a", "/in/b"]), (False, [f"{place.runs}/p.run"] * 2))):
        writer = place.writer(str(number), as_read=as_read)
        place.write(writer, pack, "p.run", [(b"a", 9), (b"b", FILE + 8 if as_read else 10)])
        found = records_of(RunFiles.written([writer], place.reading()))[0]
        assert [(url, number) for _, _, url, number in found] == list(zip(urls, (9, 8 if as_read else 10), strict=True))


def test_what_is_gone_or_was_rejected_makes_no_bucket(place: Place) -> None:
    writer = place.writer("w")
    place.write(writer, source("a"), "a.run", [(b"a", 0)])
    place.write(writer, source("b"), "b.run", [(b"a", 1)])
    place.write(writer, source("c"), f"{REJECTS}/c.run", [(b"a", 2)], route=REJECTS)
    files = RunFiles.written([writer], place.reading())
    assert [number for *_, number in records_of(files)[0]] == [0, 1]
    listed(writer, source("a"))
    left = RunFiles.written([writer], place.reading())
    assert [number for *_, number in records_of(left)[0]] == [1]
    assert left.state != files.state


def test_all_sources_must_be_complete(place: Place) -> None:
    writer = place.writer("w")
    place.write(writer, source("a"), "a.run", [(b"a", 0)])
    place.write(writer, source("b"), "b.run", [(b"a", 1)], whole=False)
    with pytest.raises(ScatterIncompleteError, match="found 1 complete, 1 open, 0 failed; run the command"):
        RunFiles.written([writer], place.reading())


class BegunAgain(LmdbStore):
    """A ledger that another launcher takes a new source into while its outputs are read."""

    def outputs(self, *, ordered: bool = True) -> Iterator[OutputRow]:
        yield from super().outputs(ordered=ordered)
        self.register([source("new")])


def test_a_job_that_is_begun_again_while_its_run_files_are_listed_is_not_complete(place: Place) -> None:
    writer = place.writer("w")
    place.write(writer, source("a"), "a.run", [(b"a", 0)])
    again = BegunAgain(writer.store.url)
    with pytest.raises(ScatterIncompleteError, match="found 1 complete, 1 open"):
        RunFiles.written([writer._replace(store=again)], place.reading())
    again.close()


def test_the_state_is_a_hash_of_the_jobs_and_of_what_they_have_written(place: Place) -> None:
    states = set()
    for number, (job, name) in enumerate((("x", "a.run"), ("x", "b.run"), ("y", "a.run"))):
        writer = place.writer(str(number))._replace(job=Job("scatter", {"name": job}))
        place.write(writer, source("a"), name, [(b"a", 0)])
        states |= {RunFiles.written([writer], place.reading()).state for _ in range(2)}
    assert len(states) == 3
    assert {len(state) for state in states} == {32}


def test_buckets_that_were_looked_at_are_known_until_anything_of_them_changes(place: Place) -> None:
    writer = place.writer("w")
    place.write(writer, source("a"), "a.run", [(b"a", 0), (b"z", 1)])
    files = RunFiles.written([writer], place.reading())
    assert files.known() is None
    assert not files.are_tabulated()
    found = files.tabulate()
    assert found.names == ["part-000000", "part-000001"]
    assert found.sizes == [4, 4]
    assert len(set(found.versions)) == 2
    assert files.known() == found
    assert files.are_tabulated()
    tables = [path for path in place.runs.iterdir() if path.name.startswith(files.state)]
    assert len(tables) == 2
    for path in tables:
        data = path.read_bytes()
        path.unlink()
        assert not files.are_tabulated()
        path.write_bytes(data)
    assert files.are_tabulated()
    assert RunFiles.written([writer], place.reading()).known() == found
    place.write(writer, source("b"), "b.run", [(b"a", 0)])
    more = RunFiles.written([writer], place.reading())
    assert more.known() is None
    assert not more.are_tabulated()


@pytest.mark.parametrize(
    "change",
    [
        {"of": "0" * 32},
        {"names": ["part-000000"], "sizes": [4], "versions": ["v"]},
        {"names": ["part-000001", "part-000000"]},
        {"sizes": [4]},
        {"versions": ["a"]},
        {"sizes": [4, -1]},
        {"sizes": [4, 4.0]},
        {"sizes": [4, None]},
        {"sizes": [True, 4]},
        {"versions": ["a", None]},
        {"names": None},
        {"sizes": 5},
        None,
    ],
)
def test_a_list_of_buckets_that_does_not_fit_is_none(place: Place, change: dict[str, Any] | None) -> None:
    files = place.files(rows=[(b"a", 0), (b"z", 1)])
    files.tabulate()
    listing = Path(files.reading.listing_url)
    noted = orjson.loads(listing.read_bytes())
    other = orjson.dumps({**noted, **change}) if change else orjson.dumps(noted)[:-9]
    for text in (b"", b"[]", b"{}", other):
        listing.write_bytes(text)
        assert files.known() is None, text
    fits = {**noted, "sizes": [0, 9], "versions": ["", "x"]}
    listing.write_bytes(orjson.dumps(fits))
    assert files.known() == FoundBuckets(noted["names"], [0, 9], ["", "x"])


def test_a_link_in_the_place_of_the_folder_of_notes_is_not_followed(place: Place) -> None:
    files = place.files()
    (place.root / "elsewhere").mkdir()
    (place.root / "work").symlink_to(place.root / "elsewhere")
    with pytest.raises(StorageError, match="found a link or a file"):
        files.known()


def test_buckets_are_complete_once_all_of_them_are(place: Place) -> None:
    buckets = FoundBuckets(["a", "b"], [3, 4], ["v", "w"])
    page = buckets.page()
    assert (page.sizes, page.versions) == ([3, 4], ["v", "w"])
    store = place.store("L")
    sources = list(map(Source, page.urls, page.sizes, page.versions))
    store.register(sources)
    assert not are_complete(buckets, store)
    for number, one in enumerate(sources):
        store.commit([Leaf(one.id, (), "filtered")])
        assert are_complete(buckets, store) is (number == 1)
    assert not are_complete(FoundBuckets(["a", "b"], [3, 4], ["v", "x"]), store)


@pytest.mark.parametrize("backwards", [False, True])
def test_what_a_merge_has_made_is_read_in_its_order(place: Place, backwards: bool) -> None:
    partition = Partition.of_cuts([b"m"], 150)
    partition = Partition(partition.buckets, partition.sampled, 150, Merges(1, 2))
    writer = place.writer("w")
    for number, name in enumerate("abcd"):
        place.write(writer, source(name), f"{name}.run", [(b"a", number), (b"z", number)])
    read = RunFiles.written([writer], place.reading(partition, merges=True))
    with pytest.raises(AssertionError, match="were complete"):
        read.merged(place.store("none"), "f", place.reading(partition, level=1))
    found = read.tabulate()
    page = found.page()
    merged = place.store("merge")
    groups = list(map(Source, page.urls, page.sizes, page.versions))
    assert len(groups) > 1
    merged.register(groups)
    for group in reversed(groups) if backwards else groups:
        outputs = [Output(f"{group.url[-6:]}-{9 - first}.run", 10 + first, f"{first}", 1, first) for first in (2, 1)]
        merged.commit([Leaf(group.id, (), "published", tuple(outputs), 2, 23)])
    files = read.merged(merged, "f", place.reading(partition, level=1))
    names = [run.name for run in files._layout.runs]
    assert names == [f"{group.url[-6:]}-{9 - first}.run" for group in groups for first in (1, 2)]
    assert [run.size for run in files._layout.runs] == [11, 12] * len(groups)
    states = [read.merged(merged, fingerprint, place.reading(partition, level=1)).state for fingerprint in "fg"]
    assert files.state == states[0] != states[1]
    assert len(files.state) == 32
    merged.forget_sources({groups[0].id})
    merged.commit([Leaf(groups[0].id, (), "published", (Output("other.run", 5, "x", 1, 1),), 1, 5)])
    assert read.merged(merged, "f", place.reading(partition, level=1)).state not in states


def test_tables_of_a_stage_go_and_those_of_another_one_in_that_folder_stay(place: Place) -> None:
    """Also those of run files that were there before, which a launcher that was killed has left."""
    writer, next_writer = place.writer("scatter"), place.writer("round", "round")
    place.write(next_writer, source("x"), "x.run", [(b"x", 0)])
    of_next = RunFiles.written([next_writer], place.reading()._replace(listing_url=str(place.root / "next" / "b.json")))
    of_next.tabulate()
    for name in "abc":
        place.write(writer, source(name), f"{name}.run", [(b"a", 0)])
        files = RunFiles.written([writer], place.reading())
        files.tabulate()
    assert len(list(place.runs.glob("*.slices"))) == 4
    files.remove_tables("L")
    assert not files.are_tabulated()
    assert of_next.are_tabulated()
    left = sorted(path.name for path in place.runs.rglob("*.*") if path.is_file())
    assert left == sorted([f"{of_next.state}.runs", f"{of_next.state}.slices", *(f"{name}.run" for name in "abcx")])
    files.remove_tables("L")  # as another launcher does


@pytest.mark.parametrize("earlier", [None, 5, ["../../secret", 7], {"a": 1}])
def test_only_tables_are_removed_whatever_a_note_says_was_there(place: Place, earlier: Any) -> None:
    files = place.files()
    files.tabulate()
    note = Path(place.reading().listing_url)
    note.write_bytes(orjson.dumps({**orjson.loads(note.read_bytes()), "earlier": earlier}))
    (place.root / "secret.runs").touch()
    files.remove_tables("L")
    assert not files.are_tabulated()
    assert (place.root / "secret.runs").exists()
    note.write_bytes(orjson.dumps([earlier]))
    files.remove_tables("L")
    assert (place.root / "secret.runs").exists()


RUN, TABLE = "a.jsonl-0000000000.run", f"{'1' * 32}.runs"
ME, OTHER = "0" * 32, "f" * 32
NO_NAMES_OF_OURS = ["notes.run", "x.runs", f"{'1' * 31}.slices"]


def mark(ledger: str) -> str:
    return f"_ledgerbeam/{ledger}.json"


def put(root: Path, names: Sequence[str]) -> Path:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()
    return root


def mapping(root: Path) -> JobSpec:
    files = ListedFiles(patterns=("in/*.jsonl",), base="in/")
    return MapJob(
        files=files, functions=(MappedFunction("f", "m:f", {}),), output=str(root), to="jsonl"
    ).resolve_ledger("L")


@pytest.mark.parametrize(
    ("there", "writers", "left"),
    [
        ([mark(ME), RUN, TABLE], {ME}, []),
        ([mark(ME), RUN, TABLE], {ME, OTHER}, []),
        ([mark(ME), RUN, TABLE], {OTHER}, [mark(ME), RUN, TABLE]),
        ([mark(ME), mark(OTHER), RUN, TABLE], {ME}, [mark(ME), mark(OTHER), RUN, TABLE]),
        ([mark(ME), mark(OTHER), RUN, TABLE], {ME, OTHER}, []),
        ([RUN, TABLE], {ME}, [RUN]),
        ([f"l/{mark(ME)}", f"l/{RUN}", f"l/s/{RUN}", RUN, TABLE], {ME}, [RUN]),
        ([mark(ME), f"l/{mark(OTHER)}", f"l/{RUN}", f"l/s/{TABLE}", f"m/{RUN}"], {ME}, None),
        ([mark(ME), f"l/{mark(OTHER)}", f"l/m/{mark(ME)}", f"l/m/{RUN}", f"l/{RUN}"], {ME}, None),
        ([mark(ME), *NO_NAMES_OF_OURS, f"{'1' * 32}.slices", "a\n/b-0000000001.run"], {ME}, NO_NAMES_OF_OURS),
        ([mark("x"), mark(ME), RUN], {ME}, [mark("x")]),
    ],
)  # fmt: skip
def test_run_files_and_tables_go_where_nobody_else_writes(
    tmp_path: Path, there: list[str], writers: Collection[str], left: list[str] | None
) -> None:
    root = put(tmp_path / "runs", there)
    remove_internal([str(root)], mapping(tmp_path), writers)
    kept = {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}
    if left is None:
        left = [name for name in there if name.startswith("l/") and not name.startswith("l/m/")]
    assert kept == set(left)
    assert root.exists() is bool(left)


def test_the_mark_of_a_folder_goes_after_its_run_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = put(tmp_path / "runs", [mark(ME), RUN, TABLE])
    disk = Disk(monkeypatch)
    remove_internal([str(root)], mapping(tmp_path), {ME})
    removed = [path for what, path, _ in disk.seen if what == "unlink"]
    assert len(removed) == 3
    assert removed[-1] == str(root / mark(ME))


def packed(value: Any) -> str:
    return base64.b85encode(zlib.compress(orjson.dumps(value))).decode()


@each(
    "found",
    [
        *({"buckets": buckets} for buckets in (0, -1, True, 2.0, "2", None, MOST_BUCKETS + 1)),
        *({"buckets": 2, "block_bytes": size} for size in ("x", None, 0, -1, 1.5, True)),
        *({"buckets": 2, "cuts": cuts} for cuts in (5, None, ["61"])),
        *(None, [], "2", {}),
    ],
)
def test_what_no_job_has_decided_is_none(found: Any) -> None:
    assert Partition.recorded({"partition": found}) is None


def test_what_is_left_out_is_as_it_was_before() -> None:
    assert Partition.recorded({"partition": {"buckets": 3}}) == Partition(3, "", BLOCK_BYTES)
    assert Partition.recorded({"partition": {"buckets": 1, "block_bytes": 7}}) == Partition(1, "", 7)
    assert Partition.recorded({"partition": {"buckets": MOST_BUCKETS}}) is not None


@each(
    "cuts",
    [
        "no base",
        base64.b85encode(b"no zlib").decode(),
        *map(packed, ({"61": 1}, ["61"], ["61", "6"], ["61", 5], ["61", None], 7, ["62", "61"], ["61", "61"])),
        packed(["61", "62", "63"]),
    ],
)
def test_cuts_that_are_none_are_damage(cuts: str) -> None:
    with pytest.raises(LedgerDamagedError, match="the cuts between the buckets of this job cannot be decoded"):
        Partition(3, cuts).cuts()


def test_a_hash_is_cut_evenly() -> None:
    assert list(Partition(4).cuts()) == [bytes([64 * bucket]) + bytes(7) for bucket in (1, 2, 3)]
    assert list(Partition(1).cuts()) == []
    assert list(Partition.of_cuts([b"a", b"b"]).cuts()) == [b"a", b"b"]
    assert Partition.of_cuts([b"a", b"b"]).parameters() == {
        "partition": {"buckets": 3, "block_bytes": BLOCK_BYTES, "cuts": Partition.of_cuts([b"a", b"b"]).sampled}
    }
