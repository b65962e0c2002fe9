"""What tests do with any ledger, and what it says, as values that can be compared."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import lmdb

from ledgerbeam.ledger.lmdb.store import LmdbStore
from ledgerbeam.ledger.lmdb.tables import KEY_ID, META, TABLES, StoredTable, Transaction
from ledgerbeam.ledger.model.store import LedgerStore
from ledgerbeam.ledger.model.task import Source
from ledgerbeam.ledger.remote import apply as sidecar
from ledgerbeam.ledger.remote.controls import Control
from ledgerbeam.ledger.remote.segment import Segment, decode_segment, encode_segment
from tests.ledger.builders import leaves_of_split, plain


def registered(store: LedgerStore, name: str = "a") -> Source:
    source = plain(name)
    store.register([source])
    return source


def several(store: LedgerStore, *names: str) -> list[Source]:
    sources = [plain(name) for name in names]
    store.register(sources)
    return sources


def numbered(store: LedgerStore, count: int) -> list[Source]:
    return several(store, *(f"s{number}" for number in range(count)))


def finish(store: LedgerStore, source: Source, count: int = 2, content: str = "") -> None:
    """Register a source and commit all of its leaves."""
    store.register([source])
    store.commit(leaves_of_split(source, count, content))


def fold(store: LmdbStore, *made: Segment | Control, of_snapshot: bool = False) -> None:
    """Take objects into the sidecar of a host, in this order; what is there already is not taken in again."""

    def change(txn: Transaction) -> None:
        for one in made:
            name = f"object {hash(repr(one))}"
            if isinstance(one, Control):
                sidecar.fold_control(txn, name, one, "here")
            else:
                sidecar.fold_segment(txn, name, one, of_snapshot=of_snapshot)

    store._open().write(change)


def folded(path: Path, *found: Segment, of_snapshot: bool = False) -> LmdbStore:
    """Return the sidecar of a new host that knows `plain()`, and has taken segments in, in this order."""
    store = LmdbStore(str(path))
    store.open(create=True)
    made = (Segment(1, 1.0, sources=[plain()]), *found)
    fold(store, *(decode_segment(encode_segment(segment), "here") for segment in made), of_snapshot=of_snapshot)
    return store


def in_threads(*acts: Callable[[], object]) -> None:
    """Call functions in threads of their own, and wait until all have returned."""
    threads = [threading.Thread(target=act) for act in acts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def begin_at_once(stores: Sequence[LedgerStore], count: int) -> list[str]:
    """Begin runs of all stores in threads of their own; return the runs."""
    found: list[str] = []
    in_threads(*(lambda store=store: found.extend(store.begin_run({}) for _ in range(count)) for store in stores))
    return found


def is_complete(store: LedgerStore, *sources: Source) -> bool:
    return all(store.completed_mask([source.id for source in sources]))


def replaces(store: LedgerStore, *sources: Source) -> list[bool | None]:
    """Return of each source whether it replaced another; None if it is not open."""
    return [progress and progress.replaces for progress in store.progress([source.id for source in sources])]


def superseded(store: LedgerStore) -> list[str]:
    return sorted(name for page in store.superseded_names() for name in page)


def picture(store: LedgerStore) -> dict[str, Any]:
    """Everything that a ledger says of its sources and tasks."""
    ids = [source for page in store.source_ids() for source in page]
    job = store.job()
    status = store.status()
    return {
        "job": None if job is None else job.as_dict(),
        "sources": {name: status["sources"][name] for name in ("complete", "open", "failed")},
        "tasks": status["tasks"],
        "gone": status["gone"],
        "rows": [row._replace(completed=0) for row in store.sources()],
        "totals": store.totals(),
        "records": status["records"],
        "statistics": sorted(store.statistics()),
        "rejected": list(store.rejected_tasks()),
        "progress": store.progress(ids),
        "pending": [store.pending(source) for source in ids],
        "outputs": list(store.outputs()),
        "failures": [(row.source_id, row.node, row.reason, row.quarantined) for row in store.failures()],
        "stale": store.stale_outputs(),
        "runs": [(run["id"], run["outcome"], run["listed"]) for run in store.runs()],
    }


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
