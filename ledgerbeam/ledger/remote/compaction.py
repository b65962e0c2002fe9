"""Compaction: one snapshot replaces many segments, so that a host new to a ledger has few objects to read.

A snapshot consists of objects in the format of segments, and is folded like them. It holds the registered sources, the
leaves of open sources as they were written, and the sums of all other leaves (`snapshot`). Its manifest is created last
and names the objects that it replaces; only then are these deleted. A crash before the manifest leaves parts that no
host reads. A crash after it leaves objects that the next compaction deletes.

All parts show the sidecar at one moment, at which all replaced objects were folded. Other processes may write, read
and compact meanwhile. Two snapshots may overlap: their entries are a set.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from operator import itemgetter
from typing import Any

from ledgerbeam.ledger.lmdb import jobs as lmdb_jobs
from ledgerbeam.ledger.lmdb.environment import Environment
from ledgerbeam.ledger.lmdb.sources import numbers_of
from ledgerbeam.ledger.lmdb.tables import COMPLETED, GONE, RETIRED, RUNS, SOURCES, SUPERSEDED, Transaction, read_run_key
from ledgerbeam.ledger.lmdb.withdrawal import decode_superseded
from ledgerbeam.ledger.model.faults import fault_point
from ledgerbeam.ledger.model.rows import Leaf
from ledgerbeam.ledger.model.values import decode
from ledgerbeam.ledger.remote import apply as sidecar
from ledgerbeam.ledger.remote import replay
from ledgerbeam.ledger.remote.registration import cutoffs, highest_number, mark_folded
from ledgerbeam.ledger.remote.segment import (
    Objects,
    Segment,
    checksum_of,
    create_own,
    decode_segment,
    encode_segment,
    read_source,
)
from ledgerbeam.ledger.remote.snapshot import cutoff_pages, state_pages
from ledgerbeam.ledger.remote.store import RemoteStore

_PART_LEAVES = 50_000
_DELETED_AT_ONCE = 100


@dataclass(frozen=True, slots=True)
class Compaction:
    """The result of a compaction.

    Attributes:
        replaced: Number of objects that the new snapshot replaces.
        parts: Number of objects of the snapshot.
        bytes: Size of these objects together.
    """

    replaced: int
    parts: int
    bytes: int


def compact(store: RemoteStore) -> Compaction:
    """Replace all segments and snapshots of a ledger by one snapshot. Do nothing if there is only one snapshot.

    Raises:
        LedgerDamagedError: An object is damaged; nothing was deleted.
        StorageError: The store does not answer. Objects were deleted only if the snapshot has their content.
    """
    for _ in range(replay.FOLDS):
        # Another compaction may delete objects that this one replaces. Then leaves of open sources would be missing
        # here, and a reader that has folded everything that this snapshot covers would not search for them elsewhere.
        with contextlib.suppress(replay.Overtaken):
            return _compact(store)
    return Compaction(0, 0, 0)


def _compact(store: RemoteStore) -> Compaction:
    objects, environment = store.parts()
    replayer = replay.Replayer(objects, environment)
    listed = replayer.fold_new()
    segments = [name for name in listed if not name.startswith(replay.SNAPSHOTS)]
    manifests = [name for name in listed if name.startswith(replay.SNAPSHOTS)]
    if not segments and len(manifests) < 2:
        return Compaction(0, 0, 0)
    old = _parts_of(objects, manifests)
    # Other processes of this host fold meanwhile. A row that moves between tables from one read to the next (when a
    # source is replaced) would be in no part, although the snapshot covers the object with the registration.
    with environment.read() as txn:
        snapshot = _Snapshot(objects, txn, manifests)
        for segment in _segments(objects, txn, segments, old, snapshot.number):
            snapshot.add(segment)
    covers = [*segments, *manifests, *old]
    snapshot.finish(environment, covers)
    # A host new to the ledger needs the parts of a former snapshot as long as its manifest exists.
    # Live launchers write their claims again. Claims of dead launchers would be read again and again.
    for gone in ([*segments, *manifests], list(old), replayer.claims):
        for start in range(0, len(gone), _DELETED_AT_ONCE):
            fault_point("compact.delete")
            objects.delete(gone[start : start + _DELETED_AT_ONCE])
    return Compaction(len(covers), len(snapshot.parts), snapshot.bytes)


class _Snapshot:
    def __init__(self, objects: Objects, txn: Transaction, before: Sequence[str]) -> None:
        self._objects = objects
        self.number = highest_number(txn)
        job = lmdb_jobs.read_job(txn)
        self._job = None if job is None else job.fingerprint
        self._name = replay.snapshot_name(self.number, before)
        self.parts: dict[str, str] = {}
        self.bytes = 0

    def add(self, segment: Segment) -> None:
        name = f"{self._name}/{len(self.parts) + 1:06d}.seg"
        data = encode_segment(replace(segment, job=self._job, at=round(time.time(), 3)))
        create_own(self._objects, name, data)
        self.parts[name] = checksum_of(data)
        self.bytes += len(data)

    def finish(self, environment: Environment, covers: Sequence[str]) -> None:
        name = f"{self._name}.json"
        fault_point("compact.before_manifest")
        create_own(
            self._objects,
            name,
            replay.encode_manifest(replay.SnapshotManifest(self._name, self.number, self.parts, covers)),
        )
        fault_point("compact.after_manifest")

        def change(txn: Transaction) -> None:
            for folded in (name, *self.parts):
                mark_folded(txn, folded)

        environment.write(change)


def _segments(
    objects: Objects, txn: Transaction, names: Sequence[str], old: Mapping[str, str], number: int
) -> Iterator[Segment]:
    """Yield the parts of a snapshot, in the order of folding.

    It has the rows of the sidecar in the transaction, whose greatest number is `number`. It replaces the segments
    `names`, and `old`: the parts of earlier snapshots, with their checksums.
    """
    yield from _states(cutoff_pages(txn), number)
    for page in txn.pages(SOURCES):  # one segment for each number of a registration
        rows = [decode(row) for _, row in page]
        found = sorted(((number, row) for row in rows for number in numbers_of(row)), key=itemgetter(0))
        for own, group in groupby(found, key=itemgetter(0)):
            columns = ([row[name] for name in ("url", "size", "version", "members") if name in row] for _, row in group)
            yield Segment(own, sources=[*map(read_source, columns)])
    yield from _open_leaves(objects, txn, names, old)
    yield from _states(state_pages(txn), number)
    for page in txn.pages(RUNS):
        yield Segment(number, runs={read_run_key(key): decode(row) for key, row in page})
    gone = [source for source, _ in txn.scan(GONE, b"")]
    yield Segment(sidecar.read_number(txn, sidecar.KEY_GONE), gone=gone)
    yield from _deletions(objects, txn, [name for name in names if replay.lists_deletions(name)])


def _parts_of(objects: Objects, manifests: Sequence[str]) -> dict[str, str]:
    parts: dict[str, str] = {}
    for name, data in replay.read_listed(objects, manifests):
        parts |= replay.decode_manifest(data, f"{objects.url}/{name}").parts
    return parts


def _open_leaves(objects: Objects, txn: Transaction, names: Sequence[str], old: Mapping[str, str]) -> Iterator[Segment]:
    """Yield the leaves of sources that are not complete, as they were written, grouped by their writers' numbers.

    Leaves of unregistered sources are included, so that a source whose outputs they overwrote stays open on every host.
    """
    wanted: dict[int, list[Leaf]] = {}
    count = 0
    for name, data in replay.read_listed(objects, [*names, *old], old):
        segment = decode_segment(data, f"{objects.url}/{name}")
        leaves = [
            leaf
            for leaf in segment.leaves
            if txn.get(RETIRED, leaf.source_id) is None
            and txn.get(COMPLETED, leaf.source_id) is None
            and segment.number >= cutoffs(txn, leaf.source_id)[0]
        ]
        wanted.setdefault(segment.number, []).extend(leaves)
        count += len(leaves)
        if count >= _PART_LEAVES:
            yield from _of_leaves(wanted)
            wanted, count = {}, 0
    yield from _of_leaves(wanted)


def _of_leaves(wanted: dict[int, list[Leaf]]) -> Iterator[Segment]:
    for number, leaves in wanted.items():
        for start in range(0, len(leaves), _PART_LEAVES):
            yield Segment(number, leaves=leaves[start : start + _PART_LEAVES])


def _deletions(objects: Objects, txn: Transaction, names: Sequence[str]) -> Iterator[Segment]:
    """Yield the names of deleted outputs in segments, unless former snapshots repeat them; see `UnnamedOutputs`."""
    kept = {decode_superseded(row)[1] for page in txn.pages(SUPERSEDED) for _, row in page}
    for name, data in replay.read_listed(objects, names):
        segment = decode_segment(data, f"{objects.url}/{name}")
        yield Segment(segment.number, dropped=[name for name in segment.dropped if name not in kept])


def _states(pages: Iterable[dict[str, Any]], number: int) -> Iterator[Segment]:
    for state in pages:
        if any(state.values()):
            yield Segment(number, state=state)
