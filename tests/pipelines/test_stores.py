"""The main job with sources, indexes, outputs and ledger on GCS and on Azure, on their emulators."""

from __future__ import annotations

import json
import signal

import pytest

from ledgerbeam.io import ObjectFolder
from tests.conftest import AzureServer, GcsServer
from tests.pipelines.conftest import Workspace
from tests.pipelines.test_s3 import lines
from tests.servers.process import wait_until

pytestmark = pytest.mark.stores

SOURCES = 6
RECORDS = 100


@pytest.mark.parametrize("name", ["gcs", "azure"])
def test_a_killed_job_goes_on_and_a_finished_one_is_skipped(
    request: pytest.FixtureRequest, workspace: Workspace, name: str
) -> None:
    server: GcsServer | AzureServer = request.getfixturevalue(name)
    place = server.place()
    objects = ObjectFolder(place, server.options)
    for number in range(SOURCES):
        assert objects.create(f"in/{number}.jsonl", lines(RECORDS * number, RECORDS))
    options = ("--storage-options", json.dumps(server.options))

    def command(output: str) -> tuple[str, ...]:
        to = ("--output", f"{place}/{output}", "--to", "jsonl", "--ledger", f"{place}/{output}-ledger")
        job = ("map", "functions:slow", f"{place}/in/*.jsonl", "--task-bytes", "1000", "--flush-interval", "0.2")
        return (*job, *to, *options, "--json")

    def contents(output: str) -> dict[str, bytes | None]:
        names = objects.names(output)
        return {name.partition("/")[2]: data for name, data in zip(names, objects.read(names), strict=True)}

    def env(host: str) -> dict[str, str]:
        return {"LEDGERBEAM_CACHE": str(workspace.root / host)}

    clean = workspace.run(*command("clean"), env=env("one"))
    assert clean.status == 0, clean.err
    assert len(contents("clean")) > 2 * SOURCES
    assert objects.exists("in/3.jsonl.idx")
    process = workspace.start(*command("out"), env=env("one"))
    assert wait_until(lambda: bool(objects.names("out")), seconds=60)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    ran = workspace.run(*command("out"), env=env("two"))
    assert ran.status == 0, ran.err
    assert ran.json["complete"]
    assert contents("out") == contents("clean")
    again = workspace.run(*command("out"), env=env("three"))
    assert again.status == 0, again.err
    assert again.json["tasks"]["done"] == 0
    assert workspace.run("ledger", "verify", f"{place}/out-ledger", *options, env=env("three")).status == 0
