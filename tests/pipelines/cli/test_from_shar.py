"""Shar datasets as sources of jobs: `--from shar`."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
import s3fs

from ledgerbeam.io import JsonlReader, Sample, TarReader
from ledgerbeam.io.datasets.shar.writer import SharWriter
from ledgerbeam.io.tar.writer import encode_tar
from tests.conftest import S3Server
from tests.io.datasets.shar.content import sample
from tests.pipelines.cli.test_convert import clips
from tests.pipelines.conftest import Ran, Workspace

FIELDS = "recording=recording.wav,vector=vector.npy,label=label.json"


@pytest.fixture
def dataset(workspace: Workspace) -> Path:
    """Three shards of ten cuts, numbered as lhotse does; some cuts have no vector."""
    folder = workspace.root / "speech"
    with SharWriter(str(folder), {"recording": "tar", "vector": "tar", "label": "jsonl"}, shard_size=10) as writer:
        for number in range(30):
            members = sample(number)
            manifest = {"id": members.key, "sampling_rate": 8000}
            cut = {"id": members.key, "start": 0, "duration": 1.0, "type": "MonoCut", "label": number}
            cut["recording"] = {"wav": members["wav"], "json": manifest}
            if "vector.npy" in members:
                cut["vector"] = {"npy": members["vector.npy"], "json": {"shape": [1]}}
            writer.write(cut)
    (folder / "README.md").write_text("stray")
    return folder


def convert(workspace: Workspace, to: str, *options: str) -> Ran:
    return workspace.run("convert", "speech", "--from", "shar", "--to", to, "--output", to, *options)


def test_cuts_come_with_all_of_their_fields(workspace: Workspace, dataset: Path) -> None:
    assert convert(workspace, "tar").status == 0
    found: list[Sample] = []
    for number in range(3):
        with TarReader(str(workspace.root / f"tar/cuts.{number:06d}.jsonl-0000000000.tar")) as reader:
            found += reader[:]
    assert [one.key for one in found] == [sample(number).key for number in range(30)]
    assert [one["recording.wav"] for one in found] == [sample(number)["wav"] for number in range(30)]
    assert [json.loads(one["label.json"]) for one in found] == list(range(30))
    assert json.loads(found[3]["recording.json"])["id"] == found[3].key
    assert json.loads(found[3]["json"])["type"] == "MonoCut"
    assert [number for number, one in enumerate(found) if "vector.npy" in one] == [
        number for number in range(30) if "vector.npy" in sample(number)
    ]


@pytest.mark.parametrize("command", ["convert", "index"])
def test_a_folder_whose_name_is_a_pattern_is_refused(workspace: Workspace, dataset: Path, command: str) -> None:
    """Files of another folder were read and indexed instead."""
    dataset.rename(workspace.root / "run[1]")
    (workspace.root / "run1").mkdir()
    (workspace.root / "run1" / "cuts.000000.jsonl").write_text('{"id": "other"}\n')
    options = ("--to", "jsonl", "--output", "made") if command == "convert" else ()
    ran = workspace.run(command, "run[1]", "--from", "shar", *options)
    assert ran.status == 2
    assert "run[1]: expected a folder without *, ?, [ and braces in its name" in ran.err
    assert not (workspace.root / "made").exists()
    assert [path.name for path in (workspace.root / "run1").iterdir()] == ["cuts.000000.jsonl"]


def test_what_became_of_a_dataset_becomes_the_same_dataset(workspace: Workspace, dataset: Path) -> None:
    assert convert(workspace, "shar", "--fields", FIELDS).status == 0
    for shard in dataset.glob("*.*"):
        field, _, rest = shard.name.partition(".")
        number, _, kind = rest.partition(".")
        if number.isdigit():
            made = workspace.root / "shar" / f"cuts.{number}.jsonl-0000000000.{field}.{kind}"
            assert made.read_bytes() == shard.read_bytes(), shard.name


def test_a_shard_is_cut_into_tasks_by_all_of_its_bytes(workspace: Workspace, dataset: Path) -> None:
    ran = convert(workspace, "jsonl", "--task-bytes", "20K", "--ledger", "L", "--json")
    assert ran.status == 0, ran.err
    assert ran.json["sources"]["complete"] == 3
    assert ran.json["tasks"]["done"] > 6
    ids = [row["__key__"] for path in sorted((workspace.root / "jsonl").glob("*.jsonl")) for row in read(path)]
    assert ids == [sample(number).key for number in range(30)]


def read(path: Path) -> list[dict[str, object]]:
    with JsonlReader(str(path)) as reader:
        return reader[:]


@pytest.mark.slow
def test_a_change_of_any_file_of_a_shard_is_noticed(workspace: Workspace, dataset: Path) -> None:
    assert convert(workspace, "tar", "--ledger", "L").status == 0
    rows = [{"cut_id": sample(number).key, "label": -number} for number in range(10, 20)]
    (dataset / "label.000001.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    ran = convert(workspace, "tar", "--ledger", "L", "--json")
    assert ran.status == 0, ran.err
    assert (ran.json["sources"]["complete"], ran.json["skipped"]) == (3, 2)
    with TarReader(str(workspace.root / "tar/cuts.000001.jsonl-0000000000.tar")) as reader:
        assert [json.loads(one["label.json"]) for one in reader[:]] == [-number for number in range(10, 20)]


@pytest.mark.slow
def test_compressed_cuts_and_payloads_without_an_index_are_read(workspace: Workspace, dataset: Path) -> None:
    assert convert(workspace, "jsonl").status == 0
    plain = workspace.files("jsonl")
    for path in [*dataset.glob("cuts.*.jsonl"), *dataset.glob("label.*.jsonl")]:
        path.with_name(path.name + ".gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()
    for path in dataset.glob("*.idx"):
        path.unlink()
    workspace.run("convert", "speech", "--from", "shar", "--to", "jsonl", "--output", "packed", status=0)
    named = {name.replace(".jsonl-gz-", ".jsonl-"): content for name, content in workspace.files("packed").items()}
    assert named == plain
    assert (dataset / "recording.000002.tar.idx").exists()


def test_a_function_gets_samples(workspace: Workspace, dataset: Path) -> None:
    workspace.run("map", "functions:members", "speech", "--from", "shar", "--to", "jsonl", "--output", "out", status=0)
    first = read(workspace.root / "out/cuts.000000.jsonl-0000000000.jsonl")[0]
    assert first["key"] == sample(0).key
    assert first["sizes"]["recording.wav"] == len(sample(0)["wav"])  # type: ignore[index]


@pytest.mark.slow
def test_what_convert_wrote_is_a_dataset(workspace: Workspace) -> None:
    clips(workspace, "in/a.tar", range(5))
    clips(workspace, "in/b.tar", range(5, 10))
    options = ("--group", "key", "--fields", "recording=wav,vector=vector.npy")
    workspace.run("convert", "in/*.tar", "--to", "shar", "--output", "speech", *options, status=0)
    assert convert(workspace, "jsonl").status == 0
    assert len(workspace.files("jsonl")) == 4


def test_a_damaged_shard_fails_alone(workspace: Workspace, dataset: Path) -> None:
    payload = dataset / "recording.000001.tar"
    with TarReader(str(payload)) as reader:
        pairs = reader[:]
    payload.write_bytes(encode_tar(pairs[::-1], group="pairs")[0])
    payload.with_name(payload.name + ".idx").unlink()
    packed = dataset / "recording.000002.tar"
    packed.with_name(packed.name + ".gz").write_bytes(gzip.compress(packed.read_bytes()))
    packed.unlink()
    ran = convert(workspace, "jsonl", "--json")
    assert (ran.status, ran.json["sources"]["complete"]) == (3, 1), ran.err
    assert "recording.000001.tar: record 0: expected field 'recording' of cut" in ran.err
    assert "recording.000002.tar.gz: the payloads of a shard are read by offset" in ran.err


def test_a_folder_without_cuts_is_told_before_anything_is_made(workspace: Workspace, dataset: Path) -> None:
    (dataset / "cuts.000001.jsonl").unlink()
    ran = convert(workspace, "jsonl")
    assert (ran.status, "expected cuts beside this file" in ran.err) == (1, True)


def test_options_that_cut_otherwise_are_refused(workspace: Workspace, dataset: Path) -> None:
    ran = convert(workspace, "jsonl", "--pack", "1M")
    assert (ran.status, "leave --pack, --group and --columns out" in ran.err) == (2, True)


@pytest.mark.slow
@pytest.mark.parametrize("named", [("speech", "--from", "shar"), ("speech",), ("speech/",)])
def test_a_folder_of_shards_is_indexed(workspace: Workspace, dataset: Path, named: tuple[str, ...]) -> None:
    built = {path: path.read_bytes() for path in dataset.glob("*.idx")}
    for path in built:
        path.unlink()
    ran = workspace.run("index", *named, "--json", "--ledger", "L", status=0)
    assert (ran.json["sources"]["complete"], ran.json["passed_over"]) == (12, 1)  # the README is no shard
    assert {path: path.read_bytes() for path in dataset.glob("*.idx")} == built
    again = workspace.run("index", "speech", "--json", "--ledger", "L")
    assert (again.status, again.json["skipped"]) == (0, 12)


def test_what_is_no_shard_is_not_indexed_with_them(workspace: Workspace, dataset: Path) -> None:
    (dataset / "notes.a b.txt").write_text("stray")
    ran = workspace.run("index", "--from", "shar", "speech", "--json")
    assert (ran.status, ran.json["passed_over"]) == (0, 2)
    assert not (dataset / "notes.a b.txt.idx").exists()


@pytest.mark.slow
def test_a_folder_that_is_no_dataset_is_refused(workspace: Workspace, dataset: Path) -> None:
    workspace.jsonl("plain/a.jsonl", 5)
    workspace.run("index", "plain", status=2, err="folder")
    ran = workspace.run("index", "--from", "shar", "plain")
    assert ran.status == 0, ran.err  # its name is also valid for a shard
    workspace.run("index", "speech", "plain/a.jsonl", status=2, err="index them by two commands")


@pytest.mark.slow
@pytest.mark.s3
def test_a_dataset_in_a_bucket_is_found(workspace: Workspace, s3: S3Server, dataset: Path) -> None:
    store = s3fs.S3FileSystem(**s3.options, skip_instance_cache=True, use_listings_cache=False)
    bucket = s3.bucket()
    for path in dataset.iterdir():
        if path.suffix != ".idx":
            store.put(str(path), f"{bucket}/speech/{path.name}")
    ran = workspace.run("index", f"s3://{bucket}/speech", "--json", env=dict(s3.env), status=0)
    assert (ran.json["sources"]["complete"], ran.json["passed_over"]) == (12, 1)
    for path in dataset.glob("*.idx"):
        assert store.cat_file(f"{bucket}/speech/{path.name}") == path.read_bytes()
