"""Files and objects by URL, and the formats of their records.

The functions here open sources, write records and build indexes. The classes are bases of formats of your own. A source
is named by a local path or by any URL of fsspec. Nothing here imports Beam or the ledger.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ledgerbeam._base.lazy import lazy_names

if TYPE_CHECKING:
    from ledgerbeam.io.any_source import build_index
    from ledgerbeam.io.columns.format import ArrowFormat, ParquetFormat
    from ledgerbeam.io.columns.parquet_reader import ParquetReader
    from ledgerbeam.io.formats.base import IndexedFormat, LineFormat, RecordFormat
    from ledgerbeam.io.formats.compressed import SeekableZstd
    from ledgerbeam.io.formats.format import (
        ColumnFormat,
        ColumnReader,
        Format,
        OffsetFormat,
        Reader,
        ShardEncoder,
        ShardFile,
    )
    from ledgerbeam.io.formats.registry import open_source, recognize, register
    from ledgerbeam.io.index.file import write_index
    from ledgerbeam.io.lines.formats import JsonlFormat, TextFormat
    from ledgerbeam.io.lines.jsonl import JsonlReader, encode_jsonl
    from ledgerbeam.io.storage.client import Options
    from ledgerbeam.io.storage.publish import publish_bytes
    from ledgerbeam.io.tar.format import TarFormat
    from ledgerbeam.io.tar.reader import TarReader
    from ledgerbeam.io.tar.sample import Sample

__all__ = [
    "ArrowFormat",
    "ColumnFormat",
    "ColumnReader",
    "Format",
    "IndexedFormat",
    "JsonlFormat",
    "JsonlReader",
    "LineFormat",
    "OffsetFormat",
    "Options",
    "ParquetFormat",
    "ParquetReader",
    "Reader",
    "RecordFormat",
    "Sample",
    "SeekableZstd",
    "ShardEncoder",
    "ShardFile",
    "TarFormat",
    "TarReader",
    "TextFormat",
    "build_index",
    "encode_jsonl",
    "open_source",
    "publish_bytes",
    "recognize",
    "register",
    "write_index",
]

if not TYPE_CHECKING:  # for a type checker, `__getattr__` would make every name valid
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "any_source": "build_index",
            "columns.format": "ArrowFormat ParquetFormat",
            "columns.parquet_reader": "ParquetReader",
            "formats.base": "IndexedFormat LineFormat RecordFormat",
            "formats.compressed": "SeekableZstd",
            "formats.format": "ColumnFormat ColumnReader Format OffsetFormat Reader ShardEncoder ShardFile",
            "formats.registry": "open_source recognize register",
            "index.file": "write_index",
            "lines.formats": "JsonlFormat TextFormat",
            "lines.jsonl": "JsonlReader encode_jsonl",
            "storage.client": "Options",
            "storage.publish": "publish_bytes",
            "tar.format": "TarFormat",
            "tar.reader": "TarReader",
            "tar.sample": "Sample",
        },
    )
