"""Bytes by URL: reading, publishing and listing sources, and the formats and indexes on top of them.

Every URL goes through `storage` (reads), `publish` (writes) or `listing`; local paths and fsspec URLs are equals
in all of them. Nothing here knows of Beam or of the ledger. `publish.publish` is used by way of its module.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ledgerbeam._base.lazy import lazy_names

if TYPE_CHECKING:
    from ledgerbeam.io.columns.format import ArrowFormat as ArrowFormat
    from ledgerbeam.io.columns.format import ParquetFormat as ParquetFormat
    from ledgerbeam.io.columns.parquet_reader import ParquetReader as ParquetReader
    from ledgerbeam.io.compression.zstd_frames import seekable_zstd as seekable_zstd
    from ledgerbeam.io.datasets.audio import Audio as Audio
    from ledgerbeam.io.datasets.megatron.format import MegatronFormat as MegatronFormat
    from ledgerbeam.io.datasets.shar.format import SharFormat as SharFormat
    from ledgerbeam.io.datasets.shar.payloads import Frames as Frames
    from ledgerbeam.io.datasets.shar.reader import SharReader as SharReader
    from ledgerbeam.io.datasets.shar.writer import SharWriter as SharWriter
    from ledgerbeam.io.formats.base import IndexedFormat as IndexedFormat
    from ledgerbeam.io.formats.base import LineFormat as LineFormat
    from ledgerbeam.io.formats.base import RecordFormat as RecordFormat
    from ledgerbeam.io.formats.compressed import SeekableZstd as SeekableZstd
    from ledgerbeam.io.formats.format import ColumnFormat as ColumnFormat
    from ledgerbeam.io.formats.format import ColumnReader as ColumnReader
    from ledgerbeam.io.formats.format import Format as Format
    from ledgerbeam.io.formats.format import OffsetFormat as OffsetFormat
    from ledgerbeam.io.formats.format import Reader as Reader
    from ledgerbeam.io.formats.format import ShardEncoder as ShardEncoder
    from ledgerbeam.io.formats.format import ShardFile as ShardFile
    from ledgerbeam.io.formats.format import StreamedRecords as StreamedRecords
    from ledgerbeam.io.formats.format import StreamSpan as StreamSpan
    from ledgerbeam.io.formats.registry import open_source as open_source
    from ledgerbeam.io.formats.registry import recognize as recognize
    from ledgerbeam.io.formats.registry import register as register
    from ledgerbeam.io.formats.seekable import build_index as build_index
    from ledgerbeam.io.formats.seekable import seek_points_of as seek_points_of
    from ledgerbeam.io.formats.streamed import SpanReader as SpanReader
    from ledgerbeam.io.formats.streamed import scan_stream as scan_stream
    from ledgerbeam.io.idxpack.layout import collection_key as collection_key
    from ledgerbeam.io.idxpack.reader import IndexPack as IndexPack
    from ledgerbeam.io.idxpack.writer import PackArray as PackArray
    from ledgerbeam.io.idxpack.writer import PackSources as PackSources
    from ledgerbeam.io.idxpack.writer import write_index_pack as write_index_pack
    from ledgerbeam.io.index.file import IndexFile as IndexFile
    from ledgerbeam.io.index.file import index_bytes as index_bytes
    from ledgerbeam.io.index.file import write_index as write_index
    from ledgerbeam.io.index.location import IndexLocation as IndexLocation
    from ledgerbeam.io.index.newlines import build_jsonl_index as build_jsonl_index
    from ledgerbeam.io.index.reader import RawRecord as RawRecord
    from ledgerbeam.io.lines.jsonl_format import JsonlFormat as JsonlFormat
    from ledgerbeam.io.lines.jsonl_reader import JsonlReader as JsonlReader
    from ledgerbeam.io.lines.jsonl_reader import encode_jsonl as encode_jsonl
    from ledgerbeam.io.lines.jsonl_reader import stream_records as stream_records
    from ledgerbeam.io.lines.text_format import TextFormat as TextFormat
    from ledgerbeam.io.listing.patterns import common_base as common_base
    from ledgerbeam.io.storage.client import Options as Options
    from ledgerbeam.io.storage.files import delete as delete
    from ledgerbeam.io.storage.files import read_bytes as read_bytes
    from ledgerbeam.io.storage.objects import ObjectFolder as ObjectFolder
    from ledgerbeam.io.storage.publish import publish_bytes as publish_bytes
    from ledgerbeam.io.storage.ranges import RangeReader as RangeReader
    from ledgerbeam.io.storage.stat import FileInfo as FileInfo
    from ledgerbeam.io.storage.stat import stat as stat
    from ledgerbeam.io.storage.urls import canonical_url as canonical_url
    from ledgerbeam.io.tar.format import TarFormat as TarFormat
    from ledgerbeam.io.tar.grouping import Grouping as Grouping
    from ledgerbeam.io.tar.reader import TarReader as TarReader
    from ledgerbeam.io.tar.sample import Sample as Sample

__all__ = [
    "ArrowFormat",
    "Audio",
    "ColumnFormat",
    "ColumnReader",
    "FileInfo",
    "Format",
    "Frames",
    "Grouping",
    "IndexFile",
    "IndexLocation",
    "IndexPack",
    "IndexedFormat",
    "JsonlFormat",
    "JsonlReader",
    "LineFormat",
    "MegatronFormat",
    "ObjectFolder",
    "OffsetFormat",
    "Options",
    "PackArray",
    "PackSources",
    "ParquetFormat",
    "ParquetReader",
    "RangeReader",
    "RawRecord",
    "Reader",
    "RecordFormat",
    "Sample",
    "SeekableZstd",
    "SharFormat",
    "SharReader",
    "SharWriter",
    "ShardEncoder",
    "ShardFile",
    "SpanReader",
    "StreamSpan",
    "StreamedRecords",
    "TarFormat",
    "TarReader",
    "TextFormat",
    "build_index",
    "build_jsonl_index",
    "canonical_url",
    "collection_key",
    "common_base",
    "delete",
    "encode_jsonl",
    "index_bytes",
    "open_source",
    "publish_bytes",
    "read_bytes",
    "recognize",
    "register",
    "scan_stream",
    "seek_points_of",
    "seekable_zstd",
    "stat",
    "stream_records",
    "write_index",
    "write_index_pack",
]

if not TYPE_CHECKING:  # a type checker would take any name for one that is there
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "ArrowFormat": "columns.format",
            "Audio": "datasets.audio",
            "ColumnFormat": "formats.format",
            "ColumnReader": "formats.format",
            "FileInfo": "storage.stat",
            "Format": "formats.format",
            "Frames": "datasets.shar.payloads",
            "Grouping": "tar.grouping",
            "IndexFile": "index.file",
            "IndexLocation": "index.location",
            "IndexPack": "idxpack.reader",
            "IndexedFormat": "formats.base",
            "JsonlFormat": "lines.jsonl_format",
            "JsonlReader": "lines.jsonl_reader",
            "LineFormat": "formats.base",
            "MegatronFormat": "datasets.megatron.format",
            "ObjectFolder": "storage.objects",
            "OffsetFormat": "formats.format",
            "Options": "storage.client",
            "PackArray": "idxpack.writer",
            "PackSources": "idxpack.writer",
            "ParquetFormat": "columns.format",
            "ParquetReader": "columns.parquet_reader",
            "RangeReader": "storage.ranges",
            "RawRecord": "index.reader",
            "Reader": "formats.format",
            "RecordFormat": "formats.base",
            "Sample": "tar.sample",
            "SeekableZstd": "formats.compressed",
            "SharFormat": "datasets.shar.format",
            "SharReader": "datasets.shar.reader",
            "SharWriter": "datasets.shar.writer",
            "ShardEncoder": "formats.format",
            "ShardFile": "formats.format",
            "SpanReader": "formats.streamed",
            "StreamSpan": "formats.format",
            "StreamedRecords": "formats.format",
            "TarFormat": "tar.format",
            "TarReader": "tar.reader",
            "TextFormat": "lines.text_format",
            "build_index": "formats.seekable",
            "build_jsonl_index": "index.newlines",
            "canonical_url": "storage.urls",
            "collection_key": "idxpack.layout",
            "common_base": "listing.patterns",
            "delete": "storage.files",
            "encode_jsonl": "lines.jsonl_reader",
            "index_bytes": "index.file",
            "open_source": "formats.registry",
            "publish_bytes": "storage.publish",
            "read_bytes": "storage.files",
            "recognize": "formats.registry",
            "register": "formats.registry",
            "scan_stream": "formats.streamed",
            "seek_points_of": "formats.seekable",
            "seekable_zstd": "compression.zstd_frames",
            "stat": "storage.stat",
            "stream_records": "lines.jsonl_reader",
            "write_index": "index.file",
            "write_index_pack": "idxpack.writer",
        },
    )
