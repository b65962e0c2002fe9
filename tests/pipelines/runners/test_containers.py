"""A job that goes on in a container of another name: locks tell what lives, and nothing out of date is left."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
import s3fs

from tests.conftest import S3Server
from tests.pipelines.conftest import Workspace, make_workspace
from tests.pipelines.jobs.test_restart import wait_for

pytestmark = pytest.mark.long

MAP = ("--to", "jsonl", "--task-bytes", "2000", "--flush-interval", "0.2", "--workers", "1")
EDITED = ("--on-job-change", "accept")
KEEP = ("map", "functions:keep", "in/*.jsonl", "--output", "out", "--ledger", "L", *MAP)
SLOW_KEEP = "import time\ndef keep(record):\n    time.sleep(0.05)\n    return record\n"
NAMED = 'hostname "$0" && exec "$@"'


@functools.cache
def container() -> tuple[str, ...]:
    """Return the command before one that runs it under another host name, given as the first argument."""
    own_user = () if os.geteuid() == 0 else ("--user", "--map-root-user")
    prefix = ("unshare", *own_user, "--uts", "sh", "-c", NAMED)
    try:
        named = subprocess.run([*prefix, "test-name", "uname", "-n"], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("needs unshare(1) to run under another host name")
    if named.stdout != "test-name\n":
        pytest.skip(f"may not run under another host name: {named.stderr}")
    return prefix


def on(host: str, workspace: Workspace) -> Workspace:
    """Return the same folder, in which commands run under another host name."""
    return dataclasses.replace(workspace, prefix=(*container(), host))


def run(workspace: Workspace, host: str, *command: str, status: int = 0, env: Mapping[str, str] | None = None) -> str:
    ran = on(host, workspace).run(*command, status=status, env=env)
    return ran.out + ran.err


def kill(process: subprocess.Popen[str]) -> None:
    assert process.poll() is None, process.communicate()[0]
    process.kill()
    process.communicate()


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    workspace = make_workspace(tmp_path_factory.mktemp("clean"))
    workspace.jsonl("in/a.jsonl", 20)
    workspace.jsonl("in/b.jsonl", 600)
    assert workspace.run(*KEEP).status == 0
    return workspace.files("out")


def test_a_killed_run_of_another_container_is_known_as_dead_and_its_leavings_go(
    workspace: Workspace, clean: dict[str, bytes]
) -> None:
    workspace.jsonl("in/a.jsonl", 600)
    run(workspace, "one", *KEEP)
    workspace.jsonl("in/a.jsonl", 20)
    workspace.jsonl("in/b.jsonl", 600)
    (workspace.root / "functions.py").write_text(SLOW_KEEP)
    process = on("one", workspace).start(*KEEP, *EDITED)
    wait_for(lambda: any((workspace.root / "out").glob("b.jsonl-*")), process)
    state = json.loads(run(workspace, "two", "ledger", "status", "L", "--json"))["runs"][-1]["state"]
    assert state == "running", "from another container it can be seen that it lives"
    kill(process)
    assert json.loads(run(workspace, "two", "ledger", "status", "L", "--json"))["runs"][-1]["state"] == "killed"
    (workspace.root / "functions.py").write_text("def keep(record):\n    return record\n")
    said = run(workspace, "two", *KEEP, *EDITED)
    assert "may still be at work" not in said
    assert workspace.files("out") == clean


def test_a_run_beside_a_living_one_does_not_end_as_if_nothing_were_left(
    workspace: Workspace, clean: dict[str, bytes]
) -> None:
    workspace.jsonl("in/a.jsonl", 600)
    run(workspace, "one", *KEEP)
    workspace.jsonl("in/a.jsonl", 20)
    workspace.jsonl("in/b.jsonl", 600)
    living = subprocess.Popen(
        [sys.executable, "-c", LIVING, str(workspace.root / "L")], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert living.stdout is not None
    assert living.stdout.readline() == b"entered\n"
    said = run(workspace, "two", *KEEP, status=3)
    assert "another run is at work on this ledger" in said
    assert "because another run may still use this ledger" in said
    assert "run the same command again" in said
    living.kill()
    living.communicate()
    assert workspace.files("out") != clean
    run(workspace, "two", *KEEP)
    assert workspace.files("out") == clean


LIVING = """
import sys
from ledgerbeam.ledger.opening import open_local_store
from ledgerbeam.ledger.opening import run_folders

store = open_local_store(sys.argv[1], create=False)
with run_folders(store).enter("000077"):
    print("entered", flush=True)
    sys.stdin.read()
"""


@pytest.mark.s3
def test_a_remote_ledger_that_another_container_was_killed_on(
    workspace: Workspace, s3: S3Server, tmp_path: Path
) -> None:
    store = s3fs.S3FileSystem(**s3.options, skip_instance_cache=True, use_listings_cache=False)
    bucket = f"s3://{s3.bucket()}"
    one, two = ({**s3.env, "LEDGERBEAM_CACHE": str(tmp_path / name)} for name in ("one", "two"))

    def put(name: str, records: int) -> None:
        store.pipe_file(f"{bucket}/in/{name}.jsonl", workspace.jsonl("made.jsonl", records).read_bytes())

    def outputs(folder: str) -> dict[str, bytes]:
        store.invalidate_cache()
        root = f"{bucket.removeprefix('s3://')}/{folder}/"
        found = {path.removeprefix(root): path for path in store.find(root)}
        # The owner's mark names the ledger, which is another one.
        return {name: store.cat_file(path) for name, path in found.items() if not name.startswith("_ledgerbeam/")}

    def keep(folder: str) -> tuple[str, ...]:
        places = ("--output", f"{bucket}/{folder}", "--ledger", f"{bucket}/{folder}-ledger")
        return ("map", "functions:keep", f"{bucket}/in/*.jsonl", *places, *MAP, *EDITED)

    put("a", 600)
    run(workspace, "host", *keep("out"), env=one)
    put("a", 20)
    put("b", 600)
    functions = (workspace.root / "functions.py").read_text()
    (workspace.root / "functions.py").write_text(SLOW_KEEP)
    process = on("host", workspace).start(*keep("out"), env=one)
    wait_for(lambda: any(name.startswith("b.jsonl") for name in outputs("out")), process)
    kill(process)
    (workspace.root / "functions.py").write_text(functions)
    run(workspace, "host", *keep("clean"), env=two)
    clean = outputs("clean")
    # The same host name, and another container: nothing tells whether that run lives.
    said = run(workspace, "host", *keep("out"), status=3, env=two)
    assert "an older run may still be at work" in said
    assert "because another run may still use this ledger" in said
    assert clean.items() < outputs("out").items()
    run(workspace, "host", *keep("out"), env=two)
    assert outputs("out") == clean
