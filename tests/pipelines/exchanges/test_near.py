"""``dedup --near``: what stays is what plain Python keeps of the same signatures, after any kill and any change."""

from __future__ import annotations

import json
import random
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ledgerbeam
from ledgerbeam.errors import UsageError
from ledgerbeam.io.exchange.order import KeyOrder
from ledgerbeam.io.exchange.slices import EARLIER, Partition, RunFile, RunLayout, SliceTables, SomeUrls
from ledgerbeam.io.index.file import IndexLocation
from ledgerbeam.io.storage.stat import stat
from ledgerbeam.ledger import FailedTask, NoneTask, Source, Task
from ledgerbeam.ledger.model.task import pack_sources
from ledgerbeam.pipelines.calls.dedup import bands_for
from ledgerbeam.pipelines.dedup.pairs import NearChoice
from ledgerbeam.sources import FileSources
from ledgerbeam.sources.buckets import BucketSources, bucket_page
from ledgerbeam.sources.kind import TaskLimits, TaskReader
from ledgerbeam.sources.listed import file_key
from ledgerbeam.transforms.dedup import duplicates as near
from ledgerbeam.transforms.dedup.duplicates import FindClusters, HashEncoder, PairRecords, SignRecords
from ledgerbeam.transforms.dedup.minhash import MinHash
from ledgerbeam.transforms.exchange.keys import RecordKeys
from ledgerbeam.transforms.exchange.scatter import RunEncoder
from tests.cases import each
from tests.conftest import S3Server
from tests.pipelines.conftest import Workspace, make_workspace
from tests.pipelines.exchanges.killing import OnStore, run_killed_at, run_with_kills
from tests.pipelines.exchanges.stages import by_file, moved_of, write_jsonl
from tests.transforms.dedup.test_minhash import plain_bands

Place = tuple[str, int]

OPTIONS = ("--minhash", "6x2", "--ngram", "2")
NEAR = (
    *("dedup", "in/*.jsonl", "--near", "text", *OPTIONS, "--output", "out", "--to", "jsonl", "--ledger", "L"),
    *("--task-bytes", "3000", "--bucket-bytes", "8000"),
)
LEDGERS = ("L", "L/cluster", "L/cluster/pairs", "L/cluster/pairs/scatter")


def clustered(rows: dict[Place, Any], *, prefer: bool = False) -> dict[Place, Place]:
    """Return for each document that goes the one that stays, by bands that are computed number by number."""
    of: dict[Place, set[Place]] = {place: {place} for place in rows}
    seen: dict[bytes, Place] = {}
    for place, row in rows.items():
        for band in plain_bands(row.get("text") or "", 6, 2, 2):
            other = seen.setdefault(band, place)
            if of[other] is not of[place]:
                whole = of[other] | of[place]
                of.update(dict.fromkeys(whole, whole))
    found = {}
    for place, cluster in of.items():
        best = min(cluster, key=lambda one: (-rows[one]["s"] if prefer else 0, one))
        if best != place:
            found[place] = best
    return found


class Process:
    """The stages in this process, without Beam and a ledger."""

    def __init__(self, folder: Path, buckets: int, part_bytes: int, *, prefer: bool) -> None:
        self.folder, self.part_bytes, self.cuts = folder, part_bytes, Partition(buckets).cuts()
        score = RecordKeys("key", ("s",), order=KeyOrder(descending=True)) if prefer else None
        self.sign = SignRecords(RecordKeys("digest", ("text",)), MinHash(6, 2, 2), score)
        self.earlier: Sequence[str] = ()

    def drops(self, urls: Sequence[str], pack_bytes: int | None) -> tuple[list[Any], list[Place]]:
        """Return the rows of what goes, and the places by file that the last stage reads."""
        runs = [*self._as_earlier(self._write("e", self._signed(self.earlier, pack_bytes)))]
        runs += self._write("s", self._signed(urls, pack_bytes))
        pairs = ((self._pair(task), RunEncoder(()), ()) for task in self._tasks(runs, len(self.cuts) + 1, "s"))
        forests = [*self._write("p", pairs)]
        if not forests:
            return [], []
        (task,) = self._tasks(forests, 1, "p")
        rows: Any = FindClusters(as_rows=True)(task)
        others: Any = FindClusters(as_rows=False)(task)
        by_key = {file_key(url): url for url in urls}
        keys = zip(*(lane.tolist() for lane in others.records.hashes), others.records.numbers.tolist(), strict=True)
        found = [(by_key[high.to_bytes(8, "big") + low.to_bytes(8, "big")], number) for high, low, number in keys]
        return [json.loads(line) for line in rows.records.data.splitlines()], found

    def _as_earlier(self, runs: Iterable[RunFile]) -> Iterator[RunFile]:
        for run in runs:
            urls = SomeUrls.of([f"{EARLIER}{url}" for url in run.sources])
            yield RunFile(f"{EARLIER}{run.url(str(self.folder))}", run.size, urls, -1)

    def _signed(self, urls: Sequence[str], pack_bytes: int | None) -> Iterator[tuple[Any, Any, tuple[str, ...]]]:
        opened = FileSources(index=IndexLocation(root=str(self.folder / "indexes")), form="placed")
        reader = TaskReader(opened)
        files = [Source(found.url, found.size, found.version) for found in map(stat, sorted(urls))]
        for source in pack_sources(files, target_bytes=pack_bytes) if pack_bytes else files:
            cut = opened.kind_of(source).cut(source, TaskLimits(task_records=3))
            for start, stop in cut.spans:
                task = Task(cut.source, start, stop)
                yield self.sign(task.replace(records=reader.read(task))), HashEncoder(self.cuts, 150), cut.source.urls

    def _pair(self, task: Task) -> Any:
        return PairRecords()(task)

    def _write(self, name: str, tasks: Iterable[tuple[Any, Any, tuple[str, ...]]]) -> Iterator[RunFile]:
        for number, (done, encoder, urls) in enumerate(tasks):
            if isinstance(done, FailedTask):
                raise AssertionError(done.error)
            if not isinstance(done, NoneTask):
                (file,) = encoder.encode(moved_of(done))
                (self.folder / f"{name}{number:04d}.run").write_bytes(file.data)
                yield RunFile(f"{name}{number:04d}.run", len(file.data), SomeUrls.of(urls))

    def _tasks(self, runs: list[RunFile], buckets: int, name: str) -> Iterator[Task]:
        tables = SliceTables(str(self.folder), name)
        rows = tables.write(RunLayout.of_one(runs, buckets))
        sources = BucketSources(tables, self.part_bytes if name == "s" else 2**40, within_keys=False)
        page = bucket_page([row.size for row in rows], [row.version for row in rows])
        for bucket in map(Source, page.urls, page.sizes, page.versions):
            kind = sources.kind_of(bucket)
            for start, stop in kind.cut(bucket, TaskLimits()).spans:
                task = Task(bucket, start, stop, ((start, stop),))
                yield task.replace(records=kind.open(bucket).read_span(start, stop))


WORDS = st.lists(st.sampled_from("abcdé"), max_size=6).map(" ".join)
FILES = st.lists(
    st.lists(st.fixed_dictionaries({"text": st.none() | WORDS, "s": st.integers(0, 2)}), max_size=8),
    min_size=1,
    max_size=4,
)


@settings(deadline=None, max_examples=40)
@given(FILES, st.booleans(), st.sampled_from([1, 20, 10**6]), st.sampled_from([None, 100]), st.sampled_from([2, 10**6]))
def test_what_goes_is_all_but_one_of_each_cluster(
    some: list[list[dict[str, Any]]], prefer: bool, part_bytes: int, pack_bytes: int | None, at_once: int
) -> None:
    files = {f"f{n}": rows for n, rows in enumerate(some)}
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(near, "_ROWS", at_once)
        patch.setattr(near, "_TEXTS", at_once)
        urls = by_file(Path(folder) / "in", files)
        rows, places = Process(Path(folder), 3, part_bytes, prefer=prefer).drops(urls, pack_bytes)
    documents = {(url, n): row for url, found in zip(urls, files.values(), strict=True) for n, row in enumerate(found)}
    expected = clustered(documents, prefer=prefer)
    of = {(row["source"], row["record"]): (row["of"]["source"], row["of"]["record"]) for row in rows}
    assert of == expected
    assert list(of) == sorted(of), "rows come in the order of their places"
    assert sorted(places) == sorted(expected)


def test_a_hash_of_any_number_of_records_is_one_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(near, "_ROWS", 5)
    urls = by_file(tmp_path / "in", {name: [{"text": "to be"}] * 20 for name in "abc"})
    process = Process(tmp_path, 1, 10**6, prefer=False)
    process.sign = SignRecords(RecordKeys("digest", ("text",)), MinHash(1, 2, 2))
    rows, places = process.drops(urls, None)
    assert len(rows) == len(places) == 59
    assert {(row["of"]["source"], row["of"]["record"]) for row in rows} == {(urls[0], 0)}


def test_a_file_whose_key_ends_in_a_zero_byte_is_as_any_other(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    name = next(name for name in map(str, range(10**5)) if file_key(str(folder / f"{name}.jsonl"))[-1] == 0)
    urls = by_file(folder, {name: [{"text": "to be"}] * 2, "~": [{"text": "to be"}]})
    rows, places = Process(tmp_path, 1, 10**6, prefer=False).drops(urls, None)
    assert len(rows) == 2
    assert sorted(places) == [(urls[0], 1), (urls[1], 0)]


def document(chosen: random.Random) -> list[str]:
    return [f"w{chosen.randrange(3000)}" for _ in range(chosen.randrange(20, 40))]


def rows_of(name: str, count: int, *, seed: int = 0) -> list[dict[str, Any]]:
    """Return documents, of which two of five are near an earlier one of any file, and some have no text."""
    shared = random.Random("shared")
    bases = [document(shared) for _ in range(40)]
    chosen = random.Random(f"{name}{seed}")
    rows = []
    for number in range(count):
        text = document(chosen)
        if chosen.random() < 0.4:
            text = list(chosen.choice(bases))
            for _ in range(chosen.randrange(3)):
                text[chosen.randrange(len(text))] = f"w{chosen.randrange(3000)}"
        kind: Any = None if number % 31 == 7 else "" if number % 31 == 8 else " ".join(text)
        rows.append({"text": kind, "s": chosen.randrange(5), "at": f"{name}{number}"})
    return rows


def write_sources(workspace: Workspace) -> None:
    for name in "abc":
        write_jsonl(workspace.root / "in" / f"{name}.jsonl", rows_of(name, 80))


def in_sources(workspace: Workspace) -> dict[Place, dict[str, Any]]:
    return {
        (str(path), number): json.loads(line)
        for path in sorted((workspace.root / "in").glob("*.jsonl"))
        for number, line in enumerate(path.read_text().splitlines())
    }


def survivors(workspace: Workspace, *, prefer: bool = False) -> list[dict[str, Any]]:
    rows = in_sources(workspace)
    gone = clustered(rows, prefer=prefer)
    return [row for place, row in rows.items() if place not in gone]


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    workspace = make_workspace(tmp_path_factory.mktemp("clean"))
    write_sources(workspace)
    ran = workspace.succeed(*NEAR, "--workers", "2", "--json")
    kept = workspace.records("out")
    assert kept == survivors(workspace)
    assert 100 < len(kept) < 200
    assert not (workspace.root / "out" / "_drops").exists()
    signatures = sorted(path.name for path in (workspace.root / "out" / "_signatures").iterdir() if path.is_file())
    assert signatures
    assert all(name.endswith(".run") for name in signatures)
    assert ran.json["records"]["dropped"] == {"duplicate": 240 - len(kept)}
    assert list(ran.json["stages"]) == ["scatter", "pairs", "cluster", "dedup"]
    again = workspace.run(*NEAR, "--json")
    assert (again.status, [stage["done"]["tasks"] for stage in again.json["stages"].values()]) == (0, [0, 0, 0, 0])
    status = workspace.run("ledger", "status", "L", "--json").json
    assert status["complete"] is True
    assert list(status["stages"]) == ["cluster/pairs/scatter", "cluster/pairs", "cluster"]
    assert workspace.run("ledger", "verify", "L").status == 0
    sizes = workspace.run("ledger", "stats", "L", "--json").json["records of a cluster"]
    stays = set((of := clustered(in_sources(workspace))).values())
    assert (sizes["count"], sizes["mean"] * sizes["count"]) == (len(stays), pytest.approx(len(stays) + len(of)))
    return shards(workspace)


def shards(workspace: Workspace) -> dict[str, bytes]:
    return {name: data for name, data in workspace.files("out").items() if not name.startswith("_")}


@pytest.mark.slow
@pytest.mark.parametrize("point", [1, 2, 3])
def test_a_kill_between_any_two_stages_changes_nothing(
    workspace: Workspace, clean: dict[str, bytes], point: int
) -> None:
    write_sources(workspace)
    run_killed_at(workspace, NEAR, f"exchange.tabulated:{point}")
    assert shards(workspace) == clean


@pytest.mark.slow
def test_launchers_killed_all_over_the_stages_end_with_the_same_bytes(
    workspace: Workspace, clean: dict[str, bytes]
) -> None:
    write_sources(workspace)
    run_with_kills(workspace, NEAR, LEDGERS, 5)
    assert shards(workspace) == clean


@pytest.mark.slow
def test_of_new_files_alone_signatures_are_made(workspace: Workspace) -> None:
    write_sources(workspace)

    def changed(run: Callable[..., Any] = workspace.run) -> dict[str, int]:
        ran = run(*NEAR, "--json")
        assert ran.status == 0, ran.err
        assert workspace.records("out") == survivors(workspace)
        return {name: stage["done"]["tasks"] for name, stage in ran.json["stages"].items()}

    first = changed()
    assert first["scatter"] >= 3
    write_jsonl(workspace.root / "in" / "0.jsonl", rows_of("0", 5))
    assert changed()["scatter"] == 1, "the others are signed"
    time.sleep(0.01)
    write_jsonl(workspace.root / "in" / "b.jsonl", rows_of("b", 60, seed=1))
    assert 0 < changed()["scatter"] < first["scatter"]
    for path in (workspace.root / "in").glob("0.jsonl*"):
        path.unlink()
    assert changed()["scatter"] == 0
    for path in (workspace.root / "out" / "_signatures").glob("a.*.run"):
        path.unlink()
    assert sum(changed().values()) == 0, "nothing has changed, so no signature is looked for"
    write_jsonl(workspace.root / "in" / "d.jsonl", rows_of("d", 5))
    signed = changed()["scatter"]
    assert 1 < signed < first["scatter"], "those that are gone are made again"


@pytest.mark.slow
def test_preference_and_marks(workspace: Workspace) -> None:
    write_sources(workspace)
    workspace.succeed(*NEAR, "--prefer", "s")
    assert workspace.records("out") == survivors(workspace, prefer=True)
    marked = workspace.succeed(*NEAR[:8], "--mark", "--output", "marks", "--to", "jsonl", "--pack", "100000", "--json")
    rows = workspace.records("marks")
    of = {(row["source"], row["record"]): (row["of"]["source"], row["of"]["record"]) for row in rows}
    assert of == clustered(in_sources(workspace))
    assert list(marked.json["stages"]) == ["scatter", "pairs", "gather"]
    ledger = marked.json["ledger"]
    assert list(workspace.run("ledger", "status", ledger, "--json").json["stages"]) == ["pairs/scatter", "pairs"]


@pytest.mark.slow
def test_a_dry_run_says_what_would_be_signed(workspace: Workspace) -> None:
    write_sources(workspace)
    before = workspace.run(*NEAR, "--dry-run", "--json")
    assert (before.status, before.json["sources"]["new"]) == (0, 3), before.err
    assert not (workspace.root / "L").exists()
    assert workspace.run(*NEAR).status == 0
    write_jsonl(workspace.root / "in" / "0.jsonl", rows_of("0", 5))
    after = workspace.run(*NEAR, "--dry-run", "--json")
    found = after.json["sources"]
    assert (after.status, found["complete"], found["new"]) == (0, 3, 1), after.err


@pytest.mark.slow
@pytest.mark.s3
def test_near_duplicates_on_an_object_store_with_kills_between_the_stages(workspace: Workspace, s3: S3Server) -> None:
    write_sources(workspace)
    exchange = OnStore(workspace, s3, NEAR)
    for _ in range(3):
        exchange.kill()
    exchange.run()
    assert exchange.records() == survivors(workspace)
    assert not exchange.store.exists(f"{exchange.bucket}/out/_drops")
    assert exchange.store.glob(f"{exchange.bucket}/out/_signatures/*.run")


def test_a_record_whose_text_is_none_fails_its_task_by_name(tmp_path: Path) -> None:
    url = write_jsonl(tmp_path / "a.jsonl", [{"text": "a b"}, {"text": None}, {"text": ["a"]}])
    process = Process(tmp_path, 1, 10**6, prefer=False)
    with pytest.raises(AssertionError, match=r"a\.jsonl: record 2: expected text or null .*, found a list"):
        process.drops([url], None)


def test_bytes_are_text_in_utf_8() -> None:
    assert near._text("é".encode()) == "é"
    with pytest.raises(ledgerbeam.RecordError, match="expected text in UTF-8"):
        near._text(b"\xff")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "one of the three"),
        ({"near": "text", "content": True}, "one of the three"),
        ({"near": "a,b"}, "near: expected one field"),
        ({"by": "k", "ngram": 3}, "give --near FIELD"),
        ({"by": "k", "cluster_bytes": "1G"}, "give --near FIELD"),
        ({"near": "text", "cluster_bytes": "much"}, "cluster_bytes: "),
        ({"near": "text", "minhash": "14"}, "minhash: expected BANDSxROWS such as 14x8"),
        ({"near": "text", "minhash": "0x8"}, "found '0x8'"),
        ({"near": "text", "minhash": "999x999"}, "together at most 4,096 hashes"),
        ({"near": "text", "ngram": 0}, "ngram: expected a whole number from 1"),
        ({"near": "text", "threshold": 1.5}, "threshold: expected a share between 0 and 1"),
        ({"near": "text", "threshold": 0.8, "minhash": "14x8"}, "leave one of them out"),
        ({"near": "text", "mark": True, "to": "tar"}, "--mark writes plain lines"),
    ],
)
def test_options_that_mean_nothing_are_refused(tmp_path: Path, options: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        ledgerbeam.dedup("x*.jsonl", **{"output": str(tmp_path / "out"), "to": "jsonl", "progress": False, **options})


@each("threshold", [0.1, 0.5, 0.7, 0.8, 0.9, 0.99])
def test_a_threshold_chooses_bands_and_rows_that_tell_it_best(threshold: float) -> None:
    bands, rows = bands_for(threshold)
    assert bands * rows <= 128

    def wrong(bands: int, rows: int) -> float:
        shares = [n / 400 for n in range(401)]
        near = [1 - (1 - s**rows) ** bands for s in shares]
        return sum(p if s < threshold else 1 - p for s, p in zip(shares, near, strict=True))

    assert wrong(bands, rows) <= 1.01 * min(wrong(128 // other, other) for other in range(1, 129))
    assert NearChoice(bands, rows, 5).bands == bands
