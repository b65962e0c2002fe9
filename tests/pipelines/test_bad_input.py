"""Bad input: one clear line, the exit status that was designed, nothing lost and nothing half-written."""

from __future__ import annotations

import io
import os
import re
import subprocess
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ledgerbeam.io import write_index
from ledgerbeam.io.index.newlines import build_jsonl_index
from tests.pipelines.conftest import Ran, Workspace


def mapped(workspace: Workspace, *sources: str | Path, function: str = "functions:keep", **how: Any) -> Ran:
    ran = workspace.run("map", function, *sources, "--output", "out", "--to", "jsonl", **how)
    assert "Traceback" not in ran.err
    return ran


TO = ("--output", "out", "--to", "jsonl")
KEEP = ("map", "functions:keep")


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        ((*KEEP, "missing.jsonl", *TO), 1, "/missing.jsonl"),
        ((*KEEP, "in/*.jsonl", *TO), 1, "in/*.jsonl"),
        ((*KEEP, "a.doc", *TO), 2, ".jsonl"),
        (("index", "--sources-from", "empty"), 1, "empty: expected a list of sources, one URL a line, found none"),
        (("index", "--sources-from", "blank"), 1, "blank: expected a list of sources, one URL a line, found none"),
        (("index", "pipe:cat a.jsonl"), 2, "pipe"),
        (("map", "nowhere:f", "a.jsonl", *TO), 1, "there is no module 'nowhere'"),
        (("map", "functions:missing", "a.jsonl", *TO), 1, "has no 'missing'"),
        (("map", "functions", "a.jsonl", *TO), 1, "module:function"),
        (("map", "__main__:clean", "a.jsonl", *TO), 1, "is a different module in each process; put the function into"),
        (("ledger", "status", "nowhere"), 1, "nowhere"),
        (("index", "a.jsonl", "--ledger", "nowhere://bucket/ledger"), 2, "nowhere://"),
        (("map",), 2, "--output"),
        ((*KEEP, "a.jsonl", "--output", "out"), 2, "--to"),
        ((*KEEP, "a.jsonl", "--output", "out", "--to", "orc"), 2, "orc"),
        ((*KEEP, *TO), 2, "source"),
        ((*KEEP, "a.jsonl", *TO, "--unknown"), 2, "--unknown"),
        ((*KEEP, "a.jsonl", *TO, "--workers", "0"), 2, "--workers"),
        ((*KEEP, "a.jsonl", *TO, "--task-bytes", "many"), 2, "many"),
        ((*KEEP, "a.jsonl", *TO, "--", "--runner=DirectRunner", "--x=1"), 2, "--x"),
        ((*KEEP, "a.jsonl", *TO, "--on-error", "skip"), 2, "--on-error skip"),
        ((*KEEP, "a.jsonl", *TO, "--audit=1.5"), 2, "--audit 1.5: expected a share"),
        ((*KEEP, "a.jsonl", *TO, "--only-rejected", "x", "--only-failed", "y"), 2, "choose different tasks"),
        ((*KEEP, "a.jsonl", *TO, "--dry-run", "--only-failed", "*"), 2, "leave --only-failed out"),
        ((*KEEP, "a.jsonl", *TO, "--limit-tasks", "2", "--", "--runner=PrismRunner"), 2, "the local runner only"),
        (("convert", "a.jsonl", "--output", "out", "--to", "lit", "--dtype", "int32"), 2, "found --to lit"),
        (("convert", "a.jsonl", "--output", "out", "--to", "lit", "--drop-parts"), 2, "found --to lit"),
        (("convert", "a.jsonl", "--output", "out", "--to", "lit", "--fields", "recording=wav"), 2, "found --to lit"),
        (("index", "a.jsonl", "--storage-options", "[1]"), 2, "JSON object"),
        (("ledger", "forget", "L"), 2, "PATTERN"),
        (("nothing",), 2, "nothing"),
        ((), 2, "COMMAND"),
    ],
)
def test_a_refusal_leaves_nothing(workspace: Workspace, words: tuple[str, ...], status: int, said: str) -> None:
    workspace.jsonl("a.jsonl", 3)
    for name, content in (("a.doc", "hello"), ("empty", ""), ("blank", "\n  \n# all of it\n# was commented out\n")):
        (workspace.root / name).write_text(content)
    ran = workspace.run(*words, status=status, err=said)
    assert ran.err.startswith("ledgerbeam: error: ")
    assert "Traceback" not in ran.err
    assert not any((workspace.root / name).exists() for name in ("out", ".ledgerbeam", "nowhere"))


def test_a_folder_in_place_of_a_pattern(workspace: Workspace) -> None:
    workspace.jsonl("in/a.jsonl", 1)
    mapped(workspace, "in", status=2, err=f"{workspace.root}/in/*.jsonl' (1 file)")


@pytest.mark.slow
def test_compressed_sources_that_are_damaged(workspace: Workspace) -> None:
    names = {"a.jsonl.gz": b"\x1f\x8b", "b.tar.zst": b"\x28\xb5\x2f\xfd"}
    for name, magic in names.items():
        (workspace.root / name).write_bytes(magic)
    ran = workspace.run("index", *names, status=3, err="a.jsonl.gz: the gzip data is cut off at or after byte 2")
    assert "b.tar.zst: this Zstandard file has no seek table" in ran.err
    ran = mapped(workspace, *names, status=3)
    for name in names:
        assert re.search(rf"{name}: the (gzip|zstd) data is (cut off|damaged) at or after byte", ran.err)


def test_records_that_are_not_json(workspace: Workspace) -> None:
    workspace.jsonl("in/good.jsonl", 3)
    bad = {
        "cut.jsonl": (b'{"id": 1}\n{"id": \n{"id": 3}\n', "record 1"),
        "latin.jsonl": (b'{"id": 1}\n{"id": "\xff\xfe"}\n', "record 1"),
        "marked.jsonl": (b'\xef\xbb\xbf{"id": 1}\n', "BOM"),
    }
    for name, (content, _) in bad.items():
        (workspace.root / "in" / name).write_bytes(content)
    ran = mapped(workspace, "in/*.jsonl", status=3)
    for name, (_, expected) in bad.items():
        assert any(name in line and expected in line for line in ran.err.splitlines()), ran.err
    assert len(workspace.records("out")) == 3


def test_a_truncated_tar(workspace: Workspace) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        info = tarfile.TarInfo("x.wav")
        info.size = 5000
        tar.addfile(info, io.BytesIO(bytes(5000)))
    (workspace.root / "t.tar").write_bytes(buffer.getvalue()[:3000])
    workspace.run("index", "t.tar", status=3, err="x.wav")
    assert not (workspace.root / "t.tar.idx").exists()


@pytest.mark.slow
def test_indexes_that_do_not_fit(workspace: Workspace) -> None:
    damages: dict[str, Callable[[bytes], bytes]] = {
        "short": lambda whole: whole[:-8],
        "unaligned": lambda whole: whole[:-3],
        "decreasing": lambda whole: whole[:16] + whole[24:32] + whole[16:24] + whole[32:],
        "empty": lambda whole: b"",
        "text": lambda whole: b"0\n37\n74\n111\n148\n",
    }
    for damage, done in damages.items():
        path = workspace.jsonl(f"in/{damage}.jsonl", 10)
        index = workspace.root / f"in/{damage}.jsonl.idx"
        write_index(str(index), build_jsonl_index(str(path)))
        index.write_bytes(done(index.read_bytes()))
    ran = mapped(workspace, "in/*.jsonl", status=3)
    assert workspace.files("out") == {}
    (ledger,) = (workspace.root / ".ledgerbeam").iterdir()
    failures = workspace.run("ledger", "failures", ledger, "--json").json["failures"]
    errors = {Path(row["source"]).stem: row["error"] for row in failures}
    for damage in damages:
        path = workspace.root / f"in/{damage}.jsonl"
        assert f"{path}.idx" in errors[damage]
        assert f"ledgerbeam index --force {path}" in errors[damage]
    assert sum(error in ran.err for error in errors.values()) == 3  # the first of them, and how to see all
    assert workspace.run("index", "--force", "in/empty.jsonl").status == 0
    assert mapped(workspace, "in/*.jsonl").status == 3
    assert {name.partition("-")[0] for name in workspace.files("out")} == {"empty.jsonl"}
    assert len(workspace.records("out")) == 10


@pytest.mark.slow
def test_an_index_of_former_content_is_built_anew_unless_that_is_off(workspace: Workspace) -> None:
    path = workspace.jsonl("in/a.jsonl", 10)
    assert workspace.run("index", "in/a.jsonl").status == 0
    workspace.jsonl("in/a.jsonl", 12)
    index = workspace.root / "in/a.jsonl.idx"
    earlier = path.stat().st_mtime - 5
    os.utime(index, (earlier, earlier))
    ran = mapped(workspace, "in/*.jsonl", "--no-index", status=3)
    assert "expected a file newer than its source, found one 5.000 s older. Rebuild it: ledgerbeam index" in ran.err
    mapped(workspace, "in/*.jsonl", status=0, err="in/a.jsonl: its index is older than the file; indexing it again")
    assert len(workspace.records("out")) == 12


@pytest.mark.parametrize(("function", "expected"), [("wrong_shape", "returned a tuple"), ("unserialisable", "object")])
def test_a_function_of_the_wrong_shape(workspace: Workspace, function: str, expected: str) -> None:
    workspace.jsonl("a.jsonl", 3)
    mapped(workspace, "a.jsonl", function=f"functions:{function}", status=3, err=expected)
    assert workspace.files("out") == {}


def test_a_function_that_is_not_deterministic(workspace: Workspace) -> None:
    workspace.jsonl("a.jsonl", 3)
    ran = mapped(replace(workspace, audits=True), "a.jsonl", function="functions:random_text", status=1)
    assert "functions:random_text returned another result" in ran.err
    assert "a.jsonl, record 2\n" in ran.err


def test_debug_shows_the_traceback(workspace: Workspace) -> None:
    assert "Traceback" in workspace.run("show", "missing.jsonl", "--debug").err


@pytest.fixture
def small_disk(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """Mounts a disk of the size that the test asks for."""
    folder = tmp_path / "small"
    folder.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={request.param}", "tmpfs", str(folder)], check=False)
    if done.returncode:
        pytest.skip("no small disk: run as root, so that a tmpfs can be mounted")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.mark.slow
@pytest.mark.parametrize("small_disk", ["600k"], indirect=True)
def test_a_full_disk_of_outputs_loses_nothing(workspace: Workspace, small_disk: Path) -> None:
    workspace.jsonl("a.jsonl", 2000, width=500)
    command = ("map", "functions:keep", "a.jsonl", "--output", small_disk / "out", "--to", "jsonl")
    options = ("--task-bytes", "50000", "--ledger", "L")
    ran = workspace.run(*command, *options, status=1)
    assert "space" in ran.err or "full" in ran.err
    assert "Traceback" not in ran.err
    assert not [p for p in small_disk.rglob("*") if p.name.endswith(".lbtmp")]
    done = workspace.run("ledger", "status", "L", "--json").json["tasks"]["done"]
    assert done > 0
    assert workspace.run("ledger", "verify", "L").status == 0
    subprocess.run(["mount", "-o", "remount,size=8m", str(small_disk)], check=True)
    ran = workspace.run(*command, *options, "--json", status=0)
    assert ran.json["tasks"]["done"] > done
    assert workspace.run("ledger", "verify", "L").status == 0


@pytest.mark.slow
@pytest.mark.parametrize("small_disk", ["160k"], indirect=True)
def test_a_full_disk_of_the_ledger_loses_nothing(workspace: Workspace, small_disk: Path) -> None:
    for i in range(400):
        workspace.jsonl(f"in/{i:04d}.jsonl", 2)
    command = ("map", "functions:keep", "in/*.jsonl", "--output", "out", "--to", "jsonl")
    options = ("--workers", "1", "--ledger", small_disk / "L", "--flush-interval", "0.05")
    ran = workspace.run(*command, *options, status=1)
    assert "Traceback" not in ran.err
    assert str(small_disk / "L") in ran.err
    subprocess.run(["mount", "-o", "remount,size=64m", str(small_disk)], check=True)
    assert workspace.run(*command, *options).status == 0
    assert len(workspace.records("out")) == 800


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"--ledger": "L"}, "--ledger"),
        ({"--output": "out"}, "--output"),
        ({"SOURCES": "in/*.jsonl"}, "the sources"),
        ({"--index-root": "idx"}, "--index-root"),
        ({}, None),
    ],
)
def test_workers_elsewhere_reach_no_local_paths(
    workspace: Workspace, changed: dict[str, str], named: str | None
) -> None:
    words = {"SOURCES": "s3://b/in/*.jsonl", "--ledger": "s3://b/L", "--output": "s3://b/out", **changed}
    sources = words.pop("SOURCES")
    options = [word for pair in words.items() for word in pair]
    beam = ("--runner=PortableRunner", "--job_endpoint=localhost:1", "--environment_type=EXTERNAL")
    ran = workspace.run("map", "functions:keep", sources, *options, "--to", "jsonl", "--", *beam)
    if named is None:
        assert "must be on an object store" not in ran.err
    else:
        assert ran.status == 2
        assert f"{named} must be on an object store" in ran.err
        assert not (workspace.root / "L").exists()
