"""`ledgerbeam map` from end to end, as a user runs it."""

from __future__ import annotations

import io
import json
import tarfile

import numpy as np
import pytest

from ledgerbeam.io import JsonlReader, TarReader
from tests.pipelines.conftest import Workspace


def test_records_of_many_sources_are_mapped_in_order_with_an_index(workspace: Workspace) -> None:
    workspace.jsonl("in/a.jsonl", 100)
    workspace.jsonl("in/sub/b.jsonl", 50, first=100)
    ran = workspace.run("map", "functions:upper", "in/**/*.jsonl", "--output", "out", "--to", "jsonl", status=0)
    assert ran.out.startswith("ledger: .ledgerbeam/map-")
    assert sorted(workspace.files("out")) == [
        "a.jsonl-0000000000.jsonl",
        "a.jsonl-0000000000.jsonl.idx",
        "sub/b.jsonl-0000000000.jsonl",
        "sub/b.jsonl-0000000000.jsonl.idx",
    ]
    assert [r["id"] for r in workspace.records("out")] == list(range(150))
    assert all(r["text"].startswith("TEXT") for r in workspace.records("out"))
    with JsonlReader(str(workspace.root / "out/sub/b.jsonl-0000000000.jsonl")) as reader:
        assert reader[49]["id"] == 149


@pytest.mark.parametrize("workers", ["1", "2"])
def test_tasks_cut_a_source_and_the_output_does_not_depend_on_workers(workspace: Workspace, workers: str) -> None:
    workspace.jsonl("in/a.jsonl", 1000)
    ran = workspace.run(
        *("map", "functions:keep", "in/a.jsonl", "--output", "out", "--to", "jsonl"),
        *("--task-bytes", "10000", "--workers", workers, "--json"),
    )
    assert ran.status == 0, ran.err
    names = [name for name in workspace.files("out") if name.endswith(".jsonl")]
    assert len(names) == ran.json["tasks"]["done"] > 3
    assert [r["id"] for r in workspace.records("out")] == list(range(1000))


@pytest.mark.slow
def test_a_rerun_of_a_finished_job_does_nothing_but_what_is_new(workspace: Workspace) -> None:
    workspace.jsonl("in/a.jsonl", 10)
    command = ("map", "functions:keep", "in/*.jsonl", "--output", "out", "--to", "jsonl", "--json")
    first = workspace.run(*command)
    assert json.loads(first.out)["complete"] is True, "one object is printed, and nothing else"
    assert first.json["skipped"] == 0
    before = {p: p.stat().st_mtime_ns for p in (workspace.root / "out").glob("*.jsonl*")}
    again = workspace.run(*command)
    assert again.json["skipped"] == 1
    assert {p: p.stat().st_mtime_ns for p in (workspace.root / "out").glob("*.jsonl*")} == before
    workspace.jsonl("in/b.jsonl", 5)
    more = workspace.run(*command)
    assert (more.json["skipped"], more.json["sources"]["complete"]) == (1, 2)


@pytest.mark.slow
def test_a_changed_source_replaces_its_outputs_and_removes_those_it_no_longer_yields(workspace: Workspace) -> None:
    workspace.jsonl("in/a.jsonl", 1000)
    workspace.jsonl("in/b.jsonl", 10)
    command = ("map", "functions:keep", "in/*.jsonl", "--output", "out", "--to", "jsonl", "--task-bytes", "10000")
    workspace.run(*command)
    assert len(workspace.files("out")) > 6
    workspace.jsonl("in/a.jsonl", 20, first=500)
    workspace.run(*command, status=0, err="in/a.jsonl: changed since this job read it; indexing it again")
    assert len(workspace.files("out")) == 4
    assert [r["id"] for r in workspace.records("out")] == [*range(500, 520), *range(10)]


def test_dropped_records_and_empty_sources_leave_no_empty_shards(workspace: Workspace) -> None:
    workspace.jsonl("in/a.jsonl", 10)
    (workspace.root / "in/empty.jsonl").touch()
    ran = workspace.run("map", "functions:drop", "in/*.jsonl", "--output", "out", "--to", "jsonl", "--json", status=0)
    assert ran.json["sources"]["complete"] == 2
    assert workspace.files("out") == {}


@pytest.mark.slow
def test_jsonl_becomes_tar_and_tar_becomes_jsonl(workspace: Workspace) -> None:
    workspace.jsonl("in/a.jsonl", 30)
    workspace.run("map", "functions:sample", "in/a.jsonl", "--output", "tars", "--to", "tar", status=0)
    shard = workspace.root / "tars/a.jsonl-0000000000.tar"
    with TarReader(str(shard)) as reader:
        assert len(reader) == 30
        assert reader[3].key == "a-000000003"
    with tarfile.open(shard) as tar:
        assert tar.getnames()[:2] == ["a-000000000.txt", "a-000000000.json"]
    workspace.run("map", "functions:members", "tars/*.tar", "--output", "out", "--to", "jsonl", status=0)
    assert workspace.records("out")[3] == {"key": "a-000000003", "sizes": {"txt": 20, "json": 2}}


@pytest.mark.slow
def test_small_sources_are_packed_into_few_shards(workspace: Workspace) -> None:
    for i in range(60):
        workspace.jsonl(f"in/{i:03d}.jsonl", 5, first=5 * i)
    command = ("map", "functions:keep", "in/*.jsonl", "--output", "out", "--to", "jsonl", "--pack", "2000", "--json")
    ran = workspace.run(*command, status=0)
    assert 1 < ran.json["sources"]["complete"] < 30
    assert [r["id"] for r in workspace.records("out")] == list(range(300))
    assert not list((workspace.root / "in").glob("*.idx"))
    workspace.jsonl("in/030.jsonl", 6, first=1000)
    again = workspace.run(*command)
    changed = again.json["sources"]["complete"] - again.json["skipped"]
    assert 1 <= changed <= 3  # the pack of what changed, and its neighbours where its ends moved
    assert sorted(r["id"] for r in workspace.records("out")) == sorted(
        [i for i in range(300) if not 150 <= i < 155] + list(range(1000, 1006))
    )


def test_no_index_refuses_a_source_without_one(workspace: Workspace) -> None:
    workspace.jsonl("in/a.jsonl", 10)
    ran = workspace.run("map", "functions:keep", "in/a.jsonl", "--output", "out", "--to", "jsonl", "--no-index")
    assert ran.status == 3
    assert "ledgerbeam index" in ran.err
    assert not (workspace.root / "in/a.jsonl.idx").exists()


@pytest.mark.slow
def test_a_mirrored_index_root_leaves_the_sources_untouched(workspace: Workspace) -> None:
    path = workspace.jsonl("in/a.jsonl", 10)
    workspace.run(
        "map", "functions:keep", "in/a.jsonl", "--output", "out", "--to", "jsonl", "--index-root", "indexes", status=0
    )
    index = workspace.root / f"indexes/file{path}.idx"
    assert len(np.frombuffer(index.read_bytes(), "<u8")) == 11
    assert list((workspace.root / "in").iterdir()) == [path]


def test_blank_lines_are_skipped_and_crlf_is_read(workspace: Workspace) -> None:
    path = workspace.root / "in.jsonl"
    path.write_bytes(b'{"id": 1}\r\n\n{"id": 2}\n   \n{"id": 3}')
    workspace.run("map", "functions:keep", path, "--output", "out", "--to", "jsonl", status=0)
    assert [r["id"] for r in workspace.records("out")] == [1, 2, 3]


def test_a_list_of_sources_takes_the_place_of_patterns(workspace: Workspace) -> None:
    paths = [workspace.jsonl(f"in/{name}.jsonl", 3) for name in "abc"]
    (workspace.root / "list.txt").write_text(f"# two of three\n{paths[0]}\n\n{paths[2]}\n")
    workspace.run("map", "functions:keep", "--sources-from", "list.txt", "--output", "out", "--to", "jsonl", status=0)
    assert [name for name in workspace.files("out") if name.endswith("jsonl")] == [
        f"file{paths[0]}-0000000000.jsonl",
        f"file{paths[2]}-0000000000.jsonl",
    ]


@pytest.mark.slow
def test_a_sample_of_many_members_keeps_them(workspace: Workspace) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for key in ("x", "y"):
            for extension in ("jpg", "seg.png", "cls"):
                info = tarfile.TarInfo(f"{key}.{extension}")
                data = f"{key}{extension}".encode()
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
    (workspace.root / "s.tar").write_bytes(buffer.getvalue())
    workspace.run("map", "functions:upper_members", "s.tar", "--output", "out", "--to", "tar", status=0)
    with TarReader(str(workspace.root / "out/s.tar-0000000000.tar"), group="key") as reader:
        assert dict(reader[1]) == {"jpg": b"YJPG", "seg.png": b"YSEG.PNG", "cls": b"YCLS"}
