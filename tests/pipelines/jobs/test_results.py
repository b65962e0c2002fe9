"""Results of functions, and sources and outputs of any name."""

from __future__ import annotations

import gzip
import json
import re
import signal
import tarfile
from pathlib import Path
from typing import Any

import pytest

from ledgerbeam.io import Sample, TarReader
from ledgerbeam.io.datasets.megatron import MegatronReader
from ledgerbeam.io.storage import client
from ledgerbeam.io.tar.writer import encode_tar
from tests.conftest import GcsServer
from tests.pipelines.conftest import Ran, Workspace
from tests.pipelines.jobs.test_restart import wait_for
from tests.pipelines.stores.test_s3 import lines

pytestmark = pytest.mark.long

RESULTS = """
import numpy as np

kept = {}

def keep(record):
    return record

def is_odd(record):
    return record["id"] % 2 == 1

def is_odd_numpy(record):
    return np.bool_(record["id"] % 2)

def only_true(record):
    return record["id"] == 7 or record

def in_a_list(record):
    return [record, record["id"] > 3]

def number(record):
    return record["id"]

def text(record):
    return record["text"]

def raw(record):
    return b"x"

def none_in_a_list(record):
    return [record, None]

def numpy_number(record):
    return np.float64(record["id"])

def double(value):
    return value * 2

def negated(value):
    return not value

def nan(record):
    return {"id": record["id"], "deep": [{"score": float("nan") if record["id"] == 3 else None}]}

def infinite(record):
    return {"id": float("-inf")} if record["id"] % 4 == 0 else record

def wide(record):
    return {"id": record["id"] + 2**70, "low": -2**63 - record["id"], "text": "12345678901234567890"}

def reused(record):
    kept["id"] = record["id"]
    kept["parts"] = kept.get("parts", [])
    kept["parts"][:] = [record["id"]] * 3
    return kept

buffer, members = bytearray(8), {}

def reused_members(record):
    buffer[:] = b"%08d" % record["id"]
    members["txt"], members["bin"] = buffer, memoryview(buffer)
    return members

many = [{}]

def reused_list(record):
    many[0]["id"] = record["id"]
    return many
"""


@pytest.fixture
def results(workspace: Workspace) -> Workspace:
    (workspace.root / "results.py").write_text(RESULTS)
    workspace.jsonl("in/a.jsonl", 10)
    return workspace


def mapped(
    workspace: Workspace, function: str, *options: str, source: str = "in/a.jsonl", to: str = "jsonl", **how: Any
) -> Ran:
    command = ("map", f"results:{function}", source, "--output", "out", "--to", to, "--ledger", "L", *options)
    ran = workspace.run(*command, **how)
    assert "Traceback" not in ran.err
    return ran


@pytest.mark.parametrize(
    ("function", "record", "found"),
    [
        ("is_odd", 0, r"a bool \(False\)"),
        ("is_odd_numpy", 0, r"a bool_? \(False\)"),
        ("only_true", 7, r"a bool \(True\)"),
        ("in_a_list", 0, r"a bool \(False\)"),
        ("number", 0, "an? int"),
        ("text", 0, "a str"),
        ("raw", 0, "a bytes"),
        ("none_in_a_list", 0, "a NoneType"),
        ("numpy_number", 0, "a float64"),
    ],
)
def test_what_is_no_record_fails_its_task(results: Workspace, function: str, record: int, found: str) -> None:
    ran = mapped(results, function, status=3)
    assert re.search(rf"a\.jsonl, record {record}: results:{function} returned {found}", ran.err), ran.err
    remedy = "return record if ... else None" if "bool" in found else "return the whole record"
    assert remedy in ran.err
    assert results.files("out") == {}


@pytest.mark.parametrize("function", ["is_odd", "number"])
def test_what_is_no_sample_fails_its_task(results: Workspace, function: str) -> None:
    mapped(results, function, to="tar", status=3, err=f"results:{function} returned a")


def test_scalars_become_scalars_and_booleans_come_of_booleans_only(results: Workspace) -> None:
    values = [1, 2.5, "x", [1, 2]]
    results.write("in/values.jsonl", values)
    assert mapped(results, "double", source="in/values.jsonl").status == 0
    assert results.records("out") == [2, 5.0, "xx", 1, 2, 1, 2]
    (results.root / "in/flags.jsonl").write_text("true\nfalse\n")
    assert mapped(results, "negated", "--on-job-change", "restart", source="in/flags.jsonl").status == 0
    assert results.records("out")[:2] == [False, True]
    mapped(results, "negated", "--on-job-change", "restart", source="in/values.jsonl", status=3, err="returned a bool")


def test_nan_is_refused_with_its_record_and_its_place(results: Workspace) -> None:
    mapped(results, "nan", status=3, err=("a.jsonl, record 3: output record 3: deep[0].score is nan", "--nan null"))
    assert results.files("out") == {}
    rows = results.run("ledger", "failures", "L", "--json").json
    assert "RecordError" in json.dumps(rows)


def test_nan_is_written_as_null_and_counted_once_whatever_is_run_again(results: Workspace) -> None:
    results.jsonl("in/b.jsonl", 6)
    options = ("--nan", "null", "--task-bytes", "200")
    ran = mapped(results, "infinite", *options, source="in/*.jsonl", status=0)
    assert "5 numbers that JSON does not have (NaN, infinities) written as null so far" in ran.out
    assert [record["id"] for record in results.records("out")][:5] == [None, 1, 2, 3, None]
    assert results.run("ledger", "status", "L", "--json").json["nulled"] == 5
    assert "5 numbers that JSON does not have" in results.run("ledger", "status", "L").out
    again = mapped(results, "infinite", *options, "--json", source="in/*.jsonl")
    assert (again.json["nulled"], again.json["skipped"]) == (5, 2)
    results.jsonl("in/b.jsonl", 1, first=1)
    assert mapped(results, "infinite", *options, "--json", source="in/*.jsonl").json["nulled"] == 3


def test_what_becomes_of_nan_is_part_of_the_job(results: Workspace) -> None:
    assert mapped(results, "keep").status == 0
    mapped(results, "keep", "--nan", "null", status=1, err="nan: was 'refuse', is 'null'")
    assert mapped(results, "reused_members", "--nan", "null", to="tar").status == 2


def test_integers_beyond_64_bits_survive(results: Workspace) -> None:
    assert mapped(results, "wide").status == 0
    wide = [{"id": 2**70 + n, "low": -(2**63) - n, "text": "12345678901234567890"} for n in range(10)]
    assert results.records("out") == wide
    first = results.root / "out/a.jsonl-0000000000.jsonl"
    packed = Path(f"{first}.gz")
    packed.write_bytes(gzip.compress(first.read_bytes()))
    for number, (source, *options) in enumerate(
        [(first,), (first, "--pack", "1M"), (packed,), (first, "--task-bytes", "300")]
    ):
        ran = results.run("map", "results:keep", source, "--output", f"out{number}", "--to", "jsonl", *options)
        assert ran.status == 0, ran.err
        assert results.records(f"out{number}") == wide
    shown = results.run("show", first, "3", "-1")
    assert [json.loads(line) for line in shown.out.splitlines()] == [wide[3], wide[-1]]
    assert results.run("show", first, "3", "--json").json["records"][0]["value"] == wide[3]
    assert results.run("convert", first, "--output", "tar", "--to", "tar").status == 0
    assert results.run("convert", "tar/*.tar", "--output", "back", "--to", "jsonl").status == 0
    assert [record["json"] for record in results.records("back")] == wide


@pytest.mark.parametrize("function", ["reused", "reused_list"])
@pytest.mark.parametrize("check", [(), ("--audit=off",)])
def test_one_object_that_is_reused_is_every_record(results: Workspace, function: str, check: tuple[str, ...]) -> None:
    results.jsonl("in/a.jsonl", 40)
    assert mapped(results, function, *check).status == 0
    assert [record["id"] for record in results.records("out")] == list(range(40))
    if function == "reused":
        assert [record["parts"] for record in results.records("out")] == [[n] * 3 for n in range(40)]


def test_one_buffer_returned_again_and_again_is_every_sample(results: Workspace) -> None:
    results.jsonl("in/a.jsonl", 40)
    assert mapped(results, "reused_members", to="tar").status == 0
    with TarReader(str(results.root / "out/a.jsonl-0000000000.tar")) as reader:
        assert [dict(sample) for sample in reader] == [{"txt": b"%08d" % n, "bin": b"%08d" % n} for n in range(40)]


GRAPH = """
from ledgerbeam.iterators import IndexedManifest, Map

kept = {}

def reuse(record):
    kept["id"] = record["id"]
    return kept

def nan(record):
    return {"id": record["id"], "score": float("nan")}

def items():
    return Map(IndexedManifest("in/a.jsonl"), reuse)

def broken():
    return Map(IndexedManifest("in/a.jsonl"), nan)
"""


@pytest.mark.parametrize("to", ["jsonl", "tar"])
def test_a_graph_that_gives_one_object_again_and_again(results: Workspace, to: str) -> None:
    (results.root / "graphs.py").write_text(GRAPH)
    assert results.run("index", "in/a.jsonl").status == 0
    results.run("materialize", "graphs:items", "--output", "out", "--to", to, status=0)
    if to == "tar":
        assert results.run("convert", "out/**/*.tar", "--output", "lines", "--to", "jsonl").status == 0
        assert [record["json"]["id"] for record in results.records("lines")] == list(range(10))
    else:
        assert [record["id"] for record in results.records("out")] == list(range(10))
    results.run("materialize", "graphs:broken", "--output", "broken", "--to", to, status=3, err="score is nan")


LONG = [
    *(
        letter * ((size - len(".jsonl")) // len(letter.encode())) + ".jsonl"
        for letter in "a語"
        for size in (200, 240, 255)
    ),
    "b" * 250 + ".json",
    "a" * 248 + "b.jsonl",  # differs from another behind the cut
    ("c" * 255 + "/") + "d" * 249 + ".jsonl",
]
"""Names up to the longest that a file system takes."""


@pytest.fixture
def long(workspace: Workspace) -> Workspace:
    for number, name in enumerate(LONG):
        workspace.jsonl(f"in/{name}", 40, first=1000 * number)
    return workspace


def ids(workspace: Workspace, folder: str) -> list[int]:
    return sorted(record["id"] for record in workspace.records(folder))


ALL = sorted(1000 * number + i for number in range(len(LONG)) for i in range(40))


def test_a_map_over_long_names_is_killed_goes_on_and_is_skipped(long: Workspace) -> None:
    to = ("--output", "out", "--to", "jsonl", "--ledger", "L", "--flush-interval", "0.1")
    job = ("map", "functions:slow", "in/**/*.json*", "--task-bytes", "500", *to)
    process = long.start(*job)
    wait_for(lambda: len(long.files("out")) > 4, process)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    long.run(*job, status=0)
    assert ids(long, "out") == ALL
    assert f"({len(LONG)} skipped" in long.run(*job).out
    assert long.run("ledger", "verify", "L").status == 0
    assert long.run("verify", "in/**/*.json*", "--deep").status == 0
    for number, name in enumerate(LONG):
        shown = long.run("show", f"in/{name}", "-1")
        assert json.loads(shown.out)["id"] == 1000 * number + 39
    assert {path.name for path in long.root.iterdir()} <= {"functions.py", "in", "out", "L", "__pycache__"}
    long.run("map", "functions:slow", *job[2:-6], "--output", "clean", "--to", "jsonl", status=0)
    assert long.files("clean") == long.files("out")


@pytest.mark.parametrize("rule", ["scheme", "lhotse"])
def test_long_names_have_indexes_under_a_root(long: Workspace, rule: str) -> None:
    place = ("--index-root", "indexes", "--index-rule", rule)
    assert long.run("index", "in/**/*.json*", *place, "--workers", "2").status == 0
    assert len(long.files("indexes")) == len(LONG)
    assert not any(name.endswith(".idx") for name in long.files("in"))
    assert long.run("verify", "in/**/*.json*", *place).status == 0
    again = long.run("index", "in/**/*.json*", *place)
    assert f"({len(LONG)} skipped" in again.out


def test_long_names_are_converted_to_tar(long: Workspace) -> None:
    long.run("convert", "in/**/*.json*", "--output", "tar", "--to", "webdataset", status=0)
    shards = [name for name in long.files("tar") if name.endswith(".tar")]
    assert {f"{name}.idx" for name in shards} <= long.files("tar").keys()
    wids = json.loads((long.root / "tar/wids.json").read_text())
    assert sorted(shard["url"] for shard in wids["shardlist"]) == sorted(shards)
    members = 0
    for name in shards:
        with tarfile.open(long.root / "tar" / name) as archive:
            members += len(archive.getnames())
    assert members == len(ALL)


def test_long_names_are_converted_to_shar_and_megatron(long: Workspace) -> None:
    row = {"tokens": [1, 2], "type": "MonoCut", "start": 0, "duration": 1.0, "channel": 0, "supervisions": []}
    for name in LONG:
        long.write(f"in/{name}", ({**row, "id": f"{name[:9]}-{number}"} for number in range(40)))
    for to in ("shar", "megatron"):
        long.run("convert", "in/**/*.json*", "--output", f"{to}/all", "--to", to, status=0)
    cuts = [name for name in long.files("shar/all") if name.endswith(".cuts.jsonl")]
    assert len(cuts) == len(LONG)
    assert {f"{name}.idx" for name in cuts} <= long.files("shar/all").keys()
    assert len(MegatronReader(str(long.root / "megatron/all"))) == len(ALL)


def test_long_names_are_tokenized(long: Workspace) -> None:
    long.run("tokenize", "in/**/*.json*", "--tokenizer", "bytes", "--output", "t/text", "--drop-parts", status=0)
    assert len(MegatronReader(str(long.root / "t/text"))) == len(ALL)


@pytest.mark.parametrize("size", [200, 240, 255])
def test_long_names_of_compressed_sources_have_seek_points(workspace: Workspace, size: int) -> None:
    name = "z" * (size - len(".jsonl.gz")) + ".jsonl.gz"
    (workspace.root / "in").mkdir()
    (workspace.root / "in" / name).write_bytes(gzip.compress(lines(0, 5000), mtime=0))
    workspace.succeed("index", "in/*.gz")
    assert len(workspace.files("in")) == 3
    assert workspace.run("verify", "in/*.gz").status == 0
    workspace.succeed("map", "functions:keep", "in/*.gz", "--output", "out", "--to", "jsonl", "--task-bytes", "20K")
    assert ids(workspace, "out") == list(range(5000))


def test_a_long_name_of_a_tar_is_read_by_key_and_in_pairs(workspace: Workspace) -> None:
    name = "t" * 251 + ".tar"
    (workspace.root / "in").mkdir()
    (workspace.root / "in" / name).write_bytes(encode_tar([Sample(f"{i}", {"txt": b"x"}) for i in range(20)])[0])
    workspace.succeed("map", "functions:members", "in/*.tar", "--output", "out", "--to", "jsonl")
    assert len(workspace.records("out")) == 20


ODD = ("../../../escaped.jsonl", "a/../../b.jsonl", "a/./b.jsonl", "a//b.jsonl", "%2E%2E/b.jsonl", "~a/100%.jsonl")
"""Keys that would lead out of a folder, or meet in one."""


@pytest.mark.stores
@pytest.mark.parametrize("output", ["local", "remote"])
def test_keys_with_dots_stay_below_the_output(workspace: Workspace, gcs: GcsServer, output: str) -> None:
    place = gcs.place()
    bucket = place.removeprefix("gs://")
    store = client.filesystem(place, gcs.options)
    for number, key in enumerate(ODD):
        store.pipe_file(f"{bucket}/in/{key}", lines(100 * number, 10))
    listed = sorted(f"{place}/in/{key}" for key in ODD)
    work = workspace.root / "deep" / "below"
    work.mkdir(parents=True)
    (workspace.root / "list").write_text("".join(f"{url}\n" for url in listed))
    before = set(store.find(bucket))
    assert before == {url.removeprefix("gs://") for url in listed}
    out = "deep/below/out" if output == "local" else f"{place}/deep/below/out"
    ledger = "L" if output == "local" else f"{place}/L"
    options = ("--storage-options", json.dumps(gcs.options))
    job = ("map", "functions:keep", "--sources-from", "list", "--base", f"{place}/in", "--output", out, "--to", "jsonl")
    for _ in range(2):  # a remote ledger is read anew by the second
        workspace.succeed(*job, "--ledger", ledger, *options, env={"LEDGERBEAM_CACHE": str(workspace.root / "cache")})
    workspace.succeed("ledger", "verify", ledger, *options)
    if output == "local":
        found = [
            line
            for name, data in workspace.files("deep/below/out").items()
            if name.endswith(".jsonl")
            for line in data.splitlines()
        ]
        assert sorted(
            path.name for path in (workspace.root / "deep").rglob("*") if path.is_dir() and path.parent == work
        ) == ["out"]
    else:
        store.invalidate_cache()
        names = [name for name in store.find(f"{bucket}/deep/below/out") if name.endswith(".jsonl")]
        found = [line for name in names for line in store.cat_file(name).splitlines()]
    assert sorted(json.loads(line)["id"] for line in found) == sorted(
        100 * n + i for n in range(len(ODD)) for i in range(10)
    )
    left = {"functions.py", "list", "L", "deep", "cache", "__pycache__"}
    assert {path.name for path in workspace.root.iterdir()} <= left
