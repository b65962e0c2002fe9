"""The local runner: what it shows, and log messages of functions by level."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from pathlib import Path

import pytest

from ledgerbeam.io.listing.pages import list_pages
from ledgerbeam.ledger import LedgerStore, Source
from ledgerbeam.ledger.model.claims import Claims, Span, encode_claims
from ledgerbeam.ledger.model.rows import Failure, Leaf, SetUps, WorkTime
from ledgerbeam.ledger.opening import open_local_store, run_folders
from ledgerbeam.ledger.worker.reports import SUFFIX, report_path, report_set_ups, write_report
from ledgerbeam.ledger.worker.sharing import FolderClaims
from ledgerbeam.ledger.worker.task_board import BoardTask
from ledgerbeam.pipelines.console.reporter import Reporter
from ledgerbeam.pipelines.console.run_progress import RunProgress
from ledgerbeam.pipelines.jobs.listing import JobListing
from ledgerbeam.pipelines.jobs.one_stage import IndexJob
from ledgerbeam.pipelines.jobs.sources import ListedFiles
from ledgerbeam.pipelines.runners import local
from ledgerbeam.pipelines.runners.local import LocalRunner
from ledgerbeam.pipelines.runners.run import run_job
from ledgerbeam.pipelines.runners.waves import WaveEnd, Waves
from tests.pipelines.conftest import Workspace

Pass = Callable[[LocalRunner, str, JobListing], WaveEnd]
PARTS = 3


class Console(Reporter):
    """Keeps what it is told; `while_waiting` happens one after the other while the launcher waits for others."""

    def __init__(self, *while_waiting: Callable[[], None]) -> None:
        super().__init__(as_json=False, quiet=True)
        self.told: list[RunProgress] = []
        self._while_waiting = iter(while_waiting)

    def update(self, now: RunProgress) -> None:
        self.told.append(now)
        if now.stage == "waiting":
            next(self._while_waiting)()


class Job:
    """A job of two sources of three parts each."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in "ab":
            (folder / f"{name}.jsonl").write_text("{}\n" * 9)
        (self.page,) = list_pages([str(folder / "*.jsonl")])
        rows = zip(self.page.urls, self.page.sizes, self.page.versions, strict=True)
        self.sources = [Source(*row) for row in rows]
        self.spec = IndexJob(files=ListedFiles(patterns=(f"{folder}/*.jsonl",))).resolve_ledger(str(folder / "L"))
        self.store: LedgerStore = open_local_store(self.spec.ledger, create=True)
        self.store.open_job(self.spec.identity())
        self._patch = monkeypatch

    def run(self, *passes: Pass, while_waiting: Sequence[Callable[[], None]] = ()) -> Console:
        left = iter(passes)

        def wave(runner: LocalRunner, part: str, folder: str, path: str, listed: JobListing) -> WaveEnd:
            return next(left)(runner, folder, listed)

        self._patch.setattr(LocalRunner, "_wave", wave)
        self._patch.setattr(local, "PROGRESS_SECONDS", 0)
        console = Console(*while_waiting)
        run_job(self.spec, self.store, iter([self.page]), console, waves=Waves("warning"))
        return console

    def do(self, source: Source, part: int) -> None:
        self.store.commit([Leaf(source.id, ((part, PARTS),), "published", (), 1, 3)])

    def post(self, runner: LocalRunner, sources: Sequence[Source]) -> None:
        """Put the parts of sources on the board of the pass, and draw none."""
        assert runner._board is not None
        parts = [(source, part) for source in sources for part in range(PARTS)]
        tasks = [
            BoardTask(b"%04d" % place, Span(source.id, part, part + 1), (((part, PARTS),),))
            for place, (source, part) in enumerate(parts)
        ]
        runner._board.post([(task, b"") for task in tasks])


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
    monkeypatch.setattr(local, "TIME_SECONDS", 0)
    parts = iter(range(PARTS))

    def work(runner: LocalRunner, folder: str, listed: JobListing) -> WaveEnd:
        report_set_ups(folder, [1.0])
        write_report(report_path(folder, SUFFIX), WorkTime(1, {"read": 2.0}).as_dict())
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


def test_what_was_given_back_and_failed_since_is_waited_for_no_more(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else passes follow each other at once for as long as what else is left is in work with another launcher."""
    monkeypatch.setattr(FolderClaims, "seconds", 0)
    first, second = job.sources
    numbers = count()

    with run_folders(job.store).enter("999999") as folder:
        other = FolderClaims(run_folders(job.store), folder, "999999")

        def claim(*sources: Source) -> None:
            spans = [Span(source.id, 0, PARTS) for source in sources]
            other.put(encode_claims(Claims("999999", "there", next(numbers), 30.0, spans)))

        def leave_all_to_the_other(runner: LocalRunner, folder: str, listed: JobListing) -> WaveEnd:
            job.post(runner, job.sources)
            return WaveEnd()

        def fail_at_the_first(runner: LocalRunner, folder: str, listed: JobListing) -> WaveEnd:
            job.store.commit([], [Failure(first.id, ((0, PARTS),), "a", "ValueError")])
            job.post(runner, [second])
            return WaveEnd()

        def end_the_second() -> None:
            for part in range(PARTS):
                job.do(second, part)

        claim(first, second)
        told = job.run(
            leave_all_to_the_other, fail_at_the_first, while_waiting=[lambda: claim(second), end_the_second]
        ).told
    waits = [now.elsewhere for now in told if now.stage == "waiting"]
    assert waits == [f"1 other launcher is processing {tasks} tasks" for tasks in (6, 3)]


FUNCTION = """
import logging

log = logging.getLogger("corpus.cleaning")

def chatty(record):
    log.debug("debug %d", record["id"])
    log.info("info %d of s3://me:hunter2@host/x, token=%s", record["id"], "by-option-hunter2")
    log.warning("warning %d", record["id"])
    return record
"""

SECRET = '{"token": "by-option-hunter2"}'


@pytest.mark.slow
@pytest.mark.parametrize(
    ("workers", "level", "shown"),
    [
        ("1", None, {"warning"}),
        ("1", "info", {"info", "warning"}),
        ("2", None, {"warning"}),
        ("2", "debug", {"debug", "info", "warning"}),
        ("2", "error", set()),
    ],
)
def test_a_function_is_heard_from_the_level_asked_for(
    workspace: Workspace, workers: str, level: str | None, shown: set[str]
) -> None:
    (workspace.root / "chat.py").write_text(FUNCTION)
    for name in "ab":
        workspace.jsonl(f"in/{name}.jsonl", 2)
    asked = () if level is None else ("--log-level", level)
    ran = workspace.succeed(
        *("map", "chat:chatty", "in/*.jsonl", "--output", "out", "--to", "jsonl", "--audit=off"),
        *("--workers", workers, "--storage-options", SECRET, *asked),
    )
    said = ran.out + ran.err
    assert "hunter2" not in said
    for one in ("debug", "info", "warning"):
        assert said.count(f"{one.upper()} corpus.cleaning: {one} ") == (4 if one in shown else 0), said
    if "info" in shown:
        assert "INFO corpus.cleaning: info 1 of s3://me:***@host/x, token=***" in said
    if level in (None, "error"):
        assert "apache_beam" not in said


COMMAND = ("map", "functions:keep", "in/*.jsonl", "--output", "out", "--to", "jsonl", "--ledger", "L")


def limited(workspace: Workspace, limit: str) -> Workspace:
    workspace.jsonl("in/a.jsonl", 3)
    return dataclasses.replace(workspace, prefix=("sh", "-c", f'ulimit {limit}; exec "$@"', "sh"))


@pytest.mark.parametrize(
    ("limit", "workers", "says"),
    [
        (20, 1, r"1 local worker needs 68: raise the limit and run"),
        (71, 2, r"2 local workers needs 72: raise the limit, or give --workers 1 or fewer, and run"),
    ],
)
def test_a_run_that_may_not_open_the_files_that_it_needs_is_refused(
    workspace: Workspace, limit: int, workers: int, says: str
) -> None:
    ran = limited(workspace, f"-n {limit}").run(*COMMAND, "--workers", str(workers), timeout=60, status=1)
    assert re.search(rf"limit of open files \(ulimit -n\) is {limit}, .*{says}", ran.err), ran.err
    assert not (workspace.root / "out").exists()
    assert not (workspace.root / "L").exists()


@pytest.mark.slow
def test_a_limit_that_may_be_raised_is_raised(workspace: Workspace) -> None:
    limited(workspace, "-S -n 20").run(*COMMAND, "--workers", "2", timeout=60, status=0)
    assert len(workspace.records("out")) == 3
