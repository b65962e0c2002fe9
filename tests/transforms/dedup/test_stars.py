"""Clusters are those of plain union-find, whether one process finds them or rounds that divide them among tasks."""

from __future__ import annotations

import random
import tempfile
from collections import Counter
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
from ledgerbeam.io.exchange.forest import PAIRS_BYTES, Forest, file_nodes, span
from ledgerbeam.io.exchange.hash_run import Hashes
from ledgerbeam.io.exchange.slices import EARLIER, Partition, RunFile, RunLayout, SliceTables, SomeUrls
from ledgerbeam.io.lines.rows import ByteRows
from ledgerbeam.ledger import FailedTask, NoneTask, Task
from ledgerbeam.sources.buckets import BucketSources
from ledgerbeam.sources.listed import file_key
from ledgerbeam.transforms import ProcessTask
from ledgerbeam.transforms.dedup import duplicates as near
from ledgerbeam.transforms.dedup import stars
from ledgerbeam.transforms.dedup.duplicates import (
    BY_SOURCE,
    CANDIDATES,
    CLUSTER_SIZE,
    FindCandidates,
    FindClusters,
    HashedRecords,
    HashEncoder,
    PairRecords,
    TreeReader,
    joined_trees,
    node_hashes,
)
from ledgerbeam.transforms.dedup.marks import note_of
from ledgerbeam.transforms.dedup.stars import FindLabels, MakeStars, TurnLargeStars, TurnSmallStars, member_trees
from ledgerbeam.transforms.exchange.scatter import RunEncoder, ScatteredRecords
from tests.pipelines.exchanges.stages import bucket_tasks

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
        """Return what one process finds: marks of clusters, what goes by file, and candidates."""
        (task,) = self._tasks(self._pairs(forests), 1, ONE, within_keys=False)
        return _found([[decide(task)] for decide in _decides(joined_trees)])

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
        return _found(
            [
                [decide(task) for task in self._tasks(labels, self.buckets, self.part_bytes)]
                for decide in _decides(member_trees)
            ]
        )

    def _pairs(self, forests: Sequence[Forest]) -> list[RunFile]:
        keys, numbers = ByteRows.of([b""]), np.zeros(1, np.uint64)
        encoded = (ScatteredRecords(keys, numbers, ByteRows.of([forest.encode()])) for forest in forests)
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
        return bucket_tasks(RunLayout.of_one(runs, buckets), BucketSources(tables, part_bytes, within_keys=within_keys))


def _decides(trees: TreeReader) -> tuple[Callable[[Task], Any], ...]:
    return FindClusters(trees, mark=True), FindClusters(trees), FindCandidates(trees)


def _found(done: list[list[Any]]) -> list[Any]:
    """Return what tasks have found, in an order that does not tell which one has."""
    for one in (one for some in done for one in some):
        assert not isinstance(one, FailedTask), one.error
    lists = ([one.records for one in some if not isinstance(one, NoneTask)] for some in done)
    return [sorted(place for one in some for place in _listed(one)) for some in lists]


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
        marks, gone, candidates = rounds.in_rounds(forests)
        *expected, compared = rounds.one_process(forests)
    # A record may be marked that is paired with itself alone, which no job does.
    alone = [tree[0] for tree in trees_of([pair for pairs in some for pair in pairs]) if len(tree) == 1]
    unmarked = {(*halves_of(url), number) for url, number in alone}
    assert [[one for one in marks if one[:3] not in unmarked], gone] == expected
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


OLD = f"{EARLIER}/old"


def random_pairs(draw: random.Random, count: int) -> Pairs:
    urls = ["/a", "/b", "/bé", "s3://c d", OLD]
    return [tuple((draw.choice(urls), draw.randrange(9)) for _ in "ab") for _ in range(count)]  # type: ignore[misc]


def trees_of(pairs: Pairs) -> list[list[Place]]:
    found: list[set[Place]] = []
    for pair in pairs:
        touched = [one for one in found if not one.isdisjoint(pair)]
        found = [one for one in found if one not in touched]
        found.append(set(pair).union(*touched))
    return [sorted(one, key=lambda place: (place[0].encode(), place[1])) for one in found]


def stays_for(tree: list[Place], score: Score | None) -> Place:
    return min(tree, key=lambda place: (place[0] != OLD, b"" if score is None or place[0] == OLD else score(place)))


def halves_of(url: str) -> tuple[int, int]:
    key = file_key(url.removeprefix(EARLIER))
    return int.from_bytes(key[:8], "big"), int.from_bytes(key[8:], "big")


@pytest.mark.parametrize("scored", [False, True])
@pytest.mark.parametrize("count", [1, 6, 14])
def test_of_each_tree_the_best_record_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int, scored: bool
) -> None:
    score = by_number if scored else None
    draw = random.Random(count)
    parts = [random_pairs(draw, count), [((OLD, 20), (OLD, 21)), (("/q", 1), ("/q", 1))], random_pairs(draw, count)]
    tops: list[tuple[str, str, int]] = []
    monkeypatch.setattr(stats, "top", lambda *some: tops.append(some))
    observed: list[tuple[str, int]] = []
    monkeypatch.setattr(stats, "observe", lambda name, size: observed.append((name, size)))
    marks, places, candidates = Rounds(tmp_path).one_process([forest_of(pairs, score) for pairs in parts])
    trees = trees_of([pair for some in parts for pair in some])
    stays = {place: stays_for(tree, score) for tree in trees if len(tree) > 1 for place in tree if place[0] != OLD}
    gone = {place: best for place, best in stays.items() if place != best}
    notes = {one[:3]: one[3] for one in marks}
    assert {key: note[16:] for key, note in notes.items()} == {
        (*halves_of(url), number): note_of(b"", (best[0].removeprefix(EARLIER), best[1]) if place in gone else None)
        for place, best in stays.items()
        for url, number in [place]
    }
    assert len(marks) == len(stays)
    named = {(stays[place], notes[*halves_of(place[0]), place[1]][:16]) for place in stays}
    assert len(named) == len({name for _, name in named}) == len(set(stays.values())), "one name for each cluster"
    by_source = Counter(url for url, _ in gone)
    assert sorted(tops) == sorted([(BY_SOURCE, url, size) for url, size in by_source.items()] * 2)
    assert places == sorted((*halves_of(url), number, b"") for url, number in gone)
    compared = [tree for tree in trees if any(url != OLD for url, _ in tree)]
    expected = sorted((*halves_of(url), number) for tree in compared for url, number in tree)
    assert [one[:3] for one in candidates] == expected
    names = {one[:3]: one[3] for one in candidates}
    of_trees = [{names[*halves_of(url), number] for url, number in tree} for tree in compared]
    assert {len(one) for one in of_trees} <= {1}, "one name for all of a tree"
    assert len(set().union(*of_trees)) == len(compared)
    assert {len(name) for name in names.values()} <= {16}
    clusters = sorted(len(tree) for tree in trees if len(tree) > 1)
    assert sorted(size for name, size in observed if name == CLUSTER_SIZE) == sorted(clusters * 2)
    assert sorted(size for name, size in observed if name == CANDIDATES) == sorted(map(len, compared))


@pytest.mark.parametrize(("part_bytes", "buckets"), [(150, 1), (200, 2), (ONE, 3)])
@pytest.mark.parametrize("score", [None, by_number])
def test_rounds_of_random_pairs_find_what_one_process_finds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part_bytes: int, buckets: int, score: Score | None
) -> None:
    monkeypatch.setattr(stars, "_ROWS", 10**6 if part_bytes == 200 else 2)
    pairs = [pair for pair in random_pairs(random.Random(3), 5) if pair[0][0] != OLD or pair[1][0] != OLD]
    pairs += [((OLD, 1), ("/a", 3)), (("/a", 3), ("/z", 2)), (("/z", 5), ("/z", 5)), (("/z", 1), ("/z", 2))]
    forests = [forest_of(pairs[at : at + 5], score) for at in range(0, len(pairs), 5)]
    rounds = Rounds(tmp_path, buckets, part_bytes)
    *decided, candidates = rounds.in_rounds(forests)
    *expected, compared = rounds.one_process(forests)
    assert decided == expected
    assert set(compared) <= set(candidates)


def test_earlier_records_are_candidates_of_a_later_one_that_another_task_has(tmp_path: Path) -> None:
    pairs: Pairs = [((OLD, number), (OLD, number + 1)) for number in range(30)]
    forests = [forest_of([*pairs, (("zz", 1), (OLD, 3))], None)]
    rounds = Rounds(tmp_path, 1, 150)
    *_, candidates = rounds.in_rounds(forests)
    *_, compared = rounds.one_process(forests)
    assert len(compared) == 32
    assert {one[:3] for one in compared} == {one[:3] for one in candidates}


def test_scores_count_beside_records_that_have_none(tmp_path: Path) -> None:
    forests = [forest_of([(("/a", 2), ("/a", 9))], by_number), forest_of([(("/b", 1), ("/b", 2))], None)]
    for marks, *_ in (Rounds(tmp_path, 1).in_rounds(forests), Rounds(tmp_path, 1).one_process(forests)):
        gone = sorted((*one[:3], one[3][16:]) for one in marks if len(one[3]) > 16)
        expected = [("/a", 2, note_of(b"", ("/a", 9))), ("/b", 2, note_of(b"", ("/b", 1)))]
        assert gone == sorted((*halves_of(url), number, note) for url, number, note in expected)


def test_the_trees_of_one_forest_are_stars_before_the_first_round(tmp_path: Path) -> None:
    draw = random.Random(5)
    rounds = Rounds(tmp_path)
    forests = [forest_of([((draw.choice("abc"), draw.randrange(30)), ("a", draw.randrange(30))) for _ in range(20)])]
    assert rounds.in_rounds(forests) == rounds.one_process(forests)
    assert rounds.rounds == 1


def test_records_that_are_connected_with_none_have_no_edges_to_write(tmp_path: Path) -> None:
    rounds = Rounds(tmp_path)
    found = rounds.in_rounds([forest_of([(("/a", n), ("/a", n)) for n in range(3)])])
    assert [len(some) for some in found] == [0, 0, 3]
    assert list(tmp_path.glob("l1-*.run")) == []


def test_records_of_a_file_and_files_of_a_number_have_other_hashes_in_both_halves() -> None:
    forest = forest_of([((url, 0), (url, number)) for url in ("/a", "/b", OLD) for number in (1, 2, 2**40 - 1)])
    for half in node_hashes(forest, forest.nodes):
        assert len(set(half.tolist())) == len(forest) == 12


def test_a_large_cluster_is_divided_and_its_size_is_counted_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    monkeypatch.setattr(stats, "observe", lambda _name, size: sizes.append(size))
    pairs = [(("/c", 50), (f"/{n % 7}", n)) for n in range(24) if n != 50] + [(("/d", 1), ("/d", 2))]
    forests = [forest_of(pairs[at : at + 9], by_number) for at in range(0, len(pairs), 9)]
    rounds = Rounds(tmp_path, 1, 800, 200)
    found = rounds.in_rounds(forests)
    assert [len(some) for some in found] == [27, 25, 27]
    assert rounds.rounds <= 3
    assert len(list(tmp_path.glob("n*.run"))) > 1, "labels are found by several tasks"
    assert sorted(sizes) == [2, 2, 2, 25, 25, 25], "marks, places and candidates"
    assert found == rounds.one_process(forests)


@pytest.mark.parametrize("score", [None, by_number])
@pytest.mark.parametrize("of", [OLD, "/o"])
def test_what_becomes_of_a_cluster_does_not_depend_on_how_its_members_are_divided(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, of: str, score: Score | None
) -> None:
    """Some parts have none but records of an earlier job, which are compared since others have later ones."""
    sizes: list[int] = []
    monkeypatch.setattr(stats, "observe", lambda _name, size: sizes.append(size))
    pairs: Pairs = [((of, 50), (of, n)) for n in range(18)] + [((of, 3), ("/z", n)) for n in range(2)]
    pairs += [(("/y", 1), ("/y", 2)), ((of, 60), (of, 61))]
    forests = [forest_of(pairs[at : at + 11], score) for at in range(0, len(pairs), 11)]
    rounds = Rounds(tmp_path, 1, 300)
    found = rounds.in_rounds(forests)
    earlier_alone = [] if of == OLD else [2]
    assert sorted(sizes) == [*[2] * 5, *earlier_alone, 21, 21, 21], "marks, places and candidates"
    assert found == rounds.one_process(forests)
    labels = sorted(path.name for path in tmp_path.glob("n*.run"))
    runs = [RunFile(name, (tmp_path / name).stat().st_size, SomeUrls.of([name])) for name in labels]
    assert sum(bool(task.records.cut_keys) for task in rounds._tasks(runs, 1, 300)) > 1


def pair_tasks(rounds: Rounds, runs: list[tuple[str, int, list[int]]], *, scored: bool) -> list[Task]:
    """Return the tasks of one bucket of runs, each of a source, its side and the keys of its records."""
    written: list[RunFile] = []
    for url, side, keys in runs:
        high = np.array([key // 2 for key in keys], np.uint64)
        low = np.array([key % 2 for key in keys], np.uint64)
        payloads = [by_number((url, n)) for n in range(len(keys))] if scored else None
        records = HashedRecords(Hashes(high, low), np.arange(len(keys), dtype=np.uint64), payloads)
        (file,) = rounds._write(f"{len(written)}-", [records], HashEncoder((), 100))
        written.append(RunFile(file.name, file.size, SomeUrls.of([url]), side))
    return list(rounds._tasks(written, 1, ONE))


@pytest.mark.parametrize("rows", [1, 3, 10**6])
@pytest.mark.parametrize("scored", [False, True])
@pytest.mark.parametrize("among_earlier", [False, True])
def test_records_that_share_a_hash_are_connected_unless_both_are_earlier_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: int, scored: bool, among_earlier: bool
) -> None:
    monkeypatch.setattr(near, "_ROWS", rows)
    draw = random.Random(1)
    runs = [
        (url, side, [draw.randrange(24) for _ in range(15)])
        for url, side in ((f"{EARLIER}/old", -1), (f"{EARLIER}/older", -1), ("/a", 0), ("/b", 0))
    ]
    (task,) = pair_tasks(Rounds(tmp_path), runs, scored=scored)
    counts: list[tuple[str, int]] = []
    monkeypatch.setattr(stats, "count", lambda name, by: counts.append((name, by)))
    assert (PairRecords() == PairRecords(among_earlier)) is not among_earlier
    done = PairRecords(among_earlier)(task)
    assert isinstance(done, Task)
    (data,) = done.records.payloads
    assert done.records.numbers.tolist() == [0]
    assert counts == [(PAIRS_BYTES, len(data))]
    forest = Forest.decode(data)
    by_key: dict[int, list[tuple[Place, int]]] = {}
    for url, side, keys in runs:
        for number, key in enumerate(keys):
            by_key.setdefault(key, []).append(((url, number), side))
    pairs = [(some[0][0], place) for some in by_key.values() for place, side in some[1:] if among_earlier or side >= 0]
    found: dict[int, list[Place]] = {}
    for node, root in zip(forest.nodes.tolist(), forest.roots.tolist(), strict=True):
        name, number = forest.place(node)
        found.setdefault(root, []).append((name.decode(), number))
    assert sorted(found.values()) == sorted(trees_of(pairs))
    if scored:
        assert forest.scores is not None
        places = [(name.decode(), number) for name, number in map(forest.place, forest.nodes.tolist())]
        assert forest.scores.tolist() == list(map(by_number, places))
    else:
        assert forest.scores is None


def test_hashes_that_no_two_records_share_make_no_task(tmp_path: Path) -> None:
    (task,) = pair_tasks(Rounds(tmp_path), [("/a", 0, [1, 2, 3]), ("/b", 0, [4, 5])], scored=False)
    assert isinstance(PairRecords()(task), NoneTask)


def test_where_nothing_is_connected_nothing_is_written(tmp_path: Path) -> None:
    (task,) = pair_tasks(Rounds(tmp_path), [("/a", 0, [1, 2])], scored=False)
    bucket = task.records._bucket
    bucket.slices, bucket.tables = [], []
    assert joined_trees(task.records) is None
    assert member_trees(task.records) is None
    works: list[Any] = [
        PairRecords(),
        FindClusters(joined_trees, mark=True),
        FindCandidates(),
        MakeStars(),
        TurnLargeStars(),
        FindLabels(),
    ]
    for work in works:
        assert work(task) == NoneTask(task)
        assert ProcessTask(work).takes_blocks, "it merges records as it goes"


@pytest.mark.parametrize(
    "work", [PairRecords(), FindClusters(joined_trees), MakeStars(), TurnLargeStars(), FindLabels()]
)
def test_a_damaged_run_file_fails_its_task(tmp_path: Path, work: Any) -> None:
    (task,) = pair_tasks(Rounds(tmp_path), [("/a", 0, [1, 1, 2])], scored=True)
    (path,) = tmp_path.glob("*-00000.run")
    data = bytearray(path.read_bytes())
    data[8 + 2 * (44 + 16) + 9] ^= 255  # behind the table of two blocks: a row and a first key of each
    path.write_bytes(data)
    done = work(task)
    assert isinstance(done, FailedTask)
    assert "does not match its checksum" in str(done.error)


def test_a_chain_of_many_forests_takes_some_rounds(tmp_path: Path) -> None:
    pairs = chain(24)
    rounds = Rounds(tmp_path, 1, 400)
    forests = [forest_of([pair], by_number) for pair in pairs]
    assert rounds.in_rounds(forests) == rounds.one_process(forests)
    assert 1 < rounds.rounds <= 5
