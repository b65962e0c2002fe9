"""Superseded outputs: outputs that a source had before it was replaced, forgotten, or its job restarted.

A superseded output is stale, so that its object can be deleted, once the replacement of its source is complete:

- the source itself, if it is registered (it was forgotten, or its job restarted);
- else every source that now owns a URL of the retired source (several, if a pack was cut again). URLs without a new
  owner have left the listing and do not count;
- nothing, if the source is unknown to the job that restarted.

In addition, no source may now have an output with its name.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby

from ledgerbeam.ledger.lmdb.commit import decode_output
from ledgerbeam.ledger.lmdb.decoding import read_retired
from ledgerbeam.ledger.lmdb.environment import Environment, key_pages, row_pages
from ledgerbeam.ledger.lmdb.errors import translated
from ledgerbeam.ledger.lmdb.tables import (
    COMPLETED,
    OUTPUTS,
    RETIRED,
    SOURCES,
    SUPERSEDED,
    SUPERSEDED_ROW,
    URLS,
    Transaction,
)
from ledgerbeam.ledger.model.identity import ID_BYTES, name_key, url_key
from ledgerbeam.ledger.model.values import output_name


def supersede(txn: Transaction, rows: Iterable[tuple[bytes, bytes]], number: int) -> None:
    """Move rows of `outputs` to `superseded`.

    Args:
        txn: Open for writing.
        rows: Rows with different keys.
        number: Number of the control object that supersedes them, in a remote ledger; 0 in a local one. For late rows,
            it is the number with which they were recorded. A process that deletes with a greater number had seen them
            superseded, even if this process first learns that their source was superseded once more.
    """
    found = list(rows)
    known = txn.get_many(SUPERSEDED, [key for key, _ in found]) if txn.count(SUPERSEDED) else {}
    numbers = {key: max(number, decode_superseded(row)[0]) for key, row in known.items()}
    txn.put_many(
        SUPERSEDED,
        [(key, encode_superseded(numbers.get(key, number), decode_output(row)[0].name)) for key, row in found],
    )


def encode_superseded(number: int, name: str) -> bytes:
    """Encode a row of `superseded`."""
    return SUPERSEDED_ROW.pack(number) + name.encode("utf-8", "surrogateescape")


def decode_superseded(row: bytes) -> tuple[int, str]:
    """Decode a row of `superseded`: the superseding number, and the name.

    Raises ValueError, struct.error.
    """
    name = row[SUPERSEDED_ROW.size :].decode("utf-8", "surrogateescape")
    return SUPERSEDED_ROW.unpack_from(row)[0], output_name(name)


def stale_outputs(environment: Environment) -> list[str]:
    """Return the names of superseded outputs whose objects may be deleted, sorted."""
    with environment.read() as txn:
        if not txn.count(SUPERSEDED):
            return []
        stale = {
            key[ID_BYTES:]: decode_superseded(row)[1]
            for source, rows in groupby(txn.rows(SUPERSEDED, b""), key=lambda row: row[0][:ID_BYTES])
            if _is_replaced(txn, source)
            for key, row in rows
        }
    if stale:
        for page in key_pages(environment, OUTPUTS):
            for key in page:
                stale.pop(key[ID_BYTES:], None)
    return sorted(stale.values())


def superseded_names(environment: Environment) -> Iterator[list[str]]:
    """Yield the names of all superseded outputs, in pages."""
    for page in row_pages(environment, SUPERSEDED):
        with translated(environment.path):
            yield [decode_superseded(row)[1] for _, row in page]


def drop_stale(txn: Transaction, names: Iterable[str], number: int | None = None) -> None:
    """Forget superseded outputs of replaced sources: those named, and those that were written again in place.

    Args:
        txn: Open for writing.
        names: Names of the outputs whose objects were deleted.
        number: In a remote ledger: outputs superseded after this number stay, since the deleting process had not seen
            them. The others are forgotten, even if their source runs again by now: that process had seen them
            replaced.
    """
    dropped = {name_key(name) for name in names}
    for source in list(txn.prefixes(SUPERSEDED, ID_BYTES)):
        replaced = _is_replaced(txn, source)
        if not replaced and number is None:
            continue
        owners = (successors(txn, source) or {source}) if replaced else set()
        for key, row in txn.scan(SUPERSEDED, source):
            name = key[ID_BYTES:]
            if number is not None and decode_superseded(row)[0] > number:
                continue
            if name in dropped or any(txn.get(OUTPUTS, owner + name) is not None for owner in owners):
                txn.delete(SUPERSEDED, key)


def _is_replaced(txn: Transaction, source: bytes) -> bool:
    """Return whether the replacement of a source is complete; see the rule in the module's docstring."""
    if txn.get(SOURCES, source) is not None:
        return txn.get(COMPLETED, source) is not None
    if txn.get(RETIRED, source) is None:
        return True
    owners = successors(txn, source)
    return bool(owners) and all(txn.get(COMPLETED, owner) is not None for owner in owners)


def successors(txn: Transaction, source: bytes) -> set[bytes]:
    """Return the registered sources that now own a URL of a retired source."""
    row = txn.get(RETIRED, source)
    keys = {url_key(url) for url in ([] if row is None else read_retired(row)[1])}
    owner_of = txn.get_many(URLS, keys)
    owners = set(owner_of.values())
    registered = {owner for owner in owners if txn.get(SOURCES, owner) is not None}
    if len(owner_of) < len(keys) or any(txn.get(COMPLETED, owner) is not None for owner in owners - registered):
        raise ValueError(f"expected the registered sources that replaced the source {source.hex()}, found fewer")
    return registered
