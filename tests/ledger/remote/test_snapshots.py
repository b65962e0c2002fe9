"""A snapshot of any moment, folded by a host of any moment, gives the state of the objects that it replaces."""

# mypy: disable-error-code="func-returns-value"
# A step is its effect: a tuple of calls without results, in order.

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ledgerbeam.errors import LedgerDamagedError, NonDeterministicTaskError
from ledgerbeam.io.storage.objects import ObjectFolder
from ledgerbeam.ledger.lmdb.withdrawal import drop_stale
from ledgerbeam.ledger.model.accounts import RecordCounts
from ledgerbeam.ledger.model.identity import node_id
from ledgerbeam.ledger.model.rows import Failure, Leaf, Mark, Output
from ledgerbeam.ledger.model.store import MAX_ATTEMPTS
from ledgerbeam.ledger.model.task import Source
from ledgerbeam.ledger.remote.compaction import compact
from ledgerbeam.ledger.remote.replay import segment_name
from ledgerbeam.ledger.remote.segment import Segment, decode_segment, encode_segment
from ledgerbeam.ledger.remote.sink import RemoteSink
from ledgerbeam.ledger.remote.snapshot import merge_state
from ledgerbeam.ledger.remote.store import RemoteStore
from tests.ledger.builders import counted_leaf, filtered_leaf, leaf_of, leaves_of_split, plain, sum_of
from tests.ledger.conformance import failure_of
from tests.ledger.conformance_changes import ONE, TWO
from tests.ledger.views import picture

OLD, NEW, OTHER = plain(), plain(version="2"), plain("b")

Objects = dict[str, bytes]


class History:
    """A ledger whose objects are kept as they were after each step."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.objects = ObjectFolder(str(folder / "ledger"))
        self.store = RemoteStore(self.objects, str(folder / "writer"))
        self.store.open(create=True)
        self.store.open_job(ONE)
        self.run = self.store.begin_run({})
        self._others = 0

    def begin(self) -> None:
        self.run = self.store.begin_run({})

    def commit(self, *leaves: Leaf, failures: tuple[Failure, ...] = (), run: str = "") -> None:
        """Record as a worker does that knows nothing of others."""
        RemoteSink(self.objects, run=run or self.run).commit(leaves, failures)

    def sweep(self) -> None:
        """Record that stale outputs were deleted, if there were any."""
        self.store.refresh()
        stale = self.store.stale_outputs()
        assert stale
        self.store.drop_stale(stale)

    def put(self, segment: Segment) -> None:
        self._others += 1
        name = segment_name(segment, segment.number, "hand", self._others)
        assert self.objects.create(name, encode_segment(segment))

    def now(self) -> Objects:
        names = self.objects.names("")
        return {name: data for name, data in zip(names, self.objects.read(names), strict=True) if data is not None}

    def close(self) -> None:
        self.store.close()


def add(folder: ObjectFolder, objects: Objects) -> None:
    for name, data in objects.items():
        path = Path(folder.url, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


def compacted(folder: Path, objects: Objects) -> Objects:
    """Return the objects as a compaction leaves them."""
    copy = ObjectFolder(str(folder / "ledger"))
    add(copy, objects)
    # It stands for an object that no host has seen, so each takes it in.
    unseen = Segment(0, 1.0)
    add(copy, {segment_name(unseen, 0, "unseen", 1): encode_segment(unseen)})
    store = RemoteStore(copy, str(folder / "host"))
    store.open(create=False)
    assert compact(store).parts > 0
    store.close()
    names = copy.names("")
    return {name: data for name, data in zip(names, copy.read(names), strict=True) if data is not None}


def said(store: RemoteStore) -> dict[str, Any]:
    """Return the state of a host.

    For two leaves that contradict each other, it has the output of the first that arrived.
    """
    contradicted = {row.source_id for row in store.failures() if row.reason == NonDeterministicTaskError.__name__}
    outputs = [
        (row.source_id, row.output.name) if row.source_id in contradicted else row for row in picture(store)["outputs"]
    ]
    superseded = sorted(name for page in store.superseded_names() for name in page)
    return {**picture(store), "outputs": outputs, "superseded": superseded}


Step = Callable[[History], object]


def published(source: Source, name: str) -> Leaf:
    return Leaf(source.id, (), "published", (Output(name, 1, "x", 1),), 1, 1)


def broken(source: Source) -> Failure:
    return dataclasses.replace(failure_of(source, ()), broke=True)


SCENARIOS: dict[str, list[Step]] = {
    "begun, failed, complete": [
        lambda h: h.store.register([OLD, OTHER]),
        lambda h: h.commit(leaves_of_split(OLD, 3)[0], failures=(failure_of(OLD, ((1, 3),)), failure_of(OTHER, ()))),
        lambda h: h.commit(*leaves_of_split(OLD, 3)[1:], failures=(failure_of(OTHER, (), "again"),)),
        lambda h: h.commit(leaf_of(OTHER)),
    ],
    "forgotten, and the same again": [
        lambda h: (h.store.register([OLD, OTHER]), h.commit(leaf_of(OLD), published(OTHER, "other"))),
        lambda h: h.store.forget("*"),
        lambda h: (h.begin(), h.commit(leaf_of(OLD), filtered_leaf(OTHER))),
    ],
    "replaced": [
        lambda h: (h.store.register([OLD]), h.commit(leaf_of(OLD))),
        lambda h: (h.begin(), h.store.register([NEW])),
        lambda h: h.commit(published(NEW, "new")),
        lambda h: h.commit(published(OLD, "late"), run="000001"),
    ],
    "replaced and back": [
        lambda h: (h.store.register([OLD]), h.commit(leaf_of(OLD))),
        lambda h: (h.begin(), h.store.register([NEW])),
        lambda h: (h.begin(), h.store.register([OLD]), h.commit(leaves_of_split(OLD, 2)[0])),
        lambda h: (h.begin(), h.put(Segment(4, 1.0, sources=[OLD]))),
        lambda h: h.commit(leaves_of_split(OLD, 2)[1]),
    ],
    "registered late": [
        lambda h: (h.begin(), h.store.register([NEW]), h.commit(leaf_of(NEW))),
        lambda h: h.put(Segment(1, 1.0, sources=[OLD])),
        lambda h: h.put(Segment(1, 1.0, leaves=[published(OLD, "old")])),
    ],
    "contradicted when begun, then forgotten": [
        lambda h: (h.store.register([OLD]), h.commit(leaves_of_split(OLD, 2)[0])),
        lambda h: h.commit(leaf_of(OLD, ((0, 2),), content="other")),
        lambda h: h.store.forget("*"),
        lambda h: (h.begin(), h.commit(filtered_leaf(OLD))),
    ],
    "contradicted when complete, then forgotten": [
        lambda h: (h.store.register([OLD, OTHER]), h.commit(leaf_of(OLD), leaf_of(OTHER))),
        lambda h: h.commit(leaf_of(OLD, content="other")),
        lambda h: h.store.forget("*"),
        lambda h: (h.begin(), h.commit(filtered_leaf(OLD))),
    ],
    "contradicted when complete": [
        lambda h: (h.store.register([OLD]), h.commit(leaf_of(OLD))),
        lambda h: h.commit(leaf_of(OLD, content="other")),
    ],
    "quarantined, then done": [
        lambda h: (h.store.register([OLD, OTHER]), h.commit(failures=(broken(OLD), broken(OLD)))),
        lambda h: (
            h.store.refresh(),
            h.store.record_deaths([Mark(OTHER.id, node_id(OTHER.id, ()), "t")] * MAX_ATTEMPTS),
        ),
        lambda h: h.commit(failures=(broken(OLD),)),
        lambda h: h.store.forget("*", failures_only=True),
        lambda h: (h.begin(), h.commit(leaf_of(OLD), failures=(broken(OTHER),))),
    ],
    "a fan-out that failed, and a later run got below it": [
        lambda h: (h.store.register([OLD]), h.commit(leaf_of(OLD, ((0, 2), (0, 2))))),
        lambda h: h.commit(failures=(failure_of(OLD, ((0, 2),)), failure_of(OLD, ((1, 2),)))),
        lambda h: (h.begin(), h.commit(leaf_of(OLD, ((0, 2), (1, 2))))),
        lambda h: h.commit(failures=(failure_of(OLD, ((0, 2),), "late"),), run="000001"),
    ],
    "gone and back": [
        lambda h: (h.store.register([OLD, OTHER]), h.commit(leaf_of(OLD))),
        lambda h: (h.begin(), h.begin(), h.put(Segment(3, 1.0, gone=[OLD.id, OTHER.id]))),
        lambda h: (h.begin(), h.put(Segment(4, 1.0, back=[OTHER.id]))),
        lambda h: h.put(Segment(2, 2.0, gone=[OTHER.id])),
    ],
    "another job": [
        lambda h: (h.store.register([OLD, OTHER]), h.commit(leaf_of(OLD), leaves_of_split(OTHER, 2)[0])),
        lambda h: h.store.open_job(TWO, "restart"),
        lambda h: (h.begin(), h.store.register([OLD]), h.commit(filtered_leaf(OLD))),
        lambda h: h.commit(published(OTHER, "late"), run="000001"),
    ],
    "replaced, deleted, and the same again": [
        lambda h: (h.store.register([OLD, OTHER]), h.commit(published(OLD, "old"), published(OTHER, "other"))),
        lambda h: (h.begin(), h.store.register([NEW]), h.commit(published(NEW, "new"))),
        lambda h: h.sweep(),
        lambda h: (h.store.forget("*"), h.begin(), h.store.register([OLD])),
        lambda h: h.commit(published(OLD, "old"), filtered_leaf(OTHER)),
        lambda h: h.sweep(),
    ],
    "a pack and its members": [
        lambda h: (h.store.register([OLD, OTHER]), h.commit(leaf_of(OLD), leaf_of(OTHER))),
        lambda h: (h.begin(), h.store.register([Source.pack([OLD, OTHER])])),
        lambda h: (h.begin(), h.store.register([NEW])),
        lambda h: (h.begin(), h.store.register([OTHER]), h.commit(filtered_leaf(NEW), filtered_leaf(OTHER))),
    ],
}


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_snapshot_of_any_moment_says_the_same_to_a_host_of_any_moment(tmp_path: Path, scenario: str) -> None:
    history = History(tmp_path)
    moments = [history.now()]
    for step in SCENARIOS[scenario]:
        step(history)
        moments.append(history.now())
    history.close()
    last = moments[-1]
    expected: dict[str, Any] | None = None
    snapshots = [compacted(tmp_path / f"compacted-{b}", moment) for b, moment in enumerate(moments) if b]
    for a, seen in enumerate(moments):
        for b, (covered, snapshot) in enumerate(zip(moments[1:], snapshots, strict=True), 1):
            if expected is not None and (a == b or (a == 0 and b < len(snapshots))):
                continue  # the others say more
            objects = ObjectFolder(str(tmp_path / f"{a}-{b}" / "ledger"))
            add(objects, seen)
            host = RemoteStore(objects, str(tmp_path / f"{a}-{b}" / "host"))
            host.open(create=False)
            host.refresh()
            if expected is None:  # from the objects alone
                add(objects, last)
                host.refresh()
                expected = said(host)
            else:
                objects.delete([name for name in objects.names("") if name in covered and name not in snapshot])
                add(objects, snapshot)
                add(objects, {name: data for name, data in last.items() if name not in covered})
                host.refresh()
                assert said(host) == expected, f"seen {a}, snapshot of {b}"
            host.close()


def test_deletions_are_repeated_by_one_snapshot_and_not_by_the_next(tmp_path: Path) -> None:
    history = History(tmp_path)
    for step in SCENARIOS["replaced, deleted, and the same again"][:3]:
        step(history)
    found = []
    for name in ("b", "c"):
        history.store.register([plain(name)])
        compact(history.store)
        objects = history.now().items()
        parts = [decode_segment(data, name) for name, data in objects if name.endswith(".seg")]
        found.append([dropped for part in parts for dropped in part.dropped])
    history.close()
    assert found == [["old"], []]


def test_who_deletes_has_seen_what_was_superseded_since_its_run_began(tmp_path: Path) -> None:
    history = History(tmp_path)
    history.store.register([OLD])
    history.commit(published(OLD, "old"))
    other = RemoteStore(history.objects, str(tmp_path / "other"))
    other.open(create=False)
    run = other.begin_run({})
    other.register([NEW])
    history.commit(filtered_leaf(NEW), run=run)
    history.sweep()
    other.refresh()
    assert (history.store.stale_outputs(), other.stale_outputs()) == ([], [])
    other.close()
    history.close()


def test_what_a_snapshot_completes_can_be_done_again(tmp_path: Path) -> None:
    history = History(tmp_path)
    history.store.register([OLD])
    first, last = leaves_of_split(OLD, 2)
    history.commit(first)
    objects = ObjectFolder(str(tmp_path / "other" / "ledger"))
    add(objects, history.now())
    host = RemoteStore(objects, str(tmp_path / "other" / "host"))
    host.open(create=False)
    history.commit(last)
    covered = history.now()
    history.close()
    snapshot = compacted(tmp_path / "compacted", covered)
    objects.delete([name for name in covered if name not in snapshot and name in objects.names("")])
    add(objects, snapshot)
    host.refresh()
    assert host.completed_count() == 1
    host.forget("*")
    sink = RemoteSink(objects, run=host.begin_run({}))
    sink.commit([last])
    host.refresh()
    sink.commit([first])
    host.refresh()
    assert host.completed_count() == 1
    host.close()


def test_a_snapshot_does_not_take_back_when_an_output_was_superseded(tmp_path: Path) -> None:
    store = RemoteStore(ObjectFolder(str(tmp_path / "ledger")), str(tmp_path / "host"))
    store.open(create=True)
    environment = store.parts()[1]
    for number in (5, 3):
        rows = {"superseded": [[OLD.id.hex(), "old", number]]}
        environment.write(lambda txn, rows=rows: merge_state(txn, rows, 5))  # type: ignore[misc]
    environment.write(lambda txn: drop_stale(txn, ["old"], 4))  # by a run that did not see number 5
    assert store.stale_outputs() == ["old"]
    environment.write(lambda txn: drop_stale(txn, ["old"], 5))
    assert store.stale_outputs() == []
    store.close()


def test_a_source_that_is_open_here_and_complete_in_a_snapshot_counts_once(tmp_path: Path) -> None:
    history = History(tmp_path)
    leaves = [counted_leaf(OLD, ((ordinal, 3),)) for ordinal in range(3)]
    history.store.register([OLD])
    history.commit(leaves[0], leaves[1])
    late = RemoteStore(history.objects, str(tmp_path / "late"))
    late.open(create=False)
    history.commit(leaves[2])
    compact(history.store)
    late.refresh()
    for store in (late, history.store):
        assert store.records() == sum_of(leaves)
        assert Counter(store.statistics()) == Counter(item for leaf in leaves for item in leaf.statistics.items())
    late.close()
    history.close()


@pytest.mark.parametrize(
    ("totals", "accounts", "problem"),
    [
        ([1, 4, 3, 0, 5], [["ab" * 16, [6, 4, [], [["bad", 1]], [["", 4]], 3, 5]]], "expected as many records read"),
        ([1, 3, 3, 0, 5], [["ab" * 16, [5, 4, [], [["bad", 1]], [["", 4]], 3, 5]]], "at most 3 records written"),
        ([0, 4, 3, 0, 5], [["ab" * 16, [5, 4, [], [["bad", 1]], [["", 4]], 3, 5]]], "at most 0 tasks"),
        ([2, 8, 3, 0, 5], [["ab" * 16, [5, 4, [], [["bad", 1]], [["", 4]], 3, 5]]] * 2, "each once"),
        ([1, 4, 3, 0, 5], [["ab" * 16, [5, 4, [], [["bad", 1], ["bad", 0]], [["", 4]], 3, 5]]], "each name once"),
        ([1, 4, 3, 0, 5], [["ab" * 16, [5, 4, [], [["bad", -1]], [["", 4]], 3, 5]]], "expected a number"),
        ([1, 4, 3, 0, 5], [["ab" * 16, [5, 4, [], [], [["", 4]]]]], "row of 7 values"),
    ],
)
def test_counts_that_cannot_be_are_refused(tmp_path: Path, totals: list[int], accounts: Any, problem: str) -> None:
    history = History(tmp_path)
    history.store.register([OLD])
    state = {"complete": [[OLD.id.hex(), 1_700_000_000, totals, [], accounts]]}
    history.put(Segment(1, 1.7e9, state=state))
    with pytest.raises(LedgerDamagedError, match=problem):
        history.store.refresh()
    assert history.store.records() == RecordCounts()
    history.close()
