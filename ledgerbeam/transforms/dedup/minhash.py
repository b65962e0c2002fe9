"""MinHash signatures: the share of equal hashes of two texts estimates the overlap of their sets of n-grams.

All arithmetic is modulo 2^64 or 2^32, so results are equal on all machines. A change needs a new `VERSION`.

    n-gram     from the hashes w of N consecutive words of `words`: x = 0; for each w: x *= P, x ^= x >> 29, x += w;
               then `finished(x)`, of which the upper 32 bits are used. A text of fewer words has one n-gram
    row k      the minimum of (a * x + b) mod 2^32 over all n-grams x of a text; a, with the lowest bit set, and b are
               the first two words of 4 bytes, little-endian, of the BLAKE2b of "minhash k"
    band       a hash of 16 bytes of its number and its rows, in two lanes: x = number + 1; for each row:
               x = (x ^ row) * Q, x ^= x >> 32; then `finished(x)`. Q is a constant of the lane

A text without words has no n-grams and no bands. Texts are compared by their sets of n-grams, 64 bits each. The result
is exact unless two n-grams have the same hash.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ledgerbeam.io.exchange.hash_run import Hashes
from ledgerbeam.transforms.dedup.words import P, finished, hash_words

VERSION = 1  # version of words, n-grams, rows and bands
_LANES = (np.uint64(0xC2B2AE3D27D4EB4F), np.uint64(0x165667B19E3779F9))
_AT_ONCE = 1 << 16  # number of n-grams that are hashed together. They fit into the cache of a core.


class Bands(NamedTuple):
    """The bands of texts.

    Attributes:
        places: Positions of the texts that have bands, ascending.
        hashes: Hashes of the bands, one row for each of these texts.
    """

    places: NDArray[np.int64]
    hashes: Hashes


class Grams(NamedTuple):
    """The n-grams of texts.

    Attributes:
        places: Positions of the texts that have n-grams, ascending.
        hashes: 64-bit hashes of the n-grams, text after text.
        sizes: Number of n-grams of each of these texts.
    """

    places: NDArray[np.int64]
    hashes: NDArray[np.uint64]
    sizes: NDArray[np.int64]

    def sets(self) -> list[NDArray[np.uint64]]:
        """Return the set of n-grams of each of these texts, ascending."""
        return (
            [np.unique(some) for some in np.split(self.hashes, np.cumsum(self.sizes)[:-1])] if len(self.places) else []
        )


@dataclass(frozen=True)
class MinHash:
    """Parameters of signatures. Picklable.

    Attributes:
        bands: Number of bands of a text. Two texts are near if they share a band.
        rows: Number of hashes of a band.
        ngram: Number of words of an n-gram.
    """

    bands: int
    rows: int
    ngram: int

    def sign(self, texts: Sequence[str]) -> Bands:
        """Return the bands of texts."""
        grams = self.grams(texts)
        return Bands(grams.places, self.bands_of(grams.hashes, grams.sizes))

    def grams(self, texts: Sequence[str]) -> Grams:
        """Return the n-grams of texts."""
        words, counts = hash_words(texts)
        places = np.flatnonzero(counts)
        return Grams(places, *self._grams(words, counts[places]))

    def bands_of(self, hashes: NDArray[np.uint64], sizes: NDArray[np.int64]) -> Hashes:
        """Return the bands of texts, one row for each text.

        Args:
            hashes: Hashes of the n-grams, text after text, in any order and with repetitions.
            sizes: Number of n-grams of each text, at least 1.
        """
        grams = (hashes >> np.uint64(32)).astype(np.uint32)
        ends = np.cumsum(sizes)
        least = np.empty((self.bands * self.rows, len(sizes)), np.uint32)
        for first, stop in _spans(ends):
            start = int(ends[first - 1]) if first else 0
            self._rows(grams[start : int(ends[stop - 1])], ends[first:stop] - sizes[first:stop] - start, least, first)
        high, low = (self._lane(least, lane) for lane in _LANES)
        return Hashes(high, low)

    def _grams(
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
        """Compute the rows of some texts."""
        hashed = np.empty_like(grams)
        for row, (factor, term) in enumerate(_factors(len(least))):
            np.multiply(grams, factor, out=hashed)
            hashed += term
            np.minimum.reduceat(hashed, starts, out=least[row, first : first + len(starts)])

    def _lane(self, least: NDArray[np.uint32], factor: np.uint64) -> NDArray[np.uint64]:
        """Return one lane of the hashes of all bands."""
        found = np.empty((least.shape[1], self.bands), np.uint64)
        for band in range(self.bands):
            lane = np.full(least.shape[1], band + 1, np.uint64)
            for row in least[band * self.rows : (band + 1) * self.rows]:
                lane ^= row
                lane *= factor
                lane ^= lane >> np.uint64(32)
            found[:, band] = finished(lane)
        return found


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
    """Yield spans of texts with about `_AT_ONCE` n-grams in total, at least one text each."""
    first = 0
    while first < len(ends):
        before = int(ends[first - 1]) if first else 0
        stop = max(first + 1, int(np.searchsorted(ends, before + _AT_ONCE, "right")))
        yield first, stop
        first = stop
