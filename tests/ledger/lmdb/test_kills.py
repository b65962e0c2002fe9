"""SIGKILL at random times and at named points: acknowledged entries stay, and no source is complete too early."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lmdb
import pytest

from ledgerbeam._base.disk import make_folders
from ledgerbeam.errors import UsageError
from ledgerbeam.io.storage.objects import ObjectFolder
from ledgerbeam.ledger.lmdb.store import LmdbStore
from ledgerbeam.ledger.model import faults
from ledgerbeam.ledger.model.identity import Lineage, node_id
from ledgerbeam.ledger.model.task import Source
from ledgerbeam.ledger.worker.writer import LedgerWriter
from tests.disk import Disk
from tests.ledger.builders import leaf_of, plain

# Python 3.12 and later warn of every fork beside threads; forks are tested here.
pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")

LEAVES = 5
SOURCES = 12
Log = dict[str, set[tuple[int, int]]]


def lineage_of(ordinal: int) -> Lineage:
    return ((0, 1), (ordinal, LEAVES))


def source_of(round_: int, number: int) -> Source:
    return plain(f"round-{round_}-{number}")


def work(path: str, log: str, round_: int, seed: int) -> None:
    """Send leaves in random order through a group commit, and log each before it is sent and when it is durable."""
    shuffled = [(number, ordinal) for number in range(SOURCES) for ordinal in range(LEAVES)]
    random.Random(seed).shuffle(shuffled)
    writer = LedgerWriter(LmdbStore(path), interval=0.002, max_entries=4)
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    unflushed: list[str] = []
    while True:
        for number, ordinal in shuffled:
            os.write(descriptor, f"sent {number} {ordinal}\n".encode())
            writer.add(leaf_of(source_of(round_, number), lineage_of(ordinal)))
            unflushed.append(f"durable {number} {ordinal}\n")
            if len(unflushed) == 7:
                writer.flush()
                os.write(descriptor, "".join(unflushed).encode())
                unflushed = []


def start_worker(path: str, log: str, round_: int, seed: int, fault: tuple[str, int] | None = None) -> int:
    pid = os.fork()
    if pid:
        return pid
    try:
        faults.arm(f"{fault[0]}:{fault[1]}" if fault else "")
        work(path, log, round_, seed)
    finally:
        os._exit(1)


def reap(pid: int) -> None:
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL


def wait_for_lines(log: str, lines: int) -> None:
    last = time.monotonic() + 30
    while time.monotonic() < last:
        if lines == 0 or (os.path.exists(log) and Path(log).read_bytes().count(b"\n") >= lines):
            return
        time.sleep(0.0005)
    raise AssertionError(f"{log}: fewer than {lines} lines after 30 s")


def read_log(*logs: str) -> Log:
    found: Log = defaultdict(set)
    for log in logs:
        for line in Path(log).read_text(encoding="utf-8").splitlines() if os.path.exists(log) else []:
            word, number, ordinal = line.split()
            found[word].add((int(number), int(ordinal)))
    return found


def check(store: LmdbStore, round_: int, log: Log) -> int:
    """Compare the ledger with the committed leaves; return the number of complete sources."""
    sources = [source_of(round_, number) for number in range(SOURCES)]
    complete = store.completed_mask([source.id for source in sources])
    recorded = {row.output.name for row in store.outputs()}
    for number, source in enumerate(sources):
        applied = store.applied(source.id)
        nodes = [node_id(source.id, lineage_of(ordinal)) for ordinal in range(LEAVES)]
        there = {n for n in range(LEAVES) if complete[number] or nodes[n] in applied}
        sent = {ordinal for found, ordinal in log["sent"] if found == number}
        durable = {ordinal for found, ordinal in log["durable"] if found == number}
        assert durable <= there <= sent  # nothing acknowledged is lost, nothing is there that was not sent
        assert complete[number] == (len(there) == LEAVES)
        for ordinal in range(LEAVES):  # a leaf and its outputs are one
            (output,) = leaf_of(source, lineage_of(ordinal)).outputs
            assert (output.name in recorded) == (ordinal in there)
    return sum(complete)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_random_kills_lose_nothing_and_complete_nothing_early(store: LmdbStore, tmp_path: Path, workers: int) -> None:
    dice = random.Random(workers)
    early, late = 0, 0
    for round_ in range(400):
        if round_ >= 30 and early and late:  # on a busy machine nearly every kill may come when all is done
            break
        store.register([source_of(round_, number) for number in range(SOURCES)])
        logs = [str(tmp_path / f"{round_}-{worker}.log") for worker in range(workers)]
        pids = [start_worker(store.url, log, round_, round_ * 10 + n) for n, log in enumerate(logs)]
        wait_for_lines(logs[0], dice.randrange(2 * SOURCES * LEAVES))
        time.sleep(dice.uniform(0.0, 0.005))
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        for pid in pids:
            reap(pid)
        done = check(store, round_, read_log(*logs))
        early += done < SOURCES
        late += done > 0
    assert early  # else every kill came when all was done
    assert late


@pytest.mark.parametrize("point", ["flush.begin", "flush.before_commit", "flush.after_commit"])
def test_kills_at_named_points(store: LmdbStore, tmp_path: Path, point: str) -> None:
    for round_ in range(8):
        store.register([source_of(round_, number) for number in range(SOURCES)])
        log = str(tmp_path / f"{round_}.log")
        reap(start_worker(store.url, log, round_, round_, (point, 1 + 2 * round_)))
        check(store, round_, read_log(log))


def test_the_next_run_finishes_what_a_killed_one_began(store: LmdbStore, tmp_path: Path) -> None:
    sources = [source_of(0, number) for number in range(SOURCES)]
    store.register(sources)
    reap(start_worker(store.url, str(tmp_path / "log"), 0, 0, ("flush.before_commit", 6)))
    assert 0 < store.totals().tasks < SOURCES * LEAVES
    store.register(sources)
    for source in sources:
        store.commit([leaf_of(source, lineage_of(ordinal)) for ordinal in range(LEAVES)])
    assert all(store.completed_mask([source.id for source in sources]))
    assert store.totals().tasks == SOURCES * LEAVES


def test_an_object_is_on_the_disk_before_it_is_created(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = ObjectFolder(str(tmp_path / "ledger"))
    disk = Disk(monkeypatch)
    assert folder.create("segments/000001/a", b"data")
    steps = [(what, os.path.isdir(path), size if not os.path.isdir(path) else 0) for what, path, size in disk.seen]
    file, named, folder_synced = (steps.index(("sync", False, 4)), steps.index(("link", False, 0)), len(steps) - 1)
    assert file < named < folder_synced
    assert disk.seen[-1][1] == str(tmp_path / "ledger/segments/000001")
    for made in ("", "ledger", "ledger/segments"):
        assert str(tmp_path / made).rstrip("/") in disk.synced_folders()
    disk.seen.clear()
    assert folder.create("segments/000001/a", b"data")  # created before, maybe by who died before it was synced
    assert disk.synced_folders() == [str(tmp_path / "ledger/segments/000001")]
    assert not folder.create("segments/000001/a", b"other")
    assert folder.read(["segments/000001/a"]) == [b"data"]
    disk.seen.clear()
    folder.delete(["segments/000001/a"])
    assert disk.seen[-1][:2] == ("sync", str(tmp_path / "ledger/segments/000001"))


def test_a_new_ledger_is_on_the_disk_with_all_folders_above_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Disk(monkeypatch)
    opened, open_as_ever = list[tuple[bool, bool]](), lmdb.open

    def opening(*arguments: Any, **options: Any) -> lmdb.Environment:
        environment = open_as_ever(*arguments, **options)
        flags = environment.flags()
        opened.append((flags["sync"], flags["metasync"]))
        return environment

    monkeypatch.setattr(lmdb, "open", opening)
    store = LmdbStore(str(tmp_path / "new/deep/ledger"))
    store.open(create=True)
    for made in ("", "new", "new/deep", "new/deep/ledger"):
        assert str(tmp_path / made).rstrip("/") in disk.synced_folders()
    made_at = [place for place, (what, path, _) in enumerate(disk.seen) if what == "link"]
    assert made_at
    assert max(place for place, row in enumerate(disk.seen) if row[0] == "sync") > made_at[-1]
    # The file is made under another name, then opened.
    assert opened == [(True, True)] * 2
    store.close()


def test_a_ledger_whose_maker_died_is_on_the_disk_once_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = LmdbStore(str(tmp_path))
    first.open(create=True)
    first.close()
    disk = Disk(monkeypatch)
    LmdbStore(str(tmp_path)).open(create=True)
    assert str(tmp_path) in disk.synced_folders()


def test_a_folder_that_another_just_made_is_on_the_disk_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk, make = Disk(monkeypatch), os.mkdir

    def beaten(path: str) -> None:
        make(path)  # by another, who may die before it has synced the folder above
        make(path)

    monkeypatch.setattr(os, "mkdir", beaten)
    make_folders(str(tmp_path / "new/deep"))
    assert disk.synced_folders() == [str(tmp_path), str(tmp_path / "new")]


PROGRAM = """
from ledgerbeam.ledger.model.faults import fault_point
for turn in range(5):
    print(turn, flush=True)
    fault_point("a.point")
    fault_point("another")
"""


def run(fault: str | None) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "LEDGERBEAM_FAULT"}
    if fault is not None:
        environment["LEDGERBEAM_FAULT"] = fault
    return subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=False)


def test_the_process_dies_when_it_reaches_the_point_for_the_nth_time() -> None:
    ended = run("a.point:3")
    assert ended.returncode == -signal.SIGKILL
    assert ended.stdout.split() == ["0", "1", "2"]


def test_nothing_happens_without_a_fault_or_at_other_points() -> None:
    assert run(None).returncode == 0
    assert run("elsewhere:1").returncode == 0
    assert "is not POINT:N" in run("a.point:x").stderr


@pytest.fixture
def killed(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The signals that this process would have sent itself; no fault is left armed."""
    found: list[int] = []
    monkeypatch.setattr(os, "kill", lambda process, number: found.append(number))
    yield found
    faults.arm("")


@pytest.mark.parametrize("times", [1, 2, 10])
def test_a_fault_is_due_at_the_nth_time_that_its_point_is_reached(killed: list[int], times: int) -> None:
    faults.arm(f"a:point:{times}")
    for _ in range(times - 1):
        faults.fault_point("a:point")
        faults.fault_point("another")
    assert killed == []
    faults.fault_point("a:point")
    assert killed == [signal.SIGKILL]
    faults.arm(f"a:point:{times + 1}")  # counted anew
    faults.fault_point("a:point")
    assert len(killed) == 1
    faults.arm("")
    faults.fault_point("a:point")
    faults.fault_point("")
    assert len(killed) == 1


@pytest.mark.parametrize("fault", ["point", "point:0", "point:-1", "point:x", "point:1.5", ":1", ":", "point:"])
def test_a_fault_of_another_form_is_not_armed(killed: list[int], fault: str) -> None:
    with pytest.raises(UsageError, match="is not POINT:N with N >= 1"):
        faults.arm(fault)
