"""Exchanges that are killed all over their stages, or run by several hosts, write what one run writes."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import s3fs

from ledgerbeam.ledger.opening import open_local_store
from tests.conftest import S3Server
from tests.pipelines.conftest import Ran, Workspace, make_workspace
from tests.pipelines.exchanges import (
    test_against,
    test_dedup,
    test_join,
    test_near,
    test_rounds,
    test_sort,
    test_verify,
)
from tests.pipelines.exchanges.stages import portable_marks, write_jsonl
from tests.servers.process import wait_until

pytestmark = pytest.mark.slow


def tasks_done(workspace: Workspace, ledgers: Sequence[str]) -> int:
    """Return how many tasks the ledgers of all stages hold."""
    done = 0
    for ledger in ledgers:
        with suppress(FileNotFoundError):
            done += open_local_store(str(workspace.root / ledger), create=False, read_only=True).totals().tasks
    return done


def run_with_kills(workspace: Workspace, command: Sequence[str], ledgers: Sequence[str], step: int) -> None:
    """Start a command again and again, and kill it whenever so many more tasks are done, until it ends."""
    kills = 0
    while True:
        before = tasks_done(workspace, ledgers)
        process = workspace.start(*command, "--workers", "2", "--flush-interval", "0.01")
        while process.poll() is None and tasks_done(workspace, ledgers) < before + step:
            time.sleep(0.005)
        if process.poll() is not None:
            out = process.communicate()[0]
            assert process.returncode == 0, out
            break
        process.kill()
        process.communicate()
        kills += 1
    assert kills, "it was never killed"


class OnStore:
    """An exchange whose sources, outputs and ledger are on an object store; its command is that of a disk."""

    def __init__(self, workspace: Workspace, s3: S3Server, command: Sequence[str]) -> None:
        self._workspace, self._env, self.bucket = workspace, s3.env, s3.bucket()
        self.store = s3fs.S3FileSystem(**s3.options, skip_instance_cache=True)
        for path in sorted((workspace.root / "in").glob("*.jsonl")):
            self.store.pipe_file(f"{self.bucket}/in/{path.name}", path.read_bytes())
        places = {name: f"s3://{self.bucket}/{name}" for name in ("in/*.jsonl", "out", "L")}
        self._command = [places.get(word, word) for word in command]

    def kill(self) -> None:
        """Kill a start between its first two stages."""
        killing = {**self._env, "LEDGERBEAM_FAULT": "exchange.tabulated:1"}
        assert self._workspace.run(*self._command, env=killing).status != 0

    def start(self, *options: str) -> subprocess.Popen[str]:
        """Start it, as a host beside others would."""
        return self._workspace.start(*self._command, *options, env=self._env)

    def run(self) -> Ran:
        """Do what is left; return how it ended."""
        ran = self._workspace.succeed(*self._command, "--json", env=self._env)
        self.store.invalidate_cache()
        return ran

    def records(self) -> list[Any]:
        """Return what it has written."""
        names = sorted(self.store.glob(f"{self.bucket}/out/*.jsonl"))
        return [json.loads(line) for name in names for line in self.store.cat_file(name).splitlines()]


def between(stages: int) -> list[str]:
    """Return the points between so many stages."""
    return [f"exchange.tabulated:{number}" for number in range(1, stages)]


@dataclass(frozen=True)
class Exchange:
    """An exchange of a user."""

    command: Sequence[str]
    write: Callable[[Workspace], None]  # writes the sources
    undisturbed: Callable[[Workspace], dict[str, Any]]  # runs it and returns what it leaves
    faults: Sequence[str]  # points at which it is killed
    ledgers: Sequence[str] = ()  # of its stages
    step: int = 5  # tasks that are done between two kills
    in_turn: bool = True  # whether each stage reads what the one before has written
    records: Callable[[Workspace], list[Any]] | None = None  # what it must write; None if it is not run on a store
    left: frozenset[str] = frozenset()  # internal folders that stay
    contents: Callable[[Workspace], dict[str, Any]] = test_near.shards

    def written(self, workspace: Workspace) -> dict[str, Any]:
        folders = {path.name for path in (workspace.root / "out").glob("_*/")} - {"_ledgerbeam"}
        assert folders == self.left
        return self.contents(workspace)


def plain(command: Sequence[str]) -> Callable[[Workspace], dict[str, bytes]]:
    def run(workspace: Workspace) -> dict[str, bytes]:
        workspace.succeed(*command, "--workers", "2")
        return workspace.files("out")

    return run


def near_of_one_process(workspace: Workspace) -> dict[str, bytes]:
    workspace.succeed(*test_near.NEAR)
    return test_near.shards(workspace)


def write_earlier(workspace: Workspace) -> None:
    test_against.write_both(workspace)
    workspace.succeed(*test_against.EARLIER)


SIGNED = frozenset({"_signatures"})
IN_ROUNDS = (*test_rounds.SORT, *test_rounds.THREE)
JOIN = (*test_join.JOIN, *test_join.SUFFIX)
FAULTS = ["publish.after:9", "flush.after_commit:9"]
EXCHANGES = {
    "sort": Exchange(
        *(test_sort.SORT, test_sort.write_sources, plain(test_sort.SORT), [*FAULTS, *between(2)]),
        *(("L", "L/scatter"), 3),
        records=test_sort.expected,
    ),
    "sort in rounds": Exchange(
        *(IN_ROUNDS, test_rounds.write_sources, plain(IN_ROUNDS), between(4)),
        *(("L", "L/scatter", "L/merge-1", "L/merge-2"), 7),
        records=test_sort.expected,
    ),
    "join": Exchange(
        *(JOIN, test_join.write_sides, test_join.undisturbed, [*FAULTS, *between(2)]),
        *(("L", "L/right", "L/left"), 3),
        in_turn=False,
    ),
    "dedup": Exchange(
        *(test_dedup.DEDUP, test_dedup.write_sources, test_dedup.undisturbed, [*FAULTS[1:], *between(3)]),
        *(("L", "L/decide", "L/decide/scatter"), 3),
        records=test_dedup.survivors,
    ),
    "marks": Exchange(
        *(test_dedup.MARKS, test_dedup.write_sources, test_dedup.undisturbed_marks, [*FAULTS[1:], *between(3)]),
        *(("L", "L/decide", "L/decide/scatter"), 3),
        contents=lambda workspace: portable_marks(workspace.root),
    ),
    "near": Exchange(
        *(test_near.NEAR, test_near.write_sources, test_near.undisturbed, between(4)),
        ("L", "L/cluster", "L/cluster/pairs", "L/cluster/pairs/scatter"),
        records=test_near.survivors,
        left=SIGNED,
    ),
    "near in rounds": Exchange(
        *(test_near.IN_ROUNDS, test_near.write_sources, near_of_one_process, between(9)),
        *(test_near.LEDGERS, 25),
        records=test_near.survivors,
        left=SIGNED,
    ),
    "verify": Exchange(
        *(test_verify.VERIFY, test_near.write_sources, test_verify.undisturbed, between(6)),
        ("L", *(f"L/{name}" for name in test_verify.STAGES)),
        records=test_verify.survivors,
        left=SIGNED,
    ),
    "near marks": Exchange(
        *(test_near.MARKS, test_near.write_sources, test_near.undisturbed_marks, between(4)[2:]),
        left=SIGNED,
        contents=lambda workspace: portable_marks(workspace.root),
    ),
    "verify against": Exchange(
        *(test_against.VERIFIED, write_earlier, test_against.undisturbed_verified, between(6)),
        left=SIGNED,
    ),
}
ON_STORE = [name for name, exchange in EXCHANGES.items() if exchange.records]


@pytest.fixture(scope="module")
def exchange(request: pytest.FixtureRequest) -> Exchange:
    return EXCHANGES[request.param]


@pytest.fixture(scope="module")
def clean(exchange: Exchange, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What a run writes that nothing disturbs."""
    workspace = make_workspace(tmp_path_factory.mktemp("clean"))
    exchange.write(workspace)
    return exchange.undisturbed(workspace)


@pytest.mark.parametrize(
    ("exchange", "fault"),
    [(name, fault) for name in EXCHANGES for fault in EXCHANGES[name].faults],
    indirect=["exchange"],
)
def test_a_kill_at_a_point_changes_nothing(
    workspace: Workspace, exchange: Exchange, clean: dict[str, Any], fault: str
) -> None:
    exchange.write(workspace)
    command = (*exchange.command, "--flush-interval", "0.01", "--json")
    killed = workspace.run(*command, env={"LEDGERBEAM_FAULT": fault})
    point, _, number = fault.partition(":")
    is_launcher = point == "exchange.tabulated"  # the work of a worker that dies is done by another one
    out = workspace.root / "out"
    if is_launcher:
        table = max(out.rglob("*.slices"), key=lambda path: path.stat().st_mtime_ns)
        table.rename(table.with_name(f".{table.name}.1-0.lbtmp"))  # it was killed a moment earlier
    ran = workspace.succeed(*command)
    assert exchange.written(workspace) == clean
    assert not list(out.rglob("*.lbtmp"))
    assert killed.status != 0 or not is_launcher
    if exchange.in_turn and is_launcher:
        done = [stage["done"]["tasks"] > 0 for stage in ran.json["stages"].values()]
        assert done == [False] * int(number) + [True] * (len(done) - int(number))


@pytest.mark.parametrize("exchange", [name for name in EXCHANGES if EXCHANGES[name].ledgers], indirect=True)
def test_launchers_killed_all_over_the_stages_end_with_the_same_bytes(
    workspace: Workspace, exchange: Exchange, clean: dict[str, Any]
) -> None:
    exchange.write(workspace)
    run_with_kills(workspace, exchange.command, exchange.ledgers, exchange.step)
    assert exchange.written(workspace) == clean
    assert workspace.run("ledger", "status", "L", "--json").json["complete"] is True


@pytest.mark.s3
@pytest.mark.parametrize("exchange", ON_STORE, indirect=True)
def test_on_an_object_store_with_kills_between_the_stages(
    workspace: Workspace, s3: S3Server, exchange: Exchange
) -> None:
    exchange.write(workspace)
    on_store = OnStore(workspace, s3, exchange.command)
    for _ in range(2):  # the second time, what the first one has not noted is made again
        on_store.kill()
    ran = on_store.run()
    first, *others = (stage["done"]["tasks"] for stage in ran.json["stages"].values())
    assert first == 0
    assert all(others)
    assert exchange.records is not None
    assert on_store.records() == exchange.records(workspace)
    out = f"{on_store.bucket}/out/"
    runs = [name.removeprefix(out) for name in on_store.store.find(out) if name.endswith(".run")]
    assert {name.partition("/")[0] for name in runs} == exchange.left


SLOW_KEY = """
import time

def slow_key(record):
    time.sleep(0.002)
    return record["k"]

def slow_text(record):
    time.sleep(0.002)
    return record["text"]
"""
PLACES = ("--output", "out", "--to", "jsonl", "--ledger", "L", "--task-bytes", "4000")
SLOW_SORT = ("sort", "in/*.jsonl", "--by", "keys:slow_key", *PLACES, "--shard-bytes", "8000")
SLOW_NEAR = ("dedup", "in/*.jsonl", "--near", "keys:slow_text", *PLACES, "--bucket-bytes", "20000")
SLOW_MERGED = (*SLOW_SORT, "--max-slices", "100")
SLOW_ROUNDS = (*SLOW_NEAR, "--cluster-bytes", "2000")
LEDGERS: dict[tuple[str, ...], tuple[str, ...]] = {
    SLOW_SORT: ("L/scatter", "L"),
    SLOW_MERGED: ("L/scatter", "L/merge-1", "L"),
    SLOW_NEAR: ("L/cluster/pairs/scatter", "L/cluster/pairs", "L/cluster", "L"),
    SLOW_ROUNDS: (
        *("L/cluster/pairs/scatter", "L/cluster/pairs", "L/cluster/stars", "L/cluster/round-1", "L/cluster/labels"),
        *("L/cluster", "L"),
    ),
}


def write_sources(root: Path) -> None:
    (root / "keys.py").write_text(SLOW_KEY)
    for file, name in enumerate("abcdef"):
        rows = [(150 * file + n, f"of {n % 40} and all that follows from it, {n % 40} times") for n in range(150)]
        write_jsonl(root / "in" / f"{name}.jsonl", [{"k": -number, "text": text} for number, text in rows])


@pytest.fixture(params=[SLOW_SORT, SLOW_MERGED, SLOW_NEAR, SLOW_ROUNDS], ids=["sort", "merged", "near", "rounds"])
def command(request: pytest.FixtureRequest) -> Sequence[str]:
    found: Sequence[str] = request.param
    return found


@pytest.fixture
def alone(workspace: Workspace, command: Sequence[str]) -> dict[str, bytes]:
    """What one launcher writes."""
    write_sources(workspace.root)
    workspace.succeed(*command, "--output", "alone", "--ledger", "alone.ledger")
    for ledger in LEDGERS[tuple(command)]:
        assert (workspace.root / f"alone.ledger{ledger.removeprefix('L')}").exists()
    return workspace.files("alone")


def done_by(process: subprocess.Popen[str]) -> int:
    """Wait for a launcher that printed JSON; return how many tasks it has done."""
    out = process.communicate(timeout=300)[0]
    assert process.returncode == 0, out
    done: int = json.loads(out[out.index("\n{") :] if not out.startswith("{") else out)["done"]["tasks"]
    return done


def test_two_launchers_share_all_stages(workspace: Workspace, command: Sequence[str], alone: dict[str, bytes]) -> None:
    both = [workspace.start(*command, "--json", "--quiet") for _ in range(2)]
    done = [done_by(process) for process in both]
    assert workspace.files("out") == alone
    assert sum(done) <= 1.5 * tasks_done(workspace, LEDGERS[tuple(command)])


def test_the_other_launcher_does_what_a_killed_one_has_left(
    workspace: Workspace, command: Sequence[str], alone: dict[str, bytes]
) -> None:
    killed = workspace.start(*command, "--flush-interval", "0.01")
    assert wait_until(lambda: tasks_done(workspace, LEDGERS[tuple(command)]) >= 2, seconds=60)
    other = workspace.start(*command, "--json", "--quiet")
    time.sleep(1.5)
    killed.kill()
    killed.communicate()
    assert done_by(other)
    assert workspace.files("out") == alone


def test_hosts_that_share_a_store(
    workspace: Workspace, s3: S3Server, command: Sequence[str], alone: dict[str, bytes]
) -> None:
    on_store = OnStore(workspace, s3, command)
    both = [on_store.start("--json", "--quiet") for _ in range(2)]
    for process in both:
        done_by(process)
    rows = [json.loads(line) for name in sorted(alone) if name.endswith(".jsonl") for line in alone[name].splitlines()]
    assert on_store.records() == rows
