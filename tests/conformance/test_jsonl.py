"""Indexes of JSONL and packs of indexes: ours and lhotse's are the same bytes, and each reads through the other's."""

from __future__ import annotations

import json
import random
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from benchmarks.peer import Peer
from ledgerbeam.errors import RecordError
from ledgerbeam.io import JsonlReader, write_index
from ledgerbeam.io.idxpack.reader import IndexPack
from ledgerbeam.io.idxpack.writer import PackArray, PackSources, layout_hash, write_index_pack
from ledgerbeam.io.index.newlines import build_jsonl_index
from ledgerbeam.io.tar.reader import build_tar_index
from tests.iterators.data import write_lines, write_samples

CASES: dict[str, bytes] = {
    "empty": b"",
    "one": b'{"a":1}\n',
    "two": b'{"a":1}\n{"b":2}\n',
    "no-trailing-newline": b'{"a":1}\n{"b":2}',
    "blank-lines": b'\n{"a":1}\n\n \t\n{"b":2}\n\n',
    "only-newlines": b"\n\n\n",
    "crlf": b'{"a":1}\r\n{"b":2}\r\n',
    "lone-cr": b'{"a":1}\r{"b":2}\n',
    "bom": b'\xef\xbb\xbf{"a":1}\n{"b":2}\n',
    "unicode-separators": '{"a":"\u2028\u2029\x85"}\n{"ü":"漢字"}\n'.encode(),
    "control-characters": b'{"a":"\x00\x0b\x0c"}\n{"b":2}\n',
    "bad-utf8": b'{"a":"\xff"}\n{"b":2}\n',
    "bad-json": b'{"a":1}\n{"b":\n{"c":3}\n',
    "long-line": b'{"a":"' + b"x" * 5_000_000 + b'"}\n{"b":2}\n',
    "short-lines": b"1\n" * 300_000,
    "scalars": b'1\n"two"\n[3]\nnull\ntrue\n',
}
UNREADABLE = {"only-newlines", "bad-utf8", "bad-json", "lone-cr", "bom", "control-characters"}
READABLE = [name for name in CASES if name not in UNREADABLE]
RANDOM_FILES = 300


def random_file(chance: random.Random) -> bytes:
    pieces = [b"\n", b"\r\n", b"\r", b" ", b'{"a":1}', b"x" * chance.randint(0, 3000), "ü\u2028".encode(), b"\x00"]
    return b"".join(chance.choice(pieces) for _ in range(chance.randint(0, 200)))


def lhotse_indexes(lhotse: Peer, folder: Path, contents: dict[str, bytes]) -> dict[str, tuple[Path, Path]]:
    """Write files and have lhotse index them: path and index of each by name."""
    found = {name: (folder / f"{name}.jsonl", folder / f"{name}.lhotse") for name in contents}
    for name, (path, _) in found.items():
        path.write_bytes(contents[name])
    errors = lhotse.ask("index", kind="jsonl", files=[[str(path), str(index)] for path, index in found.values()])
    assert errors == [None] * len(found)
    return found


def our_index(path: Path, threads: int = 1) -> Path:
    index = path.with_suffix(".idx")
    write_index(str(index), build_jsonl_index(str(path), threads=threads))
    return index


@pytest.mark.parametrize("threads", [1, 2])
def test_indexes_of_odd_files_are_the_bytes_that_lhotse_writes(lhotse: Peer, tmp_path: Path, threads: int) -> None:
    for name, (path, theirs) in lhotse_indexes(lhotse, tmp_path, CASES).items():
        assert our_index(path, threads).read_bytes() == theirs.read_bytes(), name


def test_indexes_of_random_files_are_the_bytes_that_lhotse_writes(lhotse: Peer, tmp_path: Path) -> None:
    chance = random.Random(1)
    contents = {f"random-{number}": random_file(chance) for number in range(RANDOM_FILES)}
    for name, (path, theirs) in lhotse_indexes(lhotse, tmp_path, contents).items():
        assert our_index(path).read_bytes() == theirs.read_bytes(), (name, contents[name][:200])


def test_index_of_a_file_of_many_blocks_is_the_bytes_that_lhotse_writes(lhotse: Peer, tmp_path: Path) -> None:
    chance = random.Random(2)
    line = [json.dumps({"n": n, "text": "y" * chance.randint(0, 1500)}).encode() + b"\n" for n in range(60_000)]
    (path, theirs), *_ = lhotse_indexes(lhotse, tmp_path, {"large": b"".join(line)}).values()
    assert our_index(path, 2).read_bytes() == theirs.read_bytes()


@pytest.mark.parametrize("name", READABLE)
def test_lhotse_reads_every_record_through_our_index(lhotse: Peer, tmp_path: Path, name: str) -> None:
    path = tmp_path / f"{name}.jsonl"
    path.write_bytes(CASES[name][:200_000] if name == "short-lines" else CASES[name])
    lines = path.read_bytes().split(b"\n")
    if not lines[-1]:
        lines.pop()
    expected = [{"value": json.loads(line)} if line.strip() else {"error": "JSONDecodeError"} for line in lines]
    assert lhotse.ask("read_jsonl", path=str(path), index=str(our_index(path))) == expected


@pytest.mark.parametrize("name", CASES)
def test_we_read_through_lhotses_index_what_lhotse_reads(lhotse: Peer, tmp_path: Path, name: str) -> None:
    content = {name: CASES[name][:20_000] if name == "short-lines" else CASES[name]}
    (path, index), *_ = lhotse_indexes(lhotse, tmp_path, content).values()
    theirs = lhotse.ask("read_jsonl", path=str(path), index=str(index))
    with JsonlReader(str(path), str(index)) as reader:
        assert len(reader) == len(theirs)
        for number, record in enumerate(theirs):
            if "value" in record:
                assert reader[number] == record["value"]
            else:
                with pytest.raises(RecordError):
                    reader[number]


@pytest.fixture
def collections(tmp_path: Path) -> list[PackSources]:
    lines = [write_lines(tmp_path / f"ü {n}.jsonl", count) for n, count in enumerate([5, 0, 40, 1])]
    tars = [write_samples(tmp_path / f"{n}.tar", count) for n, count in enumerate([3, 0, 100])]
    padded = Path(tars[0])
    padded.write_bytes(padded.read_bytes() + bytes(51200))
    write_index(f"{padded}.idx", build_tar_index(str(padded)))
    return [
        PackSources("manifest", "json-lines", {"b": [1, None, "ü"], "a": 0.5}, [*lines, lines[0]]),
        PackSources("manifest", "json-lines", "again", lines[2:]),
        PackSources("payload", "tar-members", ["all", 1], tars),
        PackSources("named", "json-lines", 7, [lines[1], "/not/there"], offsets=False),
        PackSources("none", "json-lines", None, []),
    ]


ARRAYS = [PackArray("rows", "uint32", "s", [[3, 1, 2], [], [2**32 - 1]]), PackArray("rows", "uint32", "t", [])]


@pytest.mark.parametrize("arrays", [[], ARRAYS], ids=["version-2", "version-3"])
def test_ours_is_theirs(packs: Peer, tmp_path: Path, collections: list[Any], arrays: list[Any]) -> None:
    ours, theirs = tmp_path / "ours.idxpack", tmp_path / "theirs.idxpack"
    mixed = [*collections[:2], *arrays, *collections[2:]]
    digest = write_index_pack(str(ours), mixed)
    sizes = {url: Path(url).stat().st_size for url in collections[2].sources}
    packs.ask("write", output=str(theirs), collections=[asdict(collection) for collection in mixed], sizes=sizes)
    assert ours.read_bytes() == theirs.read_bytes()
    assert digest == layout_hash(mixed) == IndexPack(str(theirs)).layout_hash

    pack = IndexPack(str(ours))
    assert pack.version == (3 if arrays else 2)
    keys = [key.hex() for key in pack.keys]
    found = packs.ask("read", path=str(ours), layout=digest.hex(), keys=keys)
    for number, collection in enumerate(mixed):
        if isinstance(collection, PackArray):
            assert found[number] == [value for shard in collection.shards for value in shard]
            assert [shard.tolist() for shard in pack.array(keys[number])] == [list(s) for s in collection.shards]
        elif collection.offsets:
            records = pack.collection(keys[number])
            assert len(found[number]) == len(records)
            for place, record in zip(found[number], records.read_many(range(len(records))), strict=True):
                data = Path(place[0]).read_bytes()[place[1] : place[2]]
                assert (record.key.encode() if hasattr(record, "key") else b'{"n":%d,' % record["n"]) in data
        else:
            assert found[number] == []
            assert pack.sources(keys[number]) == collection.sources
