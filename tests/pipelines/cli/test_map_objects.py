"""``ledgerbeam map`` with classes, batches, parameters and watched files, as a user starts it."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest

from tests.pipelines.conftest import Workspace
from tests.servers.process import wait_until

pytestmark = pytest.mark.slow

OBJECTS = '''
import os, signal, time
import scale
from ledgerbeam import Drop, Reject, Route


class Model:
    """Writes a file when it is built, and another file when it is closed."""

    def __init__(self, threshold, words="words.txt"):
        self.threshold = threshold
        self.words = open(words).read().split() if os.path.exists(words) else []
        open(f"seen/built-{os.getpid()}", "w").close()

    def __call__(self, record):
        time.sleep(0.001)
        if record["id"] < self.threshold:
            return Drop("below")
        if record["id"] == 13:
            raise ValueError("thirteen")
        return {"id": record["id"] * scale.SCALE, "device": os.environ.get("CUDA_VISIBLE_DEVICES")}

    def close(self):
        open(f"seen/closed-{os.getpid()}", "w").close()


class Killed(Model):
    def __call__(self, record):
        if record["id"] == 30 and not os.path.exists("seen/killed"):
            open("seen/killed", "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__call__(record)


class Impure(Model):
    def __call__(self, record):
        return {"pid": time.time_ns()}


class Unbuildable:
    def __init__(self):
        raise OSError("no licence")

    def __call__(self, record): ...


class Crashes(Unbuildable):
    def __init__(self):
        os.kill(os.getpid(), signal.SIGKILL)


class Changes:
    def __init__(self):
        with open("words.txt", "a") as file:
            file.write("more")

    def __call__(self, record):
        return record


def batched(records, add=0):
    return [{"id": record["id"] + add, "size": "any"} for record in records]


def centred(records):
    mean = sum(record["id"] for record in records) / len(records)
    return [{"id": record["id"] - mean} for record in records]


def centred_and_says_so(records):
    return centred(records)


centred_and_says_so.batch_invariant = False
'''


@pytest.fixture
def place(workspace: Workspace) -> Workspace:
    (workspace.root / "objects.py").write_text(OBJECTS)
    (workspace.root / "scale.py").write_text("SCALE = 1\n")
    (workspace.root / "words.txt").write_text("seven eight\n")
    (workspace.root / "seen").mkdir()
    for name in "ab":
        workspace.jsonl(f"in/{name}.jsonl", 60)
    return workspace


def job(place: Workspace, name: str, *more: str, workers: int = 1, **ends: Any) -> Any:
    """Map the sources; check how the command ends, which is well by default."""
    options = ("--output", "out", "--to", "jsonl", "--ledger", "L", "--task-bytes", "1000", "--workers", str(workers))
    return place.run("map", f"objects:{name}", "in/*.jsonl", *options, *more, **{"status": 0, **ends})


def seen(place: Workspace) -> tuple[int, int]:
    """Return the numbers of processes that have built and that have closed the object."""
    names = [path.name for path in (place.root / "seen").iterdir()]
    return tuple(sum(name.startswith(what) for name in names) for what in ("built-", "closed-"))  # type: ignore[return-value]


def status(place: Workspace) -> Any:
    return place.run("ledger", "status", "L", "--json").json


@pytest.mark.parametrize("workers", [1, 2])
def test_a_class_is_built_once_a_worker_and_closed_though_tasks_fail(place: Workspace, workers: int) -> None:
    job(place, "Model", "--set", "threshold=10", "--audit=off", workers=workers, status=3)
    assert seen(place) == (workers, workers)
    set_ups = status(place)["last_run"]["set_ups"]
    assert set_ups["times"] == workers
    assert 0 < set_ups["longest"] <= set_ups["seconds"]
    shown = place.run("ledger", "status", "L").out
    for text in ("set-up", f"{workers} time", "set threshold"):
        assert text in shown


def test_a_worker_that_dies_costs_set_ups_that_are_counted(place: Workspace) -> None:
    job(place, "Killed", "--set", "threshold=14", "--audit=off")
    built, closed = seen(place)
    assert built - closed == 1  # one process was killed and closes nothing
    assert 2 <= status(place)["last_run"]["set_ups"]["times"] <= built


def test_a_job_that_ends_by_an_error_closes_what_raised_it(place: Workspace) -> None:
    job(place, "Impure", "--set", "threshold=0", status=1)
    built, closed = seen(place)
    assert built == closed > 0  # in the worker, and in the process that audits


@pytest.mark.parametrize("workers", [1, 2])
def test_a_class_that_raises_ends_the_job_before_any_task_fails(place: Workspace, workers: int) -> None:
    why = "objects:Unbuildable cannot be built: OSError: no licence"
    job(place, "Unbuildable", workers=workers, status=1, err=why)
    found = status(place)
    assert found["tasks"] == {"done": 0, "failed": 0}
    assert found["last_run"]["set_ups"] is None
    (place.root / "objects.py").write_text(OBJECTS.replace('raise OSError("no licence")', "pass"))
    job(place, "Unbuildable", "--on-job-change", "accept", workers=workers)


def test_a_process_that_dies_as_it_is_built_is_laid_to_no_task(place: Workspace) -> None:
    job(place, "Crashes", status=1, err="3 times in a row before any task was done")
    assert status(place)["tasks"]["failed"] == 0


def test_what_changed_of_a_job_is_named(place: Workspace) -> None:
    words = ("--watch-file", "words.txt")
    job(place, "batched", "--set", "add=1", "--batch", "7", *words)
    job(place, "batched", "--set", "add=1", "--batch", "20", *words)
    (place.root / "scale.py").write_text("SCALE = 2\n")
    (place.root / "words.txt").write_text("nine\n")
    changed = ("module scale: was 'SCALE = ", "set add: was 1, is 2", f"watched file {place.root}/words.txt: was '")
    refused = job(place, "batched", "--set", "add=2", "--batch", "7", *words, status=1, err=changed)
    assert "module objects" not in refused.err


def test_the_size_of_batches_belongs_to_a_job_that_says_so(place: Workspace) -> None:
    other, why = ("--output", "other", "--ledger", "other"), "returned another result when it was audited"
    job(place, "centred", "--batch", "7", *other, status=1, err=why)
    job(place, "centred_and_says_so", "--batch", "7")
    job(place, "centred_and_says_so", "--batch", "8", status=1, err="batch: was 7, is 8")


def test_a_watched_file_that_changes_while_the_job_runs_ends_it(place: Workspace) -> None:
    why = "words.txt: this watched file has changed since the job was created"
    job(place, "Changes", "--watch-file", "words.txt", status=1, err=why)
    assert status(place)["tasks"] == {"done": 0, "failed": 0}


EDITS = """
import os, signal, subprocess, sys
from edited import TEXT

STATUS = [sys.executable, "-m", "ledgerbeam", "ledger", "status", "L", "--json"]
seen = []

def change(record):
    seen.append(record["id"])  # the name of the source decides which task is first
    if len(seen) == 100 and not os.path.exists("was-edited"):
        open("was-edited", "w").close()
        while b'"done": 0' in subprocess.run(STATUS, capture_output=True, check=True).stdout:
            pass
        with open("edited.py", "w") as file:
            file.write("TEXT = 'new'")
        os.kill(os.getpid(), signal.SIGKILL)
    return TEXT

def work(record):
    return {"id": record["id"], "text": change(record)}

def key(record):
    return change(record) + str(record["id"] % 3)

def late(record):
    if record["id"] < 13:
        return record
    import edited_late
    return {**record, "text": edited_late.TEXT}
"""


@pytest.mark.parametrize(
    "command", [("map", "edits:work", "in/*.jsonl"), ("split", "in/*.jsonl", "--by", "edits:key", "--parts", "3")]
)
def test_a_module_that_is_edited_while_the_job_runs_is_not_read_anew_unseen(
    workspace: Workspace, command: tuple[str, ...]
) -> None:
    """A worker died, its replacement imported the new code, and outputs of both came into one dataset."""
    workspace.jsonl("in/a.jsonl", 160)
    (workspace.root / "edits.py").write_text(EDITS)
    edited = workspace.root / "edited.py"
    edited.write_text("TEXT = 'old'")
    words = (*command, "--output", "out", "--to", "jsonl", "--task-bytes", "200", "--ledger", "L")
    ran = workspace.run(*words, "--flush-interval", "0.01")
    assert ran.status == 1
    assert f"{edited}: the module edited has changed since the job was created" in ran.err
    done = workspace.run("ledger", "status", "L", "--json").json["tasks"]["done"]
    assert "differs" in workspace.run(*words).err
    edited.write_text("TEXT = 'old'")
    ran = workspace.run(*words)
    assert (ran.status, done > 0) == (0, True), ran.err
    clean = workspace.run(*({"out": "clean", "L": "C"}.get(word, word) for word in words))
    assert (clean.status, workspace.files("out")) == (0, workspace.files("clean"))


def test_so_is_one_that_is_imported_late(workspace: Workspace) -> None:
    workspace.jsonl("in/a.jsonl", 40)
    (workspace.root / "edits.py").write_text(EDITS)
    (workspace.root / "edited.py").write_text("TEXT = 'old'")
    late = workspace.root / "edited_late.py"
    late.write_text(
        "import time\ntime.sleep(1)\nwith open('edited_late.py', 'w') as file:\n    file.write('TEXT = 5')\nTEXT = 4"
    )
    ran = workspace.run(
        *("map", "edits:late", "in/*.jsonl", "--output", "out", "--to", "jsonl", "--task-bytes", "200", "--ledger", "L")
    )
    assert ran.status == 1
    assert f"{late}: the module edited_late has changed since the job was created" in ran.err
    assert workspace.run("ledger", "status", "L", "--json").json["records"]["read"] < 13


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--set", "treshold=1"), "has no such parameter; it takes threshold, words"),
        ((), "needs 'threshold'"),
        (("--set", "threshold=1", "--watch-file", "none.txt"), "none.txt: there is no such file"),
        (("--set", "threshold=1", "--batch", "0"), "expected a whole number from 1"),
        (("--set", "threshold=1", "--devices", "0,,1"), "expected different IDs of devices"),
        (("--set", "threshold=1", "--devices", "0", "--", "--runner=PrismRunner"), "--devices works on the local"),
    ],
)
def test_what_cannot_be_is_refused_before_there_is_a_ledger(
    place: Workspace, options: tuple[str, ...], said: str
) -> None:
    job(place, "Model", *options, status=2, err=said)
    assert not (place.root / "L").exists()


@pytest.mark.parametrize(("workers", "devices"), [(3, "0,GPU-7"), (1, "5")])
def test_each_worker_sees_one_device_and_they_take_turns(place: Workspace, workers: int, devices: str) -> None:
    options = ("--set", "threshold=14", "--devices", devices, "--audit", "off")  # the device is in the results
    job(place, "Model", *options, workers=workers)
    used = {record["device"] for record in place.records("out")}
    assert used <= set(devices.split(","))
    assert used


def test_a_launcher_that_is_killed_has_noted_set_ups_by_then(place: Workspace) -> None:
    (place.root / "objects.py").write_text(OBJECTS.replace("time.sleep(0.001)", "time.sleep(1)"))
    options = ("--output", "out", "--to", "jsonl", "--ledger", "L", "--task-bytes", "1000")
    running = place.start("map", "objects:Model", "in/*.jsonl", "--set", "threshold=0", *options)
    try:
        wait_until(
            lambda: (place.root / "L").exists() and bool((status(place)["last_run"] or {}).get("set_ups")), seconds=60
        )
    finally:
        os.killpg(running.pid, signal.SIGKILL)
        running.communicate()
    assert status(place)["last_run"]["set_ups"]["times"] == 1


DYING = """
import os, signal

def key(record):
    if record["id"] == 7 and not os.path.exists("died"):
        open("died", "w").close()
        os.kill(os.getpid(), signal.SIGKILL)
    return record["id"] % 3

def texts(text):
    return [text[: 3 + key({"id": int(text.split()[1])})]]
"""


@pytest.mark.parametrize(
    "command",
    [
        ("split", "--by", "dying:key", "--parts", "3", "--to", "jsonl", "--output", "out"),
        ("tokenize", "--tokenizer", "bytes", "--split-sentences", "dying:texts", "--output", "out/all"),
    ],
)
def test_a_worker_that_dies_in_a_function_of_a_command_is_replaced(
    workspace: Workspace, command: tuple[str, ...]
) -> None:
    workspace.jsonl("in/a.jsonl", 20)
    (workspace.root / "dying.py").write_text(DYING)
    ran = workspace.run(*command, "in/*.jsonl", "--ledger", "L", "--task-bytes", "200", status=0)
    assert (workspace.root / "died").exists()
    assert "was killed by SIGKILL" in ran.err
