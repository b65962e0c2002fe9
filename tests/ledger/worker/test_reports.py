"""Reports of worker processes in the folder of a run: whole or missing, in separate files."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ledgerbeam.errors import LedgerbeamError, NonDeterministicTaskError, SourceNotFoundError, UsageError
from ledgerbeam.ledger.model.rows import SetUps
from ledgerbeam.ledger.worker.reports import (
    at_end,
    end_work,
    read_reports,
    report_error,
    report_path,
    report_set_ups,
    reported_errors,
    reported_set_ups,
    write_report,
)
from tests.disk import no_larger_than


def test_each_file_is_of_its_process_and_of_no_other_file(tmp_path: Path) -> None:
    one, other = (report_path(str(tmp_path), ".kind") for _ in range(2))
    assert one != other
    for path in (one, other):
        folder, name = os.path.split(path)
        assert folder == str(tmp_path)
        assert name.startswith(f"{os.getpid()}-")
        assert name.endswith(".kind")


def test_what_is_left_last_stands_in_the_place_of_what_was_before(tmp_path: Path) -> None:
    path = report_path(str(tmp_path), ".kind")
    for value in ({"a": 1}, [2.5, "b"]):
        write_report(path, value)
        assert list(read_reports(str(tmp_path), ".kind")) == [value]
    assert os.listdir(tmp_path) == [os.path.basename(path)]


def test_what_the_disk_refuses_leaves_what_was_before(tmp_path: Path) -> None:
    path = report_path(str(tmp_path), ".kind")
    write_report(path, {"a": 1})
    with no_larger_than(4):
        write_report(path, {"a": 2, "b": 3})
    assert list(read_reports(str(tmp_path), ".kind")) == [{"a": 1}]


def test_files_of_one_kind_come_in_the_order_of_their_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in (3, 1, 2):
        write_report(str(tmp_path / f"{number}.kind"), number)
    write_report(str(tmp_path / "4.other"), 4)
    (tmp_path / "0.kind.new").write_bytes(b"0")  # of one that was killed as it wrote
    listed = sorted(os.listdir(tmp_path), reverse=True)
    monkeypatch.setattr(os, "listdir", lambda _: listed)
    assert list(read_reports(str(tmp_path), ".kind")) == [1, 2, 3]
    assert list(read_reports(str(tmp_path), ".other")) == [4]


def test_what_others_have_left_is_passed_over_and_what_comes_behind_is_not(tmp_path: Path) -> None:
    (tmp_path / "1.kind").write_bytes(b'{"a":')
    (tmp_path / "2.kind").mkdir()
    os.symlink("nowhere", tmp_path / "3.kind")
    write_report(str(tmp_path / "4.kind"), "ours")
    assert list(read_reports(str(tmp_path), ".kind")) == ["ours"]


def test_where_there_is_no_folder_nothing_is_left(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for folder in (tmp_path / "gone", tmp_path / "file"):
        write_report(str(folder / "1.kind"), 1)
        assert list(read_reports(str(folder), ".kind")) == []


def test_set_ups_of_all_processes_are_added_up(tmp_path: Path) -> None:
    report_set_ups(str(tmp_path), (1.5, 0.25))
    report_set_ups(str(tmp_path), [2.0])
    assert reported_set_ups(str(tmp_path)) == SetUps(3, 3.75, 2.0)
    assert reported_set_ups(str(tmp_path / "gone")) == SetUps()


@pytest.mark.parametrize("value", [1.0, None, {"times": 1}, [1.0, "2"], [1.0, -1.0], [[1.0]]])
def test_what_is_no_list_of_times_is_none_of_set_ups(tmp_path: Path, value: Any) -> None:
    write_report(str(tmp_path / "0.setup"), value)
    report_set_ups(str(tmp_path), [0.5])
    assert reported_set_ups(str(tmp_path)) == SetUps(1, 0.5, 0.5)


NOT_UTF8 = b"/data/\xff.jsonl".decode("utf-8", "surrogateescape")


@pytest.mark.parametrize("message", ["plain", NOT_UTF8, "\ud800 alone", "", "x" * 100_000, "two\nlines\0"])
def test_an_error_arrives_as_it_was(tmp_path: Path, message: str) -> None:
    for kind in (NonDeterministicTaskError, SourceNotFoundError, LedgerbeamError):
        report_error(str(tmp_path), kind(message))
        (found,) = reported_errors(str(tmp_path))
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
    assert reported_errors(str(tmp_path)) == []


@pytest.mark.parametrize("kind", ["annotations", "nobody", "__all__", "LedgerbeamErrors", "Exception", "__class__"])
def test_an_error_of_a_class_that_is_none_of_ours_is_shown_as_ours(tmp_path: Path, kind: str) -> None:
    (tmp_path / "1.error").write_text(f'{{"type": "{kind}", "message": "m"}}')
    (found,) = reported_errors(str(tmp_path))
    assert (type(found), str(found)) == (LedgerbeamError, "m")


def test_the_errors_of_several_workers_arrive_without_secrets(tmp_path: Path) -> None:
    report_error(str(tmp_path), SourceNotFoundError("ftp://me:hunter2@host/a: not found"))
    assert (tmp_path / f"{os.getpid()}.error").exists()
    (tmp_path / "0.error").write_text('{"type": "UsageError", "message": "m"}')
    (tmp_path / "1.errors").write_text('{"type": "UsageError", "message": "m"}')
    usage, lost = reported_errors(str(tmp_path))
    assert (type(usage), str(usage), type(lost)) == (UsageError, "m", SourceNotFoundError)
    assert "hunter2" not in str(lost)
    assert str(lost).endswith("@host/a: not found")


def test_where_there_is_no_folder_no_error_is_left_and_none_found(tmp_path: Path) -> None:
    report_error(str(tmp_path / "gone"), UsageError("m"))
    assert reported_errors(str(tmp_path / "gone")) == []


@pytest.fixture(autouse=True)
def _nothing_of_others() -> None:
    end_work()


def test_what_was_added_last_is_called_first_and_all_of_it_once() -> None:
    called: list[int] = []
    for number in range(3):
        at_end(lambda number=number: called.append(number))  # type: ignore[misc]
    end_work()
    assert called == [2, 1, 0]
    end_work()
    assert called == [2, 1, 0]


def test_what_is_called_may_add_more() -> None:
    called: list[str] = []

    def last() -> None:
        called.append("last")
        at_end(lambda: called.append("after it"))

    at_end(lambda: called.append("first"))
    at_end(last)
    end_work()
    assert called == ["last", "after it", "first"]


def test_what_raises_is_not_called_again_and_the_rest_is_left_for_the_next_call() -> None:
    called: list[str] = []

    def refuse() -> None:
        called.append("refused")
        raise ValueError("no")

    at_end(lambda: called.append("first"))
    at_end(refuse)
    with pytest.raises(ValueError, match="no"):
        end_work()
    end_work()
    assert called == ["refused", "first"]


FORKS = """
import os, threading
from ledgerbeam.ledger.worker import exit_callbacks

exit_callbacks.at_end(lambda: print("of", here, flush=True))
here = "the parent"
held, go_on = threading.Event(), threading.Event()

def hold():
    with exit_callbacks._lock:
        held.set()
        go_on.wait()

thread = threading.Thread(target=hold)
thread.start()
held.wait()
child = os.fork()  # while another thread holds the lock
if child == 0:
    here = "the child"
    exit_callbacks.at_end(lambda: print("its own", flush=True))
    exit_callbacks.end_work()
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
go_on.set()
thread.join()
exit_callbacks.end_work()
"""


def test_a_forked_process_ends_what_it_has_begun_alone() -> None:
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", FORKS]
    found = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60, env=dict(os.environ))
    assert found.stdout.splitlines() == ["its own", "of the parent"]
