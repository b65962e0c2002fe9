"""Tables and files of columns for tests: every type, every compression, every encoding."""

from __future__ import annotations

import datetime as dt
import io
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import ipc

COMPRESSIONS = ("none", "snappy", "gzip", "brotli", "zstd", "lz4")

_NOON = dt.datetime(2024, 2, 29, 12, 0, 0, 123456)  # noqa: DTZ001 - a time without a zone


def columns(rows: int) -> dict[str, pa.Array]:
    """Return a column of every type that Parquet holds; each third value is null."""

    def made(kind: pa.DataType, value: Callable[[int], Any]) -> pa.Array:
        return pa.array([None if number % 3 == 2 else value(number) for number in range(rows)], kind)

    return {
        "bool": made(pa.bool_(), lambda n: n % 2 == 0),
        "int8": made(pa.int8(), lambda n: n % 100 - 50),
        "uint64": made(pa.uint64(), lambda n: 2**64 - 1 - n),
        "int64": pa.array(range(rows), pa.int64()),
        "float16": made(pa.float16(), lambda n: n % 7 / 4),
        "float32": made(pa.float32(), lambda n: n / 4),
        "float64": made(pa.float64(), lambda n: n / 3),
        "string": made(pa.string(), lambda n: "é" * (n % 5) + str(n)),
        "large_string": made(pa.large_string(), str),
        "string_view": made(pa.string_view(), lambda n: f"a longer text than twelve bytes {n}"),
        "binary": made(pa.binary(), lambda n: b"\xff\x00%d" % n),
        "large_binary": made(pa.large_binary(), lambda n: b"\xff%d" % n),
        "binary_view": made(pa.binary_view(), lambda n: b"\xff" * (n % 20)),
        "fixed": made(pa.binary(4), lambda n: n.to_bytes(4, "big")),
        "decimal": made(pa.decimal128(20, 3), lambda n: Decimal(n).scaleb(-3)),
        "decimal256": made(pa.decimal256(60, 5), lambda n: Decimal(10**40 + n).scaleb(-5)),
        "date": made(pa.date32(), lambda n: dt.date(1900, 1, 1) + dt.timedelta(n)),
        "time": made(pa.time64("us"), lambda n: dt.time(1, 2, 3, n % 1000)),
        "time_ms": made(pa.time32("ms"), lambda n: dt.time(1, 2, 3, 1000 * (n % 1000))),
        "stamp": made(pa.timestamp("us"), lambda n: _NOON + dt.timedelta(n)),
        "stamp_utc": made(pa.timestamp("ms", "UTC"), lambda n: (_NOON + dt.timedelta(n)).replace(microsecond=0)),
        "stamp_ns": made(pa.timestamp("ns"), lambda n: 1_700_000_000_000_000_000 + n),
        "period": made(pa.duration("us"), lambda n: dt.timedelta(microseconds=n - 5)),
        "null": pa.nulls(rows),
        "list": made(pa.list_(pa.int64()), lambda n: [None if place % 2 else place for place in range(n % 4)]),
        "large_list": made(pa.large_list(pa.string()), lambda n: [str(n)] * (n % 3)),
        "fixed_list": pa.array(
            [[n, None] for n in range(rows)], pa.list_(pa.int32(), 2)
        ),  # its nulls pyarrow cannot read
        "struct": made(pa.struct({"a": pa.int64(), "b": pa.list_(pa.string())}), lambda n: {"a": n, "b": [str(n)]}),
        "map": made(pa.map_(pa.string(), pa.int64()), lambda n: [(str(place), place) for place in range(n % 3)]),
        "words": made(pa.dictionary(pa.int32(), pa.string()), lambda n: f"word {n % 3}"),
        "json": made(pa.json_(), lambda n: f'{{"n": {n}}}'),
    }


def table(rows: int, *names: str) -> pa.Table:
    """Return some columns, or all."""
    every = columns(rows)
    return pa.table({name: every[name] for name in names or every})


def parquet_bytes(of: pa.Table, **options: Any) -> bytes:
    """Return a table as a Parquet file."""
    target = io.BytesIO()
    pq.write_table(of, target, **options)
    return target.getvalue()


def arrow_bytes(of: pa.Table, rows: int | None = None, compression: str | None = None) -> bytes:
    """Return a table as an Arrow IPC file."""
    target = io.BytesIO()
    with ipc.new_file(target, of.schema, options=ipc.IpcWriteOptions(compression=compression)) as writer:
        writer.write_table(of, max_chunksize=rows)
    return target.getvalue()
