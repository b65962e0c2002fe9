"""Jobs over compressed sources, files of columns, lines of text and WARC, and jobs that write compressed shards."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import os
import signal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import pyzstd
import zstandard

from ledgerbeam.io import JsonlReader, TarReader
from ledgerbeam.io.columns.values import to_records
from ledgerbeam.io.datasets.megatron.format import MegatronFormat
from ledgerbeam.io.json_values import dumps
from ledgerbeam.io.tar.writer import encode_tar
from ledgerbeam.io.warc import record_bytes
from ledgerbeam.iterators import IndexedManifest, IndexedTar, Manifest
from tests.io.columns.tables import arrow_bytes, parquet_bytes, table
from tests.io.datasets.shar.content import sample
from tests.io.warc.content import by_record, records
from tests.pipelines.conftest import Workspace
from tests.pipelines.jobs.test_restart import tasks_done, wait_for

pytestmark = pytest.mark.slow

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


def test_indexes_below_a_root(workspace: Workspace) -> None:
    packed = compress(workspace, "in/a.jsonl", 10)
    assert workspace.run("index", "in/*", "--index-root", "indexes").status == 0
    assert (workspace.root / f"indexes/file{packed}.gzidx").exists()
    assert not packed.with_name("a.jsonl.gz.gzidx").exists()
    shown = workspace.run("show", "in/a.jsonl.gz", "3", "--index-root", "indexes", "--json")
    assert shown.json["records"][0]["value"]["id"] == 3


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
    assert "reads this file in one pass, since its index does not fit" in ran.err


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


def test_a_job_knows_its_own_compressed_shards(workspace: Workspace) -> None:
    workspace.jsonl("data/a.jsonl", 300)
    command = ("map", "functions:keep", "data/*", "--output", "data", "--to", "jsonl", *ZSTD, *OPTIONS)
    workspace.succeed(*command, "--ledger", "L")
    again = workspace.run(*command, "--ledger", "L")
    assert (again.status, again.json["sources"]["complete"], again.json["skipped"]) == (0, 1, 1)
    workspace.run(*command, "--ledger", "M", status=2, err="it belongs to another ledger")


def test_how_outputs_are_compressed_belongs_to_the_job(workspace: Workspace) -> None:
    workspace.jsonl("in/a.jsonl", 50)
    command = ("map", "functions:keep", "in/*", "--output", "out", "--to", "jsonl", "--ledger", "L")
    assert workspace.run(*command, "--compress", "zstd:1").status == 0
    workspace.run(*command, "--compress", "zstd:2", status=1, err="compress: was 'zstd:1', is 'zstd:2'")
    workspace.succeed(*command, "--on-job-change", "restart")
    assert sorted(workspace.files("out")) == ["a.jsonl-0000000000.jsonl", "a.jsonl-0000000000.jsonl.idx"]


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


def test_metadata_of_others_is_refused(workspace: Workspace) -> None:
    workspace.jsonl("in/a.jsonl", 20)
    command = ("map", "functions:sample", "in/*", "--output", "out", "--to", "tar", "--compress", "zstd")
    assert workspace.run(*command, "--ledger", "L").status == 0
    for form in ("webdataset", "energon", "lit", "idxpack", "hf"):
        ran = workspace.run("publish", "L", "--as", form, status=2, err="expected uncompressed shards")
        assert "a.jsonl-0000000000.tar.zst; run the job without --compress" in ran.err


@pytest.mark.parametrize(("form", "suffix"), [("jsonl", ".jsonl.zst"), ("text", ".txt.zst")])
def test_a_card_names_compressed_lines(workspace: Workspace, form: str, suffix: str) -> None:
    (workspace.root / "in").mkdir()
    (workspace.root / "in/a.txt").write_text("one\ntwo\n")
    command = ("convert", "in/*", "--output", "out", "--to", form, "--compress", "zstd", "--ledger", "L")
    assert workspace.run(*command).status == 0
    assert workspace.run("publish", "L", "--as", "hf").status == 0
    assert f'    - "*{suffix}"\n' in (workspace.root / "out/README.md").read_text()


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


NAMES = ("int64", "string", "binary", "decimal", "stamp", "list", "map", "struct", "words")


def written(folder: Path) -> list[Any]:
    return [json.loads(line) for path in sorted(folder.glob("*.jsonl")) for line in path.read_bytes().splitlines()]


def as_json(of: pa.Table) -> list[Any]:
    return [json.loads(dumps(record)) for record in to_records(of)]


def put(workspace: Workspace, rows: int = 100) -> pa.Table:
    (workspace.root / "a.parquet").write_bytes(parquet_bytes(table(rows, *NAMES), row_group_size=16))
    (workspace.root / "b.arrow").write_bytes(arrow_bytes(table(rows, *NAMES), 16))
    return table(rows, *NAMES)


def test_rows_become_lines_of_json_and_a_change_of_columns_is_another_job(workspace: Workspace) -> None:
    whole = put(workspace)
    command = ("convert", "a.parquet", "b.arrow", "--output", "out", "--to", "jsonl", "--task-bytes", "2K")
    ran = workspace.succeed(*command, "--ledger", "progress", "--json")
    assert written(workspace.root / "out") == as_json(whole) * 2
    assert ran.json["tasks"]["done"] if "tasks" in ran.json else True
    assert len(list((workspace.root / "out").glob("a.parquet-*.jsonl"))) > 3
    again = workspace.run(*command, "--ledger", "progress", "--columns", "words,int64")
    assert again.status != 0
    assert "columns" in again.err
    workspace.succeed(*command[:3], "--output", "two", "--to", "jsonl", "--columns", "words,int64")
    assert written(workspace.root / "two") == as_json(whole.select(["int64", "words"])) * 2


def test_a_row_that_is_rejected_is_named_by_its_number_and_kept_as_json(workspace: Workspace) -> None:
    texts = pa.array([b"good", b"\xff", b"fine"]).view(pa.string())
    (workspace.root / "a.parquet").write_bytes(parquet_bytes(pa.table({"id": [6, 7, 8], "text": texts})))
    command = ("map", "functions:bad_seven", "a.parquet", "--output", "out", "--to", "jsonl")
    workspace.run(*command, status=3, err="a.parquet: record 1: column 'text'")
    workspace.succeed(*command, "--on-error", "reject")
    assert written(workspace.root / "out") == [{"id": 6, "text": "good"}, {"id": 8, "text": "fine"}]
    (row,) = written(workspace.root / "out/_rejects")
    assert (row["record"], row["bytes"], row["raw"]) == (1, None, '{"id":7,"text":null}')
    workspace.succeed("map", *command[1:], "--columns", "id", "--output", "ids", "--on-error", "reject")
    (row,) = written(workspace.root / "ids/_rejects")
    assert (row["record"], row["error"], row["raw"]) == (1, "seven is bad", '{"id":7}')


def test_small_files_are_packed_also_with_lines_of_json(workspace: Workspace) -> None:
    whole = put(workspace, 10)
    workspace.jsonl("c.jsonl", 3)
    workspace.succeed("convert", "a.parquet", "b.arrow", "c.jsonl", "--output", "out", "--to", "jsonl", "--pack", "1M")
    found = written(workspace.root / "out")
    assert found[:20] == as_json(whole) * 2
    assert len(found) == 23
    mixed = workspace.run("convert", "*.parquet", "*.jsonl", "--output", "x", "--to", "jsonl", "--columns", "int64")
    assert mixed.status == 2
    assert "c.jsonl: --columns int64 is for files of columns" in mixed.err


def test_texts_of_a_column_are_tokenized(workspace: Workspace) -> None:
    (workspace.root / "a.parquet").write_bytes(
        parquet_bytes(pa.table({"id": [1, 2], "meta": [{"text": "ab"}, {"text": "c"}]}))
    )
    command = ("tokenize", "a.parquet", "--output", "tokens", "--tokenizer", "bytes", "--key", "meta.text")
    workspace.succeed(*command, "--columns", "meta", "--no-append-eod")
    (data,) = workspace.root.glob("tokens*.bin")
    reader = MegatronFormat().open(str(data))
    assert [list(document.tokens) for document in reader] == [[97, 98], [99]]


def test_what_a_file_holds_is_shown_and_verified(workspace: Workspace) -> None:
    whole = put(workspace)
    facts = workspace.run("show", "a.parquet", "--json").json
    assert (facts["format"], facts["records"], facts["row_groups"]) == ("parquet", 100, 7)
    assert facts["columns"]["stamp"] == "timestamp[us]"
    shown = workspace.run("show", "b.arrow", "3", "-1", "--columns", "int64,binary", "--json").json
    assert [row["value"] for row in shown["records"]] == [
        as_json(whole.select(["int64", "binary"]))[number] for number in (3, -1)
    ]
    assert "column:         stamp (timestamp[us])" in workspace.run("show", "b.arrow").out
    ran = workspace.run("verify", "--deep", "a.parquet", "b.arrow")
    assert (ran.status, ran.out) == (0, "2 sources, 200 records, 0 problems\n")
    data = bytearray((workspace.root / "a.parquet").read_bytes())
    data[20:60] = bytes(40)
    (workspace.root / "a.parquet").write_bytes(data)
    assert workspace.run("verify", "a.parquet").status == 0, "the footer is sound"
    damaged = workspace.run("verify", "--deep", "a.parquet", "b.arrow", status=1)
    assert "a.parquet: row group 0 cannot be read" in damaged.out


@pytest.mark.parametrize("name", ["a.parquet", "b.arrow"])
def test_a_file_of_columns_needs_no_index(workspace: Workspace, name: str) -> None:
    put(workspace)
    workspace.run("index", name, status=1, err=(f"{name}: the footer of a ", "is its index; leave this file out"))
    (workspace.root / f"{name}.gz").write_bytes(gzip.compress((workspace.root / name).read_bytes()))
    packed = workspace.run("convert", f"{name}.gz", "--output", "out", "--to", "jsonl", status=1)
    assert "decompress it, e.g. gunzip" in packed.err


def test_lines_of_text_are_records(workspace: Workspace) -> None:
    (workspace.root / "a.txt").write_bytes("ä\n\nlast".encode())
    (workspace.root / "b.txt.gz").write_bytes(gzip.compress(b"zipped\n"))
    workspace.succeed("convert", "a.txt", "b.txt.gz", "--output", "out", "--to", "jsonl")
    assert written(workspace.root / "out") == ["ä", "", "last", "zipped"]
    workspace.succeed("convert", "out/*.jsonl", "--output", "back", "--to", "text")
    texts = [path.read_bytes() for path in sorted((workspace.root / "back").glob("*.txt"))]
    assert b"".join(texts).decode() == "ä\n\nlast\nzipped\n"
    workspace.jsonl("c.jsonl", 1)
    refused = workspace.run("convert", "c.jsonl", "--output", "no", "--to", "text", status=3)
    assert "expected a string, found dict; text files have only strings: make strings with a function" in refused.err


def test_a_column_that_the_first_files_lack_is_refused_before_the_job_begins(workspace: Workspace) -> None:
    put(workspace, 3)
    for options in ((), ("--dry-run",)):
        ran = workspace.run(
            "convert", "[a-d].*", "--output", "out", "--to", "jsonl", "--columns", "int64,nope", *options
        )
        assert ran.status == 2
        assert "a.parquet: has no column 'nope'; its columns: 'int64', 'string'" in ran.err
    assert not (workspace.root / "out").exists()
    assert not (workspace.root / ".ledgerbeam").exists()
    for name in ("c", "d"):  # what some of the files have is read: each of the others fails
        (workspace.root / f"{name}.parquet").write_bytes(parquet_bytes(pa.table({"nope": [1], "int64": [2]})))
    ran = workspace.run("convert", "[a-d].*", "--output", "out", "--to", "jsonl", "--columns", "int64,nope", "--json")
    assert ran.status == 3
    assert written(workspace.root / "out") == [{"nope": 1, "int64": 2}] * 2


def test_tokenize_reads_the_columns_of_its_keys(workspace: Workspace) -> None:
    content = bytearray(
        parquet_bytes(pa.table({"photo": ["PHOTO" * 9], "text": ["ab"], "meta": [{"text": "c"}]}), compression="none")
    )
    at = content.find(b"PHOTO")
    content[at - 20 : at + 20] = bytes(40)  # so that the column cannot be read
    (workspace.root / "a.parquet").write_bytes(content)
    (workspace.root / "b.jsonl").write_text('{"text": "d", "meta": {"text": "e"}}\n')
    command = ("tokenize", "a.parquet", "b.jsonl", "--tokenizer", "bytes", "--no-append-eod")
    for number, keys in enumerate([("text",), ("text", "meta.text")]):
        named = [word for key in keys for word in ("--key", key)]
        workspace.succeed(*command, "--output", f"tokens{number}", *named)
    assert workspace.run("show", "tokens0.bin", "0", "-1").out == '{"tokens":[97,98]}\n{"tokens":[100]}\n'
    assert workspace.run("show", "tokens1_meta.text_document.bin", "0").out == '{"tokens":[99]}\n'
    workspace.run(*command, "--output", "other", "--key", "photo", status=3)
    workspace.run(*command, "--output", "other", "--key", "nope", status=2, err="a.parquet: has no column 'nope'")


PAGES = """
import time
from ledgerbeam.io.warc import decoded_payload

def texts(record):
    time.sleep(PAUSE)
    if record["type"] == "response":
        return None
    return {"url": record["url"], "text": decoded_payload(record).decode()}
"""
RECORDS = records(600)
TEXTS = [
    {"url": record["url"], "text": record["payload"].decode()} for record in RECORDS if record["type"] == "conversion"
]
BY_16K = ("--task-bytes", "16K", "--json")


@pytest.fixture
def crawl(workspace: Workspace) -> Workspace:
    (workspace.root / "in").mkdir()
    (workspace.root / "in/a.warc.gz").write_bytes(by_record(list(map(record_bytes, RECORDS))))
    (workspace.root / "pages.py").write_text(PAGES.replace("PAUSE", "0"))
    return workspace


def test_pages_are_mapped_with_and_without_an_index(crawl: Workspace) -> None:
    command = ("map", "pages:texts", "in/*.warc.gz", "--to", "jsonl", *BY_16K)
    ran = crawl.run(*command, "--output", "streamed", status=0)
    assert ran.json["tasks"]["done"] > 5
    assert crawl.records("streamed") == TEXTS
    ran = crawl.run("index", "in/*.warc.gz", "--json")
    assert (ran.status, ran.json["records"]["read"]) == (0, 600), ran.err
    assert sorted(path.name for path in (crawl.root / "in").iterdir()) == [
        *("a.warc.gz", "a.warc.gz.gzidx", "a.warc.gz.idx")
    ]
    crawl.run(*command, "--output", "indexed", "--workers", "2", status=0)
    assert crawl.files("indexed") == crawl.files("streamed")
    assert crawl.run("index", "verify", "--deep", "in/*.warc.gz").status == 0
    shown = crawl.run("show", "in/a.warc.gz", "1", "--json").json["records"][0]["value"]
    assert (shown["type"], shown["url"]) == ("conversion", "http://example.org/1")
    assert crawl.run("show", "in/a.warc.gz", "--json").json["format"] == "warc"


def test_records_are_converted_without_loss(crawl: Workspace) -> None:
    plain = b"".join(map(record_bytes, RECORDS))
    for name, content in (("in/b.warc", plain), ("in/c.warc.gz", gzip.compress(plain))):
        (crawl.root / name).write_bytes(content)
    for name in ("a.warc.gz", "b.warc", "c.warc.gz"):
        crawl.run("convert", f"in/{name}", "--output", name, "--to", "jsonl", *BY_16K, status=0)
        assert b"".join(crawl.files(name)[file] for file in sorted(crawl.files(name)) if file.endswith(".jsonl"))
        found = crawl.records(name)
        assert [row["headers"] for row in found] == [record["headers"] for record in RECORDS]
        assert found[2] == json.loads(json.dumps({**RECORDS[2], "payload": found[2]["payload"]}))
        assert "__base64__" in found[2]["payload"]


def test_a_killed_job_goes_on_inside_of_an_archive(crawl: Workspace) -> None:
    (crawl.root / "pages.py").write_text(PAGES.replace("PAUSE", "0.02"))
    assert crawl.run("index", "in/*.warc.gz").status == 0
    command = ("map", "pages:texts", "in/*", "--output", "out", "--to", "jsonl", "--ledger", "L", *BY_16K)
    process = crawl.start(*command, "--workers", "1", "--flush-interval", "0.05", "--audit=off")
    wait_for(lambda: tasks_done(crawl) > 1, process)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    before = tasks_done(crawl)
    ran = crawl.run(*command, "--audit=off", status=0)
    assert 1 < before < ran.json["tasks"]["done"] + before
    assert crawl.records("out") == TEXTS


def test_damage_is_told_by_its_place(crawl: Workspace) -> None:
    parts = list(map(record_bytes, RECORDS))
    parts[100] = parts[100].replace(b"WARC-Type: ", b"WARC-Tape: ", 1)
    parts[200] = parts[200].replace(b"WARC/1.1", b"WARC/x.y", 1)
    path: Path = crawl.root / "in/a.warc.gz"
    path.write_bytes(by_record(parts))
    command = ("map", "pages:texts", "in/*", "--output", "out", "--to", "jsonl", "--ledger", "L", *BY_16K)
    ran = crawl.run(*command, status=3, err="record 100, bytes [")
    assert "expected a header WARC-Type, found WARC-Tape, WARC-Target-URI" in ran.err
    ran = crawl.run(*command, "--on-error", "reject", status=0)
    assert ran.json["records"]["rejected"] == {"not decoded": 2}
    written = [row for row in crawl.records("out") if "raw" not in row]
    assert written == [row for row in TEXTS if not row["url"].endswith(("/100", "/200"))]
    data = bytearray(by_record(list(map(record_bytes, RECORDS))))
    path.write_bytes(data[: len(data) // 2])
    ran = crawl.run("map", "pages:texts", "in/*", "--output", "cut", "--to", "jsonl", *BY_16K, status=3)
    assert "a.warc.gz: the gzip data is cut off" in ran.err
    assert crawl.files("cut") == {}


def test_an_archive_that_is_not_compressed_by_record_is_told(crawl: Workspace) -> None:
    hint = "a.warc.gz: one worker reads it from its beginning, since its records are not compressed separately"
    command = ("map", "pages:texts", "in/*.warc.gz", "--to", "jsonl", *BY_16K)
    ran = crawl.run(*command, "--output", "by-record")
    assert (ran.status, hint in ran.err) == (0, False), ran.err
    (crawl.root / "in/a.warc.gz").write_bytes(gzip.compress(b"".join(map(record_bytes, RECORDS))))
    ran = crawl.run(*command, "--output", "at-once")
    assert (ran.status, ran.err.count(hint)) == (0, 1), ran.err
    assert "fastwarc recompress " in ran.err
    assert crawl.records("at-once") == crawl.records("by-record")
