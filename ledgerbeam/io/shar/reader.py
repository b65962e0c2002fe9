"""Shar: cuts and their fields. Each field has its own shards beside those of the cuts, joined by position.

`cuts.000000.jsonl` holds cuts as JSON, `<field>.000000.tar` for each of them a pair of members, payload and manifest,
and `<field>.000000.jsonl` a row `{"cut_id": ..., "<field>": value}`. The layout is that of lhotse 2.0 (`lhotse.shar`).

A dataset is a folder of such names, or JSON that lists the shards of each field in any place, as
`CutSet.from_shar(fields=...)` takes it.
"""

from __future__ import annotations

import posixpath
import re
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import accumulate, chain
from typing import Any

import orjson

from ledgerbeam.errors import RecordError, SourceError, SourceNotFoundError, UsageError
from ledgerbeam.io.compression.names import split_compression
from ledgerbeam.io.formats.format import Reader
from ledgerbeam.io.formats.registry import recognize
from ledgerbeam.io.index.reader import NumberedRecords
from ledgerbeam.io.listing.pages import list_folder
from ledgerbeam.io.shar.rows import CUTS
from ledgerbeam.io.storage.client import Options
from ledgerbeam.io.storage.files import read_bytes
from ledgerbeam.io.storage.publish import publish_bytes
from ledgerbeam.io.storage.stat import FileInfo, stat_many
from ledgerbeam.io.storage.urls import canonical_url, join_url
from ledgerbeam.io.tar.format import TarFormat
from ledgerbeam.io.tar.sample import Sample
from ledgerbeam.late_numpy import np

__all__ = ["SharReader", "find_shar", "put_field", "write_shar_fields"]

_NAME = re.compile(r"(?P<field>[^./]+)(?P<shard>\.\d+)?\.(?:jsonl|tar)(?P<rest>\..*)?")
_NO_DATA = {"nodata", "nometa"}


def find_shar(
    folder: str, options: Options | None = None, fields: Sequence[str] | None = None, *, compressed: bool = False
) -> dict[str, list[str]]:
    """List the shards of a Shar dataset by field; what has no such name (an index, a README) is passed over.

    Args:
        folder: A local folder or URL; or that of a list of fields, which ends with `.json`.
        options: Storage options.
        fields: Those that are wanted beside the cuts. Default: all.
        compressed: Find compressed shards too, where there is no plain one of that name.

    Returns:
        The URLs of each field, `cuts` first, in the order of their names or of the list.

    Raises:
        SourceNotFoundError: There are no cuts.
        SourceError: There is no such field, a field has other shards than the cuts, or the list is none.
    """
    base = canonical_url(folder).rstrip("/")
    found = _listed(base, options) if base.endswith(".json") else _found(base, options, fields, compressed=compressed)
    wanted = sorted(set(found) - {CUTS}) if fields is None else list(fields)
    missing = [field for field in wanted if field not in found]
    if missing:
        raise SourceError(f"{base}: there is no field {missing[0]!r}; it has {sorted(set(found) - {CUTS})}")
    return {field: found[field] for field in (CUTS, *wanted)}


def _found(
    base: str, options: Options | None, fields: Sequence[str] | None, *, compressed: bool
) -> dict[str, list[str]]:
    found: dict[str, dict[str, str]] = {}
    for page in list_folder(base, options):
        for url in page.urls:
            match = _NAME.fullmatch(url.rpartition("/")[2])
            if match is None or not (
                match["rest"] is None or (compressed and split_compression(url).compression is not None)
            ):
                continue
            shards = found.setdefault(match["field"], {})
            if match["rest"] is None or (match["shard"] or "") not in shards:
                shards[match["shard"] or ""] = url
    if CUTS not in found:
        raise SourceNotFoundError(f"{base}: expected shards of cuts, such as cuts.000000.jsonl, found none")
    for field, shards in found.items():
        other = sorted(set(shards) ^ set(found[CUTS]))
        if other and (fields is None or field in fields):
            raise SourceError(
                f"{base}: expected a shard of {field!r} for each of the cuts, found them to differ in {other[0]!r}; "
                "write what is missing again, or name the fields to read"
            )
    return {field: [shards[number] for number in sorted(shards)] for field, shards in found.items()}


def write_shar_fields(url: str, shards: Mapping[str, Sequence[str]], options: Options | None = None) -> None:
    """Publish a list of fields.

    Args:
        url: Where it goes; `.json` last.
        shards: The canonical URLs of the shards of each field, `cuts` among them, in the order of the dataset.
        options: Storage options.

    Raises:
        UsageError: The name ends otherwise, there are no cuts, or a field has another number of shards.
        StorageError: No permission, or the store refused.
    """
    url = canonical_url(url)
    counts = {field: len(urls) for field, urls in shards.items()}
    if not url.endswith(".json") or not counts.get(CUTS) or len(set(counts.values())) > 1:
        raise UsageError(f"{url}: expected a name with .json last and as many shards of each field as cuts: {counts}")
    content = {field: list(shards[field]) for field in (CUTS, *sorted(set(shards) - {CUTS}))}
    publish_bytes(url, orjson.dumps(content, option=orjson.OPT_INDENT_2), options)


def _listed(url: str, options: Options | None) -> dict[str, list[str]]:
    try:
        content = orjson.loads(read_bytes(url, options))
    except orjson.JSONDecodeError as error:
        raise SourceError(f"{url}: expected shards by field, found bad JSON: {error}") from error
    if not isinstance(content, dict) or not all(
        isinstance(urls, list) and all(isinstance(shard, str) for shard in urls) for urls in content.values()
    ):
        raise SourceError(f"{url}: expected lists of shards by field, found {content!r:.80}")
    if not content.get(CUTS):
        raise SourceNotFoundError(f"{url}: expected shards under 'cuts', found none")
    for field, urls in content.items():
        if len(urls) != len(content[CUTS]):
            raise SourceError(
                f"{url}: expected {len(content[CUTS])} shards of {field!r}, as many as of cuts, found {len(urls)}"
            )
    try:
        found = {field: [join_url(posixpath.dirname(url), shard) for shard in urls] for field, urls in content.items()}
        for shard in chain.from_iterable(found.values()):
            recognize(shard)
    except UsageError as error:
        raise SourceError(f"{url}: expected shards in JSONL and tar, found one of another name: {error}") from error
    return found


class SharReader(NumberedRecords[dict[str, Any]]):
    """Random access to the cuts of a Shar dataset with their fields, through the index beside each shard.

    A record is the cut as a dict in which each field has been put under its name: of a tar field the `Sample` of the
    pair (payload and `json`), of a JSONL field the value. A field without a value for a cut is left out. Deterministic,
    picklable, safe to share between threads.

    Args:
        folder: A local folder or URL, or that of a list of fields, which ends with `.json`.
        fields: Which fields to read beside the cuts. Default: all.
        options: Storage options.

    Raises:
        IndexNotFoundError: A shard has no index; also the errors of `find_shar` and of the readers.
        SourceError: A field that does not exist, or shards of a field with another number of records than the cuts.
    """

    _together = 256

    def __init__(self, folder: str, fields: Sequence[str] | None = None, options: Options | None = None) -> None:
        self.url = canonical_url(folder).rstrip("/")
        self.options = options
        found = find_shar(self.url, options, fields)
        self.shards: dict[str, list[Reader]] = {
            field: [recognize(url, [TarFormat("pairs")]).plain().open(url, options=options) for url in urls]
            for field, urls in found.items()
        }
        self.fields = tuple(field for field in found if field != CUTS)
        counts = [len(reader) for reader in self.shards[CUTS]]
        for field in self.fields:
            for reader, count in zip(self.shards[field], counts, strict=True):
                if len(reader) != count:
                    raise SourceError(
                        f"{reader.url}: expected {count} records, as many as cuts in its shard, found {len(reader)}; "
                        "write the shard again"
                    )
        self._ends = [0, *accumulate(counts)]

    def __repr__(self) -> str:
        return f"SharReader({self.url!r}, fields={list(self.fields)})"

    def __len__(self) -> int:
        return self._ends[-1]

    @property
    def files(self) -> list[FileInfo]:
        """The properties of the files that it reads, as they are now, from one request each."""
        return stat_many([reader.url for reader in chain.from_iterable(self.shards.values())], self.options)

    def close(self) -> None:
        """Close what is open; a later read opens it again."""
        for reader in chain.from_iterable(self.shards.values()):
            reader.close()

    def _read(self, records: list[int]) -> list[dict[str, Any]]:
        if len(records) == 1:
            shard = bisect_right(self._ends, records[0]) - 1
            return [self._read_one(shard, records[0] - self._ends[shard])]
        shards = np.searchsorted(self._ends, records, "right") - 1
        found: list[dict[str, Any]] = [{}] * len(records)
        for shard in dict.fromkeys(shards.tolist()):
            places = np.flatnonzero(shards == shard).tolist()
            inside = [records[place] - self._ends[shard] for place in places]
            for place, cut in zip(places, self._read_shard(shard, inside), strict=True):
                found[place] = cut
        return found

    def _read_one(self, shard: int, number: int) -> dict[str, Any]:
        cut: dict[str, Any] = self.shards[CUTS][shard][number]
        for field in self.fields:
            reader = self.shards[field][shard]
            put_field(cut, field, reader[number], reader.url, number)
        return cut

    def _read_shard(self, shard: int, numbers: list[int]) -> list[dict[str, Any]]:
        cuts: list[dict[str, Any]] = self.shards[CUTS][shard].read_many(numbers)
        for field in self.fields:
            reader = self.shards[field][shard]
            for number, cut, record in zip(numbers, cuts, reader.read_many(numbers), strict=True):
                put_field(cut, field, record, reader.url, number)
        return cuts


def put_field(cut: dict[str, Any], field: str, record: Sample | Mapping[str, Any], url: str, number: int) -> None:
    """Put the value of a field into its cut, if it has one.

    Args:
        cut: The cut.
        field: Name of the field.
        record: What its shard has in the place of the cut.
        url: The shard, for the error.
        number: Of the record, for the error.

    Raises:
        RecordError: The record is of another cut, or one of both is none.
    """
    place = f"{url}: record {number}"
    if not isinstance(cut, dict) or "id" not in cut:
        raise RecordError(
            f"{place}: expected the cut of this number to be an object with an 'id', found {cut!r:.80}; write the "
            "cuts again"
        )
    if not isinstance(record, Mapping):
        raise RecordError(f"{place}: expected an object with a 'cut_id', found {record!r:.80}; write the shard again")
    owner = record.key if isinstance(record, Sample) else record.get("cut_id")
    if owner != cut["id"]:
        raise RecordError(
            f"{place}: expected field {field!r} of cut {cut['id']!r}, found that of {owner!r}; cuts and "
            "fields were written in different orders"
        )
    if isinstance(record, Sample):
        if not _NO_DATA & record.keys():
            cut[field] = record
    elif field in record:
        cut[field] = record[field]
