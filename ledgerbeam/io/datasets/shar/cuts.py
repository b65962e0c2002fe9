"""Conversions between samples and cuts: each member of a sample becomes a field of a Shar folder or a part of the cut.

sample a: wav, npy, txt, json     with the fields recording=wav, embedding=npy
cut a:    recording, embedding, one supervision with the text, custom: {"json": ...}
sample a: json (the cut), recording.wav, recording.json, embedding.npy, embedding.json
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from ledgerbeam.errors import RecordError, UsageError
from ledgerbeam.io.conversion import to_sample
from ledgerbeam.io.datasets.shar.payloads import (
    array_manifest,
    array_shape,
    audio_header,
    cut_of_audio,
    recording_manifest,
)
from ledgerbeam.io.datasets.shar.reader import FieldKind, check_fields
from ledgerbeam.io.json_values import dumps, loads
from ledgerbeam.io.tar.sample import KEY, Sample, text_or_json

VERSION = 1
"""Version of the mapping. A job that used another version cannot be resumed."""

_AUDIO = frozenset({"aac", "flac", "m4a", "mp3", "ogg", "opus", "wav"})
_ARRAYS = frozenset({"llc", "npy"})
_TEXT = "txt"


def parse_fields(text: str) -> dict[str, str]:
    """Parse fields such as `recording=wav,label=cls`: name and extension of each.

    Raises:
        UsageError: The text is not such a list, has a field twice, or has a name that a field cannot have.
    """
    fields: dict[str, str] = {}
    for part in filter(None, text.split(",")):
        name, equals, extension = part.partition("=")
        if not equals or not extension or name in fields or extension in fields.values():
            raise UsageError(f"{text!r}: expected fields such as recording=wav,label=cls, each once, found {part!r}")
        fields[name] = extension.removeprefix(".")
    check_fields(field_kinds(fields), repr(text))
    return fields


def field_kinds(fields: Mapping[str, str]) -> dict[str, FieldKind]:
    """Return the kinds of fields by their extensions: audio and arrays are payloads, other fields are JSON values."""
    return {name: "tar" if _kind(extension) in _AUDIO | _ARRAYS else "jsonl" for name, extension in fields.items()}


def sample_cut(sample: Sample, fields: Mapping[str, str]) -> dict[str, Any]:
    """Make a cut of a sample, in the form that `SharWriter` takes.

    A member `json` with a cut (an object with a `type` such as `MonoCut`) is the cut. Otherwise a new cut has the
    length of its first recording. Of the members that are not fields, `txt` becomes the supervision. Other members are
    put under `custom` if they are text or JSON.

    The manifest of a payload is a member of the sample: the payload's extension with its last part replaced by `json`
    (`x.wav`: `x.json`), or the field's name (`recording.json`). Otherwise it is made from the header of WAV, FLAC or
    npy.

    Args:
        sample: The sample; its key becomes the ID.
        fields: For each field the extension of its member.

    Raises:
        RecordError: A payload has neither a manifest nor a header with length and rate, a member is neither a field nor
            text nor JSON, or the length of the cut is unknown.
    """
    left = dict(sample)
    found: dict[str, Any] = {}
    duration: float | None = None
    channels: list[int] = [0]
    for name, extension in fields.items():
        data = left.pop(extension, None)
        if data is None:
            continue
        if _kind(extension) not in _AUDIO | _ARRAYS:
            found[name] = text_or_json(extension, data)
            continue
        manifest = _manifest(sample.key, name, extension, data, left)
        found[name] = {_kind(extension): data, "json": manifest}
        if duration is None and _kind(extension) in _AUDIO:
            duration, channels = manifest.get("duration"), manifest.get("channel_ids") or [0]
    cut = _stored_cut(sample.key, left)
    if cut is None:
        if not isinstance(duration, int | float):
            raise RecordError(
                f"{sample.key!r}: a cut needs a length; name its audio with --fields recording=EXTENSION, or provide "
                f"the cut as its member 'json'; found {', '.join(sample)}"
            )
        cut = cut_of_audio(sample.key, duration, channels)
        if _TEXT in left and isinstance(text := text_or_json(_TEXT, left[_TEXT]), str):
            said = {"id": sample.key, "recording_id": sample.key, "start": 0, "duration": duration}
            cut["supervisions"] = [said | {"channel": cut["channel"], "text": text}]
            del left[_TEXT]
    custom = {extension: _custom(sample.key, extension, data) for extension, data in left.items()}
    if custom:
        cut["custom"] = {**(cut.get("custom") or {}), **custom}
    return cut | found


def cut_sample(cut: Mapping[str, Any], fields: Mapping[str, Any], place: str) -> Sample:
    """Make a sample of a cut. `sample_cut` converts it back, with fields such as `recording=recording.wav`.

    Args:
        cut: The cut without its fields; it becomes the member `json`.
        fields: Values of its fields. A `Sample` of payload and manifest becomes members `recording.wav` and
            `recording.json`, any other value a member `label.json`.
        place: Location of the cut, for the error.

    Raises:
        RecordError: The cut has no ID.
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
        header = audio_header(data, extension)
    except RecordError as error:
        raise RecordError(f"{key!r}: {error} Or provide its manifest as a member {name + '.json'!r}") from error
    return recording_manifest(key, header.sampling_rate, header.channels, header.samples)


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
            f"{key!r}: the member {extension!r} is neither text nor JSON, and so no part of a cut; make it a field, "
            f"with --fields NAME={extension}"
        )
    return value


def to_cut(record: Any) -> list[Any]:
    """Return a record as a cut, or as a sample that becomes a cut.

    Raises:
        RecordError: The record is neither a sample nor an object with an `id`.
    """
    if isinstance(record, Mapping) and not isinstance(record, Sample) and KEY not in record:
        if isinstance(record.get("id"), str):
            return [record]
    else:
        found = to_sample(record)[0]
        if isinstance(found, Sample):
            return [found]
    raise RecordError(f"expected a cut, an object with an 'id', or a sample with a key, found {record!r:.80}")
