"""Index packs: records of many sources through one file, and damaged or stale packs."""

from __future__ import annotations

import os
import pickle
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ledgerbeam.errors import ChangedSourceError, IndexMismatchError, IndexNotFoundError, UsageError
from ledgerbeam.io import write_index
from ledgerbeam.io.idxpack.reader import IndexPack, collection_key
from ledgerbeam.io.idxpack.writer import PackArray, PackSources, write_index_pack
from ledgerbeam.io.index.file import IndexLocation
from ledgerbeam.io.tar.reader import build_tar_index
from tests.io.fuzzing import Files, Trial, fuzz_briefly, main
from tests.iterators.data import write_lines, write_pack, write_samples, write_text


@pytest.fixture
def sources(tmp_path: Path) -> list[str]:
    return [write_lines(tmp_path / f"{n}.jsonl", count, 100 * n) for n, count in enumerate([5, 0, 40, 1])]


@pytest.fixture
def pack(tmp_path: Path, sources: list[str]) -> str:
    return write_pack(tmp_path / "a.idxpack", sources)


def test_it_is_what_lhotse_writes_for_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The vector of lhotse's format: two lines, role `r`, kind `k`, specification `s`."""
    monkeypatch.chdir(tmp_path)
    write_text(Path("t.jsonl"), '{"a":1}\n{"b":2}\n')
    packed = Path(write_pack(Path("t.idxpack"), ["t.jsonl"]))
    assert packed.stat().st_size == 432
    found = IndexPack(str(packed))
    assert found.keys[0].hex().startswith("b44c19a3")
    assert found.keys[0].hex().endswith("0524ee97")
    assert found.layout_hash.hex().startswith("5b26192e")
    found.verify()
    assert found.collection(collection_key("r", "k", "s")).read_many([1, 0]) == [{"b": 2}, {"a": 1}]


def test_records_of_all_sources_are_read_by_number(pack: str) -> None:
    records = IndexPack(pack).collection()
    assert len(records) == 46
    assert [records[number]["n"] for number in (0, 4, 5, 44, 45)] == [0, 4, 200, 239, 300]
    assert [record["n"] for record in records.read_many(range(45, -1, -1))] == [
        300,
        *range(239, 199, -1),
        *range(4, -1, -1),
    ]
    assert pickle.loads(pickle.dumps(records))[45]["n"] == 300
    with pytest.raises(IndexError, match="it has 46"):
        records[46]


def test_many_sources_are_not_all_open_at_once(tmp_path: Path) -> None:
    sources = [write_lines(tmp_path / f"{n}.jsonl", 2, 10 * n) for n in range(50)]
    before = len(list(Path("/proc/self/fd").iterdir()))
    records = IndexPack(write_pack(tmp_path / "a.idxpack", sources)).collection()
    assert [record["n"] for record in records.read_many(range(0, 100, 2))] == list(range(0, 500, 10))
    assert len(list(Path("/proc/self/fd").iterdir())) < before + 75  # there would be 100 if all were open
    records.close()


def test_a_collection_that_is_not_there_is_an_error(pack: str) -> None:
    with pytest.raises(IndexNotFoundError, match="there is no collection"):
        IndexPack(pack).collection(collection_key("r", "k", "other"))


@pytest.mark.parametrize(
    ("at", "byte"), [(0, 0), (8, 9), (16, 1), (24, 2), (256 + 32, 1), (328, 200), (328 + 64, 0), (328 + 64 + 24, 99)]
)
def test_a_damaged_catalog_is_an_error(pack: str, at: int, byte: int) -> None:
    data = bytearray(Path(pack).read_bytes())
    assert data[at] != byte
    data[at] = byte
    Path(pack).write_bytes(data)
    with pytest.raises(IndexMismatchError, match=r"a\.idxpack"):
        IndexPack(pack)


def test_a_pack_that_is_cut_off_or_flipped_is_an_error(pack: str) -> None:
    data = bytearray(Path(pack).read_bytes())
    Path(pack).write_bytes(data[:-8])
    with pytest.raises(IndexMismatchError):
        IndexPack(pack)
    Path(pack).write_bytes(data[:100])
    with pytest.raises(IndexMismatchError, match="100 bytes"):
        IndexPack(pack)
    data[-1] ^= 1
    Path(pack).write_bytes(data)
    with pytest.raises(IndexMismatchError, match="segment 3"):
        IndexPack(pack).verify()


def test_a_source_that_changed_after_it_was_packed_is_an_error(pack: str, sources: list[str]) -> None:
    with Path(sources[2]).open("a", encoding="utf-8") as file:
        file.write('{"n": 1}\n')
    with pytest.raises((IndexMismatchError, ChangedSourceError), match=r"2\.jsonl"):
        IndexPack(pack).collection()[10]


def test_a_pack_that_is_older_than_a_source_is_written_again_by_what_writes_packs(
    pack: str, sources: list[str]
) -> None:
    earlier = Path(sources[2]).stat().st_mtime_ns - 5 * 10**9
    os.utime(pack, ns=(earlier, earlier))
    with pytest.raises(IndexMismatchError, match=r"2\.jsonl: .* 5\.000 s older") as caught:
        IndexPack(pack).collection()[10]
    assert f"ledgerbeam publish LEDGER --as idxpack --output {pack}" in str(caught.value)
    assert "ledgerbeam index" not in str(caught.value)


def test_what_is_written_is_read_back(tmp_path: Path, sources: list[str]) -> None:
    tar = write_samples(tmp_path / "a.tar", 7)
    url = str(tmp_path / "new" / "b.idxpack")
    lines = PackSources("manifest", "json-lines", {"paths": "*.jsonl"}, [*sources, sources[0]])
    samples = PackSources("payload", "tar-members", None, [tar])
    named = PackSources("other", "files", ["x"], [sources[1], "/not/there"], offsets=False)
    digest = write_index_pack(url, [lines, samples, named])
    pack = IndexPack(url)
    assert (pack.version, pack.layout_hash) == (2, digest)
    pack.verify()
    records = pack.collection(collection_key("manifest", "json-lines", {"paths": "*.jsonl"}))
    assert [record["n"] for record in records.read_many(range(51))] == [*range(5), *range(200, 240), 300, *range(5)]
    assert [sample.key for sample in pack.collection(pack.keys[1]).read_many([6, 0])] == ["s006", "s000"]
    assert pack.sources(pack.keys[0]) == lines.sources
    assert pack.sources(pack.keys[2]) == named.sources
    assert len({url for key in pack.keys for url in pack.sources(key)}) == 6
    with pytest.raises(UsageError, match="expected the key of one of 3 collections"):
        pack.collection()
    with pytest.raises(UsageError, match="has sources, not numbers"):
        pack.array(pack.keys[0])
    with pytest.raises(UsageError, match="no offsets"):
        pack.collection(pack.keys[2])


def test_numbers_make_a_pack_of_version_3(tmp_path: Path, sources: list[str]) -> None:
    places: list[Any] = [np.array([4, 0, 2**32 - 1]), [], [7]]
    url = str(tmp_path / "a.idxpack")
    write_index_pack(url, [PackArray("rows", "u32", "s", places), PackSources("r", "k", "s", sources[:1])])
    pack = IndexPack(url)
    pack.verify()
    assert pack.version == 3
    assert [shard.tolist() for shard in pack.array(pack.keys[0])] == [[4, 0, 2**32 - 1], [], [7]]
    assert pack.sources(pack.keys[0]) == []
    assert pack.collection(pack.keys[1])[4]["n"] == 4
    with pytest.raises(UsageError, match="no offsets"):
        pack.collection(pack.keys[0])
    wrong: Any
    for wrong in ([-1], [2**32], [0.5], [[1]]):
        with pytest.raises(UsageError, match="whole numbers"):
            write_index_pack(url, [PackArray("rows", "u32", "s", [wrong])])


def test_an_index_that_ends_before_the_padding_is_packed_with_the_size(tmp_path: Path) -> None:
    tar = Path(write_samples(tmp_path / "a.tar", 3))
    tar.write_bytes(tar.read_bytes() + bytes(30720))
    write_index(f"{tar}.idx", build_tar_index(str(tar)))
    write_index_pack(str(tmp_path / "a.idxpack"), [PackSources("r", "k", "s", [str(tar)])])
    pack = IndexPack(str(tmp_path / "a.idxpack"))
    assert pack.collection().size == pack.index(0).first_and_last()[2] == tar.stat().st_size
    assert [sample.key for sample in pack.collection().read_many(range(3))] == ["s000", "s001", "s002"]


def test_indexes_may_lie_elsewhere(tmp_path: Path, sources: list[str]) -> None:
    location = IndexLocation(root=str(tmp_path / "indexes"), rule="lhotse")
    for source in sources:
        Path(location.url_for(source)).parent.mkdir(parents=True, exist_ok=True)
        Path(f"{source}.idx").rename(location.url_for(source))
    collection = PackSources("r", "k", "s", sources)
    with pytest.raises(IndexNotFoundError, match=r"0\.jsonl"):
        write_index_pack(str(tmp_path / "a.idxpack"), [collection])
    write_index_pack(str(tmp_path / "a.idxpack"), [collection], location=location)
    assert len(IndexPack(str(tmp_path / "a.idxpack")).collection()) == 46


def test_what_cannot_be_packed_is_refused_and_leaves_nothing(tmp_path: Path, sources: list[str]) -> None:
    def refused(error: type[Exception], message: str, *collections: Any) -> None:
        with pytest.raises(error, match=message):
            write_index_pack(str(tmp_path / "packs" / "a.idxpack"), collections)

    good = PackSources("r", "k", "s", sources)
    refused(UsageError, "at least one collection")
    refused(UsageError, "a role and a kind", PackSources("", "k", "s", sources))
    refused(UsageError, "collections 0 and 1", good, PackSources("r", "k", "s", sources[:1]))
    refused(UsageError, "no index of offsets", PackSources("r", "k", "s", [str(tmp_path / "a.bin")]))
    with Path(sources[2]).open("a", encoding="utf-8") as file:
        file.write("{}\n")
    refused(IndexMismatchError, r"2\.jsonl.*newer|2\.jsonl.*size", good)
    assert not list((tmp_path / "packs").glob("*"))


def pack_trial(folder: Path) -> Trial:
    lines = [write_lines(folder / f"{number}.jsonl", count, 100 * number) for number, count in enumerate([5, 1, 40])]
    tar = write_samples(folder / "a.tar", 3)
    write_pack(folder / "two.idxpack", lines)
    write_index_pack(
        str(folder / "three.idxpack"),
        [
            PackArray("rows", "u32", "s", [[4, 0, 2**32 - 1], [], [7]]),
            PackSources("r", "k", "s", [*lines, tar]),
            PackSources("names", "k", "s", lines[:1], offsets=False),
        ],
    )
    names = ["two.idxpack", "three.idxpack"]
    contents = {name: (folder / name).read_bytes() for name in names}
    text = {name: int.from_bytes(contents[name][16 + 48 : 16 + 56], "little") for name in names}
    fields = {name: [8, 12, *range(16, 96, 8), *range(256, text[name], 8)] for name in names}
    files = Files(folder, contents, fields)
    most = sum(Path(source).stat().st_size for source in [*lines, tar])

    def trial(chance: random.Random) -> str:
        name, content = files.damage(chance)
        pack = IndexPack(f"{folder}/{name}")
        if chance.random() < 0.2:
            pack.verify()
        if not pack.keys:
            return "empty"
        key = chance.choice(pack.keys)
        row = pack._row(key)
        sources = pack.sources(key)
        if row["flags"] & 2:
            assert sum(len(part) for part in pack.array(key)) * 4 <= len(content)
            return "read numbers"
        assert sum(map(len, sources)) <= len(content) * max(1, len(sources))
        if row["flags"]:
            return "read names"
        records = pack.collection(key)
        try:
            numbers = [chance.randrange(len(records)) for _ in range(3)] if len(records) else []
            assert len(records.read_many(numbers)) == len(numbers) <= most
        finally:
            records.close()
        return "read records"

    return trial


@pytest.mark.slow
def test_damaged_packs_give_typed_errors(tmp_path: Path) -> None:
    outcomes = fuzz_briefly(pack_trial(tmp_path), 600, name=str(tmp_path))
    assert outcomes["IndexMismatchError"] > 200
    assert min(outcomes["read records"], outcomes["read numbers"]) > 10


if __name__ == "__main__":
    main(pack_trial)
