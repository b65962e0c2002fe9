"""`ledger outputs`, `export` and `verify`: the outputs of a job, for people and programs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ledgerbeam.io.storage import client
from ledgerbeam.ledger import Job, Output, Source
from ledgerbeam.ledger.model.accounts import RecordCounts
from ledgerbeam.ledger.model.identity import content_checksum
from ledgerbeam.ledger.model.rows import Failure, Leaf
from ledgerbeam.ledger.opening import open_local_store
from ledgerbeam.pipelines.cli.ledger import write as export
from ledgerbeam.pipelines.report import tables
from tests.conftest import S3Server
from tests.pipelines.conftest import Workspace, make_workspace

COUNTS = RecordCounts(66, 60, {"short": 2, "a\udcff": 1}, {"bad": 3}, {"": 50, "de": 10})
TABLES = ["counts", "durations", "failures", "history", "outputs", "runs", "sources"]


def write_job(workspace: Workspace, sources: int = 3, output: str | None = None, options: Any = None) -> None:
    """Make a complete ledger with three spans per source, and its outputs, without Beam."""
    root = output or str(workspace.root / "out")
    store = open_local_store(str(workspace.root / "L"), create=True)
    store.open_job(Job("map", {"output": root}))
    run = store.begin_run({"pid": 1, "host": "h", "command": ["ledgerbeam", "map", "f:g", "in/*"]})
    made = [Source(f"/in/{number}.jsonl", 100 + number, "v") for number in range(sources)]
    store.register(made)
    for number, source in enumerate(made):
        for ordinal in range(3):
            name, content = f"{number}-{ordinal}.jsonl", f"{number} {ordinal}\n".encode() * 50
            client.filesystem(root, options).pipe_file(f"{root}/{name}", content)
            shard = Output(name, len(content), content_checksum([content]), 50, 10 * ordinal)
            leaf = Leaf(source.id, ((ordinal, 3),), outputs=(shard,), records=60, bytes=99, seconds=0.5)
            store.commit([replace(leaf, counts=COUNTS) if ordinal == 1 else leaf])
    store.note_listing(run, listed=sources, finished=True)
    store.end_run(run, "done")
    store.close()


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    workspace = make_workspace(tmp_path_factory.mktemp("outputs"))
    (workspace.root / "out").mkdir()
    write_job(workspace)
    return workspace


def lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_outputs_are_listed_in_order_with_what_is_known_of_them(job: Workspace) -> None:
    rows = [line.split("\t") for line in job.run("ledger", "outputs", "L").out.splitlines()]
    assert [row[0] for row in rows] == [f"{source}-{span}.jsonl" for source in range(3) for span in range(3)]
    content = (job.root / "out/1-2.jsonl").read_bytes()
    assert rows[5] == ["1-2.jsonl", "50", str(len(content)), content_checksum([content]), "/in/1.jsonl"]


def test_outputs_as_json_say_whether_the_job_is_complete(job: Workspace, workspace: Workspace) -> None:
    found = job.run("ledger", "outputs", "L", "--json").json
    assert found["complete"] is True
    assert found["output"] == str(job.root / "out")
    assert [row["name"] for row in found["outputs"]] == [f"{s}-{n}.jsonl" for s in range(3) for n in range(3)]
    assert found["outputs"][0]["source"] == "/in/0.jsonl"
    store = open_local_store(str(workspace.root / "L"), create=True)
    store.close()
    assert workspace.run("ledger", "outputs", "L", "--json").json == {"complete": False, "output": None, "outputs": []}


@pytest.mark.parametrize("form", ["jsonl", "parquet"])
def test_every_table_is_exported_to_a_file_of_its_own(job: Workspace, tmp_path: Path, form: str) -> None:
    ran = job.run("ledger", "export", "L", "--output", tmp_path / "x", "--format", form, "--json", status=0)
    assert sorted(path.name for path in (tmp_path / "x").iterdir()) == [f"{table}.{form}" for table in TABLES]
    rows = {file["table"]: file["rows"] for file in ran.json["files"]}
    assert rows == {
        "counts": 3,
        "sources": 3,
        "outputs": 9,
        "failures": 0,
        "runs": 1,
        "history": rows["history"],
        "durations": 1,
    }


@pytest.mark.slow
@pytest.mark.parametrize("form", ["jsonl", "parquet"])
def test_an_export_replaces_an_earlier_one_of_its_table_and_no_other_file(
    job: Workspace, tmp_path: Path, form: str
) -> None:
    words = ("ledger", "export", "L", "--format", form, "--output")
    for _ in range(2):
        job.run(*words, tmp_path, status=0)
    before = {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    mine = tmp_path / f"outputs.{form}"
    if form == "jsonl":
        mine.write_text('{"name": "mine", "records": 1}\n')
    else:
        pq.write_table(pa.table({"name": ["mine"]}), mine)
    content = mine.read_bytes()
    for more in ((tmp_path,), (mine, "--table", "outputs")):
        job.run(*words, *more, status=2, err=f"{mine}: expected no file, or an earlier export of this table")
    assert mine.read_bytes() == content
    del before[mine.name]
    assert {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir() if path != mine} == before
    for other in ("sources", "counts"):
        job.run(*words, tmp_path / f"{other}.{form}", "--table", "failures", status=2)


def test_parquet_holds_what_json_lines_hold_in_types(job: Workspace, tmp_path: Path) -> None:
    for form in ("jsonl", "parquet"):
        assert job.run("ledger", "export", "L", "--output", tmp_path, "--format", form).status == 0
    for name in TABLES:
        table = pq.read_table(tmp_path / f"{name}.parquet")
        assert [as_json(row) for row in table.to_pylist()] == lines(tmp_path / f"{name}.jsonl"), name
    types = {field.name: str(field.type) for field in pq.read_schema(tmp_path / "sources.parquet")}
    assert types["completed"] == "timestamp[ms, tz=UTC]"
    assert types["size"] == "int64"
    assert types["task_seconds"] == "double"
    source = lines(tmp_path / "sources.jsonl")[0]
    assert (source["state"], source["tasks"], source["records"], source["task_seconds"]) == ("complete", 3, 180, 1.5)
    written = {"": 170, "de": 10}
    became = {
        "read": 186,
        "kept": 180,
        "dropped": {"a\udcff": 1, "short": 2},
        "rejected": {"bad": 3},
        "written": written,
    }
    assert {name: source[name] for name in became} == became
    task = lines(tmp_path / "counts.jsonl")[0]
    assert {name: task[name] for name in became} == COUNTS.as_dict()
    assert (task["source_id"], len(task["node"])) == (source["source_id"], 32)
    assert {row["route"] for row in lines(tmp_path / "outputs.jsonl")} == {""}
    assert types["dropped"].startswith("map<string, int64")


def as_json(row: dict[str, Any]) -> dict[str, Any]:
    def plain(value: Any) -> Any:
        if isinstance(value, list):
            return {name.replace("\\xff", "\udcff"): number for name, number in value}
        if not isinstance(value, datetime):
            return value
        return value.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")

    return {name: plain(value) for name, value in row.items()}


def test_one_table_goes_to_one_file_in_row_groups_of_bounded_size(
    job: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "BLOCK_ROWS", 4)
    store = open_local_store(str(job.root / "L"), create=False, read_only=True)
    with open(tmp_path / "x", "wb") as file:
        rows = export._write_parquet(tables.TABLES["outputs"], store, file, lambda *_: None)
    assert rows == 9
    groups = pq.ParquetFile(tmp_path / "x").metadata
    assert [groups.row_group(i).num_rows for i in range(groups.num_row_groups)] == [4, 4, 1]


def test_an_export_appears_whole_or_not_at_all(job: Workspace, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    ran = job.run("ledger", "export", "L", "--output", tmp_path / "file" / "x.jsonl", "--table", "sources", status=1)
    assert "Traceback" not in ran.err
    job.run("ledger", "export", "L", "--output", f"{tmp_path}/", "--table", "sources", status=2, err="found a folder")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.slow
def test_names_that_are_not_utf_8_go_through_every_command(workspace: Workspace) -> None:
    url = os.fsdecode(b"/in/caf\xe9.jsonl")
    name = os.fsdecode(b"caf\xe9.jsonl")
    (workspace.root / "out").mkdir()
    (workspace.root / "out" / name).write_bytes(b"{}\n")
    store = open_local_store(str(workspace.root / "L"), create=True)
    store.open_job(Job("map", {"output": str(workspace.root / "out")}))
    source = Source(url, 1, "v")
    store.register([source])
    shard = Output(name, 3, content_checksum([b"{}\n"]), 1)
    store.commit([Leaf(source.id, ((0, 2),), outputs=(shard,))], [Failure(source.id, ((1, 2),), url, "E", f"{url}: E")])
    store.close()
    assert workspace.run("ledger", "verify", "L").status == 0
    assert workspace.run("ledger", "failures", "L").status == 0
    assert workspace.run("ledger", "status", "L", "--check-sources", "--json").json["changed_since"]["missing"] == 1
    assert b"caf\xe9.jsonl\t1\t3\t" in printed(workspace, "outputs")
    assert b"missing: /in/caf\xe9.jsonl" in printed(workspace, "status", "--check-sources")
    assert workspace.run("ledger", "failures", "L", "--json").json["failures"][0]["source"] == url
    assert workspace.run("ledger", "outputs", "L", "--json").json["outputs"][0]["name"] == name
    for form in ("jsonl", "parquet"):
        assert workspace.run("ledger", "export", "L", "--output", "x", "--format", form).status == 0
    assert lines(workspace.root / "x/outputs.jsonl")[0]["name"] == name
    assert pq.read_table(workspace.root / "x/outputs.parquet").to_pylist()[0]["name"] == "caf\\xe9.jsonl"


def printed(workspace: Workspace, action: str, *options: str) -> bytes:
    command = [sys.executable, "-m", "ledgerbeam", "ledger", action, "L", *options]
    return subprocess.run(command, cwd=workspace.root, env=workspace.env, capture_output=True, check=True).stdout


def spoil(workspace: Workspace) -> None:
    out = workspace.root / "out"
    (out / "0-0.jsonl").unlink()
    (out / "1-1.jsonl").write_bytes(b"short")
    content = bytearray((out / "2-2.jsonl").read_bytes())
    content[100] ^= 1
    (out / "2-2.jsonl").write_bytes(content)


def test_verify_names_every_output_that_is_not_as_recorded(workspace: Workspace) -> None:
    (workspace.root / "out").mkdir()
    write_job(workspace)
    whole = workspace.run("ledger", "verify", "L", "--json")
    assert (whole.status, whole.json["ok"], whole.json["outputs"]) == (0, True, 9)
    spoil(workspace)
    found = workspace.run("ledger", "verify", "L", "--json", status=1)
    problems = {problem["output"].rpartition("/")[2]: problem["problem"] for problem in found.json["problems"]}
    assert sorted(problems) == ["0-0.jsonl", "1-1.jsonl", "2-2.jsonl"]
    assert "found 5" in problems["1-1.jsonl"]
    assert "checksum" in problems["2-2.jsonl"]
    quick = workspace.run("ledger", "verify", "L", "--sizes-only", "--json", status=1)
    assert sorted(p["output"][-9:] for p in quick.json["problems"]) == ["0-0.jsonl", "1-1.jsonl"]
    text = workspace.run("ledger", "verify", "L").out
    for said in ("9 outputs", "3 problems", "ledgerbeam ledger forget L /in/2.jsonl"):
        assert said in text


@pytest.mark.slow
@pytest.mark.s3
def test_outputs_in_a_bucket_are_verified_and_tables_exported_to_it(workspace: Workspace, s3: S3Server) -> None:
    bucket = s3.bucket()
    write_job(workspace, sources=20, output=f"s3://{bucket}/out", options=s3.options)
    assert workspace.run("ledger", "verify", "L", env=s3.env).status == 0
    store = client.filesystem("s3://", s3.options)
    store.pipe_file(f"{bucket}/out/7-1.jsonl", b"x")
    store.rm_file(f"{bucket}/out/9-0.jsonl")
    found = workspace.run("ledger", "verify", "L", "--json", env=s3.env, status=1)
    assert sorted(p["output"] for p in found.json["problems"]) == [
        f"s3://{bucket}/out/{name}.jsonl" for name in ("7-1", "9-0")
    ]
    target = f"s3://{bucket}/tables/outputs.parquet"
    ran = workspace.run(
        *("ledger", "export", "L", "--format", "parquet", "--table", "outputs"), "--output", target, env=s3.env
    )
    assert ran.status == 0, ran.err
    (workspace.root / "got").write_bytes(store.cat_file(target))
    assert pq.read_table(workspace.root / "got").num_rows == 60
