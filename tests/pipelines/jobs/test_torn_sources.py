"""Sources that change under a job, cannot be planned any more, or have names that are not UTF-8."""

from __future__ import annotations

import gzip
import os
import time
from pathlib import Path
from typing import Any

import pytest
import s3fs

from ledgerbeam.io import Sample
from ledgerbeam.io.tar.writer import encode_tar
from ledgerbeam.ledger.model.rows import Failure
from ledgerbeam.ledger.opening import open_local_store
from tests.conftest import S3Server
from tests.pipelines.conftest import Ran, Workspace
from tests.pipelines.jobs.test_restart import tasks_done, wait_for

pytestmark = pytest.mark.long

MEDDLING = '''
"""A user function in whose way somebody changes the source, once."""
import os, pathlib, subprocess, sys

def meddle(record):
    if not os.path.exists("meddled"):
        pathlib.Path("meddled").touch()
        subprocess.run([sys.executable, "meddle.py"], check=True)
    return record

def members(record):
    if not os.path.exists("meddled"):
        pathlib.Path("meddled").touch()
        subprocess.run([sys.executable, "meddle.py"], check=True)
    return {"key": record.key, "txt": record["txt"].decode()}
'''

HOLDING = """
import glob, os, time

def hold(record):
    while glob.glob("out/*.jsonl") and not os.path.exists("go"):  # a part is done
        time.sleep(0.01)
    return record

def members(record):
    return hold({"key": record.key})
"""

NEW = "text.replace('text', 'next')"


def meddler(workspace: Workspace, change: str, path: Path) -> None:
    (workspace.root / "meddling.py").write_text(MEDDLING)
    (workspace.root / "meddle.py").write_text(
        f"import os\npath = {str(path)!r}\ntext = open(path, errors='surrogateescape').read()\n"
        f"times = os.stat(path).st_atime_ns, os.stat(path).st_mtime_ns\n{change}\n"
    )


def mapped(
    workspace: Workspace, *sources: str, function: str = "meddling:meddle", output: str = "out", **how: Any
) -> Ran:
    command = ("map", function, *sources, "--output", output, "--to", "jsonl", "--task-bytes", "200", "--json")
    ran = workspace.run(*command, "--ledger", f"{output}.ledger", **how)
    assert "Traceback" not in ran.err, ran.err
    return ran


def require_as_clean(workspace: Workspace, *sources: str, function: str = "meddling:meddle") -> None:
    """Run the job again, and compare it with one that nobody disturbed."""
    mapped(workspace, *sources, function=function, status=0)
    assert mapped(workspace, *sources, function=function, output="clean").status == 0
    assert workspace.files("out") == workspace.files("clean")


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(f"open(path, 'r+').write({NEW})", id="overwritten"),
        pytest.param(f"open('aside', 'w').write({NEW}); os.replace('aside', path)", id="replaced"),
        pytest.param("open(path, 'a').write(text)", id="appended"),
        pytest.param("os.truncate(path, 0)", id="emptied"),
        pytest.param("os.unlink(path); os.mkfifo(path)", id="a pipe now"),
    ],
)
def test_a_manifest_changes_under_a_job(workspace: Workspace, change: str) -> None:
    path = workspace.jsonl("in/a.jsonl", 60)
    workspace.jsonl("in/b.jsonl", 3, first=100)
    meddler(workspace, change, path)
    ran = mapped(workspace, "in/*.jsonl", status=3, err="changed since it was listed")
    assert ran.json["sources"]["complete"] == 1
    if not path.is_file():
        path.unlink()
        path.write_text('{"id": 1}\n')
    require_as_clean(workspace, "in/*.jsonl")


@pytest.mark.parametrize("change", ["overwritten", "truncated"])
def test_a_compressed_manifest_changes_under_a_job(workspace: Workspace, change: str) -> None:
    plain = workspace.jsonl("plain.jsonl", 4000, width=60)
    path = workspace.root / "a.jsonl.gz"
    path.write_bytes(gzip.compress(plain.read_bytes(), mtime=1))
    other = gzip.compress(plain.read_bytes().replace(b"text", b"next"), mtime=2)
    (workspace.root / "other").write_bytes(other)
    code = {
        "overwritten": "open(path, 'wb').write(open('other', 'rb').read())",
        "truncated": "os.truncate(path, 1000)",
    }[change]
    meddler(workspace, code, path)
    ran = workspace.run(
        *("map", "meddling:meddle", "a.jsonl.gz", "--output", "out", "--to", "jsonl"),
        *("--task-bytes", "20000", "--ledger", "L"),
    )
    assert ran.status == 3, ran.err
    assert "changed since it was listed" in ran.err


def test_a_tar_replaced_by_one_of_the_same_size_and_an_older_time_is_indexed_again(workspace: Workspace) -> None:
    """What `cp -p` and `rsync -t` leave: the index is newer than the archive, and of its size."""
    path = workspace.root / "a.tar"
    old = encode_tar([Sample(f"a{i:03}", {"txt": b"%05d" % i}) for i in range(40)])[0]
    new = encode_tar([Sample(f"b{i:03}", {"txt": b"%05d" % i, "cls": b"1"}) for i in range(20)])[0]
    assert len(old) == len(new)
    path.write_bytes(old)
    (workspace.root / "meddled").touch()
    meddler(workspace, "", path)
    assert mapped(workspace, "a.tar", function="meddling:members").status == 0
    path.write_bytes(new)
    earlier = time.time() - 3600
    os.utime(path, (earlier, earlier))
    ran = workspace.run("map", "meddling:members", "a.tar", "--output", "other", "--to", "jsonl", "--ledger", "O")
    assert ran.status == 3, ran.err  # of a ledger that never saw the former archive
    assert "ledgerbeam index --force" in ran.err
    require_as_clean(workspace, "a.tar", function="meddling:members")
    assert [row["key"] for row in workspace.records("out")] == [f"b{i:03}" for i in range(20)]


def source_ahead(workspace: Workspace, name: str, count: int) -> Path:
    """Write a source whose time lies ahead of the clock."""
    path = workspace.jsonl(name, count)
    if name == "a.tar":
        path.write_bytes(encode_tar([Sample(f"a{i:03}", {"txt": b"%05d" % i}) for i in range(count)])[0])
    ahead = time.time() + 3600
    os.utime(path, (ahead, ahead))
    return path


@pytest.mark.parametrize("name", ["a.jsonl", "a.tar"])
def test_a_source_whose_time_lies_ahead_of_the_clock(workspace: Workspace, name: str) -> None:
    (workspace.root / "meddled").touch()
    path = source_ahead(workspace, name, 40)
    meddler(workspace, "", path)
    function = "meddling:members" if name == "a.tar" else "meddling:meddle"
    assert workspace.run("index", name).status == 0
    assert os.stat(f"{path}.idx").st_mtime_ns >= path.stat().st_mtime_ns
    assert workspace.run("verify", name).status == 0
    assert workspace.run("show", name, "3").status == 0
    os.utime(f"{path}.idx")  # of somebody else, who did not know
    assert workspace.run("verify", name).status == 0
    require_as_clean(workspace, name, function=function)


@pytest.mark.parametrize("name", ["a.jsonl", "a.tar"])
def test_a_killed_job_over_a_source_whose_time_lies_ahead_of_the_clock_goes_on(workspace: Workspace, name: str) -> None:
    """Kill and rerun never ended: the index that a run had made was older than its source."""
    source_ahead(workspace, name, 600)
    (workspace.root / "holding.py").write_text(HOLDING)
    function = "holding:members" if name == "a.tar" else "holding:hold"
    for command in (("index", name, "--ledger", "I"), ("index", name, "--ledger", "I", "--force")):
        assert workspace.run(*command).status == 0
    assert "(1 skipped" in workspace.run("index", name, "--ledger", "I").out
    job = ("map", function, name, "--output", "out", "--to", "jsonl", "--task-bytes", "500", "--ledger", "L")
    process = workspace.start(*job)
    wait_for(lambda: tasks_done(workspace) > 0, process)
    process.kill()
    process.communicate()
    (workspace.root / "go").touch()
    ran = workspace.succeed(*job, "--json")
    assert "indexing it again" not in ran.err
    assert len(workspace.records("out")) == 600
    again = workspace.run(*job, "--json")
    assert (again.status, again.json["skipped"]) == (0, 1), again.err


def test_a_list_that_is_a_pipe_is_refused_and_nothing_waits(workspace: Workspace) -> None:
    os.mkfifo(workspace.root / "list")
    os.mkfifo(workspace.root / "b.jsonl")
    for words in (("--sources-from", "list"), ("b.jsonl",)):
        ran = workspace.run("map", "functions:keep", *words, "--output", "out", "--to", "jsonl", status=2)
        assert "expected a file with byte offsets, found a pipe" in ran.err


@pytest.mark.s3
@pytest.mark.parametrize("change", ["overwritten", "deleted"])
def test_an_object_changes_under_a_job(workspace: Workspace, s3: S3Server, change: str) -> None:
    bucket = s3.bucket()
    store = s3fs.S3FileSystem(**s3.options, skip_instance_cache=True)
    plain = workspace.jsonl("a.jsonl", 60).read_bytes()
    store.pipe_file(f"{bucket}/in/a.jsonl", plain)
    store.pipe_file(f"{bucket}/in/b.jsonl", b'{"id": 100}\n')
    (workspace.root / "meddling.py").write_text(MEDDLING)
    changing = {
        "overwritten": f"store.pipe_file('{bucket}/in/a.jsonl', {plain.replace(b'text', b'next')!r})",
        "deleted": f"store.rm_file('{bucket}/in/a.jsonl')",
    }[change]
    (workspace.root / "meddle.py").write_text(f"import s3fs\nstore = s3fs.S3FileSystem(**{s3.options!r})\n{changing}\n")
    command = ("map", "meddling:meddle", f"s3://{bucket}/in/*.jsonl", "--to", "jsonl", "--task-bytes", "200", "--json")
    ran = workspace.run(*command, "--output", "out", "--ledger", "out.ledger", env=s3.env, status=3)
    assert "changed since it was listed" in ran.err
    assert "Traceback" not in ran.err
    if change == "overwritten":
        assert workspace.run(*command, "--output", "out", "--ledger", "out.ledger", env=s3.env).status == 0
        assert workspace.run(*command, "--output", "clean", "--ledger", "clean.ledger", env=s3.env).status == 0
        assert workspace.files("out") == workspace.files("clean")


MAP = ("map", "functions:keep", "in/*.jsonl", "--output", "out", "--to", "jsonl", "--ledger", "L")
NOT_UTF8 = os.fsdecode(b"in/caf\xe9 \xff.jsonl")


def test_a_source_that_cannot_be_planned_any_more_has_failed(workspace: Workspace) -> None:
    source = workspace.jsonl("in/a.jsonl", 40)
    size = ("--task-bytes", "200")
    workspace.run("map", "functions:needs_service", *MAP[2:], *size, status=3)
    index = source.with_name("a.jsonl.idx")
    index.write_bytes(b"no index")  # half of the source is done, and now it cannot be cut into tasks
    for _ in range(2):
        again = workspace.run("map", "functions:needs_service", *MAP[2:], *size, "--json")
        assert "nothing failed" not in again.err
        assert again.status == 3, again.err
        assert str(index) in again.err
        assert again.json["sources"] == {"complete": 0, "open": 0, "failed": 1}
    index.unlink()
    (workspace.root / "service-is-up").touch()
    last = workspace.run("map", "functions:needs_service", *MAP[2:], *size, "--json")  # gets below it; one is bad
    assert (last.status, last.json["tasks"]["failed"]) == (3, 1), last.err
    assert str(index) not in last.err


def test_a_failure_of_a_former_plan_keeps_no_source_from_its_next_pass(workspace: Workspace) -> None:
    path = workspace.jsonl("in/big.jsonl", 400, width=100)
    index = ("index", "in/big.jsonl", "--ledger", "L", "--task-bytes", "10000")
    workspace.succeed(*index)
    store = open_local_store(str(workspace.root / "L"), create=False)
    (row,) = store.sources()
    store.forget("*")
    path.with_name("big.jsonl.idx").unlink()
    store.commit([], [Failure(row.source_id, ((3, 77),), "of a former plan", "ValueError", "former")])
    assert store.status()["sources"]["failed"] == 1
    store.close()
    workspace.succeed(*index)
    assert path.with_name("big.jsonl.idx").exists()


@pytest.fixture
def odd_names(workspace: Workspace) -> Workspace:
    workspace.jsonl(NOT_UTF8, 20)
    return workspace


def test_an_impure_function_over_a_name_that_is_not_utf8_ends_the_job(odd_names: Workspace) -> None:
    for workers in ("1", "2"):
        ledger = (f"L{workers}", "--workers", workers, "--existing", "keep")
        ran = odd_names.run("map", "functions:random_text", *MAP[2:-1], *ledger, status=1)
        assert "without this check with --audit off" in ran.err
        assert "Traceback" not in ran.err


def test_every_command_works_over_a_name_that_is_not_utf8(odd_names: Workspace) -> None:
    ran = odd_names.run("map", "functions:bad_seven", NOT_UTF8, *MAP[3:], "--task-bytes", "200", "--json", status=3)
    commands = [
        *(("ledger", action, "L") for action in ("status", "failures", "outputs", "verify")),
        *(("ledger", "status", "L", "--check-sources", "--json"), ("ledger", "outputs", "L", "--json")),
        ("ledger", "report", "L", "--output", "report.html"),
        ("ledger", "export", "L", "--output", "lines"),
        ("ledger", "export", "L", "--output", "columns", "--format", "parquet"),
        *(("index", NOT_UTF8, "--ledger", "I"), ("verify", NOT_UTF8), ("show", NOT_UTF8)),
    ]
    for command in commands:
        ran = odd_names.run(*command)
        assert (ran.status, "Traceback" in ran.err) == (0, False), (command, ran.err)
    shown = odd_names.run("ledger", "failures", "L", "--json").json
    assert len(shown["failures"]) == 1
    ran = odd_names.run("map", "functions:keep", NOT_UTF8, *MAP[3:], "--task-bytes", "200", "--on-job-change=accept")
    assert ran.status == 0, ran.err
    assert len(odd_names.records("out")) == 20
    assert odd_names.run("ledger", "forget", "L", "*").status == 0


def test_an_output_whose_name_is_not_utf8(odd_names: Workspace) -> None:
    output = os.fsdecode(b"out\xff")
    ran = odd_names.run("map", "functions:keep", NOT_UTF8, "--output", output, "--to", "jsonl", "--ledger", "L")
    assert ran.status == 0, ran.err
    assert len(odd_names.records(output)) == 20
    for to in ("tar", "parquet"):
        ran = odd_names.run("convert", NOT_UTF8, "--output", f"{output}/{to}", "--to", to, status=0)
    odd_names.run("sort", NOT_UTF8, "--by", "id", "--output", f"{output}/sorted", "--to", "jsonl", status=0)
