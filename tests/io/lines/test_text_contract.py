"""Lines of text by the contract of formats."""

from __future__ import annotations

from typing import Any

from ledgerbeam.io import OffsetFormat, TextFormat
from ledgerbeam.io.formats.testing import FormatContract


class TestText(FormatContract):
    def format(self) -> OffsetFormat:
        return TextFormat()

    def records(self, count: int) -> list[Any]:
        return [f"line {number} " + "ö" * (number * 7 % 30) for number in range(count)]
