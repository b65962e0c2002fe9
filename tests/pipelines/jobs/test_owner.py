"""An output folder has one owner, and the outputs in it are what was recorded: what anything else comes to."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import s3fs

from ledgerbeam.ledger import Source
from ledgerbeam.ledger.model.claims import rank
from ledgerbeam.ledger.opening import open_local_store
from tests.conftest import S3Server
from tests.pipelines.conftest import Ran, Workspace, make_workspace
from tests.pipelines.jobs.test_restart import wait_for

pytestmark = pytest.mark.long

MAP = ("map", "functions:keep", "in/*.jsonl", "--output", "out", "--to", "jsonl")
SAME = ("--ledger", "L", "--task-bytes", "300")


def marks(workspace: Workspace, folder: str = "out") -> dict[str, dict[str, object]]:
    return {path.name: json.loads(path.read_text()) for path in (workspace.root / folder / "_ledgerbeam").iterdir()}


def ids(workspace: Workspace, folder: str = "out") -> list[int]:
    return sorted(record["id"] for record in workspace.records(folder))


@pytest.fixture
def done(workspace: Workspace) -> Workspace:
    """A job that is complete: two sources, 60 records, several shards each."""
    workspace.jsonl("in/a.jsonl", 30)
    workspace.jsonl("in/b.jsonl", 30, first=30)
    workspace.succeed(*MAP, *SAME)
    assert len(workspace.files("out")) > 8
    return workspace


def test_another_ledger_is_refused_and_makes_nothing(done: Workspace) -> None:
    before = done.files("out")
    ran = done.run(*MAP, "--ledger", "M", status=2)
    for words in (str(done.root / "L"), "--existing replace", "--existing keep", "it holds shards such as", "--output"):
        assert words in ran.err
    assert "Traceback" not in ran.err
    assert done.files("out") == before
    assert not (done.root / "M").exists()
    assert done.run(*MAP, "--ledger", "M").status == 2
    assert done.run(*MAP, *SAME).status == 0


def test_a_new_ledger_replaces_what_is_there_if_told_so(done: Workspace) -> None:
    (done.root / "out/README").write_text("mine")
    (done.root / "out/b.jsonl").write_text('{"id": 1}\n')
    done.run(*MAP, "--ledger", "M", "--existing", "replace", status=0)
    names = {f"{name}.jsonl-0000000000.jsonl{end}" for name in "ab" for end in ("", ".idx")}
    assert set(done.files("out")) == {*names, "README", "b.jsonl"}
    ((_, mark),) = marks(done).items()
    assert mark["url"] == str(done.root / "M")
    # The former owner has lost the folder, and says so.
    done.run(*MAP, *SAME, status=2, err=str(done.root / "M"))
    # The option of a command that is run again has done its work.
    ran = done.run(*MAP, "--ledger", "M", "--existing", "replace", "--json")
    assert ran.json["skipped"] == 2


def test_a_moved_ledger_goes_on(done: Workspace) -> None:
    os.rename(done.root / "L", done.root / "elsewhere")
    ran = done.run(*MAP, "--ledger", "elsewhere", "--task-bytes", "300", "--json")
    assert (ran.status, ran.json["skipped"]) == (0, 2)
    ((_, mark),) = marks(done).items()
    assert mark["url"] == str(done.root / "elsewhere")


@pytest.mark.parametrize("choice", ["replace", "keep"])
def test_an_older_copy_of_the_ledger_is_refused(done: Workspace, choice: str) -> None:
    shutil.copytree(done.root / "L", done.root / "backup")
    done.jsonl("in/c.jsonl", 10, first=60)
    assert done.run(*MAP, *SAME).status == 0
    shutil.rmtree(done.root / "L")
    os.rename(done.root / "backup", done.root / "L")
    done.run(*MAP, *SAME, status=2, err="Restore the newer one; otherwise\ngive another --output, or")
    done.run(*MAP, *SAME, "--existing", choice, status=0)
    assert ids(done) == list(range(70))


GO_AWAY = """
import os, time
def once(record):
    if record["id"] == 20 and os.path.exists("armed"):
        os.remove("armed")
        time.sleep(0.5)  # what is being published goes on in its folder
        {what}
    return record
"""
GOES = ("map", "goes:once", *MAP[2:], *SAME, "--audit=off")


def run_while_it_goes(workspace: Workspace, what: str) -> Ran:
    """Run a job whose function does this once, in the middle of it."""
    for name, first in (("a", 0), ("b", 30)):
        workspace.jsonl(f"in/{name}.jsonl", 30, first=first)
    (workspace.root / "goes.py").write_text(GO_AWAY.format(what=what))
    (workspace.root / "armed").touch()
    ran = workspace.run(*GOES, status=1)
    assert not (workspace.root / "armed").exists()
    return ran


@pytest.mark.parametrize(
    "what",
    [
        'os.rename("out", "moved")',
        '__import__("shutil").rmtree("out")',
        'os.rename("out", "moved"); os.symlink("other", "out")',
    ],
    ids=["moved", "removed", "replaced by a link"],
)
def test_a_folder_that_goes_while_the_job_writes_is_told(workspace: Workspace, what: str) -> None:
    (workspace.root / "other").mkdir()
    ran = run_while_it_goes(workspace, what)
    assert f"{workspace.root}/out: " in ran.err
    assert "run the same command again" in ran.err
    workspace.succeed(*GOES)
    assert ids(workspace) == list(range(60))


@pytest.mark.parametrize("is_moved", [True, False], ids=["moved", "removed"])
def test_what_is_told_of_a_ledger_that_goes_while_the_job_works_helps(workspace: Workspace, is_moved: bool) -> None:
    ran = run_while_it_goes(workspace, 'os.rename("L", "moved")' if is_moved else '__import__("shutil").rmtree("L")')
    assert f"ledger {workspace.root}/L: its files were moved, removed or replaced while it was in use" in ran.err
    if is_moved:
        assert "put them back, and run the same command again" in ran.err
        shutil.rmtree(workspace.root / "L", ignore_errors=True)
        (workspace.root / "moved").rename(workspace.root / "L")
        workspace.succeed(*GOES)
    else:
        assert "with --existing replace, which starts a new ledger" in ran.err
        workspace.succeed(*GOES, "--existing", "replace")
    assert ids(workspace) == list(range(60))


def test_of_nested_output_folders_each_has_its_owner(workspace: Workspace) -> None:
    workspace.jsonl("in/a.jsonl", 10)
    inner = ("map", "functions:keep", "in/*.jsonl", "--output", "out/inner", "--to", "jsonl", "--ledger", "I")
    assert workspace.run(*inner).status == 0
    before = workspace.files("out/inner")
    assert workspace.run(*MAP, "--ledger", "L", "--task-bytes", "100").status == 0
    workspace.succeed(*MAP, "--ledger", "M", "--existing", "replace")
    assert workspace.files("out/inner") == before
    assert len([name for name in workspace.files("out") if "/" not in name]) == 2
    assert workspace.run(*inner, "--json").json["skipped"] == 1


@pytest.mark.parametrize(
    ("inner", "options"),
    [("out/sub", ()), ("out/sub", ("--existing", "replace")), ("out/_rejects", ("--on-error", "reject"))],
)
def test_a_job_does_not_write_into_a_folder_below_its_own_that_another_owns(
    workspace: Workspace, inner: str, options: tuple[str, ...]
) -> None:
    """Outputs of sources in a folder lie in a folder of its name; those of another job there may have their names."""
    workspace.jsonl("in/sub/a.jsonl", 9)
    with (workspace.root / "in/sub/a.jsonl").open("a") as file:
        file.write("no json\n" if options[:1] == ("--on-error",) else "")
    keep = ("map", "functions:keep", "--to", "jsonl")
    other = (*keep, "in/sub/*.jsonl", "--output", inner, "--ledger", "I", "--on-error", "reject")
    assert workspace.run(*other).status == 0
    before = workspace.files(inner)
    job = (*keep, "in/**/*.jsonl", "--output", "out", "--ledger", "L", "--task-bytes", "100", *options)
    workspace.run(*job, status=2, err=f"{inner} is the output folder of another job (see _ledgerbeam/")
    assert workspace.files(inner) == before


def test_a_job_finds_out_that_a_folder_below_its_own_was_claimed_since_its_last_run(workspace: Workspace) -> None:
    workspace.jsonl("in/a.jsonl", 9)
    outer = ("map", "functions:keep", "in/**/*.jsonl", "--output", "out", "--to", "jsonl", "--ledger", "L")
    assert workspace.run(*outer).status == 0
    workspace.jsonl("in/sub/a.jsonl", 9)
    inner = ("map", "functions:keep", "in/sub/*.jsonl", "--output", "out/sub", "--to", "jsonl", "--ledger", "I")
    assert workspace.run(*inner).status == 0
    before = workspace.files("out/sub")
    workspace.run(*outer, status=2, err="out/sub is the output folder of another job")
    assert workspace.files("out/sub") == before
    shutil.rmtree(workspace.root / "out/sub")  # as the page of restarts says
    workspace.succeed(*outer)
    assert "sub/a.jsonl-0000000000.jsonl" in workspace.files("out")


STAND = """
import os, time
def until_it_goes_on(record):
    if record["id"] == 7:
        open("reached", "w").close()
        while not os.path.exists("go-on"):
            time.sleep(0.05)
    return {**record, "by": "outer"}
"""


def work_behind(source: Path, other: Path) -> None:
    """Give a source a time with which the first run of a ledger works on it after another: its identity decides."""
    first = Source(str(other), other.stat().st_size, str(other.stat().st_mtime_ns)).id
    size, time = source.stat().st_size, source.stat().st_mtime_ns
    while rank("000001", Source(str(source), size, str(time)).id) < rank("000001", first):
        time -= 1
    os.utime(source, ns=(time, time))


@pytest.mark.parametrize("wrote_before", [False, True], ids=["before it wrote there", "after it wrote there"])
def test_a_folder_that_another_claims_below_a_running_job_is_told(workspace: Workspace, wrote_before: bool) -> None:
    """The shards of both have the same names there, so that each could write over those of the other."""
    (workspace.root / "stands.py").write_text(STAND)
    first, second = ("in/sub/b.jsonl", "in/sub/a.jsonl") if wrote_before else ("in/a.jsonl", "in/sub/a.jsonl")
    before = workspace.jsonl(first, 5)
    work_behind(workspace.jsonl(second, 5, first=5), before)
    shards = ("--to", "jsonl", "--workers", "1", "--audit=off")
    outer = ("map", "stands:until_it_goes_on", "in/**/*.jsonl", "--output", "out", "--ledger", "L", *shards)
    inner = ("map", "functions:keep", "in/sub/a.jsonl", "--output", "out/sub", "--ledger", "I", *shards)
    running = workspace.start(*outer)
    wait_for((workspace.root / "reached").exists, running)
    wait_for(lambda: bool(workspace.files("out")), running)
    workspace.run(*inner, status=2 if wrote_before else 0)
    (workspace.root / "go-on").touch()
    said = running.communicate(timeout=60)[0]
    if wrote_before:
        assert running.returncode == 0, said
    else:
        again = workspace.run(*outer)
        for status, text in ((running.returncode, said), (again.status, again.err)):
            assert status == 1, text
            assert f"delete {workspace.root}/out/sub/, and run the same command again" in text
        shutil.rmtree(workspace.root / "out/sub")
        assert workspace.run(*outer).status == 0
    assert [record["by"] for record in workspace.records("out")] == ["outer"] * 10


@pytest.mark.parametrize("change", [("--task-bytes", "100"), ("--pack", "100K"), ("--base", "."), ("--group", "key")])
def test_without_a_ledger_a_changed_option_meets_the_ledger_that_it_changed(
    workspace: Workspace, change: tuple[str, str]
) -> None:
    workspace.jsonl("in/a.jsonl", 30)
    assert workspace.run(*MAP).status == 0
    before = workspace.files("out")
    workspace.run(*MAP, *change, status=1, err="it belongs to a job that differs in")
    assert workspace.files("out") == before
    workspace.succeed(*MAP, *change, "--on-job-change", "restart")
    workspace.succeed(*MAP[:3], "--output", "fresh", "--to", "jsonl", *change)
    assert workspace.files("out") == workspace.files("fresh")


def test_what_surrounds_a_job_changes_neither_its_names_nor_its_identity(done: Workspace) -> None:
    before = done.files("out")
    env = {"PYTHONHASHSEED": "7", "LC_ALL": "C", "LANG": "C", "TZ": "Asia/Tokyo", "COLUMNS": "20"}
    command = ("sh", "-c", f'umask 077; exec {sys.executable} -m ledgerbeam "$@"', "sh")
    words = (*MAP, *SAME, "--workers", "1", "--json")
    ran = subprocess.run(
        [*command, *words], cwd=done.root, env={**done.env, **env}, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout)["skipped"] == 2
    assert done.files("out") == before


def test_another_working_folder_is_another_default_ledger_but_the_same_owner(workspace: Workspace) -> None:
    workspace.jsonl("in/a.jsonl", 5)
    assert workspace.run(*MAP).status == 0
    ((_, mark),) = marks(workspace).items()
    (workspace.root / "elsewhere").mkdir()
    elsewhere = make_workspace(workspace.root / "elsewhere")
    command = ("map", "functions:keep", "../in/*.jsonl", "--output", "../out", "--to", "jsonl", "--json")
    elsewhere.run(*command, status=2, err=f"--ledger {mark['url']}")
    ran = elsewhere.run(*command, "--ledger", str(mark["url"]))
    assert (ran.status, ran.json["skipped"]) == (0, 1)


def test_a_shard_that_a_killed_run_has_left_is_told_once_no_task_fails(done: Workspace) -> None:
    store = open_local_store(str(done.root / "L"), create=False)
    store.begin_run({"pid": 1, "runner": "local", "place": store.environment_id()})
    store.close()
    lost = done.root / "out/b.jsonl-0000000029.jsonl"
    shutil.copy(done.root / "out/b.jsonl-0000000000.jsonl", lost)
    told = f"found 1 shard that this ledger has not recorded, such as {lost.name}"
    bad = done.root / "in/c.jsonl"
    bad.write_text("{\n")
    assert told not in done.run(*MAP, *SAME, status=3).err
    bad.write_text('{"id": 99}\n')
    for _ in range(2):
        done.run(*MAP, *SAME, status=3, err=told)
    lost.unlink()
    done.run(*MAP, *SAME, status=0)


@pytest.mark.s3
def test_an_output_in_a_bucket_has_one_owner(workspace: Workspace, s3: S3Server) -> None:
    bucket = s3.bucket()
    store = s3fs.S3FileSystem(**s3.options, skip_instance_cache=True)
    workspace.jsonl("in/a.jsonl", 30)
    out = f"s3://{bucket}/out"
    command = ("map", "functions:keep", "in/*.jsonl", "--output", out, "--to", "jsonl", "--task-bytes")
    remote = ("--ledger", f"s3://{bucket}/L")
    assert workspace.run(*command, "200", *remote, env=s3.env).status == 0
    count = len(store.find(f"{bucket}/out"))
    workspace.run(*command, "1000", "--ledger", "M", env=s3.env, status=2, err=f"s3://{bucket}/L")
    workspace.run(*command, "1000", "--ledger", f"s3://{bucket}/M", env=s3.env, status=2)
    assert not store.exists(f"{bucket}/M/job.json")
    assert workspace.run(*command, "200", *remote, env=s3.env).status == 0
    workspace.succeed(*command, "1000", "--ledger", f"s3://{bucket}/M", "--existing", "replace", env=s3.env)
    store.invalidate_cache()
    assert len(store.find(f"{bucket}/out")) < count
    assert workspace.run(*command, "200", *remote, env=s3.env).status == 2
    assert Path(store.glob(f"{bucket}/out/_ledgerbeam/*")[0]).suffix == ".json"


@pytest.mark.s3
@pytest.mark.parametrize("more", [(), ("--existing", "replace")])
def test_a_ledger_whose_job_is_lost_is_refused_and_nothing_is_written(
    workspace: Workspace, s3: S3Server, more: tuple[str, ...]
) -> None:
    bucket = s3.bucket()
    store = s3fs.S3FileSystem(**s3.options, skip_instance_cache=True, use_listings_cache=False)
    workspace.jsonl("in/a.jsonl", 30)
    ledger = f"s3://{bucket}/L"
    command = (*MAP, "--output", f"s3://{bucket}/out", "--ledger", ledger)
    assert workspace.run(*command, env=s3.env).status == 0
    store.rm_file(f"{bucket}/L/job.json")
    before = store.find(bucket)
    for cache in ("", "another"):
        env = {**s3.env, "LEDGERBEAM_CACHE": str(workspace.root / cache)} if cache else s3.env
        for words in (command, ("ledger", "status", ledger)):
            ran = workspace.run(*words, *(more if words is command else ()), env=env, status=1)
            assert f"ledger {ledger}: job.json is missing" in ran.err
            assert "Restore it from a copy" in ran.err
    assert store.find(bucket) == before
    store.rm(f"{bucket}/L", recursive=True)  # as it says
    ran = workspace.run(*command, *more, env=s3.env, status=0 if more else 2)
    if not more:
        assert f"it belongs to an earlier ledger at {ledger}" in ran.err
        assert "--ledger" not in ran.err


@pytest.mark.s3
def test_an_older_copy_of_a_ledger_in_a_bucket_is_refused_where_it_ends(workspace: Workspace, s3: S3Server) -> None:
    bucket = s3.bucket()
    store = s3fs.S3FileSystem(**s3.options, skip_instance_cache=True, use_listings_cache=False)
    workspace.jsonl("in/a.jsonl", 30)
    ledger = f"s3://{bucket}/L"
    command = (*MAP, "--output", f"s3://{bucket}/out", "--ledger", ledger)
    assert workspace.run(*command, env=s3.env).status == 0
    before = set(store.find(f"{bucket}/L"))
    workspace.jsonl("in/b.jsonl", 30)
    assert workspace.run(*command, env=s3.env).status == 0
    for name in set(store.find(f"{bucket}/L")) - before:
        store.rm_file(name)
    ran = workspace.run(*command, env={**s3.env, "LEDGERBEAM_CACHE": str(workspace.root / "another")}, status=2)
    assert f"a newer copy of the ledger {ledger} has written here" in ran.err
    assert "Restore the newer one, or resume on the host" in ran.err
    assert "the host whose local copy is complete; otherwise\ngive another --output, or" in ran.err
    assert "--ledger" not in ran.err
    assert workspace.run(*command, env=s3.env).status == 0


DEEP = ("map", "functions:keep", "in/**/*.jsonl", "--output", "out", "--to", "jsonl", "--task-bytes", "300", "--json")
MISSING = "missing since earlier runs"


@pytest.fixture
def written(workspace: Workspace) -> Workspace:
    """A job that is complete: three sources, several shards each; one of them in a folder."""
    for number, name in enumerate(("a", "sub/b", "c")):
        workspace.jsonl(f"in/{name}.jsonl", 30, first=30 * number)
    workspace.succeed(*DEEP)
    return workspace


@pytest.mark.parametrize("gone", ["a.jsonl-0000000000.jsonl", "a.jsonl-0000000000.jsonl.idx", "sub", "."])
@pytest.mark.parametrize("pure", [False, True], ids=["compiled", "python"])
def test_what_is_gone_is_written_again(written: Workspace, gone: str, pure: bool) -> None:
    env = {"LEDGERBEAM_PURE_PYTHON": "1"} if pure else {}
    before = written.files("out")
    path = written.root / "out" / gone
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    lost = len(before) - len(written.files("out"))
    ran = written.run(*DEEP, env=env, status=0, err=f"{MISSING}: {lost:,} output")
    assert ran.json["skipped"] == (0 if gone == "." else 2)
    assert written.files("out") == before
    ran = written.run(*DEEP, env=env)
    assert ran.json["skipped"] == 3
    assert MISSING not in ran.err


@pytest.mark.parametrize("what", ["truncated", "foreign"])
def test_what_is_not_what_was_written_is_refused(written: Workspace, what: str) -> None:
    before = written.files("out")
    path = written.root / "out/sub/b.jsonl-0000000000.jsonl"
    size = path.stat().st_size
    if what == "truncated":
        os.truncate(path, 5)
    else:
        path.write_text("my own notes")
    found = path.stat().st_size
    words = (str(path), f"expected {size:,} bytes", f"found {found:,}", "move it away or delete it")
    written.run(*DEEP, status=1, err=words)
    assert path.stat().st_size == found
    path.rename(written.root / "aside")
    written.run(*DEEP, status=0)
    assert written.files("out") == before


def test_what_an_unfinished_source_has_written_counts_too(workspace: Workspace) -> None:
    workspace.jsonl("in/a.jsonl", 30)
    command = ("map", "functions:bad_seven", *DEEP[2:])
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
def test_outputs_of_a_source_that_is_gone_and_no_longer_known_are_told(written: Workspace, how: str) -> None:
    """Whoever reads the folder took them for outputs of the job; they may be all that is left of that source."""
    source, kept = written.root / "in/a.jsonl", written.files("out")
    gone = source.rename(written.root / "aside")
    assert written.run(*DEEP).status == 0
    assert written.files("out") == kept
    if how == "forgotten":
        ledger = str(next((written.root / ".ledgerbeam").iterdir()))
        assert "not in the last listing" in written.succeed("ledger", "forget", ledger, "*/a.jsonl").out
    else:
        (written.root / "out/a.jsonl-0000000000.jsonl").unlink()
    for _ in range(2):
        left = written.files("out")
        ran = written.run(*DEEP, status=3)
        assert ran.json["unrecorded"] == sum(name.startswith("a.jsonl-") for name in left)
        assert "a.jsonl-0000000" in ran.err
        assert "put the sources back" in ran.err
        assert written.files("out") == left
    for path in (written.root / "out").glob("a.jsonl-*"):
        path.unlink()
    ran = written.run(*DEEP)
    assert (ran.status, ran.json["unrecorded"]) == (0, 0)
    gone.rename(source)
    ran = written.run(*DEEP)
    assert (ran.status, ran.json["unrecorded"]) == (0, 0)
    assert written.files("out") == kept


def test_an_older_copy_of_the_outputs_leaves_no_shards_unseen(workspace: Workspace) -> None:
    """What the message says was done, and shards of the content before lay beside the right ones, with status 0."""
    source = workspace.jsonl("in/a.jsonl", 30)
    assert workspace.run(*DEEP).status == 0
    out, copy = workspace.root / "out", workspace.root / "copy"
    shutil.copytree(out, copy)
    workspace.jsonl("in/a.jsonl", 30, width=70)
    assert workspace.run(*DEEP).status == 0
    right = workspace.files("out")
    shutil.rmtree(out)
    copy.rename(out)
    ran = workspace.run(*DEEP)
    while ran.status == 1:
        (named,) = re.findall(r"(\S+): expected [\d,]+ bytes", ran.err)
        Path(named).unlink()
        ran = workspace.run(*DEEP)
    strange = workspace.files("out").keys() - right.keys()
    assert strange
    for _ in range(2):
        assert (ran.status, ran.json["unrecorded"]) == (3, len(strange))
        assert source.exists()
        ran = workspace.run(*DEEP)
    for name in strange:
        (out / name).unlink()
    assert workspace.run(*DEEP).status == 0
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
