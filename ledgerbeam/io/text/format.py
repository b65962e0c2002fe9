"""Lines of plain text as a format: a record is a string."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ledgerbeam.io.formats.base import LineFormat

__all__ = ["TextFormat"]


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

    def encode_record(self, record: Any) -> bytes:
        """Return a string as a line.

        Raises:
            ValueError: It is no string, or has a newline or what UTF-8 cannot hold.
        """
        if not isinstance(record, str):
            raise ValueError(f"expected a string, found {type(record).__name__}; text holds nothing else")
        if "\n" in record:
            raise ValueError(f"expected a string without newlines, found {record!r:.80}")
        return record.encode() + b"\n"
