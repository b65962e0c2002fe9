"""What a job makes of recorded outputs that are out of date or lost, and of sources that are replaced or gone."""

from __future__ import annotations

import dataclasses
import logging
import os
from collections.abc import Collection, Iterator
from hashlib import blake2b
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from ledgerbeam.errors import LedgerDamagedError, NotIndexableError, StorageError
from ledgerbeam.io import Options
from ledgerbeam.io.listing.pages import Page, list_pages
from ledgerbeam.io.storage.objects import FilePage, ObjectFolder, list_files
from ledgerbeam.io.storage.publish import TEMPORARY_SUFFIX
from ledgerbeam.ledger import LedgerStore, Output, Source, Task
from ledgerbeam.ledger.model.identity import content_checksum, content_version
from ledgerbeam.ledger.model.rows import Leaf, OutputColumns
from ledgerbeam.ledger.remote.store import RemoteStore
from ledgerbeam.ledger.selection import PendingSource
from ledgerbeam.pipelines.console.reporter import Reporter
from ledgerbeam.pipelines.jobs import listing
from ledgerbeam.pipelines.jobs.listing import JobListing, listed_pages
from ledgerbeam.pipelines.jobs.map import MapJob, MappedFunction
from ledgerbeam.pipelines.jobs.one_stage import ConvertJob, IndexJob
from ledgerbeam.pipelines.jobs.sources import ListedFiles
from ledgerbeam.pipelines.outputs import recorded
from ledgerbeam.pipelines.outputs.recorded import (
    OutputFolder,
    count_lost,
    count_superseded,
    forget_lost,
    forgotten_outputs,
    look_at_files,
    lost_sources,
    remove_below,
    remove_gone,
    remove_superseded,
    require_own_folder,
    sweep_temporaries,
    unrecorded,
)
from ledgerbeam.pipelines.runners.run import run_job
from ledgerbeam.pipelines.runners.waves import Waves

LEFT = f".out.1-2{TEMPORARY_SUFFIX}"  # a file that a killed writer has left


def converting(root: Path, output: str = "", **of_files: Any) -> ConvertJob:
    files = ListedFiles(**{"patterns": ("/in/*",), **of_files})
    return ConvertJob(to="jsonl", output=output or f"{root}/out", ledger=f"{root}/L", files=files)


def indexing(root: Path, *patterns: str) -> IndexJob:
    return IndexJob(files=ListedFiles(patterns=tuple(f"{root}/{one}" for one in patterns)), ledger=f"{root}/L")


def done(store: LedgerStore, source: Source, *names: str) -> None:
    store.register([source])
    outputs = tuple(Output(name, 1, f"sum:{name}", 1, number) for number, name in enumerate(names))
    store.commit([Leaf(source.id, (), "published", outputs, len(names), len(names))])


def supersede(store: LedgerStore, *names: str, by: str = "new") -> None:
    """Record outputs of a source, and that it was replaced by one with another output."""
    done(store, Source("/in/a", 1, "1"), *names)
    done(store, Source("/in/a", 1, "2"), by)


def put(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("x")


def names_below(folder: Path) -> list[str]:
    """Return the names of all files but those of the ledger itself."""
    found = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    return [name for name in found if not name.startswith("L/") or name.startswith("L/work/")]


@pytest.mark.parametrize("scheme", ["", "memory:/"])
def test_outputs_of_what_a_source_was_go_and_are_forgotten(tmp_path: Path, store: LedgerStore, scheme: str) -> None:
    out = ObjectFolder(f"{scheme}{tmp_path}/out")
    job = converting(tmp_path, out.url)
    for name in ("a-0", "sub/a-1", "b-0", "mine"):
        out.create(name, b"x")
    done(store, Source("/in/b", 1, "1"), "b-0")
    supersede(store, "a-0", "sub/a-1", "gone-before", by="a-0")
    assert count_superseded(store) == 2
    assert remove_superseded(job, store) == []
    assert out.names("") == ["a-0", "b-0", "mine"]
    assert count_superseded(store) == 0
    out.create("sub/a-1", b"of somebody else")
    assert remove_superseded(job, store) == []
    assert "sub/a-1" in out.names("")


def test_nothing_is_removed_if_one_name_leads_out(tmp_path: Path, store: LedgerStore) -> None:
    put(tmp_path, "victim/x", "out/a-0")
    (tmp_path / "out/link").symlink_to(tmp_path / "victim")
    supersede(store, "a-0", "link/x")
    with pytest.raises(LedgerDamagedError, match="stale output 'link/x' leads out"):
        remove_superseded(converting(tmp_path), store)
    assert names_below(tmp_path) == ["out/a-0", "victim/x"]
    assert count_superseded(store) == 2


def test_what_cannot_be_removed_stays_out_of_date(tmp_path: Path, store: LedgerStore) -> None:
    put(tmp_path / "out", "a-0/in-the-way")
    source = Source("/in/a", 1, "1")
    done(store, source, "a-0")
    job = converting(tmp_path)
    store.set_gone([source.id])
    with pytest.raises(StorageError, match="a-0"):
        remove_gone(job, store)
    assert store.gone_ids() == {source.id}
    assert [row.output.name for row in store.outputs()] == ["a-0"]
    done(store, Source("/in/a", 1, "2"), "a-1")
    with pytest.raises(StorageError, match="a-0"):
        remove_superseded(job, store)
    assert store.stale_outputs() == ["a-0"]
    (tmp_path / "out/a-0/in-the-way").unlink()
    (tmp_path / "out/a-0").rmdir()
    put(tmp_path / "out", "a-0")
    assert remove_superseded(job, store) == []
    assert names_below(tmp_path / "out") == []
    assert store.stale_outputs() == []


def test_nothing_is_removed_while_a_run_of_another_host_may_be_at_work(tmp_path: Path, store: LedgerStore) -> None:
    """It may have published an output, and not recorded it yet."""
    put(tmp_path / "out", "a-0", "a-1")
    supersede(store, "a-0", by="a-1")
    store.begin_run({"pid": 1, "host": "another", "place": "another", "runner": "local"})
    found = []
    for _ in range(2):
        console = Reporter(as_json=False, quiet=True)
        outcome = run_job(converting(tmp_path), store, iter(()), console, waves=Waves("warning"))
        found.append((outcome.out_of_date, names_below(tmp_path / "out")))
    assert found == [(1, ["a-0", "a-1"]), (0, ["a-1"])]


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[list[RemoteStore]]:
    """One remote ledger, opened by two hosts."""
    stores = [RemoteStore(ObjectFolder(f"{tmp_path}/L"), f"{tmp_path}/{name}") for name in ("one", "two")]
    for store in stores:
        store.open(create=True)
    yield stores
    for store in stores:
        store.close()


def test_what_others_have_recorded_is_known_before_a_removal(tmp_path: Path, hosts: list[RemoteStore]) -> None:
    one, two = hosts
    old, new, other = Source("/in/a", 1, "1"), Source("/in/a", 1, "2"), Source("/in/b", 1, "1")
    put(tmp_path / "out", "a-0", "a-1")
    done(one, old, "a-0", "a-1")
    one.register([new])
    two.refresh()
    two.commit([Leaf(new.id, (), "filtered")])
    done(two, other, "a-1")  # another source has the name now
    assert remove_superseded(converting(tmp_path), one) == []
    assert names_below(tmp_path / "out") == ["a-1"]


def test_what_others_have_superseded_is_counted(hosts: list[RemoteStore]) -> None:
    done(hosts[0], Source("/in/a", 1, "1"), "a-0")
    done(hosts[1], Source("/in/a", 1, "2"), "a-1")
    assert count_superseded(hosts[0]) == 1


def test_outputs_of_sources_that_are_gone_go_with_what_is_known_of_them(tmp_path: Path, store: LedgerStore) -> None:
    put(tmp_path / "out", "a-0", "a-1", "b-0", "c-0", "mine")
    one, other, partly = (Source(f"/in/{name}", 1, "1") for name in "abc")
    done(store, one, "a-0", "a-1")
    done(store, other, "b-0")
    store.register([partly])
    store.commit([Leaf(partly.id, ((0, 3),), "published", (Output("c-0", 1, "sum", 1),), 1, 1)])
    job = converting(tmp_path)
    assert remove_gone(job, store) == 0
    store.set_gone([one.id, partly.id])
    assert remove_gone(indexing(tmp_path, "in/*"), store) == 0
    assert remove_gone(job, store) == 3
    assert names_below(tmp_path / "out") == ["b-0", "mine"]
    assert store.completed_mask([one.id, other.id]) == [False, True]
    assert [row.output.name for row in store.outputs()] == ["b-0"]


def test_outputs_of_what_was_forgotten_are_told_unless_they_were_made_again(tmp_path: Path, store: LedgerStore) -> None:
    put(tmp_path / "out", "a-0", "b-0")
    (tmp_path / "out/a-0").write_bytes(b"")
    one, other = (Source(f"/in/{name}", 1, "1") for name in "ab")
    done(store, one, "a-0")
    done(store, other, "b-0")
    store.forget_sources({one.id, other.id})
    assert forgotten_outputs(converting(tmp_path), store) == ["a-0", "b-0"]
    done(store, other, "b-0")
    assert forgotten_outputs(converting(tmp_path), store) == ["a-0"]


def test_of_what_was_forgotten_what_is_not_there_is_not_told_in_a_store_too(
    tmp_path: Path, store: LedgerStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = ObjectFolder(f"memory://{tmp_path.name}/out")
    jobs = {"local": converting(tmp_path), "store": converting(tmp_path, folder.url)}
    asked: list[str] = []

    def noted(url: str, *args: Any, **more: Any) -> Iterator[FilePage]:
        asked.append(url)
        return list_files(url, *args, **more)

    monkeypatch.setattr(recorded, "list_files", noted)
    assert [forgotten_outputs(job, store) for job in jobs.values()] == [[], []]
    assert asked == [], "nothing was forgotten"
    source = Source("/in/a", 1, "1")
    names = [f"{letter}-0" for letter in "hgfedcba"]
    done(store, source, *names, "gone-0")
    store.forget_sources({source.id})
    put(tmp_path / "out", *names, "other")
    for name in (*names, "other"):
        folder.create(name, b"x")
    told = {place: forgotten_outputs(job, store) for place, job in jobs.items()}
    assert told == dict.fromkeys(jobs, sorted(names))
    assert forgotten_outputs(indexing(tmp_path, "in/*"), store) == [], "indexes beside sources are nobody's outputs"


class TestIndexes:
    """An index job names what it writes by URL."""

    def test_they_go_from_the_folders_of_the_job_and_from_no_other(self, tmp_path: Path, store: LedgerStore) -> None:
        """Whatever the ledger says, nothing goes that is no index; what is left of it is told."""
        gone = ("p/a.idx", "p/deep/b.gzidx", "q/b.idx")
        left = [str(tmp_path / name) for name in ("p/a.jsonl", "else/a.idx", "pp/a.idx")]
        put(tmp_path, *gone, *left, "p/b.idx", "q/a.idx")
        supersede(store, *(f"{tmp_path}/{name}" for name in gone), *left, by=f"{tmp_path}/q/a.idx")
        assert count_superseded(store) == 6
        assert sorted(remove_superseded(indexing(tmp_path, "p/**", "q/*"), store)) == sorted(left)
        assert names_below(tmp_path) == ["else/a.idx", "p/a.jsonl", "p/b.idx", "pp/a.idx", "q/a.idx"]
        assert count_superseded(store) == 0

    @pytest.mark.parametrize(
        ("files", "left"),
        [
            pytest.param({"patterns": ("{0}/in/*",), "index_root": "{0}/roots/"}, ["in/a.idx"], id="below a root"),
            pytest.param({"patterns": ("/*/{1}/in/*",)}, [], id="a pattern that varies from the root on"),
            pytest.param({"patterns": (), "sources_from": "/list"}, ["in/a.idx", "roots/in/a.idx"], id="a list"),
        ],
    )
    def test_where_they_are(self, tmp_path: Path, store: LedgerStore, files: dict[str, Any], left: list[str]) -> None:
        names = ["in/a.idx", "roots/in/a.idx"]
        put(tmp_path, *names)
        supersede(store, *(f"{tmp_path}/{name}" for name in names))
        beyond = str(tmp_path).split("/", 2)[2]
        patterns = tuple(pattern.format(tmp_path, beyond) for pattern in files["patterns"])
        root = files.get("index_root", "").format(tmp_path) or None
        job = IndexJob(files=ListedFiles(**{**files, "patterns": patterns, "index_root": root}), ledger=f"{tmp_path}/L")
        assert remove_superseded(job, store) == [f"{tmp_path}/{name}" for name in left]
        assert names_below(tmp_path) == left

    def test_the_folder_of_a_narrower_pattern_may_be_a_link(self, tmp_path: Path, store: LedgerStore) -> None:
        (tmp_path / "data").mkdir()
        for name in "pqrs":
            (tmp_path / f"disk-{name}").mkdir()
            (tmp_path / f"data/{name}").symlink_to(tmp_path / f"disk-{name}")
        names = [f"data/{name}.idx" for name in ("p/a", "q/a", "r/a", "s/a", "b")]
        put(tmp_path, *names)
        supersede(store, *(f"{tmp_path}/{name}" for name in names))
        job = indexing(tmp_path, "data/**/a", *(f"data/{name}/*" for name in "pqrs"))
        assert remove_superseded(job, store) == []
        assert names_below(tmp_path) == []

    def test_nothing_goes_from_any_folder_if_a_name_leads_out(self, tmp_path: Path, store: LedgerStore) -> None:
        put(tmp_path, "p/a.idx", "r/a.idx", "victim/a.idx", "q/b")
        (tmp_path / "q/link").symlink_to(tmp_path / "victim")
        supersede(store, *(f"{tmp_path}/{folder}/a.idx" for folder in ("p", "q/link", "r")))
        with pytest.raises(LedgerDamagedError, match="nothing was removed"):
            remove_superseded(indexing(tmp_path, "p/**", "q/**", "r/**"), store)
        assert names_below(tmp_path) == ["p/a.idx", "q/b", "r/a.idx", "victim/a.idx"]

    def test_parts_of_them_go_once_their_sources_are_complete(self, tmp_path: Path, store: LedgerStore) -> None:
        """And what killed writers have left beside the parts."""
        complete, pending = Source("/in/a", 1, "1"), Source("/in/b", 1, "1")
        done(store, complete, "a-0")
        store.register([pending])
        one, other = complete.id.hex(), pending.id.hex()
        kept = ["notes.json", f"{other}-0.part", f"{one}.part", f"x{one}-0.part", f"{one}-0.parts", f"{one}-0.part.old"]
        put(tmp_path / "L/work", *kept, f"{one}-0.part", f"{one}-17.part", LEFT)
        remove_superseded(converting(tmp_path), store)
        assert names_below(tmp_path / "L/work") == sorted(kept)


def test_a_link_in_the_place_of_the_folder_of_notes_ends_it(tmp_path: Path, store: LedgerStore) -> None:
    source = Source("/in/b", 1, "1")
    done(store, source, "b-0")
    names = ["out/a-0", f"victim/{LEFT}", f"victim/{source.id.hex()}-0.part"]
    put(tmp_path, *names)
    (tmp_path / "L/work").symlink_to(tmp_path / "victim")
    supersede(store, "a-0")
    with pytest.raises(StorageError, match="found a link or a file"):
        remove_superseded(converting(tmp_path), store)
    assert names_below(tmp_path) == sorted(names)


@pytest.mark.parametrize("what", ["link", "broken", "file"])
def test_a_link_or_a_file_is_no_folder_of_ours(tmp_path: Path, what: str) -> None:
    work = tmp_path / "work"
    require_own_folder(str(work))
    (tmp_path / "victim").mkdir()
    if what == "file":
        work.write_text("x")
    else:
        work.symlink_to(tmp_path / ("victim" if what == "link" else "nowhere"))
    with pytest.raises(StorageError, match="found a link or a file"):
        require_own_folder(str(work))
    require_own_folder(str(tmp_path / "victim"))


@pytest.mark.parametrize("root", [None, "roots"])
def test_what_killed_writers_left_goes_wherever_the_job_writes(tmp_path: Path, root: str | None) -> None:
    put(tmp_path, *(f"{name}/{LEFT}" for name in ("in", "in/sub", "out", "roots", "else")))
    sweep_temporaries(converting(tmp_path, patterns=(f"{tmp_path}/in/*",), index_root=root and f"{tmp_path}/{root}"))
    left = ["else", "in", "in/sub"] if root else ["else", "roots"]
    assert names_below(tmp_path) == [f"{name}/{LEFT}" for name in left]


def test_a_store_has_no_such_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    put(tmp_path, f"s3:/bucket/out/{LEFT}")
    sweep_temporaries(converting(tmp_path, "s3://bucket/out"))
    assert (tmp_path / "s3:/bucket/out" / LEFT).exists()


class TestRemoveBelow:
    """What is removed lies below the folder that it is removed for, whatever a ledger says."""

    @pytest.fixture
    def out(self, tmp_path: Path) -> Path:
        put(tmp_path, "out/deep/er/mine", "out/mine", "victim/mine")
        (tmp_path / "out/link").symlink_to(tmp_path / "victim")
        return tmp_path / "out"

    @pytest.mark.parametrize(
        "name", ["../victim/mine", "deep/../mine", "link/mine", "a\0b", "a\0b/mine", "", "deep/../../out/mine"]
    )
    def test_nothing_outside_of_the_folder_is_removed(self, out: Path, name: str) -> None:
        before = sorted(out.parent.rglob("*"))
        with pytest.raises(LedgerDamagedError, match=r"ledger /l: the stale output .*nothing was removed"):
            remove_below(str(out), ["mine", name], {}, ledger="/l")
        assert sorted(out.parent.rglob("*")) == before
        remove_below(str(out), ["mine", "link", "gone", "deep/gone"], {}, ledger="/l")
        assert sorted(path.name for path in out.iterdir()) == ["deep"]
        assert (out.parent / "victim/mine").exists()

    def test_a_folder_that_is_reached_by_a_link_is_the_folder(self, out: Path) -> None:
        (out.parent / "alias").symlink_to(out)
        remove_below(str(out.parent / "alias"), ["mine", "deep/er/mine"], {}, ledger="/l")
        assert names_below(out) == []

    def test_empty_folders_go_with_what_was_in_them(self, out: Path) -> None:
        (out / "link").unlink()
        put(out, "deep/other")
        remove_below(str(out), ["deep/er/mine"], {}, ledger="/l", prune=True)
        assert sorted(path.name for path in out.rglob("*")) == ["deep", "mine", "other"]
        remove_below(str(out), ["deep/other"], {}, ledger="/l")
        assert (out / "deep").is_dir()
        put(out, "deep/again")
        remove_below(str(out), ["deep/again", "mine"], {}, ledger="/l", prune=True)
        assert not out.exists()
        assert out.parent.is_dir()

    def test_each_folder_that_is_empty_goes_whatever_lies_above_it(self, out: Path) -> None:
        names = [f"{folder}/deep/mine" for folder in "abc"]
        put(out, *names)
        remove_below(str(out), names, {}, ledger="/l", prune=True)
        assert sorted(path.name for path in out.iterdir()) == ["deep", "link", "mine"]

    def test_a_folder_of_a_store_is_no_local_one(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        url = f"memory://{tmp_path.name}"
        (tmp_path / url / "deep").mkdir(parents=True)
        folder = ObjectFolder(url)
        for name in ("deep/mine", "other"):
            folder.create(name, b"x")
        remove_below(url, ["deep/mine"], {}, ledger="/l", prune=True)
        assert folder.names("") == ["other"]
        assert (tmp_path / url / "deep").is_dir()
        (tmp_path / url / "work").write_text("x")
        require_own_folder(f"{url}/work")


@pytest.fixture(params=["local", "memory"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectFolder:
    return ObjectFolder(str(tmp_path / "out") if request.param == "local" else f"memory://{tmp_path.name}/out")


def record(store: LedgerStore, *sources: list[tuple[str, int]]) -> list[bytes]:
    """Records sources as complete, with outputs of sizes; gives their ids."""
    found = [Source(f"/in/{rows[0][0]}", 10, "1") for rows in sources]
    store.register(found)
    outputs = [tuple(Output(name, size, "sum", 1, 0) for name, size in rows) for rows in sources]
    store.commit([Leaf(of.id, (), "published", rows, 1, 3) for of, rows in zip(found, outputs, strict=True)])
    return [source.id for source in found]


def write(folder: ObjectFolder, store: LedgerStore, count: int = 12) -> list[bytes]:
    """Records and writes outputs: of each source one above and one in a folder of its own."""
    rows = [[(f"{number}.jsonl", 10 + number), (f"{number}/deep.jsonl", 3)] for number in range(count)]
    create(folder, *chain.from_iterable(rows))
    return record(store, *rows)


def create(folder: ObjectFolder, *files: tuple[str, int]) -> None:
    """Write files of sizes."""
    folder.delete([name for name, _ in files])
    for name, size in files:
        folder.create(name, b"x" * size)


def complete(store: LedgerStore, ids: list[bytes]) -> list[int]:
    """Return which sources are still complete."""
    return [number for number, done in enumerate(store.completed_mask(ids)) if done]


class Elsewhere:
    """A ledger in which others work too: its count of outputs is not that of its pages, which are small."""

    def __init__(self, store: LedgerStore, count: int | None = None) -> None:
        self._store = store
        self._count = count

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def output_count(self) -> int:
        return self._store.output_count() if self._count is None else self._count

    def output_columns(self) -> Iterator[OutputColumns]:
        for ids, names, sizes in self._store.output_columns():
            for row in range(0, len(ids), 3):
                yield OutputColumns(ids[row : row + 3], names[row : row + 3], sizes[row : row + 3])


def lost(folder: ObjectFolder, store: Any) -> int:
    spec = MapJob(
        files=ListedFiles(),
        functions=(MappedFunction("f", "m:f", {"module": {"m": "ab"}}),),
        output=folder.url,
        to="jsonl",
    )
    return forget_lost(spec, store)


def test_what_is_lost_of_a_folder_is_told_without_forgetting_it(folder: ObjectFolder, store: LedgerStore) -> None:
    ids = write(folder, store, 4)
    outputs = OutputFolder(folder.url, {})
    assert (count_lost(outputs, store), lost_sources(outputs, store)) == (0, set())
    folder.delete(["1.jsonl", "2.jsonl", "2/deep.jsonl"])
    assert (count_lost(outputs, store), lost_sources(outputs, store)) == (3, {ids[1], ids[2]})
    assert complete(store, ids) == [0, 1, 2, 3]
    assert forget_lost(outputs, store) == 3
    assert complete(store, ids) == [0, 3]


def test_nothing_is_lost_of_what_lies_there_as_recorded(folder: ObjectFolder, store: LedgerStore) -> None:
    assert lost(folder, store) == 0
    ids = write(folder, store)
    create(folder, ("of-another", 10))
    assert lost(folder, store) == 0
    assert lost(folder, Elsewhere(store)) == 0
    assert complete(store, ids) == list(range(12))


def test_sources_of_what_is_gone_are_forgotten_and_no_other(folder: ObjectFolder, store: LedgerStore) -> None:
    ids = write(folder, store)
    folder.delete(["0.jsonl", "3/deep.jsonl", "11.jsonl", "11/deep.jsonl"])
    create(folder, *((f"of-another-{number}", 10) for number in range(30)))
    assert lost(folder, Elsewhere(store)) >= 3
    assert complete(store, ids) == [1, 2, *range(4, 11)]
    assert lost(folder, store) == 0


def test_all_is_gone(folder: ObjectFolder, store: LedgerStore) -> None:
    ids = write(folder, store, 5)
    folder.delete(folder.names(""))
    assert lost(folder, store) == 10
    assert complete(store, ids) == []


@pytest.mark.parametrize("size", [0, 1, 16, 1000])
def test_another_size_is_refused_and_told(folder: ObjectFolder, store: LedgerStore, size: int) -> None:
    """Beside many files of others."""
    ids = write(folder, store)
    create(folder, *((f"of-another-{number}", 100 + number) for number in range(30)))
    folder.delete(["5.jsonl"])
    create(folder, ("5.jsonl", size))
    said = f"^{folder.url}/5.jsonl: expected 15 bytes, as .* found {size:,}: it was cut short"
    for ledger in (store, Elsewhere(store)):
        with pytest.raises(StorageError, match=said):
            lost(folder, ledger)
    assert complete(store, ids) == list(range(12))


@pytest.mark.parametrize("count", [1, 23, 25, 1000])
def test_what_another_run_records_or_forgets_meanwhile_does_not_matter(
    folder: ObjectFolder, store: LedgerStore, count: int
) -> None:
    ids = write(folder, store)
    assert lost(folder, Elsewhere(store, count)) == 0
    assert complete(store, ids) == list(range(12))
    folder.delete(["4.jsonl"])
    assert lost(folder, Elsewhere(store, max(count, 24))) == 1
    assert complete(store, ids) == [0, 1, 2, 3, *range(5, 12)]


def test_a_ledger_that_forgets_all_meanwhile_has_lost_nothing(folder: ObjectFolder, store: LedgerStore) -> None:
    create(folder, ("left", 5))
    assert lost(folder, Elsewhere(store, 5)) == 0


class TestLostIndexes:
    """An index job names its outputs by their URL, and takes any other size as gone."""

    @pytest.fixture
    def listed(self, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str, bool]]:
        """What is listed, by a store that gives no more than it is asked for."""
        asked: list[tuple[str, str, bool]] = []

        def strictly(
            folder: str, options: Options | None = None, *, beginning: str = "", recursive: bool = True
        ) -> Iterator[Any]:
            asked.append((folder, beginning, recursive))
            for page in list_files(folder, options):
                wanted = [name.startswith(beginning) and (recursive or "/" not in name) for name in page.names]
                rows = [(name, size) for name, size, is_wanted in zip(*page, wanted, strict=True) if is_wanted]
                yield type(page)([name for name, _ in rows], [size for _, size in rows])

        monkeypatch.setattr(recorded, "list_files", strictly)
        return asked

    def indexes(self, root: str, store: LedgerStore, *names: str) -> list[bytes]:
        folder = ObjectFolder(root)
        create(folder, *((name, 24) for name in names))
        return record(store, *([(f"{root}/{name}", 24)] for name in names))

    @pytest.mark.parametrize(
        "case",
        [
            ("in/*.jsonl", ["in/a.jsonl.idx", "in/b.jsonl.idx"], [("/in", "", False)]),
            ("in/a.jsonl in/b.jsonl", ["in/a.jsonl.idx"], [("/in", "a.jsonl", False), ("/in", "b.jsonl", False)]),
            ("in/{a,b}*.tar", ["in/a.tar.idx", "in/b.tar.idx"], [("/in", "a", False), ("/in", "b", False)]),
            ("in/x*/a.tar.gz", ["in/x1/a.tar.gz.gzidx"], [("/in", "x", True)]),
            ("in/**", ["in/p/q/a.tar.idx"], [("/in", "", True)]),
            ("in/**/a.tar", ["in/a.tar.idx", "in/p/q/a.tar.idx"], [("/in", "", True)]),
            ("in/a[12].tar in/?.tar", ["in/a1.tar.idx", "in/b.tar.idx"], [("/in", "", False), ("/in", "a", False)]),
        ],
    )
    def test_beside_their_sources_only_what_the_patterns_may_name_is_listed(
        self,
        tmp_path: Path,
        store: LedgerStore,
        listed: list[tuple[str, str, bool]],
        case: tuple[str, list[str], list[tuple[str, str, bool]]],
    ) -> None:
        root = f"memory://{tmp_path.name}"
        patterns, names, places = case
        ids = self.indexes(root, store, *names)
        ObjectFolder(root).create("in/a.jsonl", b"x" * 24)
        spec = IndexJob(files=ListedFiles(patterns=tuple(f"{root}/{pattern}" for pattern in patterns.split())))
        assert forget_lost(spec, store) == 0
        assert listed == [(f"{root}{folder}", beginning, recursive) for folder, beginning, recursive in places]
        ObjectFolder(root).delete([names[0]])
        assert forget_lost(spec, store) == 1
        assert complete(store, ids) == list(range(1, len(names)))

    @pytest.mark.parametrize("scheme", ["memory://", "/"])
    def test_below_a_root_of_their_own(self, tmp_path: Path, store: LedgerStore, scheme: str) -> None:
        root = f"{scheme}{str(tmp_path)[1:]}/roots"
        ids = self.indexes(root, store, "s3/in/a.tar.idx", "b.tar.gzidx", "c.tar.idx")
        spec = IndexJob(files=ListedFiles(patterns=("s3://bucket/in/*.tar",), index_root=root))
        assert forget_lost(spec, store) == 0
        ObjectFolder(root).delete(["b.tar.gzidx", "c.tar.idx"])
        ObjectFolder(root).create("c.tar.idx", b"x" * 25)
        assert forget_lost(spec, store) == 2
        assert complete(store, ids) == [0]

    @pytest.mark.parametrize("mixed", [False, True])
    def test_of_a_list_of_sources_each_is_asked_for(
        self, tmp_path: Path, store: LedgerStore, listed: list[tuple[str, str, bool]], mixed: bool
    ) -> None:
        root = str(tmp_path / "in")
        ids = self.indexes(root, store, "a.tar.idx", "b.tar.idx", "c.tar.idx")
        gone: list[bytes] = []
        if mixed:
            ids += self.indexes(f"memory://{tmp_path.name}", store, "d.tar.idx")
        spec = IndexJob(files=ListedFiles(sources_from="/list"))
        assert forget_lost(spec, store) == 0
        ObjectFolder(root).delete(["a.tar.idx", "b.tar.idx"])
        ObjectFolder(root).create("b.tar.idx", b"x" * 23)
        if mixed:
            gone = record(store, *([(f"memory://{tmp_path.name}/gone{size}", size)] for size in range(3)))
        assert forget_lost(spec, store) == 2 + len(gone)
        assert complete(store, ids) == list(range(2, len(ids)))
        assert complete(store, gone) == []
        assert listed == []


def test_what_a_ledger_knows_or_has_superseded_is_recorded(store: LedgerStore) -> None:
    pages = [["a", "b"], [], ["c", "d"], ["x"]]
    assert list(unrecorded(pages, store)) == [["a", "b"], ["c", "d"], ["x"]]
    gone, _ = record(store, [("b", 1), ("c", 1)], [("a", 1)])
    assert list(unrecorded(pages, store)) == [["d"], ["x"]]
    store.forget_sources([gone])
    assert list(unrecorded(pages, store)) == [["d"], ["x"]]


def listed(path: Path) -> Source:
    (page,) = list_pages([str(path)])
    return Source(page.urls[0], page.sizes[0], page.versions[0])


def make(folder: Path, *names: str) -> list[Source]:
    for name in names:
        (folder / name).write_text('{"id": 1}\n' * 3)
    return [listed(folder / name) for name in names]


def begin(store: LedgerStore, source: Source) -> None:
    """Records one of three parts."""
    store.commit([Leaf(source.id, ((0, 3),), "published", (), 1, 3)])


def replace(source: Source) -> None:
    """Put another file of the same size and time in its place."""
    was = os.stat(source.url)
    with open(f"{source.url}.new", "w", encoding="utf-8") as file:
        file.write('{"no": 1}\n' * 3)
    os.utime(f"{source.url}.new", ns=(was.st_atime_ns, was.st_mtime_ns))
    os.replace(f"{source.url}.new", source.url)


def done_parts(found: list[PendingSource]) -> list[int]:
    """Of which sources the part counts as done."""
    return [int(row.has_done(Task(row.source, 0, 1, ((0, 3),)))) for row in found]


def test_a_source_that_is_replaced_after_a_part_was_done_is_begun_anew(
    tmp_path: Path, store: LedgerStore, caplog: pytest.LogCaptureFixture
) -> None:
    sources = make(tmp_path, "a", "b", "c")
    store.register(sources)
    assert done_parts(look_at_files(sources, store)) == [0, 0, 0]
    for source in sources[:2]:
        begin(store, source)
    assert done_parts(look_at_files(sources, store)) == [1, 1, 0]
    assert not caplog.records
    replace(sources[0])
    replace(sources[2])
    with caplog.at_level(logging.WARNING):
        found = look_at_files(sources, store)
    assert done_parts(found) == [0, 1, 0]
    assert [row.source.id for row in found] == [source.id for source in sources]
    assert [row.getMessage().partition(":")[0] for row in caplog.records] == [sources[0].url]
    assert store.totals().tasks == 1
    begin(store, sources[0])
    assert done_parts(look_at_files(sources, store)) == [1, 1, 0]


def test_tasks_are_told_the_time_of_the_last_change(tmp_path: Path, store: LedgerStore) -> None:
    plain, *members = make(tmp_path, "a", "b", "c")
    pack = Source.pack(members)
    remote = Source("s3://bucket/a", 1, "1")
    gone = Source(str(tmp_path / "gone"), 1, "1")
    sources = [plain, pack, remote, gone]
    store.register(sources)
    found = [row.source for row in look_at_files(sources, store)]
    times = {name: os.stat(tmp_path / name).st_ctime_ns for name in "abc"}
    assert found[0] == dataclasses.replace(plain, changed_ns=times["a"])
    assert [member.changed_ns for member in found[1].members] == [times["b"], times["c"]]
    assert found[2:] == [remote, gone]
    assert store.file_times([source.id for source in sources]) == {
        plain.id: [times["a"]],
        pack.id: [times["b"], times["c"]],
    }


def test_any_member_of_a_pack_counts(tmp_path: Path, store: LedgerStore) -> None:
    pack = Source.pack(make(tmp_path, "a", "b"))
    store.register([pack])
    look_at_files([pack], store)
    begin(store, pack)
    assert done_parts(look_at_files([pack], store)) == [1]
    replace(pack.members[1])
    assert done_parts(look_at_files([pack], store)) == [0]


def test_a_member_that_is_gone_hides_no_other_that_is_replaced(tmp_path: Path, store: LedgerStore) -> None:
    pack = Source.pack(make(tmp_path, "a", "b"))
    store.register([pack])
    (tmp_path / "a").unlink()
    look_at_files([pack], store)
    assert store.file_times([pack.id])[pack.id][0] == 0
    begin(store, pack)
    replace(pack.members[1])
    assert done_parts(look_at_files([pack], store)) == [0]


def test_only_a_local_file_that_is_known_by_its_time_is_looked_at(
    tmp_path: Path, store: LedgerStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    (plain,) = make(tmp_path, "a")
    of_content = dataclasses.replace(plain, version=content_version(content_checksum([b"x"])))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "s3:" / "bucket").mkdir(parents=True)
    make(tmp_path, "s3:/bucket/a")
    remote = Source("s3://bucket/a", 1, "1")
    store.register([of_content, remote])
    assert [row.source.changed_ns for row in look_at_files([of_content, remote], store)] == [0, 0]


def test_of_a_source_that_nobody_looked_at_before_the_parts_count(tmp_path: Path, store: LedgerStore) -> None:
    """As of a ledger that an older version has begun, or another host."""
    (source,) = make(tmp_path, "a")
    store.register([source])
    begin(store, source)
    assert done_parts(look_at_files([source], store)) == [1]


def test_a_file_that_cannot_be_looked_at_is_left_to_planning(tmp_path: Path, store: LedgerStore) -> None:
    (source,) = make(tmp_path, "a")
    store.register([source])
    look_at_files([source], store)
    begin(store, source)
    (tmp_path / "a").rename(tmp_path / "aside")
    assert done_parts(look_at_files([source], store)) == [1]
    (tmp_path / "aside").rename(tmp_path / "a")
    assert done_parts(look_at_files([source], store)) == [0], "its inode has changed"


def test_a_source_that_is_complete_meanwhile_is_left_out(tmp_path: Path, store: LedgerStore) -> None:
    sources = make(tmp_path, "a", "b")
    store.register(sources)
    store.commit([Leaf(sources[0].id, (), "published", (), 1, 3)])
    assert [row.source.url for row in look_at_files(sources, store)] == [sources[1].url]


IDS = [blake2b(bytes([number]), digest_size=16).digest() for number in range(200)]


@pytest.mark.parametrize("few", [0, 1000])
def test_ids_that_were_not_listed_are_found_in_a_set_and_in_a_column(monkeypatch: pytest.MonkeyPatch, few: int) -> None:
    monkeypatch.setattr(listing, "_FEW", few)
    known = listing._Known(listing._prefixes([*IDS[::2], *IDS[::4]]))  # some were listed twice
    assert known.count() == 100
    assert list(known.missing(IDS)) == IDS[1::2]
    assert list(known.missing(IDS[::2])) == []


ONE, OTHER = (Source(f"/in/{name}", 1, "1") for name in "ab")


def listing_of(folder: Path, store: LedgerStore, *pages: Page, only: Collection[bytes] | None = None) -> JobListing:
    files = ListedFiles(patterns=("in/*.jsonl",), base="in/")
    job = MapJob(
        files=files, functions=(MappedFunction("f", "m:f", {}),), output=str(folder / "out"), to="jsonl"
    ).resolve_ledger("L")
    return JobListing(job, store, iter(pages), store.begin_run({"token": "t"}), only=only)


def test_a_source_that_was_listed_twice_hides_none_that_is_gone(tmp_path: Path, store: LedgerStore) -> None:
    store.register([ONE, OTHER])
    listed = listing_of(tmp_path, store)
    listed.count_listed([ONE.id, ONE.id])
    assert list(listed.gone()) == [OTHER.id]


def test_what_is_open_and_not_to_be_done_is_not_counted_as_skipped(tmp_path: Path, store: LedgerStore) -> None:
    page = Page([ONE.url, OTHER.url], [1, 1], ["1", "1"])
    listed = listing_of(tmp_path, store, page, only={ONE.id})
    assert list(listed.open_sources()) == [[ONE]]
    assert (listed.found, listed.skipped) == (2, 0)


def test_a_source_that_a_job_cannot_do_is_refused_before_there_is_a_listing(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl.xz").touch()
    job = IndexJob(files=ListedFiles(patterns=(f"{tmp_path}/*",))).resolve_ledger(str(tmp_path / "L"))
    with pytest.raises(NotIndexableError):
        listed_pages(job, lambda _: None)
