"""MinHash: of each text some hashes, of which two texts share about as many as their sets of n-grams overlap.

All of it is arithmetic on 64 or 32 bits without overflow, so it is the same everywhere; a change is a new `VERSION`.

    n-gram     the hashes w of N consecutive words of `words`: x = 0, for each w x *= P, x ^= x >> 29, x += w; then
               `finished(x)`, of which the upper 32 bits are taken. A text of fewer words has one, of all its words
    row k      the least (a * x + b) mod 2^32 of all n-grams x of a text; a, made odd, and b are the first two words of
               4 bytes, little-endian, of the BLAKE2b of "minhash k"
    band       a hash of 16 bytes of its number and its rows: two lanes of x = number + 1, for each row
               x = (x ^ row) * Q, x ^= x >> 32, finished as above; Q is one constant for each lane

A text without words has no n-gram, and so no bands. A text is compared by the set of its n-grams, x of 64 bits each:
what two texts share is that of their sets, unless two of their n-grams have one hash.
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

VERSION = 1
"""Of words, n-grams, rows and bands."""

_LANES = (np.uint64(0xC2B2AE3D27D4EB4F), np.uint64(0x165667B19E3779F9))

_AT_ONCE = 1 << 16
"""n-grams that are hashed together: they fit into the cache of a core."""


class Bands(NamedTuple):
    """The bands of texts.

    Attributes:
        places: Which texts have bands, ascending.
        hashes: Of those of each band, a row for each text.
    """

    places: NDArray[np.int64]
    hashes: Hashes


class Grams(NamedTuple):
    """The n-grams of texts.

    Attributes:
        places: Which texts have n-grams, ascending.
        hashes: Of 64 bits, those of one text behind those of the other.
        sizes: How many each of these texts has.
    """

    places: NDArray[np.int64]
    hashes: NDArray[np.uint64]
    sizes: NDArray[np.int64]

    def sets(self) -> list[NDArray[np.uint64]]:
        """Return the n-grams of each of these texts once, ascending."""
        return (
            [np.unique(some) for some in np.split(self.hashes, np.cumsum(self.sizes)[:-1])] if len(self.places) else []
        )


@dataclass(frozen=True)
class MinHash:
    """How texts are signed. Picklable.

    Attributes:
        bands: How many bands a text has: two are near if they share one.
        rows: Hashes of a band.
        ngram: Words of an n-gram.
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
        """Return the bands of texts, a row for each.

        Args:
            hashes: Of the n-grams of each text, in any order and each any number of times.
            sizes: How many of them each text has; at least one.
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
        """Return the n-grams of texts that have so many words each, and how many n-grams each has."""
        starts = np.cumsum(counts) - counts
        sizes = np.maximum(counts - self.ngram + 1, 1)
        # Where each n-gram begins, and of how many words it is: all but those of short texts are of `ngram`.
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
        """Find the rows of some texts."""
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
    """Yield spans of texts that have about `_AT_ONCE` n-grams together, at least one text each."""
    first = 0
    while first < len(ends):
        before = int(ends[first - 1]) if first else 0
        stop = max(first + 1, int(np.searchsorted(ends, before + _AT_ONCE, "right")))
        yield first, stop
        first = stop
