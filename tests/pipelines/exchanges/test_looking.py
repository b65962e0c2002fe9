"""What an exchange shows of itself: its stages, its buckets, and the duplicates that it found."""

from __future__ import annotations

import importlib.util
import shlex
import shutil
from pathlib import Path

import pytest

from ledgerbeam import open_ledger
from ledgerbeam.ledger.model.rows import Mark
from ledgerbeam.ledger.model.store import MAX_ATTEMPTS
from ledgerbeam.ledger.opening import open_local_store
from tests.pipelines.conftest import Workspace, make_workspace
from tests.pipelines.exchanges.stages import write_jsonl

TIMES = {"a": 5, "b": 1, "c": 2}
"""How often each key occurs, twice as often in the first file as in the second."""


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    workspace = make_workspace(tmp_path_factory.mktemp("looking"))
    for name, more in (("x", 2), ("y", 1)):
        rows = [{"k": key, "text": 40 * "z"} for key, times in TIMES.items() for _ in range(more * times)]
        write_jsonl(workspace.root / "in" / f"{name}.jsonl", rows)
    command = ("dedup", "in/*.jsonl", "--by", "k", "--output", "out", "--to", "jsonl", "--ledger", "L")
    assert workspace.run(*command, "--bucket-bytes", "600").status == 0
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
    assert done.run("ledger", "forget", "M/decide", "*").status == 0
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
    assert done.run("ledger", "report", "L", "--output", "report.html").status == 0
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
    failed = workspace.run(*command)
    assert failed.status == 3
    assert "1 task of 1 source failed; run the same command again to retry; to see all: " in failed.err
    assert f"ledger failures {workspace.root / 'L'}\n" in failed.err
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
    ran = workspace.run(*shlex.split(group["retry"])[1:], "--json")
    assert ran.status == 0, ran.err
    assert ran.json["stages"]["scatter"]["done"]["tasks"] == 1
    assert [row["k"] for row in workspace.records("out")] == [0, 1, 2]


def test_a_reason_that_no_stage_has_is_refused(done: Workspace) -> None:
    command = ("dedup", "in/*.jsonl", "--by", "k", "--output", "out", "--to", "jsonl", "--ledger", "L")
    ran = done.run(*command, "--bucket-bytes", "600", "--only-failed", "x*")
    assert ran.status == 2
    assert "--only-failed x*: no failure has such a reason" in ran.err
    ran = done.run(*command, "--bucket-bytes", "600", "--only-failed", "*", "--dry-run")
    assert ran.status == 2
    assert "leave --only-failed out" in ran.err


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
    ran = workspace.run(command, *rest, *options)
    assert ran.status == 0
    assert f"none of 3 records has a key: {what[-1]} is missing" in ran.err
    assert "records without a key" in workspace.run("ledger", "stats", "L").out
    write_jsonl(workspace.root / "in" / "c.jsonl", [{"kk": "a b c", "u": {"v": 1}}])
    ran = workspace.run(command, *rest, *options)
    assert ran.status == 0
    assert "none of" not in ran.err
