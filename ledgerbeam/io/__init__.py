"""Bytes by URL: reading, publishing and listing sources, and the formats and indexes on top of them.

Every URL goes through `storage` (reads), `publish` (writes) or `listing`; local paths and fsspec URLs are equals
in all of them. Nothing here knows of Beam or of the ledger. `publish.publish` is used by way of its module.
"""

from __future__ import annotations

from ledgerbeam.io.formats.base import IndexedFormat as IndexedFormat
from ledgerbeam.io.formats.base import LineFormat as LineFormat
from ledgerbeam.io.formats.base import RecordFormat as RecordFormat
from ledgerbeam.io.formats.format import Format as Format
from ledgerbeam.io.formats.format import Reader as Reader
from ledgerbeam.io.formats.format import ShardEncoder as ShardEncoder
from ledgerbeam.io.formats.format import ShardFile as ShardFile
from ledgerbeam.io.formats.format import StreamedRecords as StreamedRecords
from ledgerbeam.io.formats.format import StreamSpan as StreamSpan
from ledgerbeam.io.formats.registry import FileType as FileType
from ledgerbeam.io.formats.registry import format_named as format_named
from ledgerbeam.io.formats.registry import open_source as open_source
from ledgerbeam.io.formats.registry import recognize as recognize
from ledgerbeam.io.formats.registry import register as register
from ledgerbeam.io.formats.registry import require_formats as require_formats
from ledgerbeam.io.formats.seekable import build_index as build_index
from ledgerbeam.io.formats.seekable import seek_points_of as seek_points_of
from ledgerbeam.io.formats.streamed import SpanReader as SpanReader
from ledgerbeam.io.formats.streamed import scan_stream as scan_stream
from ledgerbeam.io.formats.streamed import split_source as split_source
from ledgerbeam.io.formats.streamed import stream_records as stream_records
from ledgerbeam.io.idxpack.layout import collection_key as collection_key
from ledgerbeam.io.idxpack.reader import IndexPack as IndexPack
from ledgerbeam.io.idxpack.reader import PackedRecords as PackedRecords
from ledgerbeam.io.idxpack.writer import PackArray as PackArray
from ledgerbeam.io.idxpack.writer import PackSources as PackSources
from ledgerbeam.io.idxpack.writer import write_index_pack as write_index_pack
from ledgerbeam.io.index.file import IndexFile as IndexFile
from ledgerbeam.io.index.file import index_bytes as index_bytes
from ledgerbeam.io.index.file import write_index as write_index
from ledgerbeam.io.index.location import IndexLocation as IndexLocation
from ledgerbeam.io.jsonl.format import Jsonl as Jsonl
from ledgerbeam.io.jsonl.newlines import assemble_jsonl_index as assemble_jsonl_index
from ledgerbeam.io.jsonl.newlines import build_jsonl_index as build_jsonl_index
from ledgerbeam.io.jsonl.newlines import scan_newlines as scan_newlines
from ledgerbeam.io.jsonl.reader import JsonlReader as JsonlReader
from ledgerbeam.io.jsonl.reader import encode_jsonl as encode_jsonl
from ledgerbeam.io.jsonl.reader import split_jsonl as split_jsonl
from ledgerbeam.io.listing.folder_files import FilePage as FilePage
from ledgerbeam.io.listing.folder_files import list_files as list_files
from ledgerbeam.io.listing.folder_files import sizes_of as sizes_of
from ledgerbeam.io.listing.own_files import MARKS_FOLDER as MARKS_FOLDER
from ledgerbeam.io.listing.own_files import OwnFiles as OwnFiles
from ledgerbeam.io.listing.pages import Page as Page
from ledgerbeam.io.listing.pages import list_pages as list_pages
from ledgerbeam.io.listing.pages import read_source_list as read_source_list
from ledgerbeam.io.listing.pages import stat_pages as stat_pages
from ledgerbeam.io.listing.patterns import common_base as common_base
from ledgerbeam.io.listing.patterns import expand_braces as expand_braces
from ledgerbeam.io.listing.patterns import fixed_part as fixed_part
from ledgerbeam.io.listing.source_listing import SourceListing as SourceListing
from ledgerbeam.io.megatron.format import Megatron as Megatron
from ledgerbeam.io.shar.format import Shar as Shar
from ledgerbeam.io.shar.reader import SharReader as SharReader
from ledgerbeam.io.shar.samples import HeldRecords as HeldRecords
from ledgerbeam.io.shar.samples import SharSamples as SharSamples
from ledgerbeam.io.shar.samples import group_shards as group_shards
from ledgerbeam.io.shar.samples import shard_field as shard_field
from ledgerbeam.io.shar.writer import SharWriter as SharWriter
from ledgerbeam.io.storage.client import Options as Options
from ledgerbeam.io.storage.files import delete as delete
from ledgerbeam.io.storage.files import read_bytes as read_bytes
from ledgerbeam.io.storage.files import read_many_files as read_many_files
from ledgerbeam.io.storage.objects import ObjectFolder as ObjectFolder
from ledgerbeam.io.storage.publish import publish_bytes as publish_bytes
from ledgerbeam.io.storage.publish import remove_stale_temporaries as remove_stale_temporaries
from ledgerbeam.io.storage.ranges import RangeReader as RangeReader
from ledgerbeam.io.storage.stat import FileInfo as FileInfo
from ledgerbeam.io.storage.stat import require_listed as require_listed
from ledgerbeam.io.storage.stat import stat as stat
from ledgerbeam.io.storage.stat import stat_many as stat_many
from ledgerbeam.io.storage.unchanged import SourceWatch as SourceWatch
from ledgerbeam.io.storage.urls import canonical_url as canonical_url
from ledgerbeam.io.storage.urls import is_local as is_local
from ledgerbeam.io.tar.encode import encode_tar as encode_tar
from ledgerbeam.io.tar.format import Tar as Tar
from ledgerbeam.io.tar.grouping import Grouping as Grouping
from ledgerbeam.io.tar.reader import TarReader as TarReader
from ledgerbeam.io.tar.reader import build_tar_index as build_tar_index
from ledgerbeam.io.tar.sample import Sample as Sample
from ledgerbeam.io.tar.walk import TarMembers as TarMembers
from ledgerbeam.io.tar.walk import walk_tar as walk_tar

__all__ = [
    "MARKS_FOLDER",
    "FileInfo",
    "FilePage",
    "FileType",
    "Format",
    "Grouping",
    "HeldRecords",
    "IndexFile",
    "IndexLocation",
    "IndexPack",
    "IndexedFormat",
    "Jsonl",
    "JsonlReader",
    "LineFormat",
    "Megatron",
    "ObjectFolder",
    "Options",
    "OwnFiles",
    "PackArray",
    "PackSources",
    "PackedRecords",
    "Page",
    "RangeReader",
    "Reader",
    "RecordFormat",
    "Sample",
    "Shar",
    "SharReader",
    "SharSamples",
    "SharWriter",
    "ShardEncoder",
    "ShardFile",
    "SourceListing",
    "SourceWatch",
    "SpanReader",
    "StreamSpan",
    "StreamedRecords",
    "Tar",
    "TarMembers",
    "TarReader",
    "assemble_jsonl_index",
    "build_index",
    "build_jsonl_index",
    "build_tar_index",
    "canonical_url",
    "collection_key",
    "common_base",
    "delete",
    "encode_jsonl",
    "encode_tar",
    "expand_braces",
    "fixed_part",
    "format_named",
    "group_shards",
    "index_bytes",
    "is_local",
    "list_files",
    "list_pages",
    "open_source",
    "publish_bytes",
    "read_bytes",
    "read_many_files",
    "read_source_list",
    "recognize",
    "register",
    "remove_stale_temporaries",
    "require_formats",
    "require_listed",
    "scan_newlines",
    "scan_stream",
    "seek_points_of",
    "shard_field",
    "sizes_of",
    "split_jsonl",
    "split_source",
    "stat",
    "stat_many",
    "stat_pages",
    "stream_records",
    "walk_tar",
    "write_index",
    "write_index_pack",
]
