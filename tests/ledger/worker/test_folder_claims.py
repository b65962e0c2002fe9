"""Claims in run folders: of launchers that live, and no others."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ledgerbeam.errors import LedgerbeamError
from ledgerbeam.ledger.model.claims import Claims
from ledgerbeam.ledger.worker.run_folders import RunFolders
from ledgerbeam.ledger.worker.sharing import FolderClaims
from tests.disk import no_larger_than
from tests.ledger.worker.test_run_folders import OURS, kill, start


def test_launchers_see_each_other(tmp_path: Path) -> None:
    folders = RunFolders(str(tmp_path), OURS)
    with folders.enter("000001") as one:
        first = FolderClaims(folders, one, "000001")
        with folders.enter("000002") as two:
            second = FolderClaims(folders, two, "000002")
            assert first.names() == ["000002"]
            assert first.read(["000002"]) == [None]
            second.put(b"said")
            second.put(b"said again")
            assert first.read(["000002"]) == [b"said again"]
            assert second.names() == ["000001"]
            assert not first.has_died(Claims("000002", "", 1, 1.0))
            second.remove()
            second.remove()
            assert first.read(["000002"]) == [None]
        assert first.names() == []


def test_what_cannot_be_said_leaves_what_was_said_before(tmp_path: Path) -> None:
    folders = RunFolders(str(tmp_path), OURS)
    with folders.enter("000001") as one, folders.enter("000002") as two:
        said = FolderClaims(folders, two, "000002")
        said.put(b"said")
        with no_larger_than(5), pytest.raises(LedgerbeamError):
            said.put(b"said again")
        assert FolderClaims(folders, one, "000001").read(["000002"]) == [b"said"]


def test_the_dead_have_nothing_in_work(tmp_path: Path) -> None:
    folders = RunFolders(str(tmp_path), OURS)
    other = start(tmp_path, "000002")
    (tmp_path / "run/000002/claims.json").write_bytes(b"said")
    with folders.enter("000001") as one:
        mine = FolderClaims(folders, one, "000001")
        assert mine.read(mine.names()) == [b"said"]
        kill(other)
        assert mine.names() == []


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    folders = RunFolders(str(tmp_path), OURS)
    (tmp_path / "secret").write_bytes(b"secret")
    with folders.enter("000001") as one, folders.enter("000002") as two:
        os.symlink(tmp_path / "secret", Path(two.path) / "claims.json")
        assert FolderClaims(folders, one, "000001").read(["000002"]) == [None]


def test_of_too_much_just_enough_is_read_to_see_that_it_is(tmp_path: Path) -> None:
    folders = RunFolders(str(tmp_path), OURS)
    with folders.enter("000001") as one, folders.enter("000002") as two:
        mine = FolderClaims(folders, one, "000001")
        for size, read in ((2**20, 2**20), (2**20 + 1, 2**20 + 1), (2**20 + 9, 2**20 + 1)):
            FolderClaims(folders, two, "000002").put(bytes(size))
            (found,) = mine.read(["000002"])
            assert found is not None
            assert len(found) == read
