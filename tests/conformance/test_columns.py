"""pyarrow, DuckDB, Polars, pandas and `datasets` open the Parquet and Arrow files that we write, and the card."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.peer import Peer
from ledgerbeam.io.columns.format import ArrowFormat, ParquetFormat
from ledgerbeam.io.columns.schema import JobSchema
from ledgerbeam.io.formats.format import Format
from ledgerbeam.io.lines.formats import JsonlFormat
from ledgerbeam.pipelines.outputs.metadata import write_card

ROWS: list[dict[str, Any]] = [
    {
        "id": number,
        "text": "ü" * (number % 5),
        "meta": {"tags": [f"t{number}"] * (number % 3), "any": number if number % 2 else "s"},
        "maybe": number if number % 4 else None,
    }
    for number in range(300)
]
SHOWN = [{"id": row["id"], "text": row["text"]} for row in ROWS]


def formats() -> dict[str, Format]:
    schema = JobSchema.inferred({"": ROWS})
    return {
        "parquet": ParquetFormat(schema=schema, row_group_bytes=4096, page_bytes=512),
        "arrow": ArrowFormat(schema=schema, row_group_bytes=4096),
        "jsonl": JsonlFormat(),
    }


def write(folder: Path, name: str, rows: list[dict[str, Any]], to: str) -> str:
    path = folder / f"{name}.{to}"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(formats()[to].encode(rows)[0].data)
    return str(path)


@pytest.mark.parametrize("to", ["parquet", "arrow"])
@pytest.mark.parametrize("reader", ["with_pyarrow", "with_polars", "with_pandas"])
def test_programs_read_the_records_that_were_written(columns: Peer, tmp_path: Path, reader: str, to: str) -> None:
    assert columns.ask(reader, path=write(tmp_path, "a", ROWS, to)) == SHOWN


def test_duckdb_reads_the_records_and_knows_the_types(columns: Peer, tmp_path: Path) -> None:
    found, types = columns.ask("with_duckdb", path=write(tmp_path, "a", ROWS, "parquet"))
    assert found == SHOWN
    assert types == {"id": "BIGINT", "text": "VARCHAR", "meta": 'STRUCT(tags VARCHAR[], "any" JSON)', "maybe": "BIGINT"}


@pytest.mark.parametrize("to", ["parquet", "arrow", "jsonl"])
def test_datasets_opens_the_splits_that_the_card_names(columns: Peer, tmp_path: Path, to: str) -> None:
    folder = tmp_path / "data"
    splits = {"test": ["b/x-1"], "train": ["a[1]/x-0", "a[1]/x-1", "b/x-0"]}
    for names in splits.values():
        for place, name in enumerate(names):
            write(folder, name, ROWS[100 * place : 100 * place + 100], to)
    write(folder, "other/x-0", ROWS, to)  # of no split
    (folder / "README.md").write_text("---\nlicense: mit\n---\n# Mine\n")
    files = {split: [f"{name}.{to}" for name in names] for split, names in splits.items()}
    write_card(str(folder), files, {}, name="x", suffix=f".{to}")
    found = columns.ask("with_datasets", folder=str(folder), cache=str(tmp_path / "cache"))
    assert {split: len(rows) for split, rows in found.items()} == {"test": 100, "train": 300}
    assert found["train"] == ROWS
    assert (folder / "README.md").read_text().endswith("---\n# Mine\n")
