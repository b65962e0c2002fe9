"""How tokens and index entries of a Megatron dataset are written."""

from __future__ import annotations

from array import array
from typing import Any, BinaryIO, TypeAlias

from numpy.typing import ArrayLike, NDArray

from ledgerbeam._base.late_numpy import np
from ledgerbeam.io.datasets.megatron.index import BLOCK
from ledgerbeam.io.datasets.megatron.layout import Layout

TokensLike: TypeAlias = ArrayLike
"""Tokens in one dimension: a list of ints, an array, a tensor on the CPU."""

Values: TypeAlias = Any
"""Encoded tokens: an `array` or an `ndarray`, which both have a length and are buffers."""

_TYPECODES = {"|u1": "B", "|i1": "b", "<i2": "h", "<i4": "i", "<i8": "q", "<u2": "H"}


class TokenEncoder:
    """Turns tokens into one dtype and refuses what does not fit it, where NumPy would wrap silently.

    Args:
        dtype: Of the dataset.
    """

    def __init__(self, dtype: np.dtype[Any]) -> None:
        self._dtype = dtype
        self._integers = dtype.kind in "iu"
        self._typecode = _TYPECODES.get(dtype.str)
        self._range = (int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)) if self._integers else (0, 0)

    def encode(self, tokens: TokensLike) -> Values:
        """Return tokens as contiguous values of the dtype.

        Raises:
            ValueError: They do not fit it, or have not one dimension.
        """
        dtype = self._dtype
        if type(tokens) is np.ndarray and tokens.dtype == dtype and tokens.ndim == 1 and tokens.flags.c_contiguous:
            return tokens
        if isinstance(tokens, (list, tuple)) and self._typecode:
            try:
                return array(self._typecode, tokens)  # checks the range of each in the same pass
            except OverflowError as error:
                raise ValueError(self._expected(f"tokens from {min(tokens)} to {max(tokens)}")) from error
            except TypeError as error:
                raise ValueError(self._expected(str(error))) from error
        values = np.asarray(tokens)
        if values.ndim != 1:
            raise ValueError(f"expected tokens in one dimension, found the shape {values.shape}")
        if values.size and values.dtype.kind not in ("iub" if self._integers else "iubf"):
            raise ValueError(self._expected(f"{values.dtype} values"))
        if self._integers:
            self._check_range(values)
            return np.ascontiguousarray(values, dtype)
        try:
            with np.errstate(over="raise"):
                return np.ascontiguousarray(values, dtype)
        except FloatingPointError as error:
            raise ValueError(self._expected(f"values up to {np.abs(values).max()}")) from error

    def _check_range(self, values: NDArray[Any]) -> None:
        if not values.size or np.can_cast(values.dtype, self._dtype):
            return
        least, most = int(np.minimum.reduce(values)), int(np.maximum.reduce(values))
        if least < self._range[0] or most > self._range[1]:
            raise ValueError(self._expected(f"tokens from {least} to {most}"))

    def _expected(self, found: str) -> str:
        limits = f", from {self._range[0]} to {self._range[1]}" if self._integers else ""
        return f"expected tokens that fit {self._dtype.name}{limits}, found {found}"


class IndexWriter:
    """Writes an index a block at a time: each array goes to its place, so none has to be held.

    Args:
        file: Empty, and able to seek.
        layout: What the index will hold. All of it must be added.
    """

    def __init__(self, file: BinaryIO, layout: Layout) -> None:
        self._file = file
        self._layout = layout
        self._sequences = 0
        self._entries = 0
        self._place = 0
        file.write(layout.header())
        self.add_documents(np.zeros(1, np.int64))

    def add_documents(self, ends: NDArray[np.int64]) -> None:
        """Add where the next documents end, as numbers of sequences."""
        self._write(self._layout.documents_at + 8 * self._entries, ends, "<i8")
        self._entries += len(ends)

    def add_sequences(self, lengths: NDArray[np.int32], modes: NDArray[np.int8] | None = None) -> None:
        """Add the next sequences.

        Args:
            lengths: In tokens.
            modes: As many, if the layout has modes.
        """
        layout, width = self._layout, self._layout.dtype.itemsize
        for start in range(0, len(lengths), BLOCK):
            part = lengths[start : start + BLOCK]
            pointers = np.empty(len(part) + 1, "<i8")
            pointers[0] = 0
            np.cumsum(part, out=pointers[1:])
            pointers *= width
            pointers += self._place
            self._write(layout.lengths_at + 4 * self._sequences, part, "<i4")
            self._write(layout.pointers_at + 8 * self._sequences, pointers[:-1], "<i8")
            if modes is not None:
                self._write(layout.modes_at + self._sequences, modes[start : start + BLOCK], "i1")
            self._sequences += len(part)
            self._place = int(pointers[-1])

    def _write(self, at: int, values: NDArray[Any], dtype: str) -> None:
        self._file.seek(at)
        self._file.write(np.ascontiguousarray(values, dtype).data)
