"""The main job on an object store that fails, throttles and hangs up; and what it asks of one that does not."""

from __future__ import annotations

import json

import pytest
import s3fs

from tests.pipelines.conftest import Workspace
from tests.servers.s3_proxy import Fault, S3Proxy, expired, throttled

pytestmark = [pytest.mark.s3, pytest.mark.slow]

SOURCES = 4
RECORDS = 200
MAP = ("map", "functions:upper", "--to", "jsonl", "--task-bytes", "2000")


@pytest.fixture
def bucket(faulty_s3: S3Proxy) -> str:
    name = faulty_s3.server.bucket()
    store = store_of(faulty_s3)
    for number in range(SOURCES):
        rows = ({"id": i, "text": f"text {i}"} for i in range(RECORDS * number, RECORDS * (number + 1)))
        store.pipe_file(f"{name}/in/{number}.jsonl", b"".join(json.dumps(row).encode() + b"\n" for row in rows))
    return name


def store_of(proxy: S3Proxy) -> s3fs.S3FileSystem:
    return s3fs.S3FileSystem(**proxy.server.options, skip_instance_cache=True)


def outputs(proxy: S3Proxy, folder: str) -> dict[str, bytes]:
    store = store_of(proxy)
    found = [name for name in store.find(folder) if "/_ledgerbeam/" not in name]
    return {name.removeprefix(folder): store.cat_file(name) for name in found}


def test_a_job_in_bad_weather_gives_the_bytes_of_a_clean_one(
    workspace: Workspace, faulty_s3: S3Proxy, bucket: str
) -> None:
    sources = f"s3://{bucket}/in/*.jsonl"
    clean = workspace.run(*MAP, sources, "--output", f"s3://{bucket}/clean", "--ledger", "C", env=faulty_s3.server.env)
    assert clean.status == 0, clean.err
    faulty_s3.faults += [
        throttled(chance=0.1, seed=1),
        Fault("reset", chance=0.05, seed=2),
        Fault("lost", chance=0.05, seed=3),
        Fault("truncated", chance=0.05, seed=4),
        Fault("status", status=500, code="InternalError", chance=0.05, seed=5),
    ]
    workspace.run(*MAP, sources, "--output", f"s3://{bucket}/out", "--ledger", "L", env=faulty_s3.env, status=0)
    assert all(fault.hits for fault in faulty_s3.faults)
    assert outputs(faulty_s3, f"{bucket}/out") == outputs(faulty_s3, f"{bucket}/clean")


def test_credentials_that_expire_in_the_middle_end_the_job_and_fresh_ones_finish_it(
    workspace: Workspace, faulty_s3: S3Proxy, bucket: str
) -> None:
    command = (*MAP, f"s3://{bucket}/in/*.jsonl", "--output", f"s3://{bucket}/out", "--ledger", "L")
    faulty_s3.faults.append(expired(methods=frozenset({"PUT"}), key=f"{bucket}/out/[23]*"))
    ended = workspace.run(*command, env=faulty_s3.env)
    assert ended.status in {1, 3}
    said = ended.err + workspace.run("ledger", "failures", "L").out
    assert "the credentials have expired" in said
    before = workspace.run("ledger", "status", "L", "--json").json["tasks"]["done"]
    faulty_s3.clear()
    again = workspace.run(*command, "--json", env=faulty_s3.env, status=0)
    assert faulty_s3.count("PUT", f"{bucket}/out/*.jsonl") == again.json["tasks"]["done"] - before
    written = outputs(faulty_s3, f"{bucket}/out")
    lines = [line for name, data in written.items() if name.endswith(".jsonl") for line in data.splitlines()]
    rows = [json.loads(line) for line in lines]
    assert sorted(row["id"] for row in rows) == list(range(SOURCES * RECORDS))


def test_a_task_costs_one_request_for_its_index_one_for_its_data_and_one_for_each_output(
    workspace: Workspace, faulty_s3: S3Proxy, bucket: str
) -> None:
    assert workspace.run("index", f"s3://{bucket}/in/*.jsonl", env=faulty_s3.env).status == 0
    faulty_s3.clear()
    ran = workspace.run(
        *MAP,
        f"s3://{bucket}/in/*.jsonl",
        "--output",
        f"s3://{bucket}/out",
        "--ledger",
        "L",
        "--json",
        env=faulty_s3.env,
    )
    assert ran.status == 0, ran.err
    tasks = ran.json["tasks"]["done"]
    assert tasks >= 2 * SOURCES
    assert faulty_s3.count("GET", f"{bucket}/in/*.jsonl") == tasks
    # And one for each source, whose tasks are planned from its index.
    assert faulty_s3.count("GET", f"{bucket}/in/*.idx") == tasks + SOURCES
    assert faulty_s3.count("PUT", f"{bucket}/out/*.jsonl") == tasks
    assert faulty_s3.count("PUT", f"{bucket}/out/*.idx") == tasks
