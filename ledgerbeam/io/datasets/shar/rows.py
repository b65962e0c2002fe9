"""A cut of a Shar folder as what its shards hold of it: a row of cuts, and a pair or a row of each field."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

import orjson

from ledgerbeam.errors import RecordError, UsageError
from ledgerbeam.io.json_values import dumps, loads
from ledgerbeam.io.tar.sample import Sample

CUTS = "cuts"
"""Name of the shards that hold the cuts."""

FieldKind: TypeAlias = Literal["tar", "jsonl"]
"""How a field is kept: payloads with a manifest each, or JSON values."""

_MEMBERS = ("recording", "features")  # of a cut itself; every other field belongs below `custom`
_MANIFEST = "json"


def check_fields(fields: Mapping[str, FieldKind], place: str) -> None:
    """Raise UsageError if a field has a name that lhotse could not set on a cut, or is of no known kind."""
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
    """Take a cut apart.

    Args:
        cut: As `SharReader` returns it: its values by name, and each field under its own name, a `tar` field as a
            `Sample` or a mapping of the payload's extension to the payload and `json` to its manifest. A value of a
            `jsonl` field may also stand under `custom`. A field that is not there is missing.
        fields: The fields and their kinds.
        number: Of the cut, for messages.

    Returns:
        The row of the cut, in which the manifest of each payload stands where lhotse has it; and for each field the
        pair, or the row.

    Raises:
        RecordError: The cut has no id, one that lhotse could not match with the names of members, or a field that is
            not of its kind.
    """
    name = cut.get("id") if isinstance(cut, Mapping) else None
    if not isinstance(name, str) or not name or posixpath.normpath(name) != name or name in (".", ".."):
        raise RecordError(
            f"cut {number}: expected an 'id', a relative path in its shortest form, found {name!r:.80}; lhotse finds "
            "payloads by it"
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
        value = row.pop(field, None)
        if value is None:
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
        raise RecordError(f"{place}: expected a payload as bytes by extension and 'json', its manifest, found {found}")
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
