"""Errors that end workers: they reach the launcher whole, and what is no such error does not end it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ledgerbeam.errors import LedgerbeamError, NonDeterministicTaskError, SourceNotFoundError, UsageError
from ledgerbeam.ledger.worker.worker_errors import leave_error, left_errors

NOT_UTF8 = b"/data/\xff.jsonl".decode("utf-8", "surrogateescape")


@pytest.mark.parametrize("message", ["plain", NOT_UTF8, "\ud800 alone", "", "x" * 100_000, "two\nlines\0"])
def test_an_error_arrives_as_it_was(tmp_path: Path, message: str) -> None:
    for kind in (NonDeterministicTaskError, SourceNotFoundError, LedgerbeamError):
        leave_error(str(tmp_path), kind(message))
        (found,) = left_errors(str(tmp_path))
        assert (type(found), str(found)) == (kind, message)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"\xff\xfe",
        b"[]",
        b"1",
        b"null",
        b'"text"',
        b'{"type": "UsageError"}',
        b'{"type": "UsageError", "message": 1}',
        b'{"type": ["UsageError"], "message": "m"}',
        b"[" * 100_000,
    ],
)
def test_a_file_that_no_worker_wrote_is_passed_over(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "1.error").write_bytes(content)
    (tmp_path / "2.error").mkdir()
    os.symlink("nowhere", tmp_path / "3.error")
    assert left_errors(str(tmp_path)) == []


@pytest.mark.parametrize("kind", ["annotations", "nobody", "__all__", "LedgerbeamErrors", "Exception", "__class__"])
def test_an_error_of_a_class_that_is_none_of_ours_is_shown_as_ours(tmp_path: Path, kind: str) -> None:
    (tmp_path / "1.error").write_text(f'{{"type": "{kind}", "message": "m"}}')
    (found,) = left_errors(str(tmp_path))
    assert (type(found), str(found)) == (LedgerbeamError, "m")


def test_the_errors_of_several_workers_arrive_without_secrets(tmp_path: Path) -> None:
    leave_error(str(tmp_path), SourceNotFoundError("ftp://me:hunter2@host/a: not found"))
    assert (tmp_path / f"{os.getpid()}.error").exists()
    (tmp_path / "0.error").write_text('{"type": "UsageError", "message": "m"}')
    (tmp_path / "1.errors").write_text('{"type": "UsageError", "message": "m"}')
    usage, lost = left_errors(str(tmp_path))
    assert (type(usage), str(usage), type(lost)) == (UsageError, "m", SourceNotFoundError)
    assert "hunter2" not in str(lost)
    assert str(lost).endswith("@host/a: not found")


def test_where_there_is_no_folder_no_error_is_left_and_none_found(tmp_path: Path) -> None:
    leave_error(str(tmp_path / "gone"), UsageError("m"))
    assert left_errors(str(tmp_path / "gone")) == []
