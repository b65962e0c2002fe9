"""Verified near duplicates: connect candidates whose n-grams overlap enough.

Records that share a band are candidates. Candidates that are connected, directly or through others, have the same key.
Each record of a key is compared with the records of this key that share a band with it. A comparison is skipped if
earlier ones have connected both records: it could change nothing. So the order of comparisons does not matter.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from struct import Struct
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ledgerbeam._base.disk import size_text
from ledgerbeam.errors import LedgerbeamError, RecordError
from ledgerbeam.io.exchange.forest import Forest, join_forests
from ledgerbeam.io.exchange.hash_run import Hashes, HashRows, hash_order, hashes_in
from ledgerbeam.io.exchange.slices import EARLIER
from ledgerbeam.ledger import FailedTask, NoneTask, Task
from ledgerbeam.sources.buckets import GatheredRecords
from ledgerbeam.sources.forms import PlacedRecords
from ledgerbeam.transforms.dedup.duplicates import HashedRecords, NearTexts, Trees, first_of_groups, forest_of
from ledgerbeam.transforms.dedup.minhash import MinHash
from ledgerbeam.transforms.exchange.scatter import moved
from ledgerbeam.user_code.guards import failed_by, message_of

MOST_BYTES = 1 << 28  # maximum size in bytes of the n-grams of connected candidates, which are compared in memory
AT_ONCE = 1 << 24  # minimum bytes of the n-grams of candidates compared together; connected ones always are
RECORD_BYTES = 64  # approximate memory of a record, besides its n-grams, in bytes
FEW = 32  # number of sets up to which all are compared, without a filter by rare n-grams
_SCORE = Struct("<I")
_GRAM = np.dtype("<u8")
_GATHERED = 1 << 22


@dataclass(frozen=True)
class CollectGrams(NearTexts):
    """A function of one task, for `ProcessTask`, that writes the n-grams of each candidate, by cluster."""

    def __call__(self, task: Task) -> Task | NoneTask | FailedTask:
        """Return the task with `HashedRecords`."""
        chosen: PlacedRecords = task.records
        if not len(chosen):
            return NoneTask(task)
        try:
            scores = None if self.score is None else self.score.of(chosen)
            kept: list[int] = []
            sets: list[bytes] = []
            for first, some in self.batches(chosen):
                grams = self.minhash.grams(some)
                kept += (grams.places + first).tolist()
                sets += [one.astype(_GRAM).tobytes() for one in grams.sets()]
        except LedgerbeamError as error:
            return failed_by(error, task, message_of(error))
        scored = [b""] * len(kept) if scores is None else [scores[place] for place in kept]
        payloads = [_SCORE.pack(len(score)) + score + one for score, one in zip(scored, sets, strict=True)]
        notes = [note for part in chosen.parts for note in part.notes or ()]
        clusters = hashes_in(b"".join([notes[place] for place in kept]))
        return moved(task, HashedRecords(clusters, chosen.places[kept], payloads), len(chosen) - len(kept))


@dataclass(frozen=True)
class VerifiedTrees:
    """Find near duplicates: candidates that share a band and have enough n-grams in common."""

    minhash: MinHash
    share: float  # minimum Jaccard similarity of the n-grams of two near texts, from 0 to 1
    with_scores: bool  # whether records have scores

    def __call__(self, gathered: GatheredRecords) -> Trees | None:
        """Return the connected candidates. Raises RecordError if the n-grams of a cluster exceed `MOST_BYTES`."""
        forest = join_forests(self._forests(gathered))
        return None if forest is None else Trees.whole(forest)

    def _forests(self, gathered: GatheredRecords) -> Iterator[Forest]:
        """Yield the connected candidates of some clusters."""
        for batch in _batches(gathered):
            labels = connected(list(batch.sets), self.minhash, self.share)[np.array(batch.sets_of)]
            order, firsts = first_of_groups(labels)
            later = np.flatnonzero(order != firsts)
            if len(later):
                yield forest_of(gathered, batch.rows(with_scores=self.with_scores), order[later], firsts[later])


@dataclass
class _Sets:
    """All candidates of some clusters, which are compared in one pass."""

    sets: dict[bytes, int] = field(default_factory=dict)  # number of each different set of n-grams
    sets_of: list[int] = field(default_factory=list)  # number of the set of each candidate
    size: int = 0  # approximate memory, in bytes
    _runs: list[int] = field(default_factory=list)
    _numbers: list[int] = field(default_factory=list)
    _scores: list[bytes] = field(default_factory=list)

    def add(self, run: int, number: int, payload: bytes) -> None:
        """Add a candidate."""
        stop = _SCORE.size + _SCORE.unpack_from(payload)[0]
        score, grams = payload[_SCORE.size : stop], payload[stop:]
        if grams not in self.sets:
            self.sets[grams] = len(self.sets)
            self.size += len(grams)
        self.sets_of.append(self.sets[grams])
        self.size += RECORD_BYTES + len(score)
        self._runs.append(run)
        self._numbers.append(number)
        self._scores.append(score)

    def rows(self, *, with_scores: bool) -> HashRows:
        """Return the candidates as columns of rows. The hashes of the rows are 0."""
        none = np.zeros(len(self._runs), np.uint64)
        scores = None
        if with_scores:
            scores = np.empty(len(self._scores), object)
            scores[:] = self._scores
        return HashRows(none, none, np.array(self._runs, np.uint32), np.array(self._numbers, np.uint64), scores)


def _batches(gathered: GatheredRecords) -> Iterator[_Sets]:
    batch, before, first = _Sets(), 0, (0, 0)
    current: bytes | None = None
    for part in gathered.merged():
        for key, run, number, payload in part.rows():
            if key != current:
                if batch.size >= AT_ONCE:
                    yield batch
                    batch = _Sets()
                current, before, first = key, batch.size, (run, number)
            batch.add(run, number, payload)
            if batch.size - before > MOST_BYTES:
                url, place = gathered.place(*first)
                url = url.removeprefix(EARLIER)
                raise RecordError(
                    f"{url}, record {place}: --verify holds the n-grams of all records that share bands with this "
                    f"record: expected at most {size_text(MOST_BYTES)}, found more; remove equal records first, with "
                    "ledgerbeam dedup --by or --content, or use fewer bands or more rows, such as --minhash 8x12"
                )
    if batch.sets_of:
        yield batch


def connected(sets: Sequence[bytes], minhash: MinHash, share: float) -> NDArray[np.int64]:
    """Return a label for each set of n-grams. Sets that are near, directly or through others, have equal labels.

    Two sets are near if they share a band and their Jaccard similarity is at least `share`. All sets are different. A
    set is the bytes of the 64-bit hashes of its n-grams, little-endian, ascending.
    """
    comparison = _Comparison(sets, minhash, share)
    comparison.run()
    return comparison.labels


@dataclass
class _Component:
    """Sets that share a band, in order. Each set is compared with those after it."""

    members: NDArray[np.int64]
    passed: int = 0
    is_connected: bool = False  # whether all remaining sets are connected


class _Rare(NamedTuple):
    """The rarest n-grams of each set, as columns; see `_Comparison._rare` for their number."""

    grams: NDArray[np.int64]  # the n-grams of all sets, set after set
    bounds: NDArray[np.int64]  # start and end of each set in `grams`
    posted: NDArray[np.int64]  # the same n-grams, ascending
    owners: NDArray[np.int64]  # the set of each n-gram in `posted`


class _Comparison:
    """Comparison of sets, each with all later sets that share a band with it."""

    def __init__(self, sets: Sequence[bytes], minhash: MinHash, share: float) -> None:
        grams = np.frombuffer(b"".join(sets), _GRAM).astype(np.uint64, copy=False)
        self._sizes = np.fromiter(map(len, sets), np.int64, len(sets)) // _GRAM.itemsize
        self._starts = np.cumsum(self._sizes) - self._sizes
        self._share = share
        self._groups = _groups(minhash.bands_of(grams, self._sizes))
        known, self._ids = np.unique(grams, return_inverse=True)
        self._held = np.zeros(len(known), np.bool_)
        self._trees: dict[int, list[int]] = {}
        self.labels = np.arange(len(sets))  # label of each set. Connected sets have equal labels

    def run(self) -> None:
        """Compare the sets, and give connected sets equal labels."""
        for one, groups in enumerate(self._groups):
            others = self._others(one, groups)
            smaller, larger = (pick(self._sizes[others], self._sizes[one]) for pick in (np.minimum, np.maximum))
            others = others[smaller / larger >= self._share]  # the upper bound of the similarity
            if len(others) > FEW:
                others = others[self._may_be_near(one)[others]]
            if len(others):
                self._connect(one, others[self._shares(one, others) >= self._share])

    def _others(self, one: int, groups: Sequence[_Component]) -> NDArray[np.int64]:
        """Return later sets that share a band with a set and are not connected with it."""
        found = []
        for group in groups:
            group.passed += 1
            if group.is_connected:
                continue
            behind = group.members[group.passed :]
            apart = behind[self.labels[behind] != self.labels[one]]
            group.is_connected = not len(apart)
            found.append(apart)
        if len(found) == 1:
            return found[0]
        return np.unique(np.concatenate(found)) if found else np.zeros(0, np.int64)

    def _shares(self, one: int, others: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the Jaccard similarities of a set and others."""
        own = self._ids[self._starts[one] : self._starts[one] + self._sizes[one]]
        self._held[own] = True
        sizes = self._sizes[others]
        ends = np.cumsum(sizes)
        common = np.empty(len(others), np.int64)
        cuts = np.searchsorted(ends, np.arange(0, ends[-1], _GATHERED), "right")
        for first, last in pairwise(np.unique([0, *cuts.tolist(), len(others)]).tolist()):
            some = sizes[first:last]
            begins = np.cumsum(some) - some
            places = np.repeat(self._starts[others[first:last]] - begins, some) + np.arange(int(some.sum()))
            common[first:last] = np.add.reduceat(self._held[self._ids[places]], begins, dtype=np.int64)
        self._held[own] = False
        return common / (sizes + self._sizes[one] - common)

    def _may_be_near(self, one: int) -> NDArray[np.bool_]:
        """Return a mask of the sets that share one of their rarest n-grams with a set."""
        rare = self._rare
        grams = rare.grams[rare.bounds[one] : rare.bounds[one + 1]]
        starts, stops = (np.searchsorted(rare.posted, grams, side) for side in ("left", "right"))
        found = np.zeros(len(self.labels), np.bool_)
        for start, stop in zip(starts.tolist(), stops.tolist(), strict=True):
            found[rare.owners[start:stop]] = True
        return found

    @cached_property
    def _rare(self) -> _Rare:
        """The rarest n-grams of each set, so many that two near sets must have one of them in common.

        A set of n n-grams has at least c = share * n of them in common with a near set. Sort the n-grams of all sets
        by one order. Then the first n - c + 1 n-grams of both sets must have one in common.
        """
        counts = np.bincount(self._ids)
        ranks = np.empty(len(counts), np.int64)
        ranks[np.argsort(counts, kind="stable")] = np.arange(len(counts))
        owners = np.repeat(np.arange(len(self._sizes)), self._sizes)
        ranked = ranks[self._ids]
        ranked = ranked[np.lexsort((ranked, owners))]
        common = np.ceil(self._share * self._sizes * (1 - 1e-9)).astype(np.int64)  # never too many by rounding
        wanted = np.minimum(self._sizes, self._sizes - common + 1)
        first = np.arange(len(owners)) - self._starts[owners] < wanted[owners]
        grams, owners = ranked[first], owners[first]
        order = np.argsort(grams, kind="stable")
        return _Rare(grams, np.concatenate([[0], np.cumsum(wanted)]), grams[order], owners[order])

    def _connect(self, one: int, others: NDArray[np.int64]) -> None:
        for label in np.unique(self.labels[others]).tolist():
            own = int(self.labels[one])
            trees = [(own, self._trees.pop(own, [own])), (label, self._trees.pop(label, [label]))]
            (_, smaller), (name, larger) = sorted(trees, key=lambda tree: len(tree[1]))
            self.labels[smaller] = name
            larger.extend(smaller)
            self._trees[name] = larger


def _groups(hashes: Hashes) -> list[list[_Component]]:
    """Return, for each set, the groups of sets that share a band with it. Bands with equal groups count once."""
    found: list[list[_Component]] = [[] for _ in range(len(hashes.high))]
    known: set[bytes] = set()
    for high, low in zip(hashes.high.T, hashes.low.T, strict=True):
        order = hash_order(high, low)
        high, low = high[order], low[order]  # noqa: PLW2901
        starts = np.flatnonzero(np.concatenate([[True], (high[1:] != high[:-1]) | (low[1:] != low[:-1])]))
        stops = np.append(starts[1:], len(order))
        several = stops - starts > 1
        for start, stop in zip(starts[several].tolist(), stops[several].tolist(), strict=True):
            group = _Component(order[start:stop])
            if (members := group.members.tobytes()) not in known:
                known.add(members)
                for one in group.members.tolist():
                    found[one].append(group)
    return found
