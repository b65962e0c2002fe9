"""Exchanges of several rounds: what comes of them is what comes of one, after any kill, any change and any damage."""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import Any

import pytest

from tests.pipelines.conftest import Workspace, make_workspace
from tests.pipelines.exchanges.stages import gone_in, marks_in, write_jsonl
from tests.pipelines.exchanges.test_sort import expected, remake_run_files

SIZES = ("--task-bytes", "2000", "--shard-bytes", "2000")
MARKS = ("--mark", "--output", "out", "--ledger", "L")
PLACES = (*MARKS[1:], "--to", "jsonl")
SORT = ("sort", "in/*.jsonl", "--by", "k", *PLACES, *SIZES)
TWO, THREE = ("--max-slices", "120"), ("--max-slices", "70")
"""Of the sources here: with one merge, and with two."""

WORDS = [f"w{number}" for number in range(50)]


def rows(name: str, count: int, *, seed: int = 0) -> list[dict[str, Any]]:
    chosen = random.Random(f"{name}{seed}")

    def text() -> str:
        of = random.Random(chosen.randrange(60))
        words = [of.choice(WORDS) for _ in range(12)]
        words[chosen.randrange(12)] = chosen.choice(WORDS)
        return " ".join(words)

    return [
        {"k": chosen.choice([None, chosen.randrange(300), "x"]), "name": name, "n": n, "text": text()}
        for n in range(count)
    ]


def write_sources(workspace: Workspace, names: str = "abcdefgh", count: int = 40) -> None:
    for name in names:
        write_jsonl(workspace.root / "in" / f"{name}.jsonl", rows(name, count))
    for name in "xyz":
        some = [{"k": n * 3, "value": name} for n in range(100)]
        write_jsonl(workspace.root / "right" / f"{name}.jsonl", some)


def contents(workspace: Workspace, folder: str = "out") -> bytes:
    """Return the shards, or the files of marks, one behind the other by their names."""
    found = sorted((workspace.root / folder).glob("[!_]*"))
    return b"".join(path.read_bytes() for path in found if path.suffix in (".jsonl", ".parquet"))


def internal(workspace: Workspace, folder: str = "out") -> set[str]:
    """Return the folders of run files that are left."""
    found = (workspace.root / folder).glob("_*/")
    return {path.name for path in found if path.name != "_ledgerbeam"}


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The outputs of a run with one merge that nothing disturbed."""
    workspace = make_workspace(tmp_path_factory.mktemp("clean"))
    write_sources(workspace)
    workspace.succeed(*SORT, *TWO)
    assert workspace.records("out") == expected(workspace)
    return workspace.files("out")


@pytest.mark.slow
def test_a_merge_is_a_stage_like_the_others(workspace: Workspace) -> None:
    write_sources(workspace)
    ran = workspace.succeed(*SORT, *TWO, "--json")
    assert workspace.records("out") == expected(workspace)
    found = ran.json
    assert list(found["stages"]) == ["scatter", "merge-1", "gather"]
    assert sum(stage["done"]["tasks"] for stage in found["stages"].values()) == found["done"]["tasks"]
    assert found["sources"] == {"complete": 8, "open": 0, "failed": 0}
    assert not internal(workspace)
    again = workspace.run(*SORT, "--json")  # how many rounds there are belongs to the job
    assert (again.status, again.json["done"]["tasks"], again.json["skipped"]) == (0, 0, 8)
    status = workspace.run("ledger", "status", "L", "--json").json
    assert (status["complete"], list(status["stages"])) == (True, ["scatter", "merge-1"])
    assert status["stages"]["merge-1"]["records"]["read"] == 320
    assert "merge-1" in workspace.run("ledger", "watch", "L", "--once").out


EXCHANGES = {
    "sort": SORT,
    "descending": (*SORT, "--descending"),
    "within keys": ("sort", "in/*.jsonl", "--by", "name", *PLACES, *SIZES, "--shard-bytes", "1000"),
    "packs": (*SORT, "--pack", "4000"),
    "shuffle": ("shuffle", "in/*.jsonl", "--seed", "3", *PLACES, *SIZES),
    "repartition": ("repartition", "in/*.jsonl", *PLACES, *SIZES),
    "group": ("group", "functions:sizes", "in/*.jsonl", "--by", "k", *PLACES, *SIZES),
    "join": ("join", "in/*.jsonl", "right/*.jsonl", "--by", "k", "--how", "left", *PLACES, *SIZES),
    "semi": ("join", "in/*.jsonl", "right/*.jsonl", "--by", "k", "--how", "semi", *PLACES, *SIZES),
    "dedup": ("dedup", "in/*.jsonl", "--by", "k", *PLACES, *SIZES[:2], "--bucket-bytes", "2000"),
    "marks": ("dedup", "in/*.jsonl", "--by", "k", "--prefer", "n", *MARKS, *SIZES[:2], "--bucket-bytes", "2000"),
    "near": ("dedup", "in/*.jsonl", "--near", "text", "--ngram", "2", *PLACES, *SIZES[:2], "--bucket-bytes", "2000"),
}
EXCHANGES["verified"] = (
    *("dedup", "in/*.jsonl", "--near", "text", "--ngram", "2", "--threshold", "0.5", "--verify", "--prefer", "n"),
    *(*MARKS, *SIZES[:2], "--bucket-bytes", "2000"),
)

LIMITS = {"join": ("160", "120"), "semi": ("160", "120"), "packs": tuple(map(str, range(54, 17, -4)))}
"""Slices for fewer and for more merges, where they are others than those above.

The paths decide which files a pack holds, and so what is read: fewer slices are allowed until there are more merges.
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", EXCHANGES)
def test_any_number_of_rounds_writes_what_one_writes(workspace: Workspace, name: str) -> None:
    write_sources(workspace)
    with (workspace.root / "functions.py").open("a") as file:
        file.write("\ndef sizes(key, records):\n    return {'k': key, 'n': [one['n'] for one in records]}\n")
    words = EXCHANGES[name]
    workspace.succeed(*words)
    one = contents(workspace)
    assert one
    rounds = []
    for most in LIMITS.get(name, (TWO[1], THREE[1])):
        place = {"out": f"out{most}", "L": f"L{most}"}
        ran = workspace.succeed(*(place.get(word, word) for word in words), "--max-slices", most, "--json")
        assert contents(workspace, f"out{most}") == one
        assert internal(workspace, f"out{most}") <= {"_signatures"}
        assert ran.json["done"]["tasks"] == sum(stage["done"]["tasks"] for stage in ran.json["stages"].values())
        status = workspace.run("ledger", "status", f"L{most}", "--json").json
        assert status["complete"]
        rounds.append(sum("merge-" in stage for stage in status["stages"]))
        if rounds[-1] > rounds[0]:
            break
    assert 0 < rounds[0] < rounds[-1]


@pytest.mark.slow
@pytest.mark.parametrize("keep", [True, False])
def test_a_run_after_any_change_is_a_run_from_nothing(workspace: Workspace, keep: bool) -> None:
    write_sources(workspace, count=60)
    words = (*SORT, *(("--keep-runs",) if keep else ()))
    workspace.succeed(*words, "--max-slices", "300")
    first = contents(workspace)
    assert internal(workspace) == ({"_runs", "_merged-1"} if keep else set())

    def changed() -> dict[str, Any]:
        ran = workspace.succeed(*words, "--json")
        assert workspace.records("out") == expected(workspace)
        return dict(ran.json["stages"])

    write_jsonl(workspace.root / "in" / "bb.jsonl", [{"k": 3, "name": "bb", "n": 0}])
    stages = changed()
    merge, gather = stages["merge-1"], stages["gather"]
    if keep:
        assert stages["scatter"]["done"]["tasks"] == 1
        assert 0 < merge["done"]["tasks"] < merge["tasks"]["done"], "groups that did not change"
    # In the groups of the new file places are others, so that their runs are; elsewhere nothing is.
    assert 0 < gather["done"]["tasks"] <= gather["tasks"]["done"]
    time.sleep(0.01)
    write_jsonl(workspace.root / "in" / "h.jsonl", rows("h", 61))  # a record more, at its end
    stages = changed()
    if keep:
        merge, gather = stages["merge-1"], stages["gather"]
        assert stages["scatter"]["done"]["tasks"] < stages["scatter"]["tasks"]["done"]
        assert 0 < merge["done"]["tasks"] < merge["tasks"]["done"] / 2
        assert 0 < gather["done"]["tasks"] < gather["tasks"]["done"], "buckets that did not change"
    for path in (workspace.root / "in").glob("bb.jsonl*"):
        path.unlink()
    write_jsonl(workspace.root / "in" / "h.jsonl", rows("h", 60))
    changed()
    assert contents(workspace) == first


@pytest.mark.slow
def test_marks_name_the_sources_that_are_there_after_a_change(workspace: Workspace) -> None:
    """A record's place counts the files of a group, and those change with it."""
    write_sources(workspace)
    words = (*EXCHANGES["marks"], *TWO, "--keep-runs")
    workspace.succeed(*words)
    write_jsonl(workspace.root / "in" / "aa.jsonl", [{"k": None, "n": 0}])  # nowhere a duplicate
    (workspace.root / "in" / "f.jsonl").rename(workspace.root / "in" / "ff.jsonl")
    for path in (workspace.root / "in").glob("f.jsonl*"):
        path.unlink()
    workspace.succeed(*words)
    found = marks_in(workspace.root / "out")
    anew = {"out": "other", "L": "M"}
    workspace.succeed(*(anew.get(word, word) for word in words[:-3]))
    assert found == marks_in(workspace.root / "other")
    assert any(url.endswith("/ff.jsonl") for url, _ in gone_in(found).values())


@pytest.mark.slow
def test_a_merged_run_file_that_is_lost_or_damaged_is_written_again(
    workspace: Workspace, clean: dict[str, bytes]
) -> None:
    write_sources(workspace)
    assert workspace.run(*SORT, *TWO, env={"LEDGERBEAM_FAULT": "exchange.tabulated:2"}).status != 0
    ran = remake_run_files(workspace, SORT, "_merged-1")
    assert ran["stages"]["merge-1"]["done"]["tasks"] == 1
    assert workspace.files("out") == clean


@pytest.mark.slow
def test_a_failure_of_a_merge_is_told_and_done_again_alone(workspace: Workspace, clean: dict[str, bytes]) -> None:
    write_sources(workspace)
    assert workspace.run(*SORT, *TWO, env={"LEDGERBEAM_FAULT": "exchange.tabulated:1"}).status != 0
    flipped = sorted((workspace.root / "out" / "_runs").rglob("*.run"))[3]
    whole = flipped.read_bytes()
    flipped.write_bytes(whole[:40] + bytes([whole[40] ^ 1]) + whole[41:])
    ran = workspace.run(*SORT, "--json", status=3)
    assert ran.json["stages"]["merge-1"]["tasks"]["failed"] > 0
    assert "gather" not in ran.json["stages"]
    failures = workspace.run("ledger", "failures", "L").out
    assert f"{flipped}: the table" in failures
    flipped.write_bytes(whole)
    workspace.succeed(*SORT, "--only-failed", "RunFileError*", "--json")
    workspace.succeed(*SORT)
    assert workspace.files("out") == clean


@pytest.mark.slow
def test_earlier_signatures_are_merged_with_the_later_ones(workspace: Workspace) -> None:
    write_sources(workspace)
    (workspace.root / "old").mkdir()
    for path in (workspace.root / "in").glob("[a-d].jsonl"):
        path.rename(workspace.root / "old" / path.name)
    near = ("dedup", "--near", "text", "--ngram", "2", *SIZES[:2], "--bucket-bytes", "2000", "--to", "jsonl")
    found = {}
    for most in ("1000000", "60"):
        first = (*near, "old/*.jsonl", "--output", f"old{most}", "--ledger", f"O{most}", "--max-slices", most)
        later = (*near, "in/*.jsonl", "--output", f"new{most}", "--ledger", f"N{most}", "--against", f"O{most}")
        for words in (first, later):
            workspace.succeed(*words)
        found[most] = contents(workspace, f"new{most}")
    assert (workspace.root / "N60" / "cluster" / "pairs" / "merge-1").exists()
    assert found["1000000"] == found["60"]
    assert 0 < found["60"].count(b"\n") < 160


def test_the_folders_of_run_files_do_not_lie_in_each_other() -> None:
    """What is removed with one must not take the other along."""
    from ledgerbeam.io.exchange.slices import Merges, Partition
    from ledgerbeam.pipelines.exchange.commands import SortJob
    from ledgerbeam.pipelines.exchange.partition import KeyChoice
    from ledgerbeam.pipelines.jobs.sources import ListedFiles

    cut = Partition(9, merges=Merges(2, 3))
    job = SortJob(files=ListedFiles(), key=KeyChoice("key", ("k",)), partition=cut, output="/out", to="jsonl")
    folders = [job.scatter().output, *(job.merge(ordinal).output for ordinal in (1, 2))]
    assert [Path(folder).parent for folder in folders] == [Path("/out")] * 3
    assert [job.merge(1).runs_folder, job.merge(2).runs_folder, job.runs_folder] == folders
