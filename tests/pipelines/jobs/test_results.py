"""What a function may return: a record as it was meant, or a failed task that says what to mend."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path

import pytest

from ledgerbeam.io import TarReader
from tests.pipelines.conftest import Ran, Workspace

pytestmark = pytest.mark.long

RESULTS = """
import numpy as np

kept = {}

def keep(record):
    return record

def is_odd(record):
    return record["id"] % 2 == 1

def is_odd_numpy(record):
    return np.bool_(record["id"] % 2)

def only_true(record):
    return record["id"] == 7 or record

def in_a_list(record):
    return [record, record["id"] > 3]

def number(record):
    return record["id"]

def text(record):
    return record["text"]

def raw(record):
    return b"x"

def none_in_a_list(record):
    return [record, None]

def numpy_number(record):
    return np.float64(record["id"])

def double(value):
    return value * 2

def negated(value):
    return not value

def nan(record):
    return {"id": record["id"], "deep": [{"score": float("nan") if record["id"] == 3 else None}]}

def infinite(record):
    return {"id": float("-inf")} if record["id"] % 4 == 0 else record

def wide(record):
    return {"id": record["id"] + 2**70, "low": -2**63 - record["id"], "text": "12345678901234567890"}

def reused(record):
    kept["id"] = record["id"]
    kept["parts"] = kept.get("parts", [])
    kept["parts"][:] = [record["id"]] * 3
    return kept

buffer, members = bytearray(8), {}

def reused_members(record):
    buffer[:] = b"%08d" % record["id"]
    members["txt"], members["bin"] = buffer, memoryview(buffer)
    return members

many = [{}]

def reused_list(record):
    many[0]["id"] = record["id"]
    return many
"""


@pytest.fixture
def results(workspace: Workspace) -> Workspace:
    (workspace.root / "results.py").write_text(RESULTS)
    workspace.jsonl("in/a.jsonl", 10)
    return workspace


def mapped(workspace: Workspace, function: str, *options: str, source: str = "in/a.jsonl", to: str = "jsonl") -> Ran:
    ran = workspace.run("map", f"results:{function}", source, "--output", "out", "--to", to, "--ledger", "L", *options)
    assert "Traceback" not in ran.err
    return ran


@pytest.mark.parametrize(
    ("function", "record", "found"),
    [
        ("is_odd", 0, r"a bool \(False\)"),
        ("is_odd_numpy", 0, r"a bool_? \(False\)"),
        ("only_true", 7, r"a bool \(True\)"),
        ("in_a_list", 0, r"a bool \(False\)"),
        ("number", 0, "an? int"),
        ("text", 0, "a str"),
        ("raw", 0, "a bytes"),
        ("none_in_a_list", 0, "a NoneType"),
        ("numpy_number", 0, "a float64"),
    ],
)
def test_what_is_no_record_fails_its_task(results: Workspace, function: str, record: int, found: str) -> None:
    ran = mapped(results, function)
    assert ran.status == 3, ran.err
    assert re.search(rf"a\.jsonl, record {record}: results:{function} returned {found}", ran.err), ran.err
    remedy = "return record if ... else None" if "bool" in found else "return the whole record"
    assert remedy in ran.err
    assert results.files("out") == {}


@pytest.mark.parametrize("function", ["is_odd", "number"])
def test_what_is_no_sample_fails_its_task(results: Workspace, function: str) -> None:
    ran = mapped(results, function, to="tar")
    assert ran.status == 3, ran.err
    assert f"results:{function} returned a" in ran.err


def test_scalars_become_scalars_and_booleans_come_of_booleans_only(results: Workspace) -> None:
    values = [1, 2.5, "x", [1, 2]]
    (results.root / "in/values.jsonl").write_text("".join(f"{json.dumps(value)}\n" for value in values))
    assert mapped(results, "double", source="in/values.jsonl").status == 0
    assert results.records("out") == [2, 5.0, "xx", 1, 2, 1, 2]
    (results.root / "in/flags.jsonl").write_text("true\nfalse\n")
    assert mapped(results, "negated", "--on-job-change", "restart", source="in/flags.jsonl").status == 0
    assert results.records("out")[:2] == [False, True]
    ran = mapped(results, "negated", "--on-job-change", "restart", source="in/values.jsonl")
    assert ran.status == 3
    assert "returned a bool" in ran.err


def test_nan_is_refused_with_its_record_and_its_place(results: Workspace) -> None:
    ran = mapped(results, "nan")
    assert ran.status == 3, ran.err
    assert "a.jsonl, record 3: output record 3: deep[0].score is nan" in ran.err
    assert "--nan null" in ran.err
    assert results.files("out") == {}
    rows = results.run("ledger", "failures", "L", "--json").json
    assert "RecordError" in json.dumps(rows)


def test_nan_is_written_as_null_and_counted_once_whatever_is_run_again(results: Workspace) -> None:
    results.jsonl("in/b.jsonl", 6)
    options = ("--nan", "null", "--task-bytes", "200")
    ran = mapped(results, "infinite", *options, source="in/*.jsonl")
    assert ran.status == 0, ran.err
    assert "5 numbers that JSON does not have (NaN, infinities) written as null so far" in ran.out
    assert [record["id"] for record in results.records("out")][:5] == [None, 1, 2, 3, None]
    assert results.run("ledger", "status", "L", "--json").json["nulled"] == 5
    assert "5 numbers that JSON does not have" in results.run("ledger", "status", "L").out
    again = mapped(results, "infinite", *options, "--json", source="in/*.jsonl")
    assert (again.json["nulled"], again.json["skipped"]) == (5, 2)
    results.jsonl("in/b.jsonl", 1, first=1)
    assert mapped(results, "infinite", *options, "--json", source="in/*.jsonl").json["nulled"] == 3


def test_what_becomes_of_nan_is_part_of_the_job(results: Workspace) -> None:
    assert mapped(results, "keep").status == 0
    ran = mapped(results, "keep", "--nan", "null")
    assert ran.status == 1
    assert "nan: was 'refuse', is 'null'" in ran.err
    assert mapped(results, "reused_members", "--nan", "null", to="tar").status == 2


def test_integers_beyond_64_bits_survive(results: Workspace) -> None:
    assert mapped(results, "wide").status == 0
    wide = [{"id": 2**70 + n, "low": -(2**63) - n, "text": "12345678901234567890"} for n in range(10)]
    assert results.records("out") == wide
    first = results.root / "out/a.jsonl-0000000000.jsonl"
    packed = Path(f"{first}.gz")
    packed.write_bytes(gzip.compress(first.read_bytes()))
    for number, (source, *options) in enumerate(
        [(first,), (first, "--pack", "1M"), (packed,), (first, "--task-bytes", "300")]
    ):
        ran = results.run("map", "results:keep", source, "--output", f"out{number}", "--to", "jsonl", *options)
        assert ran.status == 0, ran.err
        assert results.records(f"out{number}") == wide
    shown = results.run("show", first, "3", "-1")
    assert [json.loads(line) for line in shown.out.splitlines()] == [wide[3], wide[-1]]
    assert results.run("show", first, "3", "--json").json["records"][0]["value"] == wide[3]
    assert results.run("convert", first, "--output", "tar", "--to", "tar").status == 0
    assert results.run("convert", "tar/*.tar", "--output", "back", "--to", "jsonl").status == 0
    assert [record["json"] for record in results.records("back")] == wide


@pytest.mark.parametrize("function", ["reused", "reused_list"])
@pytest.mark.parametrize("check", [(), ("--audit=off",)])
def test_one_object_returned_again_and_again_is_every_record(
    results: Workspace, function: str, check: tuple[str, ...]
) -> None:
    results.jsonl("in/a.jsonl", 40)
    assert mapped(results, function, *check).status == 0
    assert [record["id"] for record in results.records("out")] == list(range(40))
    if function == "reused":
        assert [record["parts"] for record in results.records("out")] == [[n] * 3 for n in range(40)]


def test_one_buffer_returned_again_and_again_is_every_sample(results: Workspace) -> None:
    results.jsonl("in/a.jsonl", 40)
    assert mapped(results, "reused_members", to="tar").status == 0
    with TarReader(str(results.root / "out/a.jsonl-0000000000.tar")) as reader:
        assert [dict(sample) for sample in reader] == [{"txt": b"%08d" % n, "bin": b"%08d" % n} for n in range(40)]


GRAPH = """
from ledgerbeam.iterators import IndexedManifest, Map

kept = {}

def reuse(record):
    kept["id"] = record["id"]
    return kept

def nan(record):
    return {"id": record["id"], "score": float("nan")}

def items():
    return Map(IndexedManifest("in/a.jsonl"), reuse)

def broken():
    return Map(IndexedManifest("in/a.jsonl"), nan)
"""


@pytest.mark.parametrize("to", ["jsonl", "tar"])
def test_a_graph_that_gives_one_object_again_and_again(results: Workspace, to: str) -> None:
    (results.root / "graphs.py").write_text(GRAPH)
    assert results.run("index", "in/a.jsonl").status == 0
    ran = results.run("materialize", "graphs:items", "--output", "out", "--to", to)
    assert ran.status == 0, ran.err
    if to == "tar":
        assert results.run("convert", "out/**/*.tar", "--output", "lines", "--to", "jsonl").status == 0
        assert [record["json"]["id"] for record in results.records("lines")] == list(range(10))
    else:
        assert [record["id"] for record in results.records("out")] == list(range(10))
    ran = results.run("materialize", "graphs:broken", "--output", "broken", "--to", to)
    assert ran.status == 3
    assert "score is nan" in ran.err
