"""Cases found by the simulation: hosts that fold the same objects in different orders reach the same state."""

from __future__ import annotations

import functools
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ledgerbeam.errors import JobMismatchError
from ledgerbeam.ledger.lmdb.store import LmdbStore
from ledgerbeam.ledger.lmdb.tables import Transaction
from ledgerbeam.ledger.model.rows import Leaf, Output
from ledgerbeam.ledger.model.task import Source
from ledgerbeam.ledger.remote import apply as sidecar
from ledgerbeam.ledger.remote import compaction
from ledgerbeam.ledger.remote.compaction import compact
from ledgerbeam.ledger.remote.controls import Control
from ledgerbeam.ledger.remote.registration import Cutoff
from ledgerbeam.ledger.remote.segment import Segment
from ledgerbeam.ledger.remote.sink import RemoteSink
from tests.ledger.builders import ONE, TWO, failure_of, leaf_of, leaves_of_split, mark_of, plain
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


def registered(number: int, *sources: Source) -> Segment:
    return Segment(number, 10.0 * number, sources=sources)


@pytest.mark.parametrize(
    "made",
    [
        [
            registered(5, Source.pack([plain("a", "2"), plain("b")])),
            registered(6, plain("b", "3")),
            registered(3, plain()),
        ],
        [registered(4, plain("a", "2")), registered(6, plain("a", "3")), registered(5, plain())],
        [registered(3, Source.pack([plain(), plain("b")])), registered(5, plain("a", "2")), registered(4, plain("b"))],
        [
            registered(3, Source.pack([plain("a", "2"), plain("b")])),
            registered(5, Source.pack([plain("b", "2"), plain("c")])),
            registered(4, plain("b")),
            registered(6, plain("a", "4")),
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


NUMBERS = st.integers(0, 6)


@given(st.lists(st.tuples(NUMBERS, NUMBERS, NUMBERS), max_size=4).flatmap(st.permutations))
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
