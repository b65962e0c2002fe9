"""The most frequent values (frequent items)."""

from __future__ import annotations

import json
import math
import threading
from typing import Any

from datasketches import frequent_items_error_type, frequent_strings_sketch

from ledgerbeam.sketches import LIMIT, packed, shown, unpacked

# Sizes of the frequent items sketches. A task keeps every value that is in more than 0.7 % of its calls; the merged
# sketch of all tasks keeps 12,288 values.
_LG_ITEMS, _LG_MERGED_ITEMS = 9, 14
_ITEM_CHARACTERS = 2_000
_SHOWN_ITEMS = 20


class Frequent:
    """The most frequent texts of a task, by count or by weight."""

    kind = "top"
    _lg_items = _LG_ITEMS

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sketch = frequent_strings_sketch(self._lg_items)
        self._total = 0
        self._merged = 0  # sum of the greatest errors of merged sketches

    def add(self, text: str, weight: int) -> None:
        """Add a value in the text form of `ledgerbeam.stats`."""
        with self._lock:
            self._total += weight
            self._sketch.update(text, weight)

    def data(self) -> bytes:
        """Return the bytes of the sketch: values, lower bounds of their weights, and the greatest error of a bound."""
        with self._lock:
            found = [self._offset(), self._total, _frequent_rows(self._sketch)]
        return packed(json.dumps(found, ensure_ascii=True, separators=(",", ":")).encode("ascii"))

    def _offset(self) -> int:
        """Return the greatest difference between the true weight of a text and its lower bound."""
        return self._merged + self._sketch.get_upper_bound(
            ""
        )  # no value has an empty text: the bound of any other text


class MergedFrequent(Frequent):
    """The most frequent texts of many tasks."""

    _lg_items = _LG_MERGED_ITEMS

    def take(self, data: bytes) -> None:
        rows, offset, total = _read_frequent(data)
        if self._total + total > LIMIT:
            raise ValueError(f"expected weights of at most {LIMIT} in all, found {self._total + total}")
        for text, weight in rows:
            self._sketch.update(text, weight)
        self._merged += offset
        self._total += total

    def rows(self) -> list[tuple[str, int, int]]:
        """Return each text with the lower and the upper bound of its weight, the heaviest text first."""
        unknown = self._offset()
        return [(text, weight, weight + unknown) for text, weight in _frequent_rows(self._sketch)]

    def value(self) -> list[dict[str, Any]]:
        return [
            {"value": _plain(text), "estimate": high, "lower": low, "upper": high}
            for text, low, high in self.rows()[:_SHOWN_ITEMS]
        ]

    def bounds(self) -> str:
        unknown = self._offset()
        return f"each up to {unknown:,} less" if unknown else ""


def _frequent_rows(sketch: Any) -> list[tuple[str, int]]:
    """Return the texts of a sketch with lower bounds of their weights, the heaviest first, then sorted by text."""
    if sketch.is_empty():
        return []
    found = sketch.get_frequent_items(frequent_items_error_type.NO_FALSE_NEGATIVES, 0)
    return sorted(((text, low) for text, _, low, _ in found if low), key=lambda row: (-row[1], row[0]))


def _read_frequent(data: bytes) -> tuple[list[tuple[str, int]], int, int]:
    try:
        offset, total, rows = json.loads(unpacked(data))
        texts, weights = [text for text, _ in rows], [weight for _, weight in rows]
        exact = [type(number) is int and 0 < number <= LIMIT for number in [total, *weights]]
        if not all(exact) or type(offset) is not int or not 0 <= offset <= total or sum(weights) > total:
            raise ValueError("expected positive weights that add up to the total of the sketch or less")
        if len(set(texts)) != len(texts) or any(len(text) > _ITEM_CHARACTERS for text in texts):
            raise ValueError(f"expected different texts of at most {_ITEM_CHARACTERS} characters")
        for text in texts:
            _plain(text)
            text.encode()
    except (TypeError, RecursionError, UnicodeError, json.JSONDecodeError) as error:
        raise ValueError(f"expected an offset, a weight and rows of a text and a weight, found {error}") from None
    return list(zip(texts, weights, strict=True)), offset, total


def _plain(text: str) -> Any:
    """Return the JSON value of a value in the text form of `ledgerbeam.stats`."""
    value = json.loads(text)
    if isinstance(value, dict) and list(value) == ["base64"] and isinstance(value["base64"], str):
        return value
    if not isinstance(value, str | int | float | None) or value in (math.inf, -math.inf) or text == "NaN":
        raise ValueError(f"expected the JSON text of a value, found {shown(text)}")
    return value
