"""`ledgerbeam publish`: the outputs of a complete job as a dataset of each format, and jobs that are refused."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from ledgerbeam.io import Sample
from ledgerbeam.io.datasets.lit import LitDataset
from ledgerbeam.io.datasets.megatron import MegatronReader, write_megatron
from ledgerbeam.io.datasets.shar.reader import SharReader
from ledgerbeam.io.datasets.webdataset import open_energon, open_wids
from ledgerbeam.io.idxpack.reader import IndexPack
from ledgerbeam.io.tar.writer import encode_tar
from tests.io.datasets.shar.content import sample
from tests.pipelines.conftest import Ran, Workspace

pytestmark = pytest.mark.slow

KEYS = [f"clip-{number:03d}" for number in range(30)]


@pytest.fixture
def clips(workspace: Workspace) -> Workspace:
    """Two tars of samples. Jobs make several shards of each."""
    (workspace.root / "in").mkdir()
    for name, numbers in (("a", range(20)), ("b", range(20, 30))):
        samples = [sample(number) for number in numbers]
        (workspace.root / "in" / f"{name}.tar").write_bytes(encode_tar(samples, group="key")[0])
    return workspace


def convert(workspace: Workspace, to: str, *options: str, output: str = "out") -> None:
    command = ("convert", "in/*.tar", "--output", output, "--to", to, "--ledger", "L")
    workspace.run(*command, "--group", "key", "--task-bytes", "30K", *options, status=0)


def publish(workspace: Workspace, form: str, *options: str) -> Ran:
    return workspace.run("publish", "L", "--as", form, "--json", *options, status=0)


def test_tars_become_datasets_of_wids_energon_and_lit(clips: Workspace) -> None:
    convert(clips, "tar")
    out = str(clips.root / "out")
    shards = len(list(Path(out).glob("*.tar")))
    assert shards > 3
    found = publish(clips, "webdataset").json
    assert found == {"format": "webdataset", "shards": shards, "records": 30, "published": [f"{out}/wids.json"]}
    assert [s.key for s in open_wids(f"{out}/wids.json")[:]] == KEYS

    parts = ("--part", "val=b.*", "--part", "train=*")
    publish(clips, "energon", *parts)
    assert [s.key for s in open_energon(out, "train")[:]] == KEYS[:20]
    assert [s.key for s in open_energon(out, "val")[:]] == KEYS[20:]

    published = publish(clips, "lit", *parts).json["published"]
    assert [os.path.basename(url) for url in published] == ["val.idx.json", "train.idx.json", "config.json"]
    with LitDataset(out, "val", ["txt", "cls"], decoders={"txt": bytes}) as dataset:
        assert len(dataset) == 10
    with LitDataset(out, "train", ["cls"]) as dataset:
        assert len(dataset) == 20
    config = json.loads((clips.root / "out/config.json").read_text())
    assert config["metadata"] == {"num_val": 10, "num_train": 20}
    assert set(config["extensions"]) == {"wav", "txt", "cls", "vector.npy"}

    before = clips.files("out")
    for form, options in (("webdataset", ()), ("energon", parts), ("lit", parts)):
        publish(clips, form, *options)
    assert clips.files("out") == before


FILES = {
    "webdataset": "wids.json",
    "energon": ".nv-meta/dataset.yaml",
    "lit": "config.json",
    "idxpack": "index.idxpack",
}


def test_a_file_of_others_where_metadata_is_to_lie_is_refused_and_stays(clips: Workspace) -> None:
    convert(clips, "tar")
    for form, name in FILES.items():
        path = clips.root / "out" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("of somebody else")
        before = clips.files("out")
        clips.run("publish", "L", "--as", form, status=2, err=f"{name}: expected no file")
        assert clips.files("out") == before
        path.unlink()
        publish(clips, form)
    (clips.root / "lit").mkdir()
    (clips.root / "lit/config.json").write_text("of somebody else")
    command = ("convert", "in/*.tar", "--output", "lit", "--to", "lit", "--group", "key", "--ledger", "M")
    clips.run(*command, status=1, err="lit/config.json: expected no file")
    assert (clips.root / "lit/config.json").read_text() == "of somebody else"
    (clips.root / "lit/config.json").unlink()
    assert clips.run(*command).status == 0


def test_shar_becomes_a_list_of_fields_and_a_pack(clips: Workspace) -> None:
    convert(clips, "shar", "--fields", "recording=wav,vector=vector.npy,label=cls")
    found = publish(clips, "shar").json
    assert found["records"] == 30
    with SharReader(found["published"][0]) as reader:
        assert reader.fields == ("label", "recording", "vector")
        assert [cut["id"] for cut in reader[:]] == KEYS
    found = publish(clips, "idxpack", "--output", "packs/mine.idxpack", "--name", "clips").json
    assert found["published"] == [str(clips.root / "packs/mine.idxpack")]
    pack = IndexPack(found["published"][0])
    assert [sample.key for sample in pack.collection(found["keys"]["recording"]).read_many(range(30))] == KEYS
    assert [cut["id"] for cut in pack.collection(found["keys"]["cuts"]).read_many(range(30))] == KEYS
    before = clips.files("packs")
    publish(clips, "idxpack", "--output", "packs/mine.idxpack", "--name", "clips")
    assert clips.files("packs") == before


def test_lines_become_a_pack(workspace: Workspace) -> None:
    workspace.jsonl("in/a.jsonl", 30)
    workspace.jsonl("in/b.jsonl", 5, first=30)
    workspace.run("map", "functions:keep", "in/*.jsonl", "--output", "out", "--to", "jsonl", "--ledger", "L", status=0)
    ran = workspace.run("publish", "L", "--as", "idxpack", status=0)
    assert "2 shards with 35 records published as idxpack" in ran.out
    assert "key of manifest: " in ran.out
    records = IndexPack(str(workspace.root / "out/index.idxpack")).collection()
    assert [record["id"] for record in records.read_many(range(35))] == list(range(35))


def test_parts_of_megatron_are_merged_elsewhere(workspace: Workspace) -> None:
    for name, first in (("a", 0), ("b", 10)):
        with write_megatron(str(workspace.root / "in" / name)) as builder:
            for token in range(first, first + 10):
                builder.add_document([token])
    workspace.run("convert", "in/*.bin", "--output", "out/all", "--to", "megatron", "--ledger", "L", status=0)
    publish(workspace, "megatron", "--output", "again/all")
    found = workspace.files("again")
    assert found == {name: data for name, data in workspace.files("out").items() if ".parts" not in name}
    assert len(MegatronReader(str(workspace.root / "again/all"))) == 20


def test_a_job_that_is_not_complete_is_refused_with_the_remedy(workspace: Workspace) -> None:
    workspace.jsonl("in.jsonl", 10)
    failing = ("map", "functions:bad_seven", "in.jsonl", "--output", "out", "--to", "tar", "--ledger", "L")
    assert workspace.run(*failing).status == 3
    for form in ("webdataset", "lit", "energon", "idxpack", "shar"):
        ran = workspace.run("publish", "L", "--as", form)
        assert ran.status == 1
        assert "its job is not complete" in ran.err
        assert "run the job again until it ends with status 0" in ran.err
    assert not list(workspace.root.glob("out/*.json"))


def test_what_cannot_be_a_dataset_of_the_format_is_refused(clips: Workspace) -> None:
    clips.run("index", "in/*.tar", "--ledger", "L", status=0)

    def refused(form: str, message: str, *options: str) -> None:
        ran = clips.run("publish", "L", "--as", form, *options)
        assert ran.status in (1, 2), ran.out
        assert message in ran.err, ran.err

    refused("webdataset", "has written no shards")
    (clips.root / "L").rename(clips.root / "old")
    convert(clips, "tar")
    refused("shar", "cuts and their fields")
    refused("megatron", "shards end with .bin", "--output", "x")
    refused("webdataset", "must be beside the shards", "--output", "x")
    refused("webdataset", "other formats have no parts", "--part", "val=a*", "--part", "train=*")
    refused("energon", "no pattern matches the shard b", "--part", "train=a*")
    refused("energon", "change the patterns", "--part", "train=*", "--part", "val=b*")
    refused("energon", "NAME=PATTERN", "--part", "train")
    shard = next(iter(sorted((clips.root / "out").glob("b*.tar"))))
    shard.write_bytes(shard.read_bytes()[:-512])
    refused("webdataset", "nothing was published")
    shard.unlink()
    refused("webdataset", "ledgerbeam ledger verify --sizes-only L")
    assert not (clips.root / "out/wids.json").exists()


def test_shards_that_lit_cannot_tell_apart_are_refused(workspace: Workspace) -> None:
    for folder in ("x", "y"):
        (workspace.root / "in" / folder).mkdir(parents=True)
        (workspace.root / "in" / folder / "a.tar").write_bytes(encode_tar([Sample(folder, {"cls": b"1"})])[0])
    command = ("convert", "in/**/*.tar", "--output", "out", "--to", "tar", "--ledger", "L")
    assert workspace.run(*command).status == 0
    workspace.run("publish", "L", "--as", "lit", status=2, err="a second shard of this name")
    publish(workspace, "webdataset")
    assert [s.key for s in open_wids(str(workspace.root / "out/wids.json"))[:]] == ["x", "y"]


def test_parts_that_are_published_over_metadata_of_the_job_are_no_problem_of_it(clips: Workspace) -> None:
    convert(clips, "energon")
    publish(clips, "energon", "--part", "val=b.*", "--part", "train=*")
    verified = clips.run("ledger", "verify", "L", "--json")
    assert (verified.status, verified.json["metadata"]) == (0, 0), verified.out
