"""Functions of tasks that find clusters with more pairs than one process can join, by large stars and small stars.

Records are ordered by their hashes. In the end each cluster is a star: edges from its least record to all others.

All stages exchange rows. The key of a row is the hash of a record. Rows with numbers below `LEADING` are leading rows:
if the rows of a key are divided among parts of a bucket, each part can read all leading rows of the key.

    stage         key      leading rows                                  other rows
    stars         record   least record of its tree, and its details     records of which it is the least
    large stars   record   lesser records
    small stars   record   lesser records                                greater records
    labels        cluster  first record, and the record that stays       other records of the cluster
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from struct import Struct

import numpy as np
from numpy.typing import NDArray

from ledgerbeam import stats
from ledgerbeam.io.exchange.forest import Forest, Nodes, file_nodes, join_forests, span
from ledgerbeam.io.exchange.hash_run import (
    CHANGES,
    HASH_BYTES,
    LEADING,
    Edges,
    Hashes,
    HashRows,
    hash_rows,
    hashes_in,
    large_star,
    ranked,
    small_star,
)
from ledgerbeam.sources.buckets import GatheredRecords
from ledgerbeam.transforms.dedup.duplicates import HashedRecords, OfBucket, Trees, first_of_groups, node_hashes

# Header of a member: number of the record in its file, number of records of the tree that it represents, and size of
# its score in bytes. The score and the name of the file follow.
_MEMBER = Struct("<QII")
_ROWS = 1 << 18  # number of rows that are read together


class MakeStars(OfBucket):
    """Turn each tree of pairs into a star around its least record."""

    def found(self, gathered: GatheredRecords) -> HashedRecords | None:
        """Return a row with details for each record, keyed by it, and for each edge a row keyed by its least record."""
        forest = join_forests(map(Forest.decode, (data for part in gathered.merged() for data in part.payloads)))
        if forest is None:
            return None
        hashes = node_hashes(forest, forest.nodes)
        nodes, (places,) = ranked(hashes)
        least = places.copy()
        np.minimum.at(least, forest.roots, places)
        least = least[forest.roots]
        others = np.flatnonzero(least != places)
        centers = _at(nodes, least)
        members = [center + member for center, member in zip(hash_rows(centers), _encoded(forest), strict=True)]
        return _numbered([hashes], [_at(centers, others)], [*members, *hash_rows(_at(hashes, others))])


def _encoded(forest: Forest) -> Iterator[bytes]:
    """Yield the details of each record of a forest: its number, its score and its file; see `_MEMBER`."""
    scores = [b""] * len(forest) if forest.scores is None else forest.scores.tolist()
    for node, score in zip(forest.nodes.tolist(), scores, strict=True):
        name, number = forest.place(node)
        yield _MEMBER.pack(number, 0, len(score)) + score + name


class TurnLargeStars(OfBucket):
    """Connect the greater neighbours of a record with its least neighbour."""

    def found(self, gathered: GatheredRecords) -> HashedRecords | None:
        """Return edges, keyed by their greater record. Count edges that are not in a star yet: 0 in the last round."""
        of, to, own = _edges(gathered)
        nodes, (ones, others) = ranked(of, to)
        found, changes = large_star(Edges(ones, others), len(nodes.high), own)
        if changes:
            stats.count(CHANGES, changes)
        return _numbered([_at(nodes, found.of)], [], hash_rows(_at(nodes, found.to)))


class TurnSmallStars(OfBucket):
    """Connect a record and its lesser neighbours with the least of them."""

    def found(self, gathered: GatheredRecords) -> HashedRecords | None:
        """Return each edge twice, keyed by its greater and by its lesser record."""
        of, to, _ = _edges(gathered)
        nodes, (ones, others) = ranked(of, to)
        found = small_star(Edges(ones, others), len(nodes.high))
        greater, lesser = _at(nodes, found.of), _at(nodes, found.to)
        return _numbered([greater], [lesser], hash_rows(_joined([lesser, greater])))


class FindLabels(OfBucket):
    """Find the cluster of each record. The least record of a cluster names it."""

    def found(self, gathered: GatheredRecords) -> HashedRecords | None:
        """Return the records, keyed by cluster. Leading rows: its first record, and the record that may stay."""
        keys, labels = [_NONE], [_NONE]
        payloads: list[bytes] = []
        targets: list[bytes] = []
        for rows in gathered.hashes(_ROWS):
            if rows.payloads is None:
                continue
            sizes = np.fromiter(map(len, rows.payloads), np.int64, len(rows))
            leading = rows.numbers < LEADING
            is_member, is_label = leading & (sizes > HASH_BYTES), leading & (sizes == HASH_BYTES)
            keys.append(Hashes(rows.high[is_member], rows.low[is_member]))
            payloads += [data[HASH_BYTES:] for data in rows.payloads[is_member].tolist()]
            labels.append(Hashes(rows.high[is_label], rows.low[is_label]))
            targets += rows.payloads[is_label].tolist()
        nodes, (named, labelled) = ranked(_joined(keys), _joined(labels))
        roots = Hashes(nodes.high.copy(), nodes.low.copy())
        roots.high[labelled], roots.low[labelled] = hashes_in(b"".join(targets))
        _, firsts = np.unique(named, return_index=True)  # each forest with the record gives a row
        return self._by_cluster(_at(roots, named[firsts]), [payloads[place] for place in firsts.tolist()])

    def _by_cluster(self, clusters: Hashes, payloads: list[bytes]) -> HashedRecords | None:
        if not payloads:
            return None
        _, (groups,) = ranked(clusters)
        forest, places = _members(payloads).forest(groups)
        sizes = np.bincount(forest.roots, minlength=len(forest))[places]
        is_first = forest.roots[places] == places
        leads = is_first | (forest.best()[places] == places)
        for place in np.flatnonzero(is_first).tolist():
            number, _, score = _MEMBER.unpack_from(payloads[place])
            payloads[place] = _MEMBER.pack(number, sizes[place], score) + payloads[place][_MEMBER.size :]
        first, behind = np.flatnonzero(leads), np.flatnonzero(~leads)
        ordered = [payloads[place] for place in (*first.tolist(), *behind.tolist())]
        return _numbered([_at(clusters, first)], [_at(clusters, behind)], ordered)


def member_trees(gathered: GatheredRecords) -> Trees | None:
    """Return the clusters in a part of a bucket. If one continues in another part, add its leading rows."""
    parts = [rows for rows in gathered.hashes(_ROWS) if len(rows)]
    count = sum(map(len, parts))
    if not count:
        return None
    cut = set(gathered.cut_keys)
    if cut:
        parts.append(gathered.leading_of_cut_keys())
    keys, (groups,) = ranked(_joined([Hashes(rows.high, rows.low) for rows in parts]))
    members = _members([data for rows in parts for data in _payloads(rows)])
    forest, places = members.forest(groups)
    own = np.zeros(len(forest), np.bool_)
    own[places[:count]] = True
    # The leading rows of divided clusters are there twice.
    is_cut = np.array([key in cut for key in hash_rows(keys)], np.bool_)[groups]
    are_cut = np.zeros(len(forest), np.bool_)
    are_cut[places[is_cut]] = True
    is_cut[count:] = False
    sizes = np.bincount(forest.roots[places[~is_cut]], members.sizes[~is_cut], len(forest)).astype(np.int64)
    sizes[~own] = 0
    return Trees(forest, own, sizes, are_cut)


@dataclass(frozen=True)
class _ClusterMembers:
    """Members of clusters, as columns."""

    names: list[bytes]  # name of the file of each record
    numbers: Nodes  # number of each record in its file
    scores: list[bytes]
    sizes: NDArray[np.int64]  # number of records of the tree that each record represents

    def forest(self, groups: NDArray[np.int64]) -> tuple[Forest, NDArray[np.int64]]:
        """Return the forest of the records, and the position of each record in it.

        `groups` has the number of the cluster of each record.
        """
        urls, nodes = file_nodes(self.names, np.arange(len(self.names)), self.numbers)
        order, firsts = first_of_groups(groups)
        scores = None
        if any(self.scores):
            scores = np.empty(len(self.scores), object)
            scores[:] = self.scores
        forest = span(urls, nodes, order, firsts, scores)
        return forest, np.searchsorted(forest.nodes, nodes)


def _members(payloads: Sequence[bytes]) -> _ClusterMembers:
    names, numbers, scores, sizes = [], [], [], []
    for data in payloads:
        number, size, score = _MEMBER.unpack_from(data)
        stop = _MEMBER.size + score
        names.append(data[stop:])
        scores.append(data[_MEMBER.size : stop])
        numbers.append(number)
        sizes.append(size)
    return _ClusterMembers(names, np.array(numbers, np.uint64), scores, np.array(sizes, np.int64))


def _edges(gathered: GatheredRecords) -> tuple[Hashes, Hashes, NDArray[np.bool_]]:
    """Return the edges of a part: first record, second record, and False for an added leading row of a divided key."""
    of, to = [_NONE], [_NONE]
    for rows in gathered.hashes(_ROWS):
        of.append(Hashes(rows.high, rows.low))
        to.append(_targets(rows))
    count = sum(len(one.high) for one in of)
    if gathered.cut_keys:
        rows = gathered.leading_of_cut_keys()
        of.append(Hashes(rows.high, rows.low))
        to.append(_targets(rows))
    both = _joined(of)
    return both, _joined(to), np.arange(len(both.high)) < count


def _targets(rows: HashRows) -> Hashes:
    """Return the hash at the start of each payload."""
    return hashes_in(b"".join([data[:HASH_BYTES] for data in _payloads(rows)]))


def _payloads(rows: HashRows) -> list[bytes]:
    found: list[bytes] = [] if rows.payloads is None else rows.payloads.tolist()
    return found


_NONE = Hashes(np.zeros(0, np.uint64), np.zeros(0, np.uint64))


def _joined(some: Sequence[Hashes]) -> Hashes:
    return Hashes(np.concatenate([one.high for one in some]), np.concatenate([one.low for one in some]))


def _at(hashes: Hashes, places: NDArray[np.int64]) -> Hashes:
    return Hashes(hashes.high[places], hashes.low[places])


def _numbered(first: Sequence[Hashes], behind: Sequence[Hashes], payloads: Sequence[bytes]) -> HashedRecords | None:
    """Return rows with unique numbers: leading rows with the keys `first`, then other rows with the keys `behind`.

    Return None if there are no keys.
    """
    keys = _joined([_NONE, *first, *behind])
    numbers = np.arange(len(keys.high), dtype=np.uint64)
    numbers[sum(len(one.high) for one in first) :] += np.uint64(LEADING)
    return HashedRecords(keys, numbers, payloads) if len(numbers) else None
