"""Bytes of a local ledger that are not those that were written: each row has a checksum, and lost rows are missed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from ledgerbeam.errors import LedgerDamagedError
from ledgerbeam.ledger import Source
from ledgerbeam.ledger.lmdb import sources as lmdb_sources
from ledgerbeam.ledger.lmdb import tables, views
from ledgerbeam.ledger.lmdb.environment import key_pages, row_pages
from ledgerbeam.ledger.lmdb.store import LmdbStore
from ledgerbeam.ledger.lmdb.tables import Transaction
from ledgerbeam.ledger.model.counting import require_count
from ledgerbeam.ledger.model.identity import url_key
from tests.fault.damage import PAGE, layout
from tests.fault.hostile_rows import make
from tests.ledger.builders import counted_leaf, leaf_of, leaves_of_split, plain
from tests.ledger.stores import damage_row, registered, rows_of, several

KEY, OTHER = b"\1" * 32, b"\2" * 32

READERS: dict[str, Callable[[Transaction], object]] = {
    "get": lambda txn: txn.get(tables.OUTPUTS, KEY),
    "get_many": lambda txn: txn.get_many(tables.OUTPUTS, [OTHER, KEY]),
    "pop": lambda txn: txn.pop(tables.OUTPUTS, KEY),
    "scan": lambda txn: txn.scan(tables.OUTPUTS, b""),
    "page": lambda txn: txn.page(tables.OUTPUTS, b"", 9),
    "last": lambda txn: txn.last(tables.OUTPUTS),
    "prefixes": lambda txn: list(txn.prefixes(tables.OUTPUTS, 16)),
    "delete_prefix": lambda txn: txn.delete_prefix(tables.OUTPUTS, KEY[:1]),
}


@pytest.fixture
def store(tmp_path: Path) -> LmdbStore:
    made = LmdbStore(str(tmp_path / "ledger"))
    made.open(create=True)
    return made


def is_told(store: LmdbStore, act: Callable[[], object], *said: str) -> None:
    with pytest.raises(LedgerDamagedError) as found:
        act()
    for word in (store.url, "restore the folder from a copy", "--ledger", *said):
        assert word in str(found.value)


@pytest.mark.parametrize("reader", READERS)
def test_whoever_reads_a_row_compares_its_checksum(store: LmdbStore, reader: str) -> None:
    store._write(lambda txn: txn.put(tables.OUTPUTS, KEY, b"value"))
    for bit in (0, 39, 40, 71):  # of the value, and of its checksum
        store._write(lambda txn, bit=bit: damage_row(txn, tables.OUTPUTS, KEY, bit))  # type: ignore[misc]
        is_told(store, lambda: store._write(READERS[reader]), "table outputs", "another checksum")
        store._write(lambda txn, bit=bit: damage_row(txn, tables.OUTPUTS, KEY, bit))  # type: ignore[misc]
    assert store._write(READERS[reader])


@pytest.mark.parametrize("bit", [0, 31, 32])
def test_the_checksum_of_an_empty_row_is_compared_too(store: LmdbStore, bit: int) -> None:
    store._write(lambda txn: txn.put(tables.OUTPUTS, KEY, b""))
    assert store._open().write(lambda txn: txn.get(tables.OUTPUTS, KEY)) == b""
    if bit < 32:
        store._write(lambda txn: damage_row(txn, tables.OUTPUTS, KEY, bit))
    else:
        store._write(lambda txn: txn._txn.put(KEY, b"", db=txn._tables[tables.OUTPUTS].handle))
    is_told(store, lambda: store._write(lambda txn: txn.get(tables.OUTPUTS, KEY)), "another checksum")


@pytest.mark.parametrize("place", ["key", "table", "ledger"])
def test_the_row_of_another_key_table_or_ledger_is_told(store: LmdbStore, tmp_path: Path, place: str) -> None:
    other = LmdbStore(str(tmp_path / "other"))
    other.open(create=True)
    source = other if place == "ledger" else store
    table, key = (tables.SUPERSEDED if place == "table" else tables.OUTPUTS), (OTHER if place == "key" else KEY)
    source._write(lambda txn: txn.put(table, key, b"value"))
    found = source._write(lambda txn: txn._txn.get(key, db=txn._tables[table].handle)) or b""
    store._write(lambda txn: txn._txn.put(KEY, found, db=txn._tables[tables.OUTPUTS].handle))
    is_told(store, lambda: store._write(lambda txn: txn.get(tables.OUTPUTS, KEY)), "table outputs")


SEVERAL = (
    *("meta", "completed", "sources", "urls", "pending", "applied", "outputs"),
    *("counts", "statistics", "counted", "runs", "durations"),
)
"""Tables of which `make` makes several rows."""


def hide(store: LmdbStore, table: str) -> None:
    """Have the page of a table end before its last row."""
    store.close()
    path = Path(store.url) / "data.mdb"
    data = bytearray(path.read_bytes())
    (page,) = layout(bytes(data)).pages[table]
    lower = int.from_bytes(data[page * PAGE + 12 : page * PAGE + 14], "little") - 2
    data[page * PAGE + 12 : page * PAGE + 14] = lower.to_bytes(2, "little")
    path.write_bytes(data)


@pytest.mark.parametrize("table", SEVERAL)
def test_a_row_that_is_hidden_is_missed_by_who_reads_all(tmp_path: Path, table: str) -> None:
    make(tmp_path / "ledger")
    store = LmdbStore(str(tmp_path / "ledger"))
    with rows_of(tmp_path / "ledger") as txn:
        rows = txn.count(table)
    hide(store, table)
    missing = f"expected {rows} rows of the table {table}, found {rows - 1}"
    if table == "meta":  # all of it is read when a ledger is opened
        is_told(store, store.open, missing)
        return
    for pages in (row_pages, key_pages):
        is_told(store, lambda pages=pages: next(pages(store._open(), table)), missing)  # type: ignore[misc]
    is_told(store, lambda: store._write(lambda txn: txn.scan(table, b"")), missing)


def test_a_hidden_output_is_missed_in_reads_by_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(tmp_path / "ledger")
    store = LmdbStore(str(tmp_path / "ledger"))
    rows = len(list(store.outputs(ordered=True)))
    assert rows > 1
    hide(store, tables.OUTPUTS)
    for sources in (1, 1000):  # of a transaction
        monkeypatch.setattr(views, "_SOURCES_A_TRANSACTION", sources)
        said = f"expected {rows} rows of the table outputs, found {rows - 1}"
        is_told(store, lambda: list(store.outputs(ordered=True)), said)


@pytest.mark.parametrize(
    ("table", "key", "said"),
    [
        (tables.META, tables.KEY_TOTALS, "the sums of 1 complete sources in the table meta, found none"),
        (tables.SOURCES, plain("a").id, "at least 1 rows of the table sources, found 0"),
    ],
)
def test_a_row_that_is_gone_with_its_key_is_missed_by_sums(store: LmdbStore, table: str, key: bytes, said: str) -> None:
    store.register([plain("a")])
    store.commit([leaf_of(plain("a"))])
    assert store.status()["sources"]["complete"] == 1
    store._write(lambda txn: txn.delete(table, key))
    is_told(store, store.status, said)


@pytest.mark.parametrize("late", [False, True])
def test_an_output_recorded_late_is_not_missed(store: LmdbStore, late: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(views, "_SOURCES_A_TRANSACTION", 1)
    sources = [plain(name) for name in "abc"]

    def record(source: Source) -> None:
        store.register([source])
        store.commit([leaf_of(source)])

    def listed(*args: Any) -> Iterator[Any]:
        yield from row_pages(*args)
        if not late:
            record(sources[2])

    for source in sources[:2]:
        record(source)
    with monkeypatch.context() as patched:
        patched.setattr(views, "row_pages", listed)
        found = store.outputs(ordered=True)
        rows = [next(found)]
    if late:
        record(sources[2])
    assert [row.source_id for row in (*rows, *found)] == [source.id for source in sources[:2]]


@pytest.mark.parametrize("late", [0, 4])
def test_what_is_written_between_two_pages_is_nothing_that_was_missed(store: LmdbStore, late: int) -> None:
    sources = sorted((plain(str(number)) for number in range(5)), key=lambda source: source.id)
    store.register([*sources[:late], *sources[late + 1 :]])
    found = []
    for page in key_pages(store._open(), tables.SOURCES, 2):
        found += page
        store.register(sources)
    assert found == [source.id for source in sources[0 if late else 1 :]]
    assert list(chain(*key_pages(store._open(), tables.SOURCES, 2))) == [source.id for source in sources]


@pytest.mark.parametrize("table", ["runs", "outputs"])
def test_a_table_with_rows_and_without_pages_is_told(tmp_path: Path, table: str) -> None:
    make(tmp_path / "ledger")
    path = tmp_path / "ledger" / "data.mdb"
    data = bytearray(path.read_bytes())
    (page,) = layout(bytes(data)).pages[""]  # of the table of tables
    about = data.index(table.encode(), page * PAGE, (page + 1) * PAGE) + len(table)
    depth = slice(about + 6, about + 8)
    assert int.from_bytes(data[depth], "little") > 0
    data[depth] = bytes(2)
    path.write_bytes(data)
    store = LmdbStore(str(tmp_path / "ledger"))
    is_told(
        store,
        lambda: store._write(lambda txn: txn.count(table)),
        f"rows of the table {table}, found a page tree",
    )


def test_keys_that_do_not_ascend_are_told(store: LmdbStore) -> None:
    store._write(lambda txn: txn.put_many(tables.OUTPUTS, [(KEY, b""), (OTHER, b"")]))
    store.close()
    path = Path(store.url) / "data.mdb"
    data = path.read_bytes()
    first, second = (row for row in layout(data).rows if row.table == tables.OUTPUTS)
    rows = [data[row.node[0] : row.value[1]] for row in (first, second)]
    assert len(rows[0]) == len(rows[1])
    data = data[: first.node[0]] + rows[1] + data[first.value[1] :]
    data = data[: second.node[0]] + rows[0] + data[second.value[1] :]
    twice = data[: second.node[0]] + data[first.node[0] : first.value[1]] + data[second.value[1] :]
    for damaged in (data, twice):
        store.close()
        path.write_bytes(damaged)
        out_of_order = "keys of the table outputs in ascending order"
        is_told(store, lambda: store._write(lambda txn: txn.scan(tables.OUTPUTS, b"")), out_of_order)
        is_told(store, lambda: store._write(lambda txn: txn.page(tables.OUTPUTS, b"", 9)), out_of_order)


def lose(store: LmdbStore, table: str, key: bytes) -> None:
    store._write(lambda txn: txn.delete(table, key))


def test_a_source_is_not_complete_if_an_entry_was_lost(store: LmdbStore) -> None:
    source, leaves = plain(), leaves_of_split(plain(), 3)
    store.register([source])
    store.commit(leaves[:2])
    entry = store._write(lambda txn: txn.scan(tables.APPLIED, source.id))[1][0]
    assert store.progress([source.id])
    lose(store, tables.APPLIED, entry)
    is_told(store, lambda: store.progress([source.id]), "tasks of a source to leave 1 pending, found")
    is_told(store, lambda: store.commit(leaves), "")
    assert store.completed_count() == 0


def test_the_entries_of_a_source_make_its_count() -> None:
    require_count(3, [2])
    require_count(0, [2, -1, -1, -1])
    for deltas in ([2, -1, -1], [-1, -1, -1], []):
        with pytest.raises(ValueError, match=f"source to leave 0 pending, found {1 + sum(deltas)}"):
            require_count(0, deltas)


@pytest.mark.parametrize("table", [tables.COMPLETED, tables.PENDING])
@pytest.mark.parametrize("makes", [leaf_of, counted_leaf])
def test_a_lost_state_is_not_counted_twice(store: LmdbStore, table: str, makes: Callable[..., object]) -> None:
    source = plain()
    leaves = [makes(source, ((ordinal, 2),)) for ordinal in range(2)]
    store.register([source])
    store.commit(leaves[: 1 if table == tables.PENDING else 2])  # type: ignore[arg-type]
    totals = store.totals()
    lose(store, table, source.id)
    is_told(store, lambda: store.commit(leaves), "only new keys for the table")  # type: ignore[arg-type]
    assert store.totals() == totals


@pytest.mark.parametrize("table", [tables.COMPLETED, tables.OUTPUTS, tables.COUNTS, tables.STATISTICS])
def test_all_rows_that_a_commit_writes_once_are_looked_at(store: LmdbStore, table: str) -> None:
    source = registered(store)
    store.commit([counted_leaf(source)])
    kept = store._write(lambda txn: txn.scan(table, source.id))
    store.forget("*")
    store._write(lambda txn: [txn.put(table, *row) for row in kept])
    if table == tables.COMPLETED:
        assert store.commit([counted_leaf(source)]).fresh == 0
        return
    is_told(store, lambda: store.commit([counted_leaf(source)]), f"new keys for the table {table}")


@pytest.mark.parametrize("table", [tables.COUNTS, tables.COUNTED])
def test_the_sums_of_what_became_of_records_are_those_of_the_tasks(store: LmdbStore, table: str) -> None:
    """A row with a damaged key stays when its source is replaced, and its share stays in the sums."""
    sources = several(store, *"ab")
    store.commit([counted_leaf(source) for source in sources])
    assert len(list(store.task_counts())) == 2
    lose(store, table, store._write(lambda txn: txn.scan(table, b""))[0][0])
    is_told(store, lambda: list(store.task_counts()), "to hold the sums of the table counts")


def test_what_is_recorded_while_rows_are_read_belongs_to_no_sum(store: LmdbStore) -> None:
    sources = sorted((plain(name) for name in "ab"), key=lambda source: source.id, reverse=True)
    store.register(sources)
    store.commit([counted_leaf(sources[0])])
    rows = store.task_counts()
    assert next(rows)
    store.commit([counted_leaf(sources[1])])
    assert list(rows) == []  # its place is before the one that was read
    assert len(list(store.task_counts())) == 2


@pytest.mark.parametrize("done", [1, 2])
def test_a_source_whose_row_was_lost_is_neither_replaced_nor_forgotten(store: LmdbStore, done: int) -> None:
    source = registered(store)
    store.commit(leaves_of_split(source, 2)[:done])
    lose(store, tables.SOURCES, source.id)
    missing = f"the source {source.id.hex()} has recorded tasks, but no row"
    is_told(store, lambda: store.register([plain(version="2")]), missing)
    is_told(store, lambda: store.forget_sources([source.id]), missing)
    store._write(lambda txn: lmdb_sources.retire(txn, plain("never").id, 0))


def test_a_source_that_was_replaced_unseen_is_not_gone(store: LmdbStore) -> None:
    source, news = plain(), plain(version="2")
    pack = [plain("b"), plain("c")]
    store.register([source, *pack])
    lose(store, tables.URLS, url_key(source.url))
    store.set_gone([one.id for one in pack])
    is_told(store, lambda: store.set_gone([source.id]), source.url)
    store.register([news])
    is_told(store, lambda: store.set_gone([source.id]), source.url)


@pytest.mark.parametrize("table", [tables.URLS, tables.SOURCES])
def test_outputs_stay_superseded_if_it_is_lost_what_has_replaced_their_source(store: LmdbStore, table: str) -> None:
    store.register([plain()])
    store.commit([leaf_of(plain())])
    news = plain(version="2")
    store.register([news])
    store.commit([leaf_of(news, (), "other")])
    assert store.stale_outputs() == []
    lose(store, table, url_key(news.url) if table == tables.URLS else news.id)
    is_told(store, store.stale_outputs, f"the source {plain().id.hex()} was replaced")


def test_a_run_that_is_hidden_is_missed_by_the_next(store: LmdbStore) -> None:
    store.begin_run({})
    store.begin_run({})
    hide(store, tables.RUNS)
    is_told(store, lambda: store.begin_run({}), "expected 2 rows of the table runs, found 1")
