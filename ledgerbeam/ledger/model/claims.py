"""Claims: the spans that a launcher's workers are processing, published so that other launchers start elsewhere.

Claims are hints. Only the entries of the ledger decide which tasks are done. With wrong claims, or without any, every
task is still done at least once, and recorded once. A claim is valid for a stated time after a reader first sees it, by
the reader's own clock. The time of day and the clocks of other hosts are not used.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from typing import NamedTuple, Protocol

from ledgerbeam.ledger.model.identity import Lineage
from ledgerbeam.ledger.model.values import decode, encode, identity, integer, mapping, row, rows, seconds, text

CLAIMS = "claims"  # folder of the claims of launchers in a remote ledger. Claims are not part of the ledger's content.

# Upper limits of claims. Larger ones were not written by a launcher.
MOST_SPANS = 10_000
MOST_BYTES = 1 << 20
MOST_SECONDS = 600.0


class Span(NamedTuple):
    """A range of a source: the records or bytes `[start, stop)` of one or several tasks, as in `Task`."""

    source: bytes
    start: int
    stop: int


@dataclass(frozen=True)
class Claims:
    """The claims of one launcher at one time."""

    run: str  # id of its run
    place: str  # `LedgerStore.environment_id` of its ledger. Launchers with the same id see each other's locks
    number: int  # count of the launcher's publications, so that each has different bytes
    seconds: float  # time for which the claims are valid after a reader first sees them
    spans: Sequence[Span] = ()  # spans that the launcher is processing, or is about to start

    @cached_property
    def _by_source(self) -> Mapping[bytes, list[Span]]:
        found = defaultdict(list)
        for span in self.spans:
            found[span.source].append(span)
        return found

    def holds(self, span: Span) -> bool:
        """Return whether one of the claimed spans overlaps `span`."""
        of_source = self._by_source.get(span.source, ())
        return any((own.start < span.stop and span.start < own.stop) or own == span for own in of_source)


def encode_claims(claims: Claims) -> bytes:
    """Encode claims as bytes."""
    spans = [[span.source.hex(), span.start, span.stop] for span in claims.spans]
    fields = {"run": claims.run, "place": claims.place, "number": claims.number, "seconds": claims.seconds}
    return encode({**fields, "spans": spans})


def decode_claims(data: bytes) -> Claims:
    """Decode claims. Raises ValueError for bytes that no launcher writes."""
    if len(data) > MOST_BYTES:
        raise ValueError(f"expected claims of at most {MOST_BYTES} bytes, found {len(data)}")
    fields = mapping(decode(data))
    found = rows(fields.get("spans"))
    if len(found) > MOST_SPANS:
        raise ValueError(f"expected claims of at most {MOST_SPANS} spans, found {len(found)}")
    values = (row(value, 3) for value in found)
    spans = [Span(identity(source), integer(start), integer(stop)) for source, start, stop in values]
    holds = min(seconds(fields.get("seconds")), MOST_SECONDS)
    return Claims(text(fields.get("run")), text(fields.get("place")), integer(fields.get("number")), holds, spans)


def merged(spans: Iterable[Span]) -> list[Span]:
    """Join consecutive spans of a source; return all spans in order."""
    found: list[Span] = []
    for span in sorted(spans):
        last = found[-1] if found else None
        if last is not None and last.source == span.source and last.stop == span.start < span.stop:
            found[-1] = Span(span.source, last.start, span.stop)
        else:
            found.append(span)
    return found


def rank(run: str, source: bytes, start: int = 0) -> int:
    """Return a 64-bit hash by which a run orders sources, or positions in a source. Each run has its own order."""
    return int.from_bytes(blake2b(b"%s %s %d" % (run.encode(), source, start), digest_size=8).digest())


def order_key(run: str, source: bytes, lineage: Lineage) -> bytes:
    """Return the sort key of a planned task for a run. Other runs start with other sources and other tasks.

    The tasks of a source stay together. So the readers of the source are reused, and the source is soon complete.
    """
    ordinal, count = lineage[0] if lineage else (0, 1)
    turned = (ordinal - rank(run, source, 1)) % count
    return rank(run, source).to_bytes(8) + source + turned.to_bytes(8)


class ClaimPlace(Protocol):
    """The place where the launchers of one ledger exchange claims."""

    @property
    def seconds(self) -> float:
        """Shortest interval between two writes, and between two reads, in seconds."""

    def put(self, data: bytes) -> None:
        """Replace the claims of this launcher. Raises StorageError and LedgerbeamError."""

    def names(self) -> Sequence[str]:
        """Return the known names of the claims of other launchers, without a request."""

    def read(self, names: Sequence[str]) -> list[bytes | None]:
        """Read claims by name; None for those that were removed. Raises StorageError."""

    def has_died(self, claims: Claims) -> bool:
        """Return whether the launcher that wrote the claims is known to be dead."""

    def remove(self) -> None:
        """Remove the claims of this launcher. Raises StorageError."""
