"""What a run removes at its end, and what it leaves."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, TypeVar

import pytest

from ledgerbeam.errors import LedgerDamagedError, StorageError
from ledgerbeam.io.storage.objects import ObjectFolder
from ledgerbeam.io.storage.publish import TEMPORARY_SUFFIX
from ledgerbeam.ledger import LedgerStore, Output, Source
from ledgerbeam.ledger.model.rows import Leaf
from ledgerbeam.pipelines.jobs.one_stage import IndexJob, MapJob
from ledgerbeam.pipelines.jobs.sources import ListedFiles
from ledgerbeam.pipelines.outputs.recorded import count_superseded, remove_superseded, sweep_temporaries

_Job = TypeVar("_Job", IndexJob, MapJob)

LEFT = f".out.1-2{TEMPORARY_SUFFIX}"
"""The name of a file that a killed writer has left."""


@pytest.fixture
def spec(tmp_path: Path) -> MapJob:
    return MapJob(
        files=ListedFiles(patterns=(f"{tmp_path}/in/*.jsonl",)),
        function="m:f",
        made_of={"module": {"m": "ab"}},
        ledger=str(tmp_path / "L"),
        output=str(tmp_path / "out"),
        to="jsonl",
    )


@pytest.fixture
def index(spec: MapJob) -> IndexJob:
    return IndexJob(files=spec.files, ledger=spec.ledger)


def of_files(job: _Job, **changes: Any) -> _Job:
    """The job with other files."""
    return dataclasses.replace(job, files=dataclasses.replace(job.files, **changes))


def write(*paths: Path | str) -> None:
    for path in map(Path, paths):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x")


def supersede(store: LedgerStore, *names: str, by: str = "new") -> None:
    """Records outputs of a source, and that it was replaced by one with another output."""
    for version, outputs in (("1", names), ("2", (by,))):
        source = Source("/in/a.jsonl", 10, version)
        store.register([source])
        rows = tuple(Output(name, 1, "sum", 1, 0) for name in outputs)
        store.commit([Leaf(source.id, (), "published", rows, 1, 3)])


def files(root: Path) -> list[str]:
    found = sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())
    return [name for name in found if not name.startswith("L/") or "work" in name]


@pytest.mark.parametrize("scheme", ["", "memory:/"])
def test_outputs_that_are_out_of_date_go_and_are_told_once(store: LedgerStore, spec: MapJob, scheme: str) -> None:
    out = ObjectFolder(f"{scheme}{spec.output}")
    spec = dataclasses.replace(spec, output=out.url)
    supersede(store, "old", "sub/old", "gone")
    for name in ("old", "sub/old", "new", "other"):
        out.create(name, b"x")
    assert count_superseded(store) == 3
    assert remove_superseded(spec, store) == []
    assert out.names("") == ["new", "other"]
    assert count_superseded(store) == 0


def test_what_leads_out_of_the_folder_removes_nothing_and_stays_known(
    tmp_path: Path, store: LedgerStore, spec: MapJob
) -> None:
    supersede(store, "old", "link/mine")
    write(tmp_path / "out/old", tmp_path / "victim/mine")
    (tmp_path / "out/link").symlink_to(tmp_path / "victim")
    with pytest.raises(LedgerDamagedError, match=f"ledger {spec.ledger}: the stale output"):
        remove_superseded(spec, store)
    assert files(tmp_path) == ["out/old", "victim/mine"]
    assert count_superseded(store) == 2


def test_what_another_process_has_recorded_counts(tmp_path: Path, store: LedgerStore, spec: MapJob) -> None:
    """The ledger is asked anew: a worker may have written an output again."""
    supersede(store, "old", by="new")
    write(tmp_path / "out/old")
    refreshed: list[bool] = []

    class Refreshing:
        def __getattr__(self, name: str) -> object:
            return getattr(store, name)

        def refresh(self) -> None:
            refreshed.append(True)
            store.drop_stale(["old"])

    assert count_superseded(Refreshing()) == 0  # type: ignore[arg-type]
    assert remove_superseded(spec, Refreshing()) == []  # type: ignore[arg-type]
    assert len(refreshed) == 2
    assert files(tmp_path) == ["out/old"]


def test_a_working_folder_that_is_a_link_is_not_touched(tmp_path: Path, store: LedgerStore, spec: MapJob) -> None:
    write(tmp_path / "victim" / LEFT)
    (tmp_path / "L/work").symlink_to(tmp_path / "victim")
    supersede(store, "old")
    write(tmp_path / "out/old")
    with pytest.raises(StorageError, match="expected a folder"):
        remove_superseded(spec, store)
    assert files(tmp_path) == ["out/old", f"victim/{LEFT}"]


def test_parts_of_complete_sources_go_and_those_of_others_stay(
    tmp_path: Path, store: LedgerStore, spec: MapJob
) -> None:
    done, left = (Source(f"/in/{name}", 10, "1") for name in "ab")
    store.register([done, left])
    store.commit([Leaf(done.id, (), "published", (), 1, 3)])
    kept = [f"{left.id.hex()}-0.part", f"x{done.id.hex()}-0.part", f"{done.id.hex()}-0.parts", "merged.json"]
    work = tmp_path / "L/work"
    write(*(work / name for name in (*kept, LEFT, f"{done.id.hex()}-0.part", f"{done.id.hex()}-17.part")))
    remove_superseded(spec, store)
    assert sorted(path.name for path in work.iterdir()) == sorted(kept)


class TestIndexes:
    """An index job names what it writes by URL."""

    def test_they_go_where_the_job_writes_and_are_told_where_it_does_not(
        self, tmp_path: Path, store: LedgerStore, index: IndexJob
    ) -> None:
        """Whatever the ledger says, nothing goes that is no index."""
        names = [str(tmp_path / name) for name in ("in/a.idx", "in/b.gzidx", "in/a.jsonl", "else/a.idx", "inner/a.idx")]
        supersede(store, *names)
        write(*names)
        assert sorted(remove_superseded(index, store)) == sorted(names[2:])
        assert files(tmp_path) == ["else/a.idx", "in/a.jsonl", "inner/a.idx"]
        assert count_superseded(store) == 0

    def test_those_below_a_root_of_their_own(self, tmp_path: Path, store: LedgerStore, index: IndexJob) -> None:
        names = [str(tmp_path / name) for name in ("roots/in/a.idx", "in/a.idx")]
        supersede(store, *names)
        write(*names)
        spec = of_files(index, index_root=f"{tmp_path}/roots/")
        assert remove_superseded(spec, store) == names[1:]
        assert files(tmp_path) == ["in/a.idx"]

    def test_the_folder_of_a_narrower_pattern_may_be_a_link(
        self, tmp_path: Path, store: LedgerStore, index: IndexJob
    ) -> None:
        (tmp_path / "data").mkdir()
        for name in "pqrs":
            (tmp_path / f"disk-{name}").mkdir()
            (tmp_path / f"data/{name}").symlink_to(tmp_path / f"disk-{name}")
        names = [f"{tmp_path}/data/{name}.idx" for name in ("p/a", "q/a", "r/a", "s/a", "b")]
        supersede(store, *names)
        write(*names)
        patterns = (f"{tmp_path}/data/**/a", *(f"{tmp_path}/data/{name}/*" for name in "pqrs"))
        assert remove_superseded(of_files(index, patterns=patterns), store) == []
        assert files(tmp_path) == []

    def test_what_is_out_of_date_in_one_folder_stays_in_another(
        self, tmp_path: Path, store: LedgerStore, index: IndexJob
    ) -> None:
        supersede(store, f"{tmp_path}/p/a.idx", f"{tmp_path}/q/b.idx", by=f"{tmp_path}/q/a.idx")
        write(*(tmp_path / name for name in ("p/a.idx", "p/b.idx", "q/a.idx", "q/b.idx")))
        spec = of_files(index, patterns=(f"{tmp_path}/p/*", f"{tmp_path}/q/*"))
        assert remove_superseded(spec, store) == []
        assert files(tmp_path) == ["p/b.idx", "q/a.idx"]

    def test_nothing_goes_from_one_folder_if_a_name_leads_out_of_another(
        self, tmp_path: Path, store: LedgerStore, index: IndexJob
    ) -> None:
        names = [f"{tmp_path}/{folder}/a.idx" for folder in ("p", "q/link", "r")]
        supersede(store, *names)
        write(tmp_path / "p/a.idx", tmp_path / "r/a.idx", tmp_path / "victim/a.idx", tmp_path / "q/b")
        (tmp_path / "q/link").symlink_to(tmp_path / "victim")
        spec = of_files(index, patterns=tuple(f"{tmp_path}/{folder}/**" for folder in "pqr"))
        with pytest.raises(LedgerDamagedError, match="nothing was removed"):
            remove_superseded(spec, store)
        assert files(tmp_path) == ["p/a.idx", "q/b", "r/a.idx", "victim/a.idx"]

    def test_a_pattern_may_vary_from_the_root_on(self, tmp_path: Path, store: LedgerStore, index: IndexJob) -> None:
        names = [f"{tmp_path}/in/a.idx"]
        supersede(store, *names)
        write(*names)
        pattern = "/*/" + str(tmp_path).split("/", 2)[2] + "/in/*"
        assert remove_superseded(of_files(index, patterns=(pattern,)), store) == []
        assert files(tmp_path) == []

    def test_those_of_a_list_are_told(self, tmp_path: Path, store: LedgerStore, index: IndexJob) -> None:
        supersede(store, f"{tmp_path}/in/a.idx")
        write(tmp_path / "in/a.idx")
        spec = of_files(index, patterns=(), sources_from="/list")
        assert remove_superseded(spec, store) == [f"{tmp_path}/in/a.idx"]
        assert files(tmp_path) == ["in/a.idx"]


@pytest.mark.parametrize("root", [None, "roots"])
def test_what_killed_writers_left_goes_wherever_the_job_writes(tmp_path: Path, spec: MapJob, root: str | None) -> None:
    write(*(tmp_path / name / LEFT for name in ("in", "in/sub", "out", "roots", "else")))
    sweep_temporaries(of_files(spec, index_root=root and f"{tmp_path}/{root}"))
    assert files(tmp_path) == [f"{name}/{LEFT}" for name in (["else", "in", "in/sub"] if root else ["else", "roots"])]


def test_a_store_has_no_such_files(tmp_path: Path, spec: MapJob, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "s3:/bucket/out" / LEFT)
    sweep_temporaries(dataclasses.replace(spec, output="s3://bucket/out"))
    assert (tmp_path / "s3:/bucket/out" / LEFT).exists()
