"""Table: random rows of a Parquet file on an object store, and shuffled passes over it."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.data import Data
from benchmarks.table import Row, absent_row, most_row
from ledgerbeam.io import publish_bytes
from ledgerbeam.iterators import IndexedParquet
from tests.servers import s3
from tests.servers.s3_proxy import S3Proxy, s3_proxy

TITLE = "Parquet on an object store (loopback), 2 of 4 columns, counted by a proxy"

ROWS, GROUP = 64_000, 1_000
READS = 1_000
COLUMNS = ("id", "text")
SOME = 4_000
"""Number of places of a shuffle by rows that are measured. The cost of a whole pass is computed from them."""


def rows(data: Data) -> Iterator[Row]:
    if s3.missing():
        yield absent_row("random rows of Parquet", "<= 1", str(s3.missing()))
        return
    with s3.s3_server(data.work) as server, s3_proxy(server) as proxy:
        url = f"s3://{server.bucket()}/rows.parquet"
        publish_bytes(url, _content(), server.options)
        yield from _rows(proxy, url)


def _rows(proxy: S3Proxy, url: str) -> Iterator[Row]:
    def leaf(**options: Any) -> IndexedParquet:
        return IndexedParquet(url, COLUMNS, proxy.options, cache_bytes=2**20, **options)

    opened = leaf()
    wanted = random.Random(3).choices(range(ROWS), k=READS)
    groups = len({number // GROUP for number in wanted})
    requests, size = _counted(proxy, lambda: opened.read_many(wanted))
    each = f"{requests / READS:.3f} GET, {size / READS:.0f} B a row"
    chunks = requests / (groups * len(COLUMNS))
    work = f"read_many of {READS:,} random rows, GETs a column chunk"
    yield most_row(work, chunks, 1, "", ours=each, other=f"{groups * len(COLUMNS)} column chunks")

    apart = leaf()
    found = [_counted(proxy, lambda: apart[number]) for number in wanted[:50]]  # noqa: B023 - called at once
    requests, size = (sum(part) for part in zip(*found, strict=True))
    each = f"{requests / len(found):.2f} GET, {size / len(found) / 1000:.0f} kB a row"
    yield most_row("[i] of random rows, GETs a row", requests / len(found), len(COLUMNS), "", ours=each)

    by_rows, by_blocks = leaf(shuffle=True), leaf(shuffle="blocks")
    _, rows_size = _counted(proxy, lambda: list(islice(by_rows, SOME)))
    rows_size = rows_size * ROWS // SOME
    requests, size = _counted(proxy, lambda: sum(1 for _ in by_blocks))
    other = f"by rows {rows_size / 1e9:.2f} GB, reckoned from {SOME:,} rows"
    ours = f"{size / 1e6:.1f} MB, {requests:,} GETs"
    yield most_row(
        "bytes of a pass shuffled by blocks, to its columns",
        size / by_blocks.records.size,
        1.2,
        "",
        ours=ours,
        other=other,
    )
    total = 0
    for shard in range(8):
        part = leaf(shuffle="blocks")
        part.partition(shard, 8)
        total += _counted(proxy, lambda: sum(1 for _ in part))[1]  # noqa: B023 - called at once
    yield most_row("the same, 8 shards together", total / by_blocks.records.size, 1.5, "", ours=f"{total / 1e6:.1f} MB")


def _content() -> bytes:
    chance = random.Random(5)
    table = pa.table(
        {
            "id": range(ROWS),
            "embedding": [chance.randbytes(256) for _ in range(ROWS)],
            "text": [chance.randbytes(150).hex() for _ in range(ROWS)],
            "other": [chance.random() for _ in range(ROWS)],
        }
    )
    target = pa.BufferOutputStream()
    pq.write_table(table, target, row_group_size=GROUP, compression="zstd")
    content: bytes = target.getvalue().to_pybytes()
    return content


def _counted(proxy: S3Proxy, work: Callable[[], object]) -> tuple[int, int]:
    """Do some work, and return the number of its GET requests, and the number of bytes that these requested."""
    proxy.clear()
    work()
    spans = [request.headers["range"].removeprefix("bytes=").split("-") for request in proxy.requests]
    return len(spans), sum(int(stop) - int(start) + 1 for start, stop in spans)
