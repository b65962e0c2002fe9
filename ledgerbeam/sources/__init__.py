"""The sources of jobs: each kind divides a source into tasks and reads them. This package does not import Beam."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ledgerbeam._base.lazy import lazy_names

if TYPE_CHECKING:
    from ledgerbeam.io.index.reader import RawRecord as RawRecord
    from ledgerbeam.sources.files import ColumnFile as ColumnFile
    from ledgerbeam.sources.files import CompressedFile as CompressedFile
    from ledgerbeam.sources.files import FileSources as FileSources
    from ledgerbeam.sources.files import IndexedFile as IndexedFile
    from ledgerbeam.sources.files import PackedFiles as PackedFiles
    from ledgerbeam.sources.forms import RecordForm as RecordForm
    from ledgerbeam.sources.kind import Cut as Cut
    from ledgerbeam.sources.kind import Opened as Opened
    from ledgerbeam.sources.kind import SourceKind as SourceKind
    from ledgerbeam.sources.kind import Sources as Sources
    from ledgerbeam.sources.kind import StreamCut as StreamCut
    from ledgerbeam.sources.kind import StreamReader as StreamReader
    from ledgerbeam.sources.kind import TaskLimits as TaskLimits
    from ledgerbeam.sources.kind import Unreadable as Unreadable
    from ledgerbeam.sources.shar import SharShard as SharShard
    from ledgerbeam.sources.shar import SharSources as SharSources

__all__ = [
    "ColumnFile",
    "CompressedFile",
    "Cut",
    "FileSources",
    "IndexedFile",
    "Opened",
    "PackedFiles",
    "RawRecord",
    "RecordForm",
    "SharShard",
    "SharSources",
    "SourceKind",
    "Sources",
    "StreamCut",
    "StreamReader",
    "TaskLimits",
    "Unreadable",
]

if not TYPE_CHECKING:  # a type checker would take any name for one that is there
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "files": "ColumnFile CompressedFile FileSources IndexedFile PackedFiles",
            "forms": "RecordForm",
            "kind": "Cut Opened RawRecord SourceKind Sources StreamCut StreamReader TaskLimits Unreadable",
            "shar": "SharShard SharSources",
        },
    )
