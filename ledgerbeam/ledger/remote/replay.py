"""Updating a sidecar: finding the objects of a ledger that it has not folded, and folding them."""

from __future__ import annotations

import contextlib
import gc
import os
import re
import secrets
import struct
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from operator import attrgetter
from types import MappingProxyType
from typing import NamedTuple

from ledgerbeam.errors import LedgerDamagedError, LedgerVersionError
from ledgerbeam.ledger.lmdb import jobs as lmdb_jobs
from ledgerbeam.ledger.lmdb.environment import Environment
from ledgerbeam.ledger.lmdb.tables import META, SUPERSEDED, Transaction
from ledgerbeam.ledger.model.claims import CLAIMS
from ledgerbeam.ledger.model.rows import Leaf
from ledgerbeam.ledger.model.values import decode, encode, integer, mapping, rows, shown, text
from ledgerbeam.ledger.remote import apply as sidecar
from ledgerbeam.ledger.remote import registration
from ledgerbeam.ledger.remote.controls import JOB_NAME, control_number, decode_control, decode_ledger, number_gap_error
from ledgerbeam.ledger.remote.segment import Objects, Segment, checksum_of, damaged, decode_segment, seal, unseal
from ledgerbeam.ledger.remote.snapshot import UnnamedOutputs

SEGMENTS = "segments"  # folder of the segments
SNAPSHOTS = "snapshots"  # folder of the snapshots

_NUMBER = "([0-9]{6,12})"
_SEGMENT = re.compile(rf"{SEGMENTS}/{_NUMBER}/([stz])-[A-Za-z0-9.-]{{1,200}}\.seg")
_SNAPSHOT_NAME = rf"{SNAPSHOTS}/{_NUMBER}-{_NUMBER}-[0-9a-f]{{8,64}}"
_MANIFEST = re.compile(rf"{_SNAPSHOT_NAME}\.json")
_PART = re.compile(rf"{_SNAPSHOT_NAME}/[0-9]{{6,12}}\.seg")
_CHECKSUM = re.compile("[0-9a-f]{32}")
_READ_AT_ONCE = 32
_BATCH_BYTES = 16 << 20
"""Size of segments that are folded in one transaction. A page of the sidecar is written once for each batch, and held
in memory until then; the size of the batch limits both."""

_UNKNOWN: Mapping[str, str] = MappingProxyType({})

FOLDS = 20  # number of attempts, each of which a compaction may invalidate, before an error is raised


class Overtaken(Exception):  # noqa: N818 - not an error: the listing is repeated
    """The listing is incomplete: an object is missing, or a compaction has replaced it by a snapshot."""


_CONTROL, _SNAPSHOT, _SOURCES, _TASKS, _SWEEP = range(5)
_KINDS = {"s": _SOURCES, "t": _TASKS, "z": _SWEEP}


INVALID_ROWS = (ValueError, struct.error)  # errors that folding raises for invalid values


class _Piece(NamedTuple):
    """An object to fold. Pieces sort in the order of folding: a source is registered before its tasks are recorded."""

    kind: int
    number: int
    name: str


class SnapshotManifest(NamedTuple):
    """The manifest of a snapshot, created after its parts. Without a manifest, parts are ignored."""

    name: str  # name of the snapshot, the folder of its parts. It prevents the use of an older manifest
    number: int  # the greatest number of a control object that was folded into it
    # Checksum of each of its objects by name, in the order of folding. It prevents the use of parts of an older
    # snapshot.
    parts: Mapping[str, str]
    covers: Sequence[str]  # names of the objects that it replaces


def segment_name(segment: Segment, number: int, writer: str, sequence: int) -> str:
    """Return the name of a writer's segment. Its letter is for sources, deleted outputs, or only tasks."""
    kind = "s" if segment.sources else "z" if segment.dropped else "t"
    return f"{SEGMENTS}/{number:06d}/{kind}-{writer}-{sequence:06d}.seg"


def snapshot_name(number: int, before: Sequence[str]) -> str:
    """Return the name of a new snapshot.

    It sorts after the names of all snapshots that it replaces, so that listings end with it.
    """
    ordinal = 1 + max((int(m[2]) for name in before if (m := _MANIFEST.fullmatch(name))), default=0)
    return f"{SNAPSHOTS}/{number:06d}-{ordinal:06d}-{secrets.token_hex(8)}"


def encode_manifest(manifest: SnapshotManifest) -> bytes:
    """Encode a manifest."""
    return seal(encode(_checked(manifest)._asdict()))


def decode_manifest(data: bytes, url: str) -> SnapshotManifest:
    """Decode the manifest of the snapshot that its URL names. Raises LedgerVersionError, LedgerDamagedError."""
    payload = unseal(data, url)
    try:
        fields = mapping(decode(payload))
        parts, covers = mapping(fields.get("parts")), rows(fields.get("covers"))
        name, number = text(fields.get("name")), integer(fields.get("number"))
        manifest = _checked(SnapshotManifest(name, number, parts, covers))
    except ValueError as error:
        raise damaged(url, f"{error}") from None
    if not url.endswith(f"/{name}.json"):
        raise damaged(url, f"its content has the name {name}.json")
    return manifest


def _checked(manifest: SnapshotManifest) -> SnapshotManifest:
    """Check a manifest that is written or read. Raises ValueError."""
    if not _MANIFEST.fullmatch(f"{manifest.name}.json"):
        raise ValueError(f"expected the name of a snapshot, found {shown(manifest.name)}")
    integer(manifest.number)
    for name, checksum in manifest.parts.items():
        if not _PART.fullmatch(name):
            raise ValueError(f"expected the name of a part of a snapshot, found {shown(name)}")
        if not isinstance(checksum, str) or not _CHECKSUM.fullmatch(checksum):
            raise ValueError(f"expected the checksum of a part of a snapshot, found {shown(checksum)}")
    for name in manifest.covers:
        if not isinstance(name, str) or not is_object(name):
            raise ValueError(f"expected the name of an object that a snapshot can replace, found {shown(name)}")
    return manifest


def lists_deletions(name: str) -> bool:
    """Return whether an object of this name is a segment with the names of deleted outputs."""
    match = _SEGMENT.fullmatch(name)
    return match is not None and _KINDS[match[2]] == _SWEEP


def is_object(name: str) -> bool:
    """Return whether a snapshot can replace an object of this name."""
    return any(pattern.fullmatch(name) for pattern in (_SEGMENT, _MANIFEST, _PART))


def read_listed(
    objects: Objects, names: Sequence[str], checksums: Mapping[str, str] = _UNKNOWN
) -> Iterator[tuple[str, bytes]]:
    """Yield the name and content of listed objects.

    They are read in chunks: large enough to hide the latency of requests, smaller after large objects. `checksums` has
    the checksums of parts of snapshots, from their manifests, by name.

    Raises:
        LedgerDamagedError: A part of a snapshot was lost, or has another checksum.
        Overtaken: An object does not exist any more.
    """
    start, count = 0, _READ_AT_ONCE
    while chunk := names[start : start + count]:
        found = objects.read(chunk)
        start += count
        size = sum(len(data) for data in found if data is not None)
        count = min(max(1, 2 * _BATCH_BYTES * len(chunk) // max(1, size)), _READ_AT_ONCE)
        for name, data in zip(chunk, found, strict=True):
            if data is None:
                raise _missing_error(objects, name)
            expected, checksum = checksums.get(name), checksum_of(data)
            if expected is not None and checksum != expected:
                manifest = f"{name.rpartition('/')[0]}.json"
                what = f"expected the checksum {expected} of {manifest}, found {checksum}"
                raise damaged(f"{objects.url}/{name}", what)
            yield name, data


def _missing_error(objects: Objects, name: str) -> Exception:
    """Return the exception for a missing object that was listed, or that a manifest names.

    A compaction deletes a manifest before its parts. So a missing part whose manifest exists was lost.
    """
    folder = name.rpartition("/")[0]
    if not _PART.fullmatch(name) or not objects.exists(f"{folder}.json"):
        return Overtaken()
    return LedgerDamagedError(
        f"{objects.url}/{name}: this part of a snapshot is missing, but its manifest exists. Restore the part from a "
        f"copy (a bucket with versions keeps one). If there is none, delete the manifest, {objects.url}/{folder}.json: "
        "work that only this snapshot recorded is done again"
    )


class Replayer:
    """Folds the objects of one ledger into one sidecar."""

    def __init__(self, objects: Objects, environment: Environment, job: bytes | None = None) -> None:
        """Create a replayer without a request. `job` is the content of ``job.json``; None reads it when needed."""
        self._objects = objects
        self._environment = environment
        self._job = job
        self._listed: list[str] = []
        self.claims: list[str] = []  # names of the claims in the last listing, which are not folded
        self.has_job = False  # whether the last listing had ``job.json``
        self._waited_for: set[str] = set()
        self._checksums: dict[str, str] = {}  # of parts of snapshots, from their manifests

    def fold_new(self) -> list[str]:
        """Fold all objects that are not folded yet. Return the names of the existing segments and snapshots.

        Raises LedgerDamagedError for a damaged object, and for a number that leaves a gap after the known numbers. All
        objects before the invalid object were folded.
        """
        for _ in range(FOLDS):
            with contextlib.suppress(Overtaken):
                return self._fold_listed(self._objects.names(""))
            self._waited_for.update(self._listed)
        raise LedgerDamagedError(
            f"ledger {self._objects.url}: in {FOLDS} attempts, listed objects did not exist when they were read. If "
            "another program deletes objects of the ledger, stop that program. Then run the same command again"
        )

    def _fold_listed(self, names: list[str]) -> list[str]:
        pieces = self._pieces(names)
        self.has_job = JOB_NAME in names
        if pieces or self.has_job:
            self.fold_job()
        todo = self._unfolded([piece.name for piece in pieces])
        while todo:
            for kind, group in groupby(sorted(piece for piece in pieces if piece.name in todo), attrgetter("kind")):
                some = [piece.name for piece in group]
                if kind == _CONTROL:
                    for name, data in self._read(some):
                        self.fold_control(name, data)
                else:
                    (self._fold_snapshots if kind == _SNAPSHOT else self._fold_segments)(some)
            with self._environment.read() as txn:
                todo = {piece.name for piece in pieces if registration.are_leaves_due(txn, piece.name)}
        return [piece.name for piece in pieces if piece.kind != _CONTROL]

    def _pieces(self, names: list[str]) -> list[_Piece]:
        """Return the objects to fold among all listed ones.

        The store lists objects by name, page by page. If a compaction deletes a segment before its page is listed, its
        snapshot is on a later page. A control object may be created after its page was listed, but before the page
        with segments of its number: `_require_number` detects this.
        """
        self._listed = names
        self.claims = [name for name in names if name.startswith(f"{CLAIMS}/")]
        numbers = ((control_number(name), name) for name in names)
        pieces = [_Piece(_CONTROL, number, name) for number, name in numbers if number is not None]
        pieces += [_Piece(_KINDS[m[2]], int(m[1]), name) for name in names if (m := _SEGMENT.fullmatch(name))]
        pieces += [_Piece(_SNAPSHOT, int(m[1]), name) for name in names if (m := _MANIFEST.fullmatch(name))]
        return pieces

    def _require_number(self, txn: Transaction, name: str, number: int, *, highest_beyond: int = 0) -> None:
        """Check that the number of an object is not greater than the numbers of the folded control objects.

        A listing, made page by page, may have an object, but lack a control object that was created before it.
        """
        highest = registration.highest_number(txn)
        if number > highest + highest_beyond:
            self._wait_once(name)
            raise number_gap_error(self._url(name), number, highest)

    def _wait_once(self, name: str) -> None:
        """Raise Overtaken, so that the objects are listed again, unless this was done for the object `name` already."""
        if name not in self._waited_for:
            raise Overtaken

    def _unfolded(self, names: Iterable[str]) -> set[str]:
        with self._environment.read() as txn:
            return {name for name in names if not registration.is_folded(txn, name)}

    def fold_job(self) -> None:
        """Apply the job that the ledger was created for, if the sidecar has no job."""
        with self._environment.read() as txn:
            if lmdb_jobs.read_job(txn) is not None:
                return
        (data,) = self._objects.read([JOB_NAME]) if self._job is None else [self._job]
        if data is None:
            return
        token, job = decode_ledger(data, self._url(JOB_NAME))

        def change(txn: Transaction) -> None:
            txn.put(META, sidecar.KEY_LEDGER, token.encode())
            if lmdb_jobs.read_job(txn) is None:
                lmdb_jobs.open_job(txn, job, "accept", self._objects.url)

        self._environment.write(change)

    def fold_control(self, name: str, data: bytes) -> None:
        """Fold a control object whose content is known.

        Raises LedgerDamagedError, and Overtaken if its number leaves a gap after the numbers of the last listing.
        """
        control = decode_control(data, self._url(name))
        if control.number != control_number(name):
            raise damaged(self._url(name), f"its content has number {control.number}")
        with self._environment.read() as txn:
            self._require_number(txn, name, control.number, highest_beyond=1)

        def change(txn: Transaction) -> None:
            try:
                sidecar.fold_control(txn, name, control, self._objects.url)
            except INVALID_ROWS as error:
                raise damaged(self._url(name), f"{error}") from None

        self._environment.write(change)

    def _fold_segments(self, names: Sequence[str], observe: Callable[[Segment], None] | None = None) -> None:
        batch: list[tuple[str, bytes]] = []
        size = 0
        for name, data in self._read(names):
            batch.append((name, data))
            size += len(data)
            if size >= _BATCH_BYTES or len(batch) >= _READ_AT_ONCE:
                self._fold_batch(batch, observe)
                batch, size = [], 0
        if batch:
            self._fold_batch(batch, observe)

    def _fold_batch(self, batch: Sequence[tuple[str, bytes]], observe: Callable[[Segment], None] | None) -> None:
        def change(txn: Transaction) -> None:
            lost: list[tuple[int, Leaf]] = []
            for name, data in batch:
                segment = decode_segment(data, self._url(name))
                self._require_number(txn, name, segment.number)
                if not registration.is_folded(txn, name) and sidecar.lacks_sources(txn, segment):
                    self._wait_once(name)  # their registrations were created after the listing had passed their names
                try:
                    of_snapshot = name.startswith(SNAPSHOTS)
                    leaves = sidecar.fold_segment(txn, name, segment, of_snapshot=of_snapshot)
                    lost += [(segment.number, leaf) for leaf in leaves]
                    if observe is not None:
                        observe(segment)
                except INVALID_ROWS as error:
                    raise damaged(self._url(name), f"{error}") from None
            registration.note_overwritten(txn, lost, time.time())

        with collector_paused():
            self._environment.write(change)

    def _fold_snapshots(self, names: list[str]) -> None:
        news = dict(self._read(names))
        for name, data in news.items():
            manifest = self._manifest(name, data)
            with self._environment.read() as txn:
                self._require_number(txn, name, manifest.number)
            unnamed = self._fold_parts(name, manifest, news) if self._unfolded(manifest.covers) else None

            def change(
                txn: Transaction,
                name: str = name,
                manifest: SnapshotManifest = manifest,
                unnamed: UnnamedOutputs | None = unnamed,
            ) -> None:
                if unnamed is not None:
                    unnamed.drop_unnamed(txn)
                for folded in (name, *manifest.covers):
                    registration.mark_folded(txn, folded)

            self._environment.write(change)

    def _fold_parts(self, name: str, manifest: SnapshotManifest, news: Mapping[str, bytes]) -> UnnamedOutputs:
        """Fold the parts of a snapshot, and return the superseded outputs that no part and no other object names."""
        with self._environment.read() as txn:
            unnamed = UnnamedOutputs(txn)
        unfolded = self._unfolded(manifest.parts)
        self._fold_segments([part for part in manifest.parts if part in unfolded], unnamed.observe)
        with self._environment.read() as txn:
            if not txn.count(SUPERSEDED):
                return unnamed
        before = [part for part in manifest.parts if part not in unfolded]
        for other, data in self._read([*before, *self._other_objects(name, manifest, news)]):
            unnamed.observe(decode_segment(data, self._url(other)))
        return unnamed

    def _other_objects(self, name: str, manifest: SnapshotManifest, news: Mapping[str, bytes]) -> list[str]:
        """Return the other objects that were folded before a snapshot: segments, and parts of other snapshots.

        A new snapshot is included if this one covers all that it would add: it will be skipped, not folded.
        """
        covered = {name, *manifest.covers}
        beside = [other for other in self._listed if is_object(other) and other not in covered]
        unfolded = self._unfolded(beside)
        snapshots = [other for other in beside if _MANIFEST.fullmatch(other) and other not in unfolded]
        manifests = [self._manifest(other, data) for other, data in self._read(snapshots)]
        for other in [other for other in news if other in unfolded]:
            with contextlib.suppress(LedgerDamagedError, LedgerVersionError):  # raised when that snapshot is folded
                new = self._manifest(other, news[other])
                manifests += [new] if covered.issuperset(self._unfolded(new.covers)) else []
        parts = [part for other in manifests if not covered.issuperset(other.covers) for part in other.parts]
        covered.update(unfolded, *(other.covers for other in manifests))
        return [*parts, *(other for other in beside if _SEGMENT.fullmatch(other) and other not in covered)]

    def _read(self, names: Sequence[str]) -> Iterator[tuple[str, bytes]]:
        return read_listed(self._objects, names, self._checksums)

    def _manifest(self, name: str, data: bytes) -> SnapshotManifest:
        manifest = decode_manifest(data, self._url(name))
        self._checksums.update(manifest.parts)
        return manifest

    def _url(self, name: str) -> str:
        return f"{self._objects.url}/{name}"


_pauses: list[bool] = []  # whether the garbage collector was enabled before each pause; without a lock, for forks


@contextlib.contextmanager
def collector_paused() -> Iterator[None]:
    """Pause the garbage collector of this process. Use it for one batch of rows, not longer.

    Folding creates millions of rows without cycles. The search for cycles would take a third of its time.
    """
    _pauses.append(gc.isenabled())
    gc.disable()
    try:
        yield
    finally:
        if _pauses.pop():
            gc.enable()


def _end_pauses() -> None:
    if any(_pauses):  # of threads that a forked process does not have
        gc.enable()
    _pauses.clear()


os.register_at_fork(after_in_child=_end_pauses)
