"""Late registrations: every host reaches the state that the numbers define, in any order."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Iterator, Sequence
from itertools import count, permutations

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from ledgerbeam.ledger.lmdb.sources import numbers_of, read_source_fields
from ledgerbeam.ledger.lmdb.store import LmdbStore
from ledgerbeam.ledger.lmdb.tables import COMPLETED, KEY_TOTALS, META, SOURCES, TABLES, Transaction
from ledgerbeam.ledger.model.identity import Lineage, node_id
from ledgerbeam.ledger.model.job import Job
from ledgerbeam.ledger.model.store import MAX_ATTEMPTS
from ledgerbeam.ledger.remote import apply as sidecar
from ledgerbeam.ledger.remote.compaction import compact
from ledgerbeam.ledger.remote.controls import Control
from ledgerbeam.ledger.remote.registration import KEY_NUMBER, are_leaves_due
from ledgerbeam.ledger.remote.replay import _Pauses, collector_paused, segment_name
from ledgerbeam.ledger.remote.segment import Segment, encode_segment
from tests.ledger.builders import failure_of, leaf_of, leaves_of_split, mark_of, output_of, plain
from tests.ledger.remote.test_store import Hosts
from tests.ledger.stores import picture, replaces

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


def fold(store: LmdbStore, made: Sequence[Segment], *controls: Control) -> None:
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
        fold(store, order)
        assert found(store) == expected(made)
        pictures.append(picture(store))
    assert all(one == pictures[0] for one in pictures)


def test_a_leaf_that_is_due_again_counts_though_failures_of_its_source_were_forgotten_later(store: LmdbStore) -> None:
    made = [registered(1, 1), done(4, 1, 0), registered(3, 1), registered(2, 2)]
    forget = Control(5, "forget", 1.0, "t", sources=[plain().id], failures_only=True)
    fold(store, made, forget)
    assert found(store) == expected(made) == {plain().id: {SPLIT[0]}}


def test_a_death_after_a_comeback_counts_though_the_replacement_comes_in_late(store: LmdbStore) -> None:
    died_once = Segment(5, 5.0, deaths=[mark_of(plain(), SPLIT[0])])
    fold(store, [registered(1, 1), done(1, 1, 1), registered(4, 1), died_once, registered(2, 2)])
    assert store.attempts(plain().id) == {node_id(plain().id, SPLIT[0]): 1}
    assert found(store) == {plain().id: set()}


@pytest.mark.parametrize("at", [3, 4])
def test_leaves_that_contradict_each_other_do_so_too_when_one_of_them_is_due_again(store: LmdbStore, at: int) -> None:
    """It is folded for the first time beside nothing, and again beside the other."""
    other = Segment(at, float(at), leaves=[leaf_of(plain(), ((0, 2),), "other content")])
    fold(store, [registered(1, 1), registered(2, 2), done(at, 1, 0), registered(3, 1), other])
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
    fold(store, [registered(1, 1), registered(3, 1)])
    assert replaces(store, plain(version="1")) == [False]


def test_a_source_keeps_its_last_replacement_though_a_snapshot_tells_of_an_earlier_one(store: LmdbStore) -> None:
    cutoff = [5, 0, 7]
    told = Segment(12, 12.0, state={"cutoffs": [[plain().id.hex(), cutoff, cutoff]]})
    for order in permutations([registered(9, 2), registered(11, 1), told]):
        fold(store, [registered(1, 1), *order])
        with store._open().read() as txn:
            fields = read_source_fields(txn.get(SOURCES, plain().id) or b"")
        assert (numbers_of(fields), fields["replaced"]) == ([11], 9)


def test_the_time_of_a_leaf_that_is_due_again_counts_once(store: LmdbStore) -> None:
    fold(store, [registered(1, 1), done(3, 1, 0), registered(3, 1), registered(2, 2)])
    assert sum(store.durations().values()) == 1
    assert [row.totals.tasks for row in store.history()] == [1]


@pytest.mark.parametrize(("at", "has_failed"), [(2.0, False), (4.0, True)])
def test_only_what_came_after_a_leaf_due_again_has_failed_above(store: LmdbStore, at: float, has_failed: bool) -> None:
    fan_out = ((0, 2),)
    below = Segment(3, 3.0, leaves=[leaf_of(plain(), (*fan_out, (0, 2)))])
    failed = Segment(3, at, failures=[failure_of(plain(), fan_out)])
    fold(store, [registered(1, 1), below, registered(3, 1), registered(2, 2), failed])
    assert [row.node for row in store.failures()] == ([node_id(plain().id, fan_out)] if has_failed else [])


def test_what_a_snapshot_completed_stays_so_when_it_counts_from_an_earlier_registration(store: LmdbStore) -> None:
    complete = {"complete": [[plain().id.hex(), 1, [1, 1, 1, 0, 1], []]], "tenures": [[plain().id.hex(), 7]]}
    made = [registered(1, 1), registered(3, 2), registered(7, 1), Segment(9, 9.0, state=complete)]
    fold(store, [*made, registered(5, 1)])
    assert store.completed_mask([plain().id]) == [True]


def test_what_a_snapshot_completed_is_open_if_it_had_not_seen_the_comeback(store: LmdbStore) -> None:
    """All with one number: the source changed and was as before while it was listed."""
    state = Segment(1, 1.0, state={"complete": [[plain().id.hex(), 1, [1, 1, 1, 0, 1], []]]})
    for made, is_complete in ([], True), ([registered(1, 2), registered(1, 1)], False):
        fold(store, [registered(1, 1), *made, state])
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
    fold(store, order)
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


def test_a_process_that_is_forked_waits_for_no_thread_of_its_parent() -> None:
    pauses = _Pauses()
    pauses.begin()
    held = pauses._lock
    with held:  # by a thread that is not in the other process
        pauses.forget_parent()
        assert gc.isenabled()
        pauses.begin()
        assert not gc.isenabled()
        pauses.end()
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
