"""Tar archives and WebDataset shards: webdataset, wids, tarfile and Energon read ours, and we theirs."""

from __future__ import annotations

import hashlib
import json
import os
import random
import sqlite3
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.peer import Peer
from ledgerbeam.io import Sample, TarReader, write_index
from ledgerbeam.io.datasets.webdataset import open_energon, open_wids, read_wids_index, write_energon, write_wids_index
from ledgerbeam.io.tar.grouping import split_key
from ledgerbeam.io.tar.reader import build_tar_index
from ledgerbeam.io.tar.walk import walk_tar
from ledgerbeam.io.tar.writer import encode_tar
from tests.conformance.conftest import SKIPPED, run_ledgerbeam
from tests.io.datasets.webdataset.content import plain_samples, samples, write_shards

SAMPLES = {
    "plain": [Sample(f"sample-{number:05d}", {"txt": b"text", "bin": bytes(number)}) for number in range(300)],
    "many-dots": [Sample(f"dir.a/s{number}", {"seg.png": b"png", "cls": b"1", "a..b": b""}) for number in range(9)],
    "long-names": [Sample(f"{'folder/' * 20}sample-{number}", {"txt": b"x" * number}) for number in range(50)],
    "not-ascii": [Sample(f"größe/漢字-{number}", {"txt": b"x", "ü": b"y"}) for number in range(50)],
    "one-member": [Sample(f"s{number}", {"json": b"{}"}) for number in range(513)],
    "none": [],
}


def digests(samples: list[Sample], dot: str = "") -> list[list[object]]:
    return [
        [sample.key, {dot + name: hashlib.sha256(data).hexdigest() for name, data in sample.items()}]
        for sample in samples
    ]


def random_samples(seed: int) -> Iterator[Sample]:
    chance = random.Random(seed)
    for number in range(200):
        extensions = chance.sample(["jpg", "seg.png", "txt", "json", "cls"], chance.randint(1, 5))
        members = {extension: chance.randbytes(chance.choice([0, 1, 511, 512, 513, 3000])) for extension in extensions}
        yield Sample(f"{'d' * chance.randint(1, 120)}/{number}", members)


@pytest.mark.parametrize("name", SAMPLES)
def test_webdataset_and_tarfile_read_what_we_write(webdataset: Peer, tmp_path: Path, name: str) -> None:
    samples = SAMPLES[name]
    path = tmp_path / "shard.tar"
    path.write_bytes(encode_tar(samples, group="key")[0])
    if samples:  # webdataset calls an empty shard an error
        assert webdataset.ask("read", path=str(path)) == digests(samples)
    with tarfile.open(path) as archive:
        found = [(member.name, archive.extractfile(member).read()) for member in archive]  # type: ignore[union-attr]
    assert found == [(f"{sample.key}.{extension}", sample[extension]) for sample in samples for extension in sample]


def test_we_read_what_webdataset_writes(webdataset: Peer, tmp_path: Path) -> None:
    path = str(tmp_path / "shard.tar")
    webdataset.ask("write", path=path, samples=400)
    write_index(f"{path}.idx", build_tar_index(path, group="key"))
    with TarReader(path, group="key") as reader:
        assert digests([reader[number] for number in range(len(reader))]) == webdataset.ask("read", path=path)


SHARDS = ("ours", "webdataset", "strangers")


@pytest.mark.parametrize("kind", SHARDS)
def test_key_indexes_are_the_bytes_that_energon_writes(
    energon: Peer, webdataset: Peer, tmp_path: Path, kind: str
) -> None:
    path = tmp_path / "shard.tar"
    if kind == "ours":
        path.write_bytes(encode_tar(list(random_samples(5)), group="key")[0])
    elif kind == "webdataset":  # with pax headers
        webdataset.ask("write", path=str(path), samples=300)
    else:
        write_with_strangers(path)
    ours = build_tar_index(str(path), group="key")
    energon.ask("prepare", folder=str(tmp_path), shards=[path.name])
    index = tmp_path / f"{path.name}.idx"
    assert ours.astype("<u8").tobytes() == index.read_bytes()
    index.unlink()
    write_index(str(index), ours)
    assert energon.ask("offsets", path=str(path)) == ours.tolist()


def test_names_are_parted_as_energon_parts_them(energon: Peer) -> None:
    pieces = ["a", "b.c", ".", "..", "/", "__m__", "x.jpg", ".hidden", "__", "é", " "]
    chance = random.Random(4)
    names = ["".join(chance.choices(pieces, k=chance.randint(1, 5))) for _ in range(3000)]
    theirs = [part and tuple(part) for part in energon.ask("split", names=names)]
    for name, parts in zip(names, theirs, strict=True):
        is_hidden = name.rpartition("/")[2].startswith(".")  # Energon makes samples of them, with a folder as key
        assert split_key(name) == (None if is_hidden else parts), name


def write_with_strangers(path: Path) -> None:
    """Write samples whose members lie between members that belong to none."""
    with tarfile.open(path, "w", format=tarfile.GNU_FORMAT) as archive:
        for number in range(1, 60):
            folder = f"folder-{number}"
            long = f"{folder}/{'n' * number * 3}"
            regular = [f"{long}.a.txt", f"{long}.b.txt", "__meta__/x.txt", f"{folder}/nodot", ".hidden"]
            for name in regular:
                archive.addfile(tarfile.TarInfo(name))
            for name, kind in ((folder, tarfile.DIRTYPE), (f"{long}.link.txt", tarfile.SYMTYPE)):
                member = tarfile.TarInfo(name)
                member.type = kind
                member.linkname = "target" if kind == tarfile.SYMTYPE else ""
                archive.addfile(member)


COUNT = 57


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
    options = ["--group=key", "--output=out", "--ledger=L", "--task-bytes=20K"]
    run_ledgerbeam(tmp_path, "convert", "*.tar", f"--to={to}", *options)
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


CORPUS = Path(__file__).resolve().parents[2] / ".cache" / "corpus"
ARCHIVES = sorted(CORPUS.glob("*.tar"))
LEAST = 10  # registries come and go; fewer archives than that would not be a corpus

fetched = pytest.mark.skipif("LEDGERBEAM_CONFORMANCE" not in os.environ, reason=SKIPPED)


@fetched
def test_there_are_archives_of_several_formats() -> None:
    assert len(ARCHIVES) >= LEAST, f"{CORPUS} holds {len(ARCHIVES)} archives: run scripts/fetch_corpus.sh"
    kinds = {magic(path) for path in ARCHIVES}
    assert {b"ustar\x0000", b"ustar  \x00"} <= kinds


@fetched
@pytest.mark.parametrize("path", ARCHIVES, ids=lambda path: path.name)
def test_our_walk_finds_what_tarfile_finds(path: Path) -> None:
    with tarfile.open(path, "r:", errorlevel=2) as archive:
        expected = archive.getmembers()
    found = walk_tar(str(path))
    assert found.names == [member.name for member in expected]
    assert found.header_offset.tolist() == [member.offset for member in expected]
    assert found.data_offset.tolist() == [member.offset_data for member in expected]
    assert found.size.tolist() == [member.size if member.isreg() else 0 for member in expected]
    assert [kind_of(kind) for kind in found.kind.tolist()] == [kind_of(member.type[0]) for member in expected]


def kind_of(flag: int) -> str:
    """Return a type flag; plain files have two."""
    return "0" if flag == 0 else chr(flag)


def magic(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(512)[257:265]
