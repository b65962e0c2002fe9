"""How many records may be rejected: what is allowed to be written, and what a ledger is held to."""

from __future__ import annotations

from pathlib import Path

import pytest

from ledgerbeam.errors import RejectLimitError, UsageError
from ledgerbeam.ledger import Job, LedgerStore, Source
from ledgerbeam.ledger.model.accounts import RecordCounts
from ledgerbeam.ledger.model.rows import Leaf
from ledgerbeam.ledger.opening import open_local_store
from ledgerbeam.pipelines.jobs.checks import SHARE_RECORDS, RejectLimit, parse_on_error
from tests.cases import each


@each(
    ("text", "limit"),
    [
        ("fail", None),
        ("reject", RejectLimit("reject")),
        ("reject:0", RejectLimit("reject:0", most=0)),
        ("reject:48", RejectLimit("reject:48", most=48)),
        ("reject:0.1%", RejectLimit("reject:0.1%", percent=0.1)),
        ("reject:.5%", RejectLimit("reject:.5%", percent=0.5)),
        ("reject:100%", RejectLimit("reject:100%", percent=100.0)),
    ],
)
def test_what_may_be_rejected_is_read(text: str, limit: RejectLimit | None) -> None:
    assert parse_on_error(text) == limit


WRONG = [
    "",
    "skip",
    "reject:",
    "reject:-1",
    "reject:1.5",
    "reject:%",
    "reject:1e2%",
    "reject:nan%",
    "reject:x",
    "fail:3",
]


@each("text", [*WRONG, "fail:3", "reject:1.2.3%", "reject:٣", "reject:٣%", "REJECT", "reject:1 %"])
def test_anything_else_is_refused_by_name(text: str) -> None:
    with pytest.raises(UsageError, match="expected fail, reject, reject:N"):
        parse_on_error(text)


def test_a_share_is_at_most_all() -> None:
    with pytest.raises(UsageError, match=r"expected at most 100 %, found 100\.1 %"):
        parse_on_error("reject:100.1%")


@pytest.fixture
def store(tmp_path: Path) -> LedgerStore:
    store = open_local_store(str(tmp_path / "ledger"), create=True)
    store.open_job(Job("map", {}))
    return store


def record(store: LedgerStore, read: int, **rejected: int) -> None:
    source = Source(f"/data/{store.source_count()}.jsonl", 1, "1")
    store.register([source])
    kept = read - sum(rejected.values())
    counts = RecordCounts(read, kept, {}, rejected, {"": kept} if kept else {})
    store.commit([Leaf(source.id, ((0, 1),), records=kept, counts=counts)])


def limit(text: str) -> RejectLimit:
    found = parse_on_error(text)
    assert found is not None
    return found


def test_a_number_is_exceeded_by_one_more(store: LedgerStore) -> None:
    limit("reject:0").check(store, ended=True)
    record(store, 100, KeyError=3)
    limit("reject:3").check(store, ended=False)
    record(store, 100, KeyError=1)
    for ended in (False, True):
        with pytest.raises(RejectLimitError, match=r"expected at most 3 records rejected, found 4 of 200 read"):
            limit("reject:3").check(store, ended=ended)
    limit("reject:4").check(store, ended=True)
    limit("reject").check(store, ended=True)


def test_a_share_is_looked_at_once_enough_is_read_and_at_the_end(store: LedgerStore) -> None:
    record(store, SHARE_RECORDS - 1, KeyError=200)
    limit("reject:1%").check(store, ended=False)
    with pytest.raises(RejectLimitError, match=r"at most 1 % of the records rejected, found 200 of 9,999 read"):
        limit("reject:1%").check(store, ended=True)
    record(store, 1)
    with pytest.raises(RejectLimitError):
        limit("reject:1%").check(store, ended=False)
    limit("reject:2%").check(store, ended=False)


def test_the_message_names_the_most_frequent_reasons_and_the_remedy(store: LedgerStore) -> None:
    record(store, 100, a=1, b=5, c=2, d=1)
    with pytest.raises(RejectLimitError) as error:
        limit("reject:5").check(store, ended=True)
    assert "--on-error reject:5: expected at most 5 records rejected, found 9 of 100 read" in str(error.value)
    assert "(b 5, c 2, a 1 and 1 more reason)" in str(error.value)
    assert f"ledgerbeam ledger rejects {store.url}" in str(error.value)
    assert "higher limit" in str(error.value)
    assert error.value.exit_status == 1
