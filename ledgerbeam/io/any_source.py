"""Open a source of any format, by its index if that fits, else as a stream; or build the index of a source."""

from __future__ import annotations

import contextlib
import logging
import os
import posixpath
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from os import PathLike
from typing import Any, Literal, NamedTuple, Protocol, overload

from ledgerbeam._base.extensions import extension_names, load_extension, load_reference
from ledgerbeam._base.process import library_logger
from ledgerbeam.errors import IndexError_, IndexMismatchError, IndexNotFoundError, NotIndexableError, UsageError
from ledgerbeam.io.compression.content import open_content
from ledgerbeam.io.compression.gzip_points import gzip_points, member_points, points_url
from ledgerbeam.io.compression.streams import split_compression
from ledgerbeam.io.formats.format import Format, Reader
from ledgerbeam.io.formats.registry import open_source, recognize
from ledgerbeam.io.formats.streamed import scan_stream, stream_each
from ledgerbeam.io.index.file import IndexFile, IndexLocation, Offsets, Rule, index_bytes
from ledgerbeam.io.storage.client import Options
from ledgerbeam.io.storage.stat import FileInfo, SourceWatch, require_listed, stat
from ledgerbeam.io.storage.urls import canonical_url

_log = library_logger(__name__)

Folders = str | PathLike[str] | Sequence[str | PathLike[str]]
_SELECTED = "ledgerbeam.sources.selected:open_selected"  # of a higher layer, which knows columns


class FolderKind(Protocol):
    """A kind of datasets that are folders. Entry points of the group `ledgerbeam.folders` name the kinds."""

    def holds(self, url: str, options: Options | None) -> bool:
        """Return whether a folder has a dataset of this kind; False also for a file or a missing folder."""

    def open(self, url: str, options: Options | None) -> Reader:
        """Open a dataset for random access.

        Raises:
            IndexNotFoundError: A file of the dataset has no index.
            NotIndexableError: The dataset can only be streamed.
        """

    def stream(self, url: str, options: Options | None) -> Callable[[], Iterator[Any]]:
        """List the files of a dataset. Return a function that reads all records in order."""

    def files_to_index(self, url: str, options: Options | None) -> list[tuple[str, Format]]:
        """Return the files that need an index, each with its format."""


class RecordStream:
    """The records of a source in order, without an index. Each iteration starts at the first record.

    An iteration reads a file twice: first to find the positions of the records, 8 bytes each, then to read them.

    Args:
        url: The canonical URL of the source.
        why: The reason for a stream.
        read: A function that yields the records.
    """

    is_indexed: Literal[False] = False

    def __init__(self, url: str, why: str, read: Callable[[], Iterator[Any]]) -> None:
        self.url = url
        self.why = why
        self._read = read

    def __repr__(self) -> str:
        return f"<stream of {self.url}: {self.why}>"

    def __iter__(self) -> Iterator[Any]:
        """Read the records.

        Raises:
            ChangedSourceError: The source changed since it was opened.
            SourceError: A record cannot be decoded, or the data is damaged.
        """
        return self._read()

    def __getitem__(self, item: Any) -> Any:
        """Raise IndexNotFoundError: a stream has no records by number."""
        raise IndexNotFoundError(
            f"{self.url}: record {item!r} cannot be read by number, since the source is open as a stream "
            f"({self.why}); make its index with ledgerbeam.index_source, then open it again"
        )


@overload
def open_any(
    url: str | PathLike[str],
    index: IndexFile | str | None = None,
    storage_options: Options | None = None,
    *,
    indexed: Literal[True],
    configured: Iterable[Format] = (),
    index_root: str | PathLike[str] | None = None,
    index_rule: Rule = "scheme",
    with_: Folders = (),
    where: str | Callable[..., Any] | None = None,
) -> Reader: ...


@overload
def open_any(
    url: str | PathLike[str],
    index: IndexFile | str | None = None,
    storage_options: Options | None = None,
    *,
    indexed: Literal[False],
    configured: Iterable[Format] = (),
    index_root: str | PathLike[str] | None = None,
    index_rule: Rule = "scheme",
) -> RecordStream: ...


@overload
def open_any(
    url: str | PathLike[str],
    index: IndexFile | str | None = None,
    storage_options: Options | None = None,
    *,
    indexed: None = None,
    configured: Iterable[Format] = (),
    index_root: str | PathLike[str] | None = None,
    index_rule: Rule = "scheme",
    with_: Folders = (),
    where: str | Callable[..., Any] | None = None,
    weights: str | None = None,
) -> Reader | RecordStream: ...


def open_any(
    url: str | PathLike[str],
    index: IndexFile | str | None = None,
    storage_options: Options | None = None,
    *,
    indexed: bool | None = None,
    configured: Iterable[Format] = (),
    index_root: str | PathLike[str] | None = None,
    index_rule: Rule = "scheme",
    with_: Folders = (),
    where: str | Callable[..., Any] | None = None,
    weights: str | None = None,
) -> Reader | RecordStream:
    """Open a source of any format.

    Args:
        url: The source, whose name shows its format; or the folder of a Shar dataset, see `SharReader`.
        index: The index or its URL, which must fit; None for an index beside the source, or below `index_root`.
        storage_options: Options of source and index, passed to fsspec unchanged.
        indexed: True for random access, which needs an index that fits, or a format without indexes. False for a stream
            of all records. None for random access if possible, else a stream.
        configured: Formats with options, such as ``TarFormat(group="key")``.
        index_root: Folder of all indexes, as for `index_source` and ``ledgerbeam index``; None: beside the sources.
        index_rule: Paths of indexes in this folder: by scheme and path of the source, or as in lhotse.
        with_: Folder of columns that `annotate` wrote for the source; or several.
        where: Condition over these columns: SQL, or a function that takes a `pyarrow.RecordBatch` of the columns and
            returns a mask, or its name ``module:function``. The reader then has only the selected records.
        weights: Name of one of these columns, with a number for each record: how often the reader has it. A weight of
            2.25 repeats all records with it, and a quarter of them once more, the same ones each time; null is 0.

    Returns:
        A `Reader`, or a `RecordStream`. `is_indexed` distinguishes them, and `why` of a stream is its reason.

    Raises:
        IndexNotFoundError: `indexed` is True, and there is no index; `index_source` makes one.
        IndexMismatchError: `indexed` is True, and the index does not fit.
        NotIndexableError: The source cannot be read in the requested way. To be read by position, a compressed source
            needs seek points, and a web server needs byte ranges.
        SourceNotFoundError: The source does not exist; also StorageError.
        UsageError: The name has no suffix of a known format.
    """
    url, formats = os.fspath(url), tuple(configured)
    if with_ and where is None and not weights:
        raise UsageError(
            f"{url}: with_ gives columns, and where and weights use them: give one of these, or leave it out"
        )
    if where is not None or weights:
        if indexed is False:
            raise UsageError(f"{url}: where and weights read records by number; leave indexed=False out")
        rest = {"index": index, "configured": formats, "index_root": index_root, "index_rule": index_rule}
        selected: Reader = load_reference(_SELECTED)(url, with_, where, weights, storage_options, **rest)
        return selected
    if index is not None and index_root is not None:
        raise UsageError(f"{url}: found both index and index_root; pass one of them")
    location = IndexLocation(root=None if index_root is None else os.fspath(index_root), rule=index_rule)
    why = "a stream was asked for"
    folder = _dataset_folder(url, storage_options, formats)
    if indexed is not False:
        try:
            if folder is not None:
                return folder.kind.open(folder.url, storage_options)
            return open_source(url, index, storage_options, configured=formats, location=location)
        except (IndexError_, NotIndexableError) as error:
            if indexed or index is not None:
                raise
            if folder is None and not recognize(url, formats).is_streamable:
                raise
            why = str(error)
            level = logging.WARNING if isinstance(error, IndexMismatchError) else logging.INFO
            _log.log(level, "opened as a stream: %s", why)
    if folder is not None:
        return RecordStream(folder.url, why, folder.kind.stream(folder.url, storage_options))
    source = stat(url, storage_options)
    kind = recognize(url, formats).in_one_pass()
    return RecordStream(source.url, why, partial(stream_each, source.url, storage_options, kind, source))


def index_source(
    url: str | PathLike[str],
    storage_options: Options | None = None,
    *,
    index_root: str | PathLike[str] | None = None,
    index_rule: Rule = "scheme",
    configured: Iterable[Format] = (),
    force: bool = False,
) -> str:
    """Write the index of one source, in this process; `ledgerbeam.index` makes the indexes of many.

    Args:
        url: The source; or the folder of a Shar dataset, whose shards all get an index.
        index_root: Folder of all indexes; None puts the index beside the source.
        index_rule: Paths of indexes in this folder: by scheme and path of the source, or as in lhotse.
        configured: Formats with options, such as ``TarFormat(group="key")``.
        force: Whether to replace an index that fits, or any other file with its name.

    Returns:
        The URL of the index; for a folder, the URL of the folder of its indexes.

    Raises:
        ChangedSourceError: The source changed while it was read.
        NotIndexableError: The source cannot be read by position, or its format has its own index.
        SourceError: The source is damaged.
        SourceNotFoundError: The source does not exist; also StorageError.
        UsageError: The name has no suffix of a known format, or another file has the name of the index.
    """
    formats = tuple(configured)
    if (folder := _dataset_folder(os.fspath(url), storage_options, formats)) is not None:
        how: dict[str, Any] = {"index_root": index_root, "index_rule": index_rule, "force": force}
        files = folder.kind.files_to_index(folder.url, storage_options)
        places = [index_source(file, storage_options, configured=[kind], **how) for file, kind in files]
        return posixpath.dirname(places[0])
    source = stat(os.fspath(url), storage_options)
    kind = recognize(source.url, formats).by_position()
    where = IndexLocation(root=None if index_root is None else os.fspath(index_root), rule=index_rule)
    place = where.url_for(source.url)
    if not force:
        with contextlib.suppress(IndexError_):
            kind.check_index(kind.index_file(source.url, where, storage_options), source)
            return place
    if not kind.is_indexable:
        raise NotIndexableError(f"{source.url}: a {kind.name} file needs no other index; leave this file out")
    with SourceWatch([source]):
        offsets = build_index(source.url, storage_options, configured=formats, listed=source)
        points = seek_points_of(source.url, place, offsets, storage_options, source)
        found = require_listed(source, storage_options)
    if points:  # published before the index: if the index exists, they exist
        where.publish(*points, storage_options, not_before_ns=found.modified_ns, force=force)
    where.publish(place, index_bytes(offsets), storage_options, not_before_ns=found.modified_ns, force=force)
    return place


def build_index(
    url: str, options: Options | None = None, *, configured: Iterable[Format] = (), listed: FileInfo | None = None
) -> Offsets:
    """Find the offsets of all records of a source; for a compressed source, in the decompressed bytes.

    Returns:
        `N + 1` offsets, u64, the last a sentinel.

    Raises:
        ChangedSourceError: The source changed since it was listed.
        NotIndexableError: The source cannot be read by position, or its index is a part of the dataset.
        UsageError: The name has no suffix of a known format.
    """
    found = recognize(url, configured)
    kind = found.by_position()
    if found.compression is None:
        return kind.build_index(url, options, listed=listed)
    if found.compression.name == "zstd":
        with open_content(url, url, options, listed=listed) as content:
            _ = content.size  # raises without a seek table, before the whole file is read
    return scan_stream(url, options, kind, listed).offsets  # the whole file, so that every checksum is compared


def seek_points_of(
    url: str, index: str, offsets: Offsets, options: Options | None = None, listed: FileInfo | None = None
) -> tuple[str, bytes] | None:
    """Return the URL and the content of the seek points of a gzip file, given URL and offsets of its index; else None.

    Publish them before the index, which is invalid without them. UsageError: the extra `seekable` is missing.
    """
    if (compression := split_compression(url).compression) is None or compression.name != "gzip":
        return None
    size = int(offsets[-1])
    if (points := member_points(url, options, size=size, listed=listed)) is None:
        points = gzip_points(url, options, size=size, listed=listed)
    return points_url(index), points


class _Folder(NamedTuple):
    """A folder of a dataset: its canonical URL and its kind."""

    url: str
    kind: FolderKind


def _dataset_folder(url: str, options: Options | None, formats: Iterable[Format]) -> _Folder | None:
    """Return the folder of a dataset, by its canonical URL; None for any other name."""
    try:
        recognize(url, formats)
    except UsageError:
        for name in extension_names("ledgerbeam.folders"):
            kind: FolderKind = load_extension("ledgerbeam.folders", name)()
            if kind.holds(url, options):
                return _Folder(canonical_url(url).rstrip("/"), kind)
    return None
