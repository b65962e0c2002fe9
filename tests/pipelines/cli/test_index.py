"""`ledgerbeam index`, `verify` and `show` from end to end."""

from __future__ import annotations

import io
import json
import os
import tarfile
from pathlib import Path

import numpy as np
import pytest

from ledgerbeam.io import write_index
from ledgerbeam.io.index.newlines import build_jsonl_index
from ledgerbeam.io.tar.reader import build_tar_index
from tests.pipelines.conftest import Workspace


def offsets(workspace: Workspace, name: str) -> list[int]:
    return [int(x) for x in np.frombuffer((workspace.root / name).read_bytes(), "<u8")]


def write_tar(workspace: Workspace, name: str, keys: list[str]) -> None:
    path = workspace.root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as tar:
        for key in keys:
            for extension in ("wav", "json"):
                info = tarfile.TarInfo(f"{key}.{extension}")
                info.size = 700
                tar.addfile(info, io.BytesIO(b"{" + b" " * 698 + b"}"))


def indexed(workspace: Workspace, name: str) -> Path:
    """Write a source and its index without a job; return the source."""
    if name.endswith(".tar"):
        write_tar(workspace, name, ["x", "y"])
    else:
        workspace.jsonl(name, 10)
    path = workspace.root / name
    build = build_tar_index if name.endswith(".tar") else build_jsonl_index
    write_index(f"{path}.idx", build(str(path)))
    return path


def test_many_files_are_indexed_beside_them(workspace: Workspace) -> None:
    workspace.jsonl("in/a.jsonl", 10)
    (workspace.root / "in/b.jsonl").write_bytes(b'{"a":1}\n{"b":2}')
    (workspace.root / "in/empty.jsonl").touch()
    write_tar(workspace, "in/c.tar", ["x", "y"])
    ran = workspace.run("index", "in/*", "--workers", "2", "--json", status=0)
    assert ran.json["sources"] == {"complete": 4, "open": 0, "failed": 0}
    assert ran.json["records"]["written"] == {"": 14}
    assert offsets(workspace, "in/b.jsonl.idx") == [0, 8, 15]
    assert offsets(workspace, "in/empty.jsonl.idx") == [0]
    assert offsets(workspace, "in/c.tar.idx") == [0, 3072, 10240]


@pytest.mark.slow
def test_a_huge_file_fans_out_into_ranges_and_is_assembled(workspace: Workspace) -> None:
    path = workspace.jsonl("a.jsonl", 5000)
    assert workspace.run("index", path, "--index-root", "whole").status == 0
    ran = workspace.run("index", path, "--task-bytes", "10000", "--workers", "2", "--json", status=0)
    assert ran.json["tasks"]["done"] == -(-path.stat().st_size // 10000) + 1
    assert (workspace.root / "a.jsonl.idx").read_bytes() == (workspace.root / f"whole/file{path}.idx").read_bytes()
    assert list((workspace.root / ".ledgerbeam").rglob("*.part")) == []


@pytest.mark.slow
def test_a_file_of_others_that_has_the_name_of_an_index_stays(workspace: Workspace) -> None:
    notes = workspace.root / "in/a.jsonl.idx"
    for name in ("in/a.jsonl", "in/b.jsonl"):
        workspace.jsonl(name, 10)
    notes.write_text("my notes\n")
    for _ in range(2):
        workspace.run("index", "in/*.jsonl", status=3, err=f"{notes}: expected no file, or an index")
        assert notes.read_text() == "my notes\n"
        assert len(offsets(workspace, "in/b.jsonl.idx")) == 11
    notes.rename(workspace.root / "notes.txt")
    assert workspace.run("index", "in/*.jsonl").status == 0
    assert len(offsets(workspace, "in/a.jsonl.idx")) == 11


@pytest.mark.slow
@pytest.mark.parametrize("name", ["a.jsonl", "a[1].jsonl", "{a,b}.jsonl"])
def test_force_indexes_again(workspace: Workspace, name: str) -> None:
    path = workspace.jsonl(name, 10)
    index = workspace.root / f"{name}.idx"
    workspace.run("index", path)
    whole = index.read_bytes()
    index.write_bytes(whole[:8] + whole[16:24] + whole[8:16] + whole[24:])
    assert workspace.run("verify", "--deep", path).status == 1
    assert workspace.run("index", path).status == 0
    assert index.read_bytes() != whole, "a rerun looks at sizes"
    assert workspace.run("index", "--force", path).status == 0
    assert index.read_bytes() == whole


@pytest.mark.slow
def test_verify_finds_a_sound_index_and_names_a_stale_one(workspace: Workspace) -> None:
    workspace.jsonl("s.jsonl", 10)
    write_tar(workspace, "s.tar", ["x", "y"])
    assert workspace.run("index", "s.jsonl", "s.tar").status == 0
    for source in (workspace.root / "s.jsonl", workspace.root / "s.tar"):
        assert workspace.run("verify", source, "--deep").status == 0
        earlier = source.stat().st_mtime - 10
        os.utime(f"{source}.idx", (earlier, earlier))
        ran = workspace.run("verify", source, status=1)
        assert str(source) in ran.out
        assert f"ledgerbeam index --force {source}" in ran.out


def test_deep_verification_finds_what_a_shallow_one_cannot(workspace: Workspace) -> None:
    path = indexed(workspace, "a.jsonl")
    moved = offsets(workspace, "a.jsonl.idx")
    moved[4] += 1
    (workspace.root / "a.jsonl.idx").write_bytes(np.array(moved, "<u8").tobytes())
    assert workspace.run("verify", path).status == 0
    ran = workspace.run("verify", path, "--deep", "--json", status=1)
    assert "record 4" in ran.json["problems"][0]["problem"]


def test_show_prints_facts_records_and_the_members_of_a_sample(workspace: Workspace) -> None:
    path = indexed(workspace, "a.jsonl")
    assert workspace.run("show", path, "--json").json["records"] == 10
    ran = workspace.run("show", path, "3", "-1")
    assert [json.loads(line)["id"] for line in ran.out.splitlines()] == [3, 9]
    workspace.run("show", path, "10", status=1, err="record 10 does not exist")
    indexed(workspace, "s.tar")
    assert workspace.run("show", "s.tar", "1").out == "y: wav (700 bytes), json (700 bytes)\n"


@pytest.mark.parametrize("kind", ["jsonl", "tar", "shar"])
def test_the_name_of_a_format_before_a_source_gets_a_hint(workspace: Workspace, kind: str) -> None:
    workspace.run("index", kind, "my cuts.jsonl", status=2, err="run: ledgerbeam index 'my cuts.jsonl'")
