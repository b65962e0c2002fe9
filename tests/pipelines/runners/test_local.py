"""What the launcher of a local run counts as its passes come and go; a test says what their processes do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ledgerbeam.io.listing.pages import list_pages
from ledgerbeam.ledger import LedgerStore, Source
from ledgerbeam.ledger.model.rows import Leaf
from ledgerbeam.ledger.model.set_ups import SetUps
from ledgerbeam.ledger.model.work_time import WorkTime
from ledgerbeam.ledger.places import open_store
from ledgerbeam.ledger.worker.left_files import leave, place_to_leave
from ledgerbeam.ledger.worker.set_ups import leave_set_ups
from ledgerbeam.ledger.worker.stopwatch import SUFFIX
from ledgerbeam.pipelines.console import Reporter
from ledgerbeam.pipelines.jobs.index import IndexJob
from ledgerbeam.pipelines.jobs.listing import JobListing
from ledgerbeam.pipelines.jobs.sources import ListedFiles
from ledgerbeam.pipelines.run_progress import RunProgress
from ledgerbeam.pipelines.runners import local
from ledgerbeam.pipelines.runners.local import LocalRunner
from ledgerbeam.pipelines.runners.run import run_job
from ledgerbeam.pipelines.runners.supervise import WaveEnd
from ledgerbeam.pipelines.runners.waves import Waves

Pass = Callable[[LocalRunner, str, JobListing], WaveEnd]
PARTS = 3


class Console(Reporter):
    """Keeps what it is told."""

    def __init__(self) -> None:
        super().__init__(as_json=False, quiet=True)
        self.told: list[RunProgress] = []

    def update(self, now: RunProgress) -> None:
        self.told.append(now)


class Job:
    """A job of two sources of three parts each."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in "ab":
            (folder / f"{name}.jsonl").write_text("{}\n" * 9)
        (self.page,) = list_pages([str(folder / "*.jsonl")])
        rows = zip(self.page.urls, self.page.sizes, self.page.versions, strict=True)
        self.sources = [Source(*row) for row in rows]
        self.spec = IndexJob(files=ListedFiles(patterns=(f"{folder}/*.jsonl",))).resolve_ledger(str(folder / "L"))
        self.store: LedgerStore = open_store(self.spec.ledger, create=True)
        self.store.open_job(self.spec.identity())
        self._patch = monkeypatch

    def run(self, *passes: Pass) -> Console:
        left = iter(passes)

        def wave(runner: LocalRunner, part: str, folder: str, path: str, listed: JobListing) -> WaveEnd:
            return next(left)(runner, folder, listed)

        self._patch.setattr(LocalRunner, "_wave", wave)
        console = Console()
        run_job(self.spec, self.store, iter([self.page]), console, waves=Waves("warning"))
        return console

    def do(self, source: Source, part: int) -> None:
        self.store.commit([Leaf(source.id, ((part, PARTS),), "published", (), 1, 3)])


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Job]:
    made = Job(tmp_path, monkeypatch)
    yield made
    made.store.close()


def test_what_was_done_before_of_a_source_takes_from_what_is_expected_no_more_than_was_expected_of_it(job: Job) -> None:
    def look(runner: LocalRunner, folder: str, listed: JobListing) -> WaveEnd:
        runner._tick(listed, folder)
        return WaveEnd()

    job.store.register(job.sources)
    for part in range(PARTS - 1):
        job.do(job.sources[0], part)
    assert [now.expected for now in job.run(look).told] == [2, 2]


def test_set_ups_and_times_of_several_passes_are_counted_once_each(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "PROGRESS_SECONDS", 0)
    monkeypatch.setattr(local, "TIME_SECONDS", 0)
    parts = iter(range(PARTS))

    def work(runner: LocalRunner, folder: str, listed: JobListing) -> WaveEnd:
        leave_set_ups(folder, [1.0])
        leave(place_to_leave(folder, SUFFIX), WorkTime(1, {"read": 2.0}).as_dict())
        for _ in range(2):
            runner._tick(listed, folder)
        part = next(parts)
        for source in job.sources:
            job.do(source, part)
        return WaveEnd("a worker process ended" if part < PARTS - 1 else None)

    job.run(*[work] * PARTS)
    (run,) = job.store.runs()
    assert run["set_ups"] == SetUps(3, 3.0, 1.0)._asdict()
    assert run["time"] == WorkTime(3, {"read": 6.0}).as_dict()
