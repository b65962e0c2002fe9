"""Credentials given as storage options are in no file, ledger, report or message of a job, killed or not."""

from __future__ import annotations

import json
import pickle
import time
from pathlib import Path

import pytest

from ledgerbeam.ledger.opening import open_store
from tests.conftest import S3Server
from tests.pipelines.conftest import Workspace
from tests.pipelines.jobs.test_restart import wait_for
from tests.pipelines.stores.test_remote_ledger import Bucket
from tests.servers.s3 import PASSWORD

pytestmark = pytest.mark.s3


def files_with(secret: bytes, *folders: Path) -> list[str]:
    found = [path for folder in folders for path in folder.rglob("*") if path.is_file()]
    assert found
    return [str(path) for path in found if secret in path.read_bytes()]


@pytest.mark.slow
@pytest.mark.parametrize("remote", [False, True])
def test_credentials_are_written_nowhere(workspace: Workspace, s3: S3Server, tmp_path: Path, remote: bool) -> None:
    secret = PASSWORD.encode()
    bucket = Bucket(s3)
    cache = workspace.root / "cache"
    env = {"LEDGERBEAM_CACHE": str(cache)}
    ledger = f"{bucket.url}/L" if remote else "L"
    options = ("--storage-options", json.dumps(s3.options))
    command = [*bucket.map("out", "L"), *options]
    command[command.index("--ledger") + 1] = ledger
    process = workspace.start(*command, env=env)
    wait_for(lambda: bucket.has("out"), process)
    assert files_with(secret, workspace.root) == []  # while it runs: the run's own folder too
    process.kill()
    said = process.communicate()[0]
    ran = workspace.run(*command, env=env, status=0)
    time.sleep(0.2)
    looks = [
        workspace.run("ledger", action, ledger, *more, *options, env=env)
        for action, *more in (
            ("status",),
            ("status", "--json"),
            ("failures",),
            ("outputs", "--json"),
            ("export", "--output", "tables"),
            ("report", "--output", "report.html"),
        )
    ]
    wrong = workspace.run("ledger", "status", f"{bucket.url}/none", *options, env=env, status=1)
    for text in (said, ran.out, ran.err, *(look.out + look.err for look in (*looks, wrong))):
        assert PASSWORD not in text
    assert files_with(secret, workspace.root) == []
    if remote:
        assert [name for name, data in bucket.contents("L").items() if secret in data] == []


@pytest.mark.slow
def test_a_store_travels_with_the_options_that_it_needs(workspace: Workspace, s3: S3Server) -> None:
    """What is pickled goes to a worker's memory, and has to hold what the worker connects with; nothing stores it."""
    bucket = Bucket(s3)
    env = {"LEDGERBEAM_CACHE": str(workspace.root / "cache"), **s3.env}
    assert workspace.run(*bucket.map("out", "L", "functions:keep"), env=env).status == 0
    store = open_store(f"{bucket.url}/L", s3.options, create=False, read_only=True)
    assert pickle.loads(pickle.dumps(store)).status()["complete"]
    store.close()
