"""``--profile``: speedscope files of real jobs, also of jobs that fail, die or are interrupted."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.pipelines.conftest import Workspace
from tests.servers.process import wait_until

pytestmark = pytest.mark.slow

BUSY = """
import os, signal, sys, time

def spin(record):
    until = time.perf_counter() + 0.004
    while time.perf_counter() < until:
        pass
    return record

def inner(number):
    return inner(number - 1) if number else spin({})

def deep(record):
    inner(600)
    return record

def raises(record):
    spin(record)
    raise ValueError("no")

def killed(record):
    if record["id"] == 150 and not os.path.exists("was-killed"):
        open("was-killed", "w").close()
        time.sleep(2.5)
        os.kill(os.getpid(), signal.SIGKILL)
    return spin(record)

def interval(record):
    return {"id": record["id"], "seconds": sys.getswitchinterval()}
"""
SPOILS = """
import os, busy

def spin(record):
    if os.path.isdir("for"):
        os.rmdir("for")
        open("for", "w").close()
    return busy.spin(record)
"""
LINES = {"spin": 4, "inner": 10, "deep": 13, "raises": 17, "killed": 21}
LONGEST = 400


@pytest.fixture
def place(workspace: Workspace) -> Workspace:
    (workspace.root / "busy.py").write_text(BUSY)
    for number in range(2):
        workspace.jsonl(f"in/{number}.jsonl", 150, first=150 * number)
    return workspace


def words(name: str, *more: str, workers: int = 1) -> tuple[str, ...]:
    return (
        *("map", f"busy:{name}", "in/*.jsonl", "--output", "out", "--to", "jsonl", "--ledger", "L"),
        *("--task-bytes", "4000", "--workers", str(workers), "--profile", "profile.json", *more),
    )


def profiles(root: Path) -> list[dict[str, float]]:
    """Return the seconds of each function of `busy` in each profile of a file, which is checked as speedscope reads it.

    https://www.speedscope.app/file-format-schema.json
    """
    found = json.loads((root / "profile.json").read_text())
    assert found["$schema"] == "https://www.speedscope.app/file-format-schema.json"
    assert found["exporter"].startswith("ledgerbeam ")
    assert found["name"]
    frames = found["shared"]["frames"]
    for frame in frames:
        assert (type(frame["name"]), type(frame["file"]), type(frame["line"])) == (str, str, int)
    assert len({tuple(frame.values()) for frame in frames}) == len(frames)
    assert 0 <= found["activeProfileIndex"] < len(found["profiles"])
    seconds = []
    for profile in found["profiles"]:
        assert (profile["type"], profile["unit"], profile["startValue"]) == ("sampled", "seconds", 0)
        assert len(profile["samples"]) == len(profile["weights"]) > 0
        assert min(profile["weights"]) >= 0
        assert sum(profile["weights"]) == pytest.approx(profile["endValue"])
        assert all(stack for stack in profile["samples"])
        assert max(map(len, profile["samples"])) <= LONGEST
        seconds.append(_seconds(profile, frames))
    names = [profile["name"] for profile in found["profiles"]]
    assert len(set(names)) == len(names)
    return seconds


def _seconds(profile: Any, frames: list[dict[str, Any]]) -> dict[str, float]:
    own: dict[str, float] = {}
    for stack, weight in zip(profile["samples"], profile["weights"], strict=True):
        for frame in {number: frames[number] for number in stack}.values():  # an invalid index raises
            if os.path.basename(frame["file"]) == "busy.py":
                assert LINES[frame["name"]] == frame["line"]
                own[frame["name"]] = own.get(frame["name"], 0.0) + weight
    return own


def last_run(place: Workspace) -> Any:
    return place.run("ledger", "status", "L", "--json").json["last_run"]


@pytest.mark.parametrize("workers", [1, 2])
def test_each_worker_is_profiled_with_the_users_function(place: Workspace, workers: int) -> None:
    place.run(*words("spin", workers=workers), status=0, err=f"profile.json ({workers} worker")
    found = profiles(place.root)
    assert len(found) == workers
    # 300 records of 4 ms
    assert sum(each.get("spin", 0.0) for each in found) > 0.8
    time = last_run(place)["time"]
    assert time["workers"] == workers
    assert time["seconds"]["function"] >= 0.9  # the share of the function is that in the first records
    assert {part for part, seconds in time["seconds"].items() if seconds} == {
        *("read", "index", "function", "encode", "publish", "ledger", "wait")
    }
    assert 0 < time["cpu"]["function"] <= time["seconds"]["function"]
    shown = place.run("ledger", "status", "L").out
    assert f"of {workers} worker" in next(line for line in shown.splitlines() if line.startswith("time "))
    (again,) = [place.run(*words("spin", workers=workers))]
    assert "the profile was not written, because no worker ran" in again.err
    assert last_run(place)["time"] is None


def test_threads_hand_the_interpreter_over_soon_while_they_are_looked_at(place: Workspace) -> None:
    """Otherwise the profiler waits for them, and attributes the time to code that releases the lock: numpy, reads."""
    for more, soon in ((("--profile", "profile.json"), True), ((), False)):
        out = f"out-{soon}"
        options = ("--output", out, "--to", "jsonl", "--ledger", f"L-{soon}", "--audit", "off", *more)
        ran = place.run("map", "busy:interval", "in/0.jsonl", *options)
        assert ran.status == 0, ran.err
        assert {record["seconds"] < 0.0002 for record in place.records(out)} == {soon}


def test_of_deep_recursion_the_outermost_functions_are_kept(place: Workspace) -> None:
    place.run(*words("deep"), status=0)
    (found,) = profiles(place.root)
    assert found["deep"] > 0.5
    assert found["inner"] > 0.5
    assert "spin" not in found  # it is deeper than the recorded part of the stack


def test_a_job_whose_tasks_fail_has_a_profile(place: Workspace) -> None:
    place.run(*words("raises", "--on-error", "reject"), status=0)
    (found,) = profiles(place.root)
    assert found["raises"] > 0.5
    ran = place.run(*words("raises", "--on-error", "reject:10", "--on-job-change", "restart"))
    assert ran.status == 1, ran.err
    assert "run the same command with a higher limit" in ran.err
    assert profiles(place.root)


def test_what_a_worker_has_left_remains_when_it_is_killed(place: Workspace) -> None:
    place.run(*words("killed"), status=0)
    first, second = profiles(place.root)
    assert first["killed"] > 1  # the worker slept before it was killed
    assert second["killed"] > 0.3
    assert last_run(place)["time"]["workers"] == 2


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_job_writes_its_profile_and_notes_its_time(place: Workspace, sent: signal.Signals) -> None:
    for number in range(2, 12):
        place.jsonl(f"in/{number}.jsonl", 150, first=150 * number)
    running = place.start(*words("spin"))
    wait_until(lambda: len(list((place.root / "out").glob("*.jsonl"))) >= 10, seconds=60)
    running.send_signal(sent)
    out = running.communicate(timeout=60)[0]
    assert running.returncode == 130, out
    (found,) = profiles(place.root)
    assert found["spin"] > 0.05
    assert last_run(place)["time"]["seconds"]["function"] > 0.05


def test_the_other_jobs_are_profiled_too(place: Workspace) -> None:
    options = ("--ledger", "L2", "--profile", "profile.json")
    big = place.jsonl("big/a.jsonl", 200_000)  # a worker that ends at once has no stacks
    place.run("index", big, *options, status=0)
    assert len(profiles(place.root)) == 1
    found = place.run("ledger", "status", "L2", "--json").json["last_run"]["time"]["seconds"]
    assert found["index"] > 0
    assert found["function"] == 0
    ran = place.run("convert", big, "--output", "tars", "--to", "tar", "--ledger", "L3", "--profile", "profile.json")
    assert ran.status == 0, ran.err
    assert len(profiles(place.root)) == 1


def test_the_report_shows_where_time_went_by_run(place: Workspace) -> None:
    for _ in range(2):
        assert place.run(*words("spin", "--limit-tasks", "2")).status == 0
    place.run("ledger", "report", "L", "--output", "report.html", status=0)
    table = (place.root / "report.html").read_text().partition("Where the time went")[2].partition("</table>")[0]
    assert [f'data-head="run">{run}<' in table for run in ("000001", "000002", "000003")] == [True, True, False]
    for head in ("workers", "read", "function", "encode", "publish", "ledger", "wait", "all", "processors"):
        assert table.count(f'data-head="{head}"') == 2


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (("--dry-run",), "--profile cannot be used with --dry-run"),
        (("--sample", "3"), "--profile cannot be used with --sample"),
        (("--", "--runner=PrismRunner"), "-- --profile_cpu --profile_location=URL"),
        (("--profile", "in"), "expected a file in a folder that exists"),
        (("--profile", "nowhere/profile.json"), "expected a file in a folder that exists"),
        (("--profile", "s3://key:secret@bucket/profile.json"), "a profile"),
    ],
)
def test_what_cannot_be_profiled_is_refused_before_anything_is_done(
    place: Workspace, more: tuple[str, ...], said: str
) -> None:
    place.run(*words("spin", *more), status=2, err=said)
    assert not (place.root / "out").exists()
    assert not (place.root / "L").exists()


def test_a_profile_that_cannot_be_written_spoils_no_job(place: Workspace) -> None:
    (place.root / "for").mkdir()
    (place.root / "spoils.py").write_text(SPOILS)
    options = ("--output", "out", "--to", "jsonl", "--ledger", "L", "--profile", "for/profile.json")
    place.run("map", "spoils:spin", "in/*.jsonl", *options, status=0, err="the profile was not written: ")
    assert len(place.records("out")) == 300


def test_a_program_asks_for_a_profile_by_the_same_name(place: Workspace) -> None:
    program = (
        "import ledgerbeam, busy\n"
        "from pathlib import Path\n"
        "if __name__ == '__main__':\n"
        "    ledgerbeam.map(busy.spin, 'in/*.jsonl', output='out', to='jsonl', workers=1, ledger='L',\n"
        "                   profile=Path('profile.json')).raise_for_failures()\n"
    )
    (place.root / "program.py").write_text(program)
    command = [sys.executable, "program.py"]
    done = subprocess.run(command, cwd=place.root, env=place.env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (found,) = profiles(place.root)
    assert found["spin"] > 0.5


def test_a_file_of_others_is_no_profile(place: Workspace) -> None:
    mine = place.root / "profile.json"
    mine.write_text('{"model_type": "gpt2"}\n')
    place.run(*words("spin"), status=2, err=f"{mine}: expected no file, or an earlier profile")
    assert mine.read_text() == '{"model_type": "gpt2"}\n'
    assert not (place.root / "out").exists()
    mine.unlink()
    assert place.run(*words("spin")).status == 0
    before = profiles(place.root)
    assert place.run(*words("spin"), "--task-bytes", "3000", "--on-job-change", "restart").status == 0
    assert profiles(place.root) != before
