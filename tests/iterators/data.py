"""Data and functions of the tests of graphs; other processes import them from here."""

from __future__ import annotations

import gzip
import hashlib
import struct
import zlib
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from ledgerbeam.io import Sample, build_index, encode_jsonl, publish_bytes, write_index
from ledgerbeam.io.any_source import seek_points_of
from ledgerbeam.io.datasets.megatron import write_megatron
from ledgerbeam.io.datasets.megatron.packs import write_pack_catalog
from ledgerbeam.io.idxpack.reader import collection_key
from ledgerbeam.io.index.newlines import build_jsonl_index
from ledgerbeam.io.storage.client import Options
from ledgerbeam.io.tar.writer import encode_tar
from ledgerbeam.iterators import IndexedManifest, IteratorNode, Records
from ledgerbeam.ledger import NoneTask, Source
from ledgerbeam.ledger.model.identity import content_checksum
from ledgerbeam.sources.documents import DocumentSources
from ledgerbeam.sources.kind import TaskLimits, TaskReader
from ledgerbeam.sources.listing import stat_source
from ledgerbeam.transforms.mapping.pack import PackDocuments, PacksEncoder
from tests.io.columns.tables import arrow_bytes, parquet_bytes


def write_lines(path: Path, count: int, first: int = 0) -> str:
    """Write a JSONL source of `{"n": number, "length": ...}` and its index."""
    data, offsets = encode_jsonl([{"n": n, "length": 1 + n * 7 % 10} for n in range(first, first + count)])
    publish_bytes(str(path), data)
    write_index(f"{path}.idx", offsets)
    return str(path)


def write_text(path: Path, text: str) -> str:
    """Write a JSONL source as it is, and its index."""
    path.write_text(text, encoding="utf-8")
    write_index(f"{path}.idx", build_jsonl_index(str(path)))
    return str(path)


def write_compressed(path: Path, count: int) -> str:
    """Write `write_lines` as a gzip file, with its index and seek points."""
    plain = Path(write_lines(path.with_suffix(""), count))
    path.write_bytes(gzip.compress(plain.read_bytes()))
    offsets = build_index(str(path))
    points = seek_points_of(str(path), f"{path}.idx", offsets)
    assert points is not None
    publish_bytes(*points)
    write_index(f"{path}.idx", offsets)
    return str(path)


def write_samples(path: Path, count: int) -> str:
    """Write a tar archive of pairs and its index."""
    data, offsets = encode_tar([Sample(f"s{n:03d}", {"bin": bytes([n]) * n, "json": b"{}"}) for n in range(count)])
    publish_bytes(str(path), data)
    write_index(f"{path}.idx", offsets)
    return str(path)


def numbers(count: int, first: int = 0, *, shuffle: bool = False, seed: int = 0) -> Records:
    """Return a leaf of numbers."""
    return Records(range(first, first + count), f"numbers {first}", shuffle=shuffle, seed=seed)


class CountingReader:
    """Numbers as records; counts reads by calls and by records."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.calls: list[list[int]] = []

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, number: int, /) -> int:
        return self.read_many([number])[0]

    def read_many(self, indices: list[int]) -> list[int]:
        self.calls.append(list(indices))
        return list(indices)

    @property
    def records(self) -> int:
        return sum(map(len, self.calls))


class CountingBlocks(CountingReader):
    """Numbers in blocks; holds the most recently used blocks, and counts reads."""

    def __init__(self, blocks: list[int]) -> None:
        super().__init__(sum(blocks))
        self.blocks = blocks
        self.room = 0
        self.read: list[int] = []
        self._held: list[int] = []

    def hold(self, blocks: int) -> None:
        self.room = blocks

    def read_many(self, indices: list[int]) -> list[int]:
        for block in np.cumsum(self.blocks).searchsorted(indices, "right").tolist():
            if block in self._held:
                self._held.remove(block)
            else:
                self.read.append(block)
            self._held = [*self._held, block][-self.room :]
        return super().read_many(indices)


def in_blocks(blocks: list[int], *, window: int = 4, seed: int = 0) -> Records:
    """Return a leaf of numbers that is shuffled by blocks."""
    return Records(CountingBlocks(blocks), "numbers in blocks", shuffle="blocks", window=window, seed=seed)


def after(graph: IteratorNode, steps: int) -> IteratorNode:
    """Return a graph after some items."""
    for _ in islice(graph, steps):
        pass
    return graph


def double(item: int) -> int:
    return 2 * item


def triple(item: int) -> int:
    return 3 * item


def wrap(item: Any) -> list[Any]:
    return [item]


def is_even(item: int) -> bool:
    return item % 2 == 0


def is_not_third(item: int) -> bool:
    return item % 3 != 0


def spread(item: int) -> list[tuple[int, int]]:
    return [(item, piece) for piece in range(item % 4)]


def some(item: int) -> list[int]:
    return [7 * item + piece for piece in range(item % 4)]


def some_of_record(record: dict[str, int]) -> list[int]:
    return some(record["n"])


def add_noise(item: Any, chance: Any) -> tuple[Any, float]:
    return item, chance.random()


def mix(item: Any, other: Any, chance: Any) -> tuple[Any, Any, float]:
    return item, other, chance.random()


def length(item: int) -> float:
    return 1 + item * 7 % 10


def record_length(item: dict[str, int]) -> float:
    return item["length"]


def manifest(path: Path, count: int, **kwargs: Any) -> IteratorNode:
    return IndexedManifest(write_lines(path, count), **kwargs)


SHAR_IDS = [f"cut-{n:03d}" for n in range(23)]


def write_shar(folder: Path, shard: int = 10) -> str:
    """Write a Shar folder of cuts, labels, audio with every third item missing, and a file that is not a field."""
    folder.mkdir()
    for start in range(0, len(SHAR_IDS), shard):
        ids = SHAR_IDS[start : start + shard]
        cuts, labels = [{"id": name} for name in ids], [{"cut_id": name, "label": name[-1]} for name in ids]
        audio = []
        for number, name in enumerate(ids):
            present = {"wav": name.encode(), "json": b"{}"}
            audio.append(Sample(name, present if number % 3 else {"nodata": b"", "nometa": b""}))
        for field, suffix, (content, offsets) in (
            ("cuts", "jsonl", encode_jsonl(cuts)),
            ("label", "jsonl", encode_jsonl(labels)),
            ("audio", "tar", encode_tar(audio)),
        ):
            url = f"{folder}/{field}.{start // shard:06d}.{suffix}"
            publish_bytes(url, content)
            write_index(f"{url}.idx", offsets)
    (folder / "README.md").write_text("not a field")
    return str(folder)


def rows_table(count: int, first: int = 0) -> pa.Table:
    """Return columns `n`, the numbers; `text`; and `length`."""
    found = range(first, first + count)
    return pa.table({"n": found, "text": [f"row {n}" for n in found], "length": [1 + n * 7 % 10 for n in found]})


def write_rows(path: Path, count: int, first: int = 0, *, group: int = 10) -> str:
    """Write a Parquet file of `rows_table`; an Arrow IPC file if the name is that of one."""
    table = rows_table(count, first)
    made = arrow_bytes(table, group) if path.suffix == ".arrow" else parquet_bytes(table, row_group_size=group)
    path.write_bytes(made)
    return str(path)


def write_pack(path: Path, sources: list[str]) -> str:
    """Write a pack of one collection: version 2, role "r", kind "k", specification "s"."""
    indexes = [Path(f"{source}.idx").read_bytes() for source in sources]
    names = [source.encode() for source in sources]
    strings = b"".join(names) + b"k"
    counts = np.cumsum([len(index) // 8 - 1 for index in indexes]).tolist()
    collections, sequences = 256, 256 + 72
    segments = sequences + 16 * len(sources)
    text = segments + 56 * len(sources)
    payload = -(-(text + len(strings)) // 8) * 8
    lengths = [1, len(sources), len(sources), len(strings), sum(map(len, indexes))]
    starts = [collections, sequences, segments, text, payload]
    places = [number for pair in zip(starts, lengths, strict=True) for number in pair]
    layout = collection_key("r", "k", "s") + b"\1" + struct.pack("<Q", len(names))
    layout += b"".join(struct.pack("<Q", len(name)) + name for name in names)
    header = struct.pack("<8sII10Q32s", b"IDXPACK2", 2, 256, *places, hashlib.sha256(layout).digest())
    rows = [
        struct.pack(
            "<32s4QII", collection_key("r", "k", "s"), 0, len(sources), counts[-1], text + len(strings) - 1, 1, 0
        )
    ]
    rows += [struct.pack("<2Q", number, count) for number, count in enumerate(counts)]
    at, name_at = payload, text
    for source, name, index in zip(sources, names, indexes, strict=True):
        sizes = len(index) // 8, Path(source).stat().st_size, len(index)
        rows.append(struct.pack("<2Q2I3Q2I", name_at, at, len(name), 0, *sizes, zlib.crc32(index), 0))
        at, name_at = at + len(index), name_at + len(name)
    body = header.ljust(256, b"\0") + b"".join(rows) + strings
    path.write_bytes(body.ljust(payload, b"\0") + b"".join(indexes))
    return str(path)


def write_documents(prefix: Path, lengths: Sequence[int], *, first: int = 0, dtype: str = "uint16") -> str:
    """Write a Megatron dataset whose tokens are numbers from `first` on, so that each shows its place."""
    with write_megatron(str(prefix), dtype) as builder:
        for length in lengths:
            builder.add_document(np.arange(first, first + length).astype(dtype))
            first += length
    return str(prefix)


def write_packs(
    folder: Path | str,
    prefixes: Sequence[str],
    work: PackDocuments,
    *,
    eod: int | None = None,
    task_bytes: int = 1 << 20,
    options: Options | None = None,
) -> str:
    """Write packs as `ledgerbeam pack` does, without a job. Datasets with packs in the folder have changed since."""
    opened, rows = DocumentSources(options or {}, eod, str(folder)), []
    for prefix in prefixes:
        found = stat_source(f"{prefix}.bin", options)
        source = Source(found.url, found.size, found.version)
        for task in opened.kind_of(source).cut(source, TaskLimits(task_bytes), changed=True).tasks():
            done = work(task.replace(records=TaskReader(opened).read(task)))
            if isinstance(done, NoneTask):
                continue
            (packs,) = done.records.datasets.values()
            (file,) = PacksEncoder({"length": work.length, "eod": eod}).of_task(task).encode(packs)
            name = f"{Path(prefix).name}-{task.start:010d}.arrow"
            publish_bytes(f"{folder}/{name}", file.data, options)
            of_source = (source.url.encode(), source.version, source.size, task.start)
            rows.append((name.encode(), file.records, content_checksum([file.data]), *of_source))
    write_pack_catalog(str(folder), rows, options)
    return str(folder)


def plain(item: dict[str, Any]) -> dict[str, Any]:
    """Return a pack with lists in place of arrays, which can be compared."""
    return {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in item.items()}
