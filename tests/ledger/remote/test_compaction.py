"""Compaction: it loses nothing with concurrent changes, and a snapshot does not undo later changes."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from ledgerbeam.errors import StorageError
from ledgerbeam.io.storage.objects import ObjectFolder
from ledgerbeam.ledger.model.identity import Lineage
from ledgerbeam.ledger.model.store import MAX_ATTEMPTS
from ledgerbeam.ledger.model.task import Source
from ledgerbeam.ledger.remote import compaction
from ledgerbeam.ledger.remote.compaction import Compaction, compact
from ledgerbeam.ledger.remote.replay import FOLDS, Overtaken, Replayer, SnapshotManifest, encode_manifest
from ledgerbeam.ledger.remote.segment import Segment, checksum_of, encode_segment
from ledgerbeam.ledger.remote.sink import RemoteSink
from ledgerbeam.ledger.remote.store import RemoteStore
from tests.ledger.builders import ONE, failure_of, filtered_leaf, leaf_of, leaves_of_split, mark_of, plain
from tests.ledger.remote.test_store import Hosts
from tests.ledger.stores import finish, picture, several, superseded


class Watched(ObjectFolder):
    """A folder of objects that calls a function when the nth object of a kind is created, or deletes so many only."""

    made = 0
    on_made: dict[int, object]
    deletions = 10**9

    def create(self, name: str, data: bytes) -> bool:
        created = super().create(name, data)
        Watched.made += 1
        act = self.on_made.get(Watched.made)
        if callable(act):
            act()
        return created

    def delete(self, names: Iterable[str]) -> None:
        if Watched.deletions == 0:
            raise StorageError("the store does not answer")
        Watched.deletions -= 1
        super().delete(names)


@pytest.fixture
def watched(hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> RemoteStore:
    """A host that compacts, whose objects can be watched."""
    monkeypatch.setattr(Watched, "made", 0)
    monkeypatch.setattr(Watched, "on_made", {}, raising=False)
    monkeypatch.setattr(Watched, "deletions", 10**9)
    store = hosts.on(Watched(hosts.objects.url))
    store.open(create=True)
    return store


@pytest.mark.parametrize("deletions", range(4))
def test_a_compaction_that_fails_to_delete_harms_nobody(hosts: Hosts, watched: RemoteStore, deletions: int) -> None:
    store = hosts.launcher(plain("open"), plain("done"))
    store.commit(leaves_of_split(plain("open"), 2)[:1])
    compact(store)
    finish(store, plain("done"))
    expected = picture(store)
    Watched.deletions = deletions
    if deletions < 2:
        with pytest.raises(StorageError):
            compact(watched)
    else:
        compact(watched)
    for host in (store, hosts.store()):
        host.refresh()
        assert picture(host) == expected
    compact(store)
    assert picture(hosts.store()) == expected


def test_a_compaction_leaves_one_snapshot_and_nothing_that_it_stands_for(hosts: Hosts) -> None:
    store = hosts.launcher(runs=0)
    for n in range(3):
        finish(store, plain(f"s{n}"))
        compact(store)
    for n in range(110):
        store.register([plain(f"t{n}")])
    assert compact(store).replaced > 110
    assert hosts.objects.names("segments") == []
    (manifest,) = hosts.manifests()
    parts = manifest.removesuffix(".json")
    assert all(name.startswith(parts) for name in hosts.objects.names("snapshots"))
    assert compact(store).replaced == 0
    assert hosts.store().source_count() == 113


@pytest.mark.parametrize("part", range(1, 8))
def test_a_source_completed_during_a_compaction_is_complete(hosts: Hosts, watched: RemoteStore, part: int) -> None:
    launcher = hosts.launcher(plain())
    first, last = leaves_of_split(plain(), 2)
    launcher.commit([first])
    watched.refresh()
    Watched.made = 0

    def complete() -> None:
        Watched.on_made = {}
        watched.commit([last])

    Watched.on_made = {part: complete}
    compact(watched)
    if Watched.on_made:
        pytest.skip("the snapshot has fewer parts")
    for host in (launcher, hosts.store()):
        host.refresh()
        assert all(host.completed_mask([plain().id]))
        assert picture(host) == picture(watched)


def replace_source(store: RemoteStore) -> None:
    store.begin_run({})
    store.register([plain(version="2")])


def replace_sweep_and_take_back(store: RemoteStore) -> None:
    replace_source(store)
    store.commit([filtered_leaf(plain(version="2"))])
    store.drop_stale(["data/a-0.jsonl"])
    store.begin_run({})
    store.register([plain()])


@pytest.mark.parametrize("change", [replace_source, replace_sweep_and_take_back])
@pytest.mark.parametrize("part", range(1, 13))
def test_what_another_process_of_the_host_takes_in_meanwhile_is_in_no_part_of_a_snapshot(
    hosts: Hosts, watched: RemoteStore, part: int, change: Callable[[RemoteStore], None]
) -> None:
    launcher = hosts.launcher(plain(), plain("b"))
    launcher.begin_run({})
    launcher.register([plain("b", "2")])  # so that a replaced part comes before the part of the sources
    launcher.commit(leaves_of_split(plain(), 2)[:1])
    watched.refresh()
    Watched.made = 0

    def beside() -> None:
        Watched.on_made = {}
        other = hosts.on(hosts.objects, watched._path)
        other.open()
        change(other)
        other.close()

    Watched.on_made = {part: beside}
    compact(watched)
    assert not Watched.on_made or part > 8
    launcher.refresh()
    host = hosts.store()
    assert picture(host) == picture(launcher)
    assert picture(watched) == picture(launcher)
    if not Watched.on_made:
        assert (host.totals().tasks, list(host.outputs()), host.stale_outputs()) == (0, [], [])


@pytest.mark.parametrize("at_once", [True, False])
def test_leaves_of_open_sources_are_kept_in_pages(hosts: Hosts, monkeypatch: pytest.MonkeyPatch, at_once: bool) -> None:
    monkeypatch.setattr(compaction, "_PART_LEAVES", 2)
    store, leaves = hosts.launcher(plain()), leaves_of_split(plain(), 8)[:7]
    for some in [leaves] if at_once else [*([leaf] for leaf in leaves), leaves[:5]]:
        store.commit(some)
    compact(store)
    kept = [part.leaves for part in hosts.segments("snapshots") if part.leaves]
    assert not at_once or [leaf for page in kept for leaf in page] == leaves
    assert not at_once or [len(page) for page in kept] == [2, 2, 2, 1]
    for _ in range(2):
        host = hosts.store()
        assert (host.pending(plain().id), host.totals().tasks) == (1, 7)
        compact(hosts.store())


def test_how_runs_ended_and_what_was_gone_when_is_kept(hosts: Hosts) -> None:
    store = hosts.store()
    run = store.begin_run({})
    store.register([plain(), plain("b")])
    store.note_listing(run, listed=1, finished=True, gone=[plain().id])
    store.end_run(run, "done")
    hosts.store().begin_run({})
    store.refresh()
    expected = picture(store)
    compact(store)
    assert picture(hosts.store()) == expected
    parts = hosts.segments("snapshots")
    assert [(part.number, part.gone) for part in parts if part.gone is not None] == [(1, [plain().id])]
    ((number, runs),) = [(part.number, part.runs) for part in parts if part.runs]
    assert (number, sorted(runs), runs[run]["outcome"]) == (2, ["000001", "000002"], "done")


def test_of_deletions_those_are_repeated_after_which_nothing_was_superseded_again(hosts: Hosts) -> None:
    store = hosts.store()
    for number in (1, 2):
        store.begin_run({})
        rows = [[plain().id.hex(), name, number] for name in ("x", "y")[: 3 - number]]
        segment = encode_segment(Segment(number, 1.0, state={"superseded": rows}))
        assert hosts.objects.create(f"segments/{number:06d}/t-hand.seg", segment)
    swept = encode_segment(Segment(1, 1.0, dropped=["x", "y"]))
    assert hosts.objects.create("segments/000001/z-hand.seg", swept)
    assert compact(store).replaced == 3
    made = hosts.segments("snapshots")
    assert [(part.number, part.dropped) for part in made if part.dropped] == [(1, ["y"])]
    empty = encode_segment(Segment(0, 0.0))
    assert empty not in [encode_segment(replace(part, number=0, at=0.0, job=None)) for part in made]
    for host in (store, hosts.store()):
        assert superseded(host) == ["x"]


def test_leaves_that_do_not_count_are_not_kept(hosts: Hosts) -> None:
    store = hosts.launcher(plain())
    store.commit(leaves_of_split(plain(), 2)[:1])
    store.forget("*")
    store.begin_run({})
    compact(store)
    assert not any(part.leaves for part in hosts.segments("snapshots"))
    host = hosts.store()
    assert (host.pending(plain().id), host.totals().tasks) == (1, 0)
    host.begin_run({})
    host.commit([filtered_leaf(plain())])
    assert host.completed_count() == 1
    assert host.stale_outputs() == ["data/a-0.jsonl"]


def test_only_leaves_of_open_sources_that_count_are_kept_as_they_were_written(hosts: Hosts) -> None:
    store = hosts.launcher(runs=0)
    first = store.begin_run({})
    sources = several(store, "done", "begun", "forgotten", "blamed", "replaced")
    done, begun, forgotten, blamed, replaced = (leaves_of_split(source, 2) for source in sources)
    early, late = RemoteSink(hosts.objects, run=first), RemoteSink(hosts.objects)
    unknown = leaf_of(plain("unknown"))  # it may have written over others
    early.commit([*done, begun[0], forgotten[0], blamed[0], replaced[0], unknown])
    store.register([plain("replaced", "2")])
    store.forget(sources[2].url)
    late.commit([forgotten[1]])
    store.forget(sources[3].url, failures_only=True)
    store.refresh()
    assert compact(store).replaced > 0
    kept = {(part.number, leaf.source_id, leaf.lineage) for part in hosts.segments("snapshots") for leaf in part.leaves}
    assert kept == {
        (number, leaf.source_id, leaf.lineage)
        for number, leaf in ((1, begun[0]), (1, blamed[0]), (1, unknown), (2, forgotten[1]))
    }


def test_who_has_folded_all_that_a_snapshot_covers_reads_no_part_of_it(hosts: Hosts) -> None:
    store = hosts.launcher(runs=0)
    finish(store, plain())
    reader = hosts.store()
    compact(store)
    for name in hosts.objects.names("snapshots"):
        if name.endswith(".seg"):
            hosts.objects.delete([name])
            hosts.objects.create(name, b"not read")
    reader.refresh()
    assert picture(reader) == picture(store)


def add_snapshot(hosts: Hosts, number: int, covers: list[str], *parts: Segment) -> None:
    """Create a snapshot of a host that had folded `number`. It replaces one object that no host has folded."""
    base = f"snapshots/{number:06d}-{100 + len(hosts.objects.names('snapshots')):06d}-{'0' * 16}"
    names = [f"{base}/{place:06d}.seg" for place, _ in enumerate(parts)]
    encoded = dict(zip(names, map(encode_segment, parts), strict=True))
    for name, data in encoded.items():
        assert hosts.objects.create(name, data)
    checksums = {name: checksum_of(data) for name, data in encoded.items()}
    unseen = f"segments/{number:06d}/t-unseen-{len(names):06d}.seg"
    assert hosts.objects.create(
        f"{base}.json", encode_manifest(SnapshotManifest(base, number, checksums, [*covers, unseen]))
    )


def state_of(hosts: Hosts) -> list[Segment]:
    """Return the parts of the snapshot that a new host would make now."""
    store = hosts.store()
    objects, environment = store.parts()
    with environment.read() as txn:
        return list(compaction._segments(objects, txn, objects.names("segments"), {}, len(objects.names("controls"))))


@pytest.mark.parametrize("change", ["commit", "fail", "record_deaths", "forget", "replace"])
def test_a_snapshot_of_what_was_before_takes_nothing_back(hosts: Hosts, change: str) -> None:
    store = hosts.launcher()
    done, begun, failed, blamed = sources = several(store, "done", "begun", "failed", "blamed")
    mark = mark_of(blamed)
    store.commit([leaf_of(done), *leaves_of_split(begun, 2)[:1]], [failure_of(failed), failure_of(blamed)])
    store.record_deaths([mark])
    before = len(hosts.objects.names("controls"))
    parts, covers = state_of(hosts), hosts.objects.names("segments")
    reader = hosts.store()
    if change == "commit":
        store.commit([*leaves_of_split(begun, 2)[1:], leaf_of(failed), leaf_of(blamed)])
    elif change == "fail":
        store.commit([], [failure_of(failed, (), "again")])
    elif change == "record_deaths":
        for _ in range(MAX_ATTEMPTS - 1):
            store.record_deaths([mark])
    elif change == "forget":
        store.forget("*")
    elif change == "replace":
        store.begin_run({})
        store.register([plain(source.url.removeprefix("/data/").removesuffix(".jsonl"), "2") for source in sources])
    expected = without_words(store)
    assert without_words(hosts.store()) == expected
    reader.refresh()
    recorded = (store.history(), store.durations())
    add_snapshot(hosts, before, covers, *parts)
    for host in (reader, store, hosts.store()):
        host.refresh()
        assert without_words(host) == expected
    for host in (reader, store):
        assert (host.history(), host.durations()) == recorded


def without_words(store: RemoteStore) -> dict[str, object]:
    """Return the picture of a ledger, and how often its failures were counted instead of why they failed."""
    failures = [(row.source_id, row.node, row.attempts, row.quarantined) for row in store.failures()]
    return {**picture(store), "failures": failures}


def test_a_compaction_tells_what_it_has_made_and_of_which_job_and_when(hosts: Hosts) -> None:
    store = hosts.store()
    assert compact(store) == Compaction(0, 0, 0)
    store.open_job(ONE)
    finish(store, plain())
    segments = hosts.objects.names("segments")
    done = compact(store)
    parts = hosts.segments("snapshots")
    contents = [Path(hosts.objects.url, name) for name in hosts.objects.names("snapshots") if name.endswith(".seg")]
    assert done == Compaction(len(segments), len(parts), sum(path.stat().st_size for path in contents))
    for part in parts:
        assert part.job == ONE.fingerprint
        assert abs(part.at - time.time()) < 60
    assert compact(store) == Compaction(0, 0, 0)
    store.register([plain("b")])
    assert compact(store).replaced == 1 + 1 + len(parts)


def test_a_compaction_that_is_always_overtaken_gives_up(hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> None:
    tries: list[RemoteStore] = []

    def overtaken(store: RemoteStore) -> Compaction:
        tries.append(store)
        raise Overtaken

    monkeypatch.setattr(compaction, "_compact", overtaken)
    assert compact(hosts.store()) == Compaction(0, 0, 0)
    assert len(tries) == FOLDS


def test_a_host_does_not_read_the_snapshot_that_it_has_made(hosts: Hosts) -> None:
    store = hosts.launcher(runs=0)
    finish(store, plain())
    compact(store)
    hosts.objects.reads.clear()
    store.refresh()
    assert hosts.objects.reads == []
    assert not Replayer(*store.parts())._unfolded(hosts.objects.names("snapshots"))


def test_the_points_of_a_compaction_lie_where_their_names_say(hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> None:
    store = hosts.launcher(runs=0)
    for n in range(120):
        store.register([plain(f"s{n}")])
    seen: list[tuple[str, int, int]] = []

    def reached(point: str) -> None:
        seen.append((point, len(hosts.manifests()), len(hosts.objects.names("segments"))))

    monkeypatch.setattr(compaction, "fault_point", reached)
    compact(store)
    assert seen == [
        ("compact.before_manifest", 0, 120),
        ("compact.after_manifest", 1, 120),
        ("compact.delete", 1, 120),
        ("compact.delete", 1, 20),
    ]


def test_what_a_snapshot_covers_is_deleted_in_pages_to_the_last(hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "_DELETED_AT_ONCE", 2)
    store = hosts.store()
    for n in range(5):
        store.register([plain(f"s{n}")])
    seen: list[tuple[str, int]] = []
    left = hosts.objects.names
    monkeypatch.setattr(compaction, "fault_point", lambda point: seen.append((point, len(left("segments")))))
    compact(store)
    made = [("compact.before_manifest", 5), ("compact.after_manifest", 5)]
    assert seen == [*made, *(("compact.delete", left) for left in (5, 3, 1))]
    assert hosts.objects.names("segments") == []


def test_a_pack_and_a_source_that_was_registered_before_any_run_are_kept(hosts: Hosts) -> None:
    store = hosts.store()
    pack = Source.pack([plain("a"), plain("b")])
    store.register([plain("c"), pack])
    for number in range(3):
        store.begin_run({})
        several(store, f"run-{number}", f"beside-{number}")
    expected = picture(store)
    compact(store)
    host = hosts.store()
    assert picture(host) == expected
    (row,) = [row for row in host.sources() if row.members]
    assert (row.source_id, row.member_urls) == (pack.id, tuple(pack.urls))
    kept = [(part.number, len(part.sources)) for part in hosts.segments("snapshots") if part.sources]
    assert sorted(kept) == [(number, 2) for number in range(4)]


@contextlib.contextmanager
def apart(folder: Path) -> Iterator[Hosts]:
    """A copy of a ledger, of which neither sees the other; its snapshots are in the ledger behind the body."""
    shutil.copytree(folder / "ledger", folder / "apart" / "ledger")
    hosts = Hosts(folder / "apart")
    yield hosts
    hosts.close()
    shutil.copytree(folder / "apart/ledger/snapshots", folder / "ledger/snapshots", dirs_exist_ok=True)


def test_two_snapshots_become_one_though_no_segment_came_since(hosts: Hosts, tmp_path: Path) -> None:
    hosts.launcher(plain()).commit([leaf_of(plain())])
    with apart(tmp_path) as other:
        for place in (hosts, other):
            assert compact(place.store()).replaced > 0
    assert len(hosts.manifests()) == 2
    assert compact(hosts.store()).replaced > 0
    assert len(hosts.manifests()) == 1
    assert compact(hosts.store()).replaced == 0
    assert hosts.store().completed_count() == 1


def test_leaves_of_an_open_source_are_kept_of_each_snapshot_that_lies_there(hosts: Hosts, tmp_path: Path) -> None:
    both, one, two, _ = leaves_of_split(plain(), 4)
    hosts.launcher(plain()).commit([both])
    with apart(tmp_path) as other:
        for place, leaf in ((hosts, one), (other, two)):
            place.store().commit([leaf])
            compact(place.store())
    compact(hosts.store())
    assert len(hosts.manifests()) == 1
    assert hosts.store().pending(plain().id) == 1


@pytest.mark.parametrize("first", [((0, 2),), ((0, 2), (0, 2))], ids=["a leaf", "a fan-out"])
def test_a_snapshot_that_saw_contradictory_tasks_in_another_order_is_taken_in(hosts: Hosts, first: Lineage) -> None:
    store = hosts.launcher(runs=0)
    run = store.begin_run({})
    store.register([plain()])
    seen = [hosts.store(), hosts.store()]
    lineages = (first, ((0, 2),) if len(first) > 1 else ((0, 2), (0, 2)))
    folder = Path(hosts.objects.url)
    for lineage in lineages:
        RemoteSink(hosts.objects, run=run).commit([leaf_of(plain(), lineage)])
    own = [name for name in hosts.objects.names("segments") if "/t-" in name]
    contents = {name: (folder / name).read_bytes() for name in own}
    for host, names in zip(seen, (own, own[::-1]), strict=True):
        hosts.objects.delete(own)
        for name in names:
            assert hosts.objects.create(name, contents[name])
            host.refresh()
    store.register([plain("unseen")])
    assert compact(seen[0]).replaced > 0
    for host in (seen[1], hosts.store()):
        host.refresh()
        assert host.pending(plain().id) > 1
        assert [row.reason for row in host.failures()] == ["NonDeterministicTaskError"]
