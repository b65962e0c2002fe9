"""Shards of Shar datasets as sources of jobs: the files of each shard, and its cuts as samples.

A shard is all files `<field>.<number>.jsonl` or `.tar` with one number, as lhotse writes them, or all files
`<name>.<field>.jsonl` or `.tar` with one name, as `ledgerbeam convert --to shar` does. One of the fields is `cuts`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from ledgerbeam.errors import SourceError, SourceNotFoundError
from ledgerbeam.io.compression.names import split_compression
from ledgerbeam.io.datasets.shar.cuts import cut_sample
from ledgerbeam.io.datasets.shar.reader import CUTS, put_field
from ledgerbeam.io.formats.format import OffsetFormat
from ledgerbeam.io.formats.streamed import decode_raw
from ledgerbeam.io.index.reader import NumberedRecords, RawRecord
from ledgerbeam.io.listing.pages import list_folder
from ledgerbeam.io.storage.client import Options
from ledgerbeam.io.storage.urls import canonical_url, is_local
from ledgerbeam.io.tar.sample import Sample

_EXPECTED = "expected shards of Shar datasets, such as cuts.000000.jsonl"

_NUMBERED = re.compile(r"(?P<field>[^./]+)(?P<shard>(?:\.\d+)?)\.(?:jsonl|tar)")
_NAMED = re.compile(r"(?P<shard>.+)\.(?P<field>[^./]+)\.(?:jsonl|tar)")


def shard_field(url: str) -> tuple[str, str] | None:
    """Return the common part of the names of a shard's files, and the field of a file; None if it has no such name."""
    folder, _, name = split_compression(url).url.rpartition("/")
    match = _NUMBERED.fullmatch(name) or _NAMED.fullmatch(name)
    return None if match is None else (f"{folder}/{match['shard']}", match["field"])


def require_shard(url: str) -> None:
    """Check the name of a file of a shard.

    Raises:
        SourceNotFoundError: The file has another name.
    """
    if shard_field(url) is None:
        raise SourceNotFoundError(f"{url}: {_EXPECTED}, found a file of another name")


def holds_shards(folder: str, options: Options | None = None) -> bool:
    """Return whether a folder has cuts of a Shar dataset.

    Args:
        folder: A path or URL without wildcards; False for a file or a missing folder.
        options: Storage options.

    Raises:
        StorageError: The folder cannot be listed.
    """
    url = canonical_url(folder).rstrip("/")
    if is_local(url) and not os.path.isdir(url):
        return False
    try:
        found = (shard_field(file) for page in list_folder(url, options) for file in page.urls)
        return any(shard is not None and shard[1] == CUTS for shard in found)
    except SourceNotFoundError:
        return False


def group_shards(urls: Iterable[str]) -> list[list[str]]:
    """Group files by shard. Files with other names, such as indexes, are skipped.

    Args:
        urls: All files, in any order. A plain file takes precedence over its compressed twin.

    Returns:
        The files of each shard, its cuts first, then its fields by name. Shards are in the order of the names of their
        cuts.

    Raises:
        SourceError: Files have no cuts, or a shard lacks a field that others of its folder have.
        SourceNotFoundError: There is no shard.
    """
    shards: dict[str, dict[str, str]] = {}
    for url in urls:
        found = shard_field(url)
        if found is not None:
            fields = shards.setdefault(found[0], {})
            if found[1] not in fields or split_compression(url).compression is None:
                fields[found[1]] = url
    if not shards:
        raise SourceNotFoundError(f"{_EXPECTED}, found none")
    known: dict[str, set[str]] = {}
    for fields in shards.values():
        first = min(fields.values())
        if CUTS not in fields:
            raise SourceError(
                f"{first}: expected cuts beside this file, under the same name or number, found none; write them "
                "again, or move other files out of the folder"
            )
        folder = first.rpartition("/")[0]
        differing = sorted(known.setdefault(folder, set(fields)) ^ set(fields))
        if differing:
            raise SourceError(
                f"{fields[CUTS]}: expected the same fields in all shards of its folder, found some with and some "
                f"without {differing[0]!r}; write what is missing again"
            )
    ordered = sorted(shards.values(), key=lambda fields: fields[CUTS])
    return [[fields[CUTS], *(fields[name] for name in sorted(fields) if name != CUTS)] for fields in ordered]


class FieldRecords(Protocol):
    """Records of one file of a shard, by number."""

    @property
    def url(self) -> str:
        """The file."""

    def __len__(self) -> int: ...

    def read_many(self, indices: list[int], /) -> list[Any]:
        """Return records by number, in the requested order."""

    def read_raw(self, start: int, stop: int, /) -> list[RawRecord]:
        """Return the bytes of the records of a span; blank lines are left out."""

    def close(self) -> None:
        """Close open files. The next read opens them again."""


class HeldRecords:
    """Records of a compressed file, which is read as a whole.

    Args:
        url: The file.
        kind: Its format.
        records: Its records.
    """

    def __init__(self, url: str, kind: OffsetFormat, records: list[RawRecord]) -> None:
        self.url = url
        self._format = kind
        self._records = records

    def __len__(self) -> int:
        return len(self._records)

    def read_many(self, indices: list[int], /) -> list[Any]:
        """Return records by number."""
        return [decode_raw(self._format, self._records[index]) for index in indices]

    def read_raw(self, start: int, stop: int, /) -> list[RawRecord]:
        """Return the bytes of the records of a span."""
        return self._records[start:stop]

    def close(self) -> None:
        """Do nothing, since no file is open."""


class SharSamples(NumberedRecords[Sample]):
    """Random access to the cuts of one shard with their fields, as samples: see `cuts.cut_sample`.

    Args:
        cuts: The cuts of the shard.
        fields: The fields of the shard by name.

    Raises:
        SourceError: A field has another number of records than there are cuts.
    """

    def __init__(self, cuts: FieldRecords, fields: Mapping[str, FieldRecords]) -> None:
        self.url = cuts.url
        self._cuts = cuts
        self._fields = dict(fields)
        for records in self._fields.values():
            if len(records) != len(cuts):
                raise SourceError(
                    f"{records.url}: expected {len(cuts)} records, as many as cuts in {cuts.url}, found "
                    f"{len(records)}; write the shard again"
                )

    def __len__(self) -> int:
        return len(self._cuts)

    def read_raw(self, start: int, stop: int) -> list[RawRecord]:
        """Return the lines of the cuts of a span.

        Raises:
            SourceError: A line is blank.
        """
        cuts = self._cuts.read_raw(start, stop)
        if len(cuts) != stop - start:
            raise SourceError(
                f"{self.url}: expected a cut in each of the lines [{start}, {stop}), found "
                f"{stop - start - len(cuts)} blank ones; delete them and write the fields again"
            )
        return cuts

    def close(self) -> None:
        """Close open files. The next read opens them again."""
        for records in (self._cuts, *self._fields.values()):
            records.close()

    def _read(self, records: list[int]) -> list[Sample]:
        cuts = self._cuts.read_many(records)
        values: list[dict[str, Any]] = [{} for _ in records]
        for field, held in self._fields.items():
            for number, cut, value, record in zip(records, cuts, values, held.read_many(records), strict=True):
                joined = {"id": cut["id"]} if isinstance(cut, Mapping) and "id" in cut else cut
                put_field(joined, field, record, held.url, number)
                if field in joined:
                    value[field] = joined[field]
        return [
            cut_sample(cut, value, f"{self.url}: record {number}")
            for number, cut, value in zip(records, cuts, values, strict=True)
        ]
