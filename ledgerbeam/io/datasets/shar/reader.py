"""Read Shar datasets: cuts and their fields, by number or as a stream.

Each field has its own shards, with a value for each cut in the order of the cuts. `cuts.000000.jsonl` has cuts as
JSON. For each cut `<field>.000000.tar` has two members, payload and manifest, or `<field>.000000.jsonl` has a row
`{"cut_id": ..., "<field>": value}`. The layout is that of lhotse 2.0 (`lhotse.shar`).

A dataset is a folder of such files, or a JSON file that lists the shards of each field, stored anywhere, as
`CutSet.from_shar(fields=...)` takes it. A stream needs no indexes and also reads compressed shards; lhotse compresses
cuts by default.
"""

from __future__ import annotations

import os
import posixpath
import re
from bisect import bisect_right
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from itertools import accumulate, chain, pairwise
from typing import Any, Literal, TypeAlias

import orjson

from ledgerbeam.errors import NotIndexableError, RecordError, SourceError, SourceNotFoundError, UsageError
from ledgerbeam.io.compression.streams import is_pipe, split_compression
from ledgerbeam.io.formats.format import OffsetFormat, Reader
from ledgerbeam.io.formats.registry import recognize
from ledgerbeam.io.formats.streamed import stream_each
from ledgerbeam.io.index.reader import NumberedRecords, RawRecord, read_by_part, require_span
from ledgerbeam.io.json_values import dumps, loads
from ledgerbeam.io.lines.formats import JsonlFormat
from ledgerbeam.io.lines.jsonl import stream_records
from ledgerbeam.io.listing.pages import list_folder
from ledgerbeam.io.storage.client import Options
from ledgerbeam.io.storage.files import read_json
from ledgerbeam.io.storage.publish import publish_bytes
from ledgerbeam.io.storage.stat import FileInfo, stat_many
from ledgerbeam.io.storage.urls import canonical_url, join_url
from ledgerbeam.io.tar.format import TarFormat
from ledgerbeam.io.tar.sample import Sample

CUTS = "cuts"  # name of the shards of cuts
FieldKind: TypeAlias = Literal["tar", "jsonl"]  # kind of a field: payloads with a manifest each, or JSON values
_MEMBERS = ("recording", "features")  # members of a cut; every other field is below `custom`
_MANIFEST = "json"


def check_fields(fields: Mapping[str, FieldKind], place: str) -> None:
    """Raise UsageError if a field has an unknown kind, or a name that lhotse could not set on a cut."""
    for name, kind in fields.items():
        if not name.isidentifier() or name in (CUTS, "id"):
            raise UsageError(f"{place}: expected names of fields such as 'recording', found {name!r}")
        if kind not in ("tar", "jsonl"):
            raise UsageError(
                f"{place}: expected field {name!r} to be 'tar', 'jsonl', 'wav', 'flac', 'mp3', 'opus' or 'numpy', "
                f"found {kind!r}"
            )


def split_cut(
    cut: Mapping[str, Any], fields: Mapping[str, FieldKind], number: int
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Divide a cut, as `SharReader` returns it, into its row of `cuts` and a value for each field.

    A `tar` field is a `Sample`, or a mapping of the payload's extension to the payload and `json` to its manifest. A
    value of a `jsonl` field may also be under `custom`. A field without a value is left out. The row of the cut has the
    manifest of each payload where lhotse has it. RecordError: the cut has no ID that lhotse could match with names of
    members, or a value does not have the kind of its field.
    """
    name = cut.get("id") if isinstance(cut, Mapping) else None
    if not isinstance(name, str) or not name or posixpath.normpath(name) != name or name in (".", ".."):
        raise RecordError(
            f"cut {number}: expected an 'id' that is a relative path in its shortest form, found {name!r:.80}; lhotse "
            "finds payloads by this path"
        )
    row = dict(cut)
    custom = dict(row.pop("custom", None) or {})
    parts: dict[str, Any] = {}
    for field, kind in fields.items():
        if kind == "jsonl":
            parts[field] = {"cut_id": name}
            if field in row or field in custom:
                parts[field][field] = row.pop(field) if field in row else custom[field]
            continue
        if (value := row.pop(field, None)) is None:
            parts[field] = Sample(name, {"nodata": b"", "nometa": b""})
            continue
        parts[field], manifest = _pair(name, value, f"cut {number} ({name!r}): field {field!r}")
        (row if field in _MEMBERS else custom)[field] = manifest
    if custom:
        row["custom"] = custom
    return row, parts


def _pair(name: str, value: Any, place: str) -> tuple[Sample, Any]:
    payloads = [extension for extension in value if extension != _MANIFEST] if isinstance(value, Mapping) else []
    if len(payloads) != 1 or len(value) != 2 or not isinstance(value[payloads[0]], bytes | bytearray | memoryview):
        found = f"{', '.join(map(str, value))}" if isinstance(value, Mapping) else type(value).__name__
        raise RecordError(f"{place}: expected bytes under an extension, and a manifest under 'json', found {found}")
    manifest = value[_MANIFEST]
    try:
        if isinstance(manifest, bytes | bytearray | memoryview):
            data, manifest = bytes(manifest), loads(manifest)
        else:
            data = dumps(manifest, orjson.OPT_APPEND_NEWLINE)
    except (TypeError, orjson.JSONDecodeError) as error:
        raise RecordError(f"{place}: its manifest is not JSON: {error}") from error
    if not isinstance(manifest, Mapping):
        raise RecordError(f"{place}: expected an object as manifest, found {type(manifest).__name__}")
    return Sample(name, {payloads[0]: value[payloads[0]], _MANIFEST: data}), manifest


_NAME = re.compile(r"(?P<field>[^./]+)(?P<shard>\.\d+)?\.(?:jsonl|tar)(?P<rest>\..*)?")
_NO_DATA = {"nodata", "nometa"}


def find_shar(
    folder: str | Mapping[str, Sequence[str]],
    options: Options | None = None,
    fields: Sequence[str] | None = None,
    *,
    streamed: bool = False,
) -> dict[str, list[str]]:
    """List the shards of a Shar dataset by field, `cuts` first, in the order of the names or of the list.

    The dataset is a folder; a list of fields, whose URL ends with `.json`; or the shards of each field. Files with
    other names, such as indexes, are skipped. Without `fields`, all fields are listed. With `streamed`, the result has
    also shards that can only be streamed: compressed ones without a plain shard of the same name, and pipes in lists.

    NotIndexableError: the cuts are compressed, and `streamed` is False. SourceNotFoundError: there are no cuts.
    SourceError: a field does not exist or has other shards than the cuts, or the list is damaged.
    """
    if isinstance(folder, str):
        base = canonical_url(folder).rstrip("/")
        if is_list := base.endswith(".json"):
            found = _parse_field_list(read_json(base, options, "shards by field"), base, posixpath.dirname(base))
        else:
            found = _list_shards(base, options, fields, compressed=streamed)
    else:
        base, is_list = "Shar", True
        found = _parse_field_list(folder, base, os.getcwd())
    pipe = next(filter(is_pipe, chain.from_iterable(found.values())), None) if is_list and not streamed else None
    if pipe is not None:
        raise SourceError(f"{base}: {pipe} is a pipe, which can only be streamed; read it with iterators.Shar")
    wanted = sorted(set(found) - {CUTS}) if fields is None else list(fields)
    if missing := [field for field in wanted if field not in found]:
        raise SourceError(f"{base}: there is no field {missing[0]!r}; choose from {sorted(set(found) - {CUTS})}")
    return {field: found[field] for field in (CUTS, *wanted)}


def _list_shards(
    base: str, options: Options | None, fields: Sequence[str] | None, *, compressed: bool
) -> dict[str, list[str]]:
    found: dict[str, dict[str, str]] = {}
    packed = 0  # compressed shards of cuts
    for page in list_folder(base, options):
        for url in page.urls:
            match = _NAME.fullmatch(url.rpartition("/")[2])
            if match is None or (match["rest"] is not None and split_compression(url).compression is None):
                continue
            if match["rest"] is not None and not compressed:
                packed += match["field"] == CUTS
                continue
            shards = found.setdefault(match["field"], {})
            if match["rest"] is None or (match["shard"] or "") not in shards:
                shards[match["shard"] or ""] = url
    if CUTS not in found and packed:
        raise NotIndexableError(
            f"{base}: expected plain shards of cuts, found only compressed ones, which can only be streamed; "
            "decompress them, or read the folder with iterators.Shar"
        )
    if CUTS not in found:
        raise SourceNotFoundError(f"{base}: expected shards of cuts, such as cuts.000000.jsonl, found none")
    for field, shards in found.items():
        other = sorted(set(shards) ^ set(found[CUTS]))
        if other and (fields is None or field in fields):
            raise SourceError(
                f"{base}: expected cuts and {field!r} in each shard, found only one of them in shard {other[0]!r}; "
                "write the missing file again, or name the fields to read"
            )
    return {field: [shards[number] for number in sorted(shards)] for field, shards in found.items()}


def write_shar_fields(url: str, shards: Mapping[str, Sequence[str]], options: Options | None = None) -> None:
    """Publish a list of fields, whose URL ends with `.json`.

    `shards` has the canonical URLs of the shards of each field, `cuts` among them, in the order of the dataset.
    UsageError: there are no cuts, or a field has another number of shards than the cuts.
    """
    url = canonical_url(url)
    counts = {field: len(urls) for field, urls in shards.items()}
    if not url.endswith(".json") or not counts.get(CUTS) or len(set(counts.values())) > 1:
        raise UsageError(f"{url}: expected a .json file, and as many shards of each field as of cuts, found {counts}")
    content = {field: list(shards[field]) for field in (CUTS, *sorted(set(shards) - {CUTS}))}
    publish_bytes(url, orjson.dumps(content, option=orjson.OPT_INDENT_2), options)


def _parse_field_list(content: Any, url: str, folder: str) -> dict[str, list[str]]:
    """Return the shards of each field, from a list of fields. Names in the list are relative to `folder`."""
    if not isinstance(content, Mapping) or not all(
        isinstance(urls, list | tuple) and all(isinstance(shard, str) for shard in urls) for urls in content.values()
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
        found = {
            field: [shard if is_pipe(shard) else join_url(folder, shard) for shard in urls]
            for field, urls in content.items()
        }
        for shard in chain.from_iterable(found.values()):
            if not is_pipe(shard):
                recognize(shard)
    except UsageError as error:
        raise SourceError(f"{url}: expected shards in JSONL and tar, found another suffix: {error}") from error
    return found


class SharReader(NumberedRecords[dict[str, Any]]):
    """Random access to the cuts of a Shar dataset with their fields, through the index beside each shard.

    A record is the cut as a dict, with each field under its name. A tar field is a `Sample` of two members, the payload
    and its manifest `json`. A JSONL field is the value. A field without a value for a cut is left out. Deterministic,
    picklable, safe to share between threads.

    Args:
        folder: A local folder or URL, or the URL of a list of fields, which ends with `.json`.
        fields: Fields to read with the cuts. Default: all.

    Raises:
        IndexNotFoundError: A shard has no index; also the errors of `find_shar` and of opening shards.
        SourceError: A field does not exist, or its shards have another number of records than the cuts.
    """

    is_indexed: Literal[True] = True

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
        """The current properties of all files of the dataset, from one request each."""
        return stat_many([reader.url for reader in chain.from_iterable(self.shards.values())], self.options)

    def raw(self, index: int) -> bytes:
        """Read the bytes of a cut, without the fields."""
        record = self._number(index)
        shard = bisect_right(self._ends, record) - 1
        return self.shards[CUTS][shard].raw(record - self._ends[shard])

    def read_raw(self, start: int, stop: int) -> list[RawRecord]:
        """Read the bytes of the cuts `[start, stop)`, without the fields."""
        require_span(start, stop, self.url)
        found: list[RawRecord] = []
        for reader, (first, end) in zip(self.shards[CUTS], pairwise(self._ends), strict=True):
            low, high = max(start, first), min(stop, end)
            if low < high:
                found += reader.read_raw(low - first, high - first)
        return found

    def close(self) -> None:
        for reader in chain.from_iterable(self.shards.values()):
            reader.close()

    def _read(self, records: list[int]) -> list[dict[str, Any]]:
        return read_by_part(records, self._ends, self._read_shard)

    def _read_shard(self, shard: int, numbers: list[int]) -> list[dict[str, Any]]:
        cuts: list[dict[str, Any]] = self.shards[CUTS][shard].read_many(numbers)
        for field in self.fields:
            reader = self.shards[field][shard]
            for number, cut, record in zip(numbers, cuts, reader.read_many(numbers), strict=True):
                put_field(cut, field, record, reader.url, number)
        return cuts


def put_field(cut: dict[str, Any], field: str, record: Sample | Mapping[str, Any], url: str, number: int) -> None:
    """Put the value of a field into its cut, if it has the field; `record` has the number of the cut in its shard.

    RecordError: the record belongs to another cut, or the cut or the record is damaged.
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
            f"{place}: expected field {field!r} of cut {cut['id']!r}, found that of cut {owner!r}; write the fields "
            "again, in the order of the cuts"
        )
    if isinstance(record, Sample):
        if not _NO_DATA & record.keys():
            cut[field] = record
    elif field in record:
        cut[field] = record[field]


_SUFFIX = re.compile(r"\.(jsonl|tar)\b")


def stream_shar(
    shards: Mapping[str, Sequence[str]], options: Options | None = None, listed: Mapping[str, FileInfo] | None = None
) -> Iterator[dict[str, Any]]:
    """Read the cuts of a Shar dataset with their fields, as `SharReader` returns them, in order.

    Memory: a block and a record of each field. `shards` is a result of `find_shar`. A shard may be a pipe: for cuts a
    command that prints JSONL, for a field a command that names a file in the format of its output. `listed` has the
    expected properties of shards by URL; other shards are not compared.

    ChangedSourceError: a shard differs from `listed`. RecordError: the record of a field belongs to another cut.
    SourceError: a shard of a field has another number of records than its cuts.
    """
    known = listed or {}
    fields = [field for field in shards if field != CUTS]
    for number, url in enumerate(shards[CUTS]):
        urls = {field: shards[field][number] for field in fields}
        with ExitStack() as stack:
            beside = {field: stack.enter_context(closing(_records(urls[field], options, known))) for field in fields}
            count = 0
            for count, cut in enumerate(stream_records(url, options, known.get(url)), 1):
                for field, records in beside.items():
                    if (record := next(records, None)) is None:
                        raise _count_error(urls[field], url, f"only {count - 1}")
                    put_field(cut, field, record, urls[field], count - 1)
                yield cut
            for field, records in beside.items():
                if next(records, None) is not None:
                    raise _count_error(urls[field], url, f"more than {count}")


def _records(url: str, options: Options | None, listed: Mapping[str, FileInfo]) -> Generator[Any, None, None]:
    kind = _kind_of_pipe(url) if is_pipe(url) else recognize(url, [TarFormat("pairs")]).in_one_pass()
    if kind.name == "jsonl":
        yield from stream_records(url, options, listed.get(url))
    else:
        yield from stream_each(url, options, kind, listed.get(url))


def _kind_of_pipe(url: str) -> OffsetFormat:
    """Return the format of a pipe, from the names of files in its command."""
    suffixes = set(_SUFFIX.findall(url))
    if suffixes == {"tar"}:
        return TarFormat("pairs")
    if suffixes == {"jsonl"}:
        return JsonlFormat()
    raise SourceError(
        f"{url}: expected a command that names files in either tar or jsonl, found {sorted(suffixes) or 'none'}; name "
        "the file in the command, such as 'pipe:zcat audio.000000.tar.gz'"
    )


def _count_error(url: str, cuts: str, found: str) -> SourceError:
    return SourceError(f"{url}: expected a record for each cut of {cuts}, found {found}; write the shard again")
