"""The main job with sources, indexes and outputs on an object store."""

from __future__ import annotations

import json

import numpy as np
import pytest
import s3fs

from ledgerbeam.io.datasets.megatron import MegatronReader, encode_part
from tests.conftest import S3Server
from tests.pipelines.conftest import Workspace
from tests.servers.s3_proxy import Fault, S3Proxy, expired, throttled

pytestmark = pytest.mark.s3


def lines(first: int, count: int) -> bytes:
    return b"".join(json.dumps({"id": i, "text": f"text {i}"}).encode() + b"\n" for i in range(first, first + count))


@pytest.mark.slow
def test_index_show_and_verify_a_bucket_in_place(workspace: Workspace, s3: S3Server) -> None:
    bucket = s3.bucket()
    store = s3fs.S3FileSystem(**s3.options, skip_instance_cache=True)
    store.pipe_file(f"{bucket}/a.jsonl", lines(0, 1000))
    ran = workspace.run("index", f"s3://{bucket}/*.jsonl", "--task-bytes", "5000", "--json", env=s3.env, status=0)
    assert ran.json["tasks"]["done"] > 3
    assert len(np.frombuffer(store.cat_file(f"{bucket}/a.jsonl.idx"), "<u8")) == 1001
    assert workspace.run("verify", f"s3://{bucket}/*.jsonl", "--deep", env=s3.env).status == 0
    assert '"id":999' in workspace.run("show", f"s3://{bucket}/a.jsonl", "-1", env=s3.env).out


def test_a_missing_bucket_is_one_clear_line(workspace: Workspace, s3: S3Server) -> None:
    ran = workspace.run("index", "s3://no-such-bucket-here/a.jsonl", env=s3.env, status=1)
    assert "s3://no-such-bucket-here/a.jsonl" in ran.err
    assert "Traceback" not in ran.err


@pytest.mark.slow
@pytest.mark.parametrize("option", ["--output", "--ledger", "--index-root"])
def test_a_missing_bucket_of_outputs_is_found_at_once(workspace: Workspace, s3: S3Server, option: str) -> None:
    workspace.jsonl("in/a.jsonl", 5)
    values = {"--output": "out", "--ledger": "L", "--index-root": "indexes", option: "s3://no-such-bucket-here/x"}
    words = [word for pair in values.items() for word in pair]
    ran = workspace.run("map", "functions:keep", "in/*.jsonl", "--to", "jsonl", *words, env=s3.env, status=1)
    assert ran.err.count("no-such-bucket-here") >= 1
    assert len(ran.err.splitlines()) == 1, ran.err
    assert not (workspace.root / "L").exists()
    assert workspace.files("indexes") == {}


@pytest.mark.slow
def test_texts_of_a_bucket_become_one_dataset_in_it(workspace: Workspace, s3: S3Server) -> None:
    bucket = s3.bucket()
    store = s3fs.S3FileSystem(**s3.options, skip_instance_cache=True)
    for i in range(3):
        store.pipe_file(f"{bucket}/in/{i}.jsonl", lines(100 * i, 100))
    command = (
        *("tokenize", f"s3://{bucket}/in/*.jsonl", "--output", f"s3://{bucket}/out/all", "--tokenizer", "bytes"),
        *("--task-bytes", "1000", "--ledger", f"s3://{bucket}/L", "--json"),
    )
    ran = workspace.run(*command, env=s3.env, status=0)
    assert ran.json["datasets"][0]["parts"] > 6
    expected = encode_part([[list(f"text {i}".encode())] for i in range(300)], np.uint16, eod=256)
    assert (store.cat_file(f"{bucket}/out/all.bin"), store.cat_file(f"{bucket}/out/all.idx")) == expected
    again = workspace.run(*command, "--drop-parts", env=s3.env)
    assert "up to date" in again.err
    store.invalidate_cache()
    *left, mark = store.find(f"{bucket}/out")
    assert left == [f"{bucket}/out/all.bin", f"{bucket}/out/all.idx"]
    assert mark.startswith(f"{bucket}/out/all.parts/_ledgerbeam/")
    store.pipe_file(f"{bucket}/in/1.jsonl", lines(0, 1))
    workspace.run(*command, env=s3.env, status=0)
    with MegatronReader(f"s3://{bucket}/out/all", s3.options) as reader:
        assert len(reader) == 201
        assert bytes(reader[100][:-1].astype(np.uint8)) == b"text 0"


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


@pytest.mark.slow
def test_a_job_in_bad_weather_gives_the_clean_bytes(workspace: Workspace, faulty_s3: S3Proxy, bucket: str) -> None:
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


@pytest.mark.slow
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


@pytest.mark.slow
def test_a_task_costs_one_request_for_its_index_one_for_its_data_and_one_for_each_output(
    workspace: Workspace, faulty_s3: S3Proxy, bucket: str
) -> None:
    assert workspace.run("index", f"s3://{bucket}/in/*.jsonl", env=faulty_s3.env).status == 0
    faulty_s3.clear()
    command = (*MAP, f"s3://{bucket}/in/*.jsonl", "--output", f"s3://{bucket}/out", "--ledger", "L", "--json")
    ran = workspace.run(*command, "--audit", "off", env=faulty_s3.env, status=0)  # an audit reads again
    tasks = ran.json["tasks"]["done"]
    assert tasks >= 2 * SOURCES
    assert faulty_s3.count("GET", f"{bucket}/in/*.jsonl") == tasks
    # And one for each source, whose tasks are planned from its index.
    assert faulty_s3.count("GET", f"{bucket}/in/*.idx") == tasks + SOURCES
    assert faulty_s3.count("PUT", f"{bucket}/out/*.jsonl") == tasks
    assert faulty_s3.count("PUT", f"{bucket}/out/*.idx") == tasks
