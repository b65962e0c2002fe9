"""What worker processes leave in the folder of a run: whole or not at all, each in a file of its own."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from ledgerbeam.ledger.model.set_ups import SetUps
from ledgerbeam.ledger.worker.left_files import leave, left, place_to_leave
from ledgerbeam.ledger.worker.set_ups import leave_set_ups, left_set_ups
from tests.disk import no_larger_than


def test_each_file_is_of_its_process_and_of_no_other_file(tmp_path: Path) -> None:
    one, other = (place_to_leave(str(tmp_path), ".kind") for _ in range(2))
    assert one != other
    for path in (one, other):
        folder, name = os.path.split(path)
        assert folder == str(tmp_path)
        assert name.startswith(f"{os.getpid()}-")
        assert name.endswith(".kind")


def test_what_is_left_last_stands_in_the_place_of_what_was_before(tmp_path: Path) -> None:
    path = place_to_leave(str(tmp_path), ".kind")
    for value in ({"a": 1}, [2.5, "b"]):
        leave(path, value)
        assert list(left(str(tmp_path), ".kind")) == [value]
    assert os.listdir(tmp_path) == [os.path.basename(path)]


def test_what_the_disk_refuses_leaves_what_was_before(tmp_path: Path) -> None:
    path = place_to_leave(str(tmp_path), ".kind")
    leave(path, {"a": 1})
    with no_larger_than(4):
        leave(path, {"a": 2, "b": 3})
    assert list(left(str(tmp_path), ".kind")) == [{"a": 1}]


def test_files_of_one_kind_come_in_the_order_of_their_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in (3, 1, 2):
        leave(str(tmp_path / f"{number}.kind"), number)
    leave(str(tmp_path / "4.other"), 4)
    (tmp_path / "0.kind.new").write_bytes(b"0")  # of one that was killed as it wrote
    listed = sorted(os.listdir(tmp_path), reverse=True)
    monkeypatch.setattr(os, "listdir", lambda _: listed)
    assert list(left(str(tmp_path), ".kind")) == [1, 2, 3]
    assert list(left(str(tmp_path), ".other")) == [4]


def test_what_others_have_left_is_passed_over_and_what_comes_behind_is_not(tmp_path: Path) -> None:
    (tmp_path / "1.kind").write_bytes(b'{"a":')
    (tmp_path / "2.kind").mkdir()
    os.symlink("nowhere", tmp_path / "3.kind")
    leave(str(tmp_path / "4.kind"), "ours")
    assert list(left(str(tmp_path), ".kind")) == ["ours"]


def test_where_there_is_no_folder_nothing_is_left(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for folder in (tmp_path / "gone", tmp_path / "file"):
        leave(str(folder / "1.kind"), 1)
        assert list(left(str(folder), ".kind")) == []


def test_set_ups_of_all_processes_are_added_up(tmp_path: Path) -> None:
    leave_set_ups(str(tmp_path), (1.5, 0.25))
    leave_set_ups(str(tmp_path), [2.0])
    assert left_set_ups(str(tmp_path)) == SetUps(3, 3.75, 2.0)
    assert left_set_ups(str(tmp_path / "gone")) == SetUps()


@pytest.mark.parametrize("value", [1.0, None, {"times": 1}, [1.0, "2"], [1.0, -1.0], [[1.0]]])
def test_what_is_no_list_of_times_is_none_of_set_ups(tmp_path: Path, value: Any) -> None:
    leave(str(tmp_path / "0.setup"), value)
    leave_set_ups(str(tmp_path), [0.5])
    assert left_set_ups(str(tmp_path)) == SetUps(1, 0.5, 0.5)
