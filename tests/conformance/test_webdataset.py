"""WebDataset shards: webdataset, tarfile and Energon read what we write, and index what we index alike."""

from __future__ import annotations

import hashlib
import random
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.peer import Peer
from ledgerbeam.io import Sample, TarReader, write_index
from ledgerbeam.io.tar.grouping import split_key
from ledgerbeam.io.tar.reader import build_tar_index
from ledgerbeam.io.tar.writer import encode_tar

SAMPLES = {
    "plain": [Sample(f"sample-{number:05d}", {"txt": b"text", "bin": bytes(number)}) for number in range(300)],
    "many-dots": [Sample(f"dir.a/s{number}", {"seg.png": b"png", "cls": b"1", "a..b": b""}) for number in range(9)],
    "long-names": [Sample(f"{'folder/' * 20}sample-{number}", {"txt": b"x" * number}) for number in range(50)],
    "not-ascii": [Sample(f"größe/漢字-{number}", {"txt": b"x", "ü": b"y"}) for number in range(50)],
    "one-member": [Sample(f"s{number}", {"json": b"{}"}) for number in range(513)],
    "none": [],
}


def digests(samples: list[Sample]) -> list[list[object]]:
    return [
        [sample.key, {name: hashlib.sha256(data).hexdigest() for name, data in sample.items()}] for sample in samples
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
