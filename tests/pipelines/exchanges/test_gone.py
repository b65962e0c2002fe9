"""Removed files of an exchange are made again, and the stages of an exchange are shown."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import random
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import ledgerbeam
from ledgerbeam import open_ledger
from ledgerbeam.ledger.model.rows import Mark
from ledgerbeam.ledger.model.store import MAX_ATTEMPTS
from ledgerbeam.ledger.opening import open_local_store
from ledgerbeam.pipelines.exchange.buckets import remove_internal
from ledgerbeam.pipelines.jobs.map import MapJob, MappedFunction
from ledgerbeam.pipelines.jobs.sources import ListedFiles
from tests.mutation.loading import ROOT
from tests.pipelines.conftest import Workspace, make_workspace
from tests.pipelines.exchanges.in_process import call_here, marking
from tests.pipelines.exchanges.stages import gone_in, marks_in, portable_marks, write_jsonl
from tests.pipelines.exchanges.test_near import rows_of


def counted(key: Any, records: Iterator[Any]) -> dict[str, Any]:
    return {"k": key, "n": sum(1 for _ in records)}


HOW: dict[str, Any] = {"to": "jsonl", "output": "out", "ledger": "L", "task_bytes": 3000, "workers": 1}
FILES, SHARDS = ["in/*.jsonl"], {**HOW, "shard_bytes": 4000}

sort = partial(ledgerbeam.sort, FILES, by="k", **SHARDS)
dedup = partial(ledgerbeam.dedup, FILES, by="k", bucket_bytes=8000, **HOW)
near = partial(ledgerbeam.dedup, FILES, near="text", minhash="6x2", ngram=2, bucket_bytes=8000, **HOW)
verify = partial(near, threshold=0.75, verify=True)
join = partial(ledgerbeam.join, FILES, ["right/*.jsonl"], by="k", **SHARDS)

CALLS: dict[str, Callable[[], ledgerbeam.Result]] = {
    "sort": sort,
    "sort in rounds": partial(sort, max_slices=60),
    "shuffle": partial(ledgerbeam.shuffle, FILES, seed=7, **SHARDS),
    "repartition": partial(ledgerbeam.repartition, FILES, **SHARDS),
    "group": partial(ledgerbeam.group, f"{__name__}:counted", FILES, by="k", **SHARDS),
    "dedup to marks": marking(dedup),
    "near": near,
    "near to marks": marking(near),
    "near in rounds": partial(near, cluster_bytes=2000),
    "verify": verify,
    "verify to marks": marking(verify),
    "join": join,
    "anti-join": partial(join, how="anti"),
}


def _all(out: Path) -> None:
    shutil.rmtree(out)


def _shards(out: Path) -> None:
    for path in out.glob("[!_]*.*"):
        path.unlink()


def _one(out: Path) -> None:
    min(path for path in out.glob("[!_]*.*") if path.suffix != ".idx").unlink()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in "ab":
        rows = [{**row, "k": number % 37} for number, row in enumerate(rows_of(name, 120))]
        write_jsonl(tmp_path / "in" / f"{name}.jsonl", rows)
    write_jsonl(tmp_path / "right" / "r.jsonl", [{"k": number, "of": number**2} for number in range(20)])
    monkeypatch.chdir(tmp_path)
    return tmp_path


def contents(folder: Path) -> dict[str, bytes]:
    """Return the shards, or the files of marks, whose catalog must have them as they are."""
    if (folder / "out" / "_columns.arrow").exists():
        assert gone_in(marks_in(folder / "out"))
    return {path.name: path.read_bytes() for path in (folder / "out").glob("[!_]*") if path.is_file()}


def require_same_bytes_again(
    folder: Path, call: Callable[[], ledgerbeam.Result], removals: list[Callable[[Path], None]]
) -> None:
    assert call().complete
    made = contents(folder)
    assert made
    for remove in removals:
        remove(folder / "out")
        assert call().complete
        assert contents(folder) == made, remove.__name__
    assert call().tasks == 0


@pytest.mark.slow
def test_a_deduplication_of_which_all_outputs_are_gone_is_done_again(folder: Path) -> None:
    require_same_bytes_again(folder, dedup, [_all])


@pytest.mark.slow
@pytest.mark.parametrize("name", CALLS)
def test_outputs_that_are_gone_are_written_again(folder: Path, name: str) -> None:
    require_same_bytes_again(folder, CALLS[name], [_all, _shards, _one, _all])


def foreign_files(folder: Path) -> dict[Path, bytes]:
    """Write what looks like files of ours to where run files, lists and tables lie; return the contents."""
    owner = f"_ledgerbeam/{'0' * 32}.json"
    names = (
        "mine.run",
        "x.runs",
        "x.slices",
        "sub/mine.run",
        "sub/notes.txt",
        "theirs/a-0000000000.run",
        f"theirs/{owner}",
    )
    paths = [folder / "out" / inner / name for inner in ("_runs", "_drops") for name in names]
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(str(path))
    return {path: path.read_bytes() for path in paths}


@pytest.mark.parametrize(
    "call", [dedup, pytest.param(sort, marks=pytest.mark.slow), pytest.param(join, marks=pytest.mark.slow)]
)
def test_files_of_others_beside_run_files_stay(folder: Path, call: Callable[[], ledgerbeam.Result]) -> None:
    there = foreign_files(folder)
    assert call_here(call).complete
    assert {path: path.read_bytes() for path in there if path.is_file()} == there
    left = {path for path in (folder / "out").rglob("*.run*") if path.is_file()}
    assert left == {path for path in there if path.name.endswith((".run", ".runs"))}, "our own are left"


def test_files_of_rejected_records_stay_where_run_files_go(tmp_path: Path) -> None:
    files = ListedFiles(patterns=("in/*.jsonl",), base="in/")
    job = MapJob(
        files=files, functions=(MappedFunction("f", "m:f", {}),), output=str(tmp_path), to="jsonl"
    ).resolve_ledger("L")
    rejects = [
        "_rejects/a.jsonl-0000000000.jsonl",
        "_rejects/a.jsonl-0000000046-000001.jsonl",
        "_rejects/sub/b-0000000000.jsonl",
    ]
    gone = ["a.jsonl-0000000000.run", "sub/b-0000000000.run", f"{'1' * 32}.runs", f"_ledgerbeam/{'0' * 32}.json"]
    for name in rejects + gone:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    remove_internal([str(tmp_path)], job, {"0" * 32})
    assert {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()} == set(rejects)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "left"),
    [
        ("sort in rounds", set()),
        ("near", {"_signatures"}),
        ("near in rounds", {"_signatures"}),
        ("verify", {"_signatures"}),
        ("verify to marks", {"_signatures"}),
        ("join", set()),
    ],
)
def test_what_is_between_stages_goes(folder: Path, name: str, left: set[str]) -> None:
    assert call_here(CALLS[name]).complete
    assert {path.name for path in (folder / "out").iterdir() if path.is_dir()} - {"_ledgerbeam"} == left
    assert not list((folder / "out").rglob("*.slices"))


@pytest.mark.parametrize(
    "value",
    [
        {"names": [], "sizes": [], "versions": []},
        pytest.param({"versions": [None] * 4}, marks=pytest.mark.slow),
        pytest.param({"sizes": []}, marks=pytest.mark.slow),
    ],
)
def test_a_damaged_list_of_buckets_is_made_again(folder: Path, value: dict[str, Any]) -> None:
    call = partial(ledgerbeam.sort, ["in/a.jsonl"], by="k", **SHARDS)
    assert call_here(call).complete
    made = contents(folder)
    listing = folder / "L/work/buckets.json"
    found = json.loads(listing.read_text())
    listing.write_text(json.dumps({**found, **value}))
    for path in (folder / "out").glob("*.jsonl*"):
        path.unlink()
    assert call_here(call).complete
    assert contents(folder) == made


TIMES = {"a": 5, "b": 1, "c": 2}
"""How often each key occurs, twice as often in the first file as in the second."""


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    workspace = make_workspace(tmp_path_factory.mktemp("looking"))
    for name, more in (("x", 2), ("y", 1)):
        rows = [{"k": key, "text": 40 * "z"} for key, times in TIMES.items() for _ in range(more * times)]
        write_jsonl(workspace.root / "in" / f"{name}.jsonl", rows)
    command = ("dedup", "in/*.jsonl", "--by", "k", "--output", "out", "--to", "jsonl", "--ledger", "L")
    workspace.succeed(*command, "--bucket-bytes", "600")
    return workspace


@pytest.mark.slow
def test_the_sizes_of_buckets_are_shown(done: Workspace) -> None:
    stages = done.run("ledger", "status", "L", "--json").json["stages"]
    assert "buckets" not in stages["decide/scatter"]
    found = stages["decide"]["buckets"]
    assert 1 < found["number"] <= len(TIMES)
    assert found["median"] <= found["largest"] <= found["bytes"]
    assert found["skew"] == pytest.approx(found["largest"] * found["number"] / found["bytes"])
    assert f"the largest, {found['largest_bucket']}," in done.run("ledger", "status", "L").out


@pytest.mark.slow
def test_duplicates_are_told_by_source_and_by_group(done: Workspace) -> None:
    found = done.run("ledger", "stats", "L", "--json").json
    by_source = {row["value"].rpartition("/")[2]: row["estimate"] for row in found["duplicates by source"]}
    assert by_source == {"x.jsonl": sum(2 * times - 1 for times in TIMES.values()), "y.jsonl": sum(TIMES.values())}
    groups = found["records of a duplicated key"]
    assert (groups["count"], groups["min"], groups["max"]) == (len(TIMES), 3, 15)


def test_watch_tells_of_the_stage_that_is_at_work(done: Workspace) -> None:
    shown = done.run("ledger", "watch", "L", "--once").out
    assert "decide/scatter" in shown
    assert "state           complete" in shown
    looked = done.run("ledger", "watch", "L", "--once", "--json").json
    assert looked["complete"] is True
    assert list(looked["stages"]) == ["decide/scatter", "decide"]
    (host,) = looked["hosts"]
    shutil.copytree(done.root / "L", done.root / "M")
    done.succeed("ledger", "forget", "M/decide", "*")
    looked = done.run("ledger", "watch", "M", "--once", "--json").json
    assert looked["complete"] is False
    (of_decide,) = looked["hosts"]
    assert of_decide["records"] != host["records"]
    assert "state           complete" not in done.run("ledger", "watch", "M", "--once").out


@pytest.mark.skipif(
    not all(map(importlib.util.find_spec, ("jinja2", "vl_convert"))),
    reason="no plots: pip install 'ledgerbeam[report]'",
)
def test_the_report_has_the_stages_and_what_they_observed(done: Workspace) -> None:
    done.succeed("ledger", "report", "L", "--output", "report.html")
    page = (done.root / "report.html").read_text()
    for text in ("decide/scatter", "duplicates by source", "of the mean"):
        assert text in page
    assert "Stages" in page


KEYS = """
import os

def key(record):
    if record["k"] == 1 and not os.path.exists("works"):
        raise ValueError("it does not work")
    return record["k"]
"""


def quarantine(ledger: Path) -> None:
    """Make the ledger of a stage believe that workers died of all tasks that failed."""
    store = open_local_store(str(ledger), create=False)
    marks = [Mark(row.source_id, row.node, row.task) for row in store.failures()]
    for _ in range(MAX_ATTEMPTS):
        store.record_deaths(marks)
    store.close()


@pytest.mark.slow
def test_failures_of_any_stage_are_shown_and_done_again_by_the_command_that_is_printed(workspace: Workspace) -> None:
    for key, name in enumerate("abc"):
        write_jsonl(workspace.root / "in" / f"{name}.jsonl", [{"k": key}])
    (workspace.root / "keys.py").write_text(KEYS)
    command = ("sort", "in/*.jsonl", "--by", "keys:key", "--output", "out", "--to", "jsonl", "--ledger", "L")
    workspace.run(
        *command,
        status=3,
        err=(
            "1 task of 1 source failed; run the same command again to retry; to see all: ",
            f"ledger failures {workspace.root / 'L'}\n",
        ),
    )
    quarantine(workspace.root / "L" / "scatter")
    (workspace.root / "works").touch()
    assert workspace.run(*command).status == 3, "a rerun leaves it in quarantine"
    shown = workspace.run("ledger", "failures", "L", "--json").json
    (group,) = shown["groups"]
    assert (group["count"], group["quarantined"]) == (1, 1)
    (row,) = shown["failures"]
    assert row["source"].endswith("b.jsonl")
    assert list(open_ledger(workspace.root / "L").failures()) == [row]
    assert group["retry"] in workspace.run("ledger", "failures", "L").out
    ran = workspace.succeed(*shlex.split(group["retry"])[1:], "--json")
    assert ran.json["stages"]["scatter"]["done"]["tasks"] == 1
    assert [row["k"] for row in workspace.records("out")] == [0, 1, 2]


def test_a_reason_that_no_stage_has_is_refused(done: Workspace) -> None:
    command = ("dedup", "in/*.jsonl", "--by", "k", "--output", "out", "--to", "jsonl", "--ledger", "L")
    only_failed = (*command, "--bucket-bytes", "600", "--only-failed")
    done.run(*only_failed, "x*", status=2, err="--only-failed x*: no failure has such a reason")
    done.run(*only_failed, "*", "--dry-run", status=2, err="leave --only-failed out")


@pytest.mark.slow
@pytest.mark.parametrize(
    "what",
    [
        pytest.param(("sort", "--by", "kk"), marks=pytest.mark.slow),
        pytest.param(("group", "functions:last", "--by", "kk,u.v"), marks=pytest.mark.slow),
        ("dedup", "--by", "kk"),
        ("dedup", "--near", "kk"),
        ("split", "--parts", "train=3,val=1", "--by", "kk"),
    ],
)
def test_a_key_that_no_record_has_is_told(workspace: Workspace, what: tuple[str, ...]) -> None:
    write_jsonl(workspace.root / "in" / "a.jsonl", [{"k": 1}, {"k": 2}])
    write_jsonl(workspace.root / "in" / "b.jsonl", [{"k": 4}])
    (workspace.root / "functions.py").write_text("def last(key, records):\n    return list(records)[-1]\n")
    (command, *rest), options = what, ("in/*.jsonl", "--output", "out", "--to", "jsonl", "--ledger", "L")
    ran = workspace.succeed(command, *rest, *options)
    assert f"none of 3 records has a key: {what[-1]} is missing" in ran.err
    assert "records without a key" in workspace.run("ledger", "stats", "L").out
    write_jsonl(workspace.root / "in" / "c.jsonl", [{"kk": "a b c", "u": {"v": 1}}])
    ran = workspace.succeed(command, *rest, *options)
    assert "none of" not in ran.err


ROUNDS = 6
DOING = "from tests.pipelines.exchanges.test_gone import EVERY; EVERY[{!r}]()"
EVERY: dict[str, Callable[..., ledgerbeam.Result]] = {"dedup": dedup, **CALLS}
SEEDS = 1


def _lines(chosen: random.Random, count: int) -> list[dict[str, Any]]:
    words = [f"w{chosen.randrange(60)}" for _ in range(12)]
    texts = [" ".join(chosen.sample(words, 8)) for _ in range(5)]
    return [
        {"k": chosen.choice([None, chosen.randrange(40)]), "text": chosen.choice(texts), "n": n} for n in range(count)
    ]


def made_by(name: str, folder: Path) -> object:
    """Return what lies in the output folder; where the first run has cut buckets, without regard to these."""
    if "marks" in name:
        return portable_marks(folder)
    found = {name: data for name, data in contents(folder).items() if not name.endswith(".idx")}
    lines = [line.replace(bytes(folder), b"") for name in sorted(found) for line in found[name].splitlines()]
    if name.startswith(("sort", "shuffle", "repartition", "group")):
        return lines
    return sorted(lines) if "join" in name else found


class World:
    """The folder in which a user works, and what may happen in it."""

    def __init__(self, root: Path, name: str, seed: int) -> None:
        self.root = root
        self.name = name
        self.chosen = random.Random(f"{name} {seed}")
        self.happened: list[str] = []

    def sources(self) -> list[Path]:
        return sorted((self.root / "in").glob("*.jsonl"))

    def write(self, path: Path, mode: str = "w") -> None:
        time.sleep(0.01)  # a file's time tells changes apart
        with path.open(mode) as file:
            file.writelines(json.dumps(row) + "\n" for row in _lines(self.chosen, self.chosen.randrange(1, 150)))

    def source_comes(self) -> None:
        self.write(self.root / "in" / f"{self.chosen.choice('0abz')}{self.chosen.randrange(9)}.jsonl")

    def source_goes(self) -> None:
        if len(self.sources()) > 1:
            path = self.chosen.choice(self.sources())
            for one in path.parent.glob(f"{path.name}*"):
                one.unlink()

    def source_changes(self) -> None:
        self.write(self.chosen.choice(self.sources()), self.chosen.choice("wa"))

    def source_is_written_again(self) -> None:
        path = self.chosen.choice(self.sources())
        time.sleep(0.01)
        path.write_bytes(path.read_bytes())

    def outputs_go(self) -> None:
        shutil.rmtree(self.root / "out", ignore_errors=True)

    def some_outputs_go(self) -> None:
        below = [
            path
            for path in sorted((self.root / "out").rglob("*"))
            if path.is_file() and "_ledgerbeam" not in path.parts
        ]
        for path in self.chosen.sample(below, min(len(below), self.chosen.randrange(1, 4))):
            path.unlink()

    def internal_folders_go(self) -> None:
        for path in (self.root / "out").glob("_*/"):
            if path.name != "_ledgerbeam" and self.chosen.random() < 0.5:
                shutil.rmtree(path)

    def a_run_is_killed(self) -> None:
        environment = {**os.environ, "PYTHONPATH": ROOT}
        command = [sys.executable, "-c", DOING.format(self.name)]
        with subprocess.Popen(command, cwd=self.root, env=environment, stderr=subprocess.DEVNULL) as launcher:
            with contextlib.suppress(subprocess.TimeoutExpired):
                launcher.wait(self.chosen.uniform(0.5, 4))
            launcher.kill()

    def run_files_stay(self) -> None:
        EVERY[self.name](keep_runs=True)

    def something_happens(self) -> None:
        what: Callable[[], None] = self.chosen.choice(
            [
                self.source_comes,
                self.source_goes,
                self.source_changes,
                self.source_is_written_again,
                self.outputs_go,
                self.some_outputs_go,
                self.internal_folders_go,
                self.a_run_is_killed,
                self.run_files_stay,
            ]
        )
        self.happened.append(what.__name__)
        what()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(SEEDS))
@pytest.mark.parametrize("name", EVERY)
def test_after_any_events_a_run_is_one_from_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, seed: int
) -> None:
    world = World(folder, name, seed)
    fresh = folder / "fresh"
    for number in range(ROUNDS):
        for _ in range(world.chosen.randrange(1, 4)):
            world.something_happens()
        assert EVERY[name]().complete, world.happened
        made = made_by(name, folder)
        if number % 2:
            continue
        shutil.rmtree(fresh, ignore_errors=True)
        for part in ("in", "right"):
            shutil.copytree(folder / part, fresh / part, ignore=shutil.ignore_patterns("*.idx"))
        monkeypatch.chdir(fresh)
        assert EVERY[name]().complete
        monkeypatch.chdir(folder)
        assert made == made_by(name, fresh), world.happened
