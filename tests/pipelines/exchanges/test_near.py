"""``dedup --near``: what stays is what plain Python keeps of the same signatures, after any kill and any change."""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ledgerbeam.io.exchange.order import KeyOrder
from ledgerbeam.io.exchange.slices import EARLIER, Partition, RunFile, RunLayout, SliceTables, SomeUrls
from ledgerbeam.ledger import FailedTask, NoneTask, Task
from ledgerbeam.ledger.model.task import pack_sources
from ledgerbeam.pipelines.calls.dedup import bands_for
from ledgerbeam.pipelines.dedup.pairs import NearChoice
from ledgerbeam.sources.buckets import BucketSources
from ledgerbeam.sources.listed import file_key
from ledgerbeam.transforms.dedup import duplicates as near
from ledgerbeam.transforms.dedup.duplicates import (
    FindClusters,
    HashEncoder,
    PairRecords,
    SignRecords,
    TreeReader,
    joined_trees,
)
from ledgerbeam.transforms.dedup.minhash import MinHash
from ledgerbeam.transforms.exchange.keys import RecordKeys
from ledgerbeam.transforms.exchange.scatter import RunEncoder
from tests.cases import each
from tests.pipelines.conftest import Workspace
from tests.pipelines.exchanges.stages import (
    Marks,
    Place,
    bucket_tasks,
    by_file,
    gone_in,
    in_sources,
    listed,
    listed_marks,
    listed_places,
    marks_in,
    moved_of,
    placed_files,
    portable_marks,
    require_marks,
    run_again,
    source_tasks,
    write_jsonl,
)
from tests.transforms.dedup.test_minhash import plain_bands

OPTIONS = ("--minhash", "6x2", "--ngram", "2")
NEAR = (
    *("dedup", "in/*.jsonl", "--near", "text", *OPTIONS, "--output", "out", "--to", "jsonl", "--ledger", "L"),
    *("--task-bytes", "3000", "--bucket-bytes", "8000"),
)


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

    def drops(self, urls: Sequence[str], pack_bytes: int | None) -> tuple[Marks, list[Place]]:
        """Return the marks of the records of clusters, and the places of those that go."""
        tasks = self._forests(urls, pack_bytes, PairRecords())
        return self._found(tasks, urls, joined_trees)

    def _forests(self, urls: Sequence[str], pack_bytes: int | None, pair: PairRecords) -> list[Task]:
        """Return the task of all pairs, if there are any."""
        runs = [*self._as_earlier(self._write("e", self._signed(self.earlier, pack_bytes)))]
        runs += self._write("s", self._signed(urls, pack_bytes))
        pairs = ((pair(task), RunEncoder(()), ()) for task in self._tasks(runs, len(self.cuts) + 1, "s"))
        forests = [*self._write("p", pairs)]
        return [*self._tasks(forests, 1, "p")] if forests else []

    def _found(self, tasks: Iterable[Task], urls: Sequence[str], trees: TreeReader) -> tuple[Marks, list[Place]]:
        marks: Marks = {}
        places: list[Place] = []
        for task in tasks:
            found: Any = FindClusters(trees, mark=True)(task)
            others: Any = FindClusters(trees)(task)
            if isinstance(found, FailedTask):
                raise AssertionError(found.error)
            if isinstance(found, Task):
                marks |= listed_marks(found.records, urls)
                places += listed_places(others.records, urls)
        return marks, places

    def _as_earlier(self, runs: Iterable[RunFile]) -> Iterator[RunFile]:
        for run in runs:
            urls = SomeUrls.of([f"{EARLIER}{url}" for url in run.sources])
            yield RunFile(f"{EARLIER}{run.url(str(self.folder))}", run.size, urls, -1)

    def _signed(self, urls: Sequence[str], pack_bytes: int | None) -> Iterator[tuple[Any, Any, tuple[str, ...]]]:
        sources = pack_sources(listed(urls), target_bytes=pack_bytes) if pack_bytes else listed(urls)
        for task in source_tasks(placed_files(self.folder), sources, 3):
            yield self.sign(task), HashEncoder(self.cuts, 150), task.source.urls

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
        part_bytes = self.part_bytes if name == "s" else 2**40
        return bucket_tasks(RunLayout.of_one(runs, buckets), BucketSources(tables, part_bytes, within_keys=False))


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
        marks, places = Process(Path(folder), 3, part_bytes, prefer=prefer).drops(urls, pack_bytes)
    documents = {(url, n): row for url, found in zip(urls, files.values(), strict=True) for n, row in enumerate(found)}
    expected = clustered(documents, prefer=prefer)
    require_marks(dict.fromkeys(documents, (None, None)) | marks, documents, expected)
    assert sorted(places) == sorted(expected)


def test_a_hash_of_any_number_of_records_is_one_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(near, "_ROWS", 5)
    urls = by_file(tmp_path / "in", {name: [{"text": "to be"}] * 20 for name in "abc"})
    process = Process(tmp_path, 1, 10**6, prefer=False)
    process.sign = SignRecords(RecordKeys("digest", ("text",)), MinHash(1, 2, 2))
    marks, places = process.drops(urls, None)
    require_marks(marks, [(urls[0], 0), *places], dict.fromkeys(places, (urls[0], 0)))
    assert len(places) == 59


def test_a_file_whose_key_ends_in_a_zero_byte_is_as_any_other(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    name = next(name for name in map(str, range(10**5)) if file_key(str(folder / f"{name}.jsonl"))[-1] == 0)
    urls = by_file(folder, {name: [{"text": "to be"}] * 2, "~": [{"text": "to be"}]})
    marks, places = Process(tmp_path, 1, 10**6, prefer=False).drops(urls, None)
    assert sorted(places) == sorted(gone_in(marks)) == [(urls[0], 1), (urls[1], 0)]


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


def survivors(workspace: Workspace, *, prefer: bool = False) -> list[dict[str, Any]]:
    rows = in_sources(workspace.root)
    gone = clustered(rows, prefer=prefer)
    return [row for place, row in rows.items() if place not in gone]


def undisturbed(workspace: Workspace) -> dict[str, bytes]:
    """Return what a run leaves that nothing disturbs, after a look at all that it tells."""
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
    workspace.succeed("ledger", "verify", "L")
    sizes = workspace.run("ledger", "stats", "L", "--json").json["records of a cluster"]
    stays = set((of := clustered(in_sources(workspace.root))).values())
    assert (sizes["count"], sizes["mean"] * sizes["count"]) == (len(stays), pytest.approx(len(stays) + len(of)))
    return shards(workspace)


def shards(workspace: Workspace, folder: str = "out") -> dict[str, bytes]:
    return {name: data for name, data in workspace.files(folder).items() if not name.startswith("_")}


MARKS = (*NEAR[:10], *NEAR[12:], "--mark")


def undisturbed_marks(workspace: Workspace) -> dict[str, Any]:
    """Return the marks that a run leaves that nothing disturbs."""
    ran = workspace.succeed(*MARKS, "--workers", "2", "--json")
    rows = in_sources(workspace.root)
    require_marks(marks_in(workspace.root / "out"), rows, clustered(rows))
    assert list(ran.json["stages"]) == ["scatter", "pairs", "cluster", "dedup"]
    return portable_marks(workspace.root)


@pytest.mark.slow
def test_of_new_files_alone_signatures_are_made(workspace: Workspace) -> None:
    write_sources(workspace)

    changed = partial(run_again, workspace, NEAR, survivors)

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
def test_preference(workspace: Workspace) -> None:
    write_sources(workspace)
    workspace.succeed(*NEAR, "--prefer", "s")
    assert workspace.records("out") == survivors(workspace, prefer=True)


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


IN_ROUNDS = (*NEAR, "--cluster-bytes", "1")


ROUNDS = ["stars", "round-1", "round-2", "round-3", "labels"]


LEDGERS = ("L", "L/cluster", *(f"L/cluster/{name}" for name in ("pairs", "pairs/scatter", *ROUNDS)))


@pytest.mark.slow
def test_a_run_in_rounds_has_the_bytes_of_one_without(workspace: Workspace) -> None:
    write_sources(workspace)
    workspace.succeed(*NEAR, "--output", "plain", "--ledger", "plain.ledger")
    clean = shards(workspace, "plain")
    ran = workspace.succeed(*IN_ROUNDS, "--workers", "2", "--json")
    assert shards(workspace) == clean
    assert list(ran.json["stages"]) == ["scatter", "pairs", *ROUNDS, "cluster", "dedup"]
    assert sorted(path.name for path in (workspace.root / "out").glob("_*")) == ["_ledgerbeam", "_signatures"]
    stages = ["cluster/pairs/scatter", "cluster/pairs", *(f"cluster/{name}" for name in ROUNDS), "cluster"]
    for command in (("ledger", "status", "L"), ("ledger", "watch", "L", "--once")):
        shown = workspace.run(*command, "--json").json
        assert (shown["complete"], list(shown["stages"])) == (True, stages)
    workspace.succeed("ledger", "verify", "L")
    again = workspace.run(*IN_ROUNDS, "--json")
    assert (again.status, {one["done"]["tasks"] for one in again.json["stages"].values()}) == (0, {0}), again.err
    sizes = workspace.run("ledger", "stats", "L", "--json").json["records of a cluster"]
    # The other way, in the same ledger and back.
    ran = workspace.run(*NEAR, "--json")
    assert (ran.status, list(ran.json["stages"])) == (0, ["scatter", "pairs", "cluster", "dedup"]), ran.err
    assert shards(workspace) == clean
    assert workspace.run("ledger", "stats", "L", "--json").json["records of a cluster"] == sizes
    shown = workspace.run("ledger", "status", "L", "--json").json
    assert (shown["complete"], list(shown["stages"])) == (True, [*stages[:2], "cluster"])
    ran = workspace.run(*IN_ROUNDS, "--json")
    assert (ran.status, list(ran.json["stages"])) == (0, ["scatter", "pairs", *ROUNDS, "cluster", "dedup"]), ran.err
    assert shards(workspace) == clean


@pytest.mark.slow
@pytest.mark.parametrize("keep_runs", [(), ("--keep-runs",)])
def test_files_come_and_go(workspace: Workspace, keep_runs: tuple[str, ...]) -> None:
    write_sources(workspace)

    changed = partial(run_again, workspace, (*IN_ROUNDS, *keep_runs), survivors)

    first = changed()
    write_jsonl(workspace.root / "in" / "0.jsonl", rows_of("0", 40))
    second = changed()
    assert 0 < second["scatter"] < first["scatter"], "the others are signed"
    for path in (workspace.root / "in").glob("0.jsonl*"):
        path.unlink()
    assert changed()["scatter"] == 0
    assert sum(changed().values()) == 0
    for path in (workspace.root / "in").glob("[bc].jsonl*"):
        path.unlink()
    write_jsonl(workspace.root / "in" / "a.jsonl", [{"text": f"{n} {n}"} for n in range(5)])
    changed()
    shown = workspace.run("ledger", "status", "L", "--json").json
    assert shown["complete"]
    assert not any(name.startswith("cluster/round") for name in shown["stages"]), "there is nothing to cluster"


@pytest.mark.slow
def test_marks_preferences_and_earlier_ones_are_those_of_one_process(workspace: Workspace) -> None:
    write_sources(workspace)
    write_jsonl(workspace.root / "old" / "d.jsonl", rows_of("d", 80))
    workspace.succeed(*NEAR[:1], "old/*.jsonl", *NEAR[2:8], "--output", "first", "--to", "jsonl", "--ledger", "L1")
    for more in (("--prefer", "s"), ("--against", f"{workspace.root}/L1", "--prefer", "s")):
        name = f"out{len(more)}"
        base = (*NEAR[:8], *more, "--task-bytes", "3000")
        for way, cluster in (("one", ()), ("rounds", ("--cluster-bytes", "1"))):
            for written in (("--to", "jsonl"), ("--mark",)):
                output = f"{name}-{way}{written[0]}"
                workspace.succeed(*base, *cluster, *written, "--output", output, "--ledger", f"{output}.ledger")
        assert shards(workspace, f"{name}-one--to") == shards(workspace, f"{name}-rounds--to") != {}
        output = f"{name}-rounds--mark"
        marks, others = shards(workspace, output), (workspace.root / output).glob("_*")
        assert shards(workspace, f"{name}-one--mark") == marks != {}
        assert "cluster/round-1" in workspace.run("ledger", "status", f"{output}.ledger", "--json").json["stages"]
        assert sorted(path.name for path in others) == ["_columns.arrow", "_ledgerbeam", "_signatures"]
        rows = in_sources(workspace.root)
        kept = [row for place, row in rows.items() if place not in gone_in(marks_in(workspace.root / output))]
        assert kept == workspace.records(f"{name}-one--to")
    # The other way in the same ledger: the marks stay.
    workspace.succeed(*base, "--mark", "--output", output, "--ledger", f"{output}.ledger")
    assert shards(workspace, output) == marks
    stages = workspace.run("ledger", "status", f"{output}.ledger", "--json").json["stages"]
    assert list(stages) == ["cluster/pairs/scatter", "cluster/pairs", "cluster"]


@pytest.mark.slow
def test_candidates_are_those_of_one_process(workspace: Workspace) -> None:
    write_sources(workspace)
    base = (*NEAR[:8], "--threshold", "0.75", "--verify", "--to", "jsonl", "--task-bytes", "3000", "--json")
    read = []
    for output, more in (("one", ()), ("rounds", ("--cluster-bytes", "1"))):
        ran = workspace.succeed(*base, *more, "--output", output, "--ledger", f"{output}.ledger")
        read.append(ran.json["stages"]["texts"]["records"]["read"])
    assert read[0] == read[1] > 0
    assert shards(workspace, "one") == shards(workspace, "rounds") != {}
    assert "cluster/round-1" in workspace.run("ledger", "status", "rounds.ledger", "--json").json["stages"]
