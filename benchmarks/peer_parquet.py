"""The side of DuckDB, Polars, datatrove and Ray Data in the table of Parquet; runs in the peers' environment.

Each tool copies one file to Parquet with Zstandard, and returns its seconds without those of its import.
"""

from __future__ import annotations

import importlib
import time
from typing import Any

from benchmarks.serve import serve

LEVEL = 3


def duckdb(path: str, out: str) -> float:
    library: Any = importlib.import_module("duckdb")
    started = time.perf_counter()
    library.sql(
        f"COPY (SELECT * FROM '{path}') TO '{out}/out.parquet' "
        f"(FORMAT parquet, COMPRESSION zstd, COMPRESSION_LEVEL {LEVEL})"
    )
    return time.perf_counter() - started


def polars(path: str, out: str) -> float:
    library: Any = importlib.import_module("polars")
    started = time.perf_counter()
    library.scan_parquet(path).sink_parquet(f"{out}/out.parquet", compression="zstd", compression_level=LEVEL)
    return time.perf_counter() - started


def datatrove(path: str, out: str) -> float:
    executor: Any = importlib.import_module("datatrove.executor").LocalPipelineExecutor
    readers: Any = importlib.import_module("datatrove.pipeline.readers")
    writers: Any = importlib.import_module("datatrove.pipeline.writers")
    folder, _, name = path.rpartition("/")
    started = time.perf_counter()
    executor(
        pipeline=[
            readers.ParquetReader(folder, glob_pattern=name, text_key="text", id_key="id"),
            writers.ParquetWriter(out, compression="zstd"),
        ],
        tasks=1,
        workers=1,
        logging_dir=f"{out}/logs",
    ).run()
    return time.perf_counter() - started


def ray(path: str, out: str) -> float:
    library: Any = importlib.import_module("ray")
    data: Any = importlib.import_module("ray.data")
    started = time.perf_counter()
    library.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    try:
        batches = data.read_parquet(path).map_batches(_same, batch_format="pyarrow")
        batches.write_parquet(f"{out}/out", compression="zstd", compression_level=LEVEL)
        return time.perf_counter() - started
    finally:
        library.shutdown()


def _same(batch: Any) -> Any:
    return batch


if __name__ == "__main__":
    serve({"duckdb": duckdb, "polars": polars, "datatrove": datatrove, "ray": ray})
