"""Record counts: every command shows the same numbers."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from ledgerbeam.ledger import Job
from ledgerbeam.ledger.model.accounts import RecordCounts
from ledgerbeam.ledger.opening import open_local_store
from ledgerbeam.pipelines.report.accounts import account_lines, account_table, shown_records
from tests.ledger.builders import counted_leaf, leaf_of, plain
from tests.pipelines.conftest import Workspace, make_workspace

RECORDS = {
    "read": 17,
    "kept": 13,
    "dropped": {"why 0": 1, "why 1": 1},
    "rejected": {"bad": 2},
    "written": {"": 11, "de": 4},
}


@pytest.fixture(scope="module")
def counted(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """A ledger with a plain and two counted tasks."""
    workspace = make_workspace(tmp_path_factory.mktemp("records"))
    store = open_local_store(str(workspace.root / "L"), create=True)
    store.open_job(Job("map", {}))
    store.register([plain()])
    leaves = [counted_leaf(plain(), ((0, 3),)), counted_leaf(plain(), ((1, 3),)), leaf_of(plain(), ((2, 3),))]
    store.commit(leaves)
    store.close()
    return workspace


def test_the_status_says_what_became_of_records(counted: Workspace) -> None:
    assert counted.run("ledger", "status", "L", "--json").json["records"] == RECORDS
    text = " ".join(counted.run("ledger", "status", "L").out.split())
    assert "records 17 read, 13 kept, 2 dropped, 2 rejected; 15 written (150 bytes)" in text
    assert "dropped why 0 1, why 1 1 rejected bad 2 routes (no route) 11, de 4" in text


@pytest.mark.skipif(
    not all(map(importlib.util.find_spec, ("jinja2", "vl_convert"))),
    reason="no plots: pip install 'ledgerbeam[report]'",
)
def test_the_report_says_what_became_of_records(counted: Workspace, tmp_path: Path) -> None:
    assert counted.run("ledger", "report", "L", "--output", tmp_path / "r.html").status == 0
    page = (tmp_path / "r.html").read_text()
    for words in ("Outcomes of records", "why 0", "bad", "(no route)", "de", "2 dropped, 2 rejected"):
        assert words in page
    assert "76.5 %" in page, "share of kept records"


@pytest.mark.slow
def test_a_run_says_what_became_of_records_in_it_and_in_all(workspace: Workspace) -> None:
    def records(number: int) -> dict[str, object]:
        return {"read": number, "kept": number, "dropped": {}, "rejected": {}, "written": {"": number}}

    workspace.jsonl("in/a.jsonl", 20)
    command = ["map", "functions:keep", "in/*.jsonl", "--output", "out", "--to", "jsonl", "--ledger", "L", "--json"]
    first = workspace.run(*command, status=0)
    assert first.json["records"] == first.json["done"]["records"] == records(20)
    workspace.jsonl("in/b.jsonl", 5)
    second = workspace.run(*command).json
    assert (second["records"], second["done"]["records"], second["done"]["tasks"]) == (records(25), records(5), 1)


def test_plain_counts_are_one_number() -> None:
    assert account_lines(RecordCounts.plain(1234)) == [("records", "1,234")]
    assert account_lines(RecordCounts()) == [("records", "0")]
    assert account_table(RecordCounts.plain(3)) == [("read", "", 3), ("kept", "", 3), ("written", "", 3)]


def test_names_are_shown_without_secrets_and_without_what_steers_a_terminal() -> None:
    names = {"https://me:hunter2@host/a": 1, "https://me:hunter3@host/a": 2, "\x1b[2J": 3}
    counts = RecordCounts(6, 0, names)
    shown = shown_records(counts)["dropped"]
    assert sorted(shown.values()) == [3, 3], "names that are the same without their secrets are added up"
    text = f"{account_lines(counts)}"
    assert "hunter" not in f"{shown}{text}"
    assert "\x1b" not in "".join(line for _, line in account_lines(counts))


def test_only_the_most_frequent_names_are_listed() -> None:
    counts = RecordCounts(sum(range(13)), 0, {f"r{n}": n for n in range(1, 13)})
    (_, line) = account_lines(counts)[1]
    assert line.startswith("r12 12, r11 11")
    assert line.endswith("r3 3, 2 more 3")
