"""Small files that stand for large values: memory is bounded, or an error names the column before it is taken."""

from __future__ import annotations

import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import ipc

from ledgerbeam.errors import SourceError
from ledgerbeam.io.columns.content import HeldBytes, decoded_size
from ledgerbeam.io.columns.parquet_pages import decoded_chunk
from ledgerbeam.io.columns.parquet_reader import ParquetReader
from tests.cases import each
from tests.io.columns.tables import parquet_bytes

ROWS = 1800
LONG = "x" * 1_000_000
MOST = 700 * 2**20
"""Bytes that reading may allocate: twice the limit of decoded bytes, and a row group."""


def repeated(rows: int = ROWS) -> pa.DictionaryArray:
    return pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int32()), pa.array([LONG]))


def in_lists(items: pa.Array, length: int) -> pa.ListArray:
    return pa.ListArray.from_arrays(pa.array(range(0, len(items) + 1, length), pa.int32()), items)


def views() -> pa.Array:
    _, places, data = pa.array([LONG], pa.string_view()).buffers()
    return pa.Array.from_buffers(pa.string_view(), ROWS, [None, pa.py_buffer(places.to_pybytes() * ROWS), data])


def maps() -> pa.MapArray:
    return pa.MapArray.from_arrays(pa.array(range(ROWS + 1), pa.int32()), pa.array(["k"] * ROWS), repeated())


def to_parquet(wide: pa.Array, **options: Any) -> Callable[[str], None]:
    table = pa.table({"id": range(len(wide)), "wide": wide})
    return lambda path: pq.write_table(table, path, **{"store_schema": False, "compression": "zstd", **options})


def to_arrow(wide: pa.Array, compression: str | None = None, rows: int | None = None) -> Callable[[str], None]:
    table = pa.table({"id": range(len(wide)), "wide": wide})

    def write(path: str) -> None:
        options = ipc.IpcWriteOptions(compression=compression)
        with ipc.new_file(path, table.schema, options=options) as writer:
            writer.write_table(table, max_chunksize=rows)

    return write


def plain() -> pa.Array:
    return pa.array([LONG] * ROWS)


IN_PARQUET: dict[str, Callable[[], Callable[[str], None]]] = {
    "dictionary": lambda: to_parquet(repeated()),
    "dictionary of the schema": lambda: to_parquet(repeated(), store_schema=True),
    "dictionaries of row groups": lambda: to_parquet(repeated(), row_group_size=100),
    "dictionary, version 2": lambda: to_parquet(repeated(), data_page_version="2.0"),
    "dictionary in lists": lambda: to_parquet(in_lists(repeated(), 10)),
    "dictionary in one list": lambda: to_parquet(in_lists(repeated(), ROWS)),
    "dictionary in maps": lambda: to_parquet(maps()),
    "large page": lambda: to_parquet(plain(), use_dictionary=False),
    "small pages": lambda: to_parquet(plain(), use_dictionary=False, write_batch_size=1),
    "prefixes": lambda: to_parquet(plain(), use_dictionary=False, column_encoding={"wide": "DELTA_BYTE_ARRAY"}),
    "fixed width": lambda: to_parquet(pa.array([LONG.encode()] * 600, pa.binary(len(LONG)))),
}
IN_ARROW: dict[str, Callable[[], Callable[[str], None]]] = {
    "zstd": lambda: to_arrow(plain(), "zstd"),
    "lz4": lambda: to_arrow(plain(), "lz4"),
    "small batches": lambda: to_arrow(plain(), "zstd", 10),
    "dictionary": lambda: to_arrow(repeated()),
    "dictionary in lists": lambda: to_arrow(in_lists(repeated(), 10)),
    "views": lambda: to_arrow(views()),
    "runs": lambda: to_arrow(pa.RunEndEncodedArray.from_arrays(pa.array([ROWS], pa.int32()), pa.array([LONG]))),
}

PROGRAM = """
import resource, sys
import pyarrow.parquet, pyarrow.ipc
import ledgerbeam as lb
from ledgerbeam.errors import SourceError

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

before = peak()
reader = lb.open(sys.argv[1])
for read in (
    lambda: reader[0], lambda: reader[-1], lambda: reader.first_rows(0, 1000), lambda: reader[:],
    lambda: reader.read_batch(0, len(reader)), lambda: reader.read_many(range(len(reader))), lambda: list(reader),
):
    try:
        read()
    except SourceError as error:
        print("refused:", error)
print(peak() - before)
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", [*(f"parquet {name}" for name in IN_PARQUET), *(f"arrow {name}" for name in IN_ARROW)])
def test_memory_is_bounded_and_the_column_is_named(tmp_path: Path, name: str) -> None:
    kind, _, case = name.partition(" ")
    path = f"{tmp_path}/wide.{kind}"
    (IN_PARQUET if kind == "parquet" else IN_ARROW)[case]()(path)
    done = subprocess.run([sys.executable, "-c", PROGRAM, path], capture_output=True, text=True, check=True)
    *refused, taken = done.stdout.splitlines()
    assert int(taken) < MOST
    assert refused
    assert all(f"{path}: " in line and "'wide'" in line and "--task-bytes" in line for line in refused)


def test_one_row_of_many_is_read(tmp_path: Path) -> None:
    """Though all of them would take gigabytes; a dictionary is kept as one."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for name in ("dictionary", "dictionary in maps", "dictionary in lists"):
        path = f"{tmp_path}/{name}.parquet"
        IN_PARQUET[name]()(path)
        with ParquetReader(path) as reader:
            (record,) = reader.read_many([7])
            assert record["id"] == 7
            assert LONG in str(record["wide"])
            assert reader.read_batch(3, 4).schema == reader.schema
            with pytest.raises(SourceError, match=r"column 'wide': expected at most 268,435,456 bytes when decoded"):
                reader.read_batch(0, len(reader))
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 < MOST


def test_what_repeats_within_the_limit_is_read() -> None:
    words = [f"a longer text {number % 7} " * 20 for number in range(400_000)]
    data = parquet_bytes(pa.table({"word": words, "list": [[word] for word in words]}))
    table = ParquetReader("data", data=data).read_batch(0, 400_000)
    assert len(data) * 32 < decoded_size(table.column("word")) < 268_435_456
    assert table.column("word").to_pylist() == words
    assert table.column("list").slice(7, 3).to_pylist() == [[word] for word in words[7:10]]


TEXTS = [None if number % 11 == 3 else f"{number % 13}" * (number % 29) for number in range(5000)]


@each("compression", ["none", "snappy", "gzip", "brotli", "zstd", "lz4"])
@each("version", ["1.0", "2.0"])
@each("encoding", ["PLAIN", "DELTA_BYTE_ARRAY", "DELTA_LENGTH_BYTE_ARRAY", "dictionary"])
@each("nested", [False, True])
def test_sizes_are_counted_from_the_pages(compression: str, version: str, encoding: str, nested: bool) -> None:
    column = pa.array([[text, "y"] for text in TEXTS] if nested else TEXTS)
    path = "t.list.element" if nested else "t"
    options: dict[str, Any] = {"use_dictionary": True}
    if encoding != "dictionary":
        options = {"use_dictionary": False, "column_encoding": {path: encoding}}
    data = parquet_bytes(
        pa.table({"t": column}), compression=compression, data_page_version=version, data_page_size=3000, **options
    )
    reader = ParquetReader("data", data=data)
    (chunk,) = reader._footer.groups[0].chunks
    found = decoded_chunk(HeldBytes(data).read, chunk, reader._leaves[0], 0)
    values = [text or "" for text in TEXTS] + (["y"] * len(TEXTS) if nested else [])
    exact = sum(map(len, values))
    assert found.page > 0
    if encoding == "dictionary":
        assert found.words == exact
    else:  # with the offsets; what texts share is not in the page
        assert exact <= found.size <= exact + 12 * len(values) + len(data)


@each(
    ("column", "width"),
    [
        (pa.array(range(1000)), 8),
        (pa.array(range(1000), pa.int16()), 4),
        (pa.array([True] * 1000), 1),
        (pa.array([0.5, None] * 500), 8),
        (pa.array([b"12345"] * 1000, pa.binary(5)), 5),
        (pa.array(range(1000), pa.timestamp("us")), 8),
        (pa.array([], pa.string()), 1),
    ],
)
def test_sizes_of_a_fixed_width_follow_from_the_number_of_values(column: pa.Array, width: int) -> None:
    data = parquet_bytes(pa.table({"t": column}))
    reader = ParquetReader("data", data=data)
    for group in reader._footer.groups:  # none if there are no rows
        found = decoded_chunk(HeldBytes(data).read, group.chunks[0], reader._leaves[0], 0)
        assert (found.size, found.words) == (len(column) * width, 0)


UNION = pa.UnionArray.from_dense(
    pa.array([0, 0, 1], pa.int8()), pa.array([0, 0, 0], pa.int32()), [pa.array(["x" * 1000]), pa.array([1])]
)
DICTIONARY = pa.DictionaryArray.from_arrays(pa.array([0, None, 0, 1], pa.int8()), pa.array(["x" * 1000, "y"]))


@each(
    ("array", "least"),
    [
        (DICTIONARY, 2001),
        (in_lists(DICTIONARY, 2), 2001),
        (pa.FixedSizeListArray.from_arrays(DICTIONARY, 2), 2001),
        (pa.StructArray.from_arrays([DICTIONARY, pa.array(range(4))], ["a", "b"]), 2001),
        (pa.RunEndEncodedArray.from_arrays(pa.array([3, 5]), pa.array(["x" * 1000, "y"])), 3002),
        (pa.ListViewArray.from_arrays([0, 0, 0], [2, 2, 1], pa.array(["ab", "x" * 1000])), 2006),
        (pa.DictionaryArray.from_arrays(pa.array([0, 0]), pa.array([["x" * 1000] * 2])), 4000),
        (pa.FixedSizeListArray.from_arrays(pa.nulls(1000), 500), 8000),
        (UNION, 2000),
    ],
)
def test_values_that_share_bytes_count_as_often_as_they_come(array: pa.Array, least: int) -> None:
    assert least <= decoded_size(array) <= least + 24 * len(array) + 100
    assert sum(decoded_size(array.slice(row, 1)) for row in range(len(array))) == decoded_size(array)
    assert decoded_size(array.slice(0, 0)) == 0


def test_wide_rows_are_read_in_parts_and_as_small_tasks(tmp_path: Path) -> None:
    zeros = np.zeros(500_000, np.int64)
    pq.write_table(pa.table({f"c{number}": zeros for number in range(40)}), f"{tmp_path}/a.parquet")
    with ParquetReader(f"{tmp_path}/a.parquet") as reader:
        assert reader.groups[0].plain_size >= 160_000_000
        assert reader._is_streamed(0)
        assert set(reader[499_999].values()) == {0}
