"""The sources of jobs. Each kind of sources divides a source into tasks and reads it. Nothing here imports Beam."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ledgerbeam._base.lazy import lazy_names

if TYPE_CHECKING:
    from ledgerbeam.io.index.reader import RawRecord
    from ledgerbeam.sources.files import ColumnFile, CompressedFile, FileSources, IndexedFile, PackedFiles
    from ledgerbeam.sources.forms import RecordForm
    from ledgerbeam.sources.kind import (
        Cut,
        Opened,
        SourceKind,
        Sources,
        StreamCut,
        StreamReader,
        TaskLimits,
        Unreadable,
    )
    from ledgerbeam.sources.shar import SharShard, SharSources

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

if not TYPE_CHECKING:  # for a type checker, `__getattr__` would make every name valid
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "files": "ColumnFile CompressedFile FileSources IndexedFile PackedFiles",
            "forms": "RecordForm",
            "kind": "Cut Opened RawRecord SourceKind Sources StreamCut StreamReader TaskLimits Unreadable",
            "shar": "SharShard SharSources",
        },
    )
