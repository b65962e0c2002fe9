"""Outputs that were superseded: which of them a host still knows once it has taken in a snapshot."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from ledgerbeam.errors import LedgerDamagedError
from ledgerbeam.ledger.lmdb.store import LmdbStore
from ledgerbeam.ledger.lmdb.tables import OUTPUTS, SUPERSEDED
from ledgerbeam.ledger.lmdb.withdrawal import decode_superseded, supersede
from ledgerbeam.ledger.model.rows import Leaf, Output
from ledgerbeam.ledger.model.store import LedgerStore
from ledgerbeam.ledger.model.task import Source
from ledgerbeam.ledger.remote import apply as sidecar
from ledgerbeam.ledger.remote.replay import Replayer, SnapshotManifest, encode_manifest
from ledgerbeam.ledger.remote.segment import Segment, checksum_of, encode_segment
from ledgerbeam.ledger.remote.snapshot import UnnamedOutputs
from ledgerbeam.ledger.remote.store import RemoteStore
from tests.ledger.builders import plain
from tests.ledger.remote.test_store import Hosts
from tests.ledger.stores import folded, superseded

ID = plain().id.hex()


def naming(*outputs: str, dropped: Sequence[str] = (), number: int = 1) -> Segment:
    """Return a segment that names outputs which are superseded, and those that were deleted."""
    return Segment(number, 1.0, state={"superseded": [[ID, name, 1] for name in outputs]}, dropped=dropped)


def deletion_name(name: str) -> str:
    return f"segments/000001/z-{name}.seg"


class Ledger:
    """A ledger of objects that are put there one by one, and a host that has seen some of them."""

    def __init__(self, folder: Path) -> None:
        self.hosts = Hosts(folder)
        self.hosts.launcher()
        self.host, self.read = self.hosts.store(), self.hosts.objects.reads

    def segment(self, name: str, *outputs: str) -> Ledger:
        assert self.hosts.objects.create(f"segments/000001/t-{name}.seg", encode_segment(naming(*outputs)))
        return self

    def deletion(self, name: str, *outputs: str) -> Ledger:
        """Create a segment that lists deletions."""
        assert self.hosts.objects.create(deletion_name(name), encode_segment(naming(dropped=outputs)))
        return self

    def compacted(self, *names: str) -> Ledger:
        """Delete objects for which a snapshot stands."""
        self.hosts.objects.delete(names)
        return self

    def snapshot(self, name: str, covers: Sequence[str], *parts: Segment) -> Ledger:
        """Create a snapshot that replaces segments, given by number or by name."""
        base = f"snapshots/000001-000001-{name * 8}"
        covered = [one if "/" in one else f"segments/000001/t-{one}.seg" for one in covers]
        names = [f"{base}/{place:06d}.seg" for place, _ in enumerate(parts)]
        encoded = dict(zip(names, map(encode_segment, parts), strict=True))
        for part, data in encoded.items():
            assert self.hosts.objects.create(part, data)
        checksums = {part: checksum_of(data) for part, data in encoded.items()}
        assert self.hosts.objects.create(f"{base}.json", encode_manifest(SnapshotManifest(base, 1, checksums, covered)))
        return self


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    ledger = Ledger(tmp_path)
    yield ledger
    ledger.hosts.close()


Step = Callable[[Ledger], object]

B = "snapshots/000001-000001-bbbbbbbb"

CASES: dict[str, tuple[Step, Step, list[str]]] = {
    "only by what the snapshot stands for": (
        lambda it: it.segment("one", "x", "y"),
        lambda it: it.snapshot("a", ["one", "unseen"], naming("y")),
        ["y"],
    ),
    "by a segment beside": (
        lambda it: (it.segment("one", "x", "y"), it.segment("two", "x")),
        lambda it: it.snapshot("a", ["one", "unseen"], naming()),
        ["x"],
    ),
    "by a segment beside that is new": (
        lambda it: it.segment("one", "x", "y"),
        lambda it: (it.segment("two", "x"), it.snapshot("a", ["one", "unseen"], naming())),
        ["x"],
    ),
    "by another snapshot": (
        lambda it: (it.segment("one", "x", "y"), it.snapshot("b", ["zero"], naming("x"))),
        lambda it: it.snapshot("a", ["one", "unseen"], naming()),
        ["x"],
    ),
    "by another snapshot that is new": (
        lambda it: it.segment("one", "x", "y"),
        lambda it: (it.snapshot("b", ["zero"], naming("x")), it.snapshot("a", ["one", "unseen"], naming())),
        ["x"],
    ),
    "by a snapshot of less": (
        lambda it: (it.segment("one", "x"), it.snapshot("b", ["one"], naming("x", "y"))),
        lambda it: it.snapshot("a", ["one", "unseen"], naming("y", dropped=["x"])),
        ["y"],
    ),
    "by a snapshot that it stands for": (
        lambda it: it.snapshot("b", ["zero"], naming("x", "y")),
        lambda it: it.snapshot("a", ["unseen", f"{B}.json", f"{B}/000000.seg"], naming("y")),
        ["y"],
    ),
    "by a segment for which another snapshot stands": (
        lambda it: (it.segment("one", "x"), it.segment("two", "x"), it.snapshot("b", ["two"], naming("y"))),
        lambda it: it.snapshot("a", ["one", "unseen"], naming()),
        ["y"],
    ),
    "by segments for which two new snapshots stand": (
        lambda it: (it.segment("one", "x", "y"), it.segment("two", "x")),
        lambda it: (it.snapshot("a", ["one", "unseen"], naming()), it.snapshot("b", ["two", "other"], naming("y"))),
        ["y"],
    ),
    "by a snapshot beside one that tells of its deletion": (
        lambda it: it.segment("one", "y"),
        lambda it: (
            it.snapshot("a", ["zero", "unseen"], naming("x")),
            it.snapshot("b", ["zero", "other"], naming(dropped=["x"])),
        ),
        ["y"],
    ),
    "by a snapshot after one that tells of its deletion": (
        lambda it: it.segment("one", "y"),
        lambda it: (
            it.snapshot("b", ["zero", "unseen"], naming("x")),
            it.snapshot("a", ["zero", "other"], naming(dropped=["x"])),
        ),
        ["y"],
    ),
    "by a snapshot before one that tells of its deletion and that nothing else is learned from": (
        lambda it: it.deletion("one", "x"),
        lambda it: (
            it.snapshot("a", ["zero"], naming("x", "y")),
            it.snapshot("b", ["zero", deletion_name("one")], naming("y", dropped=["x"])),
            it.compacted(deletion_name("one")),
        ),
        ["y"],
    ),
    "by a snapshot before one of which several parts tell of deletions and that nothing else is learned from": (
        lambda it: (it.deletion("one", "x"), it.deletion("two", "w")),
        lambda it: (
            it.snapshot("a", ["zero"], naming("w", "x", "y")),
            it.snapshot(
                "b",
                ["zero", deletion_name("one"), deletion_name("two")],
                *(naming("y", dropped=["x"]), naming(dropped=["w"])),
            ),
            it.compacted(deletion_name("one"), deletion_name("two")),
        ),
        ["y"],
    ),
    "by two snapshots before one that tells of its deletion and that nothing else is learned from": (
        lambda it: it.deletion("one", "x"),
        lambda it: (
            it.snapshot("a", ["zero"], naming("x", "y")),
            it.snapshot("b", ["other"], naming("x")),
            it.snapshot("c", ["zero", "other", deletion_name("one")], naming("y", dropped=["x"])),
            it.compacted(deletion_name("one")),
        ),
        ["y"],
    ),
    "by a snapshot that nothing else is learned from": (
        lambda it: (it.segment("one", "x", "y"), it.segment("two", "x")),
        lambda it: (it.snapshot("a", ["one", "unseen"], naming()), it.snapshot("b", ["two", "unseen"], naming("y"))),
        ["y"],
    ),
}


@pytest.mark.parametrize("named", CASES)
def test_an_output_is_known_as_superseded_as_long_as_an_object_that_counts_names_it(ledger: Ledger, named: str) -> None:
    before, after, expected = CASES[named]
    before(ledger)
    ledger.host.refresh()
    ledger.read.clear()
    after(ledger)
    ledger.host.refresh()
    assert superseded(ledger.host) == superseded(ledger.hosts.store()) == expected
    ledger.read.clear()
    ledger.host.refresh()
    assert ledger.read == []


A = "snapshots/000001-000001-aaaaaaaa"


@pytest.mark.parametrize(
    ("named", "read"),
    [
        ("only by what the snapshot stands for", [f"{A}.json", f"{A}/000000.seg"]),
        ("by a segment beside", [f"{A}.json", f"{A}/000000.seg", "segments/000001/t-two.seg"]),
        ("by a segment beside that is new", [f"{A}.json", f"{A}/000000.seg", "segments/000001/t-two.seg"]),
        ("by another snapshot", [f"{A}.json", f"{A}/000000.seg", f"{B}.json", f"{B}/000000.seg"]),
        ("by another snapshot that is new", [*[f"{A}.json", f"{A}/000000.seg"] * 2, f"{B}.json", f"{B}/000000.seg"]),
        ("by a snapshot of less", [f"{A}.json", f"{A}/000000.seg", f"{B}.json"]),
        ("by a snapshot that it stands for", [f"{A}.json", f"{A}/000000.seg"]),
        (
            "by a snapshot before one that tells of its deletion and that nothing else is learned from",
            [f"{A}.json", f"{A}/000000.seg", f"{B}.json", f"{B}/000000.seg"],
        ),
        (
            "by a segment for which another snapshot stands",
            [f"{A}.json", f"{A}/000000.seg", f"{B}.json", f"{B}/000000.seg"],
        ),
    ],
)
def test_only_what_may_name_a_doubted_output_is_read(ledger: Ledger, named: str, read: list[str]) -> None:
    before, after, _ = CASES[named]
    ledger.hosts.objects.create("segments/readme.txt", b"not ours")
    before(ledger)
    ledger.host.refresh()
    ledger.read.clear()
    after(ledger)
    ledger.host.refresh()
    assert sorted(ledger.read) == sorted(read)


def test_parts_that_were_taken_in_before_an_interruption_name_outputs_too(ledger: Ledger) -> None:
    ledger.segment("one", "x", "y", "z")
    ledger.host.refresh()
    parts = [naming("x"), naming("y")]
    ledger.host.parts()[1].write(lambda txn: sidecar.fold_segment(txn, f"{A}/000000.seg", parts[0], of_snapshot=True))
    ledger.snapshot("a", ["one", "unseen"], *parts)
    ledger.read.clear()
    ledger.host.refresh()
    assert superseded(ledger.host) == ["x", "y"]
    assert sorted(ledger.read) == [f"{A}.json", f"{A}/000000.seg", f"{A}/000001.seg"]


def test_a_part_beside_is_compared_with_its_own_manifest_whatever_snapshots_are_read_with_it(ledger: Ledger) -> None:
    ledger.segment("one", "x").snapshot("a", ["first"], naming("x")).snapshot("c", ["third"], naming("z"))
    ledger.host.refresh()
    (part,) = [name for name in ledger.hosts.objects.names("snapshots") if "-aaaaaaaa/" in name]
    ledger.hosts.objects.replace(part, encode_segment(naming()))
    ledger.snapshot("b", ["one", "unseen"], naming())
    with pytest.raises(LedgerDamagedError, match="expected the checksum"):
        ledger.host.refresh()
    assert superseded(ledger.host) == ["x", "z"]


def test_a_new_snapshot_beside_that_does_not_read_is_told_of_once_those_before_it_are_taken_in(ledger: Ledger) -> None:
    ledger.segment("one", "x", "y")
    ledger.host.refresh()
    ledger.snapshot("a", ["one", "unseen"], naming("y"))
    assert ledger.hosts.objects.create(f"{B}.json", b"damaged")
    with pytest.raises(LedgerDamagedError, match=B):
        ledger.host.refresh()
    assert superseded(ledger.host) == ["y"]


def test_what_another_process_learns_during_a_snapshot_stays(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger.segment("one", "x")
    ledger.host.refresh()
    ledger.snapshot("a", ["one", "unseen"], naming("x"))
    fold_segments = Replayer._fold_segments

    def fold(self: Replayer, names: Sequence[str], see: Callable[[Segment], None] | None = None) -> None:
        fold_segments(self, names, see)
        monkeypatch.setattr(Replayer, "_fold_segments", fold_segments)
        ledger.segment("new", "y")
        name = "segments/000001/t-new.seg"
        ledger.host.parts()[1].write(lambda txn: sidecar.fold_segment(txn, name, naming("y")))

    monkeypatch.setattr(Replayer, "_fold_segments", fold)
    ledger.host.refresh()
    assert superseded(ledger.host) == ["x", "y"]


def test_what_nothing_doubts_is_not_looked_for(ledger: Ledger) -> None:
    ledger.segment("one")
    ledger.host.refresh()
    ledger.read.clear()
    ledger.snapshot("a", ["unseen"], naming(dropped=["x"]))
    ledger.host.refresh()
    assert ledger.read == [f"{A}.json", f"{A}/000000.seg"]


# UnnamedOutputs, one by one


OTHER = plain("other")


def doubts_of(store: RemoteStore, *seen: Segment) -> list[str]:
    """Return the superseded outputs that stay after some objects were observed."""
    environment = store.parts()[1]
    rows = [[ID, "x", 3], [ID, "y", 3], [OTHER.id.hex(), "x", 3]]
    environment.write(lambda txn: sidecar.fold_segment(txn, "known", Segment(1, 1.0, state={"superseded": rows})))
    with environment.read() as txn:
        unnamed = UnnamedOutputs(txn)
    for segment in seen:
        unnamed.observe(segment)
    environment.write(unnamed.drop_unnamed)
    return superseded(store)


def output(name: str) -> list[Any]:
    return [name, 1, "sum", 1, 0]


@pytest.mark.parametrize(
    ("seen", "left"),
    [
        ([], []),
        ([Segment(1, 1.0)], []),
        ([naming("x")], ["x"]),
        ([naming("x"), naming("y", "x")], ["x", "y"]),
        (
            [
                Segment(
                    1, 1.0, leaves=[Leaf(OTHER.id, (), "published", (Output("x", 1, "s", 1), Output("y", 1, "s", 1)))]
                )
            ],
            ["x"],
        ),
        ([Segment(1, 1.0, leaves=[Leaf(plain("third").id, (), "published", (Output("x", 1, "s", 1),))])], []),
        ([Segment(1, 1.0, state={"complete": [[ID, 1, [1] * 5, [output("y"), output("x")]]]})], ["x", "y"]),
        ([Segment(1, 1.0, state={"complete": [[ID, 1, [1] * 5, [output("y")], []]]})], ["y"]),
        ([naming("x", "y"), naming(dropped=["x"], number=3)], ["y"]),
        ([naming(dropped=["x"], number=3), naming("x", "y")], ["y"]),
        ([naming("x", "y"), naming(dropped=["x"], number=2)], ["x", "y"]),
        ([naming("x", "y"), naming(dropped=["x"], number=2), naming(dropped=["y"], number=3)], ["x"]),
    ],
)
def test_what_no_object_names_goes_and_what_was_deleted(hosts: Hosts, seen: list[Segment], left: list[str]) -> None:
    assert doubts_of(hosts.store(), *seen) == left


def test_what_another_process_has_superseded_again_meanwhile_stays(hosts: Hosts) -> None:
    store = hosts.store()
    environment = store.parts()[1]
    for number in (3, 4):
        rows = [[ID, "x", number], [ID, "y", 3]]
        with environment.read() as txn:
            unnamed = UnnamedOutputs(txn)
        segment = Segment(number, 1.0, state={"superseded": rows})
        environment.write(lambda txn, segment=segment: sidecar.fold_segment(txn, f"{segment.number}", segment))  # type: ignore[misc]
    environment.write(unnamed.drop_unnamed)
    assert superseded(store) == ["x"]


def test_with_nothing_to_doubt_what_was_deleted_goes_all_the_same(hosts: Hosts) -> None:
    store = hosts.store()
    environment = store.parts()[1]
    with environment.read() as txn:
        unnamed = UnnamedOutputs(txn)
    unnamed.observe(naming("x", dropped=["x"], number=3))
    environment.write(lambda txn: sidecar.fold_segment(txn, "late", naming("x", "y")))
    environment.write(unnamed.drop_unnamed)
    assert superseded(store) == ["y"]


@pytest.mark.parametrize(
    "state",
    [
        {"complete": [[ID, 1, [1] * 5]]},
        {"complete": [[ID, 1, [1] * 5, [["x"]]]]},
        {"superseded": [[ID, "x"]]},
        {"superseded": [[ID, "../x", 1]]},
        {"superseded": [["00", "x", 1]]},
    ],
)
def test_rows_that_cannot_be_are_refused(hosts: Hosts, state: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="expected"):
        doubts_of(hosts.store(), Segment(1, 1.0, state=state))


OLD, NEW = plain("a", "1"), plain("a", "2")


def done(source: Source, *names: str) -> Leaf:
    return Leaf(source.id, (), "published" if names else "filtered", tuple(Output(name, 1, "x", 1) for name in names))


def finish(store: LedgerStore, source: Source, *names: str) -> None:
    store.register([source])
    store.commit([done(source, *names)])


def test_what_was_not_deleted_stays_stale(store: LmdbStore) -> None:
    finish(store, OLD, "x", "y", "z")
    finish(store, NEW)
    store.drop_stale(["y", "other"])
    assert store.stale_outputs() == ["x", "z"]
    store.drop_stale([])
    assert store.stale_outputs() == ["x", "z"]


def test_what_is_not_stale_yet_is_not_forgotten(store: LmdbStore) -> None:
    finish(store, OLD, "x", "y")
    store.register([NEW])
    store.drop_stale(["x"])
    store.commit([done(NEW)])
    assert store.stale_outputs() == ["x", "y"]


@pytest.mark.parametrize("forgotten", [False, True])
def test_what_was_written_again_in_its_place_is_superseded_no_more(store: LmdbStore, forgotten: bool) -> None:
    finish(store, OLD, "x", "y")
    if forgotten:
        store.forget("*")
    finish(store, OLD if forgotten else NEW, "x")
    assert (store.stale_outputs(), superseded(store)) == (["y"], ["x", "y"])
    store.drop_stale(["y"])
    assert (store.stale_outputs(), superseded(store)) == ([], [])


def test_what_another_source_has_written_under_its_name_is_still_superseded(store: LmdbStore) -> None:
    finish(store, OLD, "x", "y")
    finish(store, NEW)
    finish(store, plain("b"), "y")
    store.drop_stale(store.stale_outputs())
    assert superseded(store) == ["y"]
    store.forget("*/b.jsonl")
    assert store.stale_outputs() == ["y"]


def test_outputs_of_a_pack_are_written_again_by_any_that_took_its_place(store: LmdbStore) -> None:
    pack = Source.pack([plain("a"), plain("b")])
    finish(store, pack, "first", "second", "third")
    finish(store, plain("a", "2"), "first")
    finish(store, plain("b", "2"), "second")
    assert store.stale_outputs() == ["third"]
    store.drop_stale(["third"])
    assert superseded(store) == []


def test_an_input_that_nobody_took_over_keeps_no_output_of_its_pack(store: LmdbStore) -> None:
    finish(store, Source.pack([plain("a"), plain("b")]), "first")
    store.register([NEW])
    assert store.stale_outputs() == []
    store.commit([done(NEW)])
    assert store.stale_outputs() == ["first"]


@pytest.mark.parametrize(("number", "left"), [(2, ["x", "y"]), (3, ["y"]), (4, ["y"])])
@pytest.mark.parametrize("complete", [False, True])
def test_a_deletion_drops_what_it_had_seen(tmp_path: Path, number: int, left: list[str], complete: bool) -> None:
    made = [
        Segment(1, 10.0, sources=[OLD], leaves=[done(OLD, "x", "y")]),
        Segment(3, 30.0, sources=[NEW], leaves=[done(NEW)] if complete else []),
        Segment(number, 40.0, dropped=["x"]),
    ]
    store = folded(tmp_path / "host", *made)
    assert superseded(store) == left
    assert store.stale_outputs() == (left if complete else [])
    store.close()


def test_what_was_deleted_stays_so_for_whoever_learns_first_that_it_was_superseded_again(tmp_path: Path) -> None:
    again = Segment(5, 50.0, sources=[OLD], leaves=[done(OLD, "z")])
    last = Segment(7, 70.0, sources=[Source(NEW.url, 1, "3")], leaves=[done(Source(NEW.url, 1, "3"))])
    made = [
        Segment(1, 10.0, sources=[OLD], leaves=[done(OLD, "x", "y")]),
        Segment(3, 30.0, sources=[NEW], leaves=[done(NEW)]),
        Segment(4, 40.0, dropped=["x"]),
    ]
    in_time = folded(tmp_path / "in time", *made, again, last)
    late = folded(tmp_path / "late", again, last, *made)
    assert superseded(in_time) == superseded(late) == ["y", "z"]
    for store in (in_time, late):
        store.close()


def test_what_is_half_done_again_is_superseded_still(tmp_path: Path) -> None:
    half = Leaf(NEW.id, ((0, 2),), "published", (Output("x", 1, "x", 1),))
    made = [
        Segment(1, 10.0, leaves=[done(OLD, "x", "y")]),
        Segment(3, 30.0, sources=[NEW], leaves=[half]),
        Segment(4, 40.0, dropped=["other"]),
    ]
    store = folded(tmp_path / "host", *made)
    assert superseded(store) == ["x", "y"]
    store.close()


@pytest.mark.parametrize("numbers", [(3, 5), (5, 3)])
def test_what_is_superseded_twice_has_the_greater_number(store: LmdbStore, numbers: tuple[int, int]) -> None:
    finish(store, OLD, "x")
    with store._open().read() as txn:
        rows = list(txn.scan(OUTPUTS, OLD.id))
    for number in numbers:
        store._write(lambda txn, number=number: supersede(txn, rows, number))  # type: ignore[misc]
    with store._open().read() as txn:
        assert [decode_superseded(row) for _, row in txn.scan(SUPERSEDED, b"")] == [(5, "x")]


def test_late_outputs_of_a_replaced_source_make_those_run_again_that_they_overwrote(store: LmdbStore) -> None:
    store.register([OLD])
    finish(store, NEW, "x", "y")
    store.commit([done(OLD)])
    store.commit([done(OLD, "z")])
    assert store.completed_mask([NEW.id]) == [True]
    assert store.stale_outputs() == ["z"]
    store.commit([done(OLD, "y")])
    assert store.completed_mask([OLD.id, NEW.id]) == [False, False]
    assert store.stale_outputs() == []
    store.commit([done(NEW, "x", "y")])
    assert store.completed_mask([NEW.id]) == [True]
    assert store.stale_outputs() == ["z"]
    assert [row.output.name for row in store.outputs()] == ["x", "y"]


def test_one_output_of_several_that_a_late_task_wrote_over_is_enough(store: LmdbStore) -> None:
    finish(store, OLD, "u")
    finish(store, NEW, "x")
    store.commit([done(OLD, "w", "x", "z")])
    assert store.completed_mask([NEW.id]) == [False]
    with store._open().read() as txn:
        found = sorted(decode_superseded(row) for _, row in txn.scan(SUPERSEDED, b""))
    assert found == [(0, "u"), (0, "w"), (0, "x"), (0, "x"), (0, "z")], "a local ledger has no numbers"


def test_a_late_task_of_a_pack_makes_all_run_again_whose_outputs_it_wrote_over(store: LmdbStore) -> None:
    parts = [plain("a", "2"), plain("b", "2")]
    pack = Source.pack([plain("a", "1"), plain("b", "1")])
    store.register([pack])
    finish(store, parts[0], "x")
    finish(store, parts[1], "y")
    store.commit([done(pack, "x", "y")])
    assert store.completed_mask([source.id for source in parts]) == [False, False]


def test_a_late_task_makes_no_source_run_again_that_has_published_nothing_yet(store: LmdbStore) -> None:
    store.register([OLD])
    store.register([NEW])
    store.commit([done(OLD, "x")])
    store.commit([done(NEW, "x")])
    assert store.completed_mask([NEW.id]) == [True]
    assert store.stale_outputs() == []


def test_a_late_task_makes_others_run_again_whatever_is_recorded_beside_it(store: LmdbStore) -> None:
    beside = [plain(name) for name in "bcdefgh"]
    assert min(source.id for source in beside) < OLD.id < max(source.id for source in beside)
    store.register([OLD, *beside])
    finish(store, NEW, "x")
    store.commit([done(OLD, "x"), *(done(source, source.url) for source in beside)])
    assert store.completed_mask([NEW.id, *(source.id for source in beside)]) == [False] + [True] * len(beside)
