"""A source whose planning fails after some of its tasks were done, and sources whose names are not UTF-8."""

from __future__ import annotations

import os

import pytest

from ledgerbeam.ledger.model.rows import Failure
from ledgerbeam.ledger.opening import open_local_store
from tests.pipelines.conftest import Workspace

pytestmark = pytest.mark.long

MAP = ("map", "functions:keep", "in/*.jsonl", "--output", "out", "--to", "jsonl", "--ledger", "L")
NOT_UTF8 = os.fsdecode(b"in/caf\xe9 \xff.jsonl")


def test_a_source_that_cannot_be_planned_any_more_has_failed(workspace: Workspace) -> None:
    source = workspace.jsonl("in/a.jsonl", 40)
    size = ("--task-bytes", "200")
    workspace.run("map", "functions:needs_service", *MAP[2:], *size, status=3)
    index = source.with_name("a.jsonl.idx")
    index.write_bytes(b"no index")  # half of the source is done, and now it cannot be cut into tasks
    for _ in range(2):
        again = workspace.run("map", "functions:needs_service", *MAP[2:], *size, "--json")
        assert "nothing failed" not in again.err
        assert again.status == 3, again.err
        assert str(index) in again.err
        assert again.json["sources"] == {"complete": 0, "open": 0, "failed": 1}
    index.unlink()
    (workspace.root / "service-is-up").touch()
    last = workspace.run("map", "functions:needs_service", *MAP[2:], *size, "--json")  # gets below it; one is bad
    assert (last.status, last.json["tasks"]["failed"]) == (3, 1), last.err
    assert str(index) not in last.err


def test_a_failure_of_a_former_plan_keeps_no_source_from_its_next_pass(workspace: Workspace) -> None:
    path = workspace.jsonl("in/big.jsonl", 400, width=100)
    index = ("index", "in/big.jsonl", "--ledger", "L", "--task-bytes", "10000")
    workspace.succeed(*index)
    store = open_local_store(str(workspace.root / "L"), create=False)
    (row,) = store.sources()
    store.forget("*")
    path.with_name("big.jsonl.idx").unlink()
    store.commit([], [Failure(row.source_id, ((3, 77),), "of a former plan", "ValueError", "former")])
    assert store.status()["sources"]["failed"] == 1
    store.close()
    workspace.succeed(*index)
    assert path.with_name("big.jsonl.idx").exists()


@pytest.fixture
def odd_names(workspace: Workspace) -> Workspace:
    workspace.jsonl(NOT_UTF8, 20)
    return workspace


def test_an_impure_function_over_a_name_that_is_not_utf8_ends_the_job(odd_names: Workspace) -> None:
    for workers in ("1", "2"):
        ledger = (f"L{workers}", "--workers", workers, "--existing", "keep")
        ran = odd_names.run("map", "functions:random_text", *MAP[2:-1], *ledger, status=1)
        assert "pure function" in ran.err or "deterministic" in ran.err
        assert "Traceback" not in ran.err


def test_every_command_works_over_a_name_that_is_not_utf8(odd_names: Workspace) -> None:
    ran = odd_names.run("map", "functions:bad_seven", NOT_UTF8, *MAP[3:], "--task-bytes", "200", "--json", status=3)
    commands = [
        ("ledger", "status", "L"),
        ("ledger", "status", "L", "--check-sources", "--json"),
        ("ledger", "failures", "L"),
        ("ledger", "outputs", "L"),
        ("ledger", "outputs", "L", "--json"),
        ("ledger", "verify", "L"),
        ("ledger", "report", "L", "--output", "report.html"),
        ("ledger", "export", "L", "--output", "lines"),
        ("ledger", "export", "L", "--output", "columns", "--format", "parquet"),
        ("index", NOT_UTF8, "--ledger", "I"),
        ("verify", NOT_UTF8),
        ("show", NOT_UTF8),
    ]
    for command in commands:
        ran = odd_names.run(*command)
        assert (ran.status, "Traceback" in ran.err) == (0, False), (command, ran.err)
    shown = odd_names.run("ledger", "failures", "L", "--json").json
    assert len(shown["failures"]) == 1
    ran = odd_names.run("map", "functions:keep", NOT_UTF8, *MAP[3:], "--task-bytes", "200", "--on-job-change=accept")
    assert ran.status == 0, ran.err
    assert len(odd_names.records("out")) == 20
    assert odd_names.run("ledger", "forget", "L", "*").status == 0


def test_an_output_whose_name_is_not_utf8(odd_names: Workspace) -> None:
    output = os.fsdecode(b"out\xff")
    ran = odd_names.run("map", "functions:keep", NOT_UTF8, "--output", output, "--to", "jsonl", "--ledger", "L")
    assert ran.status == 0, ran.err
    assert len(odd_names.records(output)) == 20
    for to in ("tar", "parquet"):
        ran = odd_names.run("convert", NOT_UTF8, "--output", f"{output}/{to}", "--to", to, status=0)
    odd_names.run("sort", NOT_UTF8, "--by", "id", "--output", f"{output}/sorted", "--to", "jsonl", status=0)
