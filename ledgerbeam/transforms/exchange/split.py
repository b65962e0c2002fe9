"""Division of records into parts. The key of a record decides its part."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from ledgerbeam import stats
from ledgerbeam.io import Format
from ledgerbeam.io.conversion import find_conversion
from ledgerbeam.results import Route
from ledgerbeam.transforms.exchange.keys import HASH_BYTES, WITHOUT_KEY, RecordKeys
from ledgerbeam.transforms.mapping.function import MapRecords
from ledgerbeam.user_code.objects import ReadyObject


def part_of(key: bytes, shares: Sequence[int]) -> int:
    """Return the number of the part of a key.

    Args:
        key: Key of the scheme ``hash``.
        shares: Shares of the parts.
    """
    ends = list(accumulate(shares))
    return bisect_right(ends, int.from_bytes(key[:HASH_BYTES], "big") * ends[-1] >> 8 * HASH_BYTES)


class SplitRecords(MapRecords):
    """A function of one task, for `ProcessTask`, that writes each record to the part of its key.

    Args:
        keys: Maker of the keys, with the scheme ``hash``.
        parts: Name and share of each part.
        conversion: Name of the conversion to the format, see `io.conversion`.
        output_format: Format of the outputs, or its name.
    """

    def __init__(
        self, keys: RecordKeys, parts: Sequence[tuple[str, int]], conversion: str, output_format: str | Format
    ) -> None:
        super().__init__("split", output_format)
        self._keys = keys
        self._names = [name for name, _ in parts]
        self._shares = [share for _, share in parts]
        self._conversion = conversion

    def _load(self) -> ReadyObject:
        self._keys.set_up()
        key, null, names, shares = self._keys.key, self._keys.null, self._names, self._shares
        convert = find_conversion(self._conversion)

        def routed(record: Any) -> Route:
            found = key(record)
            if found == null:
                stats.count(WITHOUT_KEY)
            return Route(names[part_of(found, shares)], convert(record))

        return ReadyObject(routed)
