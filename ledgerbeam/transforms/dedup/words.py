"""Words of texts, for near duplicates, as hashes that are equal on all machines.

A text is normalized to Unicode NFKC and case-folded. A word is a maximal run of letters, marks and numbers. In scripts
without spaces between words each letter or mark is a word. All other characters separate words.

The hash of a word is computed from its UTF-8, modulo 2^64: x is the length in bytes; for each 8 bytes c, little-endian
and padded with zeros: x = (x ^ c) * P, x ^= x >> 32; then `finished(x)`. A word of more than 64 bytes is replaced by
the 32 bytes of its BLAKE2b.
"""

from __future__ import annotations

import re
import sys
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray

SPACELESS = (
    (0x0E00, 0x0EFF),  # Thai, Lao
    (0x1000, 0x109F),  # Myanmar
    (0x1780, 0x17FF),  # Khmer
    (0x1950, 0x19DF),  # Tai Le, New Tai Lue
    (0x1A20, 0x1AAF),  # Tai Tham
    (0x3005, 0x3007),  # iteration mark, closing mark, zero
    (0x3040, 0x312F),  # Hiragana, Katakana, Bopomofo
    (0x31A0, 0x31BF),
    (0x31F0, 0x31FF),
    (0x3400, 0x4DBF),  # Han
    (0x4E00, 0x9FFF),
    (0xA9E0, 0xA9FF),
    (0xAA60, 0xAA7F),
    (0xF900, 0xFAFF),
    (0x1B000, 0x1B16F),
    (0x20000, 0x3FFFF),
)
"""First and last code points of scripts without spaces between words."""

P = np.uint64(0x9E3779B97F4A7C15)
_AT_ONCE = 1 << 17  # size in bytes of texts whose words are hashed together. They fit into the cache of a core.
_LONGEST = 64

_PLAIN = bytes(ord(chr(byte).lower()) if byte < 128 and chr(byte).isalnum() else 32 for byte in range(256))
_MASKS = np.array([(1 << 8 * size) - 1 for size in range(9)], np.uint64)


def hash_words(texts: Sequence[str]) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """Return the hashes of the words of texts, text after text, and the number of words of each text."""
    hashes, counts = [np.zeros(0, np.uint64)], [np.zeros(0, np.int64)]
    waiting: list[bytes] = []
    size = 0
    for text in texts:
        waiting.append(_spaced(text))
        size += len(waiting[-1])
        if size >= _AT_ONCE:
            _hash_spaced(waiting, hashes, counts)
            waiting, size = [], 0
    if waiting:
        _hash_spaced(waiting, hashes, counts)
    return np.concatenate(hashes), np.concatenate(counts)


def finished(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Mix hashes so that every bit depends on all bits."""
    x = x ^ (x >> np.uint64(30))
    x *= np.uint64(0xBF58476D1CE4E5B9)
    x ^= x >> np.uint64(27)
    x *= np.uint64(0x94D049BB133111EB)
    x ^= x >> np.uint64(31)
    return x


def _spaced(text: str) -> bytes:
    """Return the words of a text, separated by spaces."""
    if text.isascii():  # NFKC leaves ASCII unchanged
        return text.encode().translate(_PLAIN)
    return " ".join(_pattern().findall(unicodedata.normalize("NFKC", text).casefold())).encode()


def _hash_spaced(texts: Sequence[bytes], hashes: list[NDArray[np.uint64]], counts: list[NDArray[np.int64]]) -> None:
    """Hash the words of some texts."""
    whole = b" ".join([b"", *texts, bytes(_LONGEST)])  # bytes read after the last word are masked
    data = np.frombuffer(whole, np.uint8)[:-_LONGEST]
    edges = np.flatnonzero((data[1:] != 32) != (data[:-1] != 32)) + 1
    starts, sizes = edges[::2], edges[1::2] - edges[::2]
    hashes.append(_hashed(whole, starts, sizes))
    ends = np.cumsum(np.fromiter(map(len, texts), np.int64, len(texts)) + 1)
    counts.append(np.diff(np.searchsorted(starts, ends), prepend=0))


def _hashed(whole: bytes, starts: NDArray[np.int64], sizes: NDArray[np.int64]) -> NDArray[np.uint64]:
    found = sizes.astype(np.uint64)
    eights: NDArray[np.uint64] = np.ndarray(len(whole) - 7, "<u8", whole, strides=(1,))  # next 8 bytes of each byte
    some: Any = slice(None)
    for first in range(0, min(_LONGEST, int(sizes.max(initial=0))), 8):
        if first:
            some = np.flatnonzero(sizes > first)
        found[some] = _added(found[some], eights[starts[some] + first] & _MASKS[np.minimum(sizes[some] - first, 8)])
    for place in np.flatnonzero(sizes > _LONGEST).tolist():
        start, size = int(starts[place]), int(sizes[place])
        digest = blake2b(whole[start : start + size], digest_size=32).digest()
        x = np.array([size], np.uint64)
        for eight in np.frombuffer(digest, "<u8"):
            x = _added(x, eight)
        found[place] = x[0]
    return finished(found)


def _added(found: NDArray[np.uint64], eight: Any) -> NDArray[np.uint64]:
    found = (found ^ eight) * P
    found ^= found >> np.uint64(32)
    return found


@cache
def _pattern() -> re.Pattern[str]:
    """Return the pattern of a word. It is built from the categories of all code points."""
    inside = bytearray(sys.maxunicode + 1)  # 1: part of a word, 2: a word by itself
    for point in range(sys.maxunicode + 1):
        inside[point] = unicodedata.category(chr(point))[0] in "LMN"
    for first, last in SPACELESS:
        inside[first : last + 1] = bytes(2 * one for one in inside[first : last + 1])
    return re.compile(f"[{_ranges(inside, 2)}]|[{_ranges(inside, 1)}]+")


def _ranges(inside: bytes | bytearray, kind: int) -> str:
    edges = np.flatnonzero(np.diff(np.frombuffer(bytes(inside), np.uint8) == kind, prepend=False, append=False))
    return "".join(_range(first, stop - 1) for first, stop in _pairs(edges.tolist()))


def _pairs(edges: Iterable[int]) -> Iterator[tuple[int, int]]:
    some = iter(edges)
    return zip(some, some, strict=True)


def _range(first: int, last: int) -> str:
    return f"{re.escape(chr(first))}-{re.escape(chr(last))}"
