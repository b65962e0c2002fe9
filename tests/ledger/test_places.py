"""Paths and URLs of ledgers, and modes of opening them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ledgerbeam.errors import JobMismatchError, UsageError
from ledgerbeam.ledger.lmdb.store import LmdbStore
from ledgerbeam.ledger.opening import local_path, open_local_store, sidecar_folder
from tests.ledger.builders import leaf_of, plain
from tests.ledger.conformance import JOB


def test_a_local_ledger_is_named_by_a_path_or_a_url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert [local_path(url) for url in ("a/../L", f"file://{tmp_path}/L", f"{tmp_path}/L/")] == [
        str(tmp_path / "L")
    ] * 3
    with pytest.raises(UsageError, match="empty"):
        local_path("file://")
    with pytest.raises(UsageError, match="open_store"):
        local_path("s3://")


def test_a_store_that_is_opened_for_a_job_records_for_that_job_only(store: LmdbStore) -> None:
    store.open_job(JOB)
    store.register([plain()])
    ours, other = (open_local_store(store.url, create=False, job=job) for job in (JOB.fingerprint, "another"))
    with pytest.raises(JobMismatchError):
        other.commit([leaf_of(plain())])
    assert ours.commit([leaf_of(plain())]).completed == [plain().id]
    for opened in (ours, other):
        opened.close()


def test_a_store_that_is_opened_for_a_run_records_for_that_run_though_another_is_newer(store: LmdbStore) -> None:
    store.register([plain()])
    first, _ = store.begin_run({}), store.begin_run({})
    opened = open_local_store(store.url, create=False, run=first)
    opened.commit([leaf_of(plain())])
    opened.close()
    assert [row.run for row in store.history()] == [first]


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a file to another user: needs root")
def test_a_folder_of_another_user_and_a_link_of_the_administrator_may_lead_to_a_sidecar(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given, link = tmp_path / "given", tmp_path / "link"
    given.mkdir()
    os.chown(given, 12345, 12345)
    link.symlink_to(given)
    monkeypatch.setattr(os, "geteuid", lambda: 54321)
    for cache in (given, link):
        monkeypatch.setenv("LEDGERBEAM_CACHE", str(cache))
        assert Path(sidecar_folder("s3://bucket/ledger")).parent.parent == cache
