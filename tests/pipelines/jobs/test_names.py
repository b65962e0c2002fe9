"""Sources of any name: what is made of them lies below the output folder, has a name that fits, and is found again."""

from __future__ import annotations

import gzip
import json
import signal
import tarfile

import pytest

from ledgerbeam.io import Sample
from ledgerbeam.io.datasets.megatron import MegatronReader
from ledgerbeam.io.storage import client
from ledgerbeam.io.tar.writer import encode_tar
from tests.conftest import GcsServer
from tests.pipelines.conftest import Workspace
from tests.pipelines.jobs.test_restart import wait_for
from tests.pipelines.stores.test_s3 import lines

pytestmark = pytest.mark.long

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
    ran = long.run(*job)
    assert ran.status == 0, ran.err
    assert ids(long, "out") == ALL
    assert f"({len(LONG)} skipped" in long.run(*job).out
    assert long.run("ledger", "verify", "L").status == 0
    assert long.run("verify", "in/**/*.json*", "--deep").status == 0
    for number, name in enumerate(LONG):
        shown = long.run("show", f"in/{name}", "-1")
        assert json.loads(shown.out)["id"] == 1000 * number + 39
    assert {path.name for path in long.root.iterdir()} <= {"functions.py", "in", "out", "L", "__pycache__"}
    clean = long.run("map", "functions:slow", *job[2:-6], "--output", "clean", "--to", "jsonl")
    assert clean.status == 0, clean.err
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
    ran = long.run("convert", "in/**/*.json*", "--output", "tar", "--to", "webdataset")
    assert ran.status == 0, ran.err
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
    row = {
        "tokens": [1, 2],
        "id": "x",
        "type": "MonoCut",
        "start": 0,
        "duration": 1.0,
        "channel": 0,
        "supervisions": [],
    }
    for name in LONG:
        rows = ({**row, "id": f"{name[:9]}-{number}"} for number in range(40))
        (long.root / "in" / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    for to in ("shar", "megatron"):
        ran = long.run("convert", "in/**/*.json*", "--output", f"{to}/all", "--to", to)
        assert ran.status == 0, ran.err
    cuts = [name for name in long.files("shar/all") if name.endswith(".cuts.jsonl")]
    assert len(cuts) == len(LONG)
    assert {f"{name}.idx" for name in cuts} <= long.files("shar/all").keys()
    assert len(MegatronReader(str(long.root / "megatron/all"))) == len(ALL)


def test_long_names_are_tokenized(long: Workspace) -> None:
    ran = long.run("tokenize", "in/**/*.json*", "--tokenizer", "bytes", "--output", "t/text", "--drop-parts")
    assert ran.status == 0, ran.err
    assert len(MegatronReader(str(long.root / "t/text"))) == len(ALL)


@pytest.mark.parametrize("size", [200, 240, 255])
def test_long_names_of_compressed_sources_have_seek_points(workspace: Workspace, size: int) -> None:
    name = "z" * (size - len(".jsonl.gz")) + ".jsonl.gz"
    (workspace.root / "in").mkdir()
    (workspace.root / "in" / name).write_bytes(gzip.compress(lines(0, 5000), mtime=0))
    ran = workspace.run("index", "in/*.gz")
    assert ran.status == 0, ran.err
    assert len(workspace.files("in")) == 3
    assert workspace.run("verify", "in/*.gz").status == 0
    ran = workspace.run("map", "functions:keep", "in/*.gz", "--output", "out", "--to", "jsonl", "--task-bytes", "20K")
    assert ran.status == 0, ran.err
    assert ids(workspace, "out") == list(range(5000))


def test_a_long_name_of_a_tar_is_read_by_key_and_in_pairs(workspace: Workspace) -> None:
    name = "t" * 251 + ".tar"
    (workspace.root / "in").mkdir()
    (workspace.root / "in" / name).write_bytes(encode_tar([Sample(f"{i}", {"txt": b"x"}) for i in range(20)])[0])
    ran = workspace.run("map", "functions:members", "in/*.tar", "--output", "out", "--to", "jsonl")
    assert ran.status == 0, ran.err
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
        ran = workspace.run(*job, "--ledger", ledger, *options, env={"LEDGERBEAM_CACHE": str(workspace.root / "cache")})
        assert ran.status == 0, ran.err
    verified = workspace.run("ledger", "verify", ledger, *options)
    assert verified.status == 0, verified.err
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
    assert {path.name for path in workspace.root.iterdir()} <= {
        "functions.py",
        "list",
        "L",
        "deep",
        "cache",
        "__pycache__",
    }
