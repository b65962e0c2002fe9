"""Functions that the tables of Parquet and of Arrow batches map."""

from __future__ import annotations

from typing import Any

import pyarrow.compute as pc

from benchmarks.peer_columns import LEAST


def same(batch: Any) -> Any:
    """Return a batch as it is."""
    return batch


def add_length(record: dict[str, Any]) -> dict[str, Any]:
    """Add a field to a record."""
    return {**record, "length": len(record["text"])}


def clean_batch(batch: Any) -> Any:
    """Clean the text of an Arrow batch with two regular expressions of Arrow, without Python objects for records."""
    text = pc.replace_substring_regex(batch["text"], r"[^a-z]+", " ")
    text = pc.utf8_trim_whitespace(pc.replace_substring_regex(text, r"\b[a-z]\b ?", ""))
    return batch.set_column(batch.schema.get_field_index("text"), "text", text)


def number(batch: Any) -> Any:
    """Return the number of each row as a column beside it."""
    return batch.select(["id"]).rename_columns(["number"])


def add_lengths(batch: Any) -> Any:
    """Return the rows with a large number, and the length of their texts."""
    kept = batch.filter(pc.greater(batch["id"], LEAST))
    return kept.append_column("n", pc.utf8_length(kept["text"]))
