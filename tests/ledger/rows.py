"""Rows of a local ledger as another program would reach them: with their checksums, and without the ledger's rules."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import lmdb

from ledgerbeam.ledger.lmdb.tables import KEY_ID, META, TABLES, StoredTable, Transaction


@contextmanager
def rows_of(folder: Path, *, write: bool = False) -> Iterator[Transaction]:
    """Open the tables of a ledger that no other process has open."""
    with lmdb.open(str(folder), max_dbs=len(TABLES), lib_version=0, readonly=not write) as environment:
        handles = {name: environment.open_db(name.encode(), create=False) for name in TABLES}
        with environment.begin(write=write) as txn:
            meta = Transaction(txn, {META: StoredTable.of(META, handles[META], b"")})
            ledger = meta.get(META, KEY_ID) or b""
            yield Transaction(txn, {name: StoredTable.of(name, handle, ledger) for name, handle in handles.items()})


def damage_row(txn: Transaction, table: str, key: bytes, bit: int = 0) -> None:
    """Change a bit of the value of a row, its checksum counted in, and leave the rest."""
    of = txn._tables[table]
    value = bytearray(txn._txn.get(key, db=of.handle) or b"")
    value[bit // 8] ^= 1 << bit % 8
    txn._txn.put(key, bytes(value), db=of.handle)
