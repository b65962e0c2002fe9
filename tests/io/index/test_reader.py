"""The conformance class on each format."""

from __future__ import annotations

from typing import Any

import pytest

from ledgerbeam.io.lines.formats import JsonlFormat
from ledgerbeam.io.tar.format import TarFormat
from ledgerbeam.io.tar.sample import Sample
from tests.io.conformance import ReaderConformance

pytestmark = pytest.mark.usefixtures("implementation")


class TestJsonl(ReaderConformance):
    format = JsonlFormat(threads=2)
    shift = 7

    def records(self, count: int) -> list[Any]:
        return [{"id": i, "text": "wörter " * (i % 40)} for i in range(count)]


class TestTarPairs(ReaderConformance):
    format = TarFormat()

    def records(self, count: int) -> list[Any]:
        return [Sample(f"d/{i}.x", {"wav": bytes([i % 256]) * (i * 13), "json": b"{}"}) for i in range(count)]

    def key(self, record: Any) -> Any:
        return record.key, list(record.items())


class TestTarKeys(TestTarPairs):
    def records(self, count: int) -> list[Any]:
        return [
            Sample(f"d/{i}" + "ü" * 50 * (i % 3 == 0), {f"seg{j}.png": b"x" * (i * j) for j in range(1 + i % 4)})
            for i in range(count)
        ]
