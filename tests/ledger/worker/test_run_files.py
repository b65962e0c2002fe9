"""Files of a run's folder that the disk refuses: what needs them says which, and that the command may be run again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ledgerbeam.errors import StorageError
from ledgerbeam.ledger.worker.inflight import InflightMarks
from ledgerbeam.ledger.worker.run_folders import CommitNotes, TaskBudget
from ledgerbeam.pipelines.runners.job_files import load_sources, read_text, touch
from tests.disk import no_larger_than


def note(folder: Path) -> None:
    notes = CommitNotes(str(folder))
    try:
        notes.add(b"s", b"n", "summary")
    finally:
        notes.close()


WRITERS: dict[str, Callable[[Path], object]] = {
    r"run/\d+-\w+\.inflight": lambda folder: InflightMarks(str(folder)).register(),
    r"run/\d+-\w+\.committed": note,
    "run/task-budget": lambda folder: TaskBudget.below(str(folder)).make(3),
    "run/traceback": lambda folder: touch(str(folder), "traceback", "text"),
}


@pytest.mark.parametrize("name", WRITERS)
def test_a_file_that_cannot_be_written_is_named_with_a_remedy(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    with no_larger_than(0), pytest.raises(StorageError, match=rf"{name}: cannot be written \(File too.*run the same"):
        WRITERS[name](folder)


IN_NO_FOLDER: dict[str, Callable[[Path], object]] = {
    r"file/\d+-\w+\.committed: cannot be written": lambda folder: CommitNotes(str(folder)),
    "file: cannot be written": lambda folder: InflightMarks(str(folder)).register(),
    "file/task-budget: cannot be written": lambda folder: TaskBudget.below(str(folder)).claim(1),
    "file/task-budget: cannot be read": lambda folder: TaskBudget.below(str(folder)).left(),
    "file/wave: cannot be read": lambda folder: list(load_sources(str(folder / "wave"))),
    "file/done: cannot be read": lambda folder: read_text(str(folder), "done"),
}


@pytest.mark.parametrize("message", IN_NO_FOLDER)
def test_a_folder_that_is_none_is_an_error_of_the_file_that_is_needed(tmp_path: Path, message: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match=rf"{message} \(.*run the same command"):
        IN_NO_FOLDER[message](tmp_path / "file")
