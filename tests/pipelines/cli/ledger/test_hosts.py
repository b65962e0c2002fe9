"""`ledger status --by-host`: state of each host, by the observer's clock."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ledgerbeam.ledger.model.claims import Claims, Span, encode_claims
from ledgerbeam.ledger.remote.segment import Segment, encode_segment
from ledgerbeam.ledger.remote.store import RemoteStore
from ledgerbeam.pipelines.report.hosts import HostRun, Sightings, hosts_of
from ledgerbeam.pipelines.report.state import job_progress, shown_runs
from tests.ledger.builders import leaf_of, plain
from tests.ledger.conformance import JOB, failure_of
from tests.ledger.remote.test_store import Hosts
from tests.pipelines.conftest import Workspace
from tests.pipelines.jobs.test_restart import COMMAND, WORK, wait_for

SOURCES = [plain(f"s{number:02d}", size=100) for number in range(20)]
HOUR = 3600.0


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    hosts = Hosts(tmp_path)
    yield hosts
    hosts.close()


class Clock:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.seconds = 100.0

    def __call__(self) -> float:
        return self.seconds


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
    own = Clock()
    sightings = Sightings(own)
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
    own = Clock()
    sightings = Sightings(own)
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
    log = workspace.root / "log"
    wait_for(
        lambda: log.exists() and len({line.split()[1] for line in log.read_text().splitlines()}) == 2, processes[0]
    )
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


def runs_of(workspace: Workspace) -> list[dict[str, Any]]:
    found = workspace.run("ledger", "status", "L", "--by-host", "--json").json["hosts"]
    assert len(found) == 1
    runs: list[dict[str, Any]] = found[0]["runs"]
    assert found[0]["tasks"] == sum(run["tasks"] for run in runs)
    return runs
