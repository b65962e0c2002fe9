"""The readers of columns that our Parquet and Arrow files are judged by; runs in the peers' environment."""

from __future__ import annotations

import os
from typing import Any

from benchmarks.serve import serve

os.environ["HF_HUB_OFFLINE"] = "1"

import datasets  # type: ignore[import-not-found]
import duckdb
import pandas as pd  # type: ignore[import-untyped]
import polars as pl  # type: ignore[import-not-found]
import pyarrow as pa
from pyarrow import parquet


def with_pyarrow(path: str) -> Any:
    if path.endswith(".arrow"):
        with pa.ipc.open_file(path) as reader:
            return reader.read_all().select(["id", "text"]).to_pylist()
    return parquet.read_table(path, columns=["id", "text"]).to_pylist()


def with_duckdb(path: str) -> Any:
    """Read the columns of a Parquet file, and the names of all their types."""
    rows = duckdb.execute(f"select id, text from '{path}'").fetchall()
    types = {str(name): str(kind) for name, kind, *_ in duckdb.execute(f"describe select * from '{path}'").fetchall()}
    return [{"id": number, "text": text} for number, text in rows], types


def with_polars(path: str) -> Any:
    read = pl.read_ipc if path.endswith(".arrow") else pl.read_parquet
    return read(path).select("id", "text").to_dicts()


def with_pandas(path: str) -> Any:
    read = pd.read_feather if path.endswith(".arrow") else pd.read_parquet
    return read(path, columns=["id", "text"]).to_dict("records")


def with_datasets(folder: str, cache: str) -> Any:
    """Open a folder by its card; return the records of each split."""
    found = datasets.load_dataset(folder, cache_dir=cache)
    return {str(split): list(rows) for split, rows in found.items()}


if __name__ == "__main__":
    serve(
        {
            "with_pyarrow": with_pyarrow,
            "with_duckdb": with_duckdb,
            "with_polars": with_polars,
            "with_pandas": with_pandas,
            "with_datasets": with_datasets,
        }
    )
