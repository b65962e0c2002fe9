"""Jobs over compressed sources: the outputs of plain ones, restarts inside of a source, and damage."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import os
import signal
from pathlib import Path

import pytest
import pyzstd
import zstandard

from ledgerbeam.io import JsonlReader, TarReader
from ledgerbeam.io.tar.writer import encode_tar
from tests.io.datasets.shar.content import sample
from tests.pipelines.conftest import Workspace
from tests.pipelines.jobs.test_restart import tasks_done, wait_for

MAP = ("map", "functions:upper", "in/*", "--output", "out", "--to", "jsonl", "--task-bytes", "4K", "--ledger", "L")


def contents(workspace: Workspace, folder: str) -> dict[str, bytes]:
    """Return the outputs by name, without what the name has of compression."""
    return {name.replace("-gz", ""): data for name, data in workspace.files(folder).items()}


def compress(workspace: Workspace, name: str, count: int) -> Path:
    path = workspace.jsonl(name, count)
    packed = path.with_name(f"{path.name}.gz")
    packed.write_bytes(gzip.compress(path.read_bytes()))
    path.unlink()
    return packed


@pytest.mark.slow
def test_outputs_are_those_of_plain_sources(workspace: Workspace) -> None:
    workspace.jsonl("plain/a.jsonl", 500)
    workspace.jsonl("plain/b.jsonl", 3, first=500)
    compress(workspace, "in/a.jsonl", 500)
    compress(workspace, "in/b.jsonl", 3)
    (workspace.root / "in/b.jsonl.gz").write_bytes(gzip.compress((workspace.root / "plain/b.jsonl").read_bytes()))
    (workspace.root / "in/empty.jsonl.gz").write_bytes(gzip.compress(b""))  # it is complete without output
    ran = workspace.run(*MAP, "--json")
    assert ran.status == 0, ran.err
    assert ran.json["sources"]["complete"] == 3
    assert ran.json["tasks"]["done"] > 5
    plain = ("map", "functions:upper", "plain/*.jsonl", "--output", "expected", "--to", "jsonl", "--task-bytes", "4K")
    assert workspace.run(*plain).status == 0
    assert contents(workspace, "out") == workspace.files("expected")
    assert not list(workspace.root.glob("in/*.idx"))
    again = workspace.run(*MAP, "--json")
    assert (again.status, again.json["skipped"]) == (0, 3)


@pytest.mark.slow
def test_a_killed_job_goes_on_inside_of_the_source(workspace: Workspace) -> None:
    compress(workspace, "in/a.jsonl", 4000)
    slow = ("map", "functions:slow", *MAP[2:], "--workers", "1", "--flush-interval", "0.05")
    process = workspace.start(*slow)
    wait_for(lambda: tasks_done(workspace) > 3, process)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    before = tasks_done(workspace)
    ran = workspace.run(*slow, "--json")
    assert ran.status == 0, ran.err
    assert 3 < before < ran.json["tasks"]["done"]
    assert [record["id"] for record in workspace.records("out")] == list(range(4000))


@pytest.mark.slow
def test_one_bad_record_fails_its_task_alone(workspace: Workspace) -> None:
    path = workspace.jsonl("in/a.jsonl", 300)
    lines = path.read_bytes().splitlines(keepends=True)
    lines[150] = b'{"id": \n'
    path.unlink()
    (workspace.root / "in/a.jsonl.zst").write_bytes(zstandard.ZstdCompressor().compress(b"".join(lines)))
    ran = workspace.run(*MAP, "--json")
    assert ran.status == 3
    assert ran.json["tasks"]["failed"] == 1
    assert "record 150, bytes [" in ran.err
    done = ran.json["tasks"]["done"]
    assert done > 2
    again = workspace.run(*MAP, "--json")
    assert (again.status, again.json["tasks"]["done"]) == (3, done)


@pytest.mark.slow
def test_damage_fails_the_source_before_anything_is_written(workspace: Workspace) -> None:
    packed = compress(workspace, "in/a.jsonl", 5000)
    good = packed.read_bytes()
    packed.write_bytes(good[: len(good) // 2])
    ran = workspace.run(*MAP)
    assert ran.status == 3
    assert f"a.jsonl.gz: the gzip data is cut off at or after byte {len(good) // 2:,} of the file" in ran.err
    assert workspace.files("out") == {}
    packed.write_bytes(good)
    assert workspace.run(*MAP).status == 0
    assert len(workspace.records("out")) == 5000


def test_compressed_tars_are_converted(workspace: Workspace) -> None:
    data = encode_tar([sample(number) for number in range(30)], group="key")[0]
    (workspace.root / "in").mkdir()
    for name, packed in (("a.tar.xz", lzma.compress(data)), ("b.tgz", gzip.compress(data))):
        (workspace.root / "in" / name).write_bytes(packed)
    ran = workspace.run("convert", "in/*", "--output", "out", "--to", "tar", "--group", "key", "--task-bytes", "20K")
    assert ran.status == 0, ran.err
    shards = sorted(workspace.root.glob("out/*.tar"))
    assert len(shards) > 4
    found = [one for shard in shards for one in TarReader(str(shard), group="key")]
    assert [(one.key, one) for one in found] == 2 * [(sample(n).key, sample(n)) for n in range(30)]


@pytest.mark.slow
def test_small_ones_are_packed_with_plain_ones(workspace: Workspace) -> None:
    first = workspace.jsonl("in/a.jsonl", 3)
    for number, (suffix, compressor) in enumerate([("gz", gzip), ("bz2", bz2), ("xz", lzma)]):
        path = workspace.jsonl(f"in/{number}.jsonl", 3, first=3 * number + 3)
        (first.parent / f"b{number}.jsonl.{suffix}").write_bytes(compressor.compress(path.read_bytes()))
        path.unlink()
    ran = workspace.run(*MAP, "--pack", "1M", "--json")
    assert ran.status == 0, ran.err
    assert (ran.json["sources"]["complete"], len(list(workspace.root.glob("out/*.jsonl")))) == (1, 1)
    assert [record["id"] for record in workspace.records("out")] == list(range(12))
    packed = first.parent / "b0.jsonl.gz"
    packed.write_bytes(packed.read_bytes()[:-9])
    ran = workspace.run(*MAP, "--pack", "1M")
    assert (ran.status, "b0.jsonl.gz: the gzip data is cut off" in ran.err) == (3, True)


def test_those_without_seek_points_cannot_be_indexed(workspace: Workspace) -> None:
    (workspace.root / "in").mkdir()
    (workspace.root / "in/a.jsonl.bz2").write_bytes(bz2.compress(b"1\n"))
    ran = workspace.run("index", "in/*")
    assert (ran.status, "bunzip2 a.jsonl.bz2" in ran.err) == (1, True)


@pytest.mark.slow
def test_an_index_makes_them_random_access(workspace: Workspace) -> None:
    path = workspace.jsonl("plain/a.jsonl", 500)
    packed = compress(workspace, "in/a.jsonl", 500)
    with pyzstd.SeekableZstdFile(workspace.root / "in/b.jsonl.zst", "w", max_frame_content_size=4000) as file:
        file.write(path.read_bytes())
    (workspace.root / "in/c.tar.gz").write_bytes(gzip.compress(encode_tar([sample(n) for n in range(5)])[0]))
    ran = workspace.run("index", "in/*", "--json")
    assert ran.status == 0, ran.err
    assert ran.json["records"]["read"] == 1005
    assert sorted(file.name for file in packed.parent.iterdir()) == [
        *("a.jsonl.gz", "a.jsonl.gz.gzidx", "a.jsonl.gz.idx", "b.jsonl.zst", "b.jsonl.zst.idx"),
        *("c.tar.gz", "c.tar.gz.gzidx", "c.tar.gz.idx"),
    ]
    assert (
        packed.with_name("a.jsonl.gz.gzidx").stat().st_mtime_ns <= packed.with_name("a.jsonl.gz.idx").stat().st_mtime_ns
    )
    for name in ("a.jsonl.gz", "b.jsonl.zst"):
        shown = workspace.run("show", f"in/{name}", "7", "-1", "--json")
        assert [row["value"]["id"] for row in shown.json["records"]] == [7, 499], shown.err
        assert workspace.run("show", f"in/{name}", "--json").json["records"] == 500
    assert workspace.run("show", "in/c.tar.gz", "3").status == 0
    verified = workspace.run("verify", "in/*", "--deep")
    assert (verified.status, "3 sources, 1,005 records, 0 problems" in verified.out) == (0, True), verified.out
    packed.write_bytes(gzip.compress(path.read_bytes() + b"{}\n"))
    assert "a.jsonl.gz.idx does not fit" in workspace.run("verify", "in/*").out
    assert workspace.run("index", "in/*").status == 0
    assert workspace.run("verify", "in/*", "--deep").status == 0


@pytest.mark.slow
def test_indexes_below_a_root(workspace: Workspace) -> None:
    packed = compress(workspace, "in/a.jsonl", 10)
    assert workspace.run("index", "in/*", "--index-root", "indexes").status == 0
    assert (workspace.root / f"indexes/file{packed}.gzidx").exists()
    assert not packed.with_name("a.jsonl.gz.gzidx").exists()
    shown = workspace.run("show", "in/a.jsonl.gz", "3", "--index-root", "indexes", "--json")
    assert shown.json["records"][0]["value"]["id"] == 3


@pytest.mark.slow
def test_a_job_reads_what_is_indexed_by_position_with_the_same_outputs(workspace: Workspace) -> None:
    packed = compress(workspace, "in/a.jsonl", 500)
    assert workspace.run(*MAP).status == 0
    expected = workspace.files("out")
    by_position = (*MAP[:3], "--output", "again", *MAP[5:-1], "M")
    assert workspace.run("index", "in/*").status == 0
    points = packed.with_name("a.jsonl.gz.gzidx")
    ran = workspace.run(*by_position, "--json")
    assert (ran.status, workspace.files("again")) == (0, expected), ran.err
    assert workspace.run(*MAP, "--json").json["skipped"] == 1

    # It needs the points while it reads: without them, or with those of another file, it reads from the beginning.
    points.write_bytes(points.read_bytes()[:-1])
    stale = (*MAP[:3], "--output", "third", *MAP[5:-1], "N")
    ran = workspace.run(*stale)
    assert (ran.status, workspace.files("third")) == (0, expected), ran.err
    assert "read in one pass, since its index does not fit" in ran.err


@pytest.mark.slow
def test_a_job_that_began_by_streaming_goes_on_by_position(workspace: Workspace) -> None:
    packed = compress(workspace, "in/a.jsonl", 500)
    lines = gzip.decompress(packed.read_bytes()).splitlines(keepends=True)
    whole = b"".join(lines)
    lines[250] = b"{" + b" " * (len(lines[250]) - 2) + b"\n"
    moment = packed.stat().st_mtime_ns
    packed.write_bytes(gzip.compress(b"".join(lines), 0))
    os.utime(packed, ns=(moment, moment))
    ran = workspace.run(*MAP, "--json")
    assert (ran.status, ran.json["tasks"]["failed"]) == (3, 1)
    done = ran.json["tasks"]["done"]
    packed.write_bytes(gzip.compress(whole, 0))  # as large as before
    os.utime(packed, ns=(moment, moment))
    assert workspace.run("index", "in/*").status == 0
    ran = workspace.run(*MAP, "--json")
    assert (ran.status, ran.json["tasks"]["done"]) == (0, done + 1), ran.err
    assert [record["id"] for record in workspace.records("out")] == list(range(500))


@pytest.mark.slow
def test_outputs_can_be_read_at_random(workspace: Workspace) -> None:
    compress(workspace, "in/a.jsonl", 50)
    assert workspace.run("convert", "in/*.gz", "--output", "out", "--to", "jsonl").status == 0
    with JsonlReader(str(workspace.root / "out/a.jsonl-gz-0000000000.jsonl")) as reader:
        assert json.loads(reader.raw(49))["id"] == 49
