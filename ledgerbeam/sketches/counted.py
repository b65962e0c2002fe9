"""Counts: sums of whole numbers."""

from __future__ import annotations

import threading

from ledgerbeam.sketches.packing import shown


class Counted:
    """A count, exact for any size."""

    kind = "count"

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._total = 0

    def add(self, number: int) -> None:
        """Add a number."""
        with self._lock:
            self._total += number

    def take(self, data: bytes) -> None:
        """Add the count of a task."""
        text = data.decode("ascii", "replace") if len(data) <= 30 else ""
        if not (text.isascii() and text.isdigit()) or (text[0] == "0" and text != "0"):
            raise ValueError(f"expected a whole number in decimal digits, found {shown(data)}")
        self._total += int(text)

    def data(self) -> bytes:
        """Return the count in decimal digits."""
        return str(self._total).encode("ascii")

    def value(self) -> int:
        """Return the count."""
        return self._total

    def bounds(self) -> str:
        """Return an empty text: the count is exact."""
        return ""
