"""Links below an output folder: files that they lead to are never written over, and the job is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ledgerbeam.errors import UsageError
from ledgerbeam.io.storage.files import first_link, refuse_folder_links, refuse_links
from ledgerbeam.io.storage.publish import publish_all
from tests.pipelines.conftest import Ran, Workspace

FUNCTION = """
import os
import ledgerbeam as lb

def link():
    if "WHERE" and not os.path.islink("WHERE"):
        os.symlink("../victim", "WHERE")

def plain(record):
    link()
    return record

def routed(record):
    link()
    return lb.Route("en", record)
"""

CONVERT = ("convert", "in/**/*.jsonl", "--output", "out", "--to", "jsonl", "--ledger", "L")
MAP = ("map", "linked:routed", "in/**/*.jsonl", "--output", "out", "--to", "jsonl", "--ledger", "L")


@pytest.fixture
def place(workspace: Workspace) -> Workspace:
    """A job whose first source has its output at the place of a file of others, if a link is followed."""
    for name in ("in/sub/x.jsonl", "in/y.jsonl", "victim/x.jsonl-0000000000.jsonl"):
        path = workspace.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"id": 1, "text": name}) + "\n")
    (workspace.root / "out").mkdir()
    write_function(workspace, "")
    return workspace


def write_function(workspace: Workspace, where: str) -> None:
    (workspace.root / "linked.py").write_text(FUNCTION.replace("WHERE", where))


def link(workspace: Workspace, path: str, target: str = "victim") -> None:
    place = workspace.root / path
    place.parent.mkdir(parents=True, exist_ok=True)
    place.symlink_to(workspace.root / target)


def is_refused(ran: Ran, workspace: Workspace, path: str, status: int = 2) -> bool:
    assert ran.status == status, ran.err
    assert f"{workspace.root}/{path}: expected a folder, found a link" in ran.err
    (victim,) = (workspace.root / "victim").iterdir()
    return "victim" in victim.read_text()


@pytest.mark.parametrize("path", ["out/sub", "out/_rejects", "out/en", "out/a/b/c", "out/sub/_ledgerbeam-not"])
@pytest.mark.parametrize("existing", [None, "keep", "replace"])
def test_a_job_is_refused_before_anything_is_written(place: Workspace, path: str, existing: str | None) -> None:
    link(place, path)
    options = () if existing is None else ("--existing", existing)
    before = place.files(".")
    assert is_refused(place.run(*CONVERT, *options), place, path)
    assert place.files(".") == before


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [
        ("map", "linked:routed", "in/**/*.jsonl", "--output", "out", "--to", "parquet", "--ledger", "L"),
        (
            "split",
            "in/**/*.jsonl",
            "--by",
            "id",
            "--parts",
            "sub=9,b=1",
            "--output",
            "out",
            "--to",
            "jsonl",
            "--ledger",
            "L",
        ),
        ("sort", "in/**/*.jsonl", "--by", "id", "--output", "out", "--to", "jsonl", "--ledger", "L"),
        ("convert", "in/**/*.jsonl", "--output", "out", "--to", "energon", "--ledger", "L"),
    ],
)
def test_every_command_that_writes_a_folder_refuses(place: Workspace, command: tuple[str, ...]) -> None:
    link(place, "out/sub")
    assert is_refused(place.run(*command), place, "out/sub")
    assert not (place.root / "L").exists()


def test_a_dry_run_says_that_the_job_would_be_refused(place: Workspace) -> None:
    link(place, "out/sub")
    for options in ((), ("--existing", "keep")):
        assert "found a link" in place.run(*CONVERT, "--dry-run", *options).out


def test_links_in_the_output_folder_of_another_job_are_its_own(place: Workspace) -> None:
    link(place, "out/other/sub")
    (place.root / "out/other/_ledgerbeam").mkdir()
    refuse_folder_links(f"{place.root}/out", owned_by="_ledgerbeam")


@pytest.mark.slow
def test_links_to_folders_that_are_no_part_of_the_path_below_the_output_are_followed(place: Workspace) -> None:
    (place.root / "disk/deep").mkdir(parents=True)
    (place.root / "out").rmdir()
    link(place, "way", "disk")
    link(place, "out", "way/deep")
    assert place.run(*CONVERT).status == 0
    assert len(list((place.root / "disk/deep").rglob("*.jsonl"))) == 2
    (place.root / "in/y.jsonl").write_text("{}\n{}\n")
    assert place.run(*CONVERT).status == 0


@pytest.mark.slow
@pytest.mark.parametrize("where", ["out/sub", "out/en"])
def test_a_link_that_comes_during_the_run_is_not_written_through(place: Workspace, where: str) -> None:
    write_function(place, where)
    function = "linked:routed" if where == "out/en" else "linked:plain"
    ran = place.run("map", function, *MAP[2:])
    assert is_refused(ran, place, where)


@pytest.mark.slow
def test_a_link_that_takes_the_place_of_a_folder_is_not_written_or_removed_through(place: Workspace) -> None:
    assert place.run(*CONVERT).status == 0
    (place.root / "out/sub").rename(place.root / "out-sub")
    link(place, "out/sub")
    (place.root / "in/sub/x.jsonl").write_text("{}\n")
    assert is_refused(place.run(*CONVERT), place, "out/sub")
    (place.root / "out/sub").unlink()
    (place.root / "out-sub").rename(place.root / "out/sub")
    assert place.run(*CONVERT).status == 0


@pytest.mark.slow
def test_a_link_with_the_name_of_a_shard_is_a_file_of_others(place: Workspace) -> None:
    name = "x.jsonl-0000000000.jsonl"
    link(place, f"out/sub/{name}", f"victim/{name}")
    ran = place.run(*CONVERT)
    assert ran.status == 2
    assert f"it holds shards such as this job writes, and no ledger owns them: sub/{name}" in ran.err
    assert place.run(*CONVERT, "--existing", "keep").status == 0
    assert "victim" in (place.root / "victim" / name).read_text()


@pytest.mark.slow
def test_an_index_is_not_written_through_a_link_below_its_root(place: Workspace) -> None:
    link(place, "indexes/file")
    ran = place.run("index", "in/**/*.jsonl", "--index-root", "indexes", "--ledger", "L")
    assert is_refused(ran, place, "indexes/file", status=3)


def test_outputs_are_published_below_a_folder_only(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "victim").mkdir()
    (tmp_path / "out/link").symlink_to(tmp_path / "victim")
    root = f"{tmp_path}/out"
    with pytest.raises(UsageError, match="out/link: expected a folder, found a link"):
        publish_all([(f"{root}/plain/a", b"a"), (f"{root}/link/deep/b", b"b")], below=root)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["link", "out", "victim"]
    publish_all([(f"{root}/plain/a", b"a"), (f"{root}/b", b"b")], below=root)
    assert (tmp_path / "out/plain/a").read_bytes() == b"a"
    assert first_link(f"{root}/link", f"{root}/link/deep") is None
    refuse_links("s3://bucket/out", ["s3://bucket/out/link"])
