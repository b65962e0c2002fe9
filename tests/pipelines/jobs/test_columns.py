"""Jobs over Parquet and Arrow files, and over lines of text, as a user starts them."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from ledgerbeam.io import ParquetReader
from ledgerbeam.io.columns.values import to_records
from ledgerbeam.io.datasets.megatron.format import MegatronFormat
from ledgerbeam.io.json_values import dumps
from tests.io.columns.tables import arrow_bytes, parquet_bytes, table
from tests.pipelines.conftest import Workspace

NAMES = ("int64", "string", "binary", "decimal", "stamp", "list", "map", "struct", "words")


def written(folder: Path) -> list[Any]:
    return [json.loads(line) for path in sorted(folder.glob("*.jsonl")) for line in path.read_bytes().splitlines()]


def as_json(of: pa.Table) -> list[Any]:
    return [json.loads(dumps(record)) for record in to_records(of)]


def put(workspace: Workspace, rows: int = 100) -> pa.Table:
    (workspace.root / "a.parquet").write_bytes(parquet_bytes(table(rows, *NAMES), row_group_size=16))
    (workspace.root / "b.arrow").write_bytes(arrow_bytes(table(rows, *NAMES), 16))
    return table(rows, *NAMES)


@pytest.mark.slow
def test_rows_become_lines_of_json_and_a_change_of_columns_is_another_job(workspace: Workspace) -> None:
    whole = put(workspace)
    command = ("convert", "a.parquet", "b.arrow", "--output", "out", "--to", "jsonl", "--task-bytes", "2K")
    ran = workspace.succeed(*command, "--ledger", "progress", "--json")
    assert written(workspace.root / "out") == as_json(whole) * 2
    assert ran.json["tasks"]["done"] if "tasks" in ran.json else True
    assert len(list((workspace.root / "out").glob("a.parquet-*.jsonl"))) > 3
    again = workspace.run(*command, "--ledger", "progress", "--columns", "words,int64")
    assert again.status != 0
    assert "columns" in again.err
    workspace.succeed(*command[:3], "--output", "two", "--to", "jsonl", "--columns", "words,int64")
    assert written(workspace.root / "two") == as_json(whole.select(["int64", "words"])) * 2


@pytest.mark.slow
def test_a_row_that_is_rejected_is_named_by_its_number_and_kept_as_json(workspace: Workspace) -> None:
    texts = pa.array([b"good", b"\xff", b"fine"]).view(pa.string())
    (workspace.root / "a.parquet").write_bytes(parquet_bytes(pa.table({"id": [6, 7, 8], "text": texts})))
    command = ("map", "functions:bad_seven", "a.parquet", "--output", "out", "--to", "jsonl")
    workspace.run(*command, status=3, err="a.parquet: record 1: column 'text'")
    workspace.succeed(*command, "--on-error", "reject")
    assert written(workspace.root / "out") == [{"id": 6, "text": "good"}, {"id": 8, "text": "fine"}]
    (row,) = written(workspace.root / "out/_rejects")
    assert (row["record"], row["bytes"], row["raw"]) == (1, None, '{"id":7,"text":null}')
    workspace.succeed("map", *command[1:], "--columns", "id", "--output", "ids", "--on-error", "reject")
    (row,) = written(workspace.root / "ids/_rejects")
    assert (row["record"], row["error"], row["raw"]) == (1, "seven is bad", '{"id":7}')


@pytest.mark.slow
def test_small_files_are_packed_also_with_lines_of_json(workspace: Workspace) -> None:
    whole = put(workspace, 10)
    workspace.jsonl("c.jsonl", 3)
    workspace.succeed("convert", "a.parquet", "b.arrow", "c.jsonl", "--output", "out", "--to", "jsonl", "--pack", "1M")
    found = written(workspace.root / "out")
    assert found[:20] == as_json(whole) * 2
    assert len(found) == 23
    mixed = workspace.run("convert", "*.parquet", "*.jsonl", "--output", "x", "--to", "jsonl", "--columns", "int64")
    assert mixed.status == 2
    assert "c.jsonl: --columns int64 is for files of columns" in mixed.err


@pytest.mark.slow
def test_texts_of_a_column_are_tokenized(workspace: Workspace) -> None:
    (workspace.root / "a.parquet").write_bytes(
        parquet_bytes(pa.table({"id": [1, 2], "meta": [{"text": "ab"}, {"text": "c"}]}))
    )
    command = ("tokenize", "a.parquet", "--output", "tokens", "--tokenizer", "bytes", "--key", "meta.text")
    workspace.succeed(*command, "--columns", "meta", "--no-append-eod")
    (data,) = workspace.root.glob("tokens*.bin")
    reader = MegatronFormat().open(str(data))
    assert [list(document.tokens) for document in reader] == [[97, 98], [99]]


@pytest.mark.slow
def test_what_a_file_holds_is_shown_and_verified(workspace: Workspace) -> None:
    whole = put(workspace)
    facts = workspace.run("show", "a.parquet", "--json").json
    assert (facts["format"], facts["records"], facts["row_groups"]) == ("parquet", 100, 7)
    assert facts["columns"]["stamp"] == "timestamp[us]"
    shown = workspace.run("show", "b.arrow", "3", "-1", "--columns", "int64,binary", "--json").json
    assert [row["value"] for row in shown["records"]] == [
        as_json(whole.select(["int64", "binary"]))[number] for number in (3, -1)
    ]
    assert "column:         stamp (timestamp[us])" in workspace.run("show", "b.arrow").out
    ran = workspace.run("verify", "--deep", "a.parquet", "b.arrow")
    assert (ran.status, ran.out) == (0, "2 sources, 200 records, 0 problems\n")
    data = bytearray((workspace.root / "a.parquet").read_bytes())
    data[20:60] = bytes(40)
    (workspace.root / "a.parquet").write_bytes(data)
    assert workspace.run("verify", "a.parquet").status == 0, "the footer is sound"
    damaged = workspace.run("verify", "--deep", "a.parquet", "b.arrow", status=1)
    assert "a.parquet: row group 0 cannot be read" in damaged.out


@pytest.mark.slow
@pytest.mark.parametrize("name", ["a.parquet", "b.arrow"])
def test_a_file_of_columns_needs_no_index(workspace: Workspace, name: str) -> None:
    put(workspace)
    workspace.run("index", name, status=1, err=(f"{name}: the footer of a ", "is its index; leave it out here"))
    (workspace.root / f"{name}.gz").write_bytes(gzip.compress((workspace.root / name).read_bytes()))
    packed = workspace.run("convert", f"{name}.gz", "--output", "out", "--to", "jsonl", status=1)
    assert "decompress it, e.g. gunzip" in packed.err


@pytest.mark.slow
def test_a_source_that_changed_is_done_again(workspace: Workspace) -> None:
    put(workspace)
    command = ("convert", "a.parquet", "--output", "out", "--to", "jsonl", "--task-bytes", "2K", "--ledger", "l")
    assert workspace.run(*command).status == 0
    (workspace.root / "a.parquet").write_bytes(parquet_bytes(table(30, "int64")))
    workspace.succeed(*command)
    assert written(workspace.root / "out") == [{"int64": number} for number in range(30)]


@pytest.mark.slow
def test_lines_of_text_are_records(workspace: Workspace) -> None:
    (workspace.root / "a.txt").write_bytes("ä\n\nlast".encode())
    (workspace.root / "b.txt.gz").write_bytes(gzip.compress(b"zipped\n"))
    workspace.succeed("convert", "a.txt", "b.txt.gz", "--output", "out", "--to", "jsonl")
    assert written(workspace.root / "out") == ["ä", "", "last", "zipped"]
    workspace.succeed("convert", "out/*.jsonl", "--output", "back", "--to", "text")
    texts = [path.read_bytes() for path in sorted((workspace.root / "back").glob("*.txt"))]
    assert b"".join(texts).decode() == "ä\n\nlast\nzipped\n"
    workspace.jsonl("c.jsonl", 1)
    refused = workspace.run("convert", "c.jsonl", "--output", "no", "--to", "text", status=3)
    assert "expected a string, found dict; text files have only strings: make strings with a function" in refused.err


def test_a_sample_of_a_function_is_taken_from_all_over_a_file(workspace: Workspace) -> None:
    put(workspace)
    ran = workspace.succeed("map", "functions:keep", "a.parquet", "--output", "out", "--to", "jsonl", "--sample", "3")
    rows = list(ParquetReader(str(workspace.root / "a.parquet"), columns=["int64"]))
    assert len(rows) == 100
    assert "{'int64': 16, " in ran.out


@pytest.mark.slow
def test_a_column_that_the_first_files_lack_is_refused_before_the_job_begins(workspace: Workspace) -> None:
    put(workspace, 3)
    for options in ((), ("--dry-run",)):
        ran = workspace.run(
            "convert", "[a-d].*", "--output", "out", "--to", "jsonl", "--columns", "int64,nope", *options
        )
        assert ran.status == 2
        assert "a.parquet: has no column 'nope'; expected one of 'int64', 'string'" in ran.err
    assert not (workspace.root / "out").exists()
    assert not (workspace.root / ".ledgerbeam").exists()
    for name in ("c", "d"):  # what some of the files have is read: each of the others fails
        (workspace.root / f"{name}.parquet").write_bytes(parquet_bytes(pa.table({"nope": [1], "int64": [2]})))
    ran = workspace.run("convert", "[a-d].*", "--output", "out", "--to", "jsonl", "--columns", "int64,nope", "--json")
    assert ran.status == 3
    assert written(workspace.root / "out") == [{"nope": 1, "int64": 2}] * 2


@pytest.mark.slow
def test_tokenize_reads_the_columns_of_its_keys(workspace: Workspace) -> None:
    content = bytearray(
        parquet_bytes(pa.table({"photo": ["PHOTO" * 9], "text": ["ab"], "meta": [{"text": "c"}]}), compression="none")
    )
    at = content.find(b"PHOTO")
    content[at - 20 : at + 20] = bytes(40)  # so that the column cannot be read
    (workspace.root / "a.parquet").write_bytes(content)
    (workspace.root / "b.jsonl").write_text('{"text": "d", "meta": {"text": "e"}}\n')
    command = ("tokenize", "a.parquet", "b.jsonl", "--tokenizer", "bytes", "--no-append-eod")
    for number, keys in enumerate([("text",), ("text", "meta.text")]):
        named = [word for key in keys for word in ("--key", key)]
        workspace.succeed(*command, "--output", f"tokens{number}", *named)
    assert workspace.run("show", "tokens0.bin", "0", "-1").out == '{"tokens":[97,98]}\n{"tokens":[100]}\n'
    assert workspace.run("show", "tokens1_meta.text_document.bin", "0").out == '{"tokens":[99]}\n'
    workspace.run(*command, "--output", "other", "--key", "photo", status=3)
    workspace.run(*command, "--output", "other", "--key", "nope", status=2, err="a.parquet: has no column 'nope'")
