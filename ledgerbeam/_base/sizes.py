"""Sizes in bytes as people write them: numbers, or texts with a unit."""

from __future__ import annotations

_UNITS = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}


def read_size(value: int | str) -> int:
    """Return a number of bytes such as ``1000000``, ``64K``, ``16MiB``; units are powers of 1024.

    Raises:
        ValueError: It is no size, or none from 1; the message says what was expected and found.
    """
    lowered = str(value).strip().lower().removesuffix("b").removesuffix("i")
    digits = lowered.rstrip("kmgt")
    unit = lowered[len(digits) :]
    try:
        size = int(float(digits) * _UNITS[unit])
    except (ValueError, KeyError, OverflowError):
        raise ValueError(f"expected a size such as 16M, found {value!r}") from None
    if size < 1:
        raise ValueError(f"expected at least 1 byte, found {value!r}")
    return size


def size_text(size: int) -> str:
    """Return a number of bytes as `read_size` takes it, in the largest unit of which it is a multiple."""
    unit = max((unit for unit in _UNITS if size % _UNITS[unit] == 0), key=_UNITS.__getitem__)
    return f"{size // _UNITS[unit]}{unit.upper()}"
