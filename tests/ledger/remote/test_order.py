"""Hosts that fold the same objects in different orders, late registrations too, reach the state that numbers define."""

from __future__ import annotations

import functools
import gc
import os
import threading
from collections.abc import Iterator, Sequence
from itertools import count, permutations
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from ledgerbeam.errors import JobMismatchError
from ledgerbeam.ledger.lmdb.sources import numbers_of, read_source_fields
from ledgerbeam.ledger.lmdb.store import LmdbStore
from ledgerbeam.ledger.lmdb.tables import COMPLETED, KEY_TOTALS, META, SOURCES, TABLES, Transaction
from ledgerbeam.ledger.model.identity import Lineage, node_id
from ledgerbeam.ledger.model.job import Job
from ledgerbeam.ledger.model.rows import Leaf, Output
from ledgerbeam.ledger.model.store import MAX_ATTEMPTS
from ledgerbeam.ledger.model.task import Source
from ledgerbeam.ledger.remote import apply as sidecar
from ledgerbeam.ledger.remote import compaction
from ledgerbeam.ledger.remote.compaction import compact
from ledgerbeam.ledger.remote.controls import Control
from ledgerbeam.ledger.remote.registration import KEY_NUMBER, Cutoff, are_leaves_due
from ledgerbeam.ledger.remote.replay import collector_paused, segment_name
from ledgerbeam.ledger.remote.segment import Segment, encode_segment
from ledgerbeam.ledger.remote.sink import RemoteSink
from tests.ledger.builders import ONE, TWO, failure_of, leaf_of, leaves_of_split, mark_of, output_of, plain
from tests.ledger.remote.test_store import Hosts
from tests.ledger.stores import fold, folded, picture, replaces, superseded


def test_a_run_cannot_begin_for_a_job_that_lost_the_ledger(hosts: Hosts) -> None:
    one, two = hosts.store(), hosts.store()
    one.open_job(ONE)
    two.open_job(TWO, "restart")
    with pytest.raises(JobMismatchError):
        one.begin_run({})


def test_a_job_that_was_restarted_and_taken_back_records_again(hosts: Hosts) -> None:
    store = hosts.launcher(runs=0)
    store.open_job(TWO, "restart")
    store.open_job(ONE, "accept")
    run = store.begin_run({})
    store.register([plain()])
    RemoteSink(hosts.objects, job=ONE.fingerprint, run=run).commit([leaf_of(plain())])
    assert all(hosts.store().completed_mask([plain().id]))


def test_hosts_agree_on_a_source_that_has_changed_since_a_restart(hosts: Hosts) -> None:
    """One that has folded nothing from before cannot know that it changed, so none says so."""
    store = hosts.launcher(plain(), runs=0)
    store.open_job(TWO, "restart")
    store.register([plain(version="2")])
    assert picture(hosts.store()) == picture(store)
    assert replaces(store, plain(version="2")) == [False]


def test_how_a_run_before_a_restart_ended_is_known_to_new_hosts(hosts: Hosts) -> None:
    store = hosts.launcher(runs=0)
    store.end_run(store.begin_run({}), "done")
    store.open_job(TWO, "restart")
    assert picture(hosts.store()) == picture(store)


def test_what_a_writer_counts_is_what_others_count(hosts: Hosts) -> None:
    launcher, user = hosts.store(), hosts.store()
    launcher.open_job(ONE)
    launcher.begin_run({})
    launcher.register([plain()])
    user.forget("*")
    launcher.refresh()
    mark = mark_of(plain())
    launcher.record_deaths([mark])
    launcher.commit([leaf_of(plain())])
    assert picture(hosts.store()) == picture(launcher)
    assert launcher.pending(plain().id) == 1


def test_an_older_snapshot_does_not_take_back_how_a_run_ended(hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> None:
    launcher, host = hosts.store(), hosts.store()
    launcher.open_job(ONE)
    run = launcher.begin_run({})
    launcher.register([plain()])
    compactor = hosts.store()
    monkeypatch.setattr(compactor._objects, "delete", lambda _: None)
    launcher.end_run(run, "done")
    host.refresh()
    compact(compactor)
    host.refresh()
    assert host.runs()[0]["outcome"] == "done"


def test_a_compaction_that_is_overtaken_leaves_no_leaf_out(hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> None:
    writer, other, late = hosts.store(), hosts.store(), hosts.store()
    writer.open_job(ONE)
    writer.register([plain()])
    writer.commit(leaves_of_split(plain(), 2)[:1])
    compact(other)
    writer.register([plain("b")])
    real = compaction._parts_of
    calls: list[int] = []

    def overtaken(objects: object, manifests: object) -> dict[str, str]:
        parts = real(objects, manifests)  # type: ignore[arg-type]
        if not calls:
            calls.append(1)
            compact(other)
            writer.register([plain("c")])
        return parts

    monkeypatch.setattr(compaction, "_parts_of", overtaken)
    assert compact(late).replaced > 0
    assert hosts.store().pending(plain().id) == 1
    assert hosts.store().totals().tasks == 1


@pytest.mark.parametrize(
    ("seen", "gone"),
    [
        (Segment(3, 30.0, sources=[plain()]), True),
        (Segment(3, 30.0, back=[plain().id]), True),
        (Segment(7, 20.0, back=[plain().id]), False),
        (Segment(7, 20.0, gone=[]), False),
        (Segment(3, 30.0, gone=[]), True),
    ],
)
@pytest.mark.parametrize("listed_first", [True, False])
def test_the_newest_word_tells_what_is_gone(tmp_path: Path, seen: Segment, gone: bool, listed_first: bool) -> None:
    listing = Segment(5, 25.0, gone=[plain().id])
    store = folded(tmp_path / "host", *([listing, seen] if listed_first else [seen, listing]))
    assert store.status()["gone"] == gone
    assert [row.state for row in store.sources()] == ["gone" if gone else "open"]
    store.close()


@pytest.mark.parametrize(
    ("made", "gone"),
    [
        (
            [
                Segment(8, 1.0, back=[plain().id]),
                Segment(6, 1.0, back=[plain().id]),
                Segment(7, 1.0, gone=[plain().id]),
            ],
            False,
        ),
        (
            [
                Segment(8, 1.0, back=[plain().id]),
                Segment(6, 1.0, back=[plain().id]),
                Segment(9, 1.0, gone=[plain().id]),
            ],
            True,
        ),
        ([Segment(8, 1.0, sources=[plain("new")]), Segment(7, 1.0, gone=[plain("new").id])], False),
        ([Segment(8, 1.0, back=[plain("unknown").id]), Segment(7, 1.0, gone=[plain("unknown").id])], False),
    ],
)
def test_the_last_to_say_back_or_gone_is_right_in_any_order(tmp_path: Path, made: list[Segment], gone: bool) -> None:
    for number, order in enumerate(permutations(made)):
        store = folded(tmp_path / f"{number}", *order)
        assert store.status()["gone"] == gone
        assert store.source_count() == 1 + any(segment.sources for segment in made)
        store.close()


def listed(number: int, *sources: Source) -> Segment:
    return Segment(number, 10.0 * number, sources=sources)


@pytest.mark.parametrize(
    "made",
    [
        [
            listed(5, Source.pack([plain("a", "2"), plain("b")])),
            listed(6, plain("b", "3")),
            listed(3, plain()),
        ],
        [listed(4, plain("a", "2")), listed(6, plain("a", "3")), listed(5, plain())],
        [listed(3, Source.pack([plain(), plain("b")])), listed(5, plain("a", "2")), listed(4, plain("b"))],
        [
            listed(3, Source.pack([plain("a", "2"), plain("b")])),
            listed(5, Source.pack([plain("b", "2"), plain("c")])),
            listed(4, plain("b")),
            listed(6, plain("a", "4")),
        ],
    ],
)
def test_registrations_come_to_the_same_in_any_order(tmp_path: Path, made: list[Segment]) -> None:
    """All of them begin with that of `plain()` as number 1."""
    pictures = []
    for number, order in enumerate(permutations(made)):
        store = folded(tmp_path / f"{number}", *order)
        pictures.append(picture(store))
        store.close()
    assert all(found == pictures[0] for found in pictures)


def test_a_pack_that_comes_late_replaces_what_it_would_have_replaced(hosts: Hosts) -> None:
    old, pack, new = plain("b"), Source.pack([plain("a"), plain("b")]), plain("a", "2")
    stores = [hosts.store() for _ in range(3)]
    stores[0].open_job(ONE)
    for store in stores:
        store.begin_run({})
    stores[0].register([old])
    stores[2].register([new])
    seen = hosts.store()
    stores[1].register([pack])
    seen.refresh()
    assert picture(seen) == picture(hosts.store())
    assert [row.url for row in seen.sources()] == [new.url]


@pytest.mark.parametrize(
    "said",
    [
        {"leaves": [leaf_of(plain())]},
        {"failures": [failure_of(plain())]},
        {"deaths": [mark_of(plain())]},
        {"back": [plain().id]},
        {"gone": [plain().id]},
    ],
    ids=", ".join,
)
def test_whatever_is_said_of_a_source_waits_for_its_registration(store: LmdbStore, said: dict[str, Any]) -> None:
    segment, registration = Segment(2, 2.0, **said), Segment(1, 1.0, sources=[plain()])
    seen = []

    def change(txn: Transaction) -> None:
        seen.append(sidecar.lacks_sources(txn, segment))
        sidecar.fold_segment(txn, "registration", registration)
        seen.append(sidecar.lacks_sources(txn, segment))

    store._write(change)
    assert seen == [True, False]


def test_a_source_that_two_launchers_bring_back_counts_from_the_first_of_them(hosts: Hosts) -> None:
    old, new = plain(), plain(version="2")
    for source in (old, new):  # the source changes
        hosts.launcher(source)
    first, second, reader = hosts.store(), hosts.store(), hosts.store()
    runs = []
    for launcher in (first, second):
        launcher.open_job(ONE)
        runs.append(launcher.begin_run({}))
    second.register([old])  # and back
    reader.refresh()
    first.register([old])
    for run, leaf in zip(runs, leaves_of_split(old, 2), strict=True):
        RemoteSink(hosts.objects, job=ONE.fingerprint, run=run).commit([leaf])
    reader.refresh()
    assert all(reader.completed_mask([old.id]))
    assert picture(hosts.store()) == picture(reader)


def test_an_object_that_is_folded_twice_counts_once(hosts: Hosts) -> None:
    store = hosts.launcher()
    failed = Segment(1, 1.0, sources=[plain(), plain("b")], failures=[failure_of(plain())])
    forget = Control(2, "forget", 1.0, "t", sources=[plain("b").id])
    fold(store, failed, forget, Segment(2, 1.0, leaves=[leaf_of(plain("b"))]), failed, forget)
    assert [row.attempts for row in store.failures()] == [1]
    assert store.completed_count() == 1


@pytest.mark.parametrize(
    ("at", "of_snapshot", "is_over"), [(9.0, False, True), (1.0, False, False), (9.0, True, False)]
)
@pytest.mark.parametrize("leaf_first", [True, False])
def test_a_fan_out_has_not_failed_if_a_later_task_got_below(
    hosts: Hosts, at: float, of_snapshot: bool, is_over: bool, leaf_first: bool
) -> None:
    """Other parts of a snapshot have the times at which its leaves were recorded."""
    store = hosts.store()
    failed = Segment(1, 5.0, failures=[failure_of(plain(), ((0, 2),))])
    below = Segment(1, at, leaves=[leaf_of(plain(), ((0, 2), (0, 2)))])
    made = [below, failed] if leaf_first else [failed, below]
    fold(store, Segment(1, 1.0, sources=[plain()]), *made, of_snapshot=of_snapshot)
    assert len(list(store.failures())) == (not is_over)


@pytest.mark.parametrize(("number", "is_left"), [(4, True), (5, False)])
def test_who_deletes_what_was_forgotten_has_seen_that_it_was(hosts: Hosts, number: int, is_left: bool) -> None:
    store = hosts.store()
    done = Segment(1, 1.0, sources=[plain()], leaves=[leaf_of(plain())])
    forget = Control(5, "forget", 1.0, "t", sources=[plain().id])
    names = [output.name for output in leaf_of(plain()).outputs]
    fold(store, done, forget, Segment(number, 1.0, dropped=names))
    assert superseded(store) == names * is_left


def test_what_comes_late_of_a_former_job_is_superseded_unless_it_was_deleted(hosts: Hosts) -> None:
    store = hosts.launcher(runs=0)
    run = store.begin_run({})
    store.open_job(TWO, "restart")
    store.begin_run({})
    store.register([plain()])
    source = plain().id.hex()
    state = {
        "complete": [[source, 1, [1] * 5, [["complete", 1, "sum", 1, 0]]]],
        "superseded": [[source, "known", 1]],
        "durations": [[1, 1]],
    }
    leaves = [Leaf(plain().id, (), "published", (Output("late", 1, "x", 1), Output("swept", 1, "x", 1)))]
    late = [
        Segment(1, 1.0, leaves=leaves, failures=[failure_of(plain())], runs={run: {"outcome": "late"}}),
        Segment(1, 1.0, state=state, sources=[plain("other")], gone=[plain().id]),
        Segment(1, 1.0, dropped=["swept"]),
    ]
    fold(store, *late)
    assert superseded(store) == ["complete", "known", "late"]
    assert store.status()["sources"] == {"complete": 0, "open": 1, "failed": 0}
    assert (store.status()["gone"], store.durations(), store.runs()[0]["outcome"]) == (0, {}, "late")
    fold(store, Segment(2, 1.0, leaves=[leaf_of(plain())], dropped=["late"]))
    assert (superseded(store), store.completed_count()) == (["complete", "known"], 1)


def test_what_a_leaf_that_does_not_count_had_published_is_superseded_with_its_number(hosts: Hosts) -> None:
    store = hosts.store()
    old, new = plain(version="1"), plain(version="2")
    published = Leaf(old.id, (), "published", (Output("old", 1, "x", 1),))
    made = [Segment(1, 1.0, sources=[old]), Segment(3, 1.0, sources=[new]), Segment(2, 1.0, leaves=[published])]
    fold(store, *made)
    assert superseded(store) == ["old"]
    for number, left in ((1, ["old"]), (2, [])):
        fold(store, Segment(number, 1.0, dropped=["old"]))
        assert superseded(store) == left


NUMBER = st.integers(0, 6)


@given(st.lists(st.tuples(NUMBER, NUMBER, NUMBER), max_size=4).flatmap(st.permutations))
@example([(0, 0, 0), (0, 0, 2), (0, 0, 1), (1, 0, 0)])  # the first of two registrations is ruled out last
def test_cutoffs_merge_in_any_order(parts: list[tuple[int, int, int]]) -> None:
    cutoffs = [Cutoff(replaced, forgotten, (back,) if back > replaced else ()) for replaced, forgotten, back in parts]
    merged = functools.reduce(Cutoff.merged, cutoffs, Cutoff())
    assert merged == functools.reduce(Cutoff.merged, reversed([*cutoffs, *cutoffs]), Cutoff())
    replaced = max((replaced for replaced, _, _ in parts), default=0)
    tenure = min((back for *_, back in parts if back > replaced), default=replaced)
    assert merged.least == max([tenure, *(forgotten for _, forgotten, _ in parts)])
    assert Cutoff.of(merged.numbers) == merged


@pytest.mark.parametrize(
    ("late", "least"), [(Cutoff(5, comebacks=(7,)), 6), (Cutoff(forgotten=5), 5)], ids=["replaced", "forgotten"]
)
def test_what_comes_in_late_rules_registrations_out_as_if_it_had_been_known(late: Cutoff, least: int) -> None:
    known = Cutoff(3, comebacks=(4,))
    assert known.registered(6).merged(late).least == known.merged(late).registered(6).least == least


NUMBERS = 9
SPLIT = (((0, 2),), ((1, 2),))


def registered(number: int, version: int) -> Segment:
    return Segment(number, float(number), sources=[plain(version=f"{version}")])


def done(number: int, version: int, place: int) -> Segment:
    return Segment(number, float(number), leaves=[leaves_of_split(plain(version=f"{version}"), 2)[place]])


def failed(number: int, place: int) -> Segment:
    return Segment(number, float(number), failures=[failure_of(plain(), SPLIT[place])])


def died(number: int, place: int) -> Segment:
    mark = mark_of(plain(), SPLIT[place])
    return Segment(number, float(number), deaths=[mark] * MAX_ATTEMPTS)


def expected(made: Sequence[Segment]) -> dict[bytes, set[Lineage]]:
    """Return the registered sources and their finished tasks: registrations in the order of numbers, tasks as a set."""
    owner: bytes | None = None
    counts_from: dict[bytes, int] = {}
    replaced: set[bytes] = set()
    for segment in sorted(made, key=lambda segment: segment.number):
        for source in segment.sources:
            if source.id in replaced:
                counts_from[source.id] = segment.number
            replaced = (replaced | ({owner} if owner is not None else set())) - {source.id}
            owner = source.id
    counting = {
        leaf.lineage
        for segment in made
        for leaf in segment.leaves
        if leaf.source_id == owner and segment.number >= counts_from.get(owner, 0)
    }
    return {} if owner is None else {owner: counting}


def found(store: LmdbStore) -> dict[bytes, set[Lineage]]:
    """Return the registered sources and their finished tasks."""
    with store._open().read() as txn:
        registered = [source for source, _ in txn.scan(SOURCES, b"")]
        complete = {source for source, _ in txn.scan(COMPLETED, b"")}
    names = {source: {row.output.name for row in store.outputs() if row.source_id == source} for source in registered}
    assert all((len(names[source]) == 2) == (source in complete) for source in registered)
    return {source: {at for at in SPLIT if output_of(plain(), at).name in names[source]} for source in registered}


def fold_all(store: LmdbStore, made: Sequence[Segment], *controls: Control) -> None:
    """Let an emptied sidecar fold controls, then segments in this order, and then those that are due again."""

    def change(txn: Transaction) -> None:
        for table in set(TABLES) - {META}:
            txn.clear(table)
        txn.delete(META, KEY_TOTALS)
        txn.put(META, KEY_NUMBER, b"%d" % max(segment.number for segment in made))
        for control in controls:
            sidecar.fold_control(txn, control.token, control, "here")
        for place, segment in [*enumerate(made)] * 2:
            sidecar.fold_segment(txn, segment_name(segment, segment.number, "host", place), segment)

    store._write(change)


def has_sources_first(order: Sequence[Segment]) -> bool:
    """Return whether no leaf of a source comes before all its registrations, and no failure before one of them.

    Such a leaf would wait. A failure of a source that a known source replaced is recorded when it fails again.
    """
    known: set[bytes] = set()
    for place, segment in enumerate(order):
        known.update(source.id for source in segment.sources)
        later = {source.id for other in order[place:] for source in other.sources}
        if any(leaf.source_id not in known for leaf in segment.leaves):
            return False
        troubled = {failure.source_id for failure in segment.failures} | {mark.source_id for mark in segment.deaths}
        if troubled & later:
            return False
    return True


@pytest.mark.parametrize(
    "made",
    [
        [registered(1, 1), registered(2, 2), registered(3, 1), done(1, 1, 0), done(3, 1, 1)],
        [registered(1, 1), registered(2, 2), registered(3, 1), done(1, 1, 0), done(2, 1, 1)],
        [registered(1, 1), registered(2, 2), registered(3, 1), done(4, 1, 0), done(5, 1, 1)],
        [registered(1, 1), registered(2, 2), registered(3, 1), done(1, 1, 0), done(3, 1, 0)],
        [registered(1, 1), registered(2, 2), registered(3, 1), registered(4, 2), done(2, 2, 0)],
        [registered(1, 1), registered(2, 2), registered(3, 3), registered(4, 1), done(3, 1, 0)],
        [registered(1, 1), registered(3, 1), registered(4, 2), registered(5, 1), done(4, 1, 0)],
        [registered(1, 1), registered(2, 2), registered(3, 1), registered(5, 1), done(4, 1, 0)],
        [registered(1, 1), registered(2, 2), registered(3, 1), failed(2, 0), failed(3, 1)],
        [registered(1, 1), registered(2, 2), registered(3, 1), died(2, 0), died(4, 1)],
    ],
)
def test_a_source_that_was_replaced_and_is_back_is_the_same_in_any_order(store: LmdbStore, made: list[Segment]) -> None:
    pictures = []
    for order in filter(has_sources_first, permutations(made)):
        fold_all(store, order)
        assert found(store) == expected(made)
        pictures.append(picture(store))
    assert all(one == pictures[0] for one in pictures)


def test_a_leaf_that_is_due_again_counts_though_failures_of_its_source_were_forgotten_later(store: LmdbStore) -> None:
    made = [registered(1, 1), done(4, 1, 0), registered(3, 1), registered(2, 2)]
    forget = Control(5, "forget", 1.0, "t", sources=[plain().id], failures_only=True)
    fold_all(store, made, forget)
    assert found(store) == expected(made) == {plain().id: {SPLIT[0]}}


def test_a_death_after_a_comeback_counts_though_the_replacement_comes_in_late(store: LmdbStore) -> None:
    died_once = Segment(5, 5.0, deaths=[mark_of(plain(), SPLIT[0])])
    fold_all(store, [registered(1, 1), done(1, 1, 1), registered(4, 1), died_once, registered(2, 2)])
    assert store.attempts(plain().id) == {node_id(plain().id, SPLIT[0]): 1}
    assert found(store) == {plain().id: set()}


@pytest.mark.parametrize("at", [3, 4])
def test_leaves_that_contradict_each_other_do_so_too_when_one_of_them_is_due_again(store: LmdbStore, at: int) -> None:
    """It is folded for the first time beside nothing, and again beside the other."""
    other = Segment(at, float(at), leaves=[leaf_of(plain(), ((0, 2),), "other content")])
    fold_all(store, [registered(1, 1), registered(2, 2), done(at, 1, 0), registered(3, 1), other])
    assert [row.node for row in store.failures()] == [node_id(plain().id, SPLIT[0])]
    assert store.status()["sources"]["complete"] == 0


@pytest.mark.parametrize(
    ("before", "restart", "after", "counts"),
    [
        ([registered(1, 1), done(4, 1, 0), registered(3, 1), registered(2, 2)], 5, [registered(5, 1)], False),
        ([], 4, [registered(4, 1), done(4, 1, 0), registered(4, 2), registered(4, 1)], True),
    ],
    ids=["of the former job", "of the job that restarted"],
)
def test_a_leaf_due_again_counts_for_its_job(
    store: LmdbStore, before: list[Segment], restart: int, after: list[Segment], counts: bool
) -> None:
    """Another host may restart the job before a registration comes in, or before the fold that follows it."""
    made = [*before, *after]
    (leaf,) = (place for place, segment in enumerate(made) if segment.leaves)

    def name_of(place: int) -> str:
        return segment_name(made[place], made[place].number, "host", place)

    def fold(txn: Transaction, *places: int) -> None:
        for place in places:
            sidecar.fold_segment(txn, name_of(place), made[place])

    def change(txn: Transaction) -> None:
        sidecar.fold_control(txn, "former", Control(1, "accept", 1.0, "t", job=Job("map", {"to": "a"})), "here")
        txn.put(META, KEY_NUMBER, b"4")
        fold(txn, *range(len(before)))
        sidecar.fold_control(txn, "new", Control(restart, "restart", 5.0, "t", job=Job("map", {"to": "b"})), "here")
        fold(txn, *range(len(before), len(made)))
        assert are_leaves_due(txn, name_of(leaf))
        fold(txn, leaf)

    store._write(change)
    assert found(store) == {plain(version="1").id: {SPLIT[0]} if counts else set()}
    assert store.status()["tasks"]["done"] == counts


def test_a_source_that_is_registered_again_alone_replaces_nothing(store: LmdbStore) -> None:
    fold_all(store, [registered(1, 1), registered(3, 1)])
    assert replaces(store, plain(version="1")) == [False]


def test_a_source_keeps_its_last_replacement_though_a_snapshot_tells_of_an_earlier_one(store: LmdbStore) -> None:
    cutoff = [5, 0, 7]
    told = Segment(12, 12.0, state={"cutoffs": [[plain().id.hex(), cutoff, cutoff]]})
    for order in permutations([registered(9, 2), registered(11, 1), told]):
        fold_all(store, [registered(1, 1), *order])
        with store._open().read() as txn:
            fields = read_source_fields(txn.get(SOURCES, plain().id) or b"")
        assert (numbers_of(fields), fields["replaced"]) == ([11], 9)


def test_the_time_of_a_leaf_that_is_due_again_counts_once(store: LmdbStore) -> None:
    fold_all(store, [registered(1, 1), done(3, 1, 0), registered(3, 1), registered(2, 2)])
    assert sum(store.durations().values()) == 1
    assert [row.totals.tasks for row in store.history()] == [1]


@pytest.mark.parametrize(("at", "has_failed"), [(2.0, False), (4.0, True)])
def test_only_what_came_after_a_leaf_due_again_has_failed_above(store: LmdbStore, at: float, has_failed: bool) -> None:
    fan_out = ((0, 2),)
    below = Segment(3, 3.0, leaves=[leaf_of(plain(), (*fan_out, (0, 2)))])
    failed = Segment(3, at, failures=[failure_of(plain(), fan_out)])
    fold_all(store, [registered(1, 1), below, registered(3, 1), registered(2, 2), failed])
    assert [row.node for row in store.failures()] == ([node_id(plain().id, fan_out)] if has_failed else [])


def test_what_a_snapshot_completed_stays_so_when_it_counts_from_an_earlier_registration(store: LmdbStore) -> None:
    complete = {"complete": [[plain().id.hex(), 1, [1, 1, 1, 0, 1], []]], "tenures": [[plain().id.hex(), 7]]}
    made = [registered(1, 1), registered(3, 2), registered(7, 1), Segment(9, 9.0, state=complete)]
    fold_all(store, [*made, registered(5, 1)])
    assert store.completed_mask([plain().id]) == [True]


def test_what_a_snapshot_completed_is_open_if_it_had_not_seen_the_comeback(store: LmdbStore) -> None:
    """All with one number: the source changed and was as before while it was listed."""
    state = Segment(1, 1.0, state={"complete": [[plain().id.hex(), 1, [1, 1, 1, 0, 1], []]]})
    for made, is_complete in ([], True), ([registered(1, 2), registered(1, 1)], False):
        fold_all(store, [registered(1, 1), *made, state])
        assert store.completed_mask([plain().id]) == [is_complete]


def histories() -> st.SearchStrategy[list[Segment]]:
    numbers = st.lists(st.integers(1, NUMBERS - 1), min_size=2, max_size=5, unique=True)
    entries = numbers.flatmap(
        lambda chosen: st.tuples(*(st.builds(registered, st.just(number), st.integers(1, 3)) for number in chosen))
    )
    leaves = st.lists(st.builds(done, st.integers(1, NUMBERS), st.integers(1, 3), st.integers(0, 1)), max_size=3)
    return st.tuples(entries, leaves).map(lambda both: [*both[0], *both[1]]).flatmap(st.permutations)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(made=histories())
@example(made=[registered(1, 1), registered(3, 1), registered(2, 2)])
@example(made=[registered(3, 1), registered(2, 2), registered(1, 1), done(1, 1, 0), done(2, 1, 1)])
def test_what_is_registered_and_done_is_what_the_numbers_say(store: LmdbStore, made: list[Segment]) -> None:
    known = {source.id for segment in made for source in segment.sources}
    order = [segment for segment in made if all(leaf.source_id in known for leaf in segment.leaves)]
    if not has_sources_first(order):
        order.sort(key=lambda segment: bool(segment.leaves))
    fold_all(store, order)
    assert found(store) == expected(order)


WRITERS = count()
VERSIONS = {1: plain(version="1"), 2: plain(version="2")}


def put(hosts: Hosts, segment: Segment) -> None:
    """Create a segment as its writer would."""
    name = segment_name(segment, segment.number, f"writer-{next(WRITERS)}", 1)
    assert hosts.objects.create(name, encode_segment(segment))


def test_what_counts_again_by_a_registration_that_comes_in_late_does_so_with_the_next_refresh(hosts: Hosts) -> None:
    store = hosts.launcher(runs=3)
    for segment in (registered(1, 1), registered(2, 2), done(3, 1, 0)):
        put(hosts, segment)
    store.refresh()
    assert found(store) == {VERSIONS[2].id: set()}
    put(hosts, registered(3, 1))
    store.refresh()
    assert found(store) == {VERSIONS[1].id: {SPLIT[0]}}


@pytest.mark.parametrize("order", list(permutations((1, 3, 2))))
@pytest.mark.parametrize(("compacted", "leaves"), [(2, (3, 1)), (2, (1, 3)), (3, (3, 1)), (4, (1, 3))])
def test_a_snapshot_without_a_replacement_keeps_it(
    hosts: Hosts, order: Sequence[int], compacted: int, leaves: Sequence[int]
) -> None:
    """Another host compacts after so many objects: of a source that is complete by then it does not say what counts."""
    store, compactor = hosts.store(), hosts.store()
    for _ in range(3):
        store.begin_run({})
    made = [registered(number, 2 if number == 2 else 1) for number in order]
    place = [segment.sources[0].id for segment in made].index(VERSIONS[1].id) + 1
    made[place:place] = [done(number, 1, int(number == 3)) for number in leaves]
    put(hosts, Segment(3, 3.0, sources=[plain("begun")]))
    put(hosts, Segment(3, 3.0, leaves=leaves_of_split(plain("begun"), 2)[:1]))
    for created, segment in enumerate(made, 1):
        put(hosts, segment)
        store.refresh()
        if created == compacted:
            compact(compactor)
    new = hosts.store()
    store.refresh()
    compactor.refresh()
    assert picture(new) == picture(store) == picture(compactor)
    counting = {SPLIT[1]} if compacted == 2 else found(store)[VERSIONS[1].id] & {SPLIT[1]}
    assert found(store) == {VERSIONS[1].id: counting, plain("begun").id: set()}
    put(hosts, done(3, 1, 0))
    put(hosts, done(3, 1, 1))
    for host in (store, new, compactor, hosts.store()):
        host.refresh()
        assert all(host.completed_mask([VERSIONS[1].id]))
    compact(compactor)
    assert picture(hosts.store()) == picture(store)


def test_what_a_launcher_replaces_late_is_not_complete_by_a_snapshot_that_had_not_seen_it(hosts: Hosts) -> None:
    """The launcher has seen neither the commits nor the new registration of the source."""
    store, late = hosts.store(), hosts.store()
    for _ in range(3):
        store.begin_run({})
    put(hosts, registered(1, 1))
    late.refresh()
    for segment in (registered(3, 1), Segment(1, 1.0, leaves=[leaf_of(VERSIONS[1])])):
        put(hosts, segment)
    compact(store)
    assert store.completed_count() == 1
    late._run = "000002"
    late.register([VERSIONS[2]])
    for host in (late, store, hosts.store()):
        host.refresh()
        assert [row.source_id for row in host.sources()] == [VERSIONS[1].id]
        assert host.completed_count() == 0


@pytest.fixture(autouse=True)
def _as_it_was() -> Iterator[None]:
    gc.enable()
    yield
    gc.enable()


def test_it_is_off_until_the_last_of_several_has_ended() -> None:
    entered, leave = threading.Event(), threading.Event()

    def other() -> None:
        with collector_paused():
            entered.set()
            leave.wait()

    thread = threading.Thread(target=other)
    with collector_paused():
        thread.start()
        entered.wait()
    assert not gc.isenabled()
    leave.set()
    thread.join()
    assert gc.isenabled()


def test_who_has_switched_it_off_finds_it_off() -> None:
    gc.disable()
    with collector_paused(), collector_paused():
        assert not gc.isenabled()
    assert not gc.isenabled()


def test_an_error_ends_the_pause() -> None:
    with pytest.raises(ValueError, match="what is read"), collector_paused():
        raise ValueError("what is read")
    assert gc.isenabled()


def test_a_process_that_is_forked_after_a_pause_leaves_it_off_that_was_switched_off_since() -> None:
    with collector_paused():
        pass
    gc.disable()
    child = os.fork()
    if child == 0:
        os._exit(int(gc.isenabled()))
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0


@pytest.mark.parametrize("was_on", [True, False])
def test_a_process_that_is_forked_meanwhile_has_it_as_it_was(was_on: bool) -> None:
    if not was_on:
        gc.disable()
    with collector_paused():
        child = os.fork()
        if child == 0:
            found = gc.isenabled()
            with collector_paused():
                off = not gc.isenabled()
            os._exit(0 if found == was_on and off and gc.isenabled() == was_on else 1)
        _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
