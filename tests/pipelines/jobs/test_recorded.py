"""Outputs that a ledger has recorded, and that are gone or not what was written."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import pytest
import s3fs

from tests.conftest import S3Server
from tests.pipelines.conftest import Workspace

pytestmark = pytest.mark.long

MAP = ("map", "functions:keep", "in/**/*.jsonl", "--output", "out", "--to", "jsonl", "--task-bytes", "300", "--json")
MISSING = "missing since earlier runs"


@pytest.fixture
def done(workspace: Workspace) -> Workspace:
    """A job that is complete: three sources, several shards each; one of them in a folder."""
    for number, name in enumerate(("a", "sub/b", "c")):
        workspace.jsonl(f"in/{name}.jsonl", 30, first=30 * number)
    workspace.succeed(*MAP)
    return workspace


@pytest.mark.parametrize("gone", ["a.jsonl-0000000000.jsonl", "a.jsonl-0000000000.jsonl.idx", "sub", "."])
@pytest.mark.parametrize("pure", [False, True], ids=["compiled", "python"])
def test_what_is_gone_is_written_again(done: Workspace, gone: str, pure: bool) -> None:
    env = {"LEDGERBEAM_PURE_PYTHON": "1"} if pure else {}
    before = done.files("out")
    path = done.root / "out" / gone
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    lost = len(before) - len(done.files("out"))
    ran = done.run(*MAP, env=env, status=0, err=f"{MISSING}: {lost:,} output")
    assert ran.json["skipped"] == (0 if gone == "." else 2)
    assert done.files("out") == before
    ran = done.run(*MAP, env=env)
    assert ran.json["skipped"] == 3
    assert MISSING not in ran.err


@pytest.mark.parametrize("what", ["truncated", "foreign"])
def test_what_is_not_what_was_written_is_refused(done: Workspace, what: str) -> None:
    before = done.files("out")
    path = done.root / "out/sub/b.jsonl-0000000000.jsonl"
    size = path.stat().st_size
    if what == "truncated":
        os.truncate(path, 5)
    else:
        path.write_text("my own notes")
    found = path.stat().st_size
    words = (str(path), f"expected {size:,} bytes", f"found {found:,}", "move it away or delete it")
    done.run(*MAP, status=1, err=words)
    assert path.stat().st_size == found
    path.rename(done.root / "aside")
    done.run(*MAP, status=0)
    assert done.files("out") == before


def test_what_an_unfinished_source_has_written_counts_too(workspace: Workspace) -> None:
    workspace.jsonl("in/a.jsonl", 30)
    command = ("map", "functions:bad_seven", *MAP[2:])
    assert workspace.run(*command).status == 3
    lost = sorted((workspace.root / "out").glob("*.jsonl"))[-1]
    lost.unlink()
    functions = workspace.root / "functions.py"
    functions.write_text(functions.read_text().replace('raise ValueError("seven is bad")', "return None"))
    workspace.succeed(*command, "--on-job-change", "accept")
    assert lost.exists()
    assert [record["id"] for record in workspace.records("out")] == [i for i in range(30) if i != 7]


@pytest.mark.parametrize("root", ["in", "indexes"])
def test_indexes_that_are_gone_are_built_again(workspace: Workspace, root: str) -> None:
    for name in "ab":
        workspace.jsonl(f"in/{name}.jsonl", 10)
    options = () if root == "in" else ("--index-root", root)
    command = ("index", "in/*.jsonl", "--json", *options)
    workspace.succeed(*command)
    before = workspace.files(root)
    first, second = sorted((workspace.root / root).rglob("*.idx"))
    first.unlink()
    assert workspace.succeed(*command).json["skipped"] == 1
    assert workspace.files(root) == before
    os.truncate(second, 16)
    assert workspace.succeed(*command).json["skipped"] == 1
    assert workspace.files(root) == before


def test_parts_that_were_merged_and_dropped_are_not_missed(workspace: Workspace) -> None:
    for name in "ab":
        workspace.jsonl(f"in/{name}.jsonl", 10)
    command = ("tokenize", "in/*.jsonl", "--output", "all", "--tokenizer", "bytes", "--drop-parts", "--json")
    assert workspace.run(*command).status == 0
    before = (workspace.root / "all.bin").read_bytes()
    ran = workspace.run(*command)
    assert "up to date" in ran.err
    assert MISSING not in ran.err
    workspace.jsonl("in/c.jsonl", 10)
    workspace.run(*command, status=0, err=MISSING)
    assert len((workspace.root / "all.bin").read_bytes()) == len(before) // 2 * 3


@pytest.mark.s3
def test_what_is_gone_from_a_bucket_is_written_again(workspace: Workspace, s3: S3Server) -> None:
    bucket = s3.bucket()
    store = s3fs.S3FileSystem(**s3.options, skip_instance_cache=True, use_listings_cache=False)
    for number, name in enumerate(("a", "sub/b")):
        workspace.jsonl(f"in/{name}.jsonl", 30, first=30 * number)
    command = ("map", "functions:keep", "in/**/*.jsonl", "--output", f"s3://{bucket}/out", "--to", "jsonl", "--json")
    assert workspace.run(*command, env=s3.env).status == 0
    names = set(store.find(f"{bucket}/out"))
    store.rm_file(f"{bucket}/out/a.jsonl-0000000000.jsonl")
    ran = workspace.run(*command, env=s3.env)
    assert (ran.status, ran.json["skipped"]) == (0, 1)
    assert "missing since earlier runs: 1 output" in ran.err
    assert set(store.find(f"{bucket}/out")) == names
    store.pipe_file(f"{bucket}/out/sub/b.jsonl-0000000000.jsonl", b"my own notes")
    ran = workspace.run(*command, env=s3.env, status=1, err=f"s3://{bucket}/out/sub/b.jsonl-0000000000.jsonl: expected")
    assert "found 12" in ran.err
    index = ("index", f"s3://{bucket}/out/*.jsonl", "--index-root", f"s3://{bucket}/roots", "--json")
    assert workspace.run(*index, env=s3.env).status == 0
    made = store.find(f"{bucket}/roots")
    store.rm_file(made[0])
    assert workspace.run(*index, env=s3.env).json["skipped"] == 0
    assert store.find(f"{bucket}/roots") == made


@pytest.mark.parametrize("how", ["forgotten", "lost in part"])
def test_outputs_of_a_source_that_is_gone_and_no_longer_known_are_told(done: Workspace, how: str) -> None:
    """Whoever reads the folder took them for outputs of the job; they may be all that is left of that source."""
    source, kept = done.root / "in/a.jsonl", done.files("out")
    gone = source.rename(done.root / "aside")
    assert done.run(*MAP).status == 0
    assert done.files("out") == kept
    if how == "forgotten":
        ledger = str(next((done.root / ".ledgerbeam").iterdir()))
        told = done.run("ledger", "forget", ledger, "*/a.jsonl")
        assert (told.status, "missing from the last listing" in told.out) == (0, True)
    else:
        (done.root / "out/a.jsonl-0000000000.jsonl").unlink()
    for _ in range(2):
        left = done.files("out")
        ran = done.run(*MAP, status=3)
        assert ran.json["unrecorded"] == sum(name.startswith("a.jsonl-") for name in left)
        assert "a.jsonl-0000000" in ran.err
        assert "put the sources back" in ran.err
        assert done.files("out") == left
    for path in (done.root / "out").glob("a.jsonl-*"):
        path.unlink()
    ran = done.run(*MAP)
    assert (ran.status, ran.json["unrecorded"]) == (0, 0)
    gone.rename(source)
    ran = done.run(*MAP)
    assert (ran.status, ran.json["unrecorded"]) == (0, 0)
    assert done.files("out") == kept


def test_an_older_copy_of_the_outputs_leaves_no_shards_unseen(workspace: Workspace) -> None:
    """What the message says was done, and shards of the content before lay beside the right ones, with status 0."""
    source = workspace.jsonl("in/a.jsonl", 30)
    assert workspace.run(*MAP).status == 0
    out, copy = workspace.root / "out", workspace.root / "copy"
    shutil.copytree(out, copy)
    workspace.jsonl("in/a.jsonl", 30, width=70)
    assert workspace.run(*MAP).status == 0
    right = workspace.files("out")
    shutil.rmtree(out)
    copy.rename(out)
    ran = workspace.run(*MAP)
    while ran.status == 1:
        (named,) = re.findall(r"(\S+): expected [\d,]+ bytes", ran.err)
        Path(named).unlink()
        ran = workspace.run(*MAP)
    strange = workspace.files("out").keys() - right.keys()
    assert strange
    for _ in range(2):
        assert (ran.status, ran.json["unrecorded"]) == (3, len(strange))
        assert source.exists()
        ran = workspace.run(*MAP)
    for name in strange:
        (out / name).unlink()
    assert workspace.run(*MAP).status == 0
    assert workspace.files("out") == right


def test_parts_of_a_source_that_is_gone_and_forgotten_are_in_no_dataset(workspace: Workspace) -> None:
    for name in "ab":
        workspace.jsonl(f"in/{name}.jsonl", 9)
    command = ("tokenize", "in/*.jsonl", "--output", "t", "--tokenizer", "bytes", "--ledger", "L", "--json")
    assert workspace.run(*command).status == 0
    (workspace.root / "in/a.jsonl").unlink()
    assert workspace.run("ledger", "forget", "L", "*/a.jsonl").status == 0
    ran = workspace.run(*command)
    assert (ran.status, ran.json["unrecorded"]) == (0, 0)
    assert [one["documents"] for one in ran.json["datasets"]] == [9]
