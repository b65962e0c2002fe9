"""Jobs that write Parquet and Arrow files: the schema is decided once before the job, and is part of the job."""

from __future__ import annotations

import json
import random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ledgerbeam.io import JsonlReader, TarReader
from tests.pipelines.cli.test_convert import SAMPLES, tar
from tests.pipelines.conftest import Workspace

FUNCTIONS = '''
"""Functions of the tests of columns."""
from ledgerbeam import Route

def seven(record):
    return {**record, "id": "7"} if record["id"] == 7 else record

def split(record):
    return Route("even" if record["id"] % 2 == 0 else "odd", record)

def late(record):
    return Route("late", record) if record["id"] == 7 else record

def one(record):
    return {"id": record["id"], "tags": ["x"]}

def other(record):
    return {"id": record["id"], "tags": ["y"]}

def none(record):
    return None

reused = {"id": 0, "tags": []}
def reuse(record):
    reused["id"] = record["id"]
    reused["tags"].append(record["id"])
    del reused["tags"][:-2]
    return reused
'''


@pytest.fixture
def work(workspace: Workspace) -> Workspace:
    (workspace.root / "columns_out.py").write_text(FUNCTIONS)
    return workspace


def ran(work: Workspace, *options: str, **ends: Any) -> Any:
    """Run a command; check how it ends, which is well by default."""
    return work.run(*options, **{"status": 0, **ends})


def table(work: Workspace, name: str) -> pa.Table:
    return pq.read_table(work.root / name, partitioning=None)


RECORDS: list[Any] = [
    {"id": 1, "text": "größer", "meta": {"a": [1, None], "b": {}}, "big": 2**80},
    {"id": 2.5, "text": "", "meta": {}, "opt": None},
    {"id": 3, "text": "\u0000", "meta": {"a": []}, "big": 1, "opt": [1, "x"]},
]


@pytest.mark.slow
@pytest.mark.parametrize("to", ["parquet", "arrow"])
def test_lines_become_columns_and_the_same_lines_again(work: Workspace, to: str) -> None:
    work.write("in/a.jsonl", RECORDS)
    work.write("in/b.jsonl", RECORDS[1:])
    assert "big json" in ran(work, "convert", "in/*.jsonl", "--to", to, "--output", "cols").out
    assert work.run("show", f"cols/a.jsonl-0000000000.{to}", "--json").json["columns"]["big"] == "json"
    assert sorted(work.files("cols")) == [f"a.jsonl-0000000000.{to}", f"b.jsonl-0000000000.{to}"]
    ran(work, "convert", f"cols/*.{to}", "--to", "jsonl", "--output", "back")
    with JsonlReader(str(work.root / f"back/a.jsonl-0000000000.{to}-0000000000.jsonl")) as reader:
        assert reader[:] == RECORDS


@pytest.mark.slow
def test_a_tar_becomes_columns_and_the_same_tar_again(work: Workspace) -> None:
    source = tar(work)
    ran(work, "convert", "in/*.tar", "--to", "parquet", "--output", "cols", "--group", "key")
    written = table(work, "cols/a.tar-0000000000.parquet")
    assert written.schema.field("__key__").type == pa.string()
    assert written.schema.field("wav").type == pa.binary()
    assert written.schema.field("cls").type == pa.string()
    ran(work, "convert", "cols/*.parquet", "--to", "tar", "--output", "tars", "--group", "key")
    (shard,) = (work.root / "tars").glob("*.tar")
    with TarReader(str(shard)) as reader, TarReader(str(source), group="key") as before:
        assert [(sample.key, dict(sample)) for sample in reader] == [(sample.key, dict(sample)) for sample in before]
        assert len(before) == len(SAMPLES)


FULL = pa.schema(
    [
        pa.field("n", pa.int16(), nullable=False, metadata={"unit": "m"}),
        pa.field("word", pa.dictionary(pa.int32(), pa.string())),
        pa.field("price", pa.decimal128(9, 2)),
        pa.field("at", pa.timestamp("ns", "America/New_York")),
        pa.field("raw", pa.binary()),
        pa.field("items", pa.list_(pa.field("item", pa.struct([pa.field("x", pa.float32())])))),
        pa.field("map", pa.map_(pa.string(), pa.int64())),
    ],
    metadata={"author": "somebody"},
)
ROWS = [
    {"n": 1, "word": "red", "price": "1.50", "at": 5, "raw": b"\xff", "items": [{"x": 0.5}, None], "map": [("k", 1)]},
    {"n": 2, "word": "red", "price": None, "at": None, "raw": None, "items": None, "map": None},
    {"n": 3, "word": "blue", "price": "-2.25", "at": 10**18, "raw": b"", "items": [], "map": []},
]


def full_table() -> pa.Table:
    columns = []
    for field in FULL:
        values = [row[field.name] for row in ROWS]
        if pa.types.is_decimal(field.type):
            columns.append(pa.array(values, pa.string()).cast(field.type))
        else:
            columns.append(pa.array(values, field.type))
    return pa.Table.from_arrays(columns, schema=FULL)


@pytest.mark.slow
def test_columns_become_the_same_columns_with_all_that_their_schema_says(work: Workspace) -> None:
    (work.root / "in").mkdir()
    pq.write_table(full_table(), work.root / "in/a.parquet", use_compliant_nested_type=False)
    ran(work, "convert", "in/*.parquet", "--to", "parquet", "--output", "out")
    written = table(work, "out/a.parquet-0000000000.parquet")
    # pyarrow reads the entries of a map under another name than it writes.
    assert written.schema.equals(pq.read_schema(work.root / "in/a.parquet"), check_metadata=True)
    assert written.equals(full_table())
    ran(work, "convert", "in/*.parquet", "--to", "arrow", "--output", "arrow")
    with pa.ipc.open_file(work.root / "arrow/a.parquet-0000000000.arrow") as reader:
        assert reader.schema.equals(FULL, check_metadata=True)
        assert reader.read_all().equals(full_table())


@pytest.mark.slow
def test_columns_as_lines_become_the_same_columns_again_by_a_schema(work: Workspace) -> None:
    (work.root / "in").mkdir()
    pq.write_table(full_table(), work.root / "in/a.parquet", use_compliant_nested_type=False)
    ran(work, "convert", "in/*.parquet", "--to", "jsonl", "--output", "lines")
    ran(work, "convert", "lines/*.jsonl", "--to", "parquet", "--output", "out", "--schema", "in/a.parquet")
    (shard,) = work.files("out")
    written = table(work, f"out/{shard}")
    assert written.equals(full_table())
    assert written.schema.equals(pq.read_schema(work.root / "in/a.parquet"), check_metadata=True)
    found = ran(work, "schema", "in/a.parquet")
    (work.root / "s.json").write_text(found.out)
    ran(work, "convert", "lines/*.jsonl", "--to", "parquet", "--output", "again", "--schema", "s.json")
    assert work.files("again") == work.files("out")


def test_a_file_without_a_schema_is_no_ledger_that_is_named_wrongly(work: Workspace) -> None:
    work.jsonl("in/a.jsonl", 3)
    why = "in/a.jsonl: expected a Parquet or Arrow file, a schema in JSON, or a ledger, found another file"
    ran(work, "schema", "in/a.jsonl", status=2, err=(why, "--dry-run"))


def test_sources_with_different_schemas_are_refused_by_name_and_done_with_one_given(work: Workspace) -> None:
    (work.root / "in").mkdir()
    pq.write_table(pa.table({"a": [1], "b": ["x"]}), work.root / "in/a.parquet")
    pq.write_table(pa.table({"a": [2], "b": [2]}), work.root / "in/b.parquet")
    why = ("a.parquet and ", "column 'b' is string and int64", "--schema")
    ran(work, "convert", "in/*.parquet", "--to", "parquet", "--output", "out", status=2, err=why)
    (work.root / "s.json").write_text('{"columns": {"a": "int8", "b": "json"}}')
    ran(work, "convert", "in/*.parquet", "--to", "parquet", "--output", "out", "--schema", "s.json")
    assert table(work, "out/b.parquet-0000000000.parquet").to_pylist() == [{"a": 2, "b": "2"}]


@pytest.mark.slow
def test_a_long_record_leaves_room_for_those_of_all_other_sources(work: Workspace) -> None:
    work.write("in/long.jsonl", [{"text": "x" * 10**7}])
    for number in range(21):
        work.write(f"in/{number:02d}.jsonl", [{f"of_{number}": 1}] * 3)
    found = ran(work, "convert", "in/*.jsonl", "--to", "parquet", "--output", "out")
    assert "inferred from 64 records of 22 sources" in found.out


@pytest.mark.slow
def test_a_rerun_uses_the_recorded_schema_and_never_infers_again(work: Workspace) -> None:
    work.write("in/a.jsonl", [{"a": 1}, {"a": 2}])
    args = ("convert", "in/*.jsonl", "--to", "parquet", "--output", "out", "--ledger", "ledger")
    assert "inferred from 2 records" in ran(work, *args).out
    work.write("in/b.jsonl", [{"a": 3}, {"a": "x"}])  # with both types, `a` would be JSON text
    why = "b.jsonl, record 1: field a: expected an integer (int64), found str 'x'; give a --schema"
    assert "inferred" not in ran(work, *args, status=3, err=why).out
    shown = json.loads(ran(work, "schema", "ledger").out)
    assert shown == {"columns": {"a": "int64"}, "keys": "exact"}
    (work.root / "s.json").write_text('{"columns": {"a": "json"}}')
    ran(work, *args, "--schema", "s.json", status=1, err="schema column a: was 'int64', is 'json'")
    ran(work, *args, "--schema", "s.json", "--on-job-change", "restart")
    assert table(work, "out/b.jsonl-0000000000.parquet").to_pylist() == [{"a": "3"}, {"a": '"x"'}]
    assert "inferred" not in ran(work, *args).out  # the given schema is recorded, too


@pytest.mark.slow
def test_a_record_that_does_not_fit_is_rejected_by_its_field(work: Workspace) -> None:
    rows = [{"id": number, "text": "x"} for number in range(40)]
    work.write("in/a.jsonl", rows)
    (work.root / "s.json").write_text('{"columns": {"id": "int64", "text": "string"}}')
    args = ("map", "columns_out:seven", "in/*.jsonl", "--to", "parquet", "--output", "out", "--schema", "s.json")
    ran(work, *args, status=3, err="a.jsonl, record 7: field id: expected an integer (int64), found str '7'")
    ran(work, *args, "--on-error", "reject")
    (reject,) = (work.root / "out/_rejects").iterdir()
    row = json.loads(reject.read_text())
    assert (row["record"], row["reason"]) == (7, "RecordError")
    assert row["error"].startswith("field id: expected an integer (int64), found str '7'")
    expected = [row for row in rows if row["id"] != 7]
    assert table(work, "out/a.jsonl-0000000000.parquet").to_pylist() == expected


@pytest.mark.slow
def test_each_route_has_a_schema_of_its_own(work: Workspace) -> None:
    work.write("in/a.jsonl", [{"id": number, **({"x": number} if number % 2 else {"y": "s"})} for number in range(40)])
    args = ("map", "columns_out:split", "in/*.jsonl", "--to", "parquet", "--output", "out", "--ledger", "ledger")
    ran(work, *args)
    assert sorted(work.files("out")) == ["even/a.jsonl-0000000000.parquet", "odd/a.jsonl-0000000000.parquet"]
    assert table(work, "out/even/a.jsonl-0000000000.parquet").column_names == ["id", "y"]
    assert table(work, "out/odd/a.jsonl-0000000000.parquet").column_names == ["id", "x"]
    shown = json.loads(ran(work, "schema", "ledger").out)
    assert shown["routes"]["even"]["columns"] == {"id": "int64", "y": "string"}
    before = work.files("out")
    (work.root / "s.json").write_text(json.dumps(shown))
    ran(work, *args[:-4], "--output", "given", "--schema", "s.json")
    assert work.files("given") == before


@pytest.mark.slow
def test_a_route_that_no_sampled_record_took_has_the_schema_of_the_others(work: Workspace) -> None:
    work.write("in/a.jsonl", [{"id": number + 100} for number in range(10)])
    args = ("map", "columns_out:late", "in/*.jsonl", "--to", "parquet", "--output", "out")
    ran(work, *args)
    work.write("in/b.jsonl", [{"id": 7}])
    ran(work, *args)
    assert table(work, "out/late/b.jsonl-0000000000.parquet").to_pylist() == [{"id": 7}]
    columns = '{"columns": {"id": "int64"}, "routes": {"late": {"columns": {"id": "string"}}}}'
    (work.root / "s.json").write_text(columns)
    why = ("1 task of 1 source failed", "id: expected a string, found int 7")
    ran(work, *args, "--schema", "s.json", "--on-job-change", "restart", status=3, err=why)


def test_a_changed_function_is_refused_before_anything_is_inferred(work: Workspace) -> None:
    work.write("in/a.jsonl", [{"id": 1}])
    args = ("in/*.jsonl", "--to", "parquet", "--output", "out")
    ran(work, "map", "columns_out:one", *args)
    why = "function: was 'columns_out:one', is 'columns_out:other'"
    found = ran(work, "map", "columns_out:other", *args, status=1, err=why)
    assert "schema" not in found.err
    assert "inferred" not in found.out


def test_nothing_kept_of_the_sample_asks_for_a_schema(work: Workspace) -> None:
    work.write("in/a.jsonl", [{"id": 1}])
    why = ("none of 1 sampled record", "--schema FILE")
    ran(work, "map", "columns_out:none", "in/*.jsonl", "--to", "parquet", "--output", "out", status=2, err=why)


def test_an_object_that_a_function_returns_again_and_again_is_written_as_it_was(work: Workspace) -> None:
    work.write("in/a.jsonl", [{"id": number} for number in range(50)])
    args = ("map", "columns_out:reuse", "in/*.jsonl", "--to", "parquet", "--output", "out", "--audit=off")
    ran(work, *args)
    rows = table(work, "out/a.jsonl-0000000000.parquet").to_pylist()
    assert [row["id"] for row in rows] == list(range(50))
    assert rows[30]["tags"] == [29, 30]


def test_row_groups_and_pages_have_the_sizes_asked_for(work: Workspace) -> None:
    noise = random.Random(1)
    work.write("in/a.jsonl", [{"text": noise.randbytes(50).hex()} for _ in range(2000)])
    args = ("convert", "in/*.jsonl", "--to", "parquet", "--output", "out")
    ran(work, *args, "--row-group-bytes", "20K", "--page-bytes", "2K")
    found = pq.read_metadata(work.root / "out/a.jsonl-0000000000.parquet")
    assert found.num_row_groups == 11
    why = "row_group_bytes: was 20480, is 30720"
    ran(work, *args, "--row-group-bytes", "30K", "--page-bytes", "2K", status=1, err=why)


@pytest.mark.parametrize("options", [("--schema", "s.json"), ("--row-group-bytes", "1M"), ("--page-bytes", "1M")])
def test_options_of_columns_are_refused_for_other_formats(work: Workspace, options: tuple[str, str]) -> None:
    work.write("in/a.jsonl", [{"id": 1}])
    why = f"{options[0]} is for --to parquet"
    ran(work, "convert", "in/*.jsonl", "--to", "jsonl", "--output", "out", *options, status=2, err=why)


@pytest.mark.slow
def test_a_dry_run_shows_the_schema_and_writes_nothing(work: Workspace) -> None:
    work.write("in/a.jsonl", [{"id": 1}])
    args = ("convert", "in/*.jsonl", "--to", "parquet", "--output", "out")
    found = ran(work, *args, "--dry-run", "--json")
    assert found.json["schema"] == {"columns": {"id": "int64"}, "keys": "exact"}
    assert not (work.root / "out").exists()
    (work.root / "s.json").write_text(json.dumps(found.json["schema"]))
    ran(work, *args)
    ran(work, *args[:-1], "given", "--schema", "s.json")
    assert work.files("given") == work.files("out")


@pytest.mark.slow
def test_a_graph_is_written_as_columns(work: Workspace) -> None:
    work.write("in/a.jsonl", [{"id": number} for number in range(25)])
    ran(work, "index", "in/*.jsonl")
    (work.root / "graphs.py").write_text(
        "from ledgerbeam.iterators import GlobalShuffle, IndexedManifest\n"
        "def graph():\n"
        "    return GlobalShuffle(IndexedManifest('in/a.jsonl'), seed=1)\n"
    )
    ran(work, "materialize", "graphs:graph", "--to", "parquet", "--output", "out", "--task-records", "10")
    found = [row["id"] for name in work.files("out") for row in table(work, f"out/{name}").to_pylist()]
    assert sorted(found) == list(range(25))
    assert found != sorted(found)


@pytest.mark.slow
def test_a_complete_job_is_published_for_the_hub_with_its_parts(work: Workspace) -> None:
    for name in ("a", "b"):
        work.write(f"in/{name}.jsonl", [{"id": number} for number in range(5)])
    ran(work, "convert", "in/*.jsonl", "--to", "parquet", "--output", "out", "--ledger", "L")
    found = ran(work, "publish", "L", "--as", "hf", "--part", "test=b*", "--part", "train=*", "--json")
    card = work.root / "out/README.md"
    assert found.json == {"format": "hf", "shards": 2, "records": 10, "published": [str(card)]}
    text = card.read_text()
    assert '- split: test\n    path:\n    - "b.jsonl-0000000000.parquet"' in text
    assert '- split: train\n    path:\n    - "a.jsonl-0000000000.parquet"' in text
    ran(work, "convert", "in/*.jsonl", "--to", "parquet", "--output", "out", "--ledger", "L")
    assert card.read_text() == text
    why = "--part all-of-it: expected letters"
    ran(work, "publish", "L", "--as", "hf", "--part", "all-of-it=*", status=2, err=why)
