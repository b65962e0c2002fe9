"""What an exchange shows of itself: its stages, its buckets, and the duplicates that it found."""

from __future__ import annotations

import importlib.util
import shutil

import pytest

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
