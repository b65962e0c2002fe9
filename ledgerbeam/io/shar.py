"""Shar folders: cuts and their fields, each field in a shard of its own beside the cuts' one, joined by position.

`cuts.000000.jsonl` holds cuts as JSON, `<field>.000000.tar` for each of them a pair of members, payload and manifest,
and `<field>.000000.jsonl` a row `{"cut_id": ..., "<field>": value}`. The layout is that of lhotse 2.0 (`lhotse.shar`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, chain
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from ledgerbeam.errors import RecordError, SourceError, SourceNotFoundError
from ledgerbeam.io.formats import Reader, format_of
from ledgerbeam.io.listing import list_pages
from ledgerbeam.io.storage import Options, canonical_url
from ledgerbeam.io.tar_sample import Sample

__all__ = ["SharReader", "find_shar"]

_NAME = re.compile(r"(?P<field>[^./]+)(?P<shard>\.\d+)?\.(?:jsonl|tar)(?P<rest>\..*)?")
_CUTS = "cuts"
_NO_DATA = {"nodata", "nometa"}


def find_shar(folder: str, options: Options | None = None) -> dict[str, list[str]]:
    """Lists the shards of a Shar folder by field; what has no such name (an index, a README) is passed over.

    Args:
        folder: A local folder or URL.
        options: Storage options.

    Returns:
        The URLs of each field, `cuts` among them, in the order of their names.

    Raises:
        SourceNotFoundError: There are no cuts.
        SourceError: A field has other shards than the cuts.
    """
    base = canonical_url(folder).rstrip("/")
    found: dict[str, dict[str, str]] = {}
    for page in list_pages([f"{base}/*"], options):
        for url in page.urls:
            match = _NAME.fullmatch(url.rpartition("/")[2])
            if match is not None and match["rest"] is None:
                found.setdefault(match["field"], {})[match["shard"] or ""] = url
    if _CUTS not in found:
        raise SourceNotFoundError(f"{base}: expected shards of cuts, such as cuts.000000.jsonl, found none.")
    for field, shards in found.items():
        other = sorted(set(shards) ^ set(found[_CUTS]))
        if other:
            raise SourceError(
                f"{base}: expected a shard of {field!r} for each of the cuts, found them to differ in {other[0]!r}; "
                "write what is missing again, or name the fields to read."
            )
    return {field: [shards[number] for number in sorted(shards)] for field, shards in found.items()}


class SharReader:
    """Random access to the cuts of a Shar folder with their fields, through the index beside each shard.

    A record is the cut as a dict in which each field has been put under its name: of a tar field the `Sample` of the
    pair (payload and `json`), of a JSONL field the value. A field without a value for a cut is left out. Deterministic,
    picklable, safe to share between threads.

    Args:
        folder: A local folder or URL.
        fields: Which fields to read beside the cuts. Default: all.
        options: Storage options.

    Raises:
        IndexNotFoundError: A shard has no index; also the errors of `find_shar` and of the readers.
        SourceError: A field that does not exist, or shards of a field with another number of records than the cuts.
    """

    def __init__(self, folder: str, fields: Sequence[str] | None = None, options: Options | None = None) -> None:
        self.url = canonical_url(folder).rstrip("/")
        self.options = options
        found = find_shar(self.url, options)
        wanted = sorted(set(found) - {_CUTS}) if fields is None else list(fields)
        missing = [field for field in wanted if field not in found]
        if missing:
            raise SourceError(f"{self.url}: there is no field {missing[0]!r}; it has {sorted(set(found) - {_CUTS})}.")
        self.fields = tuple(wanted)
        self.shards: dict[str, list[Reader]] = {
            field: [format_of(url).open(url, options=options, group="pairs") for url in found[field]]
            for field in (_CUTS, *wanted)
        }
        counts = [len(reader) for reader in self.shards[_CUTS]]
        for field in wanted:
            for reader, count in zip(self.shards[field], counts, strict=True):
                if len(reader) != count:
                    raise SourceError(
                        f"{reader.url}: expected {count} records, as many as cuts in its shard, found {len(reader)}; "
                        "write the shard again."
                    )
        self._ends = np.array([0, *accumulate(counts)], np.int64)

    def __repr__(self) -> str:
        return f"SharReader({self.url!r}, fields={list(self.fields)})"

    def __len__(self) -> int:
        return int(self._ends[-1])

    @overload
    def __getitem__(self, item: int, /) -> dict[str, Any]: ...
    @overload
    def __getitem__(self, item: slice, /) -> list[dict[str, Any]]: ...
    def __getitem__(self, item: int | slice, /) -> dict[str, Any] | list[dict[str, Any]]:
        if isinstance(item, slice):
            return self.read_many(range(*item.indices(len(self))))
        return self.read_many([item])[0]

    def __iter__(self) -> Iterator[dict[str, Any]]:
        blocks = (range(start, min(start + 256, len(self))) for start in range(0, len(self), 256))
        return chain.from_iterable(map(self.read_many, blocks))

    def read_many(self, indices: Sequence[int]) -> list[dict[str, Any]]:
        """Reads cuts by number, negative ones counting from the end; neighbours share requests in each field.

        Raises:
            IndexError: A number out of range.
            RecordError: The record of a field is of another cut.
        """
        numbers = np.array([index + len(self) if index < 0 else index for index in indices], np.int64)
        wrong = np.flatnonzero((numbers < 0) | (numbers >= len(self)))
        if len(wrong):
            raise IndexError(f"{self.url}: there is no cut {indices[int(wrong[0])]}; it has {len(self)}.")
        shards = self._ends.searchsorted(numbers, "right") - 1
        found: list[Any] = [None] * len(numbers)
        for shard in np.unique(shards).tolist():
            places = np.flatnonzero(shards == shard)
            for place, cut in zip(places.tolist(), self._read(shard, numbers[places]), strict=True):
                found[place] = cut
        return found

    def read_span(self, start: int, stop: int) -> list[dict[str, Any]]:
        """Reads the cuts `[start, stop)`."""
        return self.read_many(range(start, stop))

    def close(self) -> None:
        """Closes what is open; a later read opens it again."""
        for reader in chain.from_iterable(self.shards.values()):
            reader.close()

    def _read(self, shard: int, numbers: NDArray[np.int64]) -> list[dict[str, Any]]:
        inside: list[int] = (numbers - self._ends[shard]).tolist()
        cuts: list[dict[str, Any]] = self.shards[_CUTS][shard].read_many(inside)
        for field in self.fields:
            reader = self.shards[field][shard]
            for number, cut, record in zip(inside, cuts, reader.read_many(inside), strict=True):
                owner = record.key if isinstance(record, Sample) else record.get("cut_id")
                if owner != cut["id"]:
                    raise RecordError(
                        f"{reader.url}: record {number}: expected field {field!r} of cut {cut['id']!r}, found that of "
                        f"{owner!r}; cuts and fields were written in different orders."
                    )
                _put(cut, field, record)
        return cuts


def _put(cut: dict[str, Any], field: str, record: Sample | Mapping[str, Any]) -> None:
    if isinstance(record, Sample):
        if not _NO_DATA & record.keys():
            cut[field] = record
    elif field in record:
        cut[field] = record[field]
