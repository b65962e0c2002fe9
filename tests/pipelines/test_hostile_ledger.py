"""Ledgers whose folder holds what is not theirs, or whose rows name what is not theirs: nothing of it is touched."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from ledgerbeam.ledger.lmdb.tables import OUTPUTS, SUPERSEDED, SUPERSEDED_ROW
from ledgerbeam.ledger.opening import open_local_store
from tests.ledger.stores import rows_of
from tests.pipelines.conftest import Workspace

pytestmark = pytest.mark.long

CONVERT = ("convert", "in/*.jsonl", "--output", "out", "--to", "jsonl", "--ledger", "L")
INDEX = ("index", "in/*.jsonl", "--ledger", "L")


@pytest.fixture
def workspace(workspace: Workspace) -> Workspace:
    workspace.jsonl("in/a.jsonl", 3)
    return workspace


def put_row(ledger: Path, table: str, key: bytes, value: bytes) -> None:
    with rows_of(ledger, write=True) as txn:
        txn.put(table, key, value)


def supersede(ledger: Path, name: str) -> None:
    put_row(ledger, SUPERSEDED, bytes(32), SUPERSEDED_ROW.pack(0) + name.encode())


def run(workspace: Workspace, *command: str, status: int) -> str:
    ran = workspace.run(*command, status=status)
    assert "Traceback" not in ran.out + ran.err
    return ran.out + ran.err


def test_a_folder_that_holds_other_things_is_no_new_ledger(workspace: Workspace) -> None:
    mine = workspace.root / "run" / "mine"
    mine.mkdir(parents=True)
    (mine / "precious").write_text("precious")
    os.utime(mine, (0, 0))
    said = run(workspace, *CONVERT[:-1], ".", status=2)
    for text in ("functions.py, in, ", ", run", "--ledger"):
        assert text in said
    assert not (workspace.root / "data.mdb").exists()
    (workspace.root / "L" / "run").mkdir(parents=True)
    (workspace.root / "L" / "run" / "mine").symlink_to(mine)
    assert "holds run; " in run(workspace, *CONVERT, status=2)
    assert (mine / "precious").read_text() == "precious"


def test_what_a_killed_creation_left_is_not_in_the_way(workspace: Workspace) -> None:
    ledger = workspace.root / "L"
    for name in ("run", "work"):
        (ledger / name).mkdir(parents=True)
    (ledger / "lock.mdb").touch()
    (ledger / ".data.mdb.0123456789ab.lbtmp").write_bytes(b"cut short")
    assert "(new)" in run(workspace, *CONVERT, status=0)


@pytest.mark.parametrize("folder", ["run", "work"])
def test_a_ledger_that_has_lost_its_rows_is_not_begun_anew_over_what_is_left(workspace: Workspace, folder: str) -> None:
    run(workspace, *CONVERT, status=0)
    ledger = workspace.root / "L"
    (ledger / folder).mkdir(exist_ok=True)
    (ledger / folder / "left").mkdir()
    (ledger / "data.mdb").rename(workspace.root / "copy")
    assert f"holds {folder}; " in run(workspace, *CONVERT, "--existing", "keep", status=2)
    assert (ledger / folder / "left").exists()
    (workspace.root / "copy").rename(ledger / "data.mdb")
    assert "1 skipped" in run(workspace, *CONVERT, status=0)


def test_folders_and_links_beside_those_of_runs_stay(workspace: Workspace) -> None:
    run(workspace, *CONVERT, status=0)
    home = workspace.root / "home"
    (home / "sub").mkdir(parents=True)
    (home / "precious").write_text("precious")
    runs = workspace.root / "L" / "run"
    (runs / "mine").mkdir()
    (runs / "mine" / "precious").write_text("precious")
    (runs / "linked").symlink_to(home)
    for path in (runs / "mine", runs / "linked", home):
        os.utime(path, (0, 0), follow_symlinks=False)
    run(workspace, *CONVERT, status=0)
    workspace.jsonl("in/b.jsonl", 3)
    run(workspace, *CONVERT, status=0)
    assert (runs / "mine" / "precious").exists()
    assert (home / "precious").exists()
    assert sorted(path.name for path in runs.iterdir()) == ["linked", "mine"]


@pytest.mark.parametrize("name", ["../victim", "../../victim", "sub/../../victim", "a\0b", ""])
def test_a_row_that_names_a_file_elsewhere_is_named_and_nothing_is_removed(workspace: Workspace, name: str) -> None:
    run(workspace, *CONVERT, status=0)
    (workspace.root / "victim").write_text("precious")
    supersede(workspace.root / "L", name)
    told = f"expected the name of an output, not empty and without .. and NUL, found {name!r}"
    assert told in run(workspace, *CONVERT, status=1)
    assert (workspace.root / "victim").read_text() == "precious"


def test_absolute_names_stay_below_the_output(workspace: Workspace) -> None:
    run(workspace, *CONVERT, status=0)
    (workspace.root / "victim").write_text("precious")
    supersede(workspace.root / "L", str(workspace.root / "victim"))
    run(workspace, *CONVERT, status=0)
    assert (workspace.root / "victim").read_text() == "precious"


def test_links_are_not_followed_when_outputs_are_removed(workspace: Workspace) -> None:
    run(workspace, *CONVERT, status=0)
    victim = workspace.root / "victim"
    victim.mkdir()
    (victim / "file").write_text("precious")
    out = workspace.root / "out"
    (out / "link").symlink_to(victim / "file")
    supersede(workspace.root / "L", "link")
    run(workspace, *CONVERT, status=0)
    assert not (out / "link").is_symlink()
    (out / "sub").symlink_to(victim)
    supersede(workspace.root / "L", "sub/file")
    assert "'sub/file'" in run(workspace, *CONVERT, status=1)
    assert (victim / "file").read_text() == "precious"


def test_an_output_folder_that_is_a_link_is_the_users_choice(workspace: Workspace) -> None:
    (workspace.root / "disk").mkdir()
    (workspace.root / "out").symlink_to(workspace.root / "disk")
    run(workspace, *CONVERT, status=0)
    (workspace.root / "disk" / "old").write_text("old")
    supersede(workspace.root / "L", "old")
    run(workspace, *CONVERT, status=0)
    assert not (workspace.root / "disk" / "old").exists()


def test_indexes_elsewhere_are_left_and_named(workspace: Workspace) -> None:
    run(workspace, *INDEX, status=0)
    victim = workspace.root / "other" / "a.jsonl.idx"
    victim.parent.mkdir()
    victim.write_text("precious")
    (workspace.root / "in" / "old.jsonl.idx").write_text("old")
    supersede(workspace.root / "L", str(workspace.root / "in" / "old.jsonl.idx"))
    put_row(workspace.root / "L", SUPERSEDED, b"\1" * 32, SUPERSEDED_ROW.pack(0) + str(victim).encode())
    assert f"such as {victim}" in run(workspace, *INDEX, status=0)
    assert victim.exists()
    assert not (workspace.root / "in" / "old.jsonl.idx").exists()
    (workspace.root / "in" / "sub").symlink_to(victim.parent)
    supersede(workspace.root / "L", str(workspace.root / "in" / "sub" / victim.name))
    assert f"'sub/{victim.name}'" in run(workspace, *INDEX, status=1)
    assert victim.exists()


def test_recorded_outputs_with_such_names_are_refused_by_every_command(workspace: Workspace) -> None:
    run(workspace, *CONVERT, status=0)
    source = bytes.fromhex(done_source(workspace))
    row = json.dumps(["../victim", 8, "sum", 1, 0, "00" * 16]).encode()
    put_row(workspace.root / "L", OUTPUTS, source + bytes(16), row)
    for action in ("verify", "outputs", "export"):
        extra = ("--output", "tables") if action == "export" else ()
        assert "'../victim'" in run(workspace, "ledger", action, "L", *extra, status=1)


def done_source(workspace: Workspace) -> str:
    store = open_local_store(str(workspace.root / "L"), create=False)
    found = next(store.sources()).source_id.hex()
    store.close()
    return found


def test_parts_are_removed_from_the_ledgers_own_folder_only(workspace: Workspace) -> None:
    run(workspace, *INDEX, status=0)
    victim = workspace.root / "victim"
    victim.mkdir()
    part = f"{done_source(workspace)}-000000.part"
    for name in (part, f"{'0' * 31}-000000.part", "zz-nothing.part", f"mine-{part}"):
        (victim / name).write_text("precious")
    work = workspace.root / "L" / "work"
    shutil.rmtree(work, ignore_errors=True)
    work.symlink_to(victim)
    assert "found a link or a file" in run(workspace, *INDEX, status=1)
    assert len(list(victim.iterdir())) == 4
    work.unlink()
    victim.rename(work)
    (work / "sub").mkdir()
    (work / "sub" / part).write_text("precious")
    run(workspace, *INDEX, status=0)
    assert not (work / part).exists()
    assert len(list(work.iterdir())) == 4
    assert (work / "sub" / part).exists()


TOKENIZE = ("tokenize", "in/*.jsonl", "--output", "out/all", "--tokenizer", "bytes", "--ledger", "L")


def test_notes_that_do_not_read_are_made_again(workspace: Workspace) -> None:
    run(workspace, *TOKENIZE, status=0)
    before = workspace.files("out")
    victim, note = workspace.root / "victim", workspace.root / "L/work/merged.json"
    victim.write_text("precious")
    known = json.loads(note.read_bytes())
    wrong_datasets = {**known, "datasets": [{"a": 1}]}
    for content in (
        "\udcff{",
        "[1, 2]",
        json.dumps(wrong_datasets),
        json.dumps({**wrong_datasets, "files": [1]}),
        None,
    ):
        note.unlink()
        if content is None:
            note.symlink_to(victim)
        else:
            note.write_text(content, errors="surrogateescape")
        run(workspace, *TOKENIZE, status=0)
        assert workspace.files("out") == before, content
    assert victim.read_text() == "precious"


def test_folders_of_the_user_stay_when_parts_are_dropped(workspace: Workspace) -> None:
    run(workspace, *TOKENIZE, status=0)
    (parts,) = (path.parent for path in (workspace.root / "out").rglob("a.jsonl-*.bin"))
    (parts / "mine").mkdir()
    run(workspace, *TOKENIZE, "--drop-parts", status=0)
    assert sorted(path.name for path in parts.iterdir()) == ["_ledgerbeam", "mine"]


@pytest.mark.parametrize("name", ["lock.mdb", "data.mdb"])
def test_a_link_in_the_place_of_a_file_of_the_ledger_is_not_followed(workspace: Workspace, name: str) -> None:
    run(workspace, *CONVERT, status=0)
    file, victim = workspace.root / "L" / name, workspace.root / "victim"
    kept = file.rename(workspace.root / "kept")
    victim.write_text("precious" * 100)
    file.symlink_to(victim)
    assert "Remove the link" in run(workspace, *CONVERT, status=2)
    file.unlink()
    file.symlink_to(workspace.root / "nowhere")
    run(workspace, *CONVERT, status=2)
    file.unlink()
    assert victim.read_text() == "precious" * 100
    assert not (workspace.root / "nowhere").exists()
    kept.rename(file)
    run(workspace, *CONVERT, status=0)


@pytest.mark.parametrize("plant", ["folder", "link", "file"])
def test_what_lies_where_a_run_is_to_work_is_refused(workspace: Workspace, plant: str) -> None:
    run(workspace, *CONVERT, status=0)
    victim = workspace.root / "victim"
    victim.mkdir()
    (victim / "pass-0001").mkdir()
    (victim / "precious").write_text("precious")
    place = workspace.root / "L" / "run" / "000002"
    if plant == "folder":
        victim.rename(place)
        victim = place
    elif plant == "link":
        place.symlink_to(victim)
    else:
        place.write_text("precious")
    assert "Move it away and run the same command again" in run(workspace, *CONVERT, status=1)
    assert (victim / "precious").read_text() == "precious"
    run(workspace, *CONVERT, status=0)
