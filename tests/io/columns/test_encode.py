"""Files of columns, with the same bytes each time, in row groups and pages of the requested sizes; chunks of tables."""

from __future__ import annotations

import hashlib
import io
import random
import subprocess
import sys
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import ipc

from ledgerbeam.errors import RecordError
from ledgerbeam.io.columns.encode import encode_arrow, encode_parquet, fits_one_batch, joined_chunks, record_batch
from ledgerbeam.io.columns.format import ArrowFormat, ParquetFormat
from ledgerbeam.io.columns.schema import JobSchema
from ledgerbeam.io.columns.tables import TableMaker
from tests.cases import each

SCHEMA = pa.schema(
    [
        pa.field("n", pa.int64(), nullable=False, metadata={"unit": "m"}),
        pa.field("word", pa.dictionary(pa.int32(), pa.string())),
        pa.field("price", pa.decimal128(9, 2)),
        pa.field("at", pa.timestamp("us", "America/New_York")),
        pa.field("items", pa.list_(pa.field("item", pa.struct([pa.field("x", pa.json_())])))),
        pa.field("vector", pa.list_(pa.float32(), 2)),
    ],
    metadata={"author": "somebody", "huggingface": "{}"},
)


def rows(count: int) -> list[dict[str, Any]]:
    return [
        {
            "n": number,
            "word": f"w{number % 7}",
            "price": f"{number}.50",
            "at": f"2026-01-01T00:00:00.{number % 10**6:06d}+00:00",
            "items": [{"x": [number]}] if number % 3 else None,
            "vector": [number / 2, 0.5],
        }
        for number in range(count)
    ]


FORMATS = [ParquetFormat(schema=SCHEMA), ArrowFormat(schema=SCHEMA)]


@pytest.mark.parametrize("kind", FORMATS, ids=lambda kind: kind.name)
def test_a_file_has_the_same_bytes_in_any_process(kind: ParquetFormat | ArrowFormat) -> None:
    (file,) = kind.encode(rows(3000))
    assert (file.ending, file.records) == (kind.suffixes[0], 3000)
    code = (
        "import hashlib\n"
        "from tests.io.columns.test_encode import FORMATS, rows\n"
        f"kind = next(kind for kind in FORMATS if kind.name == {kind.name!r})\n"
        "print(hashlib.sha256(kind.encode(rows(3000))[0].data).hexdigest())\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONHASHSEED": "7", "TZ": "Asia/Tokyo", "PYTHONPATH": ":".join(sys.path), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert run.stdout.strip() == hashlib.sha256(file.data).hexdigest()


@pytest.mark.parametrize("kind", FORMATS, ids=lambda kind: kind.name)
def test_a_file_that_is_read_is_written_as_it_was(kind: ParquetFormat | ArrowFormat) -> None:
    (file,) = kind.encode(rows(100))
    reader = kind.open_bytes(file.data, "x")
    assert reader.schema.equals(SCHEMA, check_metadata=True)
    table = reader.read_batch(0, 100)
    assert kind.encode(table)[0].data == file.data
    assert kind.encode(reader[:])[0].data == file.data
    assert type(kind)().encode(table)[0].data == file.data


def test_parquet_is_in_zstandard_with_a_page_index_and_row_groups_and_pages_by_size() -> None:
    kind = ParquetFormat(schema=SCHEMA, row_group_bytes=64 * 1024, page_bytes=4096)
    (file,) = kind.encode(rows(5000))
    metadata = pq.read_metadata(io.BytesIO(file.data))
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    assert len(groups) > 3
    assert len({group.num_rows for group in groups[:-1]}) == 1
    column = groups[0].column(0)
    assert column.compression == "ZSTD"
    assert column.has_column_index
    assert column.has_offset_index
    assert column.statistics.min == 0
    one = ParquetFormat(schema=SCHEMA).encode(rows(5000))[0].data
    assert pq.read_metadata(io.BytesIO(one)).num_row_groups == 1
    noise = pa.table({"noise": [random.Random(seed).randbytes(100) for seed in range(2000)]})
    sizes = [len(ParquetFormat(page_bytes=size).encode(noise)[0].data) for size in (1024, 2**20)]
    assert sizes[0] > sizes[1] + 150 * 30  # about 200 pages, each with a header, and a row in the index


def test_arrow_has_record_batches_by_size_and_one_dictionary() -> None:
    (file,) = ArrowFormat(schema=SCHEMA, row_group_bytes=64 * 1024).encode(rows(5000))
    with pa.ipc.open_file(pa.BufferReader(file.data)) as reader:
        assert reader.num_record_batches > 3
        assert reader.read_all().num_rows == 5000


@pytest.mark.parametrize("kind", FORMATS, ids=lambda kind: kind.name)
def test_no_records_are_a_file_without_rows_and_without_a_schema_it_is_inferred(
    kind: ParquetFormat | ArrowFormat,
) -> None:
    (file,) = kind.encode([])
    assert file.records == 0
    assert list(kind.open_bytes(file.data, "x")) == []
    (file,) = type(kind)().encode([{"a": 1}, {"b": None}])
    assert kind.open_bytes(file.data, "x")[:] == [{"a": 1}, {"b": None}]


def test_a_table_of_a_route_is_written_by_its_schema_and_others_by_the_main_one() -> None:
    main, other = pa.schema([("a", pa.int32())]), pa.schema([("b", pa.string())])
    kind = ParquetFormat(schema=JobSchema({"": main, "r": other}))
    maker = kind.written("r")
    assert maker is not None
    (file,) = kind.encode(maker.table([{"b": "x"}]))
    assert kind.open_bytes(file.data, "x").schema == other
    (file,) = kind.encode(pa.table({"a": pa.array([1], pa.int64())}))
    assert kind.open_bytes(file.data, "x").schema == main
    with pytest.raises(RecordError, match="field c: expected a column of the schema"):
        kind.encode(pa.table({"c": [1]}))


MEBIBYTE = "x" * 2**20


def repeated(value: object, kind: pa.DataType, times: int = 2200) -> pa.ChunkedArray:
    """Return a column of more than 2 GiB, whose chunks are the same megabyte in memory."""
    return pa.chunked_array([pa.array([value], kind)] * times)


NESTED = {
    "list": repeated([MEBIBYTE], pa.list_(pa.string())),
    "struct": repeated({"t": MEBIBYTE}, pa.struct([("t", pa.string())])),
    "list of structs": repeated([{"t": MEBIBYTE}], pa.list_(pa.struct([("t", pa.binary())]))),
    "map": repeated([("k", MEBIBYTE)], pa.map_(pa.string(), pa.string())),
    "flat": repeated(MEBIBYTE, pa.string()),
    "bytes": repeated(MEBIBYTE.encode(), pa.binary()),
}


@each("name", NESTED)
def test_a_batch_of_too_many_bytes_names_the_column_and_the_remedy(name: str) -> None:
    rows = len(NESTED[name])
    table = pa.table({"id": range(rows), "wide one": NESTED[name]})
    assert not fits_one_batch(table, 0, rows)
    with pytest.raises(RecordError, match=r"column 'wide one': the 2200 rows .*; use a smaller --batch"):
        record_batch(table, 0, rows)
    assert fits_one_batch(table, 5, 9)
    assert record_batch(table, 5, 9).equals(table.slice(5, 4).combine_chunks().to_batches()[0])


@each("name", NESTED)
def test_a_column_that_is_too_large_for_one_chunk_keeps_its_chunks(name: str) -> None:
    table = pa.table({"id": pa.chunked_array([range(2000), range(200)]), "wide": NESTED[name]})
    found = joined_chunks(table)
    assert found.column("id").num_chunks == 1
    assert len(found) == len(table)
    assert found.column("wide").num_chunks > 1
    assert found.column("wide").nbytes >= 2200 * 2**20


def test_tables_are_joined_as_they_were() -> None:
    parts = [pa.table({"a": [1], "b": [["x"]], "c": pa.array(["w"]).dictionary_encode()}), None]
    parts[1] = pa.table({"a": [2], "b": [None], "c": pa.array(["v"]).dictionary_encode()}, schema=parts[0].schema)
    found = TableMaker(parts[0].schema).joined(parts)
    assert found.to_pylist() == parts[0].to_pylist() + parts[1].to_pylist()
    assert {column.num_chunks for column in found.columns} == {1}
    assert joined_chunks(found.slice(0, 0)).num_rows == 0
    assert joined_chunks(pa.table({})).num_columns == 0


def test_dictionaries_that_cannot_be_joined_are_an_error_that_names_the_column() -> None:
    kind = pa.dictionary(pa.int8(), pa.string())
    schema = pa.schema([("a", pa.int64()), ("word", kind)])
    tables = [
        pa.table({"a": range(100), "word": pa.array([f"{part} {n}" for n in range(100)], kind)}, schema=schema)
        for part in range(2)
    ]
    with pytest.raises(RecordError, match="column 'word': its dictionaries cannot be joined"):
        TableMaker(schema).joined(tables)
    with pytest.raises(RecordError, match=r"column 'word': .*; give a --schema with wider indices"):
        encode_arrow(pa.concat_tables(tables), row_group_bytes=2**20)


def test_files_hold_what_is_in_many_chunks() -> None:
    table = pa.table({"t": pa.chunked_array([[["a"], None], [["b", "c"]], []], pa.list_(pa.string()))})
    assert ipc.open_file(encode_arrow(table, row_group_bytes=100)).read_all().equals(table)
    parquet = encode_parquet(table, row_group_bytes=100, page_bytes=100)
    assert pq.read_table(io.BytesIO(parquet)).equals(table)
