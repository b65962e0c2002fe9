"""The main job with sources, indexes, outputs and ledger on GCS and on Azure, on their emulators."""

from __future__ import annotations

import json
import signal

import pytest

from ledgerbeam.io.storage.objects import ObjectFolder
from tests.conftest import AzureServer, GcsServer
from tests.pipelines.conftest import Workspace
from tests.pipelines.jobs.test_restart import wait_for
from tests.pipelines.stores.test_s3 import lines

pytestmark = [pytest.mark.stores, pytest.mark.slow]

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

    to = ("--output", f"{place}/out", "--to", "jsonl", "--ledger", f"{place}/L", "--flush-interval", "0.2")
    command = ("map", "functions:slow", f"{place}/in/*.jsonl", "--task-bytes", "1000", *to, *options)

    def env(host: str) -> dict[str, str]:
        return {"LEDGERBEAM_CACHE": str(workspace.root / host)}

    process = workspace.start(*command, env=env("one"))
    wait_for(lambda: bool(objects.names("out")), process)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    workspace.run(*command, env=env("two"), status=0)
    names = [name for name in objects.names("out") if name.endswith(".jsonl")]
    written = objects.read(names)
    records = [json.loads(line)["id"] for data in written for line in (data or b"").splitlines()]
    assert records == list(range(SOURCES * RECORDS))
    assert len(written) > 2 * SOURCES
    assert objects.exists("in/3.jsonl.idx")
    again = workspace.run(*command, env=env("three"))
    assert f"({SOURCES} skipped" in again.out + again.err
    assert objects.read(names) == written
    assert workspace.run("ledger", "verify", f"{place}/L", *options, env=env("three")).status == 0
