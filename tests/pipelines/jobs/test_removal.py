"""What is removed lies below the folder that it is removed for, whatever a ledger says."""

from __future__ import annotations

from pathlib import Path

import pytest

from ledgerbeam.errors import LedgerDamagedError, StorageError
from ledgerbeam.io.storage.objects import ObjectFolder
from ledgerbeam.ledger import LedgerStore, Source
from ledgerbeam.ledger.model.rows import Leaf, Output
from ledgerbeam.pipelines.jobs.one_stage import IndexJob, MapJob
from ledgerbeam.pipelines.jobs.sources import ListedFiles
from ledgerbeam.pipelines.outputs.recorded import (
    count_superseded,
    remove_below,
    remove_gone,
    remove_superseded,
    require_own_folder,
)


@pytest.fixture
def out(tmp_path: Path) -> Path:
    for name in ("out/deep/er/mine", "out/mine", "victim/mine"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("precious")
    (tmp_path / "out/link").symlink_to(tmp_path / "victim")
    return tmp_path / "out"


@pytest.mark.parametrize(
    "name", ["../victim/mine", "deep/../mine", "link/mine", "a\0b", "a\0b/mine", "", "deep/../../out/mine"]
)
def test_nothing_outside_of_the_folder_is_removed(out: Path, name: str) -> None:
    before = sorted(out.parent.rglob("*"))
    with pytest.raises(LedgerDamagedError, match=r"ledger /l: the stale output .*nothing was removed"):
        remove_below(str(out), ["mine", name], {}, ledger="/l")
    assert sorted(out.parent.rglob("*")) == before
    remove_below(str(out), ["mine", "link", "gone", "deep/gone"], {}, ledger="/l")
    assert sorted(path.name for path in out.iterdir()) == ["deep"]
    assert (out.parent / "victim/mine").exists()


def test_a_folder_that_is_reached_by_a_link_is_the_folder(out: Path) -> None:
    (out.parent / "alias").symlink_to(out)
    remove_below(str(out.parent / "alias"), ["mine", "deep/er/mine"], {}, ledger="/l")
    assert not (out / "mine").exists()
    assert not (out / "deep/er/mine").exists()


def test_empty_folders_go_with_what_was_in_them(out: Path) -> None:
    (out / "link").unlink()
    (out / "deep/other").write_text("x")
    remove_below(str(out), ["deep/er/mine"], {}, ledger="/l", prune=True)
    assert sorted(path.name for path in out.rglob("*")) == ["deep", "mine", "other"]
    remove_below(str(out), ["deep/other"], {}, ledger="/l")
    assert (out / "deep").is_dir()
    (out / "deep/again").write_text("x")
    (out.parent / "victim/mine").unlink()
    (out.parent / "victim").rmdir()
    remove_below(str(out), ["deep/again", "mine"], {}, ledger="/l", prune=True)
    assert not out.exists()
    assert out.parent.is_dir()


def test_each_folder_that_is_empty_goes_whatever_lies_above_it(out: Path) -> None:
    names = [f"{folder}/deep/mine" for folder in "abc"]
    for name in names:
        (out / name).parent.mkdir(parents=True)
        (out / name).write_text("x")
    remove_below(str(out), names, {}, ledger="/l", prune=True)
    assert sorted(path.name for path in out.iterdir()) == ["deep", "link", "mine"]


def test_a_folder_of_a_store_is_never_taken_for_a_local_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def done(store: LedgerStore, source: Source, *names: str) -> None:
    store.register([source])
    store.commit([Leaf(source.id, (), "published", tuple(Output(name, 3, "x", 1) for name in names), 1, 1)])


def test_indexes_out_of_date_go_from_their_folders_and_from_no_other(tmp_path: Path, store: LedgerStore) -> None:
    files = ListedFiles(patterns=(f"{tmp_path}/in/*.jsonl", f"{tmp_path}/other/*.jsonl"))
    job = IndexJob(files=files).resolve_ledger(str(tmp_path / "L"))
    gone = [str(tmp_path / name) for name in ("in/a.jsonl.idx", "other/b.jsonl.idx")]
    stay = [str(tmp_path / name) for name in ("in/b.jsonl.idx", "other/a.jsonl.idx", "else/c.jsonl.idx", "in/d.jsonl")]
    for name in (*gone, *stay):
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).touch()
    for name in (*gone, *stay[2:]):
        url = name.removesuffix(".idx")
        done(store, Source(url, 1, "1"), name)
        done(store, Source(url, 1, "2"), f"{url}.gzidx")
    assert count_superseded(store) == 4
    assert sorted(remove_superseded(job, store)) == sorted(stay[2:])
    assert [Path(name).exists() for name in (*gone, *stay)] == [False, False, True, True, True, True]
    assert count_superseded(store) == 0


def test_an_index_goes_from_the_innermost_folder_of_its_job_which_may_be_a_link(
    tmp_path: Path, store: LedgerStore
) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "in/deep").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "in/deep/a.jsonl.idx").touch()
    files = ListedFiles(patterns=(f"{tmp_path}/in/*.jsonl", f"{tmp_path}/in/deep/*.jsonl"))
    job = IndexJob(files=files).resolve_ledger(str(tmp_path / "L"))
    done(store, Source(f"{tmp_path}/in/deep/a.jsonl", 1, "1"), f"{tmp_path}/in/deep/a.jsonl.idx")
    done(store, Source(f"{tmp_path}/in/deep/a.jsonl", 1, "2"))
    assert remove_superseded(job, store) == []
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_outputs_of_sources_that_are_gone_go_and_are_forgotten(tmp_path: Path, out: Path, store: LedgerStore) -> None:
    files = ListedFiles(patterns=("in/*.jsonl",), base="in/")
    job = MapJob(files=files, function="m:f", made_of={}, output=str(out), to="jsonl").resolve_ledger("L")
    one, other = (Source(f"/in/{name}", 1, "1") for name in "ab")
    done(store, one, "mine", "link")
    done(store, other, "deep/er/mine")
    assert remove_gone(job, store) == 0
    store.note_listing(store.begin_run({"token": "t"}), listed=1, finished=True, gone={one.id})
    assert remove_gone(IndexJob(files=files).resolve_ledger("L"), store) == 0
    assert store.completed_count() == 2
    assert remove_gone(job, store) == 2
    assert sorted(str(path.relative_to(out)) for path in out.rglob("*") if path.is_file()) == ["deep/er/mine"]
    assert store.completed_mask([one.id, other.id]) == [False, True]


def test_outputs_of_a_source_that_went_before_it_was_complete_go_too(
    tmp_path: Path, out: Path, store: LedgerStore
) -> None:
    files = ListedFiles(patterns=("in/*.jsonl",), base="in/")
    job = MapJob(files=files, function="m:f", made_of={}, output=str(out), to="jsonl").resolve_ledger("L")
    source = Source("/in/a", 1, "1")
    store.register([source])
    store.commit([Leaf(source.id, ((0, 3),), "published", (Output("mine", 3, "x", 1),), 1, 1)])
    store.note_listing(store.begin_run({"token": "t"}), listed=1, finished=True, gone={source.id})
    assert remove_gone(job, store) == 1
    assert not (out / "mine").exists()


def test_parts_of_indexes_are_not_looked_for_behind_a_link(tmp_path: Path, store: LedgerStore) -> None:
    job = IndexJob(files=ListedFiles(patterns=(f"{tmp_path}/in/*.jsonl",))).resolve_ledger(str(tmp_path / "L"))
    source = Source(f"{tmp_path}/in/a.jsonl", 1, "1")
    done(store, source, f"{source.url}.idx")
    (tmp_path / "victim").mkdir()
    (tmp_path / f"victim/{source.id.hex()}-0.part").touch()
    Path(job.work_folder).parent.mkdir(exist_ok=True)
    Path(job.work_folder).symlink_to(tmp_path / "victim")
    with pytest.raises(StorageError, match="found a link or a file"):
        remove_superseded(job, store)
    assert len(list((tmp_path / "victim").iterdir())) == 1


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
