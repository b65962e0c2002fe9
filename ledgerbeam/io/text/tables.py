"""Lines of text as a table of one column."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["SCHEMA", "lines_table", "texts_table"]

SCHEMA = pa.schema([("text", pa.string())])
"""Of the table of a text."""


def lines_table(data: bytes) -> pa.Table | None:
    """Return lines without their newlines as a table; None if they are not UTF-8."""
    try:
        whole = pa.array([data], pa.large_binary()).cast(pa.large_string())
        lines = pc.split_pattern(whole, "\n").flatten()
    except pa.ArrowInvalid:
        return None
    if not data or data.endswith(b"\n"):
        lines = lines.slice(0, len(lines) - 1)  # nothing follows the last newline
    return pa.Table.from_arrays([lines.cast(pa.string())], schema=SCHEMA)


def texts_table(texts: Sequence[str]) -> pa.Table:
    """Return lines as a table."""
    return pa.Table.from_arrays([pa.array(texts, pa.string())], schema=SCHEMA)
