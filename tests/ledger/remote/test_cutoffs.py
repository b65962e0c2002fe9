"""Late objects of a remote ledger: they count, or not, on every host and in any order."""

from __future__ import annotations

from collections.abc import Callable
from itertools import permutations
from typing import Any

import pytest

from ledgerbeam.errors import NonDeterministicTaskError
from ledgerbeam.io.storage.objects import ObjectFolder
from ledgerbeam.ledger.lmdb.tables import APPLIED, CUTOFFS, FAILED, PENDING, Transaction
from ledgerbeam.ledger.model.identity import node_id
from ledgerbeam.ledger.model.rows import Failure, Leaf, Output
from ledgerbeam.ledger.model.store import MAX_ATTEMPTS
from ledgerbeam.ledger.model.task import Source
from ledgerbeam.ledger.remote import apply as sidecar
from ledgerbeam.ledger.remote.compaction import compact
from ledgerbeam.ledger.remote.registration import (
    CONTRADICTION,
    Cutoff,
    contradict,
    hold_open,
    merge_cutoffs,
    note_registration,
    read_cutoffs,
)
from ledgerbeam.ledger.remote.replay import segment_name
from ledgerbeam.ledger.remote.segment import Segment, encode_segment
from ledgerbeam.ledger.remote.sink import RemoteSink
from ledgerbeam.ledger.remote.store import RemoteStore
from tests.cases import each
from tests.ledger.builders import ONE, TWO, failure_of, filtered_leaf, leaf_of, leaves_of_split, mark_of, plain
from tests.ledger.remote.test_store import Hosts
from tests.ledger.stores import is_complete, numbered, picture, registered, replaces, several, superseded


def put(hosts: Hosts, segment: Segment, writer: str = "hand") -> None:
    """Create a segment as a writer would that has seen `segment.number`."""
    name = segment_name(segment, segment.number, writer, 1)
    assert hosts.objects.create(name, encode_segment(segment))


class Passing(ObjectFolder):
    """Lists everything, except, at first, names that contain a text; counts the listings."""

    passed = "nothing"
    listings = 0

    def names(self, folder: str) -> list[str]:
        self.listings += 1
        return [name for name in super().names(folder) if self.passed not in name or self.listings > 1]


@pytest.fixture
def passing(hosts: Hosts) -> tuple[RemoteStore, Passing]:
    objects = Passing(hosts.objects.url)
    store = hosts.on(objects)
    store.open(create=True)
    objects.listings = 0
    return store, objects


def leaf(source: Source, number: int) -> Segment:
    return Segment(number, 1.0, leaves=[leaf_of(source)])


def failure(source: Source, number: int) -> Segment:
    return Segment(number, 1.0, failures=[failure_of(source)])


def deaths(source: Source, number: int) -> Segment:
    return Segment(number, 1.0, deaths=[mark_of(source)] * MAX_ATTEMPTS)


def replace_it(store: RemoteStore) -> None:
    store.begin_run({})
    store.register([plain(version="other")])


def replace_and_take_back(store: RemoteStore) -> None:
    replace_it(store)
    store.begin_run({})
    store.register([plain()])


CHANGES: dict[str, Callable[[RemoteStore], object]] = {
    "nothing": lambda store: None,
    "forget": lambda store: store.forget(plain().url),
    "forget failures": lambda store: store.forget(plain().url, failures_only=True),
    "replace": replace_it,
    "replace and take back": replace_and_take_back,
    "restart": lambda store: store.open_job(TWO, "restart"),
}


What = Callable[[Source, int], Segment]


@pytest.mark.parametrize("change", ["forget", "forget failures", "replace and take back"])
@pytest.mark.parametrize("what", [leaf, failure, deaths])
@pytest.mark.parametrize("is_late", [True, False])
def test_what_was_recorded_before_a_change_does_not_count_after_it(
    hosts: Hosts, change: str, what: What, is_late: bool
) -> None:
    store = hosts.launcher(plain())
    untouched = picture(store)
    CHANGES[change](store)
    numbers = len(hosts.objects.names("controls"))
    reader = hosts.store()
    put(hosts, what(plain(), numbers - 1 if is_late else numbers))
    late_counts = change == "forget failures" and what is leaf
    for host in (reader, hosts.store()):
        host.refresh()
        counted = host.status()["sources"] != untouched["sources"]
        assert counted == (late_counts or not is_late)


@pytest.mark.parametrize("change", ["forget", "replace and take back"])
def test_outputs_of_a_late_leaf_are_stale_once_its_source_is_complete(hosts: Hosts, change: str) -> None:
    store, source = hosts.launcher(plain()), plain()
    CHANGES[change](store)
    put(hosts, Segment(1, 1.0, leaves=[Leaf(source.id, (), "published", (Output("late", 1, "x", 1),))]))
    store.refresh()
    assert store.stale_outputs() == []
    store.begin_run({})
    store.commit([filtered_leaf(source)])
    for host in (store, hosts.store()):
        assert host.stale_outputs() == ["late"]


def test_what_a_worker_of_a_former_job_published_is_stale_and_what_one_of_this_job_records_counts(hosts: Hosts) -> None:
    store = hosts.launcher()
    source, late = several(store, "a", "late")
    store.open_job(TWO, "restart")
    cutoff = len(hosts.objects.names("controls"))
    store.begin_run({})
    store.register([source])
    put(hosts, leaf(late, cutoff - 1))
    put(hosts, Segment(cutoff, 1.0, leaves=[leaf_of(source)]), "at")
    for host in (store, hosts.store()):
        host.refresh()
        assert host.completed_count() == 1
        assert host.stale_outputs() == [output.name for output in leaf_of(late).outputs]


def test_only_a_restart_for_another_job_drops_what_was_recorded(hosts: Hosts) -> None:
    one, two = hosts.store(), hosts.store()
    one.open_job(ONE)
    run = one.begin_run({})
    source, _ = several(one, "a", "b")
    two.open_job(TWO, "accept")  # and no later job changes it back
    for sink in (RemoteSink(hosts.objects, run=run), RemoteSink(hosts.objects)):
        sink.commit([leaf_of(source)])
    two.refresh()
    assert two.completed_count() == 1
    assert picture(hosts.store()) == picture(two)


def test_the_newest_failure_of_a_task_is_told_whichever_comes_in_last(hosts: Hosts) -> None:
    store = hosts.launcher()
    source = registered(store)
    for at in (2.0, 1.0, 3.0):
        put(hosts, Segment(1, at, failures=[Failure(source.id, (), "task", "ValueError", f"at {at}")]), f"w{at}")
        store.refresh()
        (row,) = store.failures()
        assert row.error == f"at {max(2.0, at)}"
    assert row.attempts == 3
    assert [row.error for row in hosts.store().failures()] == ["at 3.0"]


# Listings


@pytest.mark.parametrize("order", [(1, 2), (2, 1)])
def test_the_newest_listing_says_what_is_gone(hosts: Hosts, order: tuple[int, int]) -> None:
    store, reader = hosts.store(), hosts.store()
    store.begin_run({})
    store.begin_run({})
    store.register([plain("a"), plain("b")])
    for number in order:
        put(hosts, Segment(number, 1.0, gone=[plain("b").id] if number == 2 else [plain("a").id]), f"w{number}")
        reader.refresh()
    for host in (reader, hosts.store()):
        assert [row.url for row in host.sources() if row.state == "gone"] == [plain("b").url]


def test_a_listing_says_nothing_of_sources_that_were_listed_by_a_later_run(hosts: Hosts) -> None:
    store = hosts.launcher(runs=3)
    new, back = plain("new"), plain("back")
    put(hosts, Segment(1, 1.0, sources=[back]), "one")
    put(hosts, Segment(3, 1.0, sources=[new]), "three")
    put(hosts, Segment(1, 1.0, gone=[back.id]), "gone")
    store.refresh()
    assert {row.url: row.state for row in store.sources()} == {back.url: "gone", new.url: "open"}
    put(hosts, Segment(3, 1.0, back=[back.id]), "back")
    store.refresh()
    put(hosts, Segment(2, 1.0, gone=[new.id, back.id]), "late")
    for host in (store, hosts.store()):
        host.refresh()
        assert [row.state for row in host.sources()] == ["open", "open"]


def test_who_lists_a_source_again_before_it_was_gone_does_not_bring_it_back(hosts: Hosts) -> None:
    store = hosts.launcher(runs=3)
    put(hosts, Segment(1, 1.0, sources=[plain()]), "one")
    put(hosts, Segment(3, 1.0, gone=[plain().id]), "gone")
    store.refresh()
    put(hosts, Segment(2, 1.0, back=[plain().id]), "back")
    for host in (store, hosts.store()):
        host.refresh()
        assert [row.state for row in host.sources()] == ["gone"]


@pytest.mark.parametrize("order", [(0, 1, 2), (0, 2, 1), (2, 0, 1), (2, 1, 0)])  # who says it is gone had seen it
@pytest.mark.parametrize(("again", "state"), [(2, "gone"), (4, "open")])
def test_sources_are_gone_or_not_in_any_order(hosts: Hosts, order: tuple[int, ...], again: int, state: str) -> None:
    hosts.launcher(runs=4)
    sources = [plain()]
    said = [Segment(1, 1.0, sources=sources), Segment(3, 1.0, gone=[plain().id]), Segment(again, 1.0, sources=sources)]
    reader = hosts.store()
    for place in order:
        put(hosts, said[place], f"w{place}")
        reader.refresh()
    for host in (reader, hosts.store()):
        assert [row.state for row in host.sources()] == [state]


def test_the_run_that_says_that_a_source_is_gone_may_list_it_again(hosts: Hosts) -> None:
    hosts.launcher()
    put(hosts, Segment(1, 1.0, sources=[plain()]), "one")
    put(hosts, Segment(1, 1.0, gone=[plain().id]), "two")
    reader = hosts.store()
    assert [row.state for row in reader.sources()] == ["gone"]
    put(hosts, Segment(1, 1.0, back=[plain().id]), "three")
    reader.refresh()
    assert [row.state for row in reader.sources()] == ["open"]
    put(hosts, Segment(1, 1.0, gone=[plain().id]), "four")
    reader.refresh()
    put(hosts, Segment(1, 1.0, sources=[plain()]), "five")
    reader.refresh()
    assert [row.state for row in reader.sources()] == ["open"]
    put(hosts, Segment(1, 1.0, gone=[]), "six")
    reader.refresh()
    assert reader.status()["gone"] == 0


@pytest.mark.parametrize("said", ["gone", "back"])
def test_a_listing_waits_for_the_registration(hosts: Hosts, passing: tuple[RemoteStore, Passing], said: str) -> None:
    hosts.launcher(runs=2)
    reader, objects = passing
    objects.passed = "s-first"
    put(hosts, Segment(1, 1.0, sources=[plain()]), "first")
    put(hosts, Segment(2, 1.0, gone=[plain().id]) if said == "gone" else Segment(2, 1.0, back=[plain().id]))
    reader.refresh()
    put(hosts, Segment(1, 1.0, gone=[plain().id]), "older")
    for host in (reader, hosts.store()):
        host.refresh()
        assert [row.state for row in host.sources()] == ["gone" if said == "gone" else "open"]


# Registrations


@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_the_registration_with_the_greatest_number_has_the_url(hosts: Hosts, order: tuple[int, ...]) -> None:
    hosts.launcher(runs=3)
    versions = [plain(version=str(n)) for n in range(3)]
    reader = hosts.store()
    for place in order:
        put(hosts, Segment(place + 1, 1.0, sources=[versions[place]]), f"w{place}")
        reader.refresh()
    late = [Segment(3, 1.0, leaves=[Leaf(v.id, (), "published", (Output(v.version, 1, "x", 1),))]) for v in versions]
    for place in (0, 1):
        put(hosts, late[place], f"late{place}")
    reader.refresh()
    assert [(row.source_id, row.state) for row in reader.sources()] == [(versions[2].id, "open")]
    assert reader.stale_outputs() == []
    assert replaces(reader, versions[2]) == [True]
    put(hosts, late[2], "late2")
    for host in (reader, hosts.store()):
        host.refresh()
        assert all(host.completed_mask([versions[2].id]))
        assert host.stale_outputs() == ["0", "1"]


def test_of_registrations_with_one_number_the_later_has_the_url(hosts: Hosts) -> None:
    store = hosts.launcher(plain(version="1"))
    store.register([plain(version="2")])
    assert [row.source_id for row in store.sources()] == [plain(version="2").id]


@pytest.mark.parametrize(("number", "counts"), [(1, False), (2, True)])
def test_a_source_back_with_the_number_of_its_replacement_counts(hosts: Hosts, number: int, counts: bool) -> None:
    store = hosts.launcher(runs=2)
    for at, version in ((1, "1"), (2, "2"), (2, "1")):
        put(hosts, Segment(at, 1.0, sources=[plain(version=version)]), f"w{version}")
        store.refresh()
    put(hosts, leaf(plain(), number))
    store.refresh()
    assert [row.source_id for row in store.sources()] == [plain().id]
    assert store.completed_count() == counts


@pytest.mark.parametrize(("number", "counts"), [(2, False), (3, False), (4, True), (5, True)])
def test_a_pack_that_comes_back_when_its_replacement_is_cut_anew_too_counts_from_the_first_of_its_numbers_on(
    hosts: Hosts, number: int, counts: bool
) -> None:
    a, b, c, d = (plain(name) for name in "abcd")
    pack = Source.pack([a, b])
    store = hosts.launcher(runs=5)
    # `a` has no URL when the pack is back
    for at, source in ((1, pack), (2, Source.pack([a, c])), (3, Source.pack([c, d])), (5, pack), (4, pack)):
        put(hosts, Segment(at, 1.0, sources=[source]), f"w{at}")
        store.refresh()
    put(hosts, leaf(pack, number))
    store.refresh()
    assert store.completed_count() == counts


def test_what_was_published_for_a_source_that_nobody_registered_is_left_alone(hosts: Hosts) -> None:
    store = hosts.launcher(plain())
    store.begin_run({})
    store.register([plain(version="2")])  # from now on cutoffs are checked
    put(hosts, leaf(plain("unknown"), 2))
    for host in (store, hosts.store()):
        host.refresh()
        assert superseded(host) == []
        assert host.stale_outputs() == []


def test_a_leaf_of_a_source_that_may_come_back_waits_for_it(hosts: Hosts, passing: tuple[RemoteStore, Passing]) -> None:
    store = hosts.launcher(plain())
    store.begin_run({})
    store.register([plain(version="2")])
    for _ in range(2):
        store.begin_run({})
    reader, objects = passing
    put(hosts, Segment(4, 1.0, sources=[plain()]), "again")
    reader.refresh()
    put(hosts, Segment(3, 1.0, sources=[plain()]), "first")
    put(hosts, Segment(3, 1.0, leaves=[leaf_of(plain())]), "leaf")
    objects.passed, objects.listings = "s-first", 0
    reader.refresh()
    assert all(reader.completed_mask([plain().id]))


def test_a_contradiction_is_seen_by_who_held_the_source_for_complete(hosts: Hosts) -> None:
    store = hosts.launcher()
    sources = numbered(store, 4)
    for source in sources:
        store.commit(leaves_of_split(source, 2))
    ids = [source.id for source in sources]
    for _ in range(3):
        assert all(store.completed_mask(ids))
    put(hosts, Segment(1, 1.0, leaves=[leaf_of(sources[0], ((0, 2),), content="other")]))
    store.refresh()
    assert store.completed_mask(ids) == [False, True, True, True]
    assert store.completed_count() == 3
    (failed,) = store.failures()
    assert (failed.source_id, failed.reason) == (sources[0].id, "NonDeterministicTaskError")


# Cutoffs themselves


@each(
    ("cutoff", "least", "early"),
    [
        (Cutoff(), 0, []),
        (Cutoff(3), 3, []),
        (Cutoff(3, 6), 6, []),
        (Cutoff(3, 0, (8, 9)), 8, [4, 5, 6, 7]),
        (Cutoff(3, 4, (8,)), 8, [4, 5, 6, 7]),
        (Cutoff(3, 6, (8,)), 8, [6, 7]),
        (Cutoff(3, 9, (8,)), 9, []),
    ],
)
def test_an_earlier_comeback_lets_more_count_that_came_since_the_replacement(
    cutoff: Cutoff, least: int, early: list[int]
) -> None:
    assert cutoff.least == least
    assert [number for number in range(12) if cutoff.may_lower_to(number)] == early
    assert [number for number in range(12) if cutoff.registered(number).least <= number < least] == early


def test_a_registration_rules_out_nothing_of_a_source_that_was_never_replaced(hosts: Hosts) -> None:
    store = hosts.launcher()
    source = registered(store)
    store.forget(source.url)
    for _ in range(2):
        store.begin_run({})
    put(hosts, Segment(4, 1.0, sources=[source]), "again")
    store.refresh()
    put(hosts, Segment(3, 1.0, leaves=[leaf_of(source)]), "late")
    for host in (store, hosts.store()):
        host.refresh()
        assert host.completed_count() == 1


def test_cutoffs_of_leaves_and_of_failures_are_kept_apart(hosts: Hosts) -> None:
    environment = hosts.store().parts()[1]
    one, two = plain("one").id, plain("two").id
    replaced = Cutoff(3, comebacks=(8,))
    for _ in range(2):
        environment.write(lambda txn: merge_cutoffs(txn, one, Cutoff(), replaced))
        environment.write(lambda txn: merge_cutoffs(txn, two, replaced, Cutoff(forgotten=5)))
    with environment.read() as txn:
        assert (read_cutoffs(txn, one), read_cutoffs(txn, two)) == ((Cutoff(), replaced), (replaced, Cutoff(0, 5)))
        assert [read_cutoffs(txn, source)[0].may_lower_to(6) for source in (one, two)] == [False, True]
    for source in (one, two, plain("three").id):
        environment.write(lambda txn, source=source: note_registration(txn, source, 6))  # type: ignore[misc]
    with environment.read() as txn:
        back = Cutoff(3, comebacks=(6, 8))
        assert (read_cutoffs(txn, one), read_cutoffs(txn, two)) == ((Cutoff(), back), (back, Cutoff(0, 5)))
        assert txn.count(CUTOFFS) == 2


# Contradictions


@pytest.mark.parametrize("recorded", [0, 1, 2], ids=["untouched", "begun", "complete"])
def test_a_contradicted_source_is_open_whatever_is_recorded_until_it_is_forgotten(hosts: Hosts, recorded: int) -> None:
    store = hosts.launcher()
    source, leaves = plain(), leaves_of_split(plain(), 2)
    store.register([source, plain("other")])
    store.commit(leaves[:recorded])
    totals, open_tasks = store.totals(), store.pending(source.id)
    held: list[tuple[int, dict[bytes, int]]] = []
    for _ in range(2):
        store.parts()[1].write(lambda txn: contradict(txn, source.id))
        held.append((store.pending(source.id), store.applied(source.id)))
    assert held[0] == held[1]
    assert held[0][0] - held[0][1][CONTRADICTION] == open_tasks
    assert store.totals() == totals
    assert [store.pending(plain("other").id), store.completed_count()] == [1, 0]
    store.commit(leaves[recorded:])
    assert store.pending(source.id) == held[0][1][CONTRADICTION]
    assert (store.completed_count(), store.totals().tasks) == (0, 2)
    store.forget(source.url)
    assert (store.pending(source.id), store.totals().tasks) == (1, 0)
    store.begin_run({})
    store.commit(leaves)
    assert all(store.completed_mask([source.id]))


def test_a_source_that_nobody_registered_is_not_held_open(hosts: Hosts) -> None:
    environment = hosts.store().parts()[1]
    leaf = leaf_of(plain())

    def change(txn: Transaction) -> None:
        contradict(txn, plain().id)
        assert sidecar.fold_segment(txn, "late", Segment(1, 1.0, leaves=[leaf])) == [leaf]

    environment.write(change)
    with environment.read() as txn:
        assert [txn.count(table) for table in (PENDING, APPLIED, FAILED)] == [0, 0, 0]


def test_of_leaves_that_contradict_each_other_the_failure_tells_what_and_where(hosts: Hosts) -> None:
    store = hosts.store(plain())
    refused = leaf_of(plain(), ((1, 2),))
    error = NonDeterministicTaskError("contradicts another")
    store.parts()[1].write(lambda txn: hold_open(txn, refused.source_id, refused.lineage, error, 12.0))
    (row,) = store.failures()
    assert (row.source_id, row.node) == (refused.source_id, node_id(refused.source_id, refused.lineage))
    assert (row.reason, row.error, row.last) == ("NonDeterministicTaskError", "contradicts another", 12.0)
    assert str(refused.lineage) in row.task
    assert store.pending(plain().id) > 1


def ledger_with_a_lost_registration(hosts: Hosts, content: str, parts: int = 1) -> RemoteStore:
    """Make a source, and what replaced it and was written in the same place; delete the registration of the latter."""
    first = hosts.launcher(plain())
    first.commit([leaf_of(plain())] if parts == 1 else leaves_of_split(plain(), parts)[:1])
    first.begin_run({})
    before = set(hosts.objects.names("segments"))
    after = plain(version="2")
    first.register([after])
    hosts.objects.delete(set(hosts.objects.names("segments")) - before)
    first.commit([leaf_of(after, (), content)] if parts == 1 else leaves_of_split(after, parts, content)[:1])
    first.begin_run({})
    return hosts.store()


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("is_compacted", [False, True])
def test_a_source_is_open_if_an_unknown_one_overwrote_it(hosts: Hosts, parts: int, is_compacted: bool) -> None:
    """Its file got its former content back; the ledger had lost the registration of the content in between."""
    store = ledger_with_a_lost_registration(hosts, "other", parts)
    if is_compacted:
        compact(store)
        store = hosts.store()
    assert not is_complete(store, plain())
    (row,) = store.failures()
    assert f"source {plain().url}: a task of another source " in row.error
    assert "(segment with number 2)" in row.error
    store.forget(plain().url)
    store.begin_run({})
    store.register([plain()])
    store.commit([leaf_of(plain())] if parts == 1 else leaves_of_split(plain(), parts))
    for other in (store, hosts.store()):
        assert is_complete(other, plain())
        assert list(other.failures()) == []


def test_any_task_that_wrote_over_an_output_holds_its_source_open(hosts: Hosts) -> None:
    store = hosts.launcher(plain("b"), plain("c"))
    store.commit([leaf_of(plain("b")), leaf_of(plain("c"))])
    put(hosts, Segment(1, 1.0, leaves=[leaf_of(plain(name, "2"), (), "other") for name in "abc"]))
    assert hosts.store().completed_mask([plain("b").id, plain("c").id]) == [False, False]


@pytest.mark.parametrize(("failures_only", "number", "is_open"), [(False, 1, False), (False, 2, True), (True, 1, True)])
def test_overwriting_before_a_forget_does_not_count(
    hosts: Hosts, failures_only: bool, number: int, is_open: bool
) -> None:
    store = hosts.launcher(plain())
    store.forget(plain().url, failures_only=failures_only)
    put(hosts, leaf(plain(), 2))
    put(hosts, Segment(number, 1.0, leaves=[leaf_of(plain(version="2"), (), "other")]), "other")
    assert is_complete(hosts.store(), plain()) != is_open


def test_what_was_written_over_with_the_same_content_counts(hosts: Hosts) -> None:
    store = ledger_with_a_lost_registration(hosts, "")
    assert is_complete(store, plain())
    assert list(store.failures()) == []


# Listings that pass a place at which something is created meanwhile


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("what", [leaf, failure, deaths])
def test_what_speaks_of_sources_that_are_known_is_taken_in_with_one_listing(
    hosts: Hosts, passing: tuple[RemoteStore, Passing], change: str, what: What
) -> None:
    store = hosts.launcher(plain(), plain("b"))
    put(hosts, what(plain(), 1), "early")
    CHANGES[change](store)
    put(hosts, what(plain(), 1), "late")
    put(hosts, what(plain("b"), 1), "other")
    reader, objects = passing
    reader.refresh()
    assert objects.listings == 1
    assert picture(hosts.store()) == picture(reader)


@pytest.mark.parametrize("what", [leaf, failure, deaths])
@pytest.mark.parametrize("restarted", [False, True])
def test_what_speaks_of_a_missed_source_waits(
    hosts: Hosts, passing: tuple[RemoteStore, Passing], what: What, restarted: bool
) -> None:
    store = hosts.launcher()
    if restarted:
        store.open_job(TWO, "restart")
    number = len(hosts.objects.names("controls"))
    put(hosts, Segment(number, 1.0, sources=[plain("known")]), "known")
    put(hosts, Segment(number, 1.0, sources=[plain()]), "passed")
    known, other = (what(source, number) for source in (plain("known"), plain()))
    columns = ("leaves", "failures", "deaths")
    both: dict[str, Any] = {name: [*getattr(known, name), *getattr(other, name)] for name in columns}
    put(hosts, Segment(number, 1.0, **both), "tasks")
    reader, objects = passing
    objects.passed = "s-passed"
    reader.refresh()
    assert objects.listings == 2
    counted = reader.status()["sources"]
    assert counted == {"complete": 2 * (what is leaf), "open": 0, "failed": 2 * (what is not leaf)}
    assert picture(hosts.store()) == picture(reader)
