"""`ledger status` and `watch`: progress, rates, time left, runs and hosts of a job, by the observer's clock."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import s3fs

from ledgerbeam import open_ledger
from ledgerbeam.io.storage.stat import stat_many
from ledgerbeam.ledger import Job, LedgerStore, Source
from ledgerbeam.ledger.model.claims import Claims, Span, encode_claims
from ledgerbeam.ledger.model.rows import Leaf
from ledgerbeam.ledger.opening import open_local_store, run_folders
from ledgerbeam.ledger.remote.segment import Segment, encode_segment
from ledgerbeam.ledger.remote.store import RemoteStore
from ledgerbeam.pipelines.jobs.one_stage import IndexJob
from ledgerbeam.pipelines.jobs.sources import ListedFiles
from ledgerbeam.pipelines.report.hosts import HostRun, Sightings, hosts_of
from ledgerbeam.pipelines.report.run_info import run_info
from ledgerbeam.pipelines.report.state import JobProgress, job_progress, shown_runs
from tests.ledger.builders import ONE as JOB
from tests.ledger.builders import failure_of, leaf_of, plain
from tests.ledger.remote.test_store import Hosts
from tests.pipelines.conftest import Workspace
from tests.pipelines.jobs.test_restart import COMMAND, SLOW, WORK, tasks_done, wait_for, write_sources
from tests.servers.s3_proxy import Fault, S3Proxy

KEEP = ("map", "functions:keep", "in/*.jsonl", "--output", "out", "--to", "jsonl", "--ledger", "L")


@pytest.mark.slow
def test_status_tells_of_each_run_what_was_done_in_it(workspace: Workspace) -> None:
    workspace.jsonl("in/a.jsonl", 50)
    assert workspace.run(*KEEP, "--task-bytes", "400").status == 0
    first = workspace.run("ledger", "status", "L", "--json").json["tasks"]["done"]
    workspace.jsonl("in/b.jsonl", 20)
    assert workspace.run(*KEEP, "--task-bytes", "400").status == 0
    status = workspace.run("ledger", "status", "L", "--json").json
    assert status["job"]["pipeline"] == "map"
    assert status["sources"] == {"complete": 2, "open": 0, "failed": 0}
    assert status["tasks"]["failed"] == 0
    assert status["complete"] is True
    assert first > 1
    done = [run["done"] for run in status["runs"]]
    assert [work["tasks"] for work in done] == [first, status["tasks"]["done"] - first]
    assert [work["sources"] for work in done] == [1, 1]
    assert [work["records"] for work in done] == [50, 20]
    assert [run["state"] for run in status["runs"]] == ["done", "done"]
    assert [run["listed"] for run in status["runs"]] == [1, 2]
    assert status["rates"]["run"]["records"] == 20 / status["runs"][1]["seconds"]
    assert status["running"] is False
    assert status["rates"]["minute"] is None
    assert status["time_left"] is None
    text = workspace.run("ledger", "status", "L").out
    assert "2 complete, 0 open, 0 failed" in text
    assert "time left" not in text
    assert text.count(f" on {os.uname().nodename}") == 2
    assert "--task-bytes 400" in text


def test_status_names_a_source_that_is_gone_and_the_ledger_of_an_output_folder(workspace: Workspace) -> None:
    for name in ("a", "b"):
        workspace.jsonl(f"in/{name}.jsonl", 3)
    job = ("convert", "in/*.jsonl", "--to", "jsonl", "--output", "out", "--ledger", "L")
    workspace.run(*job)
    (workspace.root / "in/b.jsonl").unlink()
    workspace.run(*job)
    assert f"such as {workspace.root}/in/b.jsonl" in workspace.run("ledger", "status", "L").out
    ran = workspace.run("ledger", "status", "out")
    assert (ran.status, f"give {workspace.root}/L" in ran.err) == (1, True)


def test_a_run_that_works_is_told_from_one_that_was_killed(workspace: Workspace) -> None:
    write_sources(workspace)
    process = workspace.start(*SLOW)
    wait_for(lambda: tasks_done(workspace) > 3, process)
    status = workspace.run("ledger", "status", "L", "--json").json
    assert process.poll() is None, "the job has ended before its status was asked for"
    assert status["running"] is True
    assert status["runs"][-1]["state"] == "running"
    assert status["rates"]["minute"]["tasks"] > 0
    assert status["rates"]["run"]["records"] > 0
    process.kill()
    process.communicate()
    status = workspace.run("ledger", "status", "L", "--json").json
    assert status["runs"][-1]["state"] == "killed"
    assert status["running"] is False
    assert status["time_left"] is None
    assert status["rates"] == {"minute": None, "run": None}
    assert status["runs"][-1]["seconds"] is None
    assert status["runs"][-1]["done"]["tasks"] == status["tasks"]["done"] > 3


def progress_of(store: LedgerStore) -> JobProgress:
    return job_progress(store, store.status(), shown_runs(store))


def test_the_time_left_follows_from_the_sizes_of_sources_and_is_none_while_it_is_unknown(tmp_path: Path) -> None:
    sources = [Source(f"/data/{size}", size, "v") for size in (10, 30, 100, 60)]
    store = open_local_store(str(tmp_path / "L"), create=True)
    store.open_job(Job("map", {}))
    assert progress_of(store).time_left is None
    run = store.begin_run(run_info(store, IndexJob(files=ListedFiles()), "local"))
    with run_folders(store).enter(run):
        store.register(sources)
        store.note_listing(run, listed=4, finished=True)
        assert progress_of(store).time_left is None, "no source is complete"
        store.commit([Leaf(source.id, (), "filtered") for source in sources[:2]])
        time.sleep(0.2)
        progress = progress_of(store)
        assert progress.run is not None
        assert progress.run["sources"] == pytest.approx(2 / progress.run["seconds"], rel=0.5)
        seconds = 2 / progress.run["sources"]
        assert progress.time_left == pytest.approx((100 + 60) / (10 + 30) * seconds)
        store.note_listing(run, listed=4, finished=False)
        assert progress_of(store).time_left is None, "what is still to be listed is unknown"
        store.note_listing(run, listed=4, finished=True)
        assert progress_of(store).running
    assert not progress_of(store).running
    store.end_run(run, "interrupted")
    assert progress_of(store).time_left is None, "nothing is at work"


def test_a_run_of_another_host_may_still_work(workspace: Workspace) -> None:
    store = open_local_store(str(workspace.root / "L"), create=True)
    store.open_job(Job("map", {}))
    store.begin_run({"pid": os.getpid(), "host": "another-host"})
    store.close()
    (run,) = workspace.run("ledger", "status", "L", "--json").json["runs"]
    assert run["state"] == "running, or killed"
    assert run["done"] == {"tasks": 0, "records": 0, "bytes": 0, "sources": 0}


def known(workspace: Workspace, *packs: list[Path]) -> None:
    """Registers files in a ledger; a list of files as a pack."""
    store = open_local_store(str(workspace.root / "L"), create=True)
    store.open_job(Job("map", {}))
    for paths in packs:
        members = [Source(info.url, info.size, info.version) for info in stat_many([str(path) for path in paths])]
        store.register(members if len(members) == 1 else [Source.pack(members)])
    store.close()


def test_sources_that_changed_since_are_told_when_asked(workspace: Workspace) -> None:
    files = [workspace.jsonl(f"in/{name}.jsonl", 5) for name in "abcdef"]
    known(workspace, files[:1], files[1:2], files[2:3], files[3:])
    ask = ("ledger", "status", "L", "--check-sources")
    assert workspace.run(*ask, "--json").json["changed_since"] == {"changed": 0, "missing": 0, "sources": []}
    workspace.jsonl("in/a.jsonl", 6)
    (workspace.root / "in/b.jsonl").unlink()
    workspace.jsonl("in/e.jsonl", 5, width=30)  # a member of the pack
    found = workspace.run(*ask, "--json").json["changed_since"]
    assert (found["changed"], found["missing"]) == (2, 1)
    assert sorted((source["problem"], source["source"][-7:]) for source in found["sources"]) == [
        ("changed", "a.jsonl"),
        ("changed", "d.jsonl"),
        ("missing", "b.jsonl"),
    ]
    text = workspace.run(*ask).out
    assert "2 sources changed (done again by the next run), 1 missing" in text
    assert f"missing: {workspace.root / 'in/b.jsonl'}" in text
    assert "changed_since" not in workspace.run("ledger", "status", "L", "--json").json


SOURCES = [plain(f"s{number:02d}", size=100) for number in range(20)]
HOUR = 3600.0


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    hosts = Hosts(tmp_path)
    yield hosts
    hosts.close()


class Far:
    """The launcher of a run on another host, whose clock may be wrong. Only its objects are visible."""

    def __init__(self, hosts: Hosts, host: str, *, clock: float = 0.0) -> None:
        self._objects = hosts.objects
        self._clock = clock
        self._store = hosts.store()
        self._store.open_job(JOB)
        self.host = host
        info = {"host": host, "runner": "local", "place": "ab" * 16, "pid": 7, "workers": 2}
        self.run = self._store.begin_run(info)
        self._said = 0

    def commit(self, *numbers: int, failed: int | None = None) -> None:
        failures = [] if failed is None else [failure_of(SOURCES[failed], ())]
        leaves = [leaf_of(SOURCES[number]) for number in numbers]
        segment = Segment(int(self.run), time.time() + self._clock, leaves=leaves, failures=failures)
        name = f"segments/{self.run}/t-{self.host}-{time.monotonic_ns()}.seg"
        assert self._objects.create(name, encode_segment(segment))

    def claim(self, *numbers: int, seconds: float = 30.0) -> None:
        self._said += 1
        spans = [Span(SOURCES[number].id, 0, 10) for number in numbers]
        claims = Claims(self.run, "ab" * 16, self._said, seconds, spans)
        self._objects.replace(f"claims/{self.run}/{self.host}.json", encode_claims(claims))

    def end(self) -> None:
        self._store.end_run(self.run, "done", tidied=True)


def look(store: RemoteStore, sightings: Sightings | None = None) -> dict[str, HostRun]:
    store.refresh()
    found = hosts_of(store, shown_runs(store), sightings)
    return {run.run: run for host in found for run in host.runs}


def test_each_run_has_what_it_did_and_has_in_work(hosts: Hosts) -> None:
    a, b = Far(hosts, "a"), Far(hosts, "b")
    reader = hosts.store()
    reader.register(SOURCES)
    a.commit(0, 1, 2)
    a.commit(failed=9)
    b.commit(3)
    b.claim(4, 5)
    b.commit(6, failed=9)
    found = look(reader)
    assert [run.tasks for run in found.values()] == [3, 2]
    assert [run.records for run in found.values()] == [15, 10]
    assert [run.bytes for run in found.values()] == [150, 100]
    assert [run.sources for run in found.values()] == [3, 2]
    assert [run.failures for run in found.values()] == [1, 1]
    assert [(run.state, run.engine, run.spans) for run in found.values()] == [
        ("running", "local", None),
        ("running", "local", 2),
    ]
    assert found[b.run].in_work == [{"source": SOURCES[number].url, "start": 0, "stop": 10} for number in (4, 5)]
    assert (found[a.run].rates or {})["tasks"] > 0
    a.end()
    ended = look(reader)[a.run]
    assert (ended.state, ended.silent, ended.rates, ended.spans) == ("done", None, None, None)
    assert [host.host for host in hosts_of(reader, shown_runs(reader))] == ["a", "b"]


@pytest.mark.parametrize("clock", [-HOUR, 0.0, HOUR])
def test_whether_a_run_lives_is_judged_by_the_clock_of_who_looks(
    hosts: Hosts, monkeypatch: pytest.MonkeyPatch, clock: float
) -> None:
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now - 2 * HOUR)
    far = Far(hosts, "far", clock=clock)
    reader = hosts.store()
    reader.register(SOURCES)
    monkeypatch.setattr(time, "time", lambda: now)
    own = SimpleNamespace(seconds=100.0)
    sightings = Sightings(lambda: own.seconds)
    far.commit(0)
    first = look(reader, sightings)[far.run]
    assert first.state == ("silent" if clock < 0 else "running"), "only its own times are known yet"
    own.seconds += 20
    far.commit(1)
    second = look(reader, sightings)[far.run]
    assert (second.state, second.silent) == ("running", 0.0)
    assert second.rates is not None
    assert second.rates["tasks"] == pytest.approx(1 / 20)
    own.seconds += 59
    third = look(reader, sightings)[far.run]
    assert (third.state, third.silent) == ("running", 59.0)
    own.seconds += 2
    fourth = look(reader, sightings)[far.run]
    assert (fourth.state, fourth.silent, fourth.rates) == ("silent", 61.0, None)
    far.claim(2)
    assert look(reader, sightings)[far.run].state == "running", "it has said something"


def test_claims_of_the_dead_do_not_make_a_run_live(hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now - HOUR)
    far = Far(hosts, "far")
    monkeypatch.setattr(time, "time", lambda: now)
    far.claim(1, 2)
    reader = hosts.store()
    own = SimpleNamespace(seconds=100.0)
    sightings = Sightings(lambda: own.seconds)
    assert look(reader, sightings)[far.run].state == "running, or killed", "nobody can tell how old a claim is"
    own.seconds += 29
    assert look(reader, sightings)[far.run].state == "running, or killed"
    own.seconds += 2
    found = look(reader, sightings)[far.run]
    assert found.state == "silent"
    assert found.silent == pytest.approx(HOUR, abs=1)


def test_a_job_is_at_work_while_any_of_its_runs_is(hosts: Hosts) -> None:
    first, last = Far(hosts, "a"), Far(hosts, "b")
    reader = hosts.store()
    reader.register(SOURCES)
    last.end()
    reader.refresh()
    assert not job_progress(reader, reader.status(), shown_runs(reader)).running
    first.commit(0)
    reader.refresh()
    progress = job_progress(reader, reader.status(), shown_runs(reader))
    assert progress.running
    assert progress.minute is not None
    assert progress.minute["tasks"] > 0


@pytest.mark.slow
def test_two_launchers_of_one_ledger_are_told_apart(workspace: Workspace) -> None:
    patient = WORK.replace("time.sleep(0.15)", 'time.sleep(0 if os.path.exists("seen") else 0.5)')
    (workspace.root / "sharing_work.py").write_text(patient)
    for name in "abcd":
        workspace.jsonl(f"in/{name}.jsonl", 40)
    workspace.env["DONE_LOG"] = str(workspace.root / "log")
    shared = (*COMMAND, "--output", "out", "--ledger", "L", "--json")
    processes = [workspace.start(*shared), workspace.start(*shared)]
    wait_for(lambda: are_both_at_work(workspace), processes[0])
    wait_for(lambda: all(run["tasks"] > 2 and run["spans"] for run in runs_of(workspace)), processes[0])
    one, two = runs_of(workspace)
    for run in (one, two):
        assert (run["state"], run["engine"], run["workers"]) == ("running", "local", 1)
        assert run["rates"]["tasks"] > 0
        assert run["silent"] < 60
        assert run["in_work"][0]["source"].startswith(str(workspace.root / "in"))
    text = workspace.run("ledger", "status", "L", "--by-host").out.splitlines()
    assert text[0].split()[:4] == ["host", "run", "engine", "state"]
    assert "2 runs" in text[1]
    assert [line.split()[:3] for line in text[2:]] == [[run["run"], "local", "running"] for run in (one, two)]
    watched = workspace.start("ledger", "watch", "L", "--interval", "0.5")
    (workspace.root / "seen").touch()
    printed = [process.communicate(timeout=120)[0] for process in processes]
    said = [json.loads(text[text.index("\n{") :]) if not text.startswith("{") else json.loads(text) for text in printed]
    done = [found["done"]["tasks"] for found in said]
    assert sum(done) == 160, "what each has recorded, and nothing of the other"
    assert min(done) > 2
    assert sorted(run["tasks"] for run in runs_of(workspace)) == sorted(done)
    assert [run["state"] for run in runs_of(workspace)] == ["done", "done"]
    seen = watched.communicate(timeout=60)[0]
    assert watched.returncode == 0, seen
    assert "160 of about 160 done (100.0 %)" in seen or "160 done (100.0 %)" in seen
    assert "2 runs on 1 host" in seen


def are_both_at_work(workspace: Workspace) -> bool:
    log = workspace.root / "log"
    return log.exists() and len({line.split()[1] for line in log.read_text().splitlines()}) == 2


def runs_of(workspace: Workspace) -> list[dict[str, Any]]:
    found = workspace.run("ledger", "status", "L", "--by-host", "--json").json["hosts"]
    assert len(found) == 1
    runs: list[dict[str, Any]] = found[0]["runs"]
    assert found[0]["tasks"] == sum(run["tasks"] for run in runs)
    return runs


TASKS = 80


@contextlib.contextmanager
def reading(process: subprocess.Popen[str]) -> Iterator[list[str]]:
    """Collect the output lines of a process while the body runs."""
    lines: list[str] = []
    assert process.stdout is not None
    os.set_blocking(process.stdout.fileno(), False)
    yield lines
    process.kill()
    process.communicate()


def take(process: subprocess.Popen[str], lines: list[str]) -> list[str]:
    assert process.stdout is not None
    while line := process.stdout.readline():
        lines.append(line.rstrip("\n"))
    return lines


@pytest.mark.s3
@pytest.mark.slow
def test_hosts_on_a_store_are_watched_with_few_requests_and_over_a_link_that_is_cut(
    workspace: Workspace, faulty_s3: S3Proxy
) -> None:
    bucket = faulty_s3.server.bucket()
    store = s3fs.S3FileSystem(**faulty_s3.server.options, skip_instance_cache=True)
    for number in range(4):
        rows = ({"id": i} for i in range(20 * number, 20 * (number + 1)))
        store.pipe_file(f"{bucket}/in/{number}.jsonl", b"".join(json.dumps(row).encode() + b"\n" for row in rows))
    (workspace.root / "sharing_work.py").write_text(WORK.replace("0.15", "0.5"))
    workspace.env["DONE_LOG"] = str(workspace.root / "log")
    ledger = f"s3://{bucket}/L"
    command = (
        *("map", "sharing_work:slow", f"s3://{bucket}/in/*.jsonl", "--to", "jsonl", "--task-bytes", "1"),
        *("--audit=off", "--output", f"s3://{bucket}/out", "--ledger", ledger),
    )
    envs = [{**faulty_s3.server.env, "LEDGERBEAM_CACHE": str(workspace.root / f"host-{n}")} for n in range(2)]
    processes = [workspace.start(*command, env=env) for env in envs]
    wait_for(lambda: are_both_at_work(workspace), processes[0])
    own = {**faulty_s3.env, "LEDGERBEAM_CACHE": str(workspace.root / "reader")}
    watching = workspace.start("ledger", "watch", ledger, "--interval", "1", env=own)
    with reading(watching) as lines:
        wait_for(lambda: any("2 runs on 1 host" in line for line in take(watching, lines)), watching)
        began, before = time.monotonic(), len(faulty_s3.requests)
        looks = sum(line.startswith("at work") for line in take(watching, lines))
        wait_for(lambda: sum(line.startswith("at work") for line in take(watching, lines)) >= looks + 4, watching)
        seconds, asked = time.monotonic() - began, faulty_s3.requests[before:]
        assert {request.method for request in asked} <= {"GET"}
        listings = [request for request in asked if "list-type=2" in request.query]
        claims = [request for request in asked if "/L/claims/" in request.key]
        segments = [request.key for request in asked if "/L/segments/" in request.key]
        assert len(listings) <= seconds + 2
        assert len(claims) <= 2 * (seconds / 10 + 1)
        assert len(segments) == len(set(segments)), "every object is read once"
        assert len(asked) == len(listings) + len(claims) + len(segments)
        cut = Fault("reset")
        faulty_s3.faults.append(cut)
        wait_for(lambda: any("the store does not answer, trying again" in x for x in take(watching, lines)), watching)
        faulty_s3.faults.remove(cut)
        for process in processes:
            said = process.communicate(timeout=120)[0]
            assert process.returncode == 0, said
        assert watching.wait(timeout=60) == 0, take(watching, lines)
        take(watching, lines)
    blocks = "\n".join(lines).split("\n\n")
    assert f"{TASKS} of about" in blocks[-2] or f"{TASKS} done (100.0 %)" in blocks[-2], blocks[-2:]
    assert any("record" in block and "last minute" in block for block in blocks)


def test_once_and_as_json(failed_job: Workspace) -> None:
    data = failed_job.root / "L" / "data.mdb"
    before = data.read_bytes()
    ran = failed_job.run("ledger", "watch", "L", "--once", status=0)
    assert ran.err == ""
    assert "0 runs on 0 hosts" in ran.out
    assert "3 failed" in ran.out
    (found,) = map(json.loads, failed_job.run("ledger", "watch", "L", "--once", "--json").out.splitlines())
    assert found["tasks"]["failed"] == 3
    assert [run["state"] for host in found["hosts"] for run in host["runs"]] == ["tasks failed"]
    assert found["hosts"][0]["failures"] == 3
    assert found["hosts"] == open_ledger(failed_job.root / "L").hosts(), "as Python has it"
    failed_job.run("ledger", "status", "L", "--by-host", status=0)
    assert data.read_bytes() == before, "looking changes nothing"
    failed_job.run("ledger", "watch", "nothing", "--once", status=1, err="does not exist")
    failed_job.run("ledger", "status", "L", "--by-host", "--check-sources", status=2, err="--check-sources")


@pytest.mark.parametrize("on_terminal", [False, True])
def test_ctrl_c_ends_it_without_a_word(failed_job: Workspace, on_terminal: bool) -> None:
    main, side = pty.openpty() if on_terminal else os.pipe()
    command = [sys.executable, "-m", "ledgerbeam", "ledger", "watch", "L", "--interval", "0.5"]
    env = {**failed_job.env, "TERM": "xterm", "COLUMNS": "150", "LINES": "40"}
    process = subprocess.Popen(
        command, cwd=failed_job.root, env=env, stdout=side, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    os.close(side)
    seen = b""
    while seen.count(b"0 runs on 0 hosts") < 2:
        seen += os.read(main, 4096)
    process.send_signal(signal.SIGINT)
    with contextlib.suppress(OSError):  # no process writes to the terminal any more
        while more := os.read(main, 4096):
            seen += more
    assert process.communicate(timeout=30)[1] == ""
    assert process.returncode == 130
    assert (b"Ctrl-C ends" in seen) is on_terminal
    os.close(main)
