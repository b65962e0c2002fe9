"""A short series of kills, and what a kill must never leave: a process, or a job that waits for ever."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.fault.campaign import Campaign
from tests.fault.corpus import Clean
from tests.fault.duplicates import run
from tests.fault.job import ROOT, Job, environment, own_program
from tests.fault.processes import MARK_VARIABLE, processes, wait_until
from tests.servers import s3

LIMIT_SECONDS = 240  # more than a machine under load takes for any step; a job that ends before is noticed at once

pytestmark = [pytest.mark.slow, pytest.mark.timeout(4 * LIMIT_SECONDS)]


def test_kills_lose_nothing(tmp_path: Path, clean: Clean) -> None:
    figures = Campaign(tmp_path / "jobs", clean, 12, "short").run()
    assert figures.kills == 12
    assert figures.ok, (figures, figures.anomalies)


def test_kills_of_a_pipeline_of_the_user_lose_nothing(tmp_path: Path, clean: Clean) -> None:
    figures = Campaign(tmp_path / "jobs", clean, 10, "own", program=own_program()).run()
    assert figures.kills == 10
    assert figures.ok, (figures, figures.anomalies)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_dead_worker_of_a_pipeline_of_the_user_is_noticed_within_five_seconds(tmp_path: Path, workers: int) -> None:
    job = Job(tmp_path / "job", workers, environment(), program=own_program())
    launch = job.start()
    try:
        assert launch.wait_until(lambda: job.records_done() > 40, LIMIT_SECONDS), launch.log()
        launch.kill(launch.pids("worker" if workers > 1 else "wave")[:1])
        assert wait_until(lambda: launch.deaths() == 1, 5.0), launch.log()
        assert launch.wait(LIMIT_SECONDS)
        assert launch.status == 0, launch.log()
    finally:
        launch.end()


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("records", [0, 40])
def test_nothing_outlives_a_killed_launcher_by_three_seconds(tmp_path: Path, workers: int, records: int) -> None:
    job = Job(tmp_path / "job", workers, environment())
    launch = job.start()
    try:
        assert launch.wait_for("wave", LIMIT_SECONDS)
        assert launch.wait_until(lambda: job.records_done() >= records, LIMIT_SECONDS), launch.log()
        launch.kill(launch.pids("launcher"))
        # A wave that has just started must come to watch its launcher. On a busy machine that takes longer than three
        # seconds: as long, at most, as until a process that starts now has come as far.
        subprocess.run([sys.executable, "-P", "-c", "import ledgerbeam.pipelines.runners.wave"], cwd=ROOT, check=True)
        assert launch.wait_gone(3) == []
    finally:
        launch.end()


LEAVING = """
import os, signal
from tests.fault.traced import work

held = []

def leave(record):
    if not held:
        held.append(b"x" * {held_bytes})
    if record["id"] == "s01-0005":
        try:
            os.close(os.open({left!r}, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return work(record)
        {end}
    return work(record)
"""
"""The first process that comes to one record ends there; the next one goes on."""


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("end", ["os._exit(0)", "os.kill(os.getpid(), signal.SIGKILL)"])
def test_a_worker_that_goes_never_hangs_its_job(tmp_path: Path, clean: Clean, workers: int, end: str) -> None:
    run_with_a_worker_that_leaves(tmp_path, clean, workers, end, held_bytes=1)


def test_a_worker_that_is_slow_to_die_is_not_taken_for_one_of_the_next_wave(tmp_path: Path, clean: Clean) -> None:
    """A process that holds a gigabyte is still there when its killer goes on."""
    run_with_a_worker_that_leaves(tmp_path, clean, 2, "os.kill(os.getpid(), signal.SIGKILL)", held_bytes=1 << 30)


def run_with_a_worker_that_leaves(tmp_path: Path, clean: Clean, workers: int, end: str, *, held_bytes: int) -> None:
    module = LEAVING.format(held_bytes=held_bytes, left=str(tmp_path / "left"), end=end)
    (tmp_path / "leaving.py").write_text(module)
    env = environment()
    env["PYTHONPATH"] += f"{os.pathsep}{tmp_path}"
    job = Job(tmp_path / "job", workers, env, "leaving:leave")
    launch = job.start()
    try:
        assert launch.wait(LIMIT_SECONDS), launch.log()
        assert launch.status == 0, launch.log()
        assert launch.deaths() == 1, launch.log()
    finally:
        launch.end()
    job.check_end(clean)
    assert not job.findings.bad, job.findings


def test_an_interrupted_suite_leaves_no_process_and_no_folder(tmp_path: Path) -> None:
    mark = f"suite:{os.getpid()}"
    env = {**os.environ, "TMPDIR": str(tmp_path), MARK_VARIABLE: mark}
    command = [sys.executable, "-m", "tests.fault", "--kills", "50"]
    suite = subprocess.Popen(command, cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        assert wait_until(lambda: any(tmp_path.glob("*/lane-*/*/trace")), LIMIT_SECONDS)
        jobs = f"{suite.pid}:"
        assert processes(jobs)
        time.sleep(random.random())
        suite.send_signal(signal.SIGINT)
        assert suite.wait(LIMIT_SECONDS) == 130
        assert processes(jobs) == []
        assert list(tmp_path.iterdir()) == []
    finally:
        suite.kill()
        suite.communicate()


@pytest.mark.slow
@pytest.mark.s3
def test_near_deduplication_on_s3_killed_all_over_its_stages(tmp_path: Path) -> None:
    if missing := s3.missing():
        pytest.skip(missing)
    found = run(20_000, 6, 3, tmp_path)
    assert not found.wrong
    assert found.kills >= 3
