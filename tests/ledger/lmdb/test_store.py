from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from ledgerbeam.errors import UsageError
from ledgerbeam.ledger.lmdb.store import LmdbStore
from ledgerbeam.ledger.lmdb.tables import COMPLETED, pack_completion
from ledgerbeam.ledger.model.rows import Totals
from ledgerbeam.ledger.places import ledger_exists, local_path, open_store
from tests.ledger.builders import leaf_of, plain
from tests.ledger.conformance import LedgerStoreConformance
from tests.ledger.conformance_changes import ChangesConformance


class TestLmdbStore(LedgerStoreConformance, ChangesConformance):
    """The conformance tests on LMDB; the fixture `store` is in conftest."""


def test_what_was_committed_is_there_when_the_ledger_is_opened_again(tmp_path: Path) -> None:
    path = str(tmp_path / "ledger")
    assert not ledger_exists(path)
    store = open_store(path, create=True)
    assert ledger_exists(path)
    sources = [plain(f"s{n}") for n in range(5)]
    store.register(sources)
    store.commit([leaf_of(source) for source in sources[:3]])
    store.close()
    again = open_store(f"file://{path}", create=False, read_only=True)
    assert again.completed_mask([source.id for source in sources]).tolist() == [True] * 3 + [False] * 2
    again.close()


def test_a_mask_stays_right_through_many_pages_and_withdrawals(store: LmdbStore) -> None:
    sources = [plain(f"s{n}") for n in range(20_000)]
    ids = [source.id for source in sources]
    for start in range(0, 20_000, 5000):
        store.register(sources[start : start + 5000])
        store.commit([leaf_of(source) for source in sources[start : start + 5000]])
    for _ in range(2):
        for start in range(0, 20_000, 1000):
            assert store.completed_mask(ids[start : start + 1000]).all()
    other = pickle.loads(pickle.dumps(store))
    other.forget("/data/s1999?.jsonl")
    mask = store.completed_mask(ids)
    assert mask.sum() == 20_000 - 10
    assert not mask[19_990:].any()
    other.commit([leaf_of(sources[19_995])])
    assert store.completed_mask(ids).sum() == 20_000 - 9
    other.close()


def test_ids_that_agree_in_their_first_half_are_told_apart(store: LmdbStore) -> None:
    half = b"h" * 8
    done = [half + tail * 8 for tail in (b"a", b"c", b"e")]
    store._write(lambda txn: txn.put_many(COMPLETED, [(source, pack_completion(0, Totals(1))) for source in done]))
    asked = [half + bytes([tail]) * 8 for tail in b"abcdef"]
    for _ in range(3):
        assert store.completed_mask(asked).tolist() == [True, False] * 3


def test_a_store_that_was_opened_to_look_refuses_changes(store: LmdbStore) -> None:
    store.register([plain()])
    looking = open_store(store.url, create=False, read_only=True)
    assert looking.pending(plain().id) == 1
    with pytest.raises(UsageError, match="read only"):
        looking.commit([leaf_of(plain())])
    looking.close()


@pytest.mark.parametrize("url", ["s3://bucket/ledger", "gs://b/l", "memory://x"])
def test_a_remote_ledger_is_opened_elsewhere(url: str) -> None:
    for call in (lambda: open_store(url, create=True), lambda: ledger_exists(url)):
        with pytest.raises(UsageError, match=r"local folder.*open_ledger"):
            call()


def test_an_empty_url_and_a_contradiction_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="empty"):
        local_path("")
    with pytest.raises(UsageError, match="only one"):
        open_store(str(tmp_path / "x"), create=True, read_only=True)


def test_a_ledger_copied_while_closed_is_a_ledger(tmp_path: Path, store: LmdbStore) -> None:
    store.register([plain()])
    store.commit([leaf_of(plain())])
    store.close()
    copy = tmp_path / "copy"
    copy.mkdir()
    (copy / "data.mdb").write_bytes(Path(store.url, "data.mdb").read_bytes())
    found = open_store(str(copy), create=False, read_only=True)
    assert found.completed_count() == 1
    found.close()
