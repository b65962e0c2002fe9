"""Shar as a format: shards that jobs write, folders that are opened as one source, and shards as sources of samples.

A shard is all files `<field>.<number>.jsonl` or `.tar` with one number, as lhotse writes them, or all files
`<name>.<field>.jsonl` or `.tar` with one name, as `ledgerbeam convert --to shar` does. One of the fields is `cuts`.

Each member of a sample becomes a field or a part of the cut:

    sample a: wav, npy, txt, json     with the fields recording=wav, embedding=npy
    cut a:    recording, embedding, one supervision with the text, custom: {"json": ...}
    sample a: json (the cut), recording.wav, recording.json, embedding.npy, embedding.json
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any

import orjson

from ledgerbeam.errors import RecordError, SourceError, SourceNotFoundError, UsageError
from ledgerbeam.io.compression.streams import split_compression
from ledgerbeam.io.conversion import to_sample
from ledgerbeam.io.datasets.shar.payloads import (
    array_manifest,
    array_shape,
    audio_header,
    cut_of_audio,
    recording_manifest,
)
from ledgerbeam.io.datasets.shar.reader import (
    CUTS,
    FieldKind,
    SharReader,
    check_fields,
    find_shar,
    put_field,
    split_cut,
    stream_shar,
)
from ledgerbeam.io.formats.format import Format, OffsetFormat, Reader, ShardFile
from ledgerbeam.io.formats.streamed import decode_raw
from ledgerbeam.io.index.file import index_bytes
from ledgerbeam.io.index.reader import NumberedRecords, RawRecord
from ledgerbeam.io.json_values import dumps, loads
from ledgerbeam.io.lines.jsonl import encode_jsonl
from ledgerbeam.io.listing.pages import list_folder
from ledgerbeam.io.storage.client import Options
from ledgerbeam.io.storage.urls import canonical_url, is_local
from ledgerbeam.io.tar.format import TarFormat
from ledgerbeam.io.tar.sample import KEY, Sample, text_or_json
from ledgerbeam.io.tar.writer import encode_tar


@dataclass(frozen=True)
class SharFormat:
    """Shards of a Shar dataset: fields first, then the cuts, each with its index.

    Attributes:
        fields: Name of each field, and the extension of its member in samples.
    """

    fields: tuple[tuple[str, str], ...] = ()

    @staticmethod
    def parse_fields(option: str | Mapping[str, str] | None) -> tuple[tuple[str, str], ...]:
        """Return pairs (field, extension) of ``NAME=EXTENSION,...`` or a mapping; () for None. UsageError: invalid."""
        if isinstance(option, Mapping):
            option = ",".join(f"{name}={extension}" for name, extension in option.items())
        text = option or ""
        fields: dict[str, str] = {}
        for part in filter(None, text.split(",")):
            name, equals, extension = part.partition("=")
            if not equals or not extension or name in fields or extension in fields.values():
                raise UsageError(
                    f"{text!r}: expected fields such as recording=wav,label=cls, each once, found {part!r}"
                )
            fields[name] = extension.removeprefix(".")
        check_fields(field_kinds(fields), repr(text))
        return tuple(fields.items())

    def parameters(self) -> dict[str, Any]:
        return {"fields": ",".join("=".join(field) for field in self.fields), "cuts": VERSION}

    def encode(self, records: Sequence[Any]) -> list[ShardFile]:
        """Return the files of a shard. Records are samples, or cuts in the form that `SharWriter` takes."""
        fields = dict(self.fields)
        kinds = field_kinds(fields)
        rows: dict[str, list[Any]] = {field: [] for field in (*kinds, CUTS)}
        for number, record in enumerate(records):
            cut = sample_cut(record, fields) if isinstance(record, Sample) else record
            row, parts = split_cut(cut, kinds, number)
            for field, part in {**parts, CUTS: row}.items():
                rows[field].append(part)
        return [
            file for field, values in rows.items() for file in _indexed(f".{field}", kinds.get(field, "jsonl"), values)
        ]


def _indexed(ending: str, kind: str, values: Sequence[Any]) -> list[ShardFile]:
    data, offsets = encode_tar(values, group="pairs", pax=False) if kind == "tar" else encode_jsonl(values)
    ending = f"{ending}.{kind}"
    return [ShardFile(ending, data, len(values)), ShardFile(f"{ending}.idx", index_bytes(offsets), 0)]


class SharFolder:
    """Folders of Shar datasets as sources of `ledgerbeam.open`: a `FolderKind`."""

    def holds(self, url: str, options: Options | None) -> bool:
        """Return whether a folder, without wildcards, has cuts of a Shar dataset."""
        url = canonical_url(url).rstrip("/")
        if is_local(url) and not os.path.isdir(url):
            return False
        try:
            found = (shard_field(file) for page in list_folder(url, options) for file in page.urls)
            return any(shard is not None and shard[1] == CUTS for shard in found)
        except SourceNotFoundError:
            return False

    def open(self, url: str, options: Options | None) -> Reader:
        return SharReader(url, options=options)

    def stream(self, url: str, options: Options | None) -> Callable[[], Iterator[Any]]:
        """List the shards of a dataset. Return a function that reads its cuts in order; see `stream_shar`."""
        return partial(stream_shar, find_shar(url, options, streamed=True), options)

    def files_to_index(self, url: str, options: Options | None) -> list[tuple[str, Format]]:
        pairs = TarFormat("pairs")
        return [(shard, pairs) for shard in chain.from_iterable(find_shar(url, options).values())]


_EXPECTED = "expected shards of Shar datasets, such as cuts.000000.jsonl"

_NUMBERED = re.compile(r"(?P<field>[^./]+)(?P<shard>(?:\.\d+)?)\.(?:jsonl|tar)")
_NAMED = re.compile(r"(?P<shard>.+)\.(?P<field>[^./]+)\.(?:jsonl|tar)")


def shard_field(url: str) -> tuple[str, str] | None:
    """Return the part of a URL that all files of a shard share, and the field; None if no shard has such a file."""
    folder, _, name = split_compression(url).url.rpartition("/")
    match = _NUMBERED.fullmatch(name) or _NAMED.fullmatch(name)
    return None if match is None else (f"{folder}/{match['shard']}", match["field"])


def require_shard(url: str) -> None:
    """Raise SourceNotFoundError if a URL does not have the name of a file of a shard."""
    if shard_field(url) is None:
        raise SourceNotFoundError(f"{url}: {_EXPECTED}, found another name")


def group_shards(urls: Iterable[str]) -> list[list[str]]:
    """Group files by shard: its cuts, then its fields by name. Shards are in the order of the names of their cuts.

    Files with other names, such as indexes, are skipped. If a file is present plain and compressed, the plain one is
    used. SourceError: files have no cuts, or a shard lacks a field that other shards of its folder have.
    """
    shards: dict[str, dict[str, str]] = {}
    for url in urls:
        if (found := shard_field(url)) is not None:
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
                f"{first}: expected cuts beside this file, with the same name or number, found none; write the cuts "
                "again, or move this file out of the folder"
            )
        folder = first.rpartition("/")[0]
        if differing := sorted(known.setdefault(folder, set(fields)) ^ set(fields)):
            raise SourceError(
                f"{fields[CUTS]}: expected the same fields in all shards of its folder, found some with and some "
                f"without {differing[0]!r}; write the missing files again"
            )
    ordered = sorted(shards.values(), key=lambda fields: fields[CUTS])
    return [[fields[CUTS], *(fields[name] for name in sorted(fields) if name != CUTS)] for fields in ordered]


class HeldRecords:
    """The records of a compressed file, in memory: such a file is read as a whole."""

    def __init__(self, url: str, kind: OffsetFormat, records: list[RawRecord]) -> None:
        self.url = url
        self._format = kind
        self._records = records

    def __len__(self) -> int:
        return len(self._records)

    def read_many(self, indices: list[int], /) -> list[Any]:
        return [decode_raw(self._format, self._records[index]) for index in indices]

    def read_raw(self, start: int, stop: int, /) -> list[RawRecord]:
        return self._records[start:stop]

    def close(self) -> None:
        """Do nothing: no file is open."""


class SharSamples(NumberedRecords[Sample]):
    """Random access to the cuts of one shard with their fields, as samples: see `cut_sample`."""

    def __init__(self, cuts: Reader | HeldRecords, fields: Mapping[str, Reader | HeldRecords]) -> None:
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
        """Return the lines of the cuts of a span; raises SourceError if a line is blank."""
        cuts = self._cuts.read_raw(start, stop)
        if len(cuts) != stop - start:
            raise SourceError(
                f"{self.url}: expected a cut in each of the lines [{start}, {stop}), found blank lines: "
                f"{stop - start - len(cuts)}; delete them and write the fields again"
            )
        return cuts

    def close(self) -> None:
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


VERSION = 1  # version of the mapping. A job that used another version cannot be resumed.
_AUDIO = frozenset({"aac", "flac", "m4a", "mp3", "ogg", "opus", "wav"})
_ARRAYS = frozenset({"llc", "npy"})
_TEXT = "txt"


def field_kinds(fields: Mapping[str, str]) -> dict[str, FieldKind]:
    """Return the kinds of fields by their extensions: audio and arrays are payloads, other fields are JSON values."""
    return {name: "tar" if _kind(extension) in _AUDIO | _ARRAYS else "jsonl" for name, extension in fields.items()}


def sample_cut(sample: Sample, fields: Mapping[str, str]) -> dict[str, Any]:
    """Make a cut of a sample, in the form that `SharWriter` takes. `fields` maps each field to a member's extension.

    A member `json` with a cut (an object with a `type` such as `MonoCut`) is the cut. Otherwise a new cut has the
    length of its first recording, and the key as ID; then a member `txt` that is not a field becomes its supervision.
    Other members that are not fields are put under `custom` if they are text or JSON.

    The manifest of a payload is a member of the sample: the payload's extension with its last part replaced by `json`
    (`x.wav`: `x.json`), or the field's name (`recording.json`). Otherwise it is made from the header of WAV, FLAC or
    npy.

    Raises:
        RecordError: A payload has neither a manifest nor a header with length and rate, a member is neither a field nor
            text nor JSON, or the length of the cut is unknown.
    """
    left = dict(sample)
    found: dict[str, Any] = {}
    duration: float | None = None
    channels: list[int] = [0]
    for name, extension in fields.items():
        if (data := left.pop(extension, None)) is None:
            continue
        if _kind(extension) not in _AUDIO | _ARRAYS:
            found[name] = text_or_json(extension, data)
            continue
        manifest = _manifest(sample.key, name, extension, data, left)
        found[name] = {_kind(extension): data, "json": manifest}
        if duration is None and _kind(extension) in _AUDIO:
            duration, channels = manifest.get("duration"), manifest.get("channel_ids") or [0]
    if (cut := _stored_cut(sample.key, left)) is None:
        if not isinstance(duration, int | float):
            raise RecordError(
                f"{sample.key!r}: a cut needs a length, found {', '.join(sample)}; name its audio with --fields "
                "recording=EXTENSION, or provide the cut as a member 'json'"
            )
        cut = cut_of_audio(sample.key, duration, channels)
        if _TEXT in left and isinstance(text := text_or_json(_TEXT, left[_TEXT]), str):
            said = {"id": sample.key, "recording_id": sample.key, "start": 0, "duration": duration}
            cut["supervisions"] = [said | {"channel": cut["channel"], "text": text}]
            del left[_TEXT]
    if custom := {extension: _custom(sample.key, extension, data) for extension, data in left.items()}:
        cut["custom"] = {**(cut.get("custom") or {}), **custom}
    return cut | found


def cut_sample(cut: Mapping[str, Any], fields: Mapping[str, Any], place: str) -> Sample:
    """Make a sample of a cut. `sample_cut` converts it back, with fields such as `recording=recording.wav`.

    The cut without its fields becomes the member `json`. A field that is a `Sample` of payload and manifest becomes
    members `recording.wav` and `recording.json`, any other value a member `label.json`.
    """
    if not isinstance(cut, Mapping) or not isinstance(cut.get("id"), str):
        raise RecordError(f"{place}: expected a cut, an object with an 'id', found {cut!r:.80}")
    members = {"json": dumps(cut)}
    for field, value in fields.items():
        if isinstance(value, Sample):
            members |= {f"{field}.{extension}": data for extension, data in value.items()}
        else:
            members[f"{field}.json"] = dumps(value)
    return Sample(cut["id"], members)


def _kind(extension: str) -> str:
    return extension.rpartition(".")[2].lower()


def _manifest(key: str, name: str, extension: str, data: bytes, left: dict[str, bytes]) -> dict[str, Any]:
    stem = extension.rpartition(".")[0]
    given = next((beside for beside in (f"{name}.json", stem and f"{stem}.json") if beside in left), None)
    if given is not None:
        manifest = _loads(key, given, left.pop(given))
        if not isinstance(manifest, dict):
            raise RecordError(f"{key!r}: expected a manifest under {given!r}, found {type(manifest).__name__}")
        return manifest
    try:
        if _kind(extension) in _ARRAYS:
            return array_manifest(array_shape(data, extension))
        return recording_manifest(key, audio_header(data, extension))
    except RecordError as error:
        raise RecordError(f"{key!r}: {error}; provide its manifest as a member {name + '.json'!r}") from error


def _stored_cut(key: str, left: dict[str, bytes]) -> dict[str, Any] | None:
    cut = _loads(key, "json", left["json"]) if "json" in left else None
    if not isinstance(cut, dict) or not str(cut.get("type", "")).endswith("Cut"):
        return None
    if cut.get("id") != key:
        raise RecordError(f"{key!r}: expected the cut under 'json' to have this id, found {cut.get('id')!r:.80}")
    del left["json"]
    return cut


def _loads(key: str, extension: str, data: bytes) -> Any:
    try:
        return loads(data)
    except orjson.JSONDecodeError as error:
        raise RecordError(f"{key!r}: expected JSON under {extension!r}: {error}") from error


def _custom(key: str, extension: str, data: bytes) -> Any:
    value = text_or_json(extension, data)
    if isinstance(value, dict) and value.keys() == {"__base64__"}:
        raise RecordError(
            f"{key!r}: the member {extension!r} is neither text nor JSON, so it cannot be a part of a cut; make it a "
            f"field, with --fields NAME={extension}"
        )
    return value


def to_cut(record: Any) -> list[Any]:
    """Return a list of one cut with an `id`, or of one sample for `sample_cut`. RecordError for other records."""
    if isinstance(record, Mapping) and not isinstance(record, Sample) and KEY not in record:
        if isinstance(record.get("id"), str):
            return [record]
    else:
        found = to_sample(record)[0]
        if isinstance(found, Sample):
            return [found]
    raise RecordError(f"expected a cut, an object with an 'id', or a sample with a key, found {record!r:.80}")
