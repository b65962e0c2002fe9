"""Values of a field of JSON lines, found without decoding the lines."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import orjson

from ledgerbeam._base.lazy import np
from ledgerbeam.io import native
from ledgerbeam.io.lines.rows import ByteRows

_AT_ONCE = 1024  # values that are decoded together


@dataclass(frozen=True)
class FieldTexts:
    """The values of one field, one for each line, as JSON text."""

    rows: ByteRows  # the value of each line; empty if the line has no such field
    is_plain: bool  # whether all values are text without escapes

    def values(self) -> Iterator[Any]:
        """Yield the value of each line; None if the line has no such field."""
        for first in range(0, len(self.rows), _AT_ONCE):
            rows = self.rows.at(slice(first, first + _AT_ONCE))
            found = rows.lengths > 0
            values = iter(orjson.loads(b"[" + rows.at(found).joined(after=b",")[:-1] + b"]"))
            yield from (next(values) if is_found else None for is_found in found.tolist())

    def texts(self) -> ByteRows:
        """Return the text of each line in UTF-8, without quotes. Only valid if `is_plain`."""
        return ByteRows(self.rows.buffers, self.rows.starts + 1, self.rows.lengths - 2)


def find_field(lines: ByteRows, name: str) -> FieldTexts | None:
    """Find the values of a field; ``a.b`` is the field b of the object a. The last of several equal names counts.

    Return None without compiled code, for unusual or invalid lines, or a field named ``a.b``: decode all lines then.
    """
    parts = name.split(".")
    found = _find(lines, name)
    if len(parts) == 1 or found is None:
        return found
    if found.rows.lengths.any():
        return None
    found = FieldTexts(lines, is_plain=False)
    for part in parts:
        objects = found.rows.lengths > 0
        inner = _find(found.rows.at(objects), part)
        if inner is None:
            return None
        starts, lengths = np.zeros((2, len(lines)), np.int64)
        starts[objects], lengths[objects] = inner.rows.starts, inner.rows.lengths
        found = FieldTexts(ByteRows(lines.buffers, starts, lengths), inner.is_plain and bool(objects.all()))
    return found


def _find(lines: ByteRows, name: str) -> FieldTexts | None:
    if native.compiled is None or len(lines.buffers) != 1:
        return None
    starts, bounds = np.ascontiguousarray(lines.starts), np.zeros((len(lines), 2), np.int64)
    encoded = name.encode("utf-8", "surrogatepass")
    count, is_plain = native.compiled.find_fields(lines.buffers[0], starts, starts + lines.lengths, encoded, bounds)
    if count < len(lines):
        return None
    return FieldTexts(ByteRows(lines.buffers, bounds[:, 0], bounds[:, 1] - bounds[:, 0]), is_plain)
