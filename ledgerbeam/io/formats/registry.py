"""Registry of formats: the format and the compression of a source, by its name.

A format of another package is found through the entry-point group `ledgerbeam.formats`, or named with `register`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, cast

from ledgerbeam._base.extensions import load_reference
from ledgerbeam._base.redaction import without_secrets
from ledgerbeam.errors import NotIndexableError, UsageError
from ledgerbeam.io.compression.streams import Compression, split_compression
from ledgerbeam.io.formats.format import ColumnFormat, Format, OffsetFormat, Reader, is_columnar
from ledgerbeam.io.index.file import IndexFile, IndexLocation
from ledgerbeam.io.storage.client import Options
from ledgerbeam.io.storage.fetch import require_ranges
from ledgerbeam.io.storage.urls import canonical_url

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint


GROUP = "ledgerbeam.formats"
"""The entry-point group. An entry point has the name of its format; its object creates the format without arguments."""

# Built-in formats: reference as in an entry point, since their packages import this module; and suffixes, which are
# reserved for them, so that they need no search of entry points.
_BUILT_IN = {
    "jsonl": ("ledgerbeam.io.lines.formats:JsonlFormat", (".jsonl", ".json", ".ndjson")),
    "tar": ("ledgerbeam.io.tar.format:TarFormat", (".tar",)),
    "megatron": ("ledgerbeam.io.datasets.megatron.format:MegatronFormat", (".bin",)),
    "parquet": ("ledgerbeam.io.columns.format:ParquetFormat", (".parquet", ".pq")),
    "arrow": ("ledgerbeam.io.columns.format:ArrowFormat", (".arrow", ".feather")),
    "text": ("ledgerbeam.io.lines.formats:TextFormat", (".txt",)),
    "warc": ("ledgerbeam.io.warc:WarcFormat", (".warc",)),
}
_SUFFIXES = {suffix: name for name, (_, suffixes) in _BUILT_IN.items() for suffix in suffixes}

_RESERVED = {"shar", "webdataset", "energon", "lit"}  # values of `--to` that are not formats of files
_lock = threading.RLock()
_known: dict[str, Format] | None = None
_loading: dict[str, Format] | None = None


@dataclass(frozen=True, slots=True)
class FileType:
    """Format and compression of a source, according to its name."""

    url: str
    format: Format
    compression: Compression | None = None

    def columns(self) -> ColumnFormat | None:
        """Return the format of a file of columns; None for a format of offsets. NotIndexableError if compressed."""
        if not is_columnar(self.format):
            return None
        if self.compression is not None:
            raise self._not_indexable()
        return self.format

    def plain(self) -> OffsetFormat:
        """Return the format of an uncompressed source that is read by offsets; else NotIndexableError."""
        if self.compression is not None:
            raise self._not_indexable()
        return self.by_offsets()

    def by_position(self) -> OffsetFormat:
        """Return the format of a source with offsets, plain or in a seekable compression; else NotIndexableError."""
        kind = self.by_offsets()
        if self.compression is not None and not (self.compression.seekable and kind.is_streamable):
            raise self._not_indexable()
        return kind

    def in_one_pass(self) -> OffsetFormat:
        """Return the format of a source that can be read in one pass, compressed or not; else NotIndexableError."""
        kind = self.by_offsets()
        if not kind.is_streamable:
            raise NotIndexableError(f"{self.url}: {kind.name} is not read compressed; decompress the file")
        return kind

    def readable(self) -> Format:
        """Return the format of a source that can be read by position or in one pass; else NotIndexableError."""
        if self.compression is not None and not self.is_streamable:
            raise self._not_indexable()
        return self.format

    @property
    def is_streamable(self) -> bool:
        """Whether the source can be read in one pass, compressed or not."""
        return not is_columnar(self.format) and self.by_offsets().is_streamable

    def by_offsets(self) -> OffsetFormat:
        """Return the format of a source with offsets, compressed or not; NotIndexableError for a file of columns."""
        if is_columnar(self.format):
            if self.compression is not None:
                raise self._not_indexable()
            raise NotIndexableError(
                f"{self.url}: the footer of a {self.format.name} file is its index; leave this file out: map, convert, "
                "tokenize, show and verify read it without another index"
            )
        return cast(OffsetFormat, self.format)

    def _not_indexable(self) -> NotIndexableError:
        how = self.compression
        command = "" if how is None else f"decompress it, e.g. {how.command} {self.url.rpartition('/')[2]}"
        if self.is_streamable:
            command = f"map, convert and tokenize read it from its beginning; for other commands {command}"
        return NotIndexableError(f"{self.url}: it is compressed and has no byte offsets to index: {command}")


def recognize(url: str, configured: Iterable[Format] = ()) -> FileType:
    """Find the format and the compression of a source by its name.

    The last suffix of a known format decides: `cuts.jsonl.000001` is JSONL, `x.tar.0` is a tar. One of the last two
    suffixes may belong to a compression.

    Args:
        configured: Formats with options, which replace the registered formats of the same names, and further formats.

    Raises:
        NotIndexableError: The source is a pipe.
        UsageError: The name has no suffix of a known format.
    """
    if url.startswith("pipe:"):
        raise NotIndexableError(
            f"{without_secrets(url)}: a pipe has no byte offsets and no version; write its output to a file first, or "
            "stream it with ledgerbeam.iterators.Jsonl"
        )
    plain, compression = split_compression(url)
    configured = tuple(configured)
    _, dot, last = plain.rpartition("/")[2].lower().rpartition(".")
    name = _SUFFIXES.get(f"{dot}{last}")
    if name is not None and all(kind.name != name for kind in configured):
        return FileType(url, format_named(name), compression)
    known = {**formats(), **{kind.name: kind for kind in configured}}
    by_suffix = {suffix: kind for kind in known.values() for suffix in kind.suffixes}
    for part in reversed(plain.rpartition("/")[2].lower().split(".")[1:]):
        kind = by_suffix.get(f".{part}")
        if kind is not None:
            return FileType(url, kind, compression)
    *suffixes, last = by_suffix
    raise UsageError(
        f"{url}: the name has no known format; expected a suffix {', '.join(suffixes)} or {last} (to add a format, see "
        "docs/own-format.md)"
    )


def recognize_indexable(url: str) -> FileType:
    """Recognize a source with offsets, compressed or not. NotIndexableError for a file of columns or a pipe."""
    found = recognize(url)
    found.by_offsets()
    return found


def require_no_columns(url: str, columns: Collection[str]) -> None:
    """Raise UsageError if columns are chosen for a source without columns."""
    if columns:
        raise UsageError(
            f"{url}: --columns {','.join(columns)} is for files of columns (Parquet); leave out the option or this file"
        )


def open_source(
    url: str,
    index: IndexFile | str | None = None,
    options: Options | None = None,
    *,
    configured: Iterable[Format] = (),
    location: IndexLocation | None = None,
) -> Reader:
    """Open a source of any format for random access.

    Args:
        index: Its index, or the URL of the index. Default: from `location`.
        location: Location of indexes. Default: beside the sources.

    Raises:
        IndexNotFoundError: The source has no index; also the other errors of `recognize` and of the reader.
        NotIndexableError: The source is on a web server without byte ranges.
        UsageError: An index is given for a format without indexes.
    """
    found = recognize(url, configured)
    columns = found.columns()
    if columns is None:
        kind = found.by_position()
        if index is None and location is not None:
            index = kind.index_file(canonical_url(url), location, options)
        reader = kind.open(url, index, options)
        require_ranges(reader.url, options)
        return reader
    if index is not None:
        raise UsageError(f"{url}: the footer of a {columns.name} file is its index; leave the index {index} out")
    return columns.open_columns(url, options)


def formats() -> Mapping[str, Format]:
    """Return all formats by name: built-in formats, formats of entry points, and registered formats.

    UsageError: an entry point cannot be loaded, or its format has the name or a suffix of another format.
    """
    global _known, _loading  # noqa: PLW0603 - loaded once in a process
    if _known is not None:
        return _known
    with _lock:
        if _known is None and _loading is None:
            try:
                _loading = {name: _built_in(reference) for name, (reference, _) in _BUILT_IN.items()}
                from importlib.metadata import entry_points  # noqa: PLC0415 - slow to import, and most jobs need none

                for point in sorted(entry_points(group=GROUP), key=lambda point: point.name):
                    _add(_loading, _load(point), f"entry point {point.name} = {point.value}{_package(point)}")
                _known = _loading
            finally:
                _loading = None
        # A module of an entry point that calls this during its import gets the formats loaded so far.
        return _known or _loading or {}


def format_named(name: str) -> Format:
    """Return the format with a name; UsageError if there is none."""
    if name in _BUILT_IN:
        return _built_in(_BUILT_IN[name][0])
    known = formats()
    if name not in known:
        raise UsageError(f"unknown output format {name!r}: expected one of {', '.join(sorted(known))}")
    return known[name]


def register(kind: Format) -> None:
    """Register a format in this process. Worker processes need it too; an entry point registers it in all processes.

    Raises:
        UsageError: Another format has its name or one of its suffixes.
    """
    global _known  # noqa: PLW0603
    with _lock:
        known = dict(formats())
        _add(known, kind, _origin(kind))
        if _loading is None:
            _known = known
        else:
            _loading.update(known)


def require_unused(kind: Format) -> None:
    """Raise UsageError if another format has the name or one of the suffixes of a format."""
    _add(dict(formats()), kind, _origin(kind))


def _origin(kind: Format) -> str:
    return f"{type(kind).__module__}.{type(kind).__qualname__}"


@cache
def _built_in(reference: str) -> Format:
    return cast(Callable[[], Format], load_reference(reference))()


def _load(point: EntryPoint) -> Format:
    try:
        kind: Format = point.load()()
        if kind.name != point.name:
            raise TypeError(f"expected a format with the entry point's name, {point.name!r}, found {kind.name!r}")
    except Exception as error:
        raise UsageError(
            f"entry point {point.name} = {point.value} of {GROUP}{_package(point)} cannot be loaded: "
            f"{type(error).__name__}: {error}; correct or uninstall the package"
        ) from error
    return kind


def _package(point: EntryPoint) -> str:
    return f" in {point.dist.name}" if point.dist is not None else ""


def _add(known: dict[str, Format], kind: Format, origin: str) -> None:
    # The same class may be added again: its module was loaded twice, or it has an entry point and is registered too.
    others = [other for other in known.values() if other.name != kind.name or _origin(other) != _origin(kind)]
    if kind.name in _RESERVED or any(other.name == kind.name for other in others):
        raise UsageError(f"{origin}: the name {kind.name!r} is taken; give the format another name")
    if not kind.suffixes:
        raise UsageError(f"{origin}: expected at least one suffix, found none")
    taken = {suffix: other.name for other in others for suffix in other.suffixes}
    for suffix in kind.suffixes:
        if suffix in taken:
            raise UsageError(f"{origin}: the suffix {suffix} belongs to {taken[suffix]!r}; use another suffix")
        if not suffix.startswith(".") or suffix != suffix.lower() or "." in suffix[1:] or len(suffix) < 2:
            raise UsageError(f"{origin}: expected suffixes such as '.txt', in lower case, found {suffix!r}")
        if split_compression(f"a{suffix}").compression is not None or suffix == ".idx":
            raise UsageError(f"{origin}: the suffix {suffix} belongs to a compression or an index; use another suffix")
    known[kind.name] = kind
