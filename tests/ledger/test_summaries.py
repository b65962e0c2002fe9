"""Statistics of a ledger equal one computation over all counted records, after repeated, late or replaced commits."""

from __future__ import annotations

import dataclasses
import math
import random
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgerbeam import stats
from ledgerbeam.errors import FunctionError, LedgerDamagedError, LedgerError, UsageError
from ledgerbeam.ledger import Job, LedgerStore, Output, OutputShard, Source, dataset_manifest, merged_statistics
from ledgerbeam.ledger.lmdb.store import LmdbStore
from ledgerbeam.ledger.model.accounts import FUNCTIONS, Statistic
from ledgerbeam.ledger.model.identity import Lineage
from ledgerbeam.ledger.model.rows import Leaf
from ledgerbeam.ledger.opening import open_local_store
from ledgerbeam.ledger.summaries import function_summaries, joined_statistics
from ledgerbeam.sketches import FunctionCounts, MergedFunctions
from tests.ledger.builders import output_of, plain
from tests.ledger.stores import registered, several

TASKS = 6
RECORDS = 400


@pytest.fixture
def counting(tmp_path: Path) -> LedgerStore:
    counting = open_local_store(str(tmp_path / "ledger"), create=True)
    counting.open_job(Job("test", {}))
    return counting


def numbers(source: Source, ordinal: int) -> list[int]:
    chance = random.Random(f"{source.url} {source.version} {ordinal}")
    return [int(chance.paretovariate(0.8)) for _ in range(RECORDS)]


def observed(source: Source, ordinal: int) -> dict[str, Statistic]:
    with stats.collecting() as collected:
        for number in numbers(source, ordinal):
            stats.count("sum", number)
            stats.observe("number", number)
            stats.distinct("numbers", number)
            stats.top("numbers by weight", number, number)
    return {name: Statistic(*found) for name, found in collected.statistics().items()}


def leaf(source: Source, ordinal: int) -> Leaf:
    lineage: Lineage = ((ordinal, TASKS),)
    if ordinal == 3:
        return Leaf(source.id, lineage, "filtered", statistics=observed(source, ordinal))
    outputs = (output_of(source, lineage),)
    return Leaf(source.id, lineage, "published", outputs, 5, 50, statistics=observed(source, ordinal))


def check(counting: LedgerStore, sources: list[Source]) -> None:
    """Compare the statistics of a ledger with one computation over all records."""
    found = merged_statistics(counting)
    every = [number for source in sources for ordinal in range(TASKS) for number in numbers(source, ordinal)]
    tasks = TASKS * len(sources)
    assert {name: merged.tasks for name, merged in found.items()} == dict.fromkeys(
        ("number", "numbers", "numbers by weight", "sum"), tasks
    )
    assert found["sum"].value() == sum(every)
    value = found["number"].value()
    assert (value["count"], value["min"], value["max"]) == (len(every), min(every), max(every))
    assert value["mean"] == math.fsum(every) / len(every)
    error: float = found["number"].sketch.rank_error()  # type: ignore[attr-defined]
    for name, rank in (("p50", 0.5), ("p99", 0.99)):
        low, high = (sum(1 for n in every if test(n)) / len(every) for test in _around(value[name]))
        assert low - error <= rank <= high + error
    low, high = found["numbers"].sketch.interval(3)  # type: ignore[attr-defined]
    assert low <= len(set(every)) <= high
    weights = Counter[int]()
    for number in every:
        weights[number] += number
    for row in found["numbers by weight"].value():
        assert row["lower"] <= weights[row["value"]] <= row["upper"]
    again = merged_statistics(counting)
    assert {name: merged.value() for name, merged in again.items()} == {
        name: merged.value() for name, merged in found.items()
    }


def _around(value: float) -> tuple[Any, Any]:
    return lambda n: n < value, lambda n: n <= value


@pytest.mark.parametrize("seed", range(3))
def test_tasks_count_once_in_any_order_and_however_often_they_are_committed(counting: LedgerStore, seed: int) -> None:
    chance = random.Random(seed)
    sources = [plain("a"), plain("b")]
    counting.register(sources)
    leaves = [leaf(source, ordinal) for source in sources for ordinal in range(TASKS)]
    leaves += chance.sample(leaves, 5)
    chance.shuffle(leaves)
    while leaves:
        taken, leaves = leaves[: chance.randint(1, 4)], leaves[1:]
        counting.commit(taken)
    check(counting, sources)


def test_a_replaced_source_takes_its_share_away(counting: LedgerStore) -> None:
    first, other = several(counting, "a", "b")
    counting.commit([leaf(source, ordinal) for source in (first, other) for ordinal in range(TASKS)])
    second = plain("a", version="2")
    counting.register([second])
    check(counting, [other])
    counting.commit([leaf(second, ordinal) for ordinal in range(TASKS)])
    check(counting, [second, other])
    counting.forget("*b.jsonl")
    check(counting, [second])


def test_only_the_statistic_that_is_asked_for_is_merged(counting: LedgerStore) -> None:
    source = registered(counting, "a")
    counting.commit([leaf(source, 0)])
    assert list(merged_statistics(counting, "sum")) == ["sum"]
    assert merged_statistics(counting, "nothing") == {}


def commit_statistic(counting: LedgerStore, ordinal: int, kind: str, data: bytes) -> None:
    source = registered(counting, "a")
    counting.commit([Leaf(source.id, ((ordinal, TASKS),), "filtered", statistics={"x": Statistic(kind, data)})])


def test_statistics_of_several_functions_have_their_labels(counting: LedgerStore) -> None:
    source = registered(counting)
    for ordinal in range(2):
        with stats.collecting(["clean", "score"]) as collected:
            for number in range(2):
                collected.running = number.__index__
                stats.count("words", 1 + number)
        found = {name: Statistic(*one) for name, one in collected.statistics().items()}
        counts = MergedFunctions()
        counts.add(0, FunctionCounts("clean", 5, 4, {"short": 1}))
        counts.add(1, FunctionCounts("score", 4, 4))
        found[FUNCTIONS] = Statistic("functions", counts.data())
        lineage: Lineage = ((ordinal, 2),)
        counting.commit([Leaf(source.id, lineage, "published", (output_of(source, lineage),), 5, 50, statistics=found)])
    merged = merged_statistics(counting)
    assert {name: one.value() for name, one in merged.items()} == {"clean.words": 2, "score.words": 4}
    assert merged_statistics(counting, "score.words").keys() == {"score.words"}
    shared = {"returned": 8, "rejected": {}}
    assert function_summaries(counting) == [
        {"function": "clean", "received": 10, "dropped": {"short": 2}, "statistics": {"words": 2}, **shared},
        {"function": "score", "received": 8, "dropped": {}, "statistics": {"words": 4}, **shared},
    ]


def test_one_function_has_no_summaries(counting: LedgerStore) -> None:
    source = registered(counting)
    counting.commit([leaf(source, 0)])
    assert function_summaries(counting) == []


def test_a_statistic_is_told_with_how_many_tasks_have_it_and_how_far_off_it_may_be(counting: LedgerStore) -> None:
    with stats.collecting() as collected:
        for number in range(2000):
            stats.distinct("x", number)
    commit_statistic(counting, 0, *collected.statistics()["x"])
    commit_statistic(counting, 1, *collected.statistics()["x"])
    counting.commit([Leaf(plain("a").id, ((2, TASKS),), "filtered", statistics={"a": Statistic("count", b"3")})])
    found = merged_statistics(counting)
    assert list(found) == ["a", "x"], "names are not sorted"
    assert [(merged.kind, merged.tasks) for merged in found.values()] == [("count", 1), ("distinct", 2)]
    assert found["a"].value() == 3
    assert found["a"].bounds() == ""
    assert found["x"].bounds() == found["x"].sketch.bounds() != ""


@pytest.mark.parametrize(
    ("kind", "data"),
    [("count", b"three"), ("observe", b""), ("top", b"\x01[]"), ("distinct", b"\x02zip"), ("sum", b"1")],
)
def test_a_sketch_that_does_not_read_is_damage_and_named(counting: LedgerStore, kind: str, data: bytes) -> None:
    commit_statistic(counting, 0, kind, data)
    with pytest.raises(LedgerDamagedError, match="the statistic 'x' of a task cannot be decoded"):
        merged_statistics(counting)
    assert merged_statistics(counting, "y") == {}


def test_two_kinds_under_one_name_are_an_error_by_name(counting: LedgerStore) -> None:
    with stats.collecting() as collected:
        stats.observe("x", 1)
    commit_statistic(counting, 0, "count", b"1")
    commit_statistic(counting, 1, *collected.statistics()["x"])
    with pytest.raises(LedgerError, match=r"'x' was made by stats\.(count|observe) in some tasks and by"):
        merged_statistics(counting)


@given(
    st.dictionaries(st.sampled_from("abc"), st.integers(0, 2**70)),
    st.dictionaries(st.sampled_from("abc"), st.integers(0, 2**70)),
)
def test_two_steps_of_a_task_add_up(one: dict[str, int], other: dict[str, int]) -> None:
    first, second = ({n: Statistic("count", b"%d" % c) for n, c in step.items()} for step in (one, other))
    joined = {name: int(statistic.data) for name, statistic in joined_statistics(first, second).items()}
    assert joined == {name: one.get(name, 0) + other.get(name, 0) for name in one.keys() | other.keys()}


def test_two_steps_cannot_give_one_name_to_two_kinds() -> None:
    with pytest.raises(FunctionError, match="two functions"):
        joined_statistics({"x": Statistic("count", b"1")}, {"x": Statistic("top", b"")})


JOB = Job("map", {"output": "s3://bucket/out"})


def shard_outputs(source: Source, first: int, *, index: bool = True) -> tuple[Output, ...]:
    name = f"{source.url.rpartition('/')[2]}-{first:010d}.jsonl"
    shard = Output(name, 100 + first, f"sum-{name}", 7, first)
    return (shard, Output(f"{name}.idx", 64, "sum", 0, first)) if index else (shard,)


def begin(store: LmdbStore, sources: Sequence[Source]) -> None:
    store.open_job(JOB)
    run = store.begin_run({})
    store.register(sources)
    store.note_listing(run, listed=len(sources), finished=True)


def complete(store: LmdbStore, source: Source, spans: int) -> None:
    store.commit(
        [Leaf(source.id, ((i, spans),), outputs=shard_outputs(source, 10 * i), records=7) for i in range(spans)]
    )


def test_shards_come_by_source_and_record_each_with_its_index(store: LmdbStore) -> None:
    sources = [plain(name) for name in "cab"]
    begin(store, sources)
    for source in sources:
        complete(store, source, 3)
    manifest = dataset_manifest(store)
    assert (manifest.root, manifest.complete, manifest.fingerprint) == ("s3://bucket/out", True, JOB.fingerprint)
    shards = list(manifest)
    assert [(shard.source[-7], shard.first) for shard in shards] == [(s, f) for s in "abc" for f in (0, 10, 20)]
    assert all(shard.index == f"{shard.name}.idx" for shard in shards)
    assert dataclasses.astuple(shards[1]) == (
        *("a.jsonl-0000000010.jsonl", 110, "sum-a.jsonl-0000000010.jsonl", 7, "/data/a.jsonl", 10),
        *("a.jsonl-0000000010.jsonl.idx", sources[1].id, sources[1].version, sources[1].size),
    )
    assert list(manifest) == shards, "it cannot be read twice"


def test_manifests_are_shown_and_compared_by_what_they_say_of_the_dataset(store: LmdbStore) -> None:
    begin(store, [])
    manifest = dataset_manifest(store, allow_incomplete=True)
    said = f"root='s3://bucket/out', route='', fingerprint={JOB.fingerprint!r}, complete=True"
    assert repr(manifest) == f"DatasetManifest({said})"
    assert dataclasses.replace(manifest, _store=LmdbStore(store.url)) == manifest


def test_shards_without_indexes_and_a_last_one_are_given_too(store: LmdbStore) -> None:
    source = plain()
    begin(store, [source])
    expected = [(0, False), (5, True), (9, False)]
    outputs = [output for first, index in expected for output in shard_outputs(source, first, index=index)]
    store.commit([Leaf(source.id, (), outputs=tuple(outputs))])
    assert [(shard.first, shard.index is not None) for shard in dataset_manifest(store)] == expected


def test_an_incomplete_job_is_refused_with_what_it_owes(store: LmdbStore) -> None:
    done, open_ = plain("a"), plain("b")
    begin(store, [done, open_])
    complete(store, done, 2)
    store.commit([Leaf(open_.id, ((0, 2),), outputs=shard_outputs(open_, 0))])
    with pytest.raises(LedgerError, match=r"not complete.*1 complete, 1 open and 0 failed"):
        dataset_manifest(store)
    manifest = dataset_manifest(store, allow_incomplete=True)
    assert not manifest.complete
    assert [shard.source for shard in manifest] == [done.url] * 2, "half a source is in it"


def test_a_ledger_without_a_job_that_has_finished_listing_is_refused(store: LmdbStore) -> None:
    with pytest.raises(LedgerError, match="no job has used it"):
        dataset_manifest(store)
    store.open_job(JOB)
    complete(store, registered(store), 1)
    with pytest.raises(LedgerError, match="finished listing"):
        dataset_manifest(store)


def do_again(store: LmdbStore) -> None:
    store.forget("*")
    complete(store, plain("a"), 1)


WHILE_READ: dict[str, Callable[[LmdbStore], object]] = {
    "another source completes": lambda store: complete(store, plain("b"), 1),
    "a source is forgotten": lambda store: store.forget("*a.jsonl"),
    "a source is done again": do_again,
    "another job restarts": lambda store: store.open_job(Job("map", {"output": "elsewhere"}), "restart"),
    "another job takes it over": lambda store: store.open_job(Job("map", {"output": "elsewhere"}), "accept"),
}


@pytest.mark.parametrize("change", WHILE_READ)
def test_a_ledger_that_changes_while_it_is_read_is_an_error(store: LmdbStore, change: str) -> None:
    begin(store, [plain("a"), plain("b")])
    complete(store, plain("a"), 3)
    shards = iter(dataset_manifest(store, allow_incomplete=True))
    assert isinstance(next(shards), OutputShard)
    WHILE_READ[change](store)
    with pytest.raises(LedgerError, match="changed while"):
        list(shards)


# What belongs together


def put(store: LmdbStore, url: str, *names: str) -> Source:
    """Return a complete source with outputs of these names, in their order."""
    source = Source(f"/data/{url}", 10, "1")
    store.register([source])
    outputs = tuple(Output(name, 5, f"sum-{name}", 2, place) for place, name in enumerate(names))
    store.commit([Leaf(source.id, (), outputs=outputs)])
    return source


def pairs(store: LmdbStore) -> list[tuple[str, str | None]]:
    return [(shard.name, shard.index) for shard in dataset_manifest(store, allow_incomplete=True)]


def test_an_index_belongs_to_the_shard_that_it_is_named_after(store: LmdbStore) -> None:
    begin(store, [])
    put(store, "a", "s.bin", "s.bin.idx", "t.bin", "t.idx", "u.jsonl", "u.jsonl.idx", "v.jsonl", "w.jsonl.idx")
    assert pairs(store)[:2] == [("s.bin", "s.bin.idx"), ("t.bin", "t.idx")]
    assert pairs(store)[2:] == [("u.jsonl", "u.jsonl.idx"), ("v.jsonl", None), ("w.jsonl.idx", None)]


def test_an_index_does_not_belong_to_a_shard_of_another_source(store: LmdbStore) -> None:
    begin(store, [])
    put(store, "a", "x.jsonl")
    put(store, "b", "x.jsonl.idx", "y.jsonl")
    put(store, "c", "/x.jsonl", "/x.jsonl.idx")  # an absolute name stays as it is
    alone = [("x.jsonl", None), ("x.jsonl.idx", None), ("y.jsonl", None)]
    assert pairs(store) == [*alone, ("/x.jsonl", "/x.jsonl.idx")]


def test_an_open_source_between_complete_ones_is_left_out(store: LmdbStore) -> None:
    begin(store, [])
    put(store, "a", "x.jsonl")
    half = Source("/data/b", 10, "1")
    store.register([half])
    store.commit([Leaf(half.id, ((0, 2),), outputs=(Output("half.jsonl", 5, "sum", 2),))])
    put(store, "c", "z.jsonl", "z.jsonl.idx")
    assert pairs(store) == [("x.jsonl", None), ("z.jsonl", "z.jsonl.idx")]


@pytest.mark.parametrize(("parameters", "root"), [({}, None), ({"output": 5}, None), ({"output": "/out"}, "/out")])
def test_the_root_is_the_output_of_the_job(store: LmdbStore, parameters: dict[str, Any], root: str | None) -> None:
    store.open_job(Job("map", parameters))
    manifest = dataset_manifest(store, allow_incomplete=True)
    assert (manifest.root, manifest.complete, list(manifest)) == (root, False, [])


ROUTED = [("", "a.jsonl"), ("de", "de/a.jsonl"), ("de", "de/a.jsonl.idx"), ("fr", "fr/de/a.jsonl")]


@pytest.mark.parametrize(
    ("route", "root", "names"),
    [
        ("", "/out", [("a.jsonl", None)]),
        ("de", "/out/de", [("a.jsonl", "a.jsonl.idx")]),
        ("fr", "/out/fr", [("de/a.jsonl", None)]),
        ("en", "/out/en", []),
    ],
)
def test_the_dataset_of_a_route_has_its_shards_alone_named_below_its_folder(
    store: LmdbStore, route: str, root: str, names: list[tuple[str, str | None]]
) -> None:
    store.open_job(Job("map", {"output": "/out"}))
    store.register([plain()])
    outputs = tuple(Output(name, 5, "sum", 2, place, route=of) for place, (of, name) in enumerate(ROUTED))
    store.commit([Leaf(plain().id, (), outputs=outputs)])
    manifest = dataset_manifest(store, route=route, allow_incomplete=True)
    assert (manifest.root, manifest.route) == (root, route)
    assert [(shard.name, shard.index) for shard in manifest] == names


def test_rejected_records_are_no_dataset(store: LmdbStore) -> None:
    begin(store, [])
    with pytest.raises(UsageError, match=r"the name of a route.*'_rejects'; read rejected records from their folder"):
        dataset_manifest(store, route="_rejects")
