"""Chunks of columns joined, as far as 32-bit offsets allow."""

from __future__ import annotations

import io

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import ipc

from ledgerbeam.errors import RecordError
from ledgerbeam.io.columns.encode import encode_arrow, encode_parquet, fits_one_batch, joined_chunks, record_batch
from ledgerbeam.io.columns.tables import TableMaker
from tests.cases import each

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
