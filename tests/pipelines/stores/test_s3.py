"""The main job with sources, indexes and outputs on an object store."""

from __future__ import annotations

import json
import time

import numpy as np
import pytest
import s3fs

from ledgerbeam.io.datasets.megatron import MegatronReader, encode_part
from tests.conftest import S3Server
from tests.pipelines.conftest import Workspace

pytestmark = pytest.mark.s3


def lines(first: int, count: int) -> bytes:
    return b"".join(json.dumps({"id": i, "text": f"text {i}"}).encode() + b"\n" for i in range(first, first + count))


@pytest.mark.slow
def test_map_is_killed_and_goes_on_where_it_was(workspace: Workspace, s3: S3Server) -> None:
    bucket = s3.bucket()
    store = s3fs.S3FileSystem(**s3.options, skip_instance_cache=True)
    for i in range(8):
        store.pipe_file(f"{bucket}/in/{i}.jsonl", lines(100 * i, 100))
    command = ("map", "functions:slow", f"s3://{bucket}/in/*.jsonl", "--to", "jsonl", "--task-bytes", "1000")
    workspace.run(*command, "--output", f"s3://{bucket}/clean", "--ledger", "C", env=s3.env, status=0)
    process = workspace.start(*command, "--output", f"s3://{bucket}/out", "--ledger", "L", env=s3.env)
    while not store.glob(f"{bucket}/out/*.jsonl"):
        store.invalidate_cache()
        assert process.poll() is None
        time.sleep(0.05)
    process.kill()
    process.communicate()
    workspace.run(*command, "--output", f"s3://{bucket}/out", "--ledger", "L", "--json", env=s3.env, status=0)
    store.invalidate_cache()
    names = {name.partition("/clean/")[2]: store.cat_file(name) for name in store.find(f"{bucket}/clean")}
    found = {name.partition("/out/")[2]: store.cat_file(name) for name in store.find(f"{bucket}/out")}
    marks = [sorted(name for name in files if name.startswith("_ledgerbeam/")) for files in (names, found)]
    assert list(map(len, marks)) == [1, 1]
    del names[marks[0][0]], found[marks[1][0]]
    assert found == names
    assert len(names) > 16
    assert store.exists(f"{bucket}/in/3.jsonl.idx")
    assert workspace.run("ledger", "verify", "L", env=s3.env).status == 0


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
def test_a_missing_bucket_of_what_is_written_is_found_before_anything_runs(
    workspace: Workspace, s3: S3Server, option: str
) -> None:
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
