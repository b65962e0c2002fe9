"""`ledgerbeam convert`: JSONL, tar, Megatron and Shar are converted into each other without loss."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import s3fs

from ledgerbeam.io import JsonlReader, Sample, TarReader
from ledgerbeam.io.datasets.megatron import MegatronReader, write_megatron
from ledgerbeam.io.datasets.shar.reader import SharReader, write_shar_fields
from ledgerbeam.io.datasets.shar.writer import SharWriter
from ledgerbeam.io.tar.writer import encode_tar
from tests.conftest import S3Server
from tests.io.datasets.shar.content import sample
from tests.pipelines.conftest import Ran, Workspace

SAMPLES = [
    Sample(
        "speech/one", {"wav": b"RIFF\x00\xff", "txt": "größer\n".encode(), "json": b'{"speaker":"a","turns":[1,2]}'}
    ),
    Sample("speech/two", {"wav": b"", "txt": b"\xff not text", "meta.json": b"[1.5,null]"}),
    Sample("three", {"json": b'{"__base64__":"eA=="}', "cls": b"7"}),
]


def tar(workspace: Workspace, name: str = "in/a.tar") -> Path:
    path = workspace.root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(encode_tar(SAMPLES, group="key")[0])
    return path


def convert(workspace: Workspace, pattern: str, output: str, to: str, *options: str) -> None:
    workspace.run("convert", pattern, "--output", output, "--to", to, *options, status=0)


@pytest.mark.slow
def test_tar_becomes_jsonl_and_the_same_tar_again(workspace: Workspace) -> None:
    source = tar(workspace)
    convert(workspace, "in/*.tar", "lines", "jsonl", "--group", "key")
    with JsonlReader(str(workspace.root / "lines/a.tar-0000000000.jsonl")) as reader:
        assert reader[:] == [
            {
                "__key__": "speech/one",
                "wav": {"__base64__": "UklGRgD/"},
                "txt": "größer\n",
                "json": {"speaker": "a", "turns": [1, 2]},
            },
            {
                "__key__": "speech/two",
                "wav": {"__base64__": ""},
                "txt": {"__base64__": "/yBub3QgdGV4dA=="},
                "meta.json": [1.5, None],
            },
            {"__key__": "three", "json": {"__base64__": "eyJfX2Jhc2U2NF9fIjoiZUE9PSJ9"}, "cls": "7"},
        ]
    convert(workspace, "lines/*.jsonl", "tars", "tar", "--group", "key")
    (shard,) = (workspace.root / "tars").glob("*.tar")
    assert shard.read_bytes() == source.read_bytes()


def test_values_of_jsonl_become_samples_that_hold_them_whole(workspace: Workspace) -> None:
    records = [{"id": 1, "text": "a"}, None, [1, 2], "plain", {"tokens": [1]}]
    workspace.write("in.jsonl", records)
    convert(workspace, "in.jsonl", "tars", "tar")
    with TarReader(str(workspace.root / "tars/in.jsonl-0000000000.tar")) as reader:
        samples = reader[:]
    assert [json.loads(sample["json"]) for sample in samples] == records
    assert [sample.key for sample in samples] == [f"in-{i:09d}" for i in range(5)]


@pytest.mark.slow
def test_a_megatron_source_whose_index_is_replaced_has_changed(workspace: Workspace) -> None:
    """The same `.bin` then contains other documents, even if some of the old documents are done."""
    for length, name in ((2, "data/train"), (4, "other"), (1, "another")):
        with write_megatron(str(workspace.root / name), np.int32) as builder:
            for first in range(0, 400, length):
                builder.add_document(list(range(first, first + length)))

    def run(*more: str) -> list[list[int]]:
        convert(workspace, "data/*.bin", "lines", "jsonl", "--task-bytes", "400", "--ledger", "L", *more)
        return [record["tokens"] for record in workspace.records("lines")]

    def become(name: str) -> None:
        (workspace.root / "data/train.idx").write_bytes((workspace.root / f"{name}.idx").read_bytes())

    assert len(run("--limit-tasks", "2")) == 100
    become("other")
    assert run() == [list(range(first, first + 4)) for first in range(0, 400, 4)]
    become("another")
    looked = workspace.run("ledger", "status", "L", "--check-sources", "--json").json["changed_since"]
    assert looked["changed"] == 1
    assert run() == [[first] for first in range(400)]
    assert workspace.run("ledger", "status", "L", "--check-sources", "--json").json["changed_since"]["changed"] == 0


@pytest.mark.slow
def test_megatron_becomes_jsonl_and_the_same_dataset_again(workspace: Workspace) -> None:
    prefix = workspace.root / "data/train"
    with write_megatron(str(prefix), np.uint16) as builder:
        builder.add_document([7, 8, 9])
        builder.add_document([], lengths=[])
        builder.add_document([1, 2, 3], lengths=[1, 2])
        for i in range(500):
            builder.add_document([i, i + 1])
    convert(workspace, "data/*.bin", "lines", "jsonl", "--task-bytes", "400")
    assert workspace.records("lines")[:4] == [
        {"tokens": [7, 8, 9]},
        {"tokens": [], "lengths": []},
        {"tokens": [1, 2, 3], "lengths": [1, 2]},
        {"tokens": [0, 1]},
    ]
    assert len(workspace.files("lines")) > 8
    convert(workspace, "lines/*.jsonl", "again/train", "megatron", "--dtype", "uint16")
    convert(workspace, "data/*.bin", "wide/train", "megatron", "--drop-parts")
    for ending in ("bin", "idx"):
        assert (workspace.root / f"again/train.{ending}").read_bytes() == Path(f"{prefix}.{ending}").read_bytes()
    with MegatronReader(str(workspace.root / "wide/train")) as wide, MegatronReader(str(prefix)) as source:
        assert wide.dtype == np.int32
        assert [tokens.tolist() for tokens in wide] == [tokens.tolist() for tokens in source]
    assert sorted(workspace.files("wide")) == ["train.bin", "train.idx"]


@pytest.mark.slow
@pytest.mark.parametrize("via", ["jsonl", "tar"])
def test_lengths_and_modes_go_through_other_formats_and_back(workspace: Workspace, via: str) -> None:
    with write_megatron(str(workspace.root / "data/train"), np.int32, multimodal=True) as builder:
        builder.add_document([1, 2, 3], lengths=[1, 2], modes=[0, 1])
        builder.add_document([4], lengths=[1], modes=[1])
    convert(workspace, "data/train.bin", "made", via)
    if via == "jsonl":
        assert workspace.records("made")[0] == {"tokens": [1, 2, 3], "lengths": [1, 2], "modes": [0, 1]}
    convert(workspace, f"made/*.{via}", "again/train", "megatron")
    for ending in ("bin", "idx"):
        assert workspace.files("again")[f"train.{ending}"] == workspace.files("data")[f"train.{ending}"]


@pytest.mark.slow
def test_records_that_cannot_be_converted_fail_their_task(workspace: Workspace) -> None:
    workspace.jsonl("in/a.jsonl", 3)
    workspace.write("in/b.jsonl", [{"__key__": "k", "txt": "a"}, {"__key__": "l", "txt": 3}])
    workspace.write("in/c.jsonl", [{"tokens": [1]}, {"tokens": [70000]}])
    too_large = ("document 1, sequence 1: expected tokens that fit uint16", "out/c: not merged")
    for name, words, said in (
        ("a", ("--output", "out/all", "--to", "megatron"), "in/a.jsonl, record 0: expected"),
        ("b", ("--output", "tars", "--to", "tar"), "in/b.jsonl, record 1: expected text"),
        ("c", ("--output", "out/c", "--to", "megatron", "--dtype", "uint16"), too_large),
    ):
        workspace.run("convert", f"in/{name}.jsonl", *words, status=3, err=said)
    assert not list((workspace.root / "tars").glob("*.tar"))


@pytest.mark.slow
def test_a_bin_without_its_index_is_told_and_never_indexed(workspace: Workspace) -> None:
    (workspace.root / "train.bin").write_bytes(bytes(8))
    workspace.run("convert", "train.bin", "--output", "out", "--to", "jsonl", status=3, err="train.idx")
    workspace.run("index", "train.bin", status=3, err="cannot be built from its .bin")
    assert not list(workspace.root.glob("*.idx"))


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [("--dtype", "int32", "--dtype and --drop-parts are for --to megatron"), ("--fields", "a=wav", "is for --to shar")],
)
def test_options_of_datasets_are_refused_for_other_formats(
    workspace: Workspace, option: str, value: str, said: str
) -> None:
    workspace.jsonl("in/a.jsonl", 3)
    command = ("convert", "in/a.jsonl", "--output", "out", "--to", "tar", option, value)
    workspace.run(*command, status=2, err=said)


def test_a_megatron_dataset_can_be_shown_and_verified(workspace: Workspace) -> None:
    with write_megatron(str(workspace.root / "train"), np.int32) as builder:
        builder.add_document([1, 2, 3], lengths=[1, 2])
        builder.add_document([4])
    shown = workspace.run("show", "train.bin", "-1", "0")
    assert shown.out.splitlines() == ['{"tokens":[4]}', '{"tokens":[1,2,3],"lengths":[1,2]}']
    assert workspace.run("verify", "train.bin", "--deep").status == 0
    data = (workspace.root / "train.bin").read_bytes()
    (workspace.root / "train.bin").write_bytes(data[:-4])
    assert workspace.run("verify", "train.bin").status == 1


def clips(workspace: Workspace, name: str, numbers: range) -> None:
    path = workspace.root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(encode_tar([sample(number) for number in numbers], group="key")[0])


def test_tar_becomes_shar_with_the_named_fields(workspace: Workspace) -> None:
    clips(workspace, "in/a.tar", range(20))
    clips(workspace, "in/b.tar", range(20, 30))
    fields = "recording=wav,vector=vector.npy,label=cls"
    options = ("--fields", fields, "--task-bytes", "30K", "--group", "key")
    convert(workspace, "in/*.tar", "shar", "shar", *options)
    once = workspace.files("shar")
    starts = sorted(name for name in once if name.endswith(".cuts.jsonl"))
    assert len(starts) > 3
    assert len(once) == 8 * len(starts)
    listed = {
        field: [str(workspace.root / "shar" / name.replace(".cuts.jsonl", f".{field}.{kind}")) for name in starts]
        for field, kind in {"cuts": "jsonl", "recording": "tar", "vector": "tar", "label": "jsonl"}.items()
    }
    write_shar_fields(str(workspace.root / "fields.json"), listed)
    with SharReader(str(workspace.root / "fields.json")) as reader:
        found = reader[:]
    assert [record["id"] for record in found] == [sample(number).key for number in range(30)]
    assert [record["recording"]["wav"] for record in found] == [sample(number)["wav"] for number in range(30)]
    assert [record["label"] for record in found] == [str(number) for number in range(30)]
    assert sum("vector" in record for record in found) == 20
    convert(workspace, "in/*.tar", "shar", "shar", *options)
    assert workspace.files("shar") == once
    convert(workspace, "shar", "back", "jsonl", "--from", "shar")
    assert [row["__key__"] for row in workspace.records("back")] == [sample(number).key for number in range(30)]


@pytest.mark.slow
def test_a_sample_that_is_no_cut_fails_its_task_alone(workspace: Workspace) -> None:
    clips(workspace, "in/a.tar", range(3))
    tar(workspace, "in/b.tar")
    workspace.run(
        *("convert", "in/*.tar", "--output", "shar", "--to", "shar", "--fields", "recording=wav,v=vector.npy"),
        *("--group", "key", "--ledger", "L"),
        status=3,
        err=("speech/one", "expected the header of WAV or FLAC"),
    )
    assert {name.partition("-")[0] for name in workspace.files("shar")} == {"a.tar"}


def test_cuts_of_jsonl_become_shar_as_they_are(workspace: Workspace) -> None:
    cuts = [{"id": f"c{i}", "start": 0, "duration": 1, "type": "MonoCut", "custom": {"label": i}} for i in range(4)]
    workspace.write("cuts.jsonl", cuts)
    convert(workspace, "cuts.jsonl", "shar", "shar", "--fields", "label=json")
    found = workspace.files("shar")
    rows = found["cuts.jsonl-0000000000.label.jsonl"].splitlines()
    assert [json.loads(row) for row in rows] == [{"cut_id": f"c{i}", "label": i} for i in range(4)]
    assert [json.loads(row) for row in found["cuts.jsonl-0000000000.cuts.jsonl"].splitlines()] == cuts


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


def convert_shar(workspace: Workspace, to: str, *options: str, **ends: Any) -> Ran:
    """Convert the dataset; check how the command ends, which is well by default."""
    command = ("convert", "speech", "--from", "shar", "--to", to, "--output", to)
    return workspace.run(*command, *options, **{"status": 0, **ends})


def test_cuts_come_with_all_of_their_fields(workspace: Workspace, dataset: Path) -> None:
    convert_shar(workspace, "tar")
    found: list[Sample] = []
    for number in range(3):
        with TarReader(str(workspace.root / f"tar/cuts.{number:06d}.jsonl-0000000000.tar")) as reader:
            found += reader[:]
    assert [one.key for one in found] == [sample(number).key for number in range(30)]
    assert [one["recording.wav"] for one in found] == [sample(number)["wav"] for number in range(30)]
    assert [json.loads(one["label.json"]) for one in found] == list(range(30))
    assert json.loads(found[3]["recording.json"])["id"] == found[3].key
    assert json.loads(found[3]["json"])["type"] == "MonoCut"
    assert ["vector.npy" in one for one in found] == ["vector.npy" in sample(number) for number in range(30)]


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
    convert_shar(workspace, "shar", "--fields", FIELDS)
    for shard in dataset.glob("*.*"):
        field, _, rest = shard.name.partition(".")
        number, _, kind = rest.partition(".")
        if number.isdigit():
            made = workspace.root / "shar" / f"cuts.{number}.jsonl-0000000000.{field}.{kind}"
            assert made.read_bytes() == shard.read_bytes(), shard.name


def test_a_shard_is_cut_into_tasks_by_all_of_its_bytes(workspace: Workspace, dataset: Path) -> None:
    ran = convert_shar(workspace, "jsonl", "--task-bytes", "20K", "--ledger", "L", "--json")
    assert ran.json["sources"]["complete"] == 3
    assert ran.json["tasks"]["done"] > 6
    ids = [row["__key__"] for path in sorted((workspace.root / "jsonl").glob("*.jsonl")) for row in read(path)]
    assert ids == [sample(number).key for number in range(30)]


def read(path: Path) -> list[dict[str, object]]:
    with JsonlReader(str(path)) as reader:
        return reader[:]


@pytest.mark.slow
def test_a_change_of_any_file_of_a_shard_is_noticed(workspace: Workspace, dataset: Path) -> None:
    convert_shar(workspace, "tar", "--ledger", "L")
    rows = [{"cut_id": sample(number).key, "label": -number} for number in range(10, 20)]
    workspace.write("speech/label.000001.jsonl", rows)
    ran = convert_shar(workspace, "tar", "--ledger", "L", "--json")
    assert (ran.json["sources"]["complete"], ran.json["skipped"]) == (3, 2)
    with TarReader(str(workspace.root / "tar/cuts.000001.jsonl-0000000000.tar")) as reader:
        assert [json.loads(one["label.json"]) for one in reader[:]] == [-number for number in range(10, 20)]


@pytest.mark.slow
def test_compressed_cuts_and_payloads_without_an_index_are_read(workspace: Workspace, dataset: Path) -> None:
    convert_shar(workspace, "jsonl")
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


def test_a_damaged_shard_fails_alone(workspace: Workspace, dataset: Path) -> None:
    payload = dataset / "recording.000001.tar"
    with TarReader(str(payload)) as reader:
        pairs = reader[:]
    payload.write_bytes(encode_tar(pairs[::-1], group="pairs")[0])
    payload.with_name(payload.name + ".idx").unlink()
    packed = dataset / "recording.000002.tar"
    packed.with_name(packed.name + ".gz").write_bytes(gzip.compress(packed.read_bytes()))
    packed.unlink()
    swapped = "recording.000001.tar: record 0: expected field 'recording' of cut"
    compressed = "recording.000002.tar.gz: a compressed tar of a shard cannot be read"
    ran = convert_shar(workspace, "jsonl", "--json", status=3, err=(swapped, compressed))
    assert ran.json["sources"]["complete"] == 1


def test_options_that_cut_otherwise_and_a_folder_without_cuts_are_refused(workspace: Workspace, dataset: Path) -> None:
    convert_shar(workspace, "jsonl", "--pack", "1M", status=2, err="leave --pack, --group and --columns out")
    (dataset / "cuts.000001.jsonl").unlink()
    convert_shar(workspace, "jsonl", status=1, err="expected cuts beside this file")


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
    workspace.run("index", "--from", "shar", "plain", status=0)  # its name is also valid for a shard
    workspace.run("index", "speech", "plain/a.jsonl", status=2, err="index each with its own command")


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
