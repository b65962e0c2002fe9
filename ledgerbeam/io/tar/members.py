"""Convert the content of a member of a sample to a JSON value, and back.

The content is parsed if the extension ends with `json`, it is a string if the extension is in `TEXT_EXTENSIONS` and the
bytes are UTF-8, and `{"__base64__": "..."}` otherwise.
"""

from __future__ import annotations

import base64
import binascii
from typing import Any

from ledgerbeam.errors import RecordError
from ledgerbeam.io.json_values import BASE64, dumps, loads

TEXT_EXTENSIONS = frozenset({"cls", "csv", "html", "md", "srt", "text", "transcript", "tsv", "txt", "vtt", "xml"})
"""Last parts of the extensions whose members become strings."""


def text_or_json(extension: str, data: bytes) -> Any:
    """Return the content of a member as a JSON value; see the module."""
    kind = extension.rpartition(".")[2].lower()
    try:
        if kind == "json":
            value = loads(data)
            if not (isinstance(value, dict) and BASE64 in value):  # would be read back as bytes
                return value
        elif kind in TEXT_EXTENSIONS:
            return data.decode()
    except ValueError:
        pass  # not what the extension says: keep the bytes
    return {BASE64: base64.b64encode(data).decode()}


def text_or_bytes(extension: str, data: bytes) -> str | bytes:
    """Return the content of a member as a value of a column: text if the extension says so, else bytes."""
    if extension.rpartition(".")[2].lower() in TEXT_EXTENSIONS:
        try:
            return data.decode()
        except UnicodeDecodeError:
            pass
    return data


def member_bytes(extension: str, value: Any) -> bytes:
    """Return the content of a member for a value that `text_or_json` or `text_or_bytes` returned.

    Raises:
        RecordError: A member with this extension cannot have such a value.
    """
    if isinstance(value, bytes):
        return value
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
        RecordError: It cannot be written as JSON.
    """
    try:
        return dumps(value)
    except TypeError as error:
        raise RecordError(
            f"a {type(value).__name__} cannot be written as JSON: {error}; change such records, or leave them out, by "
            "a function (ledgerbeam map)"
        ) from error
