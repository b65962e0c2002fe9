"""Jobs whose ledger lies on an object store, from one host and from two."""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import s3fs

from tests.conftest import S3Server
from tests.pipelines.conftest import FUNCTIONS, Workspace
from tests.pipelines.jobs.test_restart import wait_for
from tests.pipelines.stores.test_s3 import lines
from tests.servers.hosts import Hosts
from tests.servers.process import Process, wait_until

pytestmark = [pytest.mark.s3, pytest.mark.slow]

SOURCES = 8
RECORDS = 120


class Bucket:
    """A bucket with sources."""

    def __init__(self, server: S3Server) -> None:
        self.store = s3fs.S3FileSystem(**server.options, skip_instance_cache=True, use_listings_cache=False)
        self.url = f"s3://{server.bucket()}"
        for i in range(SOURCES):
            self.store.pipe_file(f"{self.url}/in/{i}.jsonl", lines(RECORDS * i, RECORDS))

    def map(self, output: str, ledger: str, function: str = "functions:slow") -> tuple[str, ...]:
        to = ("--output", f"{self.url}/{output}", "--to", "jsonl", "--ledger", f"{self.url}/{ledger}")
        return ("map", function, f"{self.url}/in/*.jsonl", *to, "--task-bytes", "1000", "--flush-interval", "0.2")

    def has(self, folder: str) -> bool:
        self.store.invalidate_cache()
        return bool(self.store.find(f"{self.url}/{folder}"))

    def contents(self, folder: str) -> dict[str, bytes]:
        self.store.invalidate_cache()
        root = f"{self.url.removeprefix('s3://')}/{folder}"
        found = [path for path in self.store.find(root) if "/_ledgerbeam/" not in path]
        return {path.removeprefix(root): self.store.cat_file(path) for path in found}


@pytest.fixture
def bucket(s3: S3Server) -> Bucket:
    return Bucket(s3)


def test_a_killed_job_goes_on_from_a_host_that_has_seen_nothing_of_it(
    workspace: Workspace, s3: S3Server, bucket: Bucket, tmp_path: Path
) -> None:
    one, two, three = ({**s3.env, "LEDGERBEAM_CACHE": str(tmp_path / f"host-{n}")} for n in range(3))
    assert workspace.run(*bucket.map("clean", "C"), env=one).status == 0
    process = workspace.start(*bucket.map("out", "L"), env=one)
    wait_for(lambda: bucket.has("L/segments") and bucket.has("out"), process)
    time.sleep(1)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    ran = workspace.run(*bucket.map("out", "L"), "--json", env=two, status=0, err="an older run may still be at work")
    assert ran.json["complete"]
    assert bucket.contents("out") == bucket.contents("clean")
    assert len(bucket.contents("out")) > 2 * SOURCES
    status = workspace.run("ledger", "status", f"{bucket.url}/L", "--json", env=three)
    assert status.json["sources"] == {"complete": SOURCES, "open": 0, "failed": 0}
    assert workspace.run("ledger", "verify", f"{bucket.url}/L", env=three).status == 0
    again = workspace.run(*bucket.map("out", "L"), env=three)
    assert "8 skipped" in again.out + again.err


def test_failures_are_kept_listed_and_forgotten(workspace: Workspace, s3: S3Server, bucket: Bucket) -> None:
    env = {**s3.env, "LEDGERBEAM_CACHE": str(workspace.root / "cache")}
    workspace.run(*bucket.map("out", "L", "functions:bad_seven"), env=env, status=3)
    failures = workspace.run("ledger", "failures", f"{bucket.url}/L", env=env)
    assert "seven is bad" in failures.out
    forgotten = workspace.run("ledger", "forget", f"{bucket.url}/L", f"{bucket.url}/in/1*", "--json", env=env)
    assert forgotten.json == {"forgotten": [f"{bucket.url}/in/1.jsonl"]}
    status = workspace.run("ledger", "status", f"{bucket.url}/L", "--json", env=env).json
    assert status["sources"] == {"complete": SOURCES - 2, "open": 1, "failed": 1}


def test_compaction_leaves_one_snapshot_and_the_same_ledger(workspace: Workspace, s3: S3Server, bucket: Bucket) -> None:
    env = {**s3.env, "LEDGERBEAM_CACHE": str(workspace.root / "cache")}
    assert workspace.run(*bucket.map("out", "L", "functions:keep"), env=env).status == 0
    outputs = workspace.run("ledger", "outputs", f"{bucket.url}/L", env=env).out
    assert workspace.run("ledger", "compact", f"{bucket.url}/L", env=env).status == 0
    assert bucket.contents("L/segments") == {}
    new = {**env, "LEDGERBEAM_CACHE": str(workspace.root / "new")}
    assert workspace.run("ledger", "outputs", f"{bucket.url}/L", env=new).out == outputs
    assert "8 skipped" in workspace.run(*bucket.map("out", "L", "functions:keep"), env=new).out


def test_a_large_source_is_indexed_by_a_remote_ledger(workspace: Workspace, s3: S3Server, bucket: Bucket) -> None:
    env = {**s3.env, "LEDGERBEAM_CACHE": str(workspace.root / "cache")}
    bucket.store.pipe_file(f"{bucket.url}/big.jsonl", lines(0, 3000))
    command = ("index", f"{bucket.url}/big.jsonl", "--task-bytes", "20000", "--ledger", f"{bucket.url}/I", "--json")
    ran = workspace.run(*command, env=env, status=0)
    assert ran.json["tasks"]["done"] > 4
    assert len(bucket.contents("big.jsonl.idx")[""]) == 8 * 3001
    assert bucket.contents("I/work") == {}


@pytest.fixture
def on_host(hosts: Hosts, tmp_path: Path) -> Callable[..., Process]:
    """Start a command of ours on one of the hosts."""
    (tmp_path / "functions.py").write_text(FUNCTIONS)
    env = {"PYTHONPATH": f"{tmp_path}:{Path.cwd()}", "LEDGERBEAM_CACHE": str(hosts.folder / "cache")}
    return lambda host, *words: hosts.run([sys.executable, "-m", "ledgerbeam", *words], host=host, env=env)


def test_two_hosts_do_one_job_at_once_and_a_link_is_cut(hosts: Hosts, on_host: Callable[..., Process]) -> None:
    bucket = Bucket(hosts.s3)
    clean = on_host(1, *bucket.map("clean", "C"))
    assert clean.wait(120) == 0, clean.log.read_text()
    both = [on_host(host, *bucket.map("out", "L"), "--workers", "1") for host in (1, 2)]
    assert wait_until(lambda: bucket.has("out"), seconds=240)
    hosts.cut(2)
    time.sleep(3)
    hosts.heal(2)
    for process in both:
        assert process.wait(180) == 0, process.log.read_text()
    assert bucket.contents("out") == bucket.contents("clean")
    status = on_host(2, "ledger", "status", f"{bucket.url}/L", "--json")
    assert status.wait(60) == 0
    told = json.loads(status.log.read_text())
    assert told["sources"] == {"complete": SOURCES, "open": 0, "failed": 0}


def test_a_host_that_dies_behind_a_cut_link_is_replaced(hosts: Hosts, on_host: Callable[..., Process]) -> None:
    bucket = Bucket(hosts.s3)
    first = on_host(1, *bucket.map("out", "L"))
    assert wait_until(lambda: bucket.has("out"), seconds=240)
    hosts.cut(1)
    time.sleep(1)
    first.stop()
    second = on_host(2, *bucket.map("out", "L"))
    assert second.wait(180) == 0, second.log.read_text()
    assert "an older run may still be at work" in second.log.read_text()
    clean = on_host(2, *bucket.map("clean", "C"))
    assert clean.wait(120) == 0, clean.log.read_text()
    assert bucket.contents("out") == bucket.contents("clean")


def test_what_is_forgotten_when_a_run_begins_is_done_in_it(workspace: Workspace, s3: S3Server, bucket: Bucket) -> None:
    """Of a remote ledger a run records nothing of what is forgotten after it has begun."""
    env = {**s3.env, "LEDGERBEAM_CACHE": str(workspace.root / "cache")}
    command = bucket.map("out", "L", "functions:keep")
    assert workspace.run(*command, env=env).status == 0
    clean = bucket.contents("out")
    bucket.store.rm_file(f"{bucket.url}/out/0.jsonl-0000000000.jsonl")
    ran = workspace.run(*command, "--json", env=env, status=0)
    assert ran.json["complete"]
    assert bucket.contents("out") == clean
    index = ("index", f"{bucket.url}/in/*.jsonl", "--ledger", f"{bucket.url}/I", "--json")
    assert workspace.run(*index, env=env).status == 0
    forced = workspace.run(*index, "--force", env=env, status=0)
    assert forced.json["skipped"] == 0
    assert forced.json["sources"] == {"complete": SOURCES, "open": 0, "failed": 0}
