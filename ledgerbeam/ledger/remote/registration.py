"""Sources of a remote ledger, independent of the order in which their registrations arrive.

Each registration has the number of its writer. A URL belongs to the source that was registered for it with the greatest
number. The last of all numbers of a source counts, since a replaced source may come back. Its leaves then count from
its first registration after those of the other sources; all of them, if it had no registration before those.

So the row of a registered source has its numbers (`number` and `again`), and the greatest number with which another
source owned one of its URLs (`replaced`). A replaced source has only the latter, in `retired`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ledgerbeam.ledger.lmdb import sources as lmdb_sources
from ledgerbeam.ledger.lmdb.decoding import read_source_fields
from ledgerbeam.ledger.lmdb.failures import failures_since
from ledgerbeam.ledger.lmdb.sources import encode_source, number_of_retired, numbers_of, put_retired, retire, withdraw
from ledgerbeam.ledger.lmdb.tables import RETIRED, SOURCES, URLS, Transaction
from ledgerbeam.ledger.model.identity import url_key
from ledgerbeam.ledger.model.task import Source
from ledgerbeam.ledger.model.values import encode
from ledgerbeam.ledger.remote.cutoffs import Cutoff, merge_cutoffs, note_registration, read_cutoffs
from ledgerbeam.ledger.remote.folding import fold_leaves_again


def register_sources(txn: Transaction, sources: Sequence[Source], number: int) -> None:
    """Register sources. Of two sources that name the same URL, the later one owns it."""
    keys = {source.id: [url_key(url) for url in source.urls] for source in sources}
    claims, claiming = lmdb_sources.claims(sources, keys)
    for source in sources:
        if source.id not in claiming:  # the source changed while it was listed
            retire(txn, source.id, number)
            put_retired(txn, source.id, number, source.urls)
    owned = txn.get_many(URLS, claims)
    known = txn.get_many(SOURCES, claiming)
    known |= txn.get_many(RETIRED, claiming) if txn.count(RETIRED) else {}
    is_new = {source: source not in known and owned.keys().isdisjoint(keys[source]) for source in claiming}
    lmdb_sources.register(txn, [source for source in claiming.values() if is_new[source.id]], number=number)
    for source in claiming.values():
        if not is_new[source.id]:
            _register_known(txn, source, keys[source.id], number)


def _register_known(txn: Transaction, source: Source, keys: Sequence[bytes], number: int) -> None:
    """Register a source that is known, or one of whose URLs had another owner."""
    row = txn.get(SOURCES, source.id)
    if row is not None:
        fields = read_source_fields(row)
        _write(txn, source.id, fields, {*numbers_of(fields), number}, fields.get("replaced", 0))
        return
    owner_of = txn.get_many(URLS, set(keys))
    owners = set(owner_of.values())
    rows = txn.get_many(SOURCES, owners)
    last = {owner: max(numbers_of(read_source_fields(row))) for owner, row in rows.items()}
    replaced = max([number_of_retired(txn, source.id), *last.values()])
    for owner, row in rows.items():
        if last[owner] > number:
            note_replacement(txn, owner, row, number)
        else:
            retire(txn, owner, number)
    left = txn.get_many(SOURCES, owners)
    txn.put_many(URLS, [(key, source.id) for key in set(keys) if owner_of.get(key) not in left])
    if number < replaced:
        put_retired(txn, source.id, replaced, source.urls)
        return
    is_back = txn.delete(RETIRED, source.id)
    fields = read_source_fields(encode_source(source, replaces=bool(owners), number=number))
    _write(txn, source.id, fields, {number}, replaced, is_back=is_back)


def note_cutoff(txn: Transaction, source: bytes, row: bytes, cutoff: Cutoff) -> None:
    """Merge another host's numbers of replacements and comebacks into the row of a registered source."""
    fields = read_source_fields(row)
    replaced = max(fields.get("replaced", 0), cutoff.replaced)
    numbers = {*numbers_of(fields), *cutoff.comebacks}
    _write(txn, source, fields, numbers, replaced, is_back=bool(cutoff.comebacks))


def note_replacement(txn: Transaction, source: bytes, row: bytes, number: int) -> None:
    """Record the number with which another source owned a URL of a registered source."""
    fields = read_source_fields(row)
    _write(txn, source, fields, numbers_of(fields), max(fields.get("replaced", 0), number))


def _write(
    txn: Transaction,
    source: bytes,
    fields: Mapping[str, Any],
    numbers: Iterable[int],
    replaced: int,
    *,
    is_back: bool = False,
) -> None:
    """Write the row of a registered source.

    Progress that no longer counts is removed; leaves that now count are folded again.

    Args:
        txn: Open for writing.
        source: Id of the source.
        fields: Its current row.
        numbers: Numbers of its registrations.
        replaced: The greatest number with which another source owned one of its URLs.
        is_back: Whether it was registered before that; also true if one of its numbers is less.
    """
    before = read_cutoffs(txn, source)[0].least
    found = sorted(numbers)
    counting = [number for number in found if number >= replaced]
    if not counting:
        retire(txn, source, replaced)
        return
    if is_back or len(counting) < len(found):
        cutoff = Cutoff(replaced, comebacks=tuple(number for number in counting if number > replaced))
        merge_cutoffs(txn, source, cutoff, cutoff)
    for number in counting:
        note_registration(txn, source, number)
    least = read_cutoffs(txn, source)[0].least
    if least > before:
        failures = failures_since(txn, source, read_cutoffs(txn, source)[1].least)
        withdraw(txn, source, replaced)
        for key, task in failures.items():
            task.write(txn, key)
    if least != before:
        fold_leaves_again(txn, least)
    row = {**fields, "number": counting[0], "again": counting[1:], "replaced": replaced}
    if replaced:
        row["replaces"] = True
    for name in ("number", "again", "replaced"):
        if not row[name]:
            del row[name]
    txn.put(SOURCES, source, encode(row))
