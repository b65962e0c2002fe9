"""Refreshing a host: the folded objects, their order, and the requests for them."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ledgerbeam.errors import LedgerDamagedError, LedgerNotFoundError
from ledgerbeam.io.storage.objects import ObjectFolder
from ledgerbeam.ledger.lmdb.tables import META
from ledgerbeam.ledger.model.rows import Leaf, Output
from ledgerbeam.ledger.model.values import LIMIT, encode
from ledgerbeam.ledger.remote import replay as folding
from ledgerbeam.ledger.remote.compaction import compact
from ledgerbeam.ledger.remote.controls import Control, decode_control, encode_control
from ledgerbeam.ledger.remote.registration import KEY_NUMBER
from ledgerbeam.ledger.remote.replay import (
    FOLDS,
    Replayer,
    SnapshotManifest,
    decode_manifest,
    encode_manifest,
    segment_name,
    snapshot_name,
)
from ledgerbeam.ledger.remote.segment import Segment, decode_segment, encode_segment, seal
from ledgerbeam.ledger.remote.sink import RemoteSink
from ledgerbeam.ledger.worker.writer import LedgerWriter
from ledgerbeam.pipelines.report.data import report_data
from ledgerbeam.pipelines.report.state import job_progress, shown_runs
from tests.cases import each
from tests.conftest import S3Server
from tests.ledger.builders import ONE, TWO, failure_of, leaf_of, leaves_of_split, plain
from tests.ledger.remote.test_store import Hosts, Noted
from tests.ledger.stores import finish, picture, superseded


class Interrupted(Noted):
    """A folder of objects that notes how many are read at once, and fails from the nth read of a snapshot's part."""

    at_once: list[int]
    parts_left = 10**9

    def read(self, names: Sequence[str]) -> list[bytes | None]:
        self.at_once = [*getattr(self, "at_once", ()), len(names)]
        if any(name.startswith("snapshots/") and name.endswith(".seg") for name in names):
            if self.parts_left == 0:
                raise ConnectionError("interrupted")
            self.parts_left -= 1
        return super().read(names)


# Names


def test_a_new_snapshot_is_listed_behind_all_that_it_stands_for() -> None:
    made: list[str] = []
    for _ in range(12):
        made.append(snapshot_name(7, ["segments/000009/t-a-000001.seg", *(f"{name}.json" for name in made)]))
    assert made == sorted(made)
    assert snapshot_name(7, [f"{name}.json" for name in reversed(made)]) > made[-1]
    last = f"{made[-1][:-16]}{'f' * 16}"  # the others are deleted by then
    assert snapshot_name(7, [f"{last}.json"]) > last


@pytest.mark.parametrize(
    ("segment", "name"),
    [
        (Segment(7, 1.0, sources=[plain()], dropped=["a"]), "segments/000007/s-w-000003.seg"),
        (Segment(7, 1.0, leaves=[leaf_of(plain())], dropped=["a"]), "segments/000007/z-w-000003.seg"),
        (Segment(7, 1.0, leaves=[leaf_of(plain())]), "segments/000007/t-w-000003.seg"),
    ],
)
def test_the_name_of_a_segment_says_when_it_is_folded(segment: Segment, name: str) -> None:
    assert segment_name(segment, 7, "w", 3) == name


def test_what_was_deleted_is_folded_after_what_had_superseded_it(hosts: Hosts) -> None:
    store = hosts.launcher()
    old, new = plain(version="1"), plain(version="2")
    store.register([old])
    store.begin_run({})
    store.register([new])
    store.commit([Leaf(new.id, (), "published", (), 1, 1)])
    late = Segment(2, 1.0, leaves=[Leaf(old.id, (), "published", (Output("late", 1, "x", 1),))])
    hosts.objects.create(segment_name(late, 2, "worker", 1), encode_segment(late))
    store.refresh()
    assert store.stale_outputs() == ["late"]
    swept = Segment(2, 2.0, dropped=["late"])
    hosts.objects.create(segment_name(swept, 2, "a-sweeper-before-the-worker", 1), encode_segment(swept))
    for host in (store, hosts.store()):
        host.refresh()
        assert host.stale_outputs() == []
        assert superseded(host) == []


def test_numbers_are_taken_in_as_numbers_are_counted(hosts: Hosts) -> None:
    store = hosts.store()
    known = str(999_998).encode()
    store.parts()[1].write(lambda txn: txn.put(META, KEY_NUMBER, known))
    for number in (999_999, 1_000_000):
        hosts.objects.create(f"controls/{number:06d}.json", encode_control(Control(number, "run", 1.0, "token")))
        version = Segment(number, 1.0, sources=[plain(version=str(number))])
        hosts.objects.create(segment_name(version, number, "hand", 1), encode_segment(version))
    store.refresh()
    assert [run["id"] for run in store.runs()] in (["999999", "1000000"], ["1000000", "999999"])
    assert [row.source_id for row in store.sources()] == [plain(version="1000000").id]


# Pages


def test_objects_are_read_in_chunks_and_none_is_left_out(hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folding, "_READ_AT_ONCE", 2)
    store = hosts.launcher(runs=0)
    for n in range(5):
        store.begin_run({})
        store.register([plain(f"s{n}")])
        store.commit(leaves_of_split(plain(f"s{n}"), 2)[:1], [failure_of(plain(f"s{n}"), ((1, 2),))])
    expected = picture(store)
    assert picture(hosts.store()) == expected
    compact(hosts.store())
    assert picture(hosts.store()) == expected
    assert len(hosts.manifests()) == 1


@pytest.mark.parametrize(("size", "batches"), [(1, [1] * 8), (2, [2] * 4), (1_000, [8])])
def test_segments_are_batched(hosts: Hosts, monkeypatch: pytest.MonkeyPatch, size: int, batches: list[int]) -> None:
    hosts.launcher(*(plain(f"s{n}") for n in range(8)))
    sink = RemoteSink(hosts.objects)
    for n in range(8):
        sink.commit([leaf_of(plain(f"s{n}"))])
    lengths = {len(hosts.objects.read([name])[0] or b"") for name in hosts.objects.names("segments") if "/t-" in name}
    monkeypatch.setattr(folding, "_BATCH_BYTES", (size - 1) * max(lengths) + 1)
    noted = Interrupted(hosts.objects.url)
    reader = hosts.on(noted)
    folded: list[int] = []
    real = folding.Replayer._fold_batch

    def fold(replayer: folding.Replayer, batch: Sequence[tuple[str, bytes]], *see: Any) -> None:
        if "/t-" in batch[0][0]:
            folded.append(len(batch))
        real(replayer, batch, *see)

    monkeypatch.setattr(folding.Replayer, "_fold_batch", fold)
    reader.open()
    assert folded == batches
    assert picture(reader) == picture(hosts.store())


def test_of_large_objects_fewer_are_read_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folding, "_BATCH_BYTES", 1_000)
    objects = Interrupted(str(tmp_path))
    names = [f"{number:02d}" for number in range(40)]
    for name in names:
        objects.create(name, b"x" * 1_000)
    objects.at_once = []
    assert [name for name, _ in folding.read_listed(objects, names)] == names
    assert objects.at_once == [32, 2, 2, 2, 2]


@pytest.mark.parametrize(("size", "at_once"), [(0, [32, 8]), (5_000, [32, *[1] * 8])], ids=["empty", "huge"])
def test_objects_of_any_size_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int, at_once: list[int]
) -> None:
    monkeypatch.setattr(folding, "_BATCH_BYTES", 1_000)
    objects = Interrupted(str(tmp_path))
    names = [f"{number:02d}" for number in range(40)]
    for name in names:
        objects.create(name, b"x" * size)
    objects.at_once = []
    assert list(folding.read_listed(objects, names)) == [(name, b"x" * size) for name in names]
    assert objects.at_once == at_once


# Requests


def test_a_job_that_the_listing_has_passed_is_taken_in_with_the_first_control(hosts: Hosts) -> None:
    class Passed(ObjectFolder):
        """Does not list the job, as if it had been made after that page was listed."""

        def names(self, folder: str) -> list[str]:
            return [name for name in super().names(folder) if name != "job.json"]

    reader = hosts.on(Passed(hosts.objects.url))
    reader.open(create=True)
    hosts.launcher()
    reader.refresh()
    assert (reader.job(), len(reader.runs())) == (ONE, 1)


def test_what_another_job_recorded_is_not_taken_for_that_of_a_later_job(hosts: Hosts) -> None:
    """Its `job.json` is lost, so the job of the other objects is unknown."""
    store = hosts.launcher(plain())
    store.commit([leaf_of(plain())])
    hosts.objects.delete(["job.json"])
    before = hosts.objects.names("")
    other = hosts.on(hosts.objects)
    other.open(create=True)
    with pytest.raises(LedgerDamagedError, match=r"job\.json is missing.*Restore it from a copy.*delete the folder"):
        other.open_job(TWO)
    assert hosts.objects.names("") == before
    other.close()
    hosts.objects.delete(before)  # as it says
    other.open(create=True)
    other.open_job(TWO)
    assert (other.status()["sources"]["complete"], other.runs()) == (0, [])


@pytest.mark.parametrize("left", ["controls/000001.json", "segments/000001/t-a-000000.seg", "snapshots/000001-a.json"])
def test_whatever_is_left_of_a_ledger_its_job_is_missed(hosts: Hosts, left: str) -> None:
    hosts.objects.create(left, b"")
    with pytest.raises(LedgerDamagedError, match=r"job\.json is missing.*Restore it from a copy"):
        hosts.on(hosts.objects).open()
    hosts.objects.delete([left])
    with pytest.raises(LedgerNotFoundError, match=r"it does not exist \(job\.json is missing\)"):
        hosts.on(hosts.objects).open()


def test_a_ledger_made_just_after_its_job_was_looked_for_is_not_lost(hosts: Hosts) -> None:
    class Early(ObjectFolder):
        """Looks for the job, and then another launcher makes the ledger."""

        def read(self, names: Sequence[str]) -> list[bytes | None]:
            found = super().read(names)
            if not self.names("controls"):
                hosts.launcher()
            return found

    reader = hosts.on(Early(hosts.objects.url))
    reader.open()
    assert (reader.job(), len(reader.runs())) == (ONE, 1)


def test_of_a_ledger_that_was_not_listed_yet_nothing_is_known(hosts: Hosts) -> None:
    store = hosts.launcher(runs=0)
    hosts.objects.replace("claims/000001/a.json", b"")
    hosts.objects.replace("claimsbeside/000001.json", b"")
    replayer = folding.Replayer(*store.parts())
    assert (replayer.has_job, replayer.claims) == (False, [])
    assert replayer.fold_new() == []
    assert (replayer.has_job, replayer.claims) == (True, ["claims/000001/a.json"])
    assert hosts.store().claimed == ["claims/000001/a.json"]


def test_a_host_that_is_up_to_date_reads_nothing(hosts: Hosts) -> None:
    store, reader = hosts.launcher(plain()), hosts.store()
    compact(store)
    store.begin_run({})
    reader.refresh()
    hosts.objects.reads.clear()
    reader.refresh()
    assert hosts.objects.reads == []
    assert picture(reader) == picture(store)


def test_a_host_interrupted_in_a_snapshot_goes_on_where_it_was(hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folding, "_READ_AT_ONCE", 1)  # which are folded at once, too: a batch is all or nothing
    store = hosts.launcher(plain(), plain("b"))
    store.commit([leaf_of(plain()), leaves_of_split(plain("b"), 2)[0]])
    assert compact(store).parts > 2
    noted = Interrupted(hosts.objects.url)
    reader = hosts.on(noted)
    noted.parts_left = 2
    with pytest.raises(ConnectionError):
        reader.open()
    begun = [name for name in noted.reads if name.endswith(".seg")][:2]
    noted.parts_left = 10**9
    noted.reads.clear()
    reader.refresh()
    assert not set(begun) & set(noted.reads)
    assert picture(reader) == picture(store)


def test_objects_that_are_listed_and_never_read_are_an_error_in_the_end(hosts: Hosts) -> None:
    hosts.launcher(plain(), runs=0)
    tries: list[str] = []

    class Hollow(ObjectFolder):
        """Lists objects that it does not have."""

        def read(self, names: Sequence[str]) -> list[bytes | None]:
            tries.extend(name for name in names if name.startswith("segments"))
            return [
                None if name.startswith("segments") else data
                for name, data in zip(names, super().read(names), strict=True)
            ]

    reader = hosts.on(Hollow(hosts.objects.url))
    with pytest.raises(LedgerDamagedError, match=rf"{hosts.objects.url}: in {FOLDS} attempts, listed objects did"):
        reader.open()
    assert len(tries) == FOLDS


def test_a_part_of_a_snapshot_that_is_lost_is_named_with_its_manifest(hosts: Hosts) -> None:
    store = hosts.launcher(plain("a"), plain("b"))
    store.commit([leaf_of(plain("a"))])
    compact(store)
    before = picture(store)
    store.begin_run({})
    store.commit([leaf_of(plain("b"))])
    names = hosts.objects.names("snapshots")
    manifest = next(name for name in names if name.endswith(".json"))
    part = next(name for name in names if name.endswith(".seg"))
    (data,) = hosts.objects.read([part])
    hosts.objects.delete([part])
    url = hosts.objects.url
    missing, remedy = f"{url}/{part}: this part of a snapshot is missing", f"delete the manifest, {url}/{manifest}:"
    said = f"^{missing}, but its manifest exists.* {remedy}"
    for _ in range(2):
        with pytest.raises(LedgerDamagedError, match=said):
            hosts.store()
    with pytest.raises(LedgerDamagedError, match=said):
        compact(store)
    store.refresh()  # a host that has folded the replaced objects does not need it
    hosts.objects.create(part, data or b"")  # as it says
    assert picture(hosts.store()) == picture(store) != before
    hosts.objects.delete([part, manifest])  # or so
    new = hosts.store()
    assert (len(new.runs()), new.completed_count()) == (2, 0)
    new.register([plain("a"), plain("b")])
    new.commit([leaf_of(plain("a")), leaf_of(plain("b"))])
    assert new.completed_count() == hosts.store().completed_count() == 2


def test_of_what_is_gone_a_part_is_lost_whose_manifest_is_there_and_nothing_else(tmp_path: Path) -> None:
    objects = ObjectFolder(str(tmp_path))
    manifest, part, segment = OBJECTS
    for beside in (f"{segment.rpartition('/')[0]}.json", ".json", "/.json"):
        objects.create(beside, b"")
    for name in (part, segment):
        with pytest.raises(folding.Overtaken):
            list(folding.read_listed(objects, [name]))
    objects.create(manifest, b"")
    with pytest.raises(LedgerDamagedError, match=rf"/{part}: this part of a snapshot is missing.*/{manifest}:"):
        list(folding.read_listed(objects, [part]))


def test_a_snapshot_compacted_away_while_it_is_read_is_no_damage(hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> None:
    writer, reader = hosts.store(), hosts.store()
    writer.open_job(ONE)
    writer.register([plain()])
    writer.commit([leaf_of(plain())])
    compact(writer)
    writer.register([plain("b")])
    fold_parts = Replayer._fold_parts

    def overtaken(self: Replayer, *args: Any) -> Any:
        monkeypatch.setattr(Replayer, "_fold_parts", fold_parts)
        compact(writer)  # deletes the manifest that is taken in, and its parts
        return fold_parts(self, *args)

    monkeypatch.setattr(Replayer, "_fold_parts", overtaken)
    reader.refresh()
    assert picture(reader) == picture(writer)


def test_a_host_learns_the_job_that_another_has_taken_the_ledger_for(hosts: Hosts) -> None:
    early, late = hosts.store(), hosts.store()
    early.refresh()
    assert early.job() is None
    late.open_job(ONE)
    early.refresh()
    assert early.job() == ONE
    assert early.ledger_id() == late.ledger_id()


def test_a_job_that_came_meanwhile_is_not_taken_back(hosts: Hosts) -> None:
    beside = hosts.on(hosts.objects)

    class Slow(ObjectFolder):
        """While it reads the first job of the ledger, another thread takes everything in."""

        calls = 0

        def read(self, names: Sequence[str]) -> list[bytes | None]:
            found = super().read(names)
            if names == ["job.json"]:
                Slow.calls += 1
                if Slow.calls == 2:
                    beside.open()
            return found

    reader = hosts.on(Slow(hosts.objects.url), beside._path)
    reader.open(create=True)
    launcher = hosts.launcher(runs=0)
    launcher.open_job(TWO, "accept")
    reader.refresh()
    assert Slow.calls == 2
    assert reader.job() == TWO


# Refused objects


def test_a_control_that_says_another_number_than_its_name_is_refused(hosts: Hosts) -> None:
    store = hosts.store()
    hosts.objects.create("controls/000001.json", encode_control(Control(2, "run", 1.0, "token")))
    for _ in range(2):
        with pytest.raises(LedgerDamagedError, match=r"controls/000001\.json.* number 2"):
            store.refresh()
    assert store.runs() == []


@pytest.mark.parametrize("said", [1, 2])
def test_a_control_does_not_say_a_number_that_is_another_ones(hosts: Hosts, said: int) -> None:
    store = hosts.launcher(runs=2)
    hosts.objects.create("controls/000003.json", encode_control(Control(said, "run", 1.0, "token")))
    for _ in range(2):
        with pytest.raises(LedgerDamagedError, match=rf"controls/000003\.json.* has number {said};"):
            store.refresh()
    assert len(store.runs()) == 2


@pytest.mark.parametrize("kind", ["segment", "snapshot"])
@pytest.mark.parametrize("beyond", [0, 1])
def test_only_a_control_may_have_the_number_after_the_greatest(hosts: Hosts, kind: str, beyond: int) -> None:
    store = hosts.launcher(runs=2)
    number = 2 + beyond
    if kind == "segment":
        name, data = f"segments/{number:06d}/s-hand.seg", encode_segment(Segment(number, 1.0, sources=[plain()]))
    else:
        base = f"snapshots/{number:06d}-000001-abcdabcd"
        name, data = f"{base}.json", encode_manifest(SnapshotManifest(base, number, {}, []))
    hosts.objects.create(name, data)
    if beyond:
        with pytest.raises(LedgerDamagedError, match=f"{name}.*up to 2 in another object"):
            store.refresh()
    else:
        store.refresh()
    assert store.source_count() == (kind == "segment" and not beyond)


def test_a_run_that_says_of_itself_what_does_not_read_is_refused(hosts: Hosts) -> None:
    store = hosts.store()
    control = Control(1, "run", 1.0, "token", info={"pid": "one"})
    hosts.objects.create("controls/000001.json", encode_control(control))
    for _ in range(2):
        with pytest.raises(LedgerDamagedError, match=r"controls/000001\.json.*expected a number"):
            store.refresh()
    assert store.runs() == []


def test_a_segment_whose_sums_no_ledger_can_hold_is_named_and_nothing_of_it_is_taken_in(hosts: Hosts) -> None:
    store = hosts.store(plain("a"), plain("b"))
    leaves = [Leaf(plain(name).id, (), "published", (), 1, LIMIT) for name in "ab"]
    segment = Segment(0, 1.0, leaves=leaves)
    name = segment_name(segment, 0, "hand", 1)
    hosts.objects.create(name, encode_segment(segment))
    for _ in range(2):
        with pytest.raises(LedgerDamagedError, match=name):
            store.refresh()
    assert store.totals().tasks == 0


BASE = "snapshots/000001-000001-abcdabcd"
OBJECTS = [f"{BASE}.json", f"{BASE}/000001.seg", "segments/000001/t-a.seg"]
PARTS = {OBJECTS[1]: "ab" * 16}


def test_a_snapshot_may_stand_for_segments_and_for_snapshots() -> None:
    manifest = SnapshotManifest(BASE, 1, PARTS, OBJECTS)
    assert decode_manifest(encode_manifest(manifest), f"here/{OBJECTS[0]}") == manifest


@pytest.mark.parametrize("what", ["manifest", "part"])
def test_an_older_object_in_place_of_another_is_refused_until_that_is_restored(hosts: Hosts, what: str) -> None:
    """Work that the newest snapshot knows would look not done, or a changed source would look complete."""
    store = hosts.launcher(runs=0)
    kept: list[dict[str, bytes]] = []
    for name in "ab":
        finish(store, plain(name))
        compact(store)
        names = hosts.objects.names("snapshots")
        kept.append({name: data or b"" for name, data in zip(names, hosts.objects.read(names), strict=True)})
    old, new = kept
    (was, *old_parts), (now, *new_parts) = (sorted(found, key=lambda name: name.endswith(".seg")) for found in kept)
    if what == "manifest":
        planted, said = {name: old[name] for name in old_parts} | {now: old[was]}, rf"{now}: .*has the name {was}; "
    else:
        planted = dict(zip(new_parts, (old[name] for name in old_parts), strict=False))
        said = "expected the checksum .* of snapshots/.*json, found "
    for name, data in planted.items():
        hosts.objects.replace(name, data)
    for _ in range(2):
        with pytest.raises(LedgerDamagedError, match=f"{said}.*delete it"):
            hosts.store()
    store.register([plain("c")])
    with pytest.raises(LedgerDamagedError, match=f"{said}.*delete it"):
        compact(store)
    for name, data in new.items():
        hosts.objects.replace(name, data)  # as it says
    assert picture(hosts.store()) == picture(store)


MANIFEST: dict[str, Any] = {"name": BASE, "number": 1, "parts": {}, "covers": []}
BAD_PARTS: list[Any] = [OBJECTS[1:2], {OBJECTS[1]: "ab"}, {OBJECTS[1]: 1}, *({OBJECTS[n]: "ab" * 16} for n in (0, 2))]
BAD_COVERS: list[Any] = [[1], ["controls/000001.json"], [f"{OBJECTS[0]}x"], None]


@each(
    "fields",
    [
        *({**MANIFEST, "parts": parts} for parts in BAD_PARTS),
        *({**MANIFEST, "covers": covers} for covers in BAD_COVERS),
        *({name: value for name, value in MANIFEST.items() if name != missing} for missing in MANIFEST),
        *({**MANIFEST, "number": -1}, {**MANIFEST, "name": 1}, []),
    ],
)
def test_a_manifest_whose_values_cannot_be_is_refused_by_name(fields: Any) -> None:
    with pytest.raises(LedgerDamagedError, match=rf"here/{OBJECTS[0]}: .*expected"):
        decode_manifest(seal(encode(fields)), f"here/{OBJECTS[0]}")


@each(
    ("name", "number", "parts", "covers"),
    [
        (OBJECTS[0], 1, {}, []),
        (BASE, -1, {}, []),
        (BASE, True, {}, []),
        (BASE, 1, {OBJECTS[0]: "ab" * 16}, []),
        (BASE, 1, {OBJECTS[1]: "ab"}, []),
        (BASE, 1, {OBJECTS[1]: 1}, []),
        (BASE, 1, {}, ["controls/000001.json"]),
        (BASE, 1, {}, ["../victim"]),
    ],
)
def test_an_unreadable_manifest_is_not_made(name: str, number: int, parts: dict[str, Any], covers: list[str]) -> None:
    with pytest.raises(ValueError, match="expected"):
        encode_manifest(SnapshotManifest(name, number, parts, covers))


def test_only_segments_that_are_named_so_tell_of_deletions() -> None:
    names = {kind: f"segments/000001/{kind}-a.seg" for kind in "stz"}
    assert names["z"] == segment_name(Segment(1, 1.0, dropped=["a"]), 1, "a", 1).replace("-000001", "")
    others = [names["s"], names["t"], *OBJECTS, f"{names['z']}x", "controls/000001.json", ""]
    assert [name for name in [names["z"], *others] if folding.lists_deletions(name)] == [names["z"]]


@pytest.mark.parametrize("missing", ["number", "at"])
def test_an_object_without_number_or_time_is_refused(missing: str) -> None:
    fields = {"number": 1, "at": 1.0, "format": 1, "kind": "run", "token": "t"}
    del fields[missing]
    with pytest.raises(LedgerDamagedError, match="here: "):
        decode_segment(seal(encode(fields)), "here")
    with pytest.raises(LedgerDamagedError, match="here: "):
        decode_control(encode(fields), "here")


def test_a_registration_that_was_deleted_is_waited_for_once_however_many_tasks_ask_for_it(hosts: Hosts) -> None:
    store = hosts.launcher(runs=0)
    run = store.begin_run({})
    store.register([plain("kept")])
    store.register([plain()])
    lost = hosts.objects.names("segments")[-1]
    sink = RemoteSink(hosts.objects, run=run)
    for leaf in leaves_of_split(plain(), FOLDS + 10):
        sink.commit([leaf])
    sink.commit([leaf_of(plain("kept"))])
    hosts.objects.delete([lost])  # as the remedy says, if it does not read
    host = hosts.store()
    assert [(row.url, row.state) for row in host.sources()] == [(plain("kept").url, "complete")]
    host.begin_run({})
    host.register([plain()])
    host.commit(leaves_of_split(plain(), 2))
    assert host.completed_count() == 2
    assert picture(hosts.store())["sources"] == picture(host)["sources"]


FAR = 999_999_999_999

SNAPSHOT = f"snapshots/{FAR}-{FAR}-abcdabcd"


def control(number: int) -> bytes:
    return encode_control(Control(number, "run", time.time(), "token"))


HOSTILE = {
    f"controls/{FAR}.json": control(FAR),
    "controls/000004.json": control(4),
    "controls/000004-ab.json": control(4),
    f"segments/{FAR}/t-enemy-000001.seg": encode_segment(Segment(FAR, 1.0, gone=[plain().id])),
    "segments/000001/t-enemy-000001.seg": encode_segment(Segment(FAR, 1.0, leaves=leaves_of_split(plain(), 2)[:1])),
    f"{SNAPSHOT}.json": encode_manifest(SnapshotManifest(SNAPSHOT, FAR, {}, [])),
}


@pytest.mark.parametrize("name", sorted(HOSTILE))
def test_an_object_whose_number_does_not_follow_is_refused_until_it_is_deleted(hosts: Hosts, name: str) -> None:
    launcher = hosts.launcher()
    launcher.begin_run({})
    launcher.register([plain()])
    known = hosts.store()
    before = picture(known)
    assert hosts.objects.create(name, HOSTILE[name])
    for _ in range(2):
        for store in (known, launcher):
            with pytest.raises(LedgerDamagedError, match=rf"{re.escape(name)}.*a number up to 3 .* delete this object"):
                store.refresh()
        with pytest.raises(LedgerDamagedError, match=re.escape(name)):
            hosts.store()
    if name.startswith("controls"):
        with pytest.raises(LedgerDamagedError, match=re.escape(name)):
            RemoteSink(hosts.objects).commit([leaf_of(plain())])
    hosts.objects.delete([name])
    for store in (known, launcher, hosts.store()):
        store.refresh()
        assert picture(store) == before
    assert launcher.begin_run({}) == "000003"
    RemoteSink(hosts.objects).commit([leaf_of(plain())])
    known.refresh()
    assert all(known.completed_mask([plain().id]))


@pytest.mark.parametrize(
    "name", ["0000001", "00000000001", "\N{FULLWIDTH DIGIT ONE}" * 6, "-00001", "1", f"{FAR}0", "000001-xyz"]
)
def test_other_names_below_the_controls_are_no_controls(hosts: Hosts, name: str) -> None:
    store = hosts.launcher(runs=0)
    hosts.objects.create(f"controls/{name}.json", b"anything")
    assert store.begin_run({}) == "000001"
    assert len(hosts.store().runs()) == 1


def test_a_control_that_is_listed_too_early_is_waited_for(hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> None:
    launcher, host = hosts.store(), hosts.store()
    launcher.open_job(ONE)
    host.refresh()
    launcher.begin_run({})
    launcher.begin_run({})
    real = hosts.objects.names
    passed: list[str] = []

    def names(folder: str) -> list[str]:
        found = real(folder)
        passed.append(folder)
        return [name for name in found if len(passed) > 1 or not name.endswith("000001.json")]

    monkeypatch.setattr(hosts.objects, "names", names)
    host.refresh()
    assert len(host.runs()) == 2
    passed.clear()
    RemoteSink(hosts.objects).commit([leaf_of(plain())])
    assert passed == ["controls", "controls"]


def test_a_time_in_the_future_does_no_harm(hosts: Hosts) -> None:
    launcher = hosts.launcher(plain("a"), plain("b"))
    launcher.commit([leaf_of(plain("a"))])
    far = 32_000_000_000.0  # in the year 2984
    name = segment_name(Segment(1, far), 1, "clock", 1)
    hosts.objects.create(name, encode_segment(Segment(1, far, leaves=[leaf_of(plain("b"))])))
    ahead = replace(Control(2, "run", far, "token"), info={"host": "ahead"})
    hosts.objects.create("controls/000002.json", encode_control(ahead))
    launcher.refresh()
    new = hosts.store()
    assert picture(new) == picture(launcher)
    for store in (launcher, new):
        assert store.completed_count() == 2
        now = time.time()
        assert all(row.time <= now for row in store.history())
        assert sum(row.totals.tasks for row in store.history()) == 2
        assert len(report_data(store).steps) < 300
        progress = job_progress(store, store.status(), shown_runs(store))
        assert progress.run is None or progress.run["tasks"] >= 0
    assert launcher.begin_run({}) == "000003"
    compact(launcher)
    assert picture(hosts.store()) == picture(launcher)


def taken_names(sink: RemoteSink, count: int) -> list[str]:
    """Return the names that the next segments of a sink will have."""
    segment = Segment(sink._seen, 0.0, leaves=[leaf_of(plain())])
    return [segment_name(segment, sink._seen, sink._writer, sink._sequence + n) for n in range(1, count + 1)]


def check_taken_names(objects: ObjectFolder) -> None:
    sink = RemoteSink(objects)
    names = taken_names(sink, 2)
    for name in names:
        assert objects.create(name, encode_segment(Segment(0, 1.0)))
    writer = LedgerWriter(sink, interval=1000)
    writer.add(leaf_of(plain()))
    for name in names:
        with pytest.raises(LedgerDamagedError, match=re.escape(name)):
            writer.flush()
    assert writer.flush().fresh == 1
    writer.close()


def test_leaves_are_kept_until_a_name_is_free(hosts: Hosts) -> None:
    store = hosts.launcher(plain(), runs=0)
    check_taken_names(hosts.objects)
    store.refresh()
    assert all(store.completed_mask([plain().id]))


@pytest.mark.s3
def test_leaves_are_kept_until_a_name_is_free_on_s3(s3: S3Server) -> None:
    check_taken_names(ObjectFolder(f"s3://{s3.bucket()}/a/ledger", s3.options))


def test_a_repeated_creation_of_the_same_bytes_is_a_success(hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = RemoteSink(hosts.objects)
    real = hosts.objects.create

    def twice(name: str, data: bytes) -> bool:
        real(name, data)  # whose answer was lost
        return real(name, data)

    monkeypatch.setattr(hosts.objects, "create", twice)
    assert sink.commit([leaf_of(plain())]).fresh == 1


def test_a_store_whose_name_is_taken_changes_nothing(hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> None:
    store = hosts.launcher(plain(), runs=0)
    before = picture(store)
    with monkeypatch.context() as patched:
        patched.setattr(hosts.objects, "create", lambda name, data: False)
        with pytest.raises(LedgerDamagedError, match="found one with other content"):
            store.commit([leaf_of(plain())])
        with pytest.raises(LedgerDamagedError, match="found one with other content"):
            compact(store)
    assert picture(store) == before
    store.commit([leaf_of(plain())])
    assert picture(hosts.store()) == picture(store)
