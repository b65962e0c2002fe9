"""`PackDocuments`: a function of one task that packs documents into sequences of one length, by their lengths alone."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ledgerbeam._base.redaction import without_secrets
from ledgerbeam.errors import RecordError
from ledgerbeam.io import ShardFile
from ledgerbeam.io.datasets.megatron.packs import Pieces, encode_packs
from ledgerbeam.ledger import NoneTask, Task
from ledgerbeam.ledger.model.accounts import RecordCounts
from ledgerbeam.sources.documents import DocumentLengths
from ledgerbeam.sources.listing import index_of, own_version
from ledgerbeam.sources.selected import times_of
from ledgerbeam.transforms.mapping.outcomes import TaskResults

Strategy = Literal["best-fit", "concat"]
Longest = Literal["split", "cut"]
VERSION = 1  # of the packs; another version is another job
EMPTY, NOT_SAMPLED = "empty document", "not sampled"  # drop reasons
_MOST = 2**31 - 1  # tokens of a document


@dataclass(frozen=True)
class PackDocuments:
    """Packs the documents of a task. Its result depends only on their numbers, lengths and offsets, and the URL.

    Attributes:
        length: Number of tokens of a pack.
        strategy: ``best-fit`` puts a piece into the fullest pack that has room, the longest pieces first. ``concat``
            cuts the documents, one after the other, into packs.
        adds_eod: Whether an end-of-document token is added to each document.
        longest: For best-fit, treatment of a document longer than a pack: ``split`` it, or ``cut`` off its rest.
        weight: How often each document is taken; the fraction is the share that is taken once more.
    """

    length: int
    strategy: Strategy = "best-fit"
    adds_eod: bool = False
    longest: Longest = "split"
    weight: float = 1.0

    def __call__(self, task: Task) -> Task | NoneTask:
        """Return the task with `TaskPacks`."""
        found: DocumentLengths = task.records
        are_empty = found.lengths == 0
        times = (~are_empty).astype(np.int64)
        if self.weight != 1:
            times *= times_of(task.source.url, found.numbers, [self.weight] * len(found))
        lengths = found.lengths + self.adds_eod
        if (too_long := np.flatnonzero(lengths > _MOST)).size:
            raise RecordError(f"document {found.numbers[too_long[0]]}: more than {_MOST:,} tokens; divide it")
        drops = {EMPTY: int(are_empty.sum()), NOT_SAMPLED: int((~are_empty & (times == 0)).sum())}
        drops = {reason: count for reason, count in drops.items() if count}
        kept = np.repeat(np.arange(len(found)), times)
        counts = RecordCounts(len(found), len(found) - sum(drops.values()), drops)
        if not len(kept):
            return NoneTask(task, counts=counts)
        if self.strategy == "concat":
            which, starts, stops, bounds = _concatenated(lengths[kept], self.length)
        else:
            longest = self.length if self.longest == "cut" else _MOST
            which, starts, stops, bounds = _best_fit(np.minimum(lengths[kept], longest), self.length)
        of = kept[which]
        pieces = Pieces(
            bounds.astype(np.int32),
            found.numbers[of],
            starts.astype(np.int32),
            stops.astype(np.int32),
            lengths[of].astype(np.int32),
            found.offsets[of] + starts,
        )
        counts = replace(counts, written={"": len(pieces)})
        return task.replace(records=TaskResults({"": TaskPacks(pieces, found.dtype)}, counts))


@dataclass(frozen=True, eq=False)
class TaskPacks:
    """The packs of a task, and the dtype of the tokens of their dataset."""

    pieces: Pieces
    dtype: str

    def __len__(self) -> int:
        return len(self.pieces)


@dataclass(frozen=True)
class PacksEncoder:
    """Encodes the packs of a task as a file, with metadata: `facts` of the job, and the dataset."""

    facts: Mapping[str, Any] = field(default_factory=dict)
    base: str | None = None  # folder URL ending in ``/``; paths of datasets are relative to it

    def of_task(self, task: Task) -> PacksEncoder:
        """Return the encoder of the file of a task."""
        source = task.source
        index = index_of(source.url, source.version)
        facts = {
            "source": without_secrets(source.url),
            "path": source.url.removeprefix(self.base or source.url.rpartition("/")[0] + "/"),
            "size": source.size,
            "version": own_version(source.version),
            "index": None if index is None else [index.size, index.version],
            "documents": [task.start, task.stop],
        }
        return replace(self, facts={**self.facts, **facts})

    def encode(self, records: Any) -> list[ShardFile]:
        """Encode the packs of a task, which are `TaskPacks`."""
        packs: TaskPacks = records
        data = encode_packs(packs.pieces, {**self.facts, "dtype": packs.dtype})
        return [ShardFile(".arrow", data, len(packs))]


_Packed = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]
"""Document, start and stop of each piece, pack after pack; and the first piece of each pack, and their number."""


def _concatenated(lengths: NDArray[np.int64], length: int) -> _Packed:
    """Cut the documents, one after the other, into packs of `length` tokens; the last pack may have fewer."""
    ends = np.cumsum(lengths)
    cuts = np.unique(np.concatenate(([0], ends, np.arange(0, ends[-1], length))))
    which = ends.searchsorted(cuts[:-1], "right")
    before = ends[which] - lengths[which]
    bounds = np.append(cuts[:-1].searchsorted(np.arange(0, ends[-1], length)), len(which))
    return which, cuts[:-1] - before, cuts[1:] - before, bounds


def _best_fit(lengths: NDArray[np.int64], length: int) -> _Packed:
    """Pack documents by best-fit decreasing. Packs are ordered by their first piece, and pieces by their documents."""
    counts = -(-lengths // length)
    which = np.repeat(np.arange(len(lengths)), counts)
    starts = (np.arange(len(which)) - np.repeat(np.cumsum(counts) - counts, counts)) * length
    stops = np.minimum(starts + length, lengths[which])
    packs = _assigned(stops - starts, length)
    order = np.argsort(packs, kind="stable")
    bounds = np.flatnonzero(np.concatenate(([True], np.diff(packs[order]) > 0)))
    # Packs were opened by length; their order must not depend on it.
    sizes = np.diff(np.append(bounds, len(order)))
    by_first = np.argsort(order[bounds], kind="stable")
    first, sizes = bounds[by_first], sizes[by_first]
    ends = np.cumsum(sizes)
    order = order[np.arange(len(order)) + np.repeat(first - (ends - sizes), sizes)]
    return which[order], starts[order], stops[order], np.concatenate(([0], ends))


def _assigned(sizes: NDArray[np.int64], length: int) -> NDArray[np.int64]:
    """Return the number of the pack of each piece, by best-fit decreasing; equal pieces are taken in order.

    Packs with equal room are kept together. While the fullest pack with room for a piece takes it, this pack stays the
    fullest one. So all packs of one room take as many pieces of one size as fit, in one step.
    """
    # A sort of 16-bit numbers is a radix sort.
    order = np.argsort((length - sizes).astype(np.uint16 if length <= 1 << 16 else np.int64), kind="stable")
    found, assigned = sizes[order], np.empty(len(sizes), np.int64)
    starts = np.flatnonzero(np.concatenate(([True], found[1:] != found[:-1])))
    with_room: dict[int, list[int]] = {}  # packs by their room; the last one is used first
    rooms: list[int] = []  # these rooms, ascending
    opened = 0

    def put(room: int, packs: list[int]) -> None:
        if room and packs:
            if room not in with_room:
                with_room[room] = []
                insort(rooms, room)
            with_room[room] += packs

    for start, stop in zip(starts.tolist(), [*starts[1:].tolist(), len(found)], strict=True):
        size, place = int(found[start]), start
        while place < stop:
            at = bisect_left(rooms, size)
            room = rooms[at] if at < len(rooms) else length
            fit = min(room // size, stop - place)
            needed = -(-(stop - place) // fit)
            if at < len(rooms):
                packs = with_room[room]
                taken, rest = packs[-needed:], packs[:-needed]
                del with_room[room], rooms[at]
                put(room, rest)
            else:
                taken = list(range(opened, opened + needed))
                opened += needed
            pieces = min(stop - place, fit * len(taken))
            assigned[place : place + pieces] = np.repeat(taken, fit)[:pieces]
            full, more = divmod(pieces, fit)
            put(room - fit * size, taken[:full])
            put(room - more * size, taken[full : full + 1] if more else [])
            place += pieces
    packed = np.empty(len(sizes), np.int64)
    packed[order] = assigned
    return packed
