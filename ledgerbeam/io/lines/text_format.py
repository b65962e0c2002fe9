"""Lines of plain text as a format: a record is a string, or a row of a table of one column."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ledgerbeam.errors import RecordError
from ledgerbeam.io.formats.base import LineFormat, changed_span
from ledgerbeam.io.formats.format import StreamSpan
from ledgerbeam.io.formats.streamed import decode_each

if TYPE_CHECKING:  # only jobs of Arrow batches import it
    import pyarrow as pa


_MOST = 2**30  # bytes of lines in a chunk; 32-bit offsets count less than twice as many


def lines_table(data: bytes) -> pa.Table | None:
    """Return lines without their newlines as a table; None if they are not UTF-8."""
    import pyarrow as pa  # noqa: PLC0415 - only jobs of Arrow batches import it
    import pyarrow.compute as pc  # noqa: PLC0415

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
    return pa.table({"text": pa.chunked_array(chunks, pa.string())})


def texts_table(texts: Sequence[str]) -> pa.Table:
    """Return lines as a table."""
    import pyarrow as pa  # noqa: PLC0415 - only jobs of Arrow batches import it

    return pa.table({"text": pa.array(texts, pa.string())})


@dataclass(frozen=True)
class TextFormat(LineFormat):
    """Lines of text in UTF-8. A record is a line without its newline; blank lines are records too."""

    name = "text"
    suffixes = (".txt",)

    def decode(self, data: bytes) -> str:
        """Return the text of a line.

        Raises:
            ValueError: The line is not UTF-8.
        """
        return str(data.removesuffix(b"\n"), "utf-8")

    def split_table(self, data: bytes, url: str, span: StreamSpan | None = None) -> pa.Table:
        """Return consecutive lines that are in memory as rows of the one column `text`; see `TableFormat`."""
        table = lines_table(data)
        if table is None:
            self.split(data, url, span)  # raises an error with the number of the line
            raise RecordError(f"{url}: expected lines in UTF-8, found others; correct them and index again")
        if span is not None and table.num_rows != span.records:
            raise changed_span(url, span)
        return table

    def split_table_each(
        self, data: bytes, url: str, span: StreamSpan | None = None
    ) -> tuple[pa.Table, dict[int, str]]:
        """Return consecutive lines that are text as rows; see `TableFormat`."""
        found = decode_each(self, self.split_raw(data, url, span))
        errors = {position: str(one) for position, one in enumerate(found) if isinstance(one, RecordError)}
        return texts_table([one for one in found if isinstance(one, str)]), errors

    def encode_record(self, record: Any) -> bytes:
        """Return a string as a line.

        Raises:
            ValueError: The record is not a string, has a newline, or has characters that UTF-8 cannot hold.
        """
        if not isinstance(record, str):
            raise ValueError(
                f"expected a string, found {type(record).__name__}; text files have only strings: make strings with a "
                "function (ledgerbeam map), or write another format (--to jsonl)"
            )
        if "\n" in record:
            raise ValueError(
                f"expected a string without newlines, found {record!r:.80}; replace them with a function (ledgerbeam "
                "map), or write another format (--to jsonl)"
            )
        return record.encode() + b"\n"
