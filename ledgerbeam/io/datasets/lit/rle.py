"""LIT's run-length code for integer arrays of any shape.

Byte 0: high nibble `2 * log2(bytes of the values) + signed`, low nibble `log2(bytes of the runs)`. Bytes 1-8 and 9-16:
lengths in bytes of shape and table, big-endian. Then the shape, u64 each; the table, the distinct values, ascending;
two rows of equal length in the dtype of the runs: numbers of table entries, and their repetitions in C order. All but
the two lengths is little-endian. This is not the RLE of COCO.

Source: `litdata/encoders.py` of the published package.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

MOST_VALUES = 2**28
"""Default limit of decoded values, since a few bytes can claim any number of values."""

_HEAD = 17


def encode_rle(array: NDArray[Any]) -> bytes:
    """Encode an array.

    Args:
        array: A non-empty array of integers, of any shape.

    Raises:
        ValueError: The array is empty or has other values than integers.
    """
    array = np.asarray(array)
    if array.dtype.kind not in "iu" or not array.size:
        raise ValueError(f"expected an array of integers that is not empty, found {array.dtype} of shape {array.shape}")
    dtype = array.dtype.newbyteorder("<")
    flat = array.astype(dtype).ravel()
    starts = np.flatnonzero(np.concatenate(([True], flat[1:] != flat[:-1])))
    runs = np.diff(starts, append=len(flat))
    table, numbers = np.unique(flat[starts], return_inverse=True)
    code = np.min_scalar_type(max(len(table), int(runs.max()))).newbyteorder("<")
    signed = int(dtype.kind == "i")
    first = ((_log2(dtype) << 1 | signed) << 4) | _log2(code)
    shape = np.array(array.shape, "<u8").tobytes()
    values = table.tobytes()
    head = bytes([first]) + len(shape).to_bytes(8, "big") + len(values).to_bytes(8, "big")
    return head + shape + values + np.stack((numbers.ravel(), runs)).astype(code).tobytes()


def _log2(dtype: np.dtype[Any]) -> int:
    return dtype.itemsize.bit_length() - 1


def decode_rle(data: bytes, most: int = MOST_VALUES) -> NDArray[Any]:
    """Decode an array.

    Args:
        data: Bytes of `encode_rle` or the published encoder.
        most: Limit of values; larger arrays are refused.

    Returns:
        The array, in its original dtype and shape.

    Raises:
        ValueError: The bytes are not such a code, are cut off or inconsistent, or have more than `most` values.
    """
    if len(data) < _HEAD:
        raise ValueError(f"expected at least {_HEAD} bytes, found {len(data)}")
    values, code = data[0] >> 4, data[0] & 15
    if values > 7 or code > 3:
        raise ValueError(f"expected a first byte that names two dtypes, found {data[0]:#04x}")
    dtype = np.dtype(f"<{'iu'[not values & 1]}{1 << (values >> 1)}")
    runs_dtype = np.dtype(f"<u{1 << code}")
    table_at = _HEAD + int.from_bytes(data[1:9], "big")
    runs_at = table_at + int.from_bytes(data[9:17], "big")
    if runs_at > len(data):
        raise ValueError(f"expected a shape and a table that end by byte {len(data)}, found {runs_at}")
    shape = _array(data[_HEAD:table_at], np.dtype("<u8"), "shape").tolist()
    table = _array(data[table_at:runs_at], dtype, "table")
    rows = _array(data[runs_at:], runs_dtype, "runs")
    if len(rows) % 2 or len(shape) > 32:
        raise ValueError(f"expected pairs of numbers and at most 32 dimensions, found {len(rows)} and {len(shape)}")
    numbers, counts = rows.reshape(2, -1)
    size = math.prod(shape)
    if size > most:
        raise ValueError(f"expected at most {most} values, found the shape {shape}; pass most= to decode more")
    if int(numbers.max(initial=0)) >= max(len(table), 1) or (len(numbers) and not len(table)):
        raise ValueError(f"expected numbers below {len(table)}, the size of the table, found {numbers.max()}")
    if int(counts.max(initial=0)) > size or int(counts.sum(dtype=np.uint64)) != size:
        raise ValueError(f"expected runs of {size} values in all for the shape {shape}, found another number")
    return np.repeat(table[numbers], counts.astype(np.int64)).reshape(shape)


def _array(data: bytes, dtype: np.dtype[Any], what: str) -> NDArray[Any]:
    if len(data) % dtype.itemsize:
        raise ValueError(f"expected a {what} of whole {dtype} values, found {len(data)} bytes")
    return np.frombuffer(data, dtype) if data else np.empty(0, dtype)
