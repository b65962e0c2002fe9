"""Lines of text as a table of one column."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

SCHEMA = pa.schema([("text", pa.string())])
"""Of the table of a text."""

_MOST = 2**30  # bytes of lines that become one chunk, of which 32-bit offsets can count less than twice as many


def lines_table(data: bytes) -> pa.Table | None:
    """Return lines without their newlines as a table; None if they are not UTF-8."""
    chunks: list[pa.Array] = []
    start = 0
    while start < len(data) or not chunks:
        stop = len(data) if len(data) - start <= _MOST else data.rfind(b"\n", start, start + _MOST) + 1 or len(data)
        piece = data[start:stop] if start or stop < len(data) else data
        try:
            whole = pa.array([piece], pa.large_binary()).cast(pa.large_string())
            lines = pc.split_pattern(whole, "\n").flatten()
        except pa.ArrowInvalid:
            return None
        if not piece or piece.endswith(b"\n"):
            lines = lines.slice(0, len(lines) - 1)  # nothing follows the last newline
        chunks.append(lines.cast(pa.string()))
        start = stop
    return pa.Table.from_arrays([pa.chunked_array(chunks, pa.string())], schema=SCHEMA)


def texts_table(texts: Sequence[str]) -> pa.Table:
    """Return lines as a table."""
    return pa.Table.from_arrays([pa.array(texts, pa.string())], schema=SCHEMA)
