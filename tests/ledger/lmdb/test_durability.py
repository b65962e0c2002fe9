"""Commits are durable, with the name of the file and the folders above it, before they are acknowledged."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import lmdb
import pytest

from ledgerbeam._base.disk import make_folders
from ledgerbeam.io.storage.objects import ObjectFolder
from ledgerbeam.ledger.lmdb.store import LmdbStore
from tests.disk import Disk


def test_an_object_is_on_the_disk_before_it_has_its_name_and_its_name_before_it_is_created(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = ObjectFolder(str(tmp_path / "ledger"))
    disk = Disk(monkeypatch)
    assert folder.create("segments/000001/a", b"data")
    steps = [(what, os.path.isdir(path), size if not os.path.isdir(path) else 0) for what, path, size in disk.seen]
    file, named, folder_synced = (steps.index(("sync", False, 4)), steps.index(("link", False, 0)), len(steps) - 1)
    assert file < named < folder_synced
    assert disk.seen[-1][1] == str(tmp_path / "ledger/segments/000001")
    for made in ("", "ledger", "ledger/segments"):
        assert str(tmp_path / made).rstrip("/") in disk.synced_folders()
    disk.seen.clear()
    assert folder.create("segments/000001/a", b"data")  # created before, maybe by who died before it was synced
    assert disk.synced_folders() == [str(tmp_path / "ledger/segments/000001")]
    assert not folder.create("segments/000001/a", b"other")
    assert folder.read(["segments/000001/a"]) == [b"data"]
    disk.seen.clear()
    folder.delete(["segments/000001/a"])
    assert disk.seen[-1][:2] == ("sync", str(tmp_path / "ledger/segments/000001"))


def test_a_new_ledger_is_on_the_disk_with_all_folders_above_it_before_anything_is_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(monkeypatch)
    opened, open_as_ever = list[tuple[bool, bool]](), lmdb.open

    def opening(*arguments: Any, **options: Any) -> lmdb.Environment:
        environment = open_as_ever(*arguments, **options)
        flags = environment.flags()
        opened.append((flags["sync"], flags["metasync"]))
        return environment

    monkeypatch.setattr(lmdb, "open", opening)
    store = LmdbStore(str(tmp_path / "new/deep/ledger"))
    store.open(create=True)
    for made in ("", "new", "new/deep", "new/deep/ledger"):
        assert str(tmp_path / made).rstrip("/") in disk.synced_folders()
    made_at = [place for place, (what, path, _) in enumerate(disk.seen) if what == "link"]
    assert made_at
    assert max(place for place, row in enumerate(disk.seen) if row[0] == "sync") > made_at[-1]
    # The file is made under another name, then opened.
    assert opened == [(True, True)] * 2
    store.close()


def test_a_ledger_whose_maker_died_before_its_name_was_on_the_disk_is_there_once_it_is_opened_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = LmdbStore(str(tmp_path))
    first.open(create=True)
    first.close()
    disk = Disk(monkeypatch)
    LmdbStore(str(tmp_path)).open(create=True)
    assert str(tmp_path) in disk.synced_folders()


def test_a_folder_that_another_has_just_made_is_on_the_disk_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, make = Disk(monkeypatch), os.mkdir

    def beaten(path: str) -> None:
        make(path)  # by another, who may die before it has synced the folder above
        make(path)

    monkeypatch.setattr(os, "mkdir", beaten)
    make_folders(str(tmp_path / "new/deep"))
    assert disk.synced_folders() == [str(tmp_path), str(tmp_path / "new")]
