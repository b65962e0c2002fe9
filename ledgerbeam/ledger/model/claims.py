"""Claims: what a launcher says that its workers have in work, so that others begin elsewhere.

They are hints. The entries of the ledger alone say what is done: whatever claims say, or if there are none, every task
is done at least once, and recorded once. So a claim is never waited for longer than it says itself, by the clock of who
reads it; no time of day and no clock of another host is used.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import NamedTuple, Protocol

from ledgerbeam.ledger.model.identity import Lineage
from ledgerbeam.ledger.model.values import decode, encode, identity, integer, mapping, row, rows, seconds, text

MOST_SPANS = 10_000
MOST_BYTES = 1 << 20
MOST_SECONDS = 600.0
"""What claims may be at most: larger ones, and longer ones, are not those of a launcher."""


class Span(NamedTuple):
    """A part of a source that a task, or several, are about.

    Attributes:
        source: Its id.
        start: First record, or byte, as in `Task`.
        stop: One past the last.
    """

    source: bytes
    start: int
    stop: int

    def meets(self, start: int, stop: int) -> bool:
        """Return whether another span of the source has something in common with it, or is the same empty one."""
        return (self.start < stop and start < self.stop) or (self.start, self.stop) == (start, stop)


@dataclass(frozen=True)
class Claims:
    """What one launcher says at one time.

    Attributes:
        run: Id of its run.
        place: `LedgerStore.environment_id` of its ledger: launchers with the same one see each other's locks.
        number: How often it has said something: no two times are the same bytes.
        seconds: For how long it holds, from when it is seen.
        spans: What it has in work, or is about to begin.
    """

    run: str
    place: str
    number: int
    seconds: float
    spans: Sequence[Span] = ()
    _by_source: Mapping[bytes, list[Span]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Order the spans by source."""
        found: dict[bytes, list[Span]] = {}
        for span in self.spans:
            found.setdefault(span.source, []).append(span)
        object.__setattr__(self, "_by_source", found)

    def holds(self, span: Span) -> bool:
        """Return whether a part of a span is claimed."""
        return any(own.meets(span.start, span.stop) for own in self._by_source.get(span.source, ()))


def encode_claims(claims: Claims) -> bytes:
    """Make the bytes of claims."""
    spans = [[span.source.hex(), span.start, span.stop] for span in claims.spans]
    fields = {"run": claims.run, "place": claims.place, "number": claims.number, "seconds": claims.seconds}
    return encode({**fields, "spans": spans})


def decode_claims(data: bytes) -> Claims:
    """Read the bytes of claims. Raises ValueError for what no launcher has said."""
    if len(data) > MOST_BYTES:
        raise ValueError(f"expected at most {MOST_BYTES} bytes, found {len(data)}")
    fields = mapping(decode(data))
    found = rows(fields.get("spans"))
    if len(found) > MOST_SPANS:
        raise ValueError(f"expected at most {MOST_SPANS} spans, found {len(found)}")
    spans = [_read_span(value) for value in found]
    holds = min(seconds(fields.get("seconds")), MOST_SECONDS)
    return Claims(text(fields.get("run")), text(fields.get("place")), integer(fields.get("number")), holds, spans)


def _read_span(value: object) -> Span:
    source, start, stop = row(value, 3)
    return Span(identity(source), integer(start), integer(stop))


def merged(spans: Iterable[Span]) -> list[Span]:
    """Return spans with those joined that follow each other in a source, in order."""
    found: list[Span] = []
    for span in sorted(spans):
        last = found[-1] if found else None
        if last is not None and last.source == span.source and last.stop == span.start < span.stop:
            found[-1] = Span(span.source, last.start, span.stop)
        else:
            found.append(span)
    return found


def rank(run: str, source: bytes, start: int = 0) -> int:
    """Return where a source, or a place in it, stands in the order of a run: 64 bits that no other run shares."""
    return int.from_bytes(blake2b(b"%s %s %d" % (run.encode(), source, start), digest_size=8).digest())


def place_in_order(run: str, source: bytes, lineage: Lineage) -> bytes:
    """Return the key by which a run orders a planned task: other runs begin with other sources, and inside of them.

    The tasks of a source stay together, so that what is open of it is of use, and its source is complete soon.
    """
    ordinal, count = lineage[0] if lineage else (0, 1)
    turned = (ordinal - rank(run, source, 1)) % count
    return rank(run, source).to_bytes(8) + source + turned.to_bytes(8)


class ClaimPlace(Protocol):
    """Where the launchers of one ledger leave claims for each other."""

    @property
    def seconds(self) -> float:
        """How often something is said, and looked for, at most."""

    def put(self, data: bytes) -> None:
        """Say this, in the place of what was said before. Raises StorageError, and LedgerbeamError."""

    def names(self) -> Sequence[str]:
        """Return where others have said something, as far as it is known; asks nobody."""

    def read(self, names: Sequence[str]) -> list[bytes | None]:
        """Return what is said there now; None for nothing any more. Raises StorageError."""

    def has_died(self, claims: Claims) -> bool:
        """Return whether it is seen that the launcher which said this is gone."""

    def remove(self) -> None:
        """Take back what was said. Raises StorageError."""
