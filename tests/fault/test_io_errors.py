"""Input and output that fails: it is said, nothing is complete that is not, and the next run ends as if it had not."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from ledgerbeam.errors import LedgerDamagedError, StorageError
from ledgerbeam.io.storage.objects import ObjectFolder
from ledgerbeam.ledger import compact
from ledgerbeam.ledger.remote.store import RemoteStore
from tests.fault.errors import CALLS, Fault, FaultyObjects, Figures, Inspector, Outcome, Suite, contents, faults_of
from tests.fault.errors_job import Place, outcome_of
from tests.fault.job import environment
from tests.fault.replay_trace import why_no_strace
from tests.ledger.builders import leaves_of_split, plain

NO_STRACE = why_no_strace()

traced = pytest.mark.skipif(NO_STRACE is not None, reason=str(NO_STRACE))


@pytest.mark.slow
@traced
@pytest.mark.parametrize("remote", [False, True])
def test_a_system_call_that_fails_is_reported_and_the_next_run_completes(memory: Path, remote: bool) -> None:
    figures = Suite(memory, every=25, seed=3).system_calls(remote)
    assert figures.injected > 15
    assert figures.reported > figures.injected // 2
    assert not figures.findings, figures.examples


def is_a_write_cut_off_once(fault: Fault) -> bool:
    return (fault.name, fault.how, fault.for_good) == ("write", "EIO", False)


@traced
def test_every_write_of_an_output_or_an_index_that_fails_is_reported_and_the_next_run_completes(memory: Path) -> None:
    figures = Suite(memory).system_calls(False, is_a_write_cut_off_once)
    # Writes are counted by thread: those of two indexes, by the thread of planning, fail with the first two of others.
    assert (figures.injected, figures.reported) == (8, 8), figures
    assert figures.errors["StorageError"] == 8
    assert not figures.findings, figures.examples


def test_an_operation_on_objects_that_fails_is_reported_and_the_next_run_completes(memory: Path) -> None:
    figures = Suite(memory, every=5, seed=3).objects()
    assert figures.injected > 15
    assert figures.reported > figures.injected // 2
    assert not figures.findings, figures.examples


def test_every_call_of_a_clean_run_is_made_to_fail() -> None:
    faults = faults_of(CALLS, Counter({"fsync": 2, "read": 1, "futex": 5}))
    assert [str(fault) for fault in faults] == [
        *("fsync 1 EIO", "fsync 1+ EIO", "fsync 1 ENOSPC", "fsync 1+ ENOSPC"),
        *("fsync 2 EIO", "fsync 2+ EIO", "fsync 2 ENOSPC", "fsync 2+ ENOSPC"),
        *("read 1 EIO", "read 1+ EIO"),
    ]


def judged(place: Place, outcome: Outcome, clean: dict[str, bytes]) -> Figures:
    """Return what the inspector says of a run, after which nothing runs."""
    figures = Figures()
    Inspector(clean, figures).judge("a fault", place, outcome, lambda: Outcome("ended"))
    return figures


@pytest.mark.parametrize("remote", [False, True])
def test_what_is_wrong_is_found(memory: Path, remote: bool) -> None:
    place = Place(str(memory / "job"), remote)
    place.make()
    outcome = Outcome("died")
    assert outcome_of(place, outcome.hear) == ["ended"]
    outcome.end = "ended"
    clean = contents(place)
    figures = judged(place, outcome, clean)
    assert (figures.tolerated, figures.findings) == (1, {})
    assert len(outcome.done) == 4
    shard = Path(place.below("out/1.jsonl-0000000004.jsonl"))
    shard.write_bytes(shard.read_bytes()[:-1])
    assert judged(place, outcome, clean).findings == {"false completion": 1, "not completed by rerun": 1}
    shutil.rmtree(place.below("objects" if remote else "ledger"))
    assert judged(place, outcome, clean).findings["lost"] == 1
    assert judged(place, Outcome("hung"), clean).findings["hung"] == 1
    assert judged(place, Outcome("untyped"), clean).findings["not reported"] == 1


def test_a_swallowed_error_is_found(memory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The suite can fail: here a compaction ignores that an object was not created."""
    monkeypatch.setattr(
        FaultyObjects, "create", lambda self, name, data: bool(self._kind("create")) or self._objects.create(name, data)
    )
    figures = Suite(memory, every=4, seed=3).objects()
    assert figures.findings, figures


@traced
@pytest.mark.slow
@pytest.mark.parametrize(
    ("call", "error", "path", "when"),
    [
        ("fdatasync", "EIO", "ledger/data.mdb", "3+"),
        ("writev", "ENOSPC", "ledger/data.mdb", "3+"),
        ("fsync", "EIO", "out", "1+"),
        ("openat", "EIO", "ledger/run/000001/pass-0001/started", "1"),
        ("openat", "ENOSPC", "ledger/run/000001/pass-0001/done", "1"),
        ("read", "EIO", "ledger/run/000001/pass-0001/wave", "1"),
        ("read", "EIO", "ledger/run/000001/pass-0001/job.json", "1"),
    ],
)
def test_the_command_ends_with_one_clear_line(memory: Path, call: str, error: str, path: str, when: str) -> None:
    place, clean = Place(str(memory / "job"), False), Place(str(memory / "clean"), False)
    command = [sys.executable, "-m", "ledgerbeam", "map", "tests.fault.errors_job:work", "in/*.jsonl"]
    command += ["--output", "out", "--to", "jsonl", "--ledger", "ledger", "--workers", "1"]
    strace = ["strace", "-f", "--seccomp-bpf", "-qq", "-o", "/dev/null", "-P", place.below(path)]
    strace += ["-e", f"trace={call}", "-e", f"inject={call}:error={error}:when={when}"]
    for made in (place, clean):
        made.make()
    failed, again, undisturbed = (
        subprocess.run(line, cwd=at.folder, env=environment(), capture_output=True, text=True, check=False)
        for line, at in (([*strace, *command], place), (command, place), (command, clean))
    )
    assert failed.returncode == 1, failed.stderr
    assert "Traceback" not in failed.stderr
    (line,) = [line for line in failed.stderr.splitlines() if place.below(path.partition("/")[0]) in line]
    assert "space" in line or "Input/output error" in line
    assert (again.returncode, undisturbed.returncode) == (0, 0), again.stderr
    assert contents(place) == contents(clean)


@pytest.mark.parametrize("deletions", range(5))
@pytest.mark.parametrize("kind", ["refused", "half", "lost"])
def test_a_compaction_that_cannot_delete_leaves_a_ledger_that_new_hosts_read(
    memory: Path, deletions: int, kind: str
) -> None:
    folder = ObjectFolder(str(memory / "objects"))
    objects = FaultyObjects(folder, Fault("delete", kind, 1 + deletions, False))
    store = RemoteStore(objects, str(memory / "sidecar"))
    store.open(create=True)
    sources = [plain(f"s{number}") for number in range(6)]
    store.register(sources)
    failed = 0
    for number, source in enumerate(sources, 1):
        store.commit(leaves_of_split(source, 3)[: 2 + number % 2])
        try:
            compact(store)
        except StorageError:
            failed += 1
        new = RemoteStore(folder, str(memory / f"sidecar-{number}"))
        new.open(create=True)
        assert new.totals() == store.totals()
        new.close()
    store.close()
    assert failed == 1


def test_a_cut_segment_is_named_and_its_ledger_reads_again_when_it_is_whole(memory: Path) -> None:
    folder = ObjectFolder(str(memory / "objects"))
    store = RemoteStore(folder, str(memory / "sidecar"))
    store.open(create=True)
    store.register([plain()])
    store.commit(leaves_of_split(plain(), 2))
    (segment, *_) = folder.names("segments")
    cut = FaultyObjects(folder, Fault("read", "short", 1, True))
    reader = RemoteStore(cut, str(memory / "sidecar-of-reader"))
    with pytest.raises(LedgerDamagedError, match=segment):
        reader.open(create=True)
    reader.close()
    again = RemoteStore(folder, str(memory / "sidecar-of-reader"))
    again.open(create=True)
    assert again.totals() == store.totals()
    again.close()
    store.close()
