"""Text, tables of text, messages, pickles and video as members of samples."""

from __future__ import annotations

import csv
import io
import pickle
from types import ModuleType
from typing import Any

from ledgerbeam._base.extras import install_command
from ledgerbeam.errors import UsageError


def encode_text(value: Any) -> bytes:
    """Encode a text as UTF-8."""
    if not isinstance(value, str):
        raise ValueError(f"expected a text, found a {type(value).__name__}")
    return value.encode()


def decode_text(data: bytes) -> str:
    """Decode UTF-8, nothing of it changed."""
    return data.decode("utf-8")


def encode_csv(value: Any) -> bytes:
    """Encode rows of texts, quoted where they must be, with a line feed after each.

    Raises:
        ValueError: A row is empty, or something in one is no text: it would come back as one.
    """
    rows = list(value)
    for number, row in enumerate(rows):
        if not isinstance(row, list | tuple) or not row or not all(isinstance(cell, str) for cell in row):
            raise ValueError(f"expected rows of texts, found {row!r:.80} as row {number}; make texts of other values")
    target = io.StringIO(newline="")
    csv.writer(target, lineterminator="\n").writerows(rows)
    return target.getvalue().encode()


def decode_csv(data: bytes) -> list[list[str]]:
    """Decode the rows of a CSV file, the first one as the others; blank lines are left out."""
    return [row for row in csv.reader(io.StringIO(data.decode("utf-8"), newline=""), strict=True) if row]


def encode_msgpack(value: Any) -> bytes:
    """Encode what MessagePack holds: JSON and bytes."""
    data: bytes = _msgpack().packb(value, use_bin_type=True)
    return data


def decode_msgpack(data: bytes) -> Any:
    """Decode MessagePack; keys may be any that Python takes, texts are UTF-8."""
    return _msgpack().unpackb(data, raw=False, strict_map_key=False)


def encode_pickle(value: Any) -> bytes:
    """Pickle a value; the bytes do not depend on the order of a set, which changes with the hash seed of the process.

    Raises:
        RecursionError: A set has an element that contains the set.
    """
    data = pickle.dumps(value)
    if not any(code in data for code in _SET_CODES):
        return data
    target = io.BytesIO()
    _SortedSets(target).dump(value)
    return target.getvalue()


_SET_CODES = (b"\x8f", b"\x91")  # what a pickle with a set or a frozenset contains; other pickles may contain them, too


class _SortedSets(pickle._Pickler):  # noqa: SLF001 - the compiled one does not let a subclass write sets
    """Writes the elements of sets in the order of their own pickles."""

    def _save_set(self, value: Any) -> None:
        self.save_reduce(type(value), (sorted(value, key=encode_pickle),), obj=value)  # type: ignore[attr-defined]

    dispatch = pickle._Pickler.dispatch | {set: _save_set, frozenset: _save_set}  # type: ignore[assignment]  # noqa: SLF001


def encode_mp4(value: Any) -> bytes:
    """Return the bytes of a video, once they begin as one."""
    if not isinstance(value, bytes | bytearray | memoryview):
        raise ValueError(f"expected the bytes of an MP4 file, found a {type(value).__name__}")
    return decode_mp4(bytes(value))


def decode_mp4(data: bytes) -> bytes:
    """Return the bytes of a video as they are: what decodes video takes them.

    Raises:
        ValueError: They do not begin as an MP4 file.
    """
    if data[4:8] != b"ftyp":
        raise ValueError(f"expected the header of an MP4 file, found {data[:12]!r}")
    return data


def _msgpack() -> ModuleType:
    try:
        import msgpack  # type: ignore[import-not-found,import-untyped,unused-ignore]  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise UsageError(f"MessagePack needs msgpack: {install_command('msgpack')}") from error
    module: ModuleType = msgpack
    return module
