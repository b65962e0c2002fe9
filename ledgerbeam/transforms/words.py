"""The words of texts, as near duplicates are told by them: each as a hash that is the same everywhere.

A text is brought into the form NFKC of Unicode, and its case is folded. A word is a run of letters, marks and numbers
that is as long as can be; of the scripts that are written without spaces each letter or mark is a word. All else only
separates words. The hash of a word is that of its UTF-8: 8 bytes of BLAKE2b with the name ``lb.word``, little-endian.
"""

from __future__ import annotations

import re
import sys
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

__all__ = ["WordHashes", "words_of"]

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
"""Code points, first and last, of scripts without spaces between words."""

_MOST_HELD, _LONGEST_HELD = 1 << 20, 64
"""Words whose hashes are held, and their length at most."""

_PLAIN = bytes(ord(chr(byte).lower()) if byte < 128 and chr(byte).isalnum() else 32 for byte in range(256))


def words_of(text: str) -> list[bytes]:
    """Return the words of a text in their order, as UTF-8."""
    if text.isascii():  # of which the form NFKC is the text, and the case one of 26 letters
        return text.encode().translate(_PLAIN).split()
    return [word.encode() for word in _pattern().findall(unicodedata.normalize("NFKC", text).casefold())]


class WordHashes:
    """Hashes the words of texts; those that come often are held."""

    def __init__(self) -> None:
        self._held = _Held()

    def of(self, texts: Sequence[str]) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
        """Return the hashes of the words of texts one behind the other, and how many each text has."""
        found: list[int] = []
        counts = np.empty(len(texts), np.int64)
        look_up = self._held.__getitem__
        for place, text in enumerate(texts):
            before = len(found)
            found.extend(map(look_up, words_of(text)))
            counts[place] = len(found) - before
        if len(self._held) > _MOST_HELD:
            self._held.clear()
        return np.array(found, np.uint64), counts


class _Held(dict[bytes, int]):
    def __missing__(self, word: bytes) -> int:
        found = int.from_bytes(blake2b(word, digest_size=8, person=b"lb.word").digest(), "little")
        if len(word) <= _LONGEST_HELD:
            self[word] = found
        return found


@cache
def _pattern() -> re.Pattern[str]:
    """Return what finds words; to be made it takes a look at all of Unicode."""
    inside = bytearray(sys.maxunicode + 1)  # 1: of a word, 2: a word by itself
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
