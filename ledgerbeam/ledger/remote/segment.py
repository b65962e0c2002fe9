"""Segments: the immutable objects of a remote ledger. Each has one writer's batch of entries.

==========  ======  ===========================================
offset      bytes   content
==========  ======  ===========================================
0           8       `MAGIC`, whose last byte is the version
8           8       length of the payload, little-endian
16          16      BLAKE2b of the payload
32                  payload: JSON, see `Segment`
==========  ======  ===========================================

Segments are untrusted input: every value is checked before it is used, and memory is allocated only in proportion to
the object's size. `Objects` is the interface to the object store.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from struct import Struct
from typing import Any, Protocol, TypeVar

from ledgerbeam.errors import LedgerDamagedError, LedgerVersionError
from ledgerbeam.ledger.lmdb.jobs import RUN_FIELDS
from ledgerbeam.ledger.model.accounts import counts_row, read_counts, read_statistics, statistics_row
from ledgerbeam.ledger.model.rows import Failure, Leaf, Mark, output_row, read_output
from ledgerbeam.ledger.model.task import Source
from ledgerbeam.ledger.model.values import (
    decode,
    encode,
    flag,
    id_bytes,
    identity,
    integer,
    lineage,
    mapping,
    output_name,
    recordable,
    row,
    rows,
    seconds,
    shown,
    text,
)

MAGIC = b"lbseg\r\n\x01"  # the first bytes of a segment

_CHECKSUM_BYTES = 16
_HEADER = Struct(f"<8sQ{_CHECKSUM_BYTES}s")
_RUN = re.compile("[0-9]{6,12}")

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Segment:
    """The entries that one writer recorded together. A payload has only the fields that are not empty."""

    number: int = 0  # the highest number of a control object (`controls`) that its writer had seen
    at: float = 0.0  # time of writing, seconds since 1970 UTC
    job: str | None = None  # fingerprint of the job for which it was written; None if not given
    sources: Sequence[Source] = ()
    leaves: Sequence[Leaf] = ()
    failures: Sequence[Failure] = ()
    deaths: Sequence[Mark] = ()  # tasks whose worker died
    dropped: Sequence[str] = ()  # names of stale outputs whose objects were deleted
    runs: Mapping[str, Mapping[str, Any]] | None = None  # changed fields of runs, by run
    back: Sequence[bytes] = ()  # sources that were gone and are listed again
    gone: Sequence[bytes] | None = None  # sources missing from a listing; None without a listing
    state: Mapping[str, Any] | None = None  # rows of a snapshot; see `snapshot`
    again: bool = False  # whether its leaves were recorded before, and withdrawn with others

    def __post_init__(self) -> None:
        """Check the values, of new and of decoded segments; sources, leaves and failures have checked themselves."""
        with recordable("these rows of the ledger"):
            integer(self.number)
            flag(self.again)
            seconds(self.at)
            if self.job is not None:
                text(self.job)
            for name in self.dropped:
                output_name(name)
            for mark in self.deaths:
                mark.check()
            for run, changed in (self.runs or {}).items():
                _check_run(run, changed)
            for source in (*self.back, *(self.gone or ())):
                id_bytes(source)


def encode_segment(segment: Segment) -> bytes:
    """Encode a segment."""
    payload: dict[str, Any] = {"number": segment.number, "at": segment.at, "job": segment.job}
    columns: dict[str, Any] = {
        "sources": [_source_row(source) for source in segment.sources],
        "leaves": [_leaf_row(leaf) for leaf in segment.leaves],
        "failures": [_failure_row(failure) for failure in segment.failures],
        "deaths": [[mark.source_id.hex(), mark.node.hex(), mark.name] for mark in segment.deaths],
        "dropped": list(segment.dropped),
        "runs": segment.runs,
        "back": [source.hex() for source in segment.back],
        "state": segment.state,
        "again": segment.again,
    }
    payload.update({name: column for name, column in columns.items() if column})
    if segment.gone is not None:
        payload["gone"] = [source.hex() for source in segment.gone]
    return seal(encode(payload))


def decode_segment(data: bytes, url: str) -> Segment:
    """Decode a whole segment. Raises LedgerVersionError, LedgerDamagedError."""
    payload = unseal(data, url)
    try:
        return _segment(decode(payload))
    except ValueError as error:
        raise damaged(url, f"{error}") from None


def seal(payload: bytes) -> bytes:
    """Prepend a header with length and checksum to a payload."""
    return _HEADER.pack(MAGIC, len(payload), blake2b(payload, digest_size=_CHECKSUM_BYTES).digest()) + payload


def unseal(data: bytes, url: str) -> bytes:
    """Check the header of `seal` and return the payload; raises like `decode_segment`."""
    if len(data) < _HEADER.size:
        raise damaged(url, f"expected a header of {_HEADER.size} bytes, found {len(data)} bytes")
    magic, length, digest = _HEADER.unpack_from(data)
    if magic[:-1] == MAGIC[:-1] and magic[-1] > MAGIC[-1]:
        raise LedgerVersionError(
            f"{url}: it has version {magic[-1]}, and this ledgerbeam reads versions up to {MAGIC[-1]}; install the "
            "version of ledgerbeam that wrote it, or a newer one"
        )
    if magic != MAGIC:
        raise damaged(url, f"expected {MAGIC!r} as its first bytes, found {magic!r}")
    payload = data[_HEADER.size :]
    if len(payload) != length:
        raise damaged(url, f"expected a payload of {length} bytes, found {len(payload)}")
    if blake2b(payload, digest_size=_CHECKSUM_BYTES).digest() != digest:
        raise damaged(url, "its checksum does not match its content")
    return payload


def damaged(url: str, what: str) -> LedgerDamagedError:
    """Return the error for a damaged object of a remote ledger; `what` describes the damage."""
    return LedgerDamagedError(
        f"{url}: this object of the ledger is damaged: {what}; it was not applied. Restore it from a copy (a bucket "
        "with versions keeps one). If there is none, delete it: work that only this object recorded is done again"
    )


def checksum_of(data: bytes) -> str:
    """Return the checksum in the header of `seal`, 32 hexadecimal digits; fewer if the header is incomplete."""
    return data[_HEADER.size - _CHECKSUM_BYTES : _HEADER.size].hex()


def _source_row(source: Source) -> list[Any]:
    values: list[Any] = [source.url, source.size, source.version]
    if source.members:
        values.append([[member.url, member.size, member.version] for member in source.members])
    return values


def read_source(value: Any) -> Source:
    """Decode a row of `_source_row`. Raises ValueError."""
    url, size, version, *members = row(value, 3, 4)
    return Source(url, size, version, tuple(read_source(member) for member in rows(members[0])) if members else ())


def column(payload: Mapping[str, Any], name: str, read: Callable[[Any], _T]) -> list[_T]:
    """Decode every row of a column; a missing column is empty. Raises ValueError."""
    return [read(value) for value in rows(payload.get(name, []))]


def _leaf_row(leaf: Leaf) -> list[Any]:
    outputs = [output_row(output) for output in leaf.outputs]
    counts = leaf.special_counts()
    accounts = [None if counts is None else counts_row(counts)] if counts is not None or leaf.statistics else []
    if leaf.statistics:
        accounts.append(statistics_row(leaf.statistics))
    return [leaf.source_id.hex(), leaf.lineage, leaf.kind, leaf.records, leaf.bytes, leaf.seconds, outputs, *accounts]


def _read_leaf(value: Any) -> Leaf:
    """Decode a row of `_leaf_row`. A plain leaf has no counts; without statistics, their column is missing."""
    source, path, kind, records, size, took, outputs, *accounts = row(value, 7, 8, 9)
    published = tuple(read_output(output) for output in rows(outputs))
    counts = read_counts(accounts[0]) if accounts and accounts[0] is not None else None
    statistics = read_statistics(accounts[1]) if len(accounts) > 1 else {}
    return Leaf(identity(source), lineage(rows(path)), kind, published, records, size, took, counts, statistics)


def _failure_row(failure: Failure) -> list[Any]:
    named = (failure.task, failure.reason, failure.error, failure.broke)
    return [failure.source_id.hex(), failure.lineage, *named]


def _read_failure(value: Any) -> Failure:
    source, path, task, reason, error, broke = row(value, 6)
    return Failure(identity(source), lineage(rows(path)), task, reason, error, broke)


def _read_mark(value: Any) -> Mark:
    source, node, name = row(value, 3)
    return Mark(identity(source), identity(node), text(name))


def _check_run(run: str, changed: Mapping[str, Any]) -> None:
    if not _RUN.fullmatch(text(run)):
        raise ValueError(f"expected the id of a run, found {shown(run)}")
    for name, item in mapping(changed).items():
        if name not in RUN_FIELDS:
            raise ValueError(f"expected a field of a run, found {shown(name)}")
        if item is not None:
            RUN_FIELDS[name](item)


def _segment(payload: Any) -> Segment:
    fields = mapping(payload)
    return Segment(
        number=integer(fields.get("number")),
        at=seconds(fields.get("at")),
        job=fields.get("job"),
        sources=column(fields, "sources", read_source),
        leaves=column(fields, "leaves", _read_leaf),
        failures=column(fields, "failures", _read_failure),
        deaths=column(fields, "deaths", _read_mark),
        dropped=rows(fields.get("dropped", [])),
        runs=mapping(fields.get("runs", {})) or None,
        back=column(fields, "back", identity),
        gone=column(fields, "gone", identity) if "gone" in fields else None,
        state=mapping(fields["state"]) if "state" in fields else None,
        again=fields.get("again", False),
    )


def create_own(objects: Objects, name: str, data: bytes) -> None:
    """Create an object under a name that no other writer should use.

    Raises LedgerDamagedError if the name holds other content; nothing was written.
    """
    if not objects.create(name, data):
        raise LedgerDamagedError(
            f"{objects.url}/{name}: expected no object of this name, found one with other content; nothing was "
            "recorded. Another program writes into the folder of the ledger: stop it, delete the object, and run the "
            "same command again"
        )


class Objects(Protocol):
    """A folder of immutable objects. Names are relative to it, with ``/`` between their parts.

    Listing, reading and creating must be strongly consistent with each other, as they are on S3, GCS and Azure.

    Every method raises StorageError if the store does not answer after the method's own retries.
    """

    @property
    def url(self) -> str:
        """URL of the folder, without a trailing slash."""

    @property
    def exclusive(self) -> bool:
        """Whether `create` decides atomically which of several creators wins."""

    def names(self, folder: str) -> list[str]:
        """Return the names of all objects below a folder, sorted. Objects created meanwhile may be missing."""

    def read(self, names: Sequence[str]) -> list[bytes | None]:
        """Return the contents of objects, in order; None for objects that do not exist (any more)."""

    def create(self, name: str, data: bytes) -> bool:
        """Create an object, whole and durable; return False if the name holds other content already.

        Creating the same content again succeeds, so that a creation whose answer was lost can be repeated.
        """

    def replace(self, name: str, data: bytes) -> None:
        """Write a whole object, replacing an existing one. It need not be durable."""

    def exists(self, name: str) -> bool:
        """Return whether an object exists, with one small request."""

    def delete(self, names: Iterable[str]) -> None:
        """Delete objects; missing objects are skipped."""
