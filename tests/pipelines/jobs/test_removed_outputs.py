"""Which outputs a job removes: those of its ledger that are out of date, where it writes, and no others."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ledgerbeam.errors import LedgerDamagedError, StorageError
from ledgerbeam.io.listing.nested_folders import FilePage, list_files
from ledgerbeam.io.storage.objects import ObjectFolder
from ledgerbeam.io.storage.publish import TEMPORARY_SUFFIX
from ledgerbeam.ledger import LedgerStore, Source
from ledgerbeam.ledger.model.rows import Leaf, Output
from ledgerbeam.ledger.remote.store import RemoteStore
from ledgerbeam.pipelines.console.reporter import Reporter
from ledgerbeam.pipelines.jobs.one_stage import ConvertJob, IndexJob
from ledgerbeam.pipelines.jobs.sources import ListedFiles
from ledgerbeam.pipelines.outputs import recorded
from ledgerbeam.pipelines.outputs.recorded import (
    count_superseded,
    forgotten_outputs,
    remove_below,
    remove_gone,
    remove_superseded,
    require_own_folder,
    sweep_temporaries,
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
def test_outputs_of_what_a_source_was_are_removed_and_forgotten(
    tmp_path: Path, store: LedgerStore, scheme: str
) -> None:
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


def test_what_others_have_recorded_is_known_before_something_is_removed(
    tmp_path: Path, hosts: list[RemoteStore]
) -> None:
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
    def test_where_they_are_written(
        self, tmp_path: Path, store: LedgerStore, files: dict[str, Any], left: list[str]
    ) -> None:
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

    def test_nothing_goes_from_one_folder_if_a_name_leads_out_of_another(
        self, tmp_path: Path, store: LedgerStore
    ) -> None:
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

    def test_a_folder_of_a_store_is_never_taken_for_a_local_one(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
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
