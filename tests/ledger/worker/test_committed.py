"""Steps after the chain get a note of every recorded task, and of no other task."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ledgerbeam.errors import StorageError
from ledgerbeam.ledger.lmdb.store import LmdbStore
from ledgerbeam.ledger.model.identity import node_id
from ledgerbeam.ledger.model.task import Source
from ledgerbeam.ledger.worker.run_folders import CommitNotes, committed_notes
from tests.ledger.builders import filtered_leaf, leaf_of, plain

RUN = "run"


def note(folder: Path, *tasks: tuple[Source, int]) -> Path:
    """Note tasks as one process; returns its file."""
    folder.mkdir(exist_ok=True)
    before = set(folder.iterdir())
    notes = CommitNotes(str(folder))
    for source, ordinal in tasks:
        notes.add(source.id, node_id(source.id, ((ordinal, 3),)), f"{source.url} {ordinal}")
    notes.close()
    (made,) = set(folder.iterdir()) - before
    return made


@pytest.fixture
def sources(store: LmdbStore) -> list[Source]:
    found = [plain(name) for name in "abc"]
    store.register(found)
    return found


def test_what_was_noted_and_not_recorded_is_passed_over(
    tmp_path: Path, store: LmdbStore, sources: list[Source]
) -> None:
    whole, part, none = sources
    everything = [(source, ordinal) for source in (whole, part, none, whole, part) for ordinal in range(3)]
    note(tmp_path / RUN, *dict.fromkeys(everything))
    store.commit([leaf_of(whole, ((ordinal, 3),)) for ordinal in range(3)])
    store.commit([leaf_of(part, ((0, 3),)), filtered_leaf(part, ((2, 3),))])
    found = list(committed_notes(str(tmp_path / RUN), store))
    assert found == [f"{whole.url} {ordinal}" for ordinal in range(3)] + [f"{part.url} {n}" for n in (0, 2)]


def test_notes_of_sources_that_take_turns_and_of_several_processes_all_count(
    tmp_path: Path, store: LmdbStore, sources: list[Source]
) -> None:
    one, other, _ = sources
    note(tmp_path / RUN, (one, 0), (other, 0), (one, 1), (other, 1))
    note(tmp_path / RUN, (one, 2), (other, 2))
    store.commit([leaf_of(source, ((ordinal, 3),)) for source in (one, other) for ordinal in (0, 2)])
    expected = {f"{source.url} {ordinal}" for source in (one, other) for ordinal in (0, 2)}
    found = list(committed_notes(str(tmp_path / RUN), store))
    assert (set(found), len(found)) == (expected, len(expected))


def test_what_was_noted_of_a_source_that_was_replaced_meanwhile_is_passed_over(
    tmp_path: Path, store: LmdbStore, sources: list[Source]
) -> None:
    note(tmp_path / RUN, (sources[0], 0), (sources[1], 0))
    store.commit([leaf_of(source, ((0, 3),)) for source in sources[:2]])
    store.register([plain("a", "2")])
    assert list(committed_notes(str(tmp_path / RUN), store)) == [f"{sources[1].url} 0"]


def test_notes_come_in_the_order_of_their_files(
    tmp_path: Path, store: LmdbStore, sources: list[Source], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = {note(tmp_path / RUN, (sources[0], ordinal)).name: f"{sources[0].url} {ordinal}" for ordinal in range(3)}
    store.commit([leaf_of(sources[0], ((ordinal, 3),)) for ordinal in range(3)])
    for names in (sorted(made), sorted(made, reverse=True)):
        monkeypatch.setattr(os, "listdir", lambda _, names=names: names)
        assert list(committed_notes(str(tmp_path / RUN), store)) == [made[name] for name in sorted(made)]


def test_a_task_that_was_noted_again_is_told_of_once(tmp_path: Path, store: LmdbStore, sources: list[Source]) -> None:
    whole, part, _ = sources
    note(tmp_path / RUN, (whole, 0), (whole, 1), (part, 0), (whole, 0), (part, 0))
    note(tmp_path / RUN, (whole, 1), (part, 0))
    store.commit([leaf_of(whole, ((ordinal, 3),)) for ordinal in range(3)])
    store.commit([leaf_of(part, ((0, 3),))])
    found = sorted(committed_notes(str(tmp_path / RUN), store))
    assert found == [f"{whole.url} 0", f"{whole.url} 1", f"{part.url} 0"]


def test_a_note_that_a_kill_has_cut_short_is_none_wherever_it_was_cut(
    tmp_path: Path, store: LmdbStore, sources: list[Source]
) -> None:
    path = note(tmp_path / RUN, (sources[0], 0), (sources[0], 1))
    store.commit([leaf_of(sources[0], ((0, 3),))])
    data = path.read_bytes()
    first = len(data) // 2  # both are of the same length
    for length in range(len(data)):
        path.write_bytes(data[:length])
        assert list(committed_notes(str(tmp_path / RUN), store)) == [f"{sources[0].url} 0"] * (length >= first)


def test_a_note_that_the_system_writes_in_pieces_is_whole(
    tmp_path: Path, store: LmdbStore, sources: list[Source]
) -> None:
    class Slow:
        """A file that takes a few bytes at a time."""

        def __init__(self, path: Path) -> None:
            self._file = open(path, "ab", buffering=0)  # noqa: SIM115 - closed by the notes

        def write(self, data: memoryview) -> int:
            return self._file.write(data[:7])

        def close(self) -> None:
            self._file.close()

    path = note(tmp_path / RUN)
    notes = CommitNotes(str(tmp_path / RUN))
    notes.close()
    notes._file = Slow(path)  # type: ignore[assignment]
    notes.add(sources[0].id, node_id(sources[0].id, ((0, 3),)), "x" * 1000)
    notes.close()
    store.commit([leaf_of(sources[0], ((0, 3),))])
    assert list(committed_notes(str(tmp_path / RUN), store)) == ["x" * 1000]


def test_a_note_is_in_its_file_before_the_call_returns(tmp_path: Path, store: LmdbStore, sources: list[Source]) -> None:
    (tmp_path / RUN).mkdir()
    notes = CommitNotes(str(tmp_path / RUN))
    notes.add(sources[0].id, node_id(sources[0].id, ((0, 3),)), "noted")
    store.commit([leaf_of(sources[0], ((0, 3),))])
    assert list(committed_notes(str(tmp_path / RUN), store)) == ["noted"]
    notes.close()
    notes.close()


def test_other_files_of_the_run_are_no_notes_and_a_process_has_its_own(
    tmp_path: Path, store: LmdbStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = note(tmp_path / RUN)
    assert path.name.startswith(f"{os.getpid()}-")
    (tmp_path / RUN / "1.inflight").write_bytes(b"no pickle")
    assert list(committed_notes(str(tmp_path / RUN), store)) == []
    monkeypatch.setattr(os, "urandom", lambda count: bytes.fromhex(path.stem.partition("-")[2]))
    with pytest.raises(StorageError, match=r"\.committed: cannot be written"):
        CommitNotes(str(tmp_path / RUN))


def test_notes_that_cannot_be_read_are_named(tmp_path: Path, store: LmdbStore) -> None:
    (tmp_path / RUN / "1.committed").mkdir(parents=True)
    with pytest.raises(StorageError, match=r"1\.committed: cannot be read .*run the same command"):
        list(committed_notes(str(tmp_path / RUN), store))
