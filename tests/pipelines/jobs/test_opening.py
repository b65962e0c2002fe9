"""Taking a ledger and an output folder for a job, in their order: what is refused leaves nothing behind."""

from __future__ import annotations

import dataclasses
import errno
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ledgerbeam.errors import JobMismatchError, StorageError, UsageError
from ledgerbeam.ledger import LedgerStore, Source
from ledgerbeam.ledger.model.accounts import RecordCounts
from ledgerbeam.ledger.model.rows import Failure, Leaf, Output
from ledgerbeam.ledger.opening import open_local_store
from ledgerbeam.pipelines.jobs.claim import OpenedJob, open_job
from ledgerbeam.pipelines.jobs.map import MapJob, MappedFunction
from ledgerbeam.pipelines.jobs.one_stage import IndexJob
from ledgerbeam.pipelines.jobs.sources import ListedFiles
from ledgerbeam.pipelines.outputs.owner import Existing
from ledgerbeam.pipelines.outputs.recorded import routes_of
from ledgerbeam.pipelines.report.run_info import run_info

OLD, NEW = Source("/in/a", 1, "1"), Source("/in/a", 1, "2")


class Place:
    """A folder with a ledger, and outputs of its jobs."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.stores: list[LedgerStore] = []

    def job(self, function: str = "m:f", *, output: str = "out") -> MapJob:
        files = ListedFiles(patterns=(f"{self.root}/in/*.jsonl",), base=f"{self.root}/in/")
        made_of = {"module": {"m": function}}
        job = MapJob(
            files=files, functions=(MappedFunction("f", function, made_of),), output=str(self.root / output), to="jsonl"
        )
        return job.resolve_ledger(str(self.root / "L"))

    def open(self, job: MapJob, change: str = "refuse", existing: Existing | None = None) -> OpenedJob:
        opened = open_job(job, change, existing)  # type: ignore[arg-type]
        self.stores.append(opened.store)
        return opened

    def run(self, job: MapJob, change: str = "refuse") -> OpenedJob:
        """Open, and begin a run."""
        opened = self.open(job, change)
        info = run_info(opened.store, opened.job, "local")
        opened.store.begin_run(info)
        assert opened.owner is not None
        opened.owner.claim(opened.store, str(info["token"]))
        return opened

    def put(self, *names: str) -> None:
        for name in names:
            (self.root / name).parent.mkdir(parents=True, exist_ok=True)
            (self.root / name).write_text("{}\n")


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path)
    yield made
    for store in made.stores:
        store.close()


def done(store: LedgerStore, source: Source, *names: str) -> None:
    store.register([source])
    store.commit([Leaf(source.id, (), "published", tuple(Output(name, 3, "x", 1) for name in names), 1, 1)])


def test_a_job_that_is_refused_makes_no_ledger(place: Place) -> None:
    place.put("out/a.jsonl-0000000000.jsonl")
    with pytest.raises(UsageError, match="no ledger owns them"):
        place.open(place.job())
    assert not (place.root / "L").exists()
    place.open(place.job(), existing="keep")
    assert (place.root / "L").exists()


def test_a_job_that_is_refused_makes_no_output_folder(place: Place) -> None:
    place.run(place.job())
    with pytest.raises(JobMismatchError):
        place.open(place.job("m:g", output="other/deep"))
    assert not (place.root / "other").exists()


def test_another_job_is_refused_before_anything_is_changed(place: Place) -> None:
    store = place.run(place.job()).store
    done(store, OLD, "a.jsonl-0000000000.jsonl")
    place.put("out/a.jsonl-0000000000.jsonl", "out/b.jsonl-0000000000.jsonl")
    with pytest.raises(JobMismatchError):
        place.open(place.job("m:g"))
    assert store.completed_count() == 1
    assert len(list((place.root / "out").glob("*.jsonl"))) == 2


def test_a_job_that_is_refused_replaces_nothing_in_another_folder(place: Place) -> None:
    """Who was told to replace what lies there was to write there; the shards of others are gone only for new ones."""
    place.run(place.job())
    place.put("other/a.jsonl-0000000000.jsonl", "other/_ledgerbeam/0.json")
    with pytest.raises(JobMismatchError):
        place.open(place.job("m:g", output="other"), existing="replace")
    assert sorted(path.name for path in (place.root / "other").rglob("*.js*")) == ["0.json", "a.jsonl-0000000000.jsonl"]
    place.open(place.job("m:g", output="other"), "restart", "replace")
    assert list((place.root / "other").rglob("*.js*")) == []


def test_a_restart_removes_what_a_killed_run_of_the_job_before_has_left(place: Place) -> None:
    store = place.run(place.job()).store
    done(store, OLD, "a.jsonl-0000000000.jsonl")
    place.put("out/a.jsonl-0000000000.jsonl", "out/b.jsonl-0000000000.jsonl")
    place.open(place.job("m:g"), "restart")
    assert [path.name for path in (place.root / "out").glob("*.jsonl")] == ["a.jsonl-0000000000.jsonl"]
    assert [*store.superseded_names()] == [["a.jsonl-0000000000.jsonl"]]


@pytest.mark.parametrize(("output", "expected"), [("out", ["a-0"]), ("other", [])])
def test_outputs_in_another_folder_are_not_out_of_date(place: Place, output: str, expected: list[str]) -> None:
    store = place.run(place.job()).store
    done(store, OLD, "a-0")
    done(store, NEW, "a-1")
    assert store.stale_outputs() == ["a-0"]
    place.open(place.job(output=output), "accept")
    assert store.stale_outputs() == expected


def test_a_folder_to_write_to_is_made_or_refused_at_once(place: Place) -> None:
    place.put("file")
    with pytest.raises(UsageError, match="found a file"):
        place.open(place.job(output="file"))
    with pytest.raises(StorageError, match="cannot be created: Not a directory; give another --output"):
        place.open(place.job(output="file/below"))
    place.open(place.job(output="new/deep"))
    assert (place.root / "new/deep").is_dir()


def test_a_folder_that_cannot_be_made_at_last_is_told(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    makedirs = os.makedirs

    def full(path: str, **options: Any) -> None:
        if path == f"{place.root}/out":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        makedirs(path, **options)

    monkeypatch.setattr(os, "makedirs", full)
    with pytest.raises(StorageError, match="out: cannot be created: No space left on device; give another --output"):
        place.open(place.job())


@pytest.mark.parametrize(
    ("folders", "says"),
    [
        (["out"], "{0}/out: no permission to write; change its mode or give another --output"),
        ([], "{0}/out: cannot be created: no permission to write in {0}; give another --output"),
    ],
    ids=["there", "to be made"],
)
def test_a_folder_that_cannot_be_written_to_is_refused_at_once(
    place: Place, monkeypatch: pytest.MonkeyPatch, folders: list[str], says: str
) -> None:
    for folder in folders:
        (place.root / folder).mkdir()
    asked: list[int] = []

    def access(path: str, mode: int) -> bool:
        asked.append(mode)
        return False

    monkeypatch.setattr(os, "access", access)  # root may write anywhere
    with pytest.raises(StorageError) as refused:
        place.open(place.job())
    assert str(refused.value) == says.format(place.root)
    assert asked == [os.W_OK | os.X_OK]
    assert sorted(path.name for path in place.root.iterdir()) == folders


def test_a_folder_of_a_store_is_not_made_here(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place.root)
    opened = place.open(dataclasses.replace(place.job(), output=f"memory://{place.root.name}/out"))
    assert opened.owner is not None
    assert sorted(path.name for path in place.root.iterdir()) == ["L"]


def test_a_root_of_indexes_that_cannot_be_reached_is_refused_at_once(place: Place) -> None:
    files = ListedFiles(patterns=(f"{place.root}/in/*.jsonl",), index_root="nosuch://bucket/indexes")
    with pytest.raises(UsageError, match="nosuch:// is not a file system"):
        open_job(IndexJob(files=files).resolve_ledger(str(place.root / "L")), "refuse", None)
    assert not (place.root / "L").exists()


@pytest.mark.parametrize("change", ["refuse", "restart", "accept"])
def test_a_job_without_an_output_owns_no_folder(place: Place, change: str) -> None:
    place.put("in/a.jsonl")
    job = IndexJob(files=ListedFiles(patterns=(f"{place.root}/in/*.jsonl",)))
    for state in ("new", "resuming: 0 sources complete, 0 open, 0 tasks done"):
        opened = open_job(job.resolve_ledger(str(place.root / "L")), change, None)  # type: ignore[arg-type]
        place.stores.append(opened.store)
        assert (opened.owner, opened.state) == (None, state)
    assert sorted(path.name for path in place.root.iterdir()) == ["L", "in"]


def test_what_is_known_of_a_ledger_is_told(place: Place) -> None:
    opened = place.run(place.job())
    assert opened.state == "new"
    store = opened.store
    done(store, OLD, "a-0")
    left = [Source(f"/in/{name}", 1, "1") for name in "bc"]
    store.register(left)
    store.commit([], [Failure(left[0].id, (), "task", "ValueError", "no")])
    assert store.status()["sources"]["failed"] == store.status()["sources"]["open"] == 1
    assert place.open(place.job()).state == "resuming: 1 source complete, 2 open, 1 task done"


def test_a_ledger_that_its_launcher_made_and_did_not_take_is_new(place: Place) -> None:
    open_local_store(place.job().ledger, create=True).close()
    assert place.open(place.job()).state == "new"


def test_a_folder_of_sources_that_has_the_name_of_a_route_now_is_refused_and_nothing_is_made(place: Place) -> None:
    store = place.run(place.job()).store
    store.register([OLD])
    output = Output("odd/a-0000000000.jsonl", 3, "x", 1, route="odd")
    store.commit([Leaf(OLD.id, (), "published", (output,), 1, 3, counts=RecordCounts(1, 1, {}, {}, {"odd": 1}))])
    place.open(place.job())
    place.put("in/odd/b.jsonl")
    shutil.rmtree(place.root / "out")
    with pytest.raises(UsageError, match=r"route 'odd': its folder .* is also used"):
        place.open(place.job())
    assert not (place.root / "out").exists()


def test_routes_are_named_in_order_and_what_has_none_is_no_route(place: Place) -> None:
    store = place.run(place.job()).store
    assert routes_of(store) == []
    done(store, OLD, "a-0")
    assert routes_of(store) == []
    for number, routes in enumerate([{"odd": 1}, {"even": 2, "": 1}]):
        source = Source(f"/in/{number}", 1, "1")
        store.register([source])
        records = sum(routes.values())
        outputs = tuple(Output(f"{number}{name}", 3, "x", some, route=name) for name, some in routes.items())
        counts = RecordCounts(records, records, {}, {}, routes)
        store.commit([Leaf(source.id, (), "published", outputs, records, 3, counts=counts)])
    assert routes_of(store) == ["even", "odd"]
