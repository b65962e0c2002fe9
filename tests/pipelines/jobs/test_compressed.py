"""Jobs over compressed sources, and jobs that write compressed shards."""

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
from ledgerbeam.iterators import IndexedManifest, IndexedTar, Manifest
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
    ran = workspace.succeed(*MAP, "--json")
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
    ran = workspace.succeed(*slow, "--json")
    assert 3 < before < ran.json["tasks"]["done"]
    assert [record["id"] for record in workspace.records("out")] == list(range(4000))


@pytest.mark.slow
def test_one_bad_record_fails_its_task_alone(workspace: Workspace) -> None:
    path = workspace.jsonl("in/a.jsonl", 300)
    lines = path.read_bytes().splitlines(keepends=True)
    lines[150] = b'{"id": \n'
    path.unlink()
    (workspace.root / "in/a.jsonl.zst").write_bytes(zstandard.ZstdCompressor().compress(b"".join(lines)))
    ran = workspace.run(*MAP, "--json", status=3)
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
    ran = workspace.run(*MAP, status=3)
    assert f"a.jsonl.gz: the gzip data is cut off at or after byte {len(good) // 2:,} of the file" in ran.err
    assert workspace.files("out") == {}
    packed.write_bytes(good)
    assert workspace.run(*MAP).status == 0
    assert len(workspace.records("out")) == 5000


@pytest.mark.slow
def test_compressed_tars_are_converted(workspace: Workspace) -> None:
    data = encode_tar([sample(number) for number in range(30)], group="key")[0]
    (workspace.root / "in").mkdir()
    for name, packed in (("a.tar.xz", lzma.compress(data)), ("b.tgz", gzip.compress(data))):
        (workspace.root / "in" / name).write_bytes(packed)
    workspace.succeed("convert", "in/*", "--output", "out", "--to", "tar", "--group", "key", "--task-bytes", "20K")
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
    ran = workspace.succeed(*MAP, "--pack", "1M", "--json")
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
    ran = workspace.succeed("index", "in/*", "--json")
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


FUNCTIONS = """
from ledgerbeam import Reject, Route

def sort_out(record):
    if record["id"] % 50 == 7:
        return Reject("seven", str(record["id"]))
    return Route("odd", record) if record["id"] % 2 else record
"""
OPTIONS = ("--task-bytes", "8K", "--json")
ZSTD = ("--compress", "zstd", "--frame", "1K")


def plain(files: dict[str, bytes]) -> dict[str, bytes]:
    """Return outputs as they would be without `--compress`."""
    return {
        name.replace(".zst", ""): pyzstd.decompress(data) if name.endswith(".zst") else data
        for name, data in files.items()
    }


@pytest.mark.slow
def test_outputs_are_the_plain_ones_compressed(workspace: Workspace) -> None:
    (workspace.root / "sorting.py").write_text(FUNCTIONS)
    workspace.jsonl("in/a.jsonl", 700)
    command = ("map", "sorting:sort_out", "in/*.jsonl", "--to", "jsonl", "--on-error", "reject", *OPTIONS)
    assert workspace.run(*command, "--output", "plain").status == 0
    workspace.succeed(*command, "--output", "out", *ZSTD, "--ledger", "L")
    files = workspace.files("out")
    assert plain(files) == workspace.files("plain")
    rejects = [name for name in files if name.startswith("_rejects")]
    shards = [name for name in files if name not in rejects]
    assert len(rejects) > 3
    assert all(name.endswith(".jsonl") for name in rejects)
    assert all(name.endswith((".jsonl.zst", ".jsonl.zst.idx")) for name in shards)
    assert {name.partition("/")[0] for name in shards if "/" in name} == {"odd"}
    assert workspace.run("ledger", "verify", "L").status == 0
    assert workspace.run("index", "verify", "--deep", "out/**/*.zst").status == 0
    workspace.succeed(*command, "--output", "out", *ZSTD, "--ledger", "L", "--only-rejected", "seven")
    assert workspace.files("out") == files
    again = workspace.run(*command, "--output", "twice", *ZSTD)
    assert (again.status, workspace.files("twice")) == (0, files)


@pytest.mark.slow
def test_the_next_job_and_readers_read_them_by_position(workspace: Workspace) -> None:
    workspace.jsonl("in/a.jsonl", 500)
    to_tar = ("map", "functions:sample", "in/*.jsonl", "--output", "tars", "--to", "tar", *OPTIONS)
    assert workspace.run(*to_tar, "--compress", "zstd:5", "--frame", "3K").status == 0
    shards = sorted(map(str, workspace.root.glob("tars/*.tar.zst")))
    assert len(shards) > 2
    workspace.succeed("convert", "tars/*.tar.zst", "--output", "out", "--to", "jsonl", *ZSTD, *OPTIONS)
    assert not list(workspace.root.glob("tars/*.gzidx"))
    texts = [f"text {number} ".ljust(20, "x") for number in range(500)]
    samples = [sample for shard in shards for sample in TarReader(shard)]
    assert [sample["txt"].decode() for sample in samples] == texts
    assert [one["txt"].decode() for shard in shards for one in IndexedTar(shard)] == texts
    written = sorted(map(str, workspace.root.glob("out/*.jsonl.zst")))
    assert [record["txt"] for shard in written for record in JsonlReader(shard)] == texts
    for leaf in (IndexedManifest(written[0]), Manifest(written[0])):
        assert [record["txt"] for record in leaf] == texts[: len(JsonlReader(written[0]))]
    shown = workspace.run("show", Path(written[0]), "0", "--json")
    assert shown.json["records"][0]["value"]["txt"] == texts[0]


@pytest.mark.slow
def test_a_job_knows_its_own_compressed_shards(workspace: Workspace) -> None:
    workspace.jsonl("data/a.jsonl", 300)
    command = ("map", "functions:keep", "data/*", "--output", "data", "--to", "jsonl", *ZSTD, *OPTIONS)
    workspace.succeed(*command, "--ledger", "L")
    again = workspace.run(*command, "--ledger", "L")
    assert (again.status, again.json["sources"]["complete"], again.json["skipped"]) == (0, 1, 1)
    workspace.run(*command, "--ledger", "M", status=2, err="it belongs to another ledger")


@pytest.mark.slow
def test_how_outputs_are_compressed_belongs_to_the_job(workspace: Workspace) -> None:
    workspace.jsonl("in/a.jsonl", 50)
    command = ("map", "functions:keep", "in/*", "--output", "out", "--to", "jsonl", "--ledger", "L")
    assert workspace.run(*command, "--compress", "zstd:1").status == 0
    workspace.run(*command, "--compress", "zstd:2", status=1, err="compress: was 'zstd:1', is 'zstd:2'")
    workspace.succeed(*command, "--on-job-change", "restart")
    assert sorted(workspace.files("out")) == ["a.jsonl-0000000000.jsonl", "a.jsonl-0000000000.jsonl.idx"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "found"),
    [
        (("--to", "shar", "--fields", "a=txt", "--compress", "zstd"), "found --to shar, whose shards lhotse"),
        (("--to", "webdataset", "--compress", "zstd"), "found --to webdataset, which wids reads"),
        (("--to", "energon", "--compress", "zstd"), "found --to energon, which Energon reads"),
        (("--to", "lit", "--compress", "zstd"), "found --to lit, which LIT reads"),
        (("--to", "megatron", "--compress", "zstd"), "found --to megatron, which Megatron reads"),
        (("--to", "jsonl", "--compress", "gzip"), "expected the compression zstd or zstd:LEVEL, found 'gzip'"),
        (("--to", "jsonl", "--compress", "zstd:23"), "expected a level from 1 to 22, found 23"),
        (("--to", "jsonl", "--frame", "16K"), "--frame 16384: only for compressed outputs"),
        (("--to", "jsonl", "--compress", "zstd", "--frame", "1G"), "expected frames of 1 to 8,388,608 plain bytes"),
    ],
)
def test_what_nobody_could_read_is_refused(workspace: Workspace, options: tuple[str, ...], found: str) -> None:
    workspace.jsonl("in/a.jsonl", 5)
    workspace.run("convert", "in/*", "--output", "out", *options, status=2, err=found)
    assert not (workspace.root / "out").exists()


@pytest.mark.slow
def test_metadata_of_others_is_refused(workspace: Workspace) -> None:
    workspace.jsonl("in/a.jsonl", 20)
    command = ("map", "functions:sample", "in/*", "--output", "out", "--to", "tar", "--compress", "zstd")
    assert workspace.run(*command, "--ledger", "L").status == 0
    for form in ("webdataset", "energon", "lit", "idxpack", "hf"):
        ran = workspace.run("publish", "L", "--as", form, status=2, err="expected plain shards")
        assert "a.jsonl-0000000000.tar.zst; run the job without --compress" in ran.err


@pytest.mark.slow
@pytest.mark.parametrize(("form", "suffix"), [("jsonl", ".jsonl.zst"), ("text", ".txt.zst")])
def test_a_card_names_compressed_lines(workspace: Workspace, form: str, suffix: str) -> None:
    (workspace.root / "in").mkdir()
    (workspace.root / "in/a.txt").write_text("one\ntwo\n")
    command = ("convert", "in/*", "--output", "out", "--to", form, "--compress", "zstd", "--ledger", "L")
    assert workspace.run(*command).status == 0
    assert workspace.run("publish", "L", "--as", "hf").status == 0
    assert f'    - "*{suffix}"\n' in (workspace.root / "out/README.md").read_text()


@pytest.mark.slow
def test_the_items_of_a_graph_are_written_compressed(workspace: Workspace) -> None:
    workspace.jsonl("in/a.jsonl", 100)
    assert workspace.run("index", "in/*").status == 0
    (workspace.root / "order.py").write_text(
        "from ledgerbeam.iterators import IndexedManifest\n"
        "def graph():\n    return IndexedManifest('in/a.jsonl', shuffle=True, seed=3)\n"
    )
    command = ("materialize", "order:graph", "--to", "jsonl", "--task-records", "30")
    assert workspace.run(*command, "--output", "plain").status == 0
    workspace.succeed(*command, "--output", "out", *ZSTD)
    assert plain(workspace.files("out")) == workspace.files("plain")
