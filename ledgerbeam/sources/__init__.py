"""Sources of jobs: for each kind, what cuts a source into tasks and what reads them. Knows no Beam."""

from __future__ import annotations

from ledgerbeam.sources.files import CompressedFile as CompressedFile
from ledgerbeam.sources.files import FileSources as FileSources
from ledgerbeam.sources.files import IndexedFile as IndexedFile
from ledgerbeam.sources.files import PackedFiles as PackedFiles
from ledgerbeam.sources.kind import Cut as Cut
from ledgerbeam.sources.kind import Limits as Limits
from ledgerbeam.sources.kind import Opened as Opened
from ledgerbeam.sources.kind import SourceKind as SourceKind
from ledgerbeam.sources.kind import Sources as Sources
from ledgerbeam.sources.kind import StreamCut as StreamCut
from ledgerbeam.sources.kind import StreamReader as StreamReader
from ledgerbeam.sources.kind import listed_file as listed_file
from ledgerbeam.sources.kind import listed_files as listed_files
from ledgerbeam.sources.kind import looked_at as looked_at
from ledgerbeam.sources.kind import plan_spans as plan_spans
from ledgerbeam.sources.shards import SharShard as SharShard
from ledgerbeam.sources.shards import SharSources as SharSources

__all__ = [
    "CompressedFile",
    "Cut",
    "FileSources",
    "IndexedFile",
    "Limits",
    "Opened",
    "PackedFiles",
    "SharShard",
    "SharSources",
    "SourceKind",
    "Sources",
    "StreamCut",
    "StreamReader",
    "listed_file",
    "listed_files",
    "looked_at",
    "plan_spans",
]
