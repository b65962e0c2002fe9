"""Lines of plain text as a format: a record is a string."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ledgerbeam.errors import RecordError
from ledgerbeam.io.formats.base import LineFormat, changed_span
from ledgerbeam.io.formats.format import StreamSpan
from ledgerbeam.io.formats.streamed import decode_each

if TYPE_CHECKING:  # only jobs of Arrow batches import it
    import pyarrow as pa


@dataclass(frozen=True)
class TextFormat(LineFormat):
    """Lines of text in UTF-8. A record is a line without its newline; blank lines are records too."""

    name = "text"
    suffixes = (".txt",)

    def decode(self, data: bytes) -> str:
        """Return the text of a line.

        Raises:
            ValueError: It is not UTF-8.
        """
        return str(data.removesuffix(b"\n"), "utf-8")

    def split_table(self, data: bytes, url: str, span: StreamSpan | None = None) -> pa.Table:
        """Return consecutive lines that are in memory as rows of the one column `text`; see `TableFormat`."""
        from ledgerbeam.io.lines.text_tables import lines_table  # noqa: PLC0415 - only jobs of Arrow batches import it

        table = lines_table(data)
        if table is None:
            self.split(data, url, span)  # raises, and says which line it is
            raise RecordError(f"{url}: expected lines in UTF-8, found others; correct them and index again")
        if span is not None and table.num_rows != span.records:
            raise changed_span(url, span)
        return table

    def split_table_each(
        self, data: bytes, url: str, span: StreamSpan | None = None
    ) -> tuple[pa.Table, dict[int, str]]:
        """Return consecutive lines that are text as rows; see `TableFormat`."""
        from ledgerbeam.io.lines.text_tables import texts_table  # noqa: PLC0415 - only jobs of Arrow batches import it

        found = decode_each(self, self.split_raw(data, url, span))
        errors = {position: str(one) for position, one in enumerate(found) if isinstance(one, RecordError)}
        return texts_table([one for one in found if isinstance(one, str)]), errors

    def encode_record(self, record: Any) -> bytes:
        """Return a string as a line.

        Raises:
            ValueError: It is no string, or has a newline or what UTF-8 cannot hold.
        """
        if not isinstance(record, str):
            raise ValueError(
                f"expected a string, found {type(record).__name__}; text holds nothing else: make strings by a "
                "function (ledgerbeam map), or write another format (--to jsonl)"
            )
        if "\n" in record:
            raise ValueError(
                f"expected a string without newlines, found {record!r:.80}; replace them by a function (ledgerbeam map)"
                ", or write another format (--to jsonl)"
            )
        return record.encode() + b"\n"
