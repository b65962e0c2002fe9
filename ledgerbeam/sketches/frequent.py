"""The values that are met most often (frequent items)."""

from __future__ import annotations

import json
import math
import threading
from typing import Any

from datasketches import frequent_items_error_type, frequent_strings_sketch

from ledgerbeam.sketches.packing import LIMIT, packed, shown, unpacked

_LG_ITEMS, _LG_MERGED_ITEMS = 9, 14
"""Frequent items: those that are met in more than 0.7 % of the calls of a task are known, and 12,288 of all tasks."""

_ITEM_CHARACTERS = 2_000
_SHOWN_ITEMS = 20


class Frequent:
    """The texts that a task has met most often, or that weigh most."""

    kind = "top"

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sketch = frequent_strings_sketch(_LG_ITEMS)
        self._total = 0

    def add(self, text: str, weight: int) -> None:
        """Take in a value, as `ledgerbeam.stats` writes it."""
        with self._lock:
            self._total += weight
            self._sketch.update(text, weight)

    def data(self) -> bytes:
        """Return what the sketch holds: values, their least weights, and what each may weigh more."""
        with self._lock:
            rows = _frequent_rows(self._sketch)
            return _frequent_bytes(rows, _offset(self._sketch), self._total)


class MergedFrequent:
    """The texts that many tasks have met most often."""

    def __init__(self) -> None:
        self._sketch = frequent_strings_sketch(_LG_MERGED_ITEMS)
        self._offset = 0
        self._total = 0

    def take(self, data: bytes) -> None:
        """Take in the values of a task."""
        rows, offset, total = _read_frequent(data)
        if self._total + total > LIMIT:
            raise ValueError(f"expected weights of at most {LIMIT} in all, found {self._total + total}")
        for text, weight in rows:
            self._sketch.update(text, weight)
        self._offset += offset
        self._total += total

    def rows(self) -> list[tuple[str, int, int]]:
        """Return text, and between which numbers its weight is, the heaviest first."""
        rows = _frequent_rows(self._sketch)
        unknown = self._offset + _offset(self._sketch)
        return [(text, weight, weight + unknown) for text, weight in rows]

    def data(self) -> bytes:
        """Return what it holds as the bytes of one sketch."""
        rows = _frequent_rows(self._sketch)
        return _frequent_bytes(rows, self._offset + _offset(self._sketch), self._total)

    def value(self) -> list[dict[str, Any]]:
        """Return the heaviest values, each with its estimate and its bounds."""
        return [
            {"value": _plain(text), "estimate": high, "lower": low, "upper": high}
            for text, low, high in self.rows()[:_SHOWN_ITEMS]
        ]

    def bounds(self) -> str:
        """Return by how much any value may weigh less than is said."""
        unknown = self._offset + _offset(self._sketch)
        return f"each up to {unknown:,} less" if unknown else ""


def _frequent_rows(sketch: Any) -> list[tuple[str, int]]:
    """Return each text that a sketch holds with its least weight, the heaviest first, then by the text."""
    if sketch.is_empty():
        return []
    found = sketch.get_frequent_items(frequent_items_error_type.NO_FALSE_NEGATIVES, 0)
    return sorted(((text, low) for text, _, low, _ in found if low), key=lambda row: (-row[1], row[0]))


def _offset(sketch: Any) -> int:
    """Return by how much the weight of any text may be more than the least that a sketch knows of it."""
    return sketch.get_upper_bound("")  # no value is written so: it is the bound of those that are not held


def _frequent_bytes(rows: list[tuple[str, int]], offset: int, total: int) -> bytes:
    return packed(json.dumps([offset, total, rows], ensure_ascii=True, separators=(",", ":")).encode("ascii"))


def _read_frequent(data: bytes) -> tuple[list[tuple[str, int]], int, int]:
    try:
        offset, total, rows = json.loads(unpacked(data))
        texts, weights = [text for text, _ in rows], [weight for _, weight in rows]
        exact = [type(number) is int and 0 < number <= LIMIT for number in [total, *weights]]
        if not all(exact) or type(offset) is not int or not 0 <= offset <= total or sum(weights) > total:
            raise ValueError("expected weights that add up")
        if len(set(texts)) != len(texts) or any(len(text) > _ITEM_CHARACTERS for text in texts):
            raise ValueError("expected different texts")
        for text in texts:
            _plain(text)
            text.encode()
    except (TypeError, RecursionError, UnicodeError, json.JSONDecodeError) as error:
        raise ValueError(f"expected an offset, a weight and rows of a text and a weight, found {error}") from None
    return list(zip(texts, weights, strict=True)), offset, total


def _plain(text: str) -> Any:
    """Return the value that `ledgerbeam.stats` has written as a text, for JSON."""
    value = json.loads(text)
    if isinstance(value, dict) and list(value) == ["base64"] and isinstance(value["base64"], str):
        return value
    if not isinstance(value, str | int | float | None) or value in (math.inf, -math.inf) or text == "NaN":
        raise ValueError(f"expected a value, found {shown(text)}")
    return value
