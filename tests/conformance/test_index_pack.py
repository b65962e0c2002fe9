"""Packs of indexes: ours are the bytes that lhotse writes for the same sources, and it finds in ours what we find."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from benchmarks.peer import Peer
from ledgerbeam.io import write_index
from ledgerbeam.io.idxpack.reader import IndexPack
from ledgerbeam.io.idxpack.writer import PackArray, PackSources, layout_hash, write_index_pack
from ledgerbeam.io.tar.reader import build_tar_index
from tests.conformance.conftest import start
from tests.iterators.data import write_lines, write_samples


@pytest.fixture(scope="module")
def packs() -> Iterator[Peer]:
    yield from start("peer_lhotse_pack")


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
