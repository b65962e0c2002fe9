"""Which outputs a job removes: those of its ledger that are out of date, where it writes, and no others."""

from __future__ import annotations

import dataclasses
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
from ledgerbeam.ledger.opening import open_local_store
from ledgerbeam.ledger.remote.store import RemoteStore
from ledgerbeam.pipelines.console.reporter import Reporter
from ledgerbeam.pipelines.jobs.one_stage import ConvertJob, IndexJob
from ledgerbeam.pipelines.jobs.sources import ListedFiles
from ledgerbeam.pipelines.outputs import recorded
from ledgerbeam.pipelines.outputs.recorded import (
    count_superseded,
    forgotten_outputs,
    remove_gone,
    remove_superseded,
    sweep_temporaries,
)
from ledgerbeam.pipelines.runners.run import run_job
from ledgerbeam.pipelines.runners.waves import Waves


@pytest.fixture
def store(tmp_path: Path) -> Iterator[LedgerStore]:
    (tmp_path / "out").mkdir()
    store = open_local_store(str(tmp_path / "L"), create=True)
    yield store
    store.close()


def converting(folder: Path) -> ConvertJob:
    return ConvertJob(
        to="jsonl", output=str(folder / "out"), ledger=str(folder / "L"), files=ListedFiles(patterns=("/in/*",))
    )


def done(store: LedgerStore, source: Source, *names: str) -> None:
    store.register([source])
    outputs = tuple(Output(name, 1, f"sum:{name}", 1, number) for number, name in enumerate(names))
    store.commit([Leaf(source.id, (), "published", outputs, len(names), len(names))])


def put(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("x")


def names_below(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_outputs_of_what_a_source_was_are_removed_and_forgotten(tmp_path: Path, store: LedgerStore) -> None:
    put(tmp_path / "out", "a-0", "sub/a-1", "b-0", "mine")
    done(store, Source("/in/a", 1, "1"), "a-0", "sub/a-1", "gone-before")
    done(store, Source("/in/b", 1, "1"), "b-0")
    done(store, Source("/in/a", 1, "2"), "a-0")
    job = converting(tmp_path)
    assert count_superseded(store) == 2
    assert remove_superseded(job, store) == []
    assert names_below(tmp_path / "out") == ["a-0", "b-0", "mine"]
    assert count_superseded(store) == 0
    put(tmp_path / "out", "sub/a-1")
    assert remove_superseded(job, store) == []
    assert (tmp_path / "out/sub/a-1").exists()  # of somebody else by now


def test_nothing_is_removed_if_one_name_leads_out(tmp_path: Path, store: LedgerStore) -> None:
    put(tmp_path, "victim/x", "out/a-0")
    (tmp_path / "out/link").symlink_to(tmp_path / "victim")
    done(store, Source("/in/a", 1, "1"), "a-0")
    done(store, Source("/in/b", 1, "1"), "link/x")
    done(store, Source("/in/a", 1, "2"), "a-1")
    done(store, Source("/in/b", 1, "2"), "b-1")
    with pytest.raises(LedgerDamagedError, match="stale output 'link/x' leads out"):
        remove_superseded(converting(tmp_path), store)
    assert (tmp_path / "victim/x").exists()
    assert (tmp_path / "out/a-0").exists()
    assert count_superseded(store) == 2


def test_indexes_are_removed_where_the_job_writes_them(tmp_path: Path, store: LedgerStore) -> None:
    """Beside the sources that it lists and below its root; an index elsewhere is left, and told."""
    folder, other = tmp_path / "in", tmp_path / "in2"
    put(folder, "a.jsonl.idx", "deep/b.gz.gzidx", "c.jsonl")
    put(other, "d.jsonl.idx")
    urls = [*(str(folder / name) for name in ("a.jsonl.idx", "deep/b.gz.gzidx", "c.jsonl")), str(other / "d.jsonl.idx")]
    done(store, Source("/in/a", 1, "1"), *urls)
    done(store, Source("/in/a", 1, "2"))
    files = ListedFiles(patterns=(f"{folder}/**",), base=f"{folder}/")
    job = IndexJob(output=None, ledger=str(tmp_path / "L"), files=files)
    assert sorted(remove_superseded(job, store)) == sorted(urls[2:])
    assert names_below(folder) == ["c.jsonl"]
    assert names_below(other) == ["d.jsonl.idx"]


ODD = (("", ".part"), ("x", "-0.part"), ("", "-0.part.old"))
"""What may stand around the id of a source in the name of a file that is no part of its index."""


def test_parts_of_indexes_go_once_their_sources_are_complete(tmp_path: Path, store: LedgerStore) -> None:
    complete, pending = Source("/in/a", 1, "1"), Source("/in/b", 1, "1")
    done(store, complete, "a-0")
    store.register([pending])
    names = [f"{source.id.hex()}-{number}.part" for source in (complete, pending) for number in (0, 1)]
    others = ["notes.json", *(f"{begin}{complete.id.hex()}{end}" for begin, end in ODD)]
    put(tmp_path / "L/work", *names, *others)
    remove_superseded(converting(tmp_path), store)
    assert names_below(tmp_path / "L/work") == sorted([*names[2:], *others])


def test_a_link_in_the_place_of_the_folder_of_notes_ends_it(tmp_path: Path, store: LedgerStore) -> None:
    put(tmp_path, "victim/x", "out/a-0")
    done(store, Source("/in/a", 1, "1"), "a-0")
    done(store, Source("/in/a", 1, "2"), "a-1")
    (tmp_path / "L/work").symlink_to(tmp_path / "victim")
    with pytest.raises(StorageError, match="found a link or a file"):
        remove_superseded(converting(tmp_path), store)
    assert (tmp_path / "out/a-0").exists()


def test_outputs_of_sources_that_are_gone_go_with_what_is_known_of_them(tmp_path: Path, store: LedgerStore) -> None:
    put(tmp_path / "out", "a-0", "a-1", "b-0", "mine")
    one, other = Source("/in/a", 1, "1"), Source("/in/b", 1, "1")
    done(store, one, "a-0", "a-1")
    done(store, other, "b-0")
    job = converting(tmp_path)
    assert remove_gone(job, store) == 0
    store.set_gone([one.id])
    assert remove_gone(job, store) == 2
    assert names_below(tmp_path / "out") == ["b-0", "mine"]
    assert store.completed_mask([one.id, other.id]) == [False, True]
    assert [row.output.name for row in store.outputs()] == ["b-0"]


def test_nothing_is_removed_in_any_folder_if_a_name_leads_out_of_one(tmp_path: Path, store: LedgerStore) -> None:
    one, two = tmp_path / "in", tmp_path / "more"
    put(one, "a.jsonl.idx")
    put(tmp_path, "victim/b.jsonl.idx")
    two.mkdir()
    (two / "link").symlink_to(tmp_path / "victim")
    done(store, Source("/in/a", 1, "1"), str(one / "a.jsonl.idx"), str(two / "link/b.jsonl.idx"))
    done(store, Source("/in/a", 1, "2"))
    files = ListedFiles(patterns=(f"{one}/**", f"{two}/**"))
    job = IndexJob(output=None, ledger=str(tmp_path / "L"), files=files)
    assert job.folders() >= {str(one), str(two)}
    with pytest.raises(LedgerDamagedError, match="link/b"):
        remove_superseded(job, store)
    assert (one / "a.jsonl.idx").exists()
    assert (tmp_path / "victim/b.jsonl.idx").exists()


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


def test_what_others_have_recorded_is_known_before_something_is_removed(tmp_path: Path) -> None:
    objects = ObjectFolder(str(tmp_path / "L"))
    one, two = (RemoteStore(objects, str(tmp_path / name)) for name in ("one", "two"))
    for store in (one, two):
        store.open(create=True)
    old, new, other = Source("/in/a", 1, "1"), Source("/in/a", 1, "2"), Source("/in/b", 1, "1")
    put(tmp_path / "out", "a-0", "a-1")
    done(one, old, "a-0", "a-1")
    one.register([new])
    two.refresh()
    two.commit([Leaf(new.id, (), "filtered")])
    done(two, other, "a-1")  # another source has the name now
    assert remove_superseded(converting(tmp_path), one) == []
    assert names_below(tmp_path / "out") == ["a-1"]
    for store in (one, two):
        store.close()


def test_what_others_have_superseded_is_counted(tmp_path: Path) -> None:
    objects = ObjectFolder(str(tmp_path / "L"))
    one, two = (RemoteStore(objects, str(tmp_path / name)) for name in ("one", "two"))
    for store in (one, two):
        store.open(create=True)
    done(one, Source("/in/a", 1, "1"), "a-0")
    done(two, Source("/in/a", 1, "2"), "a-1")
    assert count_superseded(one) == 1
    for store in (one, two):
        store.close()


def test_outputs_of_what_was_forgotten_are_told_unless_they_were_made_again(tmp_path: Path, store: LedgerStore) -> None:
    put(tmp_path / "out", "a-0", "b-0")
    one, other = (Source(f"/in/{name}", 1, "1") for name in "ab")
    done(store, one, "a-0")
    done(store, other, "b-0")
    store.forget_sources({one.id, other.id})
    assert forgotten_outputs(converting(tmp_path), store) == ["a-0", "b-0"]
    done(store, other, "b-0")
    assert forgotten_outputs(converting(tmp_path), store) == ["a-0"]


def test_an_empty_output_of_what_was_forgotten_is_told_too(tmp_path: Path, store: LedgerStore) -> None:
    put(tmp_path / "out", "a-0")
    (tmp_path / "out/a-0").write_bytes(b"")
    source = Source("/in/a", 1, "1")
    done(store, source, "a-0")
    store.forget_sources({source.id})
    assert forgotten_outputs(converting(tmp_path), store) == ["a-0"]


def test_of_what_was_forgotten_what_is_not_there_is_not_told_in_a_store_too(
    tmp_path: Path, store: LedgerStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = ObjectFolder(f"memory://{tmp_path.name}/out")
    places = {"local": converting(tmp_path), "store": dataclasses.replace(converting(tmp_path), output=folder.url)}
    asked: list[str] = []

    def noted(url: str, *args: Any, **more: Any) -> Iterator[FilePage]:
        asked.append(url)
        return list_files(url, *args, **more)

    monkeypatch.setattr(recorded, "list_files", noted)
    assert [forgotten_outputs(spec, store) for spec in places.values()] == [[], []]
    assert asked == [], "nothing was forgotten"
    source = Source("/in/a", 1, "1")
    names = [f"{letter}-0" for letter in "hgfedcba"]
    done(store, source, *names, "gone-0")
    store.forget_sources({source.id})
    put(tmp_path / "out", *names, "other")
    for name in (*names, "other"):
        folder.create(name, b"x")
    assert {place: forgotten_outputs(spec, store) for place, spec in places.items()} == dict.fromkeys(
        places, sorted(names)
    )
    beside = IndexJob(files=ListedFiles(patterns=("/in/*",)), ledger=str(tmp_path / "L"))
    assert forgotten_outputs(beside, store) == [], "indexes beside sources are nobody's outputs"


def test_nothing_is_removed_while_a_run_of_another_host_may_be_at_work(tmp_path: Path, store: LedgerStore) -> None:
    """It may have published an output, and not recorded it yet."""
    put(tmp_path / "out", "a-0", "a-1")
    done(store, Source("/in/a", 1, "1"), "a-0")
    done(store, Source("/in/a", 1, "2"), "a-1")
    store.begin_run({"pid": 1, "host": "another", "place": "another", "runner": "local"})
    found = []
    for _ in range(2):
        console = Reporter(as_json=False, quiet=True)
        outcome = run_job(converting(tmp_path), store, iter(()), console, waves=Waves("warning"))
        found.append((outcome.out_of_date, names_below(tmp_path / "out")))
    assert found == [(1, ["a-0", "a-1"]), (0, ["a-1"])]


def test_what_killed_writers_have_left_goes_where_the_job_writes(tmp_path: Path, store: LedgerStore) -> None:
    names = [f"{folder}/.a.jsonl.1-0{TEMPORARY_SUFFIX}" for folder in ("L/work", "out", "out/sub", "in")]
    put(tmp_path, *names)
    job = converting(tmp_path)
    remove_superseded(job, store)
    assert [(tmp_path / name).exists() for name in names] == [False, True, True, True]
    sweep_temporaries(job)
    assert [(tmp_path / name).exists() for name in names] == [False, False, False, True]
