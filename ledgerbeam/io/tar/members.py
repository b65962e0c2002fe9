"""What a member of a sample holds as a JSON value, and back.

A member is a JSON value if its extension ends with `json`, a string if it is text in UTF-8 under one of
`TEXT_EXTENSIONS`, and `{"__base64__": "..."}` otherwise.
"""

from __future__ import annotations

import base64
import binascii
from typing import Any

from ledgerbeam.errors import RecordError
from ledgerbeam.io.json_values import BASE64, dumps, loads

__all__ = ["TEXT_EXTENSIONS", "json_bytes", "member_bytes", "text_or_json"]

TEXT_EXTENSIONS = frozenset({"cls", "csv", "html", "md", "srt", "text", "transcript", "tsv", "txt", "vtt", "xml"})
"""Last parts of extensions whose members become strings."""


def text_or_json(extension: str, data: bytes) -> Any:
    """Return the content of a member as a JSON value: parsed, as text, or as `{"__base64__": ...}`; see above."""
    kind = extension.rpartition(".")[2].lower()
    try:
        if kind == "json":
            value = loads(data)
            if not (isinstance(value, dict) and BASE64 in value):  # which would be read back as bytes
                return value
        elif kind in TEXT_EXTENSIONS:
            return data.decode()
    except ValueError:
        pass  # not what its name says: kept as bytes
    return {BASE64: base64.b64encode(data).decode()}


def member_bytes(extension: str, value: Any) -> bytes:
    """Return the content of a member of a JSON value as `text_or_json` makes it.

    Raises:
        RecordError: No member under this extension has such a value.
    """
    if isinstance(value, dict) and value.keys() == {BASE64}:
        try:
            return base64.b64decode(value[BASE64], validate=True)
        except (binascii.Error, TypeError, ValueError) as error:
            raise RecordError(f"expected base64 under {extension!r}: {error}") from error
    if extension.rpartition(".")[2].lower() == "json":
        return json_bytes(value)
    if isinstance(value, str):
        return value.encode()
    raise RecordError(
        f"expected text or {{{BASE64!r}: ...}} under {extension!r} of a record with a '__key__', found "
        f"{type(value).__name__}; only members whose extension ends with json hold other values"
    )


def json_bytes(value: Any) -> bytes:
    """Return a value as JSON text.

    Raises:
        RecordError: JSON cannot hold it.
    """
    try:
        return dumps(value)
    except TypeError as error:
        raise RecordError(f"a {type(value).__name__} cannot be written as JSON: {error}") from error
