"""Files of columns: the same bytes each time, in row groups and pages of the sizes asked for, that pyarrow reads."""

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

from ledgerbeam.errors import RecordError
from ledgerbeam.io.columns.format import ArrowFormat, ParquetFormat
from ledgerbeam.io.columns.schema import JobSchema

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
def test_no_records_are_a_file_without_rows(kind: ParquetFormat | ArrowFormat) -> None:
    (file,) = kind.encode([])
    assert file.records == 0
    assert list(kind.open_bytes(file.data, "x")) == []


@pytest.mark.parametrize("plain", [ParquetFormat(), ArrowFormat()], ids=lambda kind: kind.name)
def test_without_a_schema_a_file_has_that_of_its_records(plain: ParquetFormat | ArrowFormat) -> None:
    (file,) = plain.encode([{"a": 1}, {"b": None}])
    assert plain.open_bytes(file.data, "x")[:] == [{"a": 1}, {"b": None}]


def test_a_table_of_a_route_is_written_by_its_schema_and_others_by_the_main_one() -> None:
    main, other = pa.schema([("a", pa.int32())]), pa.schema([("b", pa.string())])
    kind = ParquetFormat(schema=JobSchema({"": main, "r": other}))
    maker = kind.written("r")
    assert maker is not None
    (file,) = kind.encode(maker.table([{"b": "x"}]))
    assert kind.open_bytes(file.data, "x").schema == other
    (file,) = kind.encode(pa.table({"a": pa.array([1], pa.int64())}))
    assert kind.open_bytes(file.data, "x").schema == main
    with pytest.raises(RecordError, match="field c: expected no such column"):
        kind.encode(pa.table({"c": [1]}))
