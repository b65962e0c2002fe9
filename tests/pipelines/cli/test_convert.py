"""`ledgerbeam convert`: JSONL, tar and Megatron are converted into each other without loss."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from ledgerbeam.io import JsonlReader, Sample, TarReader
from ledgerbeam.io.datasets.megatron import MegatronReader, write_megatron
from ledgerbeam.io.datasets.shar.reader import SharReader, write_shar_fields
from ledgerbeam.io.tar.writer import encode_tar
from tests.io.datasets.shar.content import sample
from tests.pipelines.conftest import Workspace
from tests.pipelines.jobs.test_restart import tasks_done, wait_for

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
    path = workspace.root / "in.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
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
def test_modes_are_kept(workspace: Workspace) -> None:
    with write_megatron(str(workspace.root / "data/train"), np.int32, multimodal=True) as builder:
        builder.add_document([1, 2, 3], lengths=[1, 2], modes=[0, 1])
    convert(workspace, "data/train.bin", "lines", "jsonl")
    assert workspace.records("lines") == [{"tokens": [1, 2, 3], "lengths": [1, 2], "modes": [0, 1]}]
    convert(workspace, "lines/*.jsonl", "again/train", "megatron")
    assert workspace.files("again")["train.idx"] == workspace.files("data")["train.idx"]


@pytest.mark.slow
def test_tokens_go_through_tar_and_back(workspace: Workspace) -> None:
    with write_megatron(str(workspace.root / "data/train"), np.int32) as builder:
        builder.add_document([1, 2, 3], lengths=[1, 2])
        builder.add_document([4])
    convert(workspace, "data/train.bin", "tars", "tar")
    convert(workspace, "tars/*.tar", "again/train", "megatron")
    for ending in ("bin", "idx"):
        assert workspace.files("again")[f"train.{ending}"] == workspace.files("data")[f"train.{ending}"]


@pytest.mark.slow
def test_a_killed_conversion_goes_on_and_ends_with_the_same_bytes(workspace: Workspace) -> None:
    records = [{"tokens": list(range(i % 50, i % 50 + 200))} for i in range(3000)]
    for name in "abcd":
        (workspace.root / f"{name}.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    command = ("convert", "*.jsonl", "--output", "out/all", "--to", "megatron", "--task-bytes", "20000")
    process = workspace.start(*command, "--ledger", "L", "--workers", "2", "--flush-interval", "0.01")
    wait_for(lambda: tasks_done(workspace) > 2, process)
    process.kill()
    process.communicate()
    done = tasks_done(workspace)
    ran = workspace.run(*command, "--ledger", "L", "--workers", "2", "--json", status=0)
    assert ran.json["tasks"]["done"] > done
    with write_megatron(str(workspace.root / "clean/all"), np.int32) as builder:
        for _ in "abcd":
            for record in records:
                builder.add_document(record["tokens"])
    for ending in ("bin", "idx"):
        assert workspace.files("out")[f"all.{ending}"] == workspace.files("clean")[f"all.{ending}"]


@pytest.mark.slow
def test_records_that_cannot_be_converted_fail_their_task(workspace: Workspace) -> None:
    workspace.jsonl("in/a.jsonl", 3)
    ran = workspace.run("convert", "in/a.jsonl", "--output", "out/all", "--to", "megatron")
    assert ran.status == 3
    assert "in/a.jsonl, record 0: expected" in ran.err
    (workspace.root / "in/c.jsonl").write_text('{"tokens": [1]}\n{"tokens": [70000]}\n')
    ran = workspace.run(*("convert", "in/c.jsonl", "--output", "out/c", "--to", "megatron", "--dtype", "uint16"))
    assert ran.status == 3
    assert "document 1, sequence 1: expected tokens that fit uint16" in ran.err
    assert "out/c: not merged" in ran.err
    (workspace.root / "in/b.jsonl").write_text('{"__key__": "k", "txt": "a"}\n{"__key__": "l", "txt": 3}\n')
    ran = workspace.run("convert", "in/b.jsonl", "--output", "tars", "--to", "tar")
    assert ran.status == 3
    assert "in/b.jsonl, record 1: expected text" in ran.err
    assert not list((workspace.root / "tars").glob("*.tar"))


@pytest.mark.slow
def test_a_bin_without_its_index_is_told_and_never_indexed(workspace: Workspace) -> None:
    (workspace.root / "train.bin").write_bytes(bytes(8))
    workspace.run("convert", "train.bin", "--output", "out", "--to", "jsonl", status=3, err="train.idx")
    workspace.run("index", "train.bin", status=3, err="cannot be built from its .bin")
    assert not list(workspace.root.glob("*.idx"))


def test_options_of_datasets_are_refused_for_other_formats(workspace: Workspace) -> None:
    workspace.jsonl("in/a.jsonl", 3)
    ran = workspace.run("convert", "in/a.jsonl", "--output", "out", "--to", "tar", "--dtype", "int32")
    assert (ran.status, "--to megatron" in ran.err) == (2, True)


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


@pytest.mark.slow
def test_a_sample_that_is_no_cut_fails_its_task_alone(workspace: Workspace) -> None:
    clips(workspace, "in/a.tar", range(3))
    tar(workspace, "in/b.tar")
    ran = workspace.run(
        *("convert", "in/*.tar", "--output", "none", "--to", "shar", "--fields", "recording=wav", "--group", "key"),
        *("--workers", "1", "--no-index"),
    )
    assert ran.status == 3, ran.err
    assert "IndexNotFoundError" in ran.err or "no index" in ran.err
    workspace.run(
        *("convert", "in/*.tar", "--output", "shar", "--to", "shar", "--fields", "recording=wav,v=vector.npy"),
        *("--group", "key", "--ledger", "L"),
        status=3,
        err=("speech/one", "expected the header of WAV or FLAC"),
    )
    assert {name.partition("-")[0] for name in workspace.files("shar")} == {"a.tar"}


def test_cuts_of_jsonl_become_shar_as_they_are(workspace: Workspace) -> None:
    cuts = [{"id": f"c{i}", "start": 0, "duration": 1, "type": "MonoCut", "custom": {"label": i}} for i in range(4)]
    (workspace.root / "cuts.jsonl").write_text("".join(json.dumps(cut) + "\n" for cut in cuts))
    convert(workspace, "cuts.jsonl", "shar", "shar", "--fields", "label=json")
    found = workspace.files("shar")
    rows = found["cuts.jsonl-0000000000.label.jsonl"].splitlines()
    assert [json.loads(row) for row in rows] == [{"cut_id": f"c{i}", "label": i} for i in range(4)]
    assert [json.loads(row) for row in found["cuts.jsonl-0000000000.cuts.jsonl"].splitlines()] == cuts
    ran = workspace.run("convert", "cuts.jsonl", "--output", "out", "--to", "jsonl", "--fields", "a=wav")
    assert ran.status == 2
    assert "--fields is for --to shar" in ran.err
