"""`ledger outputs`, `export` and `verify`: the outputs of a job, for people and programs."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ledgerbeam.io.storage import client
from ledgerbeam.ledger import Job, LedgerStore, Output, OutputShard, Source
from ledgerbeam.ledger.model.accounts import RecordCounts
from ledgerbeam.ledger.model.identity import content_checksum
from ledgerbeam.ledger.model.rows import Failure, Leaf
from ledgerbeam.ledger.opening import open_local_store
from ledgerbeam.pipelines.cli.ledger import write as export
from ledgerbeam.pipelines.datasets.megatron import MergedParts, NotedDataset
from ledgerbeam.pipelines.outputs.published import PublishedFile
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


def test_every_table_is_exported_and_parquet_holds_what_json_lines_hold(job: Workspace, tmp_path: Path) -> None:
    for form in ("jsonl", "parquet"):
        ran = job.run("ledger", "export", "L", "--output", tmp_path, "--format", form, "--json", status=0)
        rows = {file["table"]: file["rows"] for file in ran.json["files"]}
        assert rows.pop("history") > 0
        assert rows == {"counts": 3, "sources": 3, "outputs": 9, "failures": 0, "runs": 1, "durations": 1}
    assert len(list(tmp_path.iterdir())) == 2 * len(TABLES)
    for name in TABLES:
        table = pq.read_table(tmp_path / f"{name}.parquet")
        assert [as_json(row) for row in table.to_pylist()] == lines(tmp_path / f"{name}.jsonl"), name
    types = {field.name: str(field.type) for field in pq.read_schema(tmp_path / "sources.parquet")}
    assert types["completed"] == "timestamp[ms, tz=UTC]"
    assert types["size"] == "int64"
    assert types["task_seconds"] == "double"
    source = lines(tmp_path / "sources.jsonl")[0]
    assert (source["state"], source["tasks"], source["records"], source["task_seconds"]) == ("complete", 3, 180, 1.5)
    became = COUNTS.as_dict() | {"read": 186, "kept": 180, "written": {"": 170, "de": 10}}
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
        rows = sum(export._write_parquet(tables.TABLES["outputs"], store, file))
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
def test_names_that_are_not_utf_8_are_printed_as_they_are_and_escaped_in_parquet(workspace: Workspace) -> None:
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
    assert b"caf\xe9.jsonl\t1\t3\t" in printed(workspace, "outputs")
    assert b"missing: /in/caf\xe9.jsonl" in printed(workspace, "status", "--check-sources")
    assert workspace.run("ledger", "failures", "L", "--json").json["failures"][0]["source"] == url
    assert workspace.run("ledger", "outputs", "L", "--json").json["outputs"][0]["name"] == name
    for form, told in (("jsonl", name), ("parquet", "caf\\xe9.jsonl")):
        path = workspace.root / f"outputs.{form}"
        workspace.run("ledger", "export", "L", "--table", "outputs", "--output", path, "--format", form, status=0)
        rows = lines(path) if form == "jsonl" else pq.read_table(path).to_pylist()
        assert rows[0]["name"] == told


def printed(workspace: Workspace, action: str, *options: str) -> bytes:
    command = [sys.executable, "-m", "ledgerbeam", "ledger", action, "L", *options]
    return subprocess.run(command, cwd=workspace.root, env=workspace.env, capture_output=True, check=True).stdout


def test_verify_ends_with_the_status_of_what_it_found(workspace: Workspace) -> None:
    (workspace.root / "out").mkdir()
    write_job(workspace)
    assert workspace.run("ledger", "verify", "L", "--json", status=0).json["outputs"] == 9
    (workspace.root / "out/0-0.jsonl").unlink()
    assert "9 outputs" in workspace.run("ledger", "verify", "L", "--sizes-only", status=1).out


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


verify = importlib.import_module("ledgerbeam.pipelines.cli.ledger.checks")

SECRET = "memory://me:hunter2@host/verify"
HIDDEN = "memory://me:***@host/verify"
FINE = {"outputs": 3, "bytes": 9, "datasets": 0, "metadata": 0, "problems": [], "ok": True}


class Place:
    """A ledger of three outputs of one source, and recorded metadata files."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.root, self._capsys = root, capsys
        self.store: LedgerStore = open_local_store(str(root / "L"), create=True)
        self.store.open_job(Job("map", {"output": str(root)}))
        self.metadata: list[PublishedFile] = []
        self.datasets: list[NotedDataset] = []
        monkeypatch.setattr(verify, "published_files", lambda store, options: self.metadata)
        monkeypatch.setattr(MergedParts, "noted", staticmethod(lambda store, options: self.datasets))
        self.record("/in/a*.jsonl", "a", "b", "c")

    def record(self, url: str, *names: str) -> None:
        source = Source(url, 10, "1")
        outputs = tuple(Output(name, 3, content_checksum([b"abc"]), 1, 0) for name in names)
        self.store.register([source])
        self.store.commit([Leaf(source.id, (), "published", outputs, len(names), 10)])
        for name in names:
            if "://" not in name:
                (self.root / name).write_bytes(b"abc")

    def problems(self, *rows: tuple[str, str | None, str]) -> dict[str, Any]:
        """Return the JSON of problems, each an output, its source, and what is wrong."""
        found = [{"output": f"{self.root}/{name}", "source": source, "problem": why} for name, source, why in rows]
        return FINE | {"problems": found, "ok": False}

    def verify(self, *, sizes_only: bool = False) -> tuple[int, list[str], Any]:
        """Return the exit status, the printed lines, and the printed JSON."""
        printed = []
        statuses = []
        for as_json in (False, True):
            args = argparse.Namespace(url="L", storage_options={}, sizes_only=sizes_only, json=as_json)
            statuses.append(verify.verify(self.store, args))
            printed.append(self._capsys.readouterr().out)
        assert statuses[0] == statuses[1]
        return statuses[0], printed[0].splitlines(), json.loads(printed[1])


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Place]:
    made = Place(tmp_path, monkeypatch, capsys)
    yield made
    made.store.close()


def test_what_is_as_it_was_recorded_is_counted(place: Place) -> None:
    for sizes_only in (False, True):
        assert place.verify(sizes_only=sizes_only) == (0, ["3 outputs, 9 bytes, 0 problems"], FINE)
    (place.root / "wids.json").write_bytes(b"abc")
    place.metadata = [PublishedFile(f"{place.root}/wids.json", "webdataset", 3, content_checksum([b"abc"]))]
    counted = ["3 outputs, 9 bytes, 1 file of metadata, 0 problems"]
    assert place.verify() == (0, counted, FINE | {"metadata": 1})
    place.metadata *= 2
    assert "2 files of metadata, 0 problems" in place.verify()[1][0]


def test_an_output_that_is_not_as_recorded_is_told_with_what_to_do(place: Place) -> None:
    (place.root / "a").write_bytes(b"xyz")
    (place.root / "b").write_bytes(b"ab")
    status, lines, found = place.verify()
    remedy = "write it again with: ledgerbeam ledger forget L '/in/a[*].jsonl'"
    other = f"expected the checksum {content_checksum([b'abc'])}, found {content_checksum([b'xyz'])}"
    shorter = "expected 3 bytes, found 2"
    assert status == 1
    assert sorted(lines[:-1]) == [f"{place.root}/a: {other}; {remedy}", f"{place.root}/b: {shorter}; {remedy}"]
    assert lines[-1] == "3 outputs, 9 bytes, 2 problems"
    found["problems"].sort(key=lambda problem: str(problem["output"]))
    problems = [("a", "/in/a*.jsonl", other), ("b", "/in/a*.jsonl", shorter)]
    assert found == place.problems(*problems)
    status, lines, _ = place.verify(sizes_only=True)
    assert (status, lines) == (1, [f"{place.root}/b: {shorter}; {remedy}", "3 outputs, 9 bytes, 1 problem"])


def test_metadata_that_is_not_as_noted_is_told_with_what_to_do(place: Place) -> None:
    sum_of = content_checksum([b"abc"])
    for name, content in (("x", b"abc"), ("y", b"xyz"), ("z", b"ab")):
        (place.root / name).write_bytes(content)
        place.metadata.append(PublishedFile(f"{place.root}/{name}", "lit", 3, sum_of))
    other = f"expected the checksum {sum_of}, found {content_checksum([b'xyz'])}"
    remedy = "to write this metadata again, run its job again with --to lit"
    shorter = f"{place.root}/z: expected 3 bytes, found 2; {remedy}"
    status, lines, found = place.verify()
    counted = "3 outputs, 9 bytes, 3 files of metadata"
    assert (status, lines) == (1, [f"{place.root}/y: {other}; {remedy}", shorter, f"{counted}, 2 problems"])
    problems = [("y", None, other), ("z", None, "expected 3 bytes, found 2")]
    assert found == place.problems(*problems) | {"metadata": 3}
    assert place.verify(sizes_only=True)[1] == [shorter, f"{counted}, 1 problem"]


def dataset_of(prefix: str, *parts: bytes, index: bytes = b"index") -> NotedDataset:
    shards = [OutputShard(f"{n}.bin", len(part), content_checksum([part]), 1, "s", 0) for n, part in enumerate(parts)]
    return NotedDataset(prefix, shards, len(index), content_checksum([index]))


def test_of_a_dataset_each_part_of_it_is_compared_and_told_with_what_to_do(place: Place) -> None:
    prefix = f"{place.root}/all"
    data, index = place.root / "all.bin", place.root / "all.idx"
    place.datasets = [dataset_of(prefix, b"ab", b"", b"cde", b"f")]
    counted, remedy = "3 outputs, 9 bytes, 1 dataset", f"to merge the parts again, delete {index} and run the job again"
    data.write_bytes(b"abcdef")
    index.write_bytes(b"index")
    assert place.verify()[1:] == ([f"{counted}, 0 problems"], FINE | {"datasets": 1})
    data.write_bytes(b"abcxef")
    index.write_bytes(b"xndex")
    sums = [content_checksum([content]) for content in (b"index", b"xndex", b"cde", b"cxe")]
    problems = [f"expected the checksum {sums[0]}, found {sums[1]}"]
    problems.append(f"bytes 2 to 5: expected the checksum {sums[2]}, found {sums[3]}")
    status, lines, found = place.verify()
    said = [f"{path}: {problem}; {remedy}" for path, problem in zip((index, data), problems, strict=True)]
    assert (status, lines) == (1, [*said, f"{counted}, 2 problems"])
    names = [("all.idx", None, problems[0]), ("all.bin", None, problems[1])]
    assert found["problems"] == place.problems(*names)["problems"]
    assert place.verify(sizes_only=True)[0] == 0
    data.write_bytes(b"abcdefg")
    index.unlink()
    problems = ["expected 5 bytes, found no such file or object", "expected 6 bytes, found 7"]
    for sizes_only in (False, True):
        assert [problem["problem"] for problem in place.verify(sizes_only=sizes_only)[2]["problems"]] == problems


def test_an_output_that_is_gone_is_no_problem_if_it_is_in_a_dataset(place: Place) -> None:
    for name in "ab":
        (place.root / name).unlink()
    assert place.verify()[0] == 1
    place.datasets = [dataset_of(f"{place.root}/all", b"abc")]
    (place.root / "all.bin").write_bytes(b"abc")
    (place.root / "all.idx").write_bytes(b"index")
    assert place.verify()[1] == ["1 output, 3 bytes, 1 dataset, 0 problems"]


def test_no_secret_of_a_url_is_printed(place: Place) -> None:
    place.store.open_job(Job("index", {}), "restart")
    place.record(f"{SECRET}/source", f"{SECRET}/output")
    place.metadata = [PublishedFile(f"{SECRET}/{name}", "lit", 3, f"{name}:0") for name in ("x", "y")]
    status, lines, found = place.verify()
    assert status == 1
    assert "hunter2" not in f"{lines}{found}"
    assert [problem["output"] for problem in found["problems"]] == [f"{HIDDEN}/{name}" for name in ("output", "x", "y")]
    assert found["problems"][0]["source"] == f"{HIDDEN}/source"
