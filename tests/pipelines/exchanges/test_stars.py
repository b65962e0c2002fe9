"""``dedup --near`` of more pairs than one process clusters: rounds come to what one process does, byte for byte."""

from __future__ import annotations

import json
import random
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ledgerbeam import stats
from ledgerbeam.io.exchange.forest import Forest, file_nodes, span
from ledgerbeam.io.exchange.slices import EARLIER, Partition, RunFile, RunLayout, SliceTables, SomeUrls
from ledgerbeam.ledger import FailedTask, NoneTask, Source, Task
from ledgerbeam.sources.buckets import BucketSources, bucket_page
from ledgerbeam.sources.kind import TaskLimits
from ledgerbeam.sources.listed import file_key
from ledgerbeam.transforms.dedup import stars
from ledgerbeam.transforms.dedup.duplicates import FindCandidates, FindClusters, HashEncoder
from ledgerbeam.transforms.dedup.stars import FindLabels, MakeStars, TurnLargeStars, TurnSmallStars, member_trees
from ledgerbeam.transforms.exchange.scatter import RunEncoder, ScatteredRecords
from tests.conftest import S3Server
from tests.pipelines.conftest import Workspace, make_workspace
from tests.pipelines.exchanges.killing import OnStore, run_killed_at, run_with_kills
from tests.pipelines.exchanges.stages import write_jsonl
from tests.pipelines.exchanges.test_near import NEAR, rows_of, shards, survivors, write_sources

Place = tuple[str, int]
Pairs = list[tuple[Place, Place]]
Score = Callable[[Place], bytes]

ONE = 1 << 40


def forest_of(pairs: Pairs, score: Score | None = None) -> Forest:
    places = [place for pair in pairs for place in pair]
    names, nodes = file_nodes(
        [url.encode() for url, _ in places], np.arange(len(places)), np.array([n for _, n in places], np.uint64)
    )
    scores = None
    if score is not None:
        scores = np.empty(len(places), object)
        scores[:] = [score(place) for place in places]
    return span(names, nodes, np.arange(0, len(places), 2), np.arange(1, len(places), 2), scores)


@contextmanager
def counted() -> Iterator[list[int]]:
    """Yield what tasks count meanwhile."""
    found: list[int] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stats, "count", lambda _name, by: found.append(by))
        yield found


@dataclass
class Rounds:
    """The stages from pairs to clusters in this process, without Beam and a ledger."""

    folder: Path
    buckets: int = 3
    part_bytes: int = ONE
    block_bytes: int = 100
    rounds: int = field(default=0, init=False)

    def one_process(self, forests: Sequence[Forest]) -> list[Any]:
        """Return what one process finds: rows of what goes, the same by file, and candidates."""
        (task,) = self._tasks(self._pairs(forests), 1, ONE, within_keys=False)
        return _found([[decide(task)] for decide in (FindClusters(True), FindClusters(False), FindCandidates())])

    def in_rounds(self, forests: Sequence[Forest]) -> list[Any]:
        """Return what rounds find."""
        made = self._stage("s", MakeStars(), self._tasks(self._pairs(forests), 1, self.part_bytes))
        runs, self.rounds = made, 0
        while True:
            self.rounds += 1
            name = f"l{self.rounds}-"
            with counted() as changes:
                runs = self._stage(name, TurnLargeStars(), self._tasks(runs, self.buckets, self.part_bytes))
            if not changes:
                break
            tasks = self._tasks(runs, self.buckets, self.part_bytes, within_keys=False)
            runs = self._stage(f"m{self.rounds}-", TurnSmallStars(), tasks)
        tasks = self._tasks([*made, *runs], self.buckets, self.part_bytes, within_keys=False)
        labels = self._stage("n", FindLabels(), tasks)
        decides = (FindClusters(True, member_trees), FindClusters(False, member_trees), FindCandidates(member_trees))
        return _found(
            [[decide(task) for task in self._tasks(labels, self.buckets, self.part_bytes)] for decide in decides]
        )

    def _pairs(self, forests: Sequence[Forest]) -> list[RunFile]:
        encoded = (ScatteredRecords([b""], np.zeros(1, np.uint64), [forest.encode()]) for forest in forests)
        return list(self._write("p", encoded, RunEncoder(())))

    def _stage(self, name: str, work: Any, tasks: Iterable[Task]) -> list[RunFile]:
        done = [work(task) for task in tasks]
        for one in done:
            assert not isinstance(one, FailedTask), one.error
        encoder = HashEncoder(Partition(self.buckets).cuts(), self.block_bytes)
        return list(self._write(name, (one.records for one in done if not isinstance(one, NoneTask)), encoder))

    def _write(self, name: str, some: Iterable[Any], encoder: Any) -> Iterator[RunFile]:
        for number, records in enumerate(some):
            (file,) = encoder.encode(records)
            path = self.folder / f"{name}{number:05d}.run"
            path.write_bytes(file.data)
            yield RunFile(path.name, len(file.data), SomeUrls.of([str(path)]))

    def _tasks(self, runs: list[RunFile], buckets: int, part_bytes: int, *, within_keys: bool = True) -> Iterator[Task]:
        tables = SliceTables(str(self.folder), runs[0].name if runs else "none")
        rows = tables.write(RunLayout.of_one(runs, buckets))
        sources = BucketSources(tables, part_bytes, within_keys=within_keys)
        page = bucket_page([row.size for row in rows], [row.version for row in rows])
        for bucket in map(Source, page.urls, page.sizes, page.versions):
            kind = sources.kind_of(bucket)
            for start, stop in kind.cut(bucket, TaskLimits()).spans:
                task = Task(bucket, start, stop, ((start, stop),))
                yield task.replace(records=kind.open(bucket).read_span(start, stop))


def _found(done: list[list[Any]]) -> list[Any]:
    """Return what tasks have found, in an order that does not tell which one has."""
    for one in (one for some in done for one in some):
        assert not isinstance(one, FailedTask), one.error
    rows, places, candidates = ([one.records for one in some if not isinstance(one, NoneTask)] for some in done)
    return [
        sorted(line for some in rows for line in ([] if some is None else some.data.splitlines())),
        sorted(place for some in places for place in _listed(some)),
        sorted(place for some in candidates for place in _listed(some)),
    ]


def _listed(records: Any) -> list[tuple[int, int, int, bytes]]:
    payloads = [b""] * len(records) if records.payloads is None else list(records.payloads)
    lanes = (lane.tolist() for lane in (*records.hashes, records.numbers))
    return list(zip(*lanes, payloads, strict=True))


PLACES = st.tuples(st.sampled_from(["/a", "/b", "/bé", f"{EARLIER}/old", "s3://c d"]), st.integers(0, 7))
FORESTS = st.lists(st.lists(st.tuples(PLACES, PLACES), min_size=1, max_size=9), min_size=1, max_size=6)


def by_number(place: Place) -> bytes:
    """Return a score of which the least is not that of the first record."""
    return b"%04d" % (9999 - place[1] // 5)


@pytest.mark.slow
@settings(deadline=None, max_examples=25)
@given(FORESTS, st.booleans(), st.sampled_from([1, 200, ONE]), st.sampled_from([1, 3]), st.sampled_from([1, 10**6]))
def test_rounds_find_what_one_process_finds(
    some: list[Pairs], scored: bool, part_bytes: int, buckets: int, at_once: int
) -> None:
    forests = [forest_of(pairs, by_number if scored else None) for pairs in some]
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(stars, "_ROWS", at_once)
        rounds = Rounds(Path(folder), buckets, part_bytes)
        *decided, candidates = rounds.in_rounds(forests)
        *expected, compared = rounds.one_process(forests)
    assert decided == expected
    # Whether a tree that is cut has others than earlier records, no task knows.
    assert [one for one in candidates if one in compared or one[-1] not in only_earlier(candidates)] == compared


def only_earlier(candidates: list[tuple[int, int, int, bytes]]) -> set[bytes]:
    """Return the names of trees that have records of an earlier job alone."""
    key = file_key("/old")
    earlier = int.from_bytes(key[:8], "big"), int.from_bytes(key[8:], "big")
    return {one[-1] for one in candidates} - {one[-1] for one in candidates if one[:2] != earlier}


def chain(count: int) -> Pairs:
    places = [(f"/{n % 7}", n) for n in range(count)]
    random.Random(count).shuffle(places)
    return list(pairwise(places))


def star(count: int) -> Pairs:
    return [(("/c", 500), (f"/{n % 7}", n)) for n in range(count) if n != 500]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("pairs", "most"),
    [(chain(1000), 12), (star(1000), 3), ([(("/a", n), ("/a", n - n % 3)) for n in range(900)], 4)],
    ids=["a chain", "a star", "many small ones"],
)
@pytest.mark.parametrize("scored", [False, True])
def test_large_clusters_are_divided_among_tasks(tmp_path: Path, pairs: Pairs, most: int, scored: bool) -> None:
    """Each pair is a forest of a few others from anywhere; a part has so little that large clusters are of many."""
    mixed = random.Random(3).sample(pairs, len(pairs))
    forests = [forest_of(mixed[at : at + 90], by_number if scored else None) for at in range(0, len(mixed), 90)]
    rounds = Rounds(tmp_path, 2, 3000, 500)
    assert rounds.in_rounds(forests) == rounds.one_process(forests)
    assert rounds.rounds <= most


def test_how_large_clusters_are_is_counted_once_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    monkeypatch.setattr(stats, "observe", lambda _name, size: sizes.append(size))
    forests = [forest_of(star(1000)[at : at + 90]) for at in range(0, 999, 90)] + [forest_of([(("/d", 1), ("/d", 2))])]
    rounds = Rounds(tmp_path, 2, 3000, 500)
    found = rounds.in_rounds(forests)
    assert len(found[0]) == 1000
    assert sorted(sizes) == [2, 2, 2, 1000, 1000, 1000], "rows, places and candidates"


IN_ROUNDS = (*NEAR, "--cluster-bytes", "1")
ROUNDS = ["stars", "round-1", "round-2", "round-3", "labels"]
LEDGERS = ("L", "L/cluster", *(f"L/cluster/{name}" for name in ("pairs", "pairs/scatter", *ROUNDS)))


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    workspace = make_workspace(tmp_path_factory.mktemp("clean"))
    write_sources(workspace)
    workspace.succeed(*NEAR)
    return shards(workspace)


@pytest.mark.slow
def test_a_run_in_rounds_has_the_bytes_of_one_without(workspace: Workspace, clean: dict[str, bytes]) -> None:
    write_sources(workspace)
    ran = workspace.succeed(*IN_ROUNDS, "--workers", "2", "--json")
    assert shards(workspace) == clean
    assert list(ran.json["stages"]) == ["scatter", "pairs", *ROUNDS, "cluster", "dedup"]
    assert sorted(path.name for path in (workspace.root / "out").glob("_*")) == ["_ledgerbeam", "_signatures"]
    stages = ["cluster/pairs/scatter", "cluster/pairs", *(f"cluster/{name}" for name in ROUNDS), "cluster"]
    for command in (("ledger", "status", "L"), ("ledger", "watch", "L", "--once")):
        shown = workspace.run(*command, "--json").json
        assert (shown["complete"], list(shown["stages"])) == (True, stages)
    assert workspace.run("ledger", "verify", "L").status == 0
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
@pytest.mark.parametrize("point", range(1, 9))
def test_a_kill_between_any_two_stages_changes_nothing(
    workspace: Workspace, clean: dict[str, bytes], point: int
) -> None:
    write_sources(workspace)
    run_killed_at(workspace, IN_ROUNDS, f"exchange.tabulated:{point}")
    assert shards(workspace) == clean


@pytest.mark.slow
def test_launchers_killed_all_over_the_stages_end_with_the_same_bytes(
    workspace: Workspace, clean: dict[str, bytes]
) -> None:
    write_sources(workspace)
    run_with_kills(workspace, IN_ROUNDS, LEDGERS, 25)
    assert shards(workspace) == clean


@pytest.mark.slow
@pytest.mark.parametrize("keep_runs", [(), ("--keep-runs",)])
def test_files_come_and_go(workspace: Workspace, keep_runs: tuple[str, ...]) -> None:
    write_sources(workspace)

    def changed() -> dict[str, int]:
        ran = workspace.succeed(*IN_ROUNDS, *keep_runs, "--json")
        assert workspace.records("out") == survivors(workspace)
        return {name: stage["done"]["tasks"] for name, stage in ran.json["stages"].items()}

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


def jsonl(workspace: Workspace, output: str) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (workspace.root / output).glob("*.jsonl")}


def lines_of(workspace: Workspace, output: str) -> list[bytes]:
    paths = (workspace.root / output).glob("*.jsonl")
    return sorted(line for path in paths for line in path.read_bytes().splitlines())


@pytest.mark.slow
def test_marks_preferences_and_earlier_ones_are_those_of_one_process(workspace: Workspace) -> None:
    write_sources(workspace)
    write_jsonl(workspace.root / "old" / "d.jsonl", rows_of("d", 80))
    workspace.succeed(*NEAR[:1], "old/*.jsonl", *NEAR[2:8], "--output", "first", "--to", "jsonl", "--ledger", "L1")
    for more in (("--prefer", "s"), ("--against", f"{workspace.root}/L1", "--prefer", "s")):
        name = f"out{len(more)}"
        base = (*NEAR[:8], *more, "--to", "jsonl", "--task-bytes", "3000")
        for way, cluster in (("one", ()), ("rounds", ("--cluster-bytes", "1"))):
            for marked in ((), ("--mark",)):
                output = f"{name}-{way}{''.join(marked)}"
                workspace.succeed(*base, *cluster, *marked, "--output", output, "--ledger", f"{output}.ledger")
        assert jsonl(workspace, f"{name}-one") == jsonl(workspace, f"{name}-rounds") != {}
        assert lines_of(workspace, f"{name}-one--mark") == lines_of(workspace, f"{name}-rounds--mark") != []
        shown = workspace.run("ledger", "status", f"{name}-rounds--mark.ledger", "--json").json
        assert "round-1" in shown["stages"]
        marks = sorted(path.name for path in (workspace.root / f"{name}-rounds--mark").glob("_*"))
        assert marks == ["_ledgerbeam", "_signatures"]
    # Of the same ledger the other way, with other buckets: nothing of the first one is left.
    output = f"{name}-rounds--mark"
    lines = lines_of(workspace, output)
    workspace.succeed(*base, "--mark", "--output", output, "--ledger", f"{output}.ledger")
    assert lines_of(workspace, output) == lines
    assert list(json.loads(workspace.run("ledger", "status", f"{output}.ledger", "--json").out)["stages"]) == [
        "pairs/scatter",
        "pairs",
    ]


@pytest.mark.slow
def test_candidates_are_those_of_one_process(workspace: Workspace) -> None:
    write_sources(workspace)
    base = (*NEAR[:8], "--threshold", "0.75", "--verify", "--to", "jsonl", "--task-bytes", "3000", "--json")
    read = []
    for output, more in (("one", ()), ("rounds", ("--cluster-bytes", "1"))):
        ran = workspace.succeed(*base, *more, "--output", output, "--ledger", f"{output}.ledger")
        read.append(ran.json["stages"]["texts"]["records"]["read"])
    assert read[0] == read[1] > 0
    assert jsonl(workspace, "one") == jsonl(workspace, "rounds") != {}
    assert "cluster/round-1" in workspace.run("ledger", "status", "rounds.ledger", "--json").json["stages"]


@pytest.mark.slow
@pytest.mark.s3
def test_rounds_on_an_object_store_with_kills_between_the_stages(workspace: Workspace, s3: S3Server) -> None:
    write_sources(workspace)
    exchange = OnStore(workspace, s3, IN_ROUNDS)
    for _ in range(8):
        exchange.kill()
    exchange.run()
    assert exchange.records() == survivors(workspace)
    assert not exchange.store.exists(f"{exchange.bucket}/out/_drops")
    assert exchange.store.glob(f"{exchange.bucket}/out/_signatures/*.run")
