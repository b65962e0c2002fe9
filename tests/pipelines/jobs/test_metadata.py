"""`--to webdataset`, `energon` and `lit`: the job of `--to tar`, and then the metadata beside its shards."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from ledgerbeam.errors import UsageError
from ledgerbeam.io import Sample
from ledgerbeam.io.datasets.lit import LitDataset
from ledgerbeam.io.datasets.megatron import write_megatron
from ledgerbeam.io.datasets.webdataset import open_energon, open_wids
from ledgerbeam.io.storage import files
from ledgerbeam.io.storage.publish import publish_bytes
from ledgerbeam.io.tar.writer import encode_tar
from ledgerbeam.pipelines.outputs import metadata as looks
from tests.pipelines.conftest import Ran, Workspace


def from_wids(out: str, name: str) -> list[bytes]:
    return [sample[name] for sample in open_wids(f"{out}/wids.json")[:]]


def from_energon(out: str, name: str) -> list[bytes]:
    return [sample[name] for sample in open_energon(out, "train")[:]]


def from_lit(out: str, name: str) -> list[Any]:
    with LitDataset(out, "train", [name], decoders={name: bytes}) as dataset:
        return [value for (value,) in dataset[:]]


TARGETS: dict[str, tuple[str, Callable[[str, str], list[bytes]]]] = {
    "webdataset": ("wids.json", from_wids),
    "energon": (".nv-meta/.info.json", from_energon),
    "lit": ("config.json", from_lit),
}
"""Of each target the file by which a dataset is found, and how its samples' members of a name are read."""


def run(workspace: Workspace, to: str, *options: str, source: str = "in/*", **how: Any) -> Ran:
    job = ("convert", source, "--output", "out", "--ledger", "L", "--task-bytes", "400")
    return workspace.run(*job, "--to", to, *options, **how)


def convert(workspace: Workspace, to: str, *options: str, source: str = "in/*") -> Ran:
    return run(workspace, to, *options, source=source, status=0)


def texts(workspace: Workspace, to: str) -> list[int]:
    return [json.loads(data)["id"] for data in TARGETS[to][1](str(workspace.root / "out"), "json")]


def written(workspace: Workspace) -> dict[str, int]:
    return {name: (workspace.root / "out" / name).stat().st_mtime_ns for name in workspace.files("out")}


@pytest.mark.slow
def test_after_a_job_of_tar_each_target_only_writes_its_metadata_once(workspace: Workspace) -> None:
    workspace.jsonl("in/a.jsonl", 20)
    workspace.jsonl("in/b.jsonl", 5, first=20)
    convert(workspace, "tar")
    shards = written(workspace)
    assert len([name for name in shards if name.endswith(".tar")]) > 3
    for to, (found_by, _) in TARGETS.items():
        ran = convert(workspace, to, "--json")
        assert ran.json["skipped"] == 2
        assert ran.json["published"][-1] == str(workspace.root / "out" / found_by)
        assert all(os.path.isfile(url) for url in ran.json["published"])
        assert texts(workspace, to) == list(range(25))
    before = written(workspace)
    assert {path: before[path] for path in shards} == shards
    for to, (found_by, _) in TARGETS.items():
        ran = convert(workspace, to)
        assert f"up to date: {workspace.root}/out/{found_by}" in ran.out
        assert "published as" not in ran.out
    assert written(workspace) == before


@pytest.mark.parametrize("to", TARGETS)
@pytest.mark.slow
def test_samples_of_tars_become_a_dataset(workspace: Workspace, to: str) -> None:
    (workspace.root / "in").mkdir()
    for name in "ab":
        samples = [Sample(f"{name}{i}", {"wav": b"RIFF%d" % i, "json": b'{"id":%d}' % i}) for i in range(5)]
        (workspace.root / f"in/{name}.tar").write_bytes(encode_tar(samples, group="pairs")[0])
    convert(workspace, to, "--group", "pairs", "--task-bytes", "4K")
    assert texts(workspace, to) == [*range(5), *range(5)]
    assert TARGETS[to][1](str(workspace.root / "out"), "wav") == [b"RIFF%d" % i for i in range(5)] * 2


@pytest.mark.slow
def test_documents_of_megatron_become_datasets(workspace: Workspace) -> None:
    with write_megatron(str(workspace.root / "in/all")) as builder:
        for token in range(200):
            builder.add_document([token])
    for to, (_, read) in TARGETS.items():
        convert(workspace, to, source="in/*.bin")
        assert [json.loads(data) for data in read(str(workspace.root / "out"), "json")] == [
            {"tokens": [token]} for token in range(200)
        ]


@pytest.mark.slow
def test_a_map_and_a_graph_are_published_as_well(workspace: Workspace) -> None:
    workspace.jsonl("in/a.jsonl", 20)
    (workspace.root / "orders.py").write_text(
        "from ledgerbeam.iterators import *\n\ndef order():\n    return IndexedManifest('in/a.jsonl', shuffle=True)\n"
    )
    assert workspace.run("index", "in/a.jsonl").status == 0
    jobs = {"mapped": ("map", "functions:sample", "in/a.jsonl"), "ordered": ("materialize", "orders:order")}
    for output, job in jobs.items():
        ran = workspace.succeed(*job, "--output", output, "--to", "lit")
        assert f"published as lit: {workspace.root}/{output}/config.json" in ran.out
    assert from_lit(str(workspace.root / "mapped"), "txt")[3].startswith(b"text 3 ")
    ids = [json.loads(data)["id"] for data in from_lit(str(workspace.root / "ordered"), "json")]
    assert sorted(ids) == list(range(20)) != ids


@pytest.mark.slow
def test_metadata_that_is_gone_or_out_of_date_is_written_again(workspace: Workspace) -> None:
    workspace.jsonl("in/a.jsonl", 20)
    for to, (found_by, _) in TARGETS.items():
        convert(workspace, to)
        path = workspace.root / "out" / found_by
        content = path.read_bytes()
        path.unlink()
        assert "published as" in convert(workspace, to).out
        assert path.read_bytes() == content
    workspace.jsonl("in/a.jsonl", 30, first=100)
    for to in TARGETS:
        assert "published as" in convert(workspace, to).out
        assert texts(workspace, to) == list(range(100, 130))


@pytest.mark.slow
@pytest.mark.parametrize("to", TARGETS)
def test_a_shard_that_was_lost_and_written_again_is_read(workspace: Workspace, to: str) -> None:
    workspace.jsonl("in/a.jsonl", 20)
    convert(workspace, to)
    min((workspace.root / "out").glob("*.tar")).unlink()
    convert(workspace, to)
    assert texts(workspace, to) == list(range(20))


@pytest.mark.slow
@pytest.mark.parametrize("to", TARGETS)
def test_metadata_that_was_changed_is_found_by_verify_and_written_again(workspace: Workspace, to: str) -> None:
    workspace.jsonl("in/a.jsonl", 20)
    convert(workspace, to)
    path = workspace.root / "out" / TARGETS[to][0]
    content = path.read_bytes()
    other_number = re.sub(rb"\d(\D*)\Z", lambda found: b"%d" % (9 - int(found[0][:1])) + found[1], content)
    assert len(other_number) == len(content)
    for changed in (other_number, content + b"\n"):
        path.write_bytes(changed)
        found = workspace.run("ledger", "verify", "L", "--json")
        assert (found.status, [problem["output"] for problem in found.json["problems"]]) == (1, [str(path)])
        told = workspace.run("ledger", "verify", "L")
        assert f"{path}: expected" in told.out
        assert f"run its job again with --to {to}" in told.out
        workspace.run("ledger", "verify", "L", "--sizes-only", status=len(changed) != len(content))
        ran = convert(workspace, to)
        assert f"{path}: expected" in ran.out
        assert "published as" in ran.out
        assert path.read_bytes() == content
    path.unlink()
    assert "found no such file" in workspace.run("ledger", "verify", "L").out
    convert(workspace, to)
    whole = workspace.run("ledger", "verify", "L", "--json")
    assert (whole.status, whole.json["metadata"] > 0, whole.json["problems"]) == (0, True, [])


@pytest.mark.slow
def test_metadata_of_routes_is_compared_as_well(workspace: Workspace) -> None:
    workspace.jsonl("in/a.jsonl", 20)
    (workspace.root / "routing.py").write_text(
        "from ledgerbeam import Route\n\ndef split(record):\n"
        "    sample = {'txt': record['text'], 'json': b'{}'}\n"
        "    return Route('odd', sample) if record['id'] % 2 else sample\n"
    )
    job = ("map", "routing:split", "in/a.jsonl", "--output", "out", "--to", "webdataset", "--ledger", "L")
    assert workspace.run(*job).status == 0
    path = workspace.root / "out/odd/wids.json"
    content = path.read_bytes()
    path.write_bytes(content.replace(b'"nsamples": 10', b'"nsamples": 11'))
    found = workspace.run("ledger", "verify", "L", "--json")
    assert [problem["output"] for problem in found.json["problems"]] == [str(path)]
    assert workspace.run(*job).status == 0
    assert path.read_bytes() == content


@pytest.mark.slow
def test_verify_passes_over_metadata_of_shards_that_were_replaced(workspace: Workspace) -> None:
    workspace.jsonl("in/a.jsonl", 20)
    convert(workspace, "webdataset")
    workspace.jsonl("in/a.jsonl", 30)
    convert(workspace, "tar")
    (workspace.root / "out/wids.json").unlink()
    assert workspace.run("ledger", "verify", "L", "--json").json["metadata"] == 0
    workspace.jsonl("in/b.jsonl", 3)
    assert workspace.run("ledger", "verify", "L").status == 0


@pytest.mark.slow
@pytest.mark.parametrize("to", TARGETS)
def test_a_job_that_is_killed_before_it_publishes_does_so_when_it_runs_again(workspace: Workspace, to: str) -> None:
    workspace.jsonl("in/a.jsonl", 20)
    run(workspace, to, env={"LEDGERBEAM_FAULT": "published.before:1"}, status=-9)
    assert not (workspace.root / "out" / TARGETS[to][0]).exists()
    ran = convert(workspace, to, "--json")
    assert ran.json["skipped"] == 1
    assert texts(workspace, to) == list(range(20))


@pytest.mark.slow
def test_a_kill_after_publishing_leaves_no_note_that_is_out_of_date(workspace: Workspace) -> None:
    workspace.jsonl("in/a.jsonl", 20)
    convert(workspace, "lit")
    expected = workspace.files("out")
    workspace.jsonl("in/a.jsonl", 20, first=20)
    run(workspace, "lit", env={"LEDGERBEAM_FAULT": "published.after:1"}, status=-9)
    assert texts(workspace, "lit") == list(range(20, 40))
    workspace.jsonl("in/a.jsonl", 20)  # the shards are those of the first run again
    convert(workspace, "lit")
    assert workspace.files("out") == expected


@pytest.mark.slow
def test_failed_tasks_publish_nothing(workspace: Workspace) -> None:
    workspace.jsonl("in/a.jsonl", 10)
    failing = ("map", "functions:bad_seven", "in/a.jsonl", "--output", "out", "--to", "lit", "--ledger", "L", "--json")
    ran = workspace.run(*failing)
    assert (ran.status, ran.json["published"]) == (3, [])
    assert "out: not published as lit, because records are missing" in ran.err
    assert not list((workspace.root / "out").glob("*.json"))


@pytest.mark.slow
def test_shards_that_cannot_be_the_dataset_are_kept_and_the_error_says_what_to_do(workspace: Workspace) -> None:
    for folder in "xy":
        workspace.jsonl(f"in/{folder}/a.jsonl", 3)
    ran = run(workspace, "lit", source="in/**/*.jsonl", status=2, err="LIT needs unique base names of shards")
    assert not (workspace.root / "L").exists()
    for _ in range(2):
        ran = run(workspace, "energon", source="in/**/*.jsonl", status=1)
        assert "all outputs are written and recorded, but not the metadata of energon" in ran.err
        assert "--to webdataset" in ran.err
    assert "2 tasks done" in ran.out
    ran = convert(workspace, "webdataset", "--json", source="in/**/*.jsonl")
    assert ran.json["skipped"] == 2
    assert texts(workspace, "webdataset") == [0, 1, 2, 0, 1, 2]


@pytest.mark.slow
def test_no_dataset_is_made_of_no_records(workspace: Workspace) -> None:
    workspace.jsonl("in/a.jsonl", 3)
    for to in TARGETS:
        ran = workspace.run("map", "functions:drop", "in/a.jsonl", "--output", to, "--to", to, "--ledger", f"L-{to}")
        assert ran.status == 0, ran.err
        assert "0 kept" in ran.out
        assert not workspace.files(to)


@pytest.mark.slow
def test_samples_that_lit_would_take_for_one_are_told(workspace: Workspace) -> None:
    (workspace.root / "in").mkdir()
    samples = [Sample(f"clip.{i}", {"wav": b"RIFF", "json": b"{}"}) for i in range(3)]
    (workspace.root / "in/a.tar").write_bytes(encode_tar(samples, group="pairs")[0])
    for to in ("lit", "energon"):
        run(
            workspace, to, "--group", "pairs", "--task-bytes", "1M", status=3, err="('clip.0': wav, json) would be read"
        )
    assert not (workspace.root / "out/config.json").exists()


refuse_foreign = partial(files.refuse_foreign, kind="earlier metadata of this format")

KINDS = {
    "wids.json": looks.WIDS,
    "config.json": looks.CONFIG_OF_LIT,
    "train.idx.json": looks.INDEX_OF_LIT,
    "fields.json": looks.FIELDS_OF_SHAR,
    "index.idxpack": looks.PACK,
    **looks.META_OF_ENERGON,
}
OTHERS = [b"", b"notes\n", b"{}", b'{"model_type": "gpt2", "n_layer": 12}', b"[1, 2]", bytes(range(256)) * 300]


@pytest.mark.parametrize("name", KINDS)
def test_a_file_of_others_is_named_and_stays(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    refuse_foreign({str(path): KINDS[name].match}, {})
    for content in OTHERS[:2] if name == "train.idx.json" else OTHERS:
        path.write_bytes(content)
        with pytest.raises(UsageError, match=f"{name}: expected no file.*move it away"):
            refuse_foreign({str(path): KINDS[name].match}, {})
        assert path.read_bytes() == content


def test_it_is_looked_for_in_a_store_too() -> None:
    url = "memory://foreign/wids.json"
    refuse_foreign({url: looks.WIDS.match}, {})
    publish_bytes(url, b"mine")
    with pytest.raises(UsageError, match=url):
        refuse_foreign({url: looks.WIDS.match}, {})
    publish_bytes(url, b'{"__kind__": "wids-shard-index-v1"}')
    refuse_foreign({url: looks.WIDS.match}, {})
