"""MinHash signatures: the share of equal hashes of two texts estimates the overlap of their sets of n-grams.

A text is normalized to Unicode NFKC and case-folded. A word is a maximal run of letters, marks and numbers. In scripts
without spaces between words each letter or mark is a word. All other characters separate words.

All arithmetic is modulo 2^64 or 2^32, so results are equal on all machines. A change needs a new `VERSION`.

    word       from its UTF-8: x is the length in bytes; for each 8 bytes c, little-endian and padded with zeros:
               x = (x ^ c) * P, x ^= x >> 32; then `finished(x)`. A word of more than 64 bytes is replaced by the 32
               bytes of its BLAKE2b
    n-gram     from the hashes w of N consecutive words: x = 0; for each w: x *= P, x ^= x >> 29, x += w;
               then `finished(x)`, of which the upper 32 bits are used. A text of fewer words has one n-gram
    row k      the minimum of (a * x + b) mod 2^32 over all n-grams x of a text; a, with the lowest bit set, and b are
               the first two words of 4 bytes, little-endian, of the BLAKE2b of "minhash k"
    band       a hash of 16 bytes of its number and its rows, in two lanes: x = number + 1; for each row:
               x = (x ^ row) * Q, x ^= x >> 32; then `finished(x)`. P is a constant, Q one of the lane

A text without words has no n-grams and no bands. Texts are compared by their sets of n-grams, 64 bits each. The result
is exact unless two n-grams have the same hash.
"""

from __future__ import annotations

import re
import sys
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import blake2b
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ledgerbeam.io.exchange.hash_run import Hashes

VERSION = 1  # version of words, n-grams, rows and bands
P = np.uint64(0x9E3779B97F4A7C15)
_LANES = (np.uint64(0xC2B2AE3D27D4EB4F), np.uint64(0x165667B19E3779F9))
_AT_ONCE = 1 << 16  # number of n-grams that are hashed together. They fit into the cache of a core.
_TEXT_BYTES = 1 << 17  # size in bytes of texts whose words are hashed together. They fit into the cache of a core.
_LONGEST = 64
_PLAIN = bytes(ord(chr(byte).lower()) if byte < 128 and chr(byte).isalnum() else 32 for byte in range(256))
_MASKS = np.array([(1 << 8 * size) - 1 for size in range(9)], np.uint64)
# First and last code points of scripts without spaces between words.
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


@dataclass(frozen=True)
class MinHash:
    """Parameters of signatures. Picklable."""

    bands: int  # number of bands of a text. Two texts are near if they share a band
    rows: int  # number of hashes of a band
    ngram: int  # number of words of an n-gram

    def sign(self, texts: Sequence[str]) -> Bands:
        """Return the bands of texts. A text without words has none."""
        grams = self.grams(texts)
        return Bands(grams.places, self.bands_of(grams.hashes, grams.sizes))

    def grams(self, texts: Sequence[str]) -> Grams:
        """Return the n-grams of texts. A text without words has none."""
        words, counts = hash_words(texts)
        places = np.flatnonzero(counts)
        return Grams(places, *self.grams_of(words, counts[places]))

    def bands_of(self, hashes: NDArray[np.uint64], sizes: NDArray[np.int64]) -> Hashes:
        """Return the bands of texts, one row each. `sizes` are the numbers of n-grams of each text, at least 1.

        `hashes` are the n-grams, text after text. The n-grams of one text are in any order, and may be repeated.
        """
        grams = (hashes >> np.uint64(32)).astype(np.uint32)
        ends = np.cumsum(sizes)
        least = np.empty((self.bands * self.rows, len(sizes)), np.uint32)
        for first, stop in _spans(ends):
            start = int(ends[first - 1]) if first else 0
            self._rows(grams[start : int(ends[stop - 1])], ends[first:stop] - sizes[first:stop] - start, least, first)
        high, low = (self._lane(least, lane) for lane in _LANES)
        return Hashes(high, low)

    def grams_of(
        self, words: NDArray[np.uint64], counts: NDArray[np.int64]
    ) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
        """Return the n-grams of texts with `counts` words each, and the number of n-grams of each text."""
        starts = np.cumsum(counts) - counts
        sizes = np.maximum(counts - self.ngram + 1, 1)
        # First word and length of each n-gram. Only short texts have n-grams of fewer than `ngram` words.
        firsts = np.repeat(starts - (np.cumsum(sizes) - sizes), sizes) + np.arange(int(sizes.sum()))
        lengths = np.repeat(np.minimum(counts, self.ngram), sizes)
        found = np.zeros(len(firsts), np.uint64)
        shortest = int(lengths.min(initial=self.ngram))
        for word in range(int(lengths.max(initial=0))):
            if word < shortest:
                found = _added(found, words[firsts + word])
            else:
                some = lengths > word
                found[some] = _added(found[some], words[firsts[some] + word])
        return finished(found), sizes

    def _rows(
        self, grams: NDArray[np.uint32], starts: NDArray[np.int64], least: NDArray[np.uint32], first: int
    ) -> None:
        """Compute the rows (minima) of some texts, and store them in `least` from column `first` on."""
        hashed = np.empty_like(grams)
        for row, (factor, term) in enumerate(_factors(len(least))):
            np.multiply(grams, factor, out=hashed)
            hashed += term
            np.minimum.reduceat(hashed, starts, out=least[row, first : first + len(starts)])

    def _lane(self, least: NDArray[np.uint32], factor: np.uint64) -> NDArray[np.uint64]:
        """Return one lane of the hashes of all bands: 64 of their 128 bits."""
        found = np.empty((least.shape[1], self.bands), np.uint64)
        for band in range(self.bands):
            lane = np.full(least.shape[1], band + 1, np.uint64)
            for row in least[band * self.rows : (band + 1) * self.rows]:
                lane ^= row
                lane *= factor
                lane ^= lane >> np.uint64(32)
            found[:, band] = finished(lane)
        return found


class Bands(NamedTuple):
    """The bands of texts; only of the texts that have words."""

    places: NDArray[np.int64]  # positions of the texts that have bands, ascending
    hashes: Hashes  # hashes of the bands, one row for each of these texts


class Grams(NamedTuple):
    """The n-grams of texts; only of the texts that have words."""

    places: NDArray[np.int64]  # positions of the texts that have n-grams, ascending
    hashes: NDArray[np.uint64]  # 64-bit hashes of the n-grams, text after text
    sizes: NDArray[np.int64]  # number of n-grams of each of these texts

    def sets(self) -> list[NDArray[np.uint64]]:
        """Return the n-grams of each text, ascending, without repetitions."""
        return (
            [np.unique(some) for some in np.split(self.hashes, np.cumsum(self.sizes)[:-1])] if len(self.places) else []
        )


def _factors(number: int) -> Iterator[tuple[np.uint32, np.uint32]]:
    for row in range(number):
        found = np.frombuffer(blake2b(b"minhash %d" % row, digest_size=8).digest(), "<u4")
        yield found[0] | np.uint32(1), found[1]


def _added(found: NDArray[np.uint64], words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    found = found * P
    found ^= found >> np.uint64(29)
    found += words
    return found


def _spans(ends: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """Yield start and end of groups of texts with about `_AT_ONCE` n-grams each; a group has at least one text."""
    first = 0
    while first < len(ends):
        before = int(ends[first - 1]) if first else 0
        stop = max(first + 1, int(np.searchsorted(ends, before + _AT_ONCE, "right")))
        yield first, stop
        first = stop


def hash_words(texts: Sequence[str]) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """Return the hashes of the words of texts, text after text, and the number of words of each text."""
    hashes, counts = [np.zeros(0, np.uint64)], [np.zeros(0, np.int64)]
    waiting: list[bytes] = []
    size = 0
    for text in texts:
        waiting.append(spaced(text))
        size += len(waiting[-1])
        if size >= _TEXT_BYTES:
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


def spaced(text: str) -> bytes:
    """Return the words of a text, separated by spaces."""
    if text.isascii():  # NFKC leaves ASCII unchanged
        return text.encode().translate(_PLAIN)
    return " ".join(_pattern().findall(unicodedata.normalize("NFKC", text).casefold())).encode()


def _hash_spaced(texts: Sequence[bytes], hashes: list[NDArray[np.uint64]], counts: list[NDArray[np.int64]]) -> None:
    """Hash the words of texts, and append the hashes and the number of words of each text to the lists."""
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
        found[some] = _mixed(found[some], eights[starts[some] + first] & _MASKS[np.minimum(sizes[some] - first, 8)])
    for place in np.flatnonzero(sizes > _LONGEST).tolist():
        start, size = int(starts[place]), int(sizes[place])
        digest = blake2b(whole[start : start + size], digest_size=32).digest()
        x = np.array([size], np.uint64)
        for eight in np.frombuffer(digest, "<u8"):
            x = _mixed(x, eight)
        found[place] = x[0]
    return finished(found)


def _mixed(found: NDArray[np.uint64], eight: Any) -> NDArray[np.uint64]:
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
    ranges = edges.reshape(-1, 2).tolist()
    return "".join(f"{re.escape(chr(first))}-{re.escape(chr(stop - 1))}" for first, stop in ranges)
