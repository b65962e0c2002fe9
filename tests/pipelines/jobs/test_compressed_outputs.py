"""Jobs that write compressed shards: the plain bytes, read on by the next job, refused where nobody could read them."""

from __future__ import annotations

from pathlib import Path

import pytest
import pyzstd

from ledgerbeam.io import JsonlReader, TarReader
from ledgerbeam.iterators import IndexedManifest, IndexedTar, Manifest
from tests.pipelines.conftest import Workspace

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
    ran = workspace.run(*command, "--output", "out", *ZSTD, "--ledger", "L")
    assert ran.status == 0, ran.err
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
    again = workspace.run(*command, "--output", "out", *ZSTD, "--ledger", "L", "--only-rejected", "seven")
    assert again.status == 0, again.err
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
    ran = workspace.run("convert", "tars/*.tar.zst", "--output", "out", "--to", "jsonl", *ZSTD, *OPTIONS)
    assert ran.status == 0, ran.err
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
    first = workspace.run(*command, "--ledger", "L")
    assert first.status == 0, first.err
    again = workspace.run(*command, "--ledger", "L")
    assert (again.status, again.json["sources"]["complete"], again.json["skipped"]) == (0, 1, 1)
    other = workspace.run(*command, "--ledger", "M")
    assert other.status == 2
    assert "it belongs to another ledger" in other.err


@pytest.mark.slow
def test_how_outputs_are_compressed_belongs_to_the_job(workspace: Workspace) -> None:
    workspace.jsonl("in/a.jsonl", 50)
    command = ("map", "functions:keep", "in/*", "--output", "out", "--to", "jsonl", "--ledger", "L")
    assert workspace.run(*command, "--compress", "zstd:1").status == 0
    other = workspace.run(*command, "--compress", "zstd:2")
    assert other.status == 1
    assert "compress: was 'zstd:1', is 'zstd:2'" in other.err
    restarted = workspace.run(*command, "--on-job-change", "restart")
    assert restarted.status == 0, restarted.err
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
    ran = workspace.run("convert", "in/*", "--output", "out", *options)
    assert ran.status == 2
    assert found in ran.err
    assert not (workspace.root / "out").exists()


@pytest.mark.slow
def test_metadata_of_others_is_refused(workspace: Workspace) -> None:
    workspace.jsonl("in/a.jsonl", 20)
    command = ("map", "functions:sample", "in/*", "--output", "out", "--to", "tar", "--compress", "zstd")
    assert workspace.run(*command, "--ledger", "L").status == 0
    for form in ("webdataset", "energon", "lit", "idxpack", "hf"):
        ran = workspace.run("publish", "L", "--as", form)
        assert ran.status == 2
        assert "expected plain shards" in ran.err
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
    ran = workspace.run(*command, "--output", "out", *ZSTD)
    assert ran.status == 0, ran.err
    assert plain(workspace.files("out")) == workspace.files("plain")
