"""Packs of indexes: records of many sources through one file, and packs that are damaged or stale."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from ledgerbeam.errors import ChangedSourceError, IndexMismatchError, IndexNotFoundError, UsageError
from ledgerbeam.io import IndexPack, collection_key
from tests.io.graph.data import write_lines, write_pack, write_text


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
    assert len(list(Path("/proc/self/fd").iterdir())) < before + 75  # of 100, were all of them open
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
    with Path(sources[2]).open("a") as file:
        file.write('{"n": 1}\n')
    with pytest.raises((IndexMismatchError, ChangedSourceError), match=r"2\.jsonl"):
        IndexPack(pack).collection()[10]


def test_several_collections_need_a_key(pack: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(IndexPack(pack).keys) == 1
    with pytest.raises(UsageError, match="0 collections"):
        _without_collections(pack).collection()


def _without_collections(pack: str) -> IndexPack:
    found = IndexPack(pack)
    found._collections = found._collections[:0]
    return found
