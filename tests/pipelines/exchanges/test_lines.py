"""``dedup --lines`` and ``select --cut``: what a loop over all lines removes, and nothing else."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgerbeam.errors import RecordError
from ledgerbeam.io import Sample
from ledgerbeam.transforms.dedup.lines import cut_out
from ledgerbeam.transforms.exchange.keys import with_field
from tests.pipelines.conftest import Workspace

LINES = st.lists(st.tuples(st.sampled_from(["a", "bb", "", " ", "ä\r", "\U0001d518"]), st.booleans()), max_size=7)


@given(LINES)
def test_a_text_without_some_lines_is_the_other_lines_joined(lines: list[tuple[str, bool]]) -> None:
    ranges, start = [], 0
    for line, goes in lines:
        if goes and line:
            ranges.append((start, start + len(line)))
        start += len(line) + 1
    kept = "\n".join(line for line, goes in lines if not (goes and line))
    assert cut_out("\n".join(line for line, _ in lines), ranges) == kept


@given(st.text("ab\n", max_size=9), st.lists(st.tuples(st.integers(0, 9), st.integers(0, 4)), max_size=3))
def test_other_ranges_are_cut_exactly(text: str, found: list[tuple[int, int]]) -> None:
    ranges = sorted((start, start + size) for start, size in found)
    if any(stop > len(text) for _, stop in ranges):
        with pytest.raises(RecordError, match="expected ranges of a text of"):
            cut_out(text, ranges)
        return
    gone = {place for start, stop in ranges for place in range(start, stop)}
    kept = "".join(letter for place, letter in enumerate(text) if place not in gone)
    assert cut_out(text, ranges).replace("\n", "") == kept.replace("\n", "")
    if "\n" not in text and len(gone) < len(text):
        assert cut_out(text, ranges) == kept


def test_a_range_inside_of_another_and_a_field_with_a_dot() -> None:
    assert cut_out("x\n\nMenu", [(3, 7), (3, 7)]) == "x\n"
    assert cut_out("A\n\nB\nC", [(3, 6), (5, 6)]) == "A\n"
    record = {"a": {"b.c": "kept", "b": {"c": "old"}}}
    assert with_field(record, "a.b.c", "new") == {"a": {"b.c": "kept", "b": {"c": "new"}}}
    assert with_field({"a.b": 1, "a": {"b": 2}}, "a.b", "new") == {"a.b": "new", "a": {"b": 2}}
    sample = Sample("k", {"json": b'{"t": "old"}', "t.txt": b"old"})
    assert with_field(sample, "json.t", "new")["json"] == b'{"t":"new"}'
    assert with_field(sample, "t.txt", "new")["t.txt"] == b"new"


def without_repeated(texts: list[str | None]) -> list[str | None]:
    """Return the texts without the lines that are equal to an earlier one, by a loop."""
    seen: set[str] = set()
    kept: list[str | None] = []
    for text in texts:
        lines = []
        for line in (text or "").split("\n"):
            if line not in seen:
                lines.append(line)
            if line.strip():
                seen.add(line)
        kept.append(text and "\n".join(lines))
    return kept


def written(folder: Path, count: int) -> list[dict[str, Any]]:
    """Write sources whose records have common lines, also within a text, and blank lines between the records."""
    rows: list[dict[str, Any]] = [
        {
            "id": n,
            "in": {"text": None if n % 50 == 7 else "\n".join(f"{n * k % 40:x}" * (k != 3) for k in range(n % 6))},
        }
        for n in range(count)
    ]
    folder.mkdir()
    for file in range(3):
        lines = [
            json.dumps(row) + "\n" * (1 + row["id"] % 2) for row in rows[file * count // 3 : (file + 1) * count // 3]
        ]
        (folder / f"{file}.jsonl").write_text("".join(lines))
    return rows


HOW = ("--task-bytes", "2000", "--bucket-bytes", "6000", "--workers", "2")


@pytest.mark.slow
def test_repeated_lines_of_a_corpus_go_or_are_marked_and_cut(workspace: Workspace) -> None:
    rows = written(workspace.root / "in", 300)
    expected = without_repeated([row["in"]["text"] for row in rows])
    workspace.succeed("dedup", "in/*.jsonl", "--lines", "in.text", "--output", "out", "--to", "jsonl", *HOW)
    found = workspace.records("out")
    assert [row["in"]["text"] for row in found] == expected
    assert [row["id"] for row in found] == [row["id"] for row in rows]
    workspace.succeed("dedup", "in/*.jsonl", "--lines", "in.text", "--output", "marks", *HOW)
    cut = ("--with", "marks", "--cut", "in.text", "--to", "jsonl", *HOW[:2])
    workspace.succeed("select", "in/*.jsonl", *cut, "--output", "cut")
    assert workspace.files("cut") == workspace.files("out")
    # Only some records, and in another format.
    some = ("--where", "duplicate_lines IS NOT NULL")
    workspace.succeed("select", "in/*.jsonl", *cut[:4], *some, "--to", "parquet", "--output", "some")
    table = pa.concat_tables(pq.read_table(path) for path in sorted((workspace.root / "some").glob("*.parquet")))
    changed = {row["id"]: text for row, text in zip(rows, expected, strict=True) if row["in"]["text"] != text}
    assert {row["id"]: row["in"]["text"] for row in table.to_pylist()} == changed
    # A new first file takes the place of all first lines.
    (workspace.root / "in" / "-.jsonl").write_text(
        json.dumps({"id": -1, "in": {"text": rows[29]["in"]["text"]}}) + "\n"
    )
    workspace.succeed("dedup", "in/*.jsonl", "--lines", "in.text", "--output", "out", "--to", "jsonl", *HOW)
    again = without_repeated([rows[29]["in"]["text"], *(row["in"]["text"] for row in rows)])
    assert [row["in"]["text"] for row in workspace.records("out")] == again


def test_ranges_of_a_users_column_are_cut_and_wrong_ones_are_refused(workspace: Workspace) -> None:
    (workspace.root / "in").mkdir()
    (workspace.root / "in" / "a.jsonl").write_text('{"text": "call 555 now", "n": 1}\n{"text": "no", "n": 2}\n')
    (workspace.root / "phones.py").write_text(
        "def find(record):\n    at = record['text'].find('555')\n"
        "    return {'phone': [[at, at + 4]] if at >= 0 else None}\n"
    )
    workspace.succeed("annotate", "phones:find", "in/*.jsonl", "--output", "columns")
    cut = ("select", "in/*.jsonl", "--with", "columns", "--to", "jsonl")
    workspace.succeed(*cut, "--cut", "text=phone", "--output", "out")
    assert [row["text"] for row in workspace.records("out")] == ["call now", "no"]
    assert (workspace.root / "out" / "a.jsonl-0000000000.jsonl").read_text().splitlines()[1] == '{"text": "no", "n": 2}'
    workspace.run(*cut, "--cut", "text=fax", "--output", "x", status=2, err="no column 'fax'; the columns are phone")
    workspace.run(*cut, "--cut", "text=", "--output", "x", status=2, err="expected FIELD=COLUMN")
    failed = workspace.run(*cut, "--cut", "n=phone", "--output", "x")
    assert failed.status == 3
    assert f"in{os.sep}a.jsonl: record 0: expected text or null, found a int" in failed.err
