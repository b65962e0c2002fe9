"""The layout of a Megatron index: header, dtype codes and the offset of each array.

    offset 0   9 bytes  magic `MMIDIDX` and two NULs
           9   u64      version, 1
          17   u8       dtype code of the tokens
          18   u64      N, sequences
          26   u64      D, entries of the document array: one more than documents
          34   i32[N]   length of each sequence in tokens
     34 + 4N   i64[N]   offset of each sequence in the `.bin`, in bytes
    34 + 12N   i64[D]   document j is the sequences [d[j], d[j + 1])
    34 + 12N + 8D i8[N] mode of each sequence; only in multimodal datasets, recognized by the file size

All numbers are little-endian, nothing is aligned. Source: `megatron.core.datasets.indexed_dataset` (megatron-core
0.16.1). fairseq, the origin of the format, has the same magic and version, but neither D nor documents: its arrays
start at 26. The size of the file distinguishes the two layouts; it cannot fit both.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

from ledgerbeam._base.lazy import DTypeLike, np
from ledgerbeam.errors import IndexMismatchError, UsageError
from ledgerbeam.io.storage.urls import canonical_url

HEAD_BYTES = 34  # largest size of a header in bytes
_MODE_BYTES = 1

MAGIC = b"MMIDIDX\0\0"
_OLD_MAGIC = b"TNTIDX\0\0"
_VERSION = 1
_HEAD = struct.Struct("<9sQBQ")
_COUNT = struct.Struct("<Q")
_CODES = {1: "u1", 2: "i1", 3: "<i2", 4: "<i4", 5: "<i8", 6: "<f8", 7: "<f4", 8: "<u2"}
_FAIRSEQ_CODES = {**_CODES, 7: "<f8", 9: "<u4", 10: "<u8"}
_SMALL_VOCABULARY = 65_500


@dataclass(frozen=True, slots=True)
class Layout:
    """The layout of an index, from its header and size.

    Attributes:
        dtype: Dtype of the tokens.
        sequences: Number of sequences, N.
        entries: Length of the document array, D; 0 for fairseq, which has none.
        modes: Whether each sequence has a mode.
        fairseq: Whether the arrays start at offset 26, as in fairseq.
    """

    dtype: np.dtype[Any]
    sequences: int
    entries: int
    modes: bool = False
    fairseq: bool = False

    @property
    def documents(self) -> int:
        """Number of documents. In fairseq each sequence is a document."""
        return self.sequences if self.fairseq else self.entries - 1

    @property
    def lengths_at(self) -> int:
        """Offset of the lengths in the index, in bytes."""
        return _HEAD.size if self.fairseq else HEAD_BYTES

    @property
    def pointers_at(self) -> int:
        """Offset of the pointers in the index, in bytes."""
        return self.lengths_at + 4 * self.sequences

    @property
    def documents_at(self) -> int:
        """Offset of the document array in the index, in bytes."""
        return self.pointers_at + 8 * self.sequences

    @property
    def modes_at(self) -> int:
        """Offset of the modes in the index, in bytes."""
        return self.documents_at + 8 * self.entries

    @property
    def size(self) -> int:
        """Size of the whole index in bytes."""
        return self.modes_at + _MODE_BYTES * self.sequences * self.modes

    def header(self) -> bytes:
        """Return the first bytes of a Megatron index of this layout."""
        return _HEAD.pack(MAGIC, _VERSION, dtype_code(self.dtype), self.sequences) + _COUNT.pack(self.entries)


def dtype_code(dtype: DTypeLike) -> int:
    """Return the number that stands for a dtype in the header. UsageError if the format has none for this dtype."""
    try:
        wanted = np.dtype(dtype).newbyteorder("<")
    except (SyntaxError, TypeError, ValueError) as error:  # numpy parses text as a description of fields
        raise UsageError(f"{dtype!r} is not a dtype; expected one of {_names()}") from error
    for code, name in _CODES.items():
        if np.dtype(name) == wanted:
            return code
    raise UsageError(f"Megatron datasets cannot hold {wanted.name}; expected one of {_names()}")


def optimal_dtype(vocabulary: int | None) -> np.dtype[Any]:
    """Return Megatron's dtype of tokens: uint16 for a vocabulary below 65,500, else int32, also for None."""
    return np.dtype("<u2" if vocabulary is not None and vocabulary < _SMALL_VOCABULARY else "<i4")


def dataset_prefix(url: str) -> str:
    """Return the canonical prefix of the names of a dataset's two files.

    The URL is the prefix, or the name of one of the files. For a prefix that itself ends with `.bin` or `.idx`, pass
    the name of a file.
    """
    return canonical_url(url[:-4] if url.endswith((".bin", ".idx")) else url)


def parse_layout(head: bytes, size: int, url: str, *, trailing: bool = False) -> Layout:
    """Parse a header from the first `HEAD_BYTES` of the index, and check it against the size of the file.

    With `trailing`, data may follow the arrays, as Megatron allows.

    Raises:
        IndexMismatchError: Another format or version, an unknown dtype, or counts that do not match the size.
    """
    if head.startswith(_OLD_MAGIC):
        raise _layout_error(
            url, "is a TNTIDX index, an older format of fairseq; expected MMIDIDX. Convert it with fairseq"
        )
    if len(head) < _HEAD.size:
        raise _layout_error(url, f"is not a Megatron index: expected at least {_HEAD.size} bytes, found {size}")
    magic, version, code, sequences = _HEAD.unpack_from(head)
    if magic != MAGIC:
        raise _layout_error(url, f"is not a Megatron index: expected {MAGIC!r} at its start, found {magic!r}")
    if version != _VERSION:
        raise _layout_error(url, f"has version {version}, expected {_VERSION}")
    if size == _HEAD.size + 12 * sequences:
        return Layout(_dtype(_FAIRSEQ_CODES, code, url), sequences, 0, fairseq=True)
    if len(head) < HEAD_BYTES:
        raise _layout_error(url, f"is cut off: expected at least {HEAD_BYTES} bytes, found {size}")
    (entries,) = _COUNT.unpack_from(head, _HEAD.size)
    dtype = _dtype(_CODES, code, url)
    plain = Layout(dtype, sequences, entries)
    rest = size - plain.size
    if rest not in (0, sequences) and not (trailing and rest > 0):
        raise _layout_error(
            url,
            f"has {sequences} sequences and {entries} document entries: expected {plain.size} bytes, or "
            f"{plain.size + sequences} with modes, found {size}",
        )
    if entries == 0:
        raise _layout_error(url, "has no document array; expected at least the entry 0")
    return Layout(dtype, sequences, entries, modes=0 < sequences <= rest)


def _dtype(codes: dict[int, str], code: int, url: str) -> np.dtype[Any]:
    if code not in codes:
        raise _layout_error(url, f"has dtype code {code}; expected one of {', '.join(map(str, codes))}")
    return np.dtype(codes[code])


def _names() -> str:
    return ", ".join(np.dtype(name).name for name in _CODES.values())


def _layout_error(url: str, what: str) -> IndexMismatchError:
    return IndexMismatchError(f"{url} {what}; copy or write the dataset again")
