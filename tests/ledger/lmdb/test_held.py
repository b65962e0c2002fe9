"""Resources of a store: memory that it releases, and locks that no forked process waits for."""

from __future__ import annotations

import signal

import pytest

from ledgerbeam.ledger.lmdb import environment as lmdb_environment
from ledgerbeam.ledger.lmdb.store import LmdbStore
from tests.ledger.builders import leaf_of, plain
from tests.ledger.lmdb.test_processes import in_child


def test_looking_up_single_tasks_gives_memory_back_after_each_thousand(
    store: LmdbStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lmdb_environment, "_TRIM_BYTES", -(1 << 60))  # any memory is much
    store.register([plain()])
    environment = store._open()

    def gives_back(tasks: int) -> bool:
        before = environment._env
        assert store.finished([(plain().id, ())] * tasks) == [False] * tasks
        return environment._env is not before

    assert [gives_back(tasks) for tasks in (1, 999, 1, 1000, 1, 1001, 1000)] == [
        *(False, False, True),
        *(False, True, True, False),
    ]


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_process_waits_for_no_lock_that_a_thread_of_its_parent_held(store: LmdbStore) -> None:
    store.register([plain()])
    store.commit([leaf_of(plain())])

    def child() -> None:
        signal.alarm(10)
        assert all(store.completed_mask([plain().id]))

    with store._lock, store._completed._lock:
        in_child(child)
    assert all(store.completed_mask([plain().id]))
