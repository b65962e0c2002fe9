"""The protocol of a kind of source: it cuts a source into spans, and reads them.

Sources      how the sources of a job are opened; finds the kind of each
SourceKind   a file with an index or of columns, a compressed stream, a pack, a shard of Shar, a pass of a graph
Cut          a source in spans of records, each of them a task
Opened       reads spans by position
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from ledgerbeam.errors import RecordError, UnsupportedShapeError
from ledgerbeam.io import FileInfo, OffsetFormat, RawRecord, StreamSpan
from ledgerbeam.io.formats.format import RowGroup
from ledgerbeam.io.storage.unchanged import SourceWatch
from ledgerbeam.ledger import Source
from ledgerbeam.ledger.model.user_errors import message_of

__all__ = [
    "Cut",
    "Opened",
    "RawRecord",
    "SourceKind",
    "Sources",
    "StreamCut",
    "StreamReader",
    "TaskLimits",
    "Unreadable",
    "listed_file",
    "listed_files",
    "looked_at",
    "plan_rows",
    "plan_spans",
    "unreadable",
]


@dataclass(frozen=True, slots=True)
class Unreadable:
    """Stands for a record that cannot be decoded, among the records of a task.

    Attributes:
        error: The reason, and the record's place.
    """

    error: str


class StreamReader(Protocol):
    """Reads spans of a stream; each must be the one that was read last, or a later one."""

    def read(self, span: StreamSpan, /) -> Any:
        """Return the records of a span, in the form of the sources."""

    def read_each(self, span: StreamSpan, /) -> Any:
        """Return what `read` does, with what cannot be decoded marked."""

    def read_raw(self, span: StreamSpan, /) -> list[RawRecord]:
        """Return what `read` decodes, as it lies in the stream."""


class TaskLimits(NamedTuple):
    """How large a task may be. Both limits may be given.

    Attributes:
        task_bytes: Size in bytes.
        task_records: Records, at most.
    """

    task_bytes: int | None = None
    task_records: int | None = None


@dataclass(frozen=True)
class StreamCut:
    """The plan for a source without positions: one pass from its beginning.

    Attributes:
        places: Where each span lies in the decompressed bytes. format: Decodes them.
    """

    places: tuple[StreamSpan, ...]
    format: OffsetFormat


@dataclass(frozen=True)
class Cut:
    """A source in spans.

    Attributes:
        source: The source, with what opening its files has added.
        spans: Half-open ranges in order, together all records; none for a source without records.
        stream: Set if the spans can only be read in one pass.
    """

    source: Source
    spans: list[tuple[int, int]]
    stream: StreamCut | None = None


class Opened(Protocol):
    """A source that is open, to be read by position."""

    def read_span(self, start: int, stop: int) -> Any:
        """Return the records of a span that `SourceKind.cut` made, in order: a list, or a `pyarrow.Table`."""

    def read_raw(self, start: int, stop: int) -> list[RawRecord]:
        """Return what `read_span` decodes, in its order and number, as it lies in the source.

        Of a pack, each record with the URL of its file; of a shard of Shar the line of the cut.

        Raises:
            UnsupportedShapeError: The items of a graph lie nowhere.
        """

    def read_each(self, start: int, stop: int) -> Any:
        """Return what `read_span` does, with an `Unreadable` in the place of each record that cannot be decoded.

        Of rows it is a `PartialTable`. It takes longer: what is wrong with all of a span is an error here too.
        """

    def close(self) -> None:
        """Close what is open; a later read opens it again."""


class SourceKind(ABC):
    """Cuts the sources of one kind into spans, and reads them. Picklable."""

    counts_blanks: bool = False
    """Whether a span has one place for each record, so that records which are missing are blank lines."""

    def files(self, source: Source) -> list[FileInfo]:
        """Return the files that must not change while a span is read. Default: all that were listed."""
        return listed_files(source)

    @abstractmethod
    def cut(self, source: Source, limits: TaskLimits, *, changed: bool = False) -> Cut:
        """Cut a source into spans: a pure function of its content and the limits.

        Args:
            source: The source, as it was listed.
            limits: How large a span may be.
            changed: Whether the source is known to have changed since the job read it: an index that seems to fit may
                be of the former content.

        Raises:
            LedgerbeamError: It cannot be read; the message says why.
        """

    @abstractmethod
    def open(self, source: Source) -> Opened:
        """Open a source that `cut` has cut into spans to be read by position."""

    def open_stream(self, source: Source, kind: OffsetFormat) -> AbstractContextManager[StreamReader]:
        """Open a source that `cut` has cut into spans of a stream.

        Args:
            source: The source.
            kind: `StreamCut.format`.

        Raises:
            ChangedSourceError: The source changed since it was listed.
        """
        raise UnsupportedShapeError(
            f"{source.url}: {type(self).__name__} is read by position; it has no {kind.name} stream"
        )


class Sources(Protocol):
    """How the sources of a job are opened. Picklable."""

    def kind_of(self, source: Source) -> SourceKind:
        """Return the kind of a source.

        Raises:
            NotIndexableError: It is compressed in a way in which it cannot be read.
            UsageError: Its name has no suffix of a known format.
        """

    def check_names(self, urls: Iterable[str], *, by_position: bool = False) -> None:
        """Check by their names that sources can be read.

        Args:
            urls: What was listed.
            by_position: Whether they must be readable by position, as those that are to be indexed.

        Raises:
            NotIndexableError, UsageError: As `kind_of`.
        """


def plan_spans(
    offsets: NDArray[np.uint64], *, task_bytes: int | None = None, task_records: int | None = None
) -> list[tuple[int, int]]:
    """Cut records into spans, as a pure function of the index.

    Args:
        offsets: N+1 ascending byte offsets.
        task_bytes: Size of a span in bytes; a span holds the records that begin within one multiple of it, so it is
            exceeded by at most one record.
        task_records: Records of a span, at most. Both limits may be given.

    Returns:
        Half-open record ranges in order, together all N records; empty for N = 0.
    """
    count = len(offsets) - 1
    cuts = [np.array([0, count], np.int64)]
    if task_bytes:
        start, stop = int(offsets[0]), int(offsets[-1])
        marks = np.arange(start, stop, task_bytes, dtype=np.uint64)
        cuts.append(np.searchsorted(offsets[:-1], marks).astype(np.int64))
    if task_records:
        cuts.append(np.arange(0, count, task_records))
    edges = np.unique(np.concatenate(cuts)).tolist()
    return list(pairwise(edges))


LEAST_ROW = 32
"""What a row of columns counts for at least, in bytes: it takes memory however well it is compressed."""


def plan_rows(
    groups: Sequence[RowGroup], *, task_bytes: int | None = None, task_records: int | None = None
) -> list[tuple[int, int]]:
    """Cut rows into spans, as a pure function of the row groups.

    Args:
        groups: The row groups, in order.
        task_bytes: Bytes of a span, at most and about: a span holds as many whole row groups as it has room for. A
            row group of more is cut by itself, into parts of equal rows. A row counts for `LEAST_ROW` at least.
        task_records: Records of a span, at most. Both limits may be given.

    Returns:
        Half-open row ranges in order, together all rows; empty for none.
    """
    first_rows = np.cumsum([0, *(group.rows for group in groups)])
    count = int(first_rows[-1])
    cuts = [np.array([0, count], np.int64)]
    if task_bytes:
        room = 0
        for number, group in enumerate(groups):
            size = max(group.size, group.rows * LEAST_ROW)
            if size > room:
                parts = max(1, min(-(-size // task_bytes), group.rows))
                cuts.append(first_rows[number] + np.arange(parts) * group.rows // parts)
                room = task_bytes
            room = room - size if size <= room else 0
    if task_records:
        cuts.append(np.arange(0, count, task_records))
    return list(pairwise(np.unique(np.concatenate(cuts)).tolist()))


def unreadable(found: Iterable[Any]) -> list[Any]:
    """Return records with an `Unreadable` in the place of each error that says why one cannot be decoded."""
    return [Unreadable(message_of(record)) if isinstance(record, RecordError) else record for record in found]


def listed_file(file: Source) -> FileInfo:
    """Return what was listed of an input object."""
    return FileInfo(file.url, file.size, file.version, changed_ns=file.changed_ns)


def listed_files(source: Source) -> list[FileInfo]:
    """Return what was listed of each input object of a source."""
    return [listed_file(file) for file in source.members or (source,)]


def looked_at(source: Source) -> Source:
    """Return a source with the times of the last change of its local files, so that its tasks read the same files.

    A file that is put in the place of another may have the size and the time of that one.

    Raises:
        ChangedSourceError: If the source changed since it was listed.
    """
    if source.members:
        return dataclasses.replace(source, members=tuple(map(looked_at, source.members)))
    marks = SourceWatch([listed_file(source)]).marks
    return dataclasses.replace(source, changed_ns=marks[0][2]) if marks else source
