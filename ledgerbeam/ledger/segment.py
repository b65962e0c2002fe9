"""Segments: the immutable objects of a remote ledger, each one writer's batch of entries.

==========  ======  ===========================================
offset      bytes   content
==========  ======  ===========================================
0           8       `MAGIC`, whose last byte is the version
8           8       length of the payload, little-endian
16          16      BLAKE2b of the payload
32                  payload: JSON, see `Segment`
==========  ======  ===========================================

A segment is read as if an enemy had written it: every value is checked before it is used, and nothing is allocated
but in proportion to the object's size.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from struct import Struct
from typing import Any, TypeVar

from ledgerbeam.errors import LedgerDamagedError, LedgerVersionError, UnsupportedShapeError, UsageError
from ledgerbeam.ledger.identity import ID_BYTES
from ledgerbeam.ledger.json_rows import decode, encode
from ledgerbeam.ledger.store import Failure, Leaf, Mark, Output
from ledgerbeam.ledger.task import Source

MAGIC = b"lbseg\r\n\x01"
"""What a segment begins with."""

_HEADER = Struct("<8sQ16s")
_LIMIT = 2**63 - 1
_CHECKSUM_CHARACTERS = 256

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Segment:
    """What one writer recorded at once. A payload has the fields that are not empty.

    Attributes:
        number: the highest number of a control object (`controls`) that its writer had seen.
        at: when it was written, seconds since 1970 UTC.
        job: fingerprint of the job that it was written for; None if nobody said.
        sources: registered.
        leaves: finished tasks.
        failures: failed tasks.
        deaths: tasks whose worker died.
        dropped: names of stale outputs whose objects were deleted.
        runs: fields of runs that have changed, by run.
        back: sources that were gone and are listed again.
        gone: sources that a listing no longer had; None if it says nothing of it.
        state: rows of a snapshot, see `snapshot`.
    """

    number: int
    at: float
    job: str | None = None
    sources: Sequence[Source] = ()
    leaves: Sequence[Leaf] = ()
    failures: Sequence[Failure] = ()
    deaths: Sequence[Mark] = ()
    dropped: Sequence[str] = ()
    runs: Mapping[str, Mapping[str, Any]] | None = None
    back: Sequence[bytes] = ()
    gone: Sequence[bytes] | None = None
    state: Mapping[str, Any] | None = None


def encode_segment(segment: Segment) -> bytes:
    """Make the bytes of a segment."""
    payload: dict[str, Any] = {"number": segment.number, "at": segment.at, "job": segment.job}
    columns: dict[str, Any] = {
        "sources": [source_row(source) for source in segment.sources],
        "leaves": [_leaf_row(leaf) for leaf in segment.leaves],
        "failures": [[f.source_id.hex(), f.lineage, f.task, f.reason, f.error] for f in segment.failures],
        "deaths": [[mark.source_id.hex(), mark.node.hex(), mark.name] for mark in segment.deaths],
        "dropped": list(segment.dropped),
        "runs": segment.runs,
        "back": [source.hex() for source in segment.back],
        "state": segment.state,
    }
    payload.update({name: column for name, column in columns.items() if column})
    if segment.gone is not None:
        payload["gone"] = [source.hex() for source in segment.gone]
    return seal(encode(payload))


def decode_segment(data: bytes, url: str) -> Segment:
    """Read the bytes of a segment.

    Args:
        data: the whole object.
        url: where it came from, for messages.

    Raises:
        LedgerVersionError: a newer ledgerbeam wrote it.
        LedgerDamagedError: it is not a whole segment, or a value of it cannot be.
    """
    payload = unseal(data, url)
    try:
        return _segment(decode(payload))
    except (ValueError, UnsupportedShapeError, UsageError) as error:
        raise damaged(url, f"{error}") from None


def seal(payload: bytes) -> bytes:
    """Put a header with length and checksum before a payload."""
    return _HEADER.pack(MAGIC, len(payload), blake2b(payload, digest_size=16).digest()) + payload


def unseal(data: bytes, url: str) -> bytes:
    """Check the header of `seal` and give the payload. Raises as `decode_segment` does."""
    if len(data) < _HEADER.size:
        raise damaged(url, f"expected a header of {_HEADER.size} bytes, found {len(data)} bytes")
    magic, length, digest = _HEADER.unpack_from(data)
    if magic[:-1] == MAGIC[:-1] and magic[-1] > MAGIC[-1]:
        raise LedgerVersionError(
            f"{url}: it has version {magic[-1]}, and this ledgerbeam reads versions up to {MAGIC[-1]}; install the "
            "version of ledgerbeam that wrote it, or a newer one"
        )
    if magic != MAGIC:
        raise damaged(url, f"expected it to begin with {MAGIC!r}, found {magic!r}")
    payload = data[_HEADER.size :]
    if len(payload) != length:
        raise damaged(url, f"expected a payload of {length} bytes, found {len(payload)}")
    if blake2b(payload, digest_size=16).digest() != digest:
        raise damaged(url, "its checksum does not fit its content")
    return payload


def damaged(url: str, what: str) -> LedgerDamagedError:
    """Word that an object of a remote ledger cannot be read."""
    return LedgerDamagedError(
        f"{url}: this object of the ledger does not read: {what}; nothing of it was taken in. Restore it from a copy "
        "(a bucket with versions keeps one); if there is none, delete it: what only it recorded is done again"
    )


def source_row(source: Source) -> list[Any]:
    """A source as a JSON row."""
    row: list[Any] = [source.url, source.size, source.version]
    if source.members:
        row.append([[member.url, member.size, member.version] for member in source.members])
    return row


def read_source(row: Any) -> Source:
    """Read a row of `source_row`. Raises ValueError."""
    url, size, version, *members = _row(row, 3, 4)
    own = (text(url), integer(size), text(version))
    if not members:
        return Source(*own)
    return Source(*own, tuple(read_source(member) for member in rows(members[0])))


def output_row(output: Output) -> list[Any]:
    """An output as a JSON row."""
    return [output.name, output.size, output.checksum, output.records, output.first]


def read_output(row: Any) -> Output:
    """Read a row of `output_row`. Raises ValueError, also for a name that leads out of the output root."""
    name, size, checksum, records, first = _row(row, 5)
    if not isinstance(checksum, str) or len(checksum) > _CHECKSUM_CHARACTERS:
        raise ValueError(f"expected a checksum, found {_shown(checksum)}")
    return Output(output_name(name), integer(size), checksum, integer(records), integer(first))


def output_name(value: Any) -> str:
    """Check the name of an output: it must not lead out of the output root by ``..``. Raises ValueError."""
    name = text(value)
    if not name or "\0" in name or ".." in name.split("/"):
        raise ValueError(f"expected the name of an output, found {_shown(value)}")
    return name


def identity(value: Any) -> bytes:
    """Read 16 bytes in hexadecimal digits. Raises ValueError."""
    found = bytes.fromhex(value) if isinstance(value, str) and len(value) == 2 * ID_BYTES else b""
    if len(found) != ID_BYTES:
        raise ValueError(f"expected {ID_BYTES} bytes as hexadecimal digits, found {_shown(value)}")
    return found


def integer(value: Any, low: int = 0) -> int:
    """Check a number of bytes, records or the like. Raises ValueError."""
    if type(value) is not int or not low <= value <= _LIMIT:
        raise ValueError(f"expected a number from {low} to {_LIMIT}, found {_shown(value)}")
    return value


def seconds(value: Any) -> float:
    """Check a time. Raises ValueError."""
    if type(value) not in (int, float) or not 0 <= value < 2**37:  # the year 6325: what is later is no date
        raise ValueError(f"expected a time in seconds, found {_shown(value)}")
    return float(value)


def text(value: Any) -> str:
    """Check a text. Raises ValueError."""
    if not isinstance(value, str):
        raise ValueError(f"expected a text, found {_shown(value)}")
    return value


def rows(value: Any) -> list[Any]:
    """Check a list. Raises ValueError."""
    if not isinstance(value, list):
        raise ValueError(f"expected a list, found {_shown(value)}")
    return value


def mapping(value: Any) -> dict[str, Any]:
    """Check a JSON object. Raises ValueError."""
    if not isinstance(value, dict):
        raise ValueError(f"expected an object, found {_shown(value)}")
    return value


def column(payload: Mapping[str, Any], name: str, read: Callable[[Any], _T]) -> list[_T]:
    """Read every row of a column that may be missing. Raises ValueError."""
    return [read(row) for row in rows(payload.get(name, []))]


def _leaf_row(leaf: Leaf) -> list[Any]:
    outputs = [output_row(output) for output in leaf.outputs]
    return [leaf.source_id.hex(), leaf.lineage, leaf.kind, leaf.records, leaf.bytes, leaf.seconds, outputs]


def _read_leaf(row: Any) -> Leaf:
    source, lineage, kind, records, size, took, outputs = _row(row, 7)
    return Leaf(
        identity(source),
        _lineage(lineage),
        kind,
        tuple(read_output(output) for output in rows(outputs)),
        integer(records),
        integer(size),
        seconds(took),
    )


def _read_failure(row: Any) -> Failure:
    source, lineage, task, reason, error = _row(row, 5)
    return Failure(identity(source), _lineage(lineage), text(task), text(reason), text(error))


def _read_mark(row: Any) -> Mark:
    source, node, name = _row(row, 3)
    return Mark(identity(source), identity(node), text(name))


def _read_run(value: Any) -> dict[str, Any]:
    found = mapping(value)
    for name, item in found.items():
        if name not in _RUN_FIELDS:
            raise ValueError(f"expected a field of a run, found {_shown(name)}")
        if item is not None:
            _RUN_FIELDS[name](item)
    return found


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"expected true or false, found {_shown(value)}")
    return value


def _lineage(value: Any) -> tuple[tuple[int, int], ...]:
    pairs = (_row(pair, 2) for pair in rows(value))
    return tuple((integer(ordinal), integer(count)) for ordinal, count in pairs)


def _segment(payload: Any) -> Segment:
    fields = mapping(payload)
    job = fields.get("job")
    return Segment(
        number=integer(fields.get("number")),
        at=seconds(fields.get("at")),
        job=None if job is None else text(job),
        sources=column(fields, "sources", read_source),
        leaves=column(fields, "leaves", _read_leaf),
        failures=column(fields, "failures", _read_failure),
        deaths=column(fields, "deaths", _read_mark),
        dropped=column(fields, "dropped", output_name),
        runs={run: _read_run(changed) for run, changed in mapping(fields.get("runs", {})).items()} or None,
        back=column(fields, "back", identity),
        gone=column(fields, "gone", identity) if "gone" in fields else None,
        state=mapping(fields["state"]) if "state" in fields else None,
    )


_RUN_FIELDS: dict[str, Callable[[Any], Any]] = {
    "began": seconds,
    "ended": seconds,
    "outcome": text,
    "listed": integer,
    "listing_finished": _flag,
    "info": mapping,
}


def _row(value: Any, *lengths: int) -> list[Any]:
    if not isinstance(value, list) or len(value) not in lengths:
        raise ValueError(f"expected a row of {' or '.join(map(str, lengths))} values, found {_shown(value)}")
    return value


def _shown(value: Any) -> str:
    shown = repr(value)
    return shown if len(shown) <= 80 else f"{shown[:77]}..."
