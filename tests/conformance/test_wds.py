"""Datasets of many shards: webdataset, wids and Energon read ours, and we theirs."""

from __future__ import annotations

import hashlib
import json
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.peer import Peer
from ledgerbeam.io import Sample
from ledgerbeam.io.datasets.webdataset import open_energon, open_wids, read_wids_index, write_energon, write_wids_index
from ledgerbeam.io.tar.writer import encode_tar
from tests.io.datasets.webdataset.content import plain_samples, samples, write_shards

COUNT = 57


def digests(found: list[Sample], dot: str = "") -> list[list[object]]:
    return [
        [sample.key, {dot + name: hashlib.sha256(data).hexdigest() for name, data in sample.items()}]
        for sample in found
    ]


def test_webdataset_reads_our_shards(webdataset: Peer, tmp_path: Path) -> None:
    shards = write_shards(tmp_path, samples(COUNT))
    found = [sample for shard in shards for sample in webdataset.ask("read", path=f"{tmp_path}/{shard.name}")]
    assert found == digests(samples(COUNT))


def test_wids_reads_our_index(wids: Peer, tmp_path: Path) -> None:
    write_wids_index(f"{tmp_path}/index.json", write_shards(tmp_path, plain_samples(COUNT)))
    found = wids.ask("read", url=f"{tmp_path}/index.json", cache=f"{tmp_path}/cache")
    assert found == digests(plain_samples(COUNT), ".")


def test_we_read_the_index_of_wids_and_write_the_same(wids: Peer, tmp_path: Path) -> None:
    shards = write_shards(tmp_path, plain_samples(COUNT), md5=True)
    files = [f"{tmp_path}/{shard.name}" for shard in reversed(shards)]
    theirs = wids.ask("create", files=files, output=f"{tmp_path}/theirs.json", name="set")
    assert digests(open_wids(f"{tmp_path}/theirs.json")[:]) == digests(plain_samples(COUNT))
    write_wids_index(f"{tmp_path}/ours.json", shards, name="set")
    ours = json.loads((tmp_path / "ours.json").read_text())
    for shard in ours["shardlist"]:
        shard["url"] = f"{tmp_path}/{shard['url']}"
    assert ours == theirs
    assert read_wids_index(f"{tmp_path}/ours.json").shards == read_wids_index(f"{tmp_path}/theirs.json").shards


@pytest.mark.parametrize("table", [False, True])
def test_energon_trains_on_our_dataset(energon: Peer, tmp_path: Path, table: bool) -> None:
    given = plain_samples(COUNT)
    write_energon(str(tmp_path), write_shards(tmp_path, given), sample_table=table)
    numbers = [[sample.key, hashlib.sha256(sample["bin"]).hexdigest(), int(sample["cls"])] for sample in given]
    assert energon.ask("train", folder=str(tmp_path)) == numbers


def test_energon_looks_samples_up_in_our_table(energon: Peer, tmp_path: Path) -> None:
    given = samples(COUNT)
    write_energon(str(tmp_path), write_shards(tmp_path, given))
    keys = [sample.key for sample in reversed(given)]
    assert energon.ask("look_up", folder=str(tmp_path), keys=keys) == [row[1] for row in digests(given[::-1])]


@pytest.mark.parametrize("to", ["webdataset", "energon"])
def test_peers_open_what_a_job_converted(wids: Peer, energon: Peer, tmp_path: Path, to: str) -> None:
    given = plain_samples(COUNT)
    for name, some in (("a", given[:40]), ("b", given[40:])):
        (tmp_path / f"{name}.tar").write_bytes(encode_tar(some, group="key")[0])
    command = ["convert", "*.tar", f"--to={to}", "--group=key", "--output=out", "--ledger=L", "--task-bytes=20K"]
    done = subprocess.run(
        [sys.executable, "-m", "ledgerbeam", *command], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert len(list(tmp_path.glob("out/*.tar"))) > 2
    if to == "webdataset":
        found = wids.ask("read", url=f"{tmp_path}/out/wids.json", cache=f"{tmp_path}/cache")
        assert found == digests(given, ".")
    else:
        numbers = [[sample.key, hashlib.sha256(sample["bin"]).hexdigest(), int(sample["cls"])] for sample in given]
        assert energon.ask("train", folder=f"{tmp_path}/out") == numbers


def test_our_folder_is_the_one_that_energon_prepares(energon: Peer, tmp_path: Path) -> None:
    shards = write_shards(tmp_path, samples(COUNT))
    names = [shard.name for shard in shards]
    write_energon(str(tmp_path), shards)
    folder = tmp_path / ".nv-meta"
    ours = {name: (folder / name).read_bytes() for name in (".info.json", "split.yaml")}
    tables, schema = rows(folder / "index.sqlite")
    for path in folder.iterdir():
        path.unlink()
    indexes = {path: path.read_bytes() for path in tmp_path.glob("*.idx")}
    for path in indexes:
        path.unlink()
    energon.ask("prepare", folder=str(tmp_path), shards=names)
    assert {name: (folder / name).read_bytes() for name in ours} == ours
    assert {path: path.read_bytes() for path in tmp_path.glob("*.idx")} == indexes
    assert rows(folder / "index.sqlite") == (tables, schema)
    assert digests(open_energon(str(tmp_path))[:]) == digests(samples(COUNT))


def test_we_read_what_energon_prepares_of_a_shard_of_webdataset(
    energon: Peer, webdataset: Peer, tmp_path: Path
) -> None:
    webdataset.ask("write", path=f"{tmp_path}/x.tar", samples=19)
    energon.ask("prepare", folder=str(tmp_path), shards=["x.tar"])
    assert digests(open_energon(str(tmp_path))[:]) == webdataset.ask("read", path=f"{tmp_path}/x.tar")


def rows(path: Path) -> tuple[list[list[object]], list[str]]:
    """Return the rows of both tables, and the indexes that they have."""
    table = sqlite3.connect(path)
    found = [table.execute(f"SELECT * FROM {name} ORDER BY 1, 3, 2").fetchall() for name in ("samples", "sample_parts")]
    names = table.execute("SELECT name FROM sqlite_master ORDER BY name").fetchall()
    table.close()
    return found, [name for (name,) in names]
