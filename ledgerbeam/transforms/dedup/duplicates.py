"""Exact and near duplicates: functions of tasks that find the records to remove, or write the remaining records.

Three functions find near duplicates: one signs records, one pairs records that share a band, and one finds clusters.
Records that are connected by pairs form a tree. A forest (`Forest`) holds the trees of many records.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, repeat
from typing import Any, ClassVar, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ledgerbeam import stats
from ledgerbeam._base.redaction import without_secrets
from ledgerbeam.errors import FunctionError, LedgerbeamError, RecordError
from ledgerbeam.io import ShardFile
from ledgerbeam.io.exchange.forest import NUMBER_BITS, PAIRS_BYTES, Forest, Nodes, file_nodes, join_forests, span
from ledgerbeam.io.exchange.hash_run import Hashes, HashRows, encode_hashes, hash_rows, hashes_in
from ledgerbeam.io.exchange.run_file import SUFFIX
from ledgerbeam.io.exchange.slices import EARLIER
from ledgerbeam.io.lines.rows import ByteRows
from ledgerbeam.ledger import FailedTask, NoneTask, Task
from ledgerbeam.sources.buckets import GatheredRecords
from ledgerbeam.sources.forms import FILE_SHIFT, PlacedPart, PlacedRecords
from ledgerbeam.sources.listed import file_key
from ledgerbeam.transforms.dedup.marks import note_of
from ledgerbeam.transforms.dedup.minhash import MinHash, finished
from ledgerbeam.transforms.exchange.keys import RecordKeys
from ledgerbeam.transforms.exchange.scatter import RunFileEncoder, ScatteredRecords, moved
from ledgerbeam.user_code.guards import failed_by, message_of

# Names of statistics of the deciding stages.
GROUP_SIZE, BY_SOURCE = "records of a duplicated key", "duplicates by source"
CLUSTER_SIZE, CANDIDATES = "records of a cluster", "records of a cluster before it is verified"

_TEXTS, _CHARACTERS = 4096, 1 << 22  # maximum number of texts, and of their characters, that are signed together
_ROWS = 1 << 21  # number of band hashes that are read together
_SHIFT = np.uint64(FILE_SHIFT)
_LOWER = np.uint64((1 << FILE_SHIFT) - 1)


class OfBucket(ABC):
    """Base of functions of one task, for `ProcessTask`, over the records of a part of a bucket."""

    takes_blocks: ClassVar[bool] = True

    def __call__(self, task: Task) -> Task | NoneTask | FailedTask:
        """Return the task with the result of `found`. An error of the library fails the task."""
        try:
            found = self.found(task.records)
        except LedgerbeamError as error:
            return failed_by(error, task, message_of(error))
        return NoneTask(task) if found is None else task.replace(records=found)

    @abstractmethod
    def found(self, gathered: GatheredRecords) -> Any:
        """Return the records to write, in the form that the encoder takes; None if there are none."""


@dataclass(frozen=True)
class FindDuplicates(OfBucket):
    """Find duplicates: per key, all but the best or first record."""

    mark: bool = False  # whether to list all records of a key that has duplicates, with notes (see `marks`)

    def found(self, gathered: GatheredRecords) -> HashedRecords | None:
        """Return the duplicates, with the key of its source file as the hash of each."""
        found = list(_duplicates(gathered))
        gone = HashRows.concatenated([duplicates for duplicates, _ in found]) if found else None
        if gone is None or not len(gone):
            return None
        kept = HashRows.concatenated([stay for _, stay in found])
        count_by_source(gathered, gone)
        if not self.mark:
            return by_file(gathered, gone)
        rows = kept.followed_by(gone)
        places = [gathered.place(*row) for row in zip(kept.runs.tolist(), kept.numbers.tolist(), strict=True)]
        # Both are in the order of their keys, and each record that stays has another key.
        of = (places[key] for key in (np.cumsum(gone.begin_groups()) - 1).tolist())
        clusters = hash_rows(Hashes(rows.high, rows.low))
        return by_file(gathered, rows, [*map(note_of, clusters, chain(repeat(None, len(kept)), of))])


def count_by_source(gathered: GatheredRecords, rows: HashRows) -> None:
    """Record the number of duplicates of each source file."""
    urls, files = _files_of(gathered, rows.runs, rows.numbers)
    for url, number in zip(urls, np.bincount(files).tolist(), strict=True):
        stats.top(BY_SOURCE, without_secrets(url), number)


def by_file(gathered: GatheredRecords, rows: HashRows, notes: Sequence[bytes] | None = None) -> HashedRecords:
    """Return records for lists, with their notes. As its hash, each has the `file_key` of its source file."""
    urls, files = _files_of(gathered, rows.runs, rows.numbers)
    numbers = rows.numbers & _LOWER
    order = np.argsort(numbers, kind="stable")
    high, low = hashes_in(b"".join(map(file_key, urls)))
    ordered = None if notes is None else [notes[place] for place in order.tolist()]
    return HashedRecords(Hashes(high[files[order]], low[files[order]]), numbers[order], ordered)


def _duplicates(gathered: GatheredRecords) -> Iterator[tuple[HashRows, HashRows]]:
    """Yield duplicates, and for each of their keys the record that stays.

    It is better than the duplicates, or as good and earlier. The records that stay follow once their key is complete.
    """
    best: HashRows | None = None  # the best record of the last key of the previous block, and the key's records so far
    size = 0
    for rows in gathered.hashes(_ROWS):
        if not len(rows):
            continue
        if best is not None:
            rows = best.followed_by(rows)  # noqa: PLW2901
        firsts = np.flatnonzero(rows.begin_groups())
        sizes = np.diff(firsts, append=len(rows))
        kept = firsts.copy()
        if rows.payloads is not None:  # scores. Records come in order, so the first of equal ones stays
            for group in np.flatnonzero(sizes > 1).tolist():
                start = int(firsts[group])
                kept[group] = min(range(start, start + int(sizes[group])), key=rows.payloads.__getitem__)
        others = np.ones(len(rows), np.bool_)
        others[kept] = False
        sizes[0] += max(0, size - 1)  # the best record of the previous block stands for the others
        _observe_sizes(sizes[:-1])
        yield rows.at(others), rows.at(kept[:-1][sizes[:-1] > 1])
        best, size = rows.at(kept[-1:]), int(sizes[-1])
    _observe_sizes(np.array([size]))
    if best is not None and size > 1:
        yield best.at(slice(0)), best


def _observe_sizes(sizes: NDArray[np.int64]) -> None:
    for size in sizes[sizes > 1].tolist():
        stats.observe(GROUP_SIZE, size)


def _files_of(
    gathered: GatheredRecords, runs: NDArray[np.uint32], numbers: NDArray[np.uint64]
) -> tuple[list[str], NDArray[np.int64]]:
    """Return the URLs of the source files of records, and for each record the position of its file there.

    A file of several tasks occurs several times.
    """
    # In a pack, the upper bits of a number name the file.
    files, position = np.unique((runs.astype(np.uint64) << _SHIFT) | (numbers >> _SHIFT), return_inverse=True)
    places = zip((files >> _SHIFT).tolist(), ((files & _LOWER) << _SHIFT).tolist(), strict=True)
    return [gathered.place(run, number)[0] for run, number in places], position


@dataclass(frozen=True)
class HashedRecords:
    """Records for a run file whose keys are hashes."""

    hashes: Hashes  # one hash per record, or a row of hashes per record
    numbers: NDArray[np.uint64]  # number of each record, ascending
    payloads: Sequence[bytes] | None = None  # payload of each record; None for no payloads

    def __len__(self) -> int:
        return len(self.numbers)


class HashEncoder(RunFileEncoder):
    """An encoder of `HashedRecords`."""

    def encode(self, records: HashedRecords) -> list[ShardFile]:
        hashes, numbers, payloads = records.hashes, records.numbers, records.payloads
        data = encode_hashes(hashes, numbers, payloads, self.cuts, self.block_bytes, mark=self.mark, level=self.level)
        return [ShardFile(SUFFIX, data, len(records))]


@dataclass(frozen=True)
class TextRecords:
    """Base of functions of one task that read the texts of records."""

    text: RecordKeys  # finds the text of a record

    def set_up(self) -> None:
        """Import the user's functions."""
        self.text.set_up()

    def texts(self, part: PlacedPart) -> Iterator[str]:
        """Yield the text of each record; empty for a record without a text."""
        place = -1
        try:
            for place, record in enumerate(part.records()):  # noqa: B007 - the error names it
                yield _text(self.text.value(record))
        except (RecordError, FunctionError) as error:
            if str(error).startswith(part.url):
                raise
            raise type(error)(f"{part.url}: record {int(part.numbers[place])}: {error}") from error


@dataclass(frozen=True)
class NearTexts(TextRecords):
    """Base of functions of one task that compare texts. Records without a text, or without words, are left out."""

    minhash: MinHash
    # Makes the score of a record. The best of near duplicates stays; None keeps the first.
    score: RecordKeys | None = None

    def set_up(self) -> None:
        super().set_up()
        if self.score is not None:
            self.score.set_up()

    def batches(self, records: PlacedRecords) -> Iterator[tuple[int, list[str]]]:
        """Yield groups of texts, each with the position of the group's first record."""
        first, size, held = 0, 0, list[str]()
        for text in chain.from_iterable(map(self.texts, records.parts)):
            held.append(text)
            size += len(text)
            if size > _CHARACTERS or len(held) == _TEXTS:
                yield first, held
                first, size, held = first + len(held), 0, []
        if held:
            yield first, held


@dataclass(frozen=True)
class SignRecords(NearTexts):
    """A function of one task, for `ProcessTask`, that signs each record: it returns the hash of each band as a key."""

    def __call__(self, task: Task) -> Task | NoneTask | FailedTask:
        """Return the task with `HashedRecords`, without the records that have no words."""
        records: PlacedRecords = task.records
        try:
            scores = None if self.score is None else self.score.of(records)
            kept, hashes = self._signed(records)
        except LedgerbeamError as error:
            return failed_by(error, task, message_of(error))
        payloads = None if scores is None else [scores[place] for place in kept.tolist()]
        return moved(task, HashedRecords(hashes, records.places[kept], payloads), len(records) - len(kept))

    def _signed(self, records: PlacedRecords) -> tuple[NDArray[np.int64], Hashes]:
        """Return the positions of records that have bands, and the bands."""
        found = [self.minhash.sign([])]
        places = [np.zeros(0, np.int64)]
        for first, some in self.batches(records):
            bands = self.minhash.sign(some)
            found.append(bands)
            places.append(bands.places + first)
        high, low = (np.concatenate([getattr(one.hashes, name) for one in found]) for name in Hashes._fields)
        return np.concatenate(places), Hashes(high, low)


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if value is None:
        return ""
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError as error:
            raise RecordError(f"expected text in UTF-8, found other bytes ({error})") from error
    raise RecordError(f"expected text or null, found a {type(value).__name__}; name a field with text")


@dataclass(frozen=True)
class PairRecords(OfBucket):
    """Connect records with an equal hash, as trees of a forest."""

    # Whether to connect records of earlier jobs with each other. Those jobs have compared them.
    among_earlier: bool = False

    def found(self, gathered: GatheredRecords) -> ScatteredRecords | None:
        """Return the forest as the one record of a run file."""
        forest = join_forests(_forests(gathered, 0 if self.among_earlier else gathered.earlier))
        if forest is None:
            return None
        pairs = forest.encode()
        stats.count(PAIRS_BYTES, len(pairs))
        return ScatteredRecords(ByteRows.of([b""]), np.zeros(1, np.uint64), ByteRows.of([pairs]))


def _forests(gathered: GatheredRecords, earlier: int) -> Iterator[Forest]:
    """Yield a forest for each block of hashes. Records of the first `earlier` run files are not paired together."""
    before: HashRows | None = None  # the first record of the last hash of the previous block
    for rows in gathered.hashes(_ROWS):
        if not len(rows):
            continue
        if before is not None:
            rows = before.followed_by(rows)  # noqa: PLW2901
        begins = rows.begin_groups()
        firsts = np.maximum.accumulate(np.where(begins, np.arange(len(rows)), 0))
        before = rows.at(firsts[-1:])
        later = np.flatnonzero(~begins & (rows.runs >= earlier))
        if len(later):
            yield forest_of(gathered, rows, later, firsts[later])


def first_of_groups(labels: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return all positions in the order of their labels, and for each of them the first position with its label."""
    order = np.argsort(labels, kind="stable")
    begins = np.diff(labels[order], prepend=-1) != 0
    return order, order[np.maximum.accumulate(np.where(begins, np.arange(len(order)), 0))]


def forest_of(gathered: GatheredRecords, rows: HashRows, later: NDArray[np.int64], firsts: NDArray[np.int64]) -> Forest:
    """Return the forest that connects, for each i, the records at the positions ``later[i]`` and ``firsts[i]``."""
    paired = np.zeros(len(rows), np.bool_)
    paired[firsts] = paired[later] = True
    places = np.cumsum(paired) - 1
    some = rows.at(paired)
    urls, position = _files_of(gathered, some.runs, some.numbers)
    encoded = [url.encode("utf-8", "surrogateescape") for url in urls]
    names, nodes = file_nodes(encoded, position, some.numbers & _LOWER)
    return span(names, nodes, places[later], places[firsts], some.payloads)


def _url(name: bytes) -> str:
    return name.decode("utf-8", "surrogateescape").removeprefix(EARLIER)


@dataclass(frozen=True)
class Trees:
    """Trees of connected records in a task. A tree may continue in other tasks."""

    forest: Forest  # the records
    own: NDArray[np.bool_]  # mask of the records of this task. The other records may be kept in their place
    # Number of records of each tree, at the position of its first record if that is of this task; otherwise 0
    sizes: NDArray[np.int64]
    are_cut: NDArray[np.bool_]  # mask of the records of trees that continue in other tasks

    @classmethod
    def whole(cls, forest: Forest) -> Trees:
        """Return the trees of a forest that has all records of each tree."""
        count = len(forest)
        sizes = np.bincount(forest.roots, minlength=count)
        return cls(forest, np.ones(count, np.bool_), sizes, np.zeros(count, np.bool_))

    def may_have_later(self) -> NDArray[np.bool_]:
        """Return a mask of the records whose tree has, or may have in another task, a record of this job."""
        roots = self.forest.roots
        later = ~self.forest.are_earlier() | self.are_cut
        found: NDArray[np.bool_] = (np.bincount(roots, later, len(roots)) > 0)[roots]
        return found


# A function that returns the connected records of a part of a bucket; None if there are none.
TreeReader: TypeAlias = Callable[[GatheredRecords], Trees | None]


def joined_trees(gathered: GatheredRecords) -> Trees | None:
    """Return the trees of all forests in the run files, joined."""
    forest = join_forests(map(Forest.decode, gathered.unmerged()))
    return None if forest is None else Trees.whole(forest)


@dataclass(frozen=True)
class FindClusters(OfBucket):
    """Find the records to remove: of each tree all records but one."""

    trees: TreeReader
    mark: bool = False  # whether to list all records of the trees, with notes (see `marks`)

    def found(self, gathered: GatheredRecords) -> HashedRecords | None:
        """Return the records, with the key of its source file as the hash of each."""
        trees = self.trees(gathered)
        if trees is None:
            return None
        forest = trees.forest
        best, own = forest.best(), ~forest.are_earlier() & trees.own
        is_gone = best != np.arange(len(forest))
        gone = np.flatnonzero(is_gone & own)
        _observe(trees, gone)
        if not self.mark:
            return _of_forest(forest, forest.nodes[gone])
        several = (np.bincount(forest.roots, minlength=len(forest))[forest.roots] > 1) | trees.are_cut
        listed = np.flatnonzero(several & own)
        clusters = hash_rows(node_hashes(forest, forest.nodes[forest.roots[listed]]))
        places = (
            _place(forest, int(other)) if gone else None
            for other, gone in zip(best[listed].tolist(), is_gone[listed].tolist(), strict=True)
        )
        notes = [*map(note_of, clusters, places)]
        return replace(_of_forest(forest, forest.nodes[listed]), payloads=notes)


@dataclass(frozen=True)
class FindCandidates(OfBucket):
    """Find candidates: the records of each tree. A later stage compares them with each other.

    Trees with records of earlier jobs only are skipped, because they cannot change the result.
    """

    trees: TreeReader = joined_trees

    def found(self, gathered: GatheredRecords) -> HashedRecords | None:
        """Return the records, each with two hashes: the key of its source file, and as payload the hash of its tree.

        The hash of a tree is the hash of its first record, so it stays the same when other records change.
        """
        trees = self.trees(gathered)
        if trees is None:
            return None
        compared = trees.may_have_later()
        for size in trees.sizes[(trees.sizes > 0) & compared].tolist():
            stats.observe(CANDIDATES, size)
        forest, compared = trees.forest, compared & trees.own
        found = _of_forest(forest, forest.nodes[compared])
        return replace(found, payloads=hash_rows(node_hashes(forest, forest.nodes[forest.roots[compared]])))


def node_hashes(forest: Forest, nodes: Nodes) -> Hashes:
    """Return a hash of each record of a forest, from its file and its number."""
    high, low = (lane[nodes >> NUMBER_BITS] for lane in _file_hashes(forest))
    numbers = nodes & _LOWER
    return Hashes(finished(high ^ finished(numbers)), finished(low + numbers))


def _observe(trees: Trees, gone: NDArray[np.int64]) -> None:
    """Record statistics: the sizes of clusters, and the files with the most removed records."""
    forest = trees.forest
    for size in trees.sizes[trees.sizes > 1].tolist():
        stats.observe(CLUSTER_SIZE, size)
    numbers = np.bincount((forest.nodes[gone] >> NUMBER_BITS).astype(np.int64), minlength=len(forest.urls))
    for file in np.flatnonzero(numbers).tolist():
        stats.top(BY_SOURCE, without_secrets(_url(forest.urls[file])), int(numbers[file]))


def _of_forest(forest: Forest, nodes: Nodes) -> HashedRecords:
    """Return records of a forest. As its hash, each record has the `file_key` of its source file."""
    high, low = _file_hashes(forest)
    files = nodes >> NUMBER_BITS
    return HashedRecords(Hashes(high[files], low[files]), nodes & _LOWER)


def _file_hashes(forest: Forest) -> Hashes:
    """Return the `file_key` of each source file of a forest, as a hash."""
    return hashes_in(b"".join(file_key(_url(url)) for url in forest.urls))


def _place(forest: Forest, record: int) -> tuple[str, int]:
    """Return the URL of the source file of a record, and its number there."""
    url, number = forest.place(int(forest.nodes[record]))
    return _url(url), number
