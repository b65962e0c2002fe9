"""The `.idx` file with the offset of every record of a source, and its location.

The file has `N + 1` little-endian u64 byte offsets for `N` records. Record `i` is `[offset[i], offset[i + 1])`, and the
last entry is a sentinel. As in lhotse 2.0 (`lhotse.indexing`) and Energon's `.tar.idx`, there is no header, so a file
can only be checked by comparing it with its source.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

from ledgerbeam._base.lazy import NDArray, np
from ledgerbeam._base.names import INDEX_ENDING, beside, check_root, relative_name
from ledgerbeam.errors import (
    DiskFullError,
    IndexMismatchError,
    IndexNotFoundError,
    SourceNotFoundError,
    StorageError,
    UsageError,
)
from ledgerbeam.io.compression.content import ContentReader, age_fault, is_older, open_content
from ledgerbeam.io.compression.gzip_points import POINTS_ENDING, looks_like_points
from ledgerbeam.io.storage.client import Options
from ledgerbeam.io.storage.files import refuse_foreign, refuse_links
from ledgerbeam.io.storage.objects import ObjectFolder
from ledgerbeam.io.storage.publish import publish, publish_bytes, require_atomic
from ledgerbeam.io.storage.ranges import RangeReader
from ledgerbeam.io.storage.stat import FileInfo, stat_object
from ledgerbeam.io.storage.urls import canonical_url, index_again, is_local, split_scheme, store_of

Offsets: TypeAlias = "NDArray[np.uint64]"  # byte offsets of `N` records and a sentinel: shape `(N + 1,)`, increasing
LAST_OFFSET = 2**63 - 1  # the largest possible size of a file in bytes
Rule = Literal["scheme", "lhotse"]  # rule for the mirrored paths below a root

_ENTRY = 8
_NO_TEXT = 2**56  # no file is as large, and eight bytes of text are more


def index_bytes(offsets: Offsets) -> bytes:
    """Return the content of an index file."""
    return np.ascontiguousarray(offsets, dtype="<u8").tobytes()


def looks_like_index(content: bytes) -> bool:
    """Return whether a file may be an index, or a part of one: its content is increasing offsets."""
    if not len(offsets := np.frombuffer(content[: len(content) // _ENTRY * _ENTRY], "<u8")):
        return not content
    return bool(np.all(offsets[1:] > offsets[:-1])) and int(offsets[-1]) < _NO_TEXT


def write_index(url: str, offsets: Offsets, options: Options | None = None, *, not_before_ns: int = 0) -> None:
    """Publish an index atomically.

    Args:
        url: URL of the index, usually `<source>.idx`.
        offsets: `N + 1` offsets in bytes.
        options: Storage options.
        not_before_ns: Modification time of the source. A local index never gets an earlier modification time.

    Raises:
        DiskFullError: No space is left; nothing was published.
        StorageError: No permission, or the store refused.
    """
    with publish(url, options, not_before_ns=not_before_ns) as file:
        file.write(index_bytes(offsets))


class IndexFile:
    """An index in a store. Nothing is read before a method is called.

    May be pickled, shared by threads and used after a fork.

    Args:
        url: URL of the index.
        options: Storage options.
        source: URL of its source, for messages. Default: `url` without `.idx`.
        listed: The version of the index that reads must return; None for any version.
    """

    __slots__ = ("_ends", "_info", "_reader", "options", "source", "url")

    def __init__(
        self, url: str, options: Options | None = None, source: str | None = None, listed: FileInfo | None = None
    ) -> None:
        self.url = canonical_url(url)
        self.options = options
        self.source = source if source is not None else self.url.removesuffix(".idx")
        self._reader = RangeReader(self.url, options, listed=listed)
        self._info: FileInfo | None = None
        self._ends: tuple[int, int, int] | None = None

    def __repr__(self) -> str:
        return f"IndexFile({self.url!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return IndexFile, (self.url, self.options, self.source, self._reader.listed)

    def as_listed(self, listed: FileInfo) -> IndexFile:
        """Return this index with its version `listed`, found with the source. Reads of other versions raise errors."""
        return IndexFile(self.url, self.options, self.source, listed)

    @property
    def info(self) -> FileInfo:
        """Properties of the index, from one request; IndexNotFoundError if there is none."""
        if self._info is None:
            try:
                self._info = stat_object(self.url, self.options)
            except SourceNotFoundError as error:
                raise self._missing() from error
        return self._info

    @property
    def count(self) -> int:
        """Number of records.

        Raises:
            IndexNotFoundError: The file does not exist.
            IndexMismatchError: The file is empty, or not a whole number of entries.
        """
        if (size := self.info.size) == 0:
            raise self.mismatch("expected at least 8 bytes, found an empty file")
        if size % _ENTRY:
            raise self.mismatch(f"expected a multiple of 8 bytes, found {size}")
        return size // _ENTRY - 1

    def load(self) -> Offsets:
        """Read all offsets, 8 bytes each, as a read-only u64 array of `N + 1`. `RecordLayout` checks their order.

        Raises:
            IndexNotFoundError: The file does not exist; also IndexMismatchError as in `count`.
        """
        offsets = self.slice(0, self.count)
        self._ends = int(offsets[0]), int(offsets[-2:][0]), int(offsets[-1])
        return offsets

    def slice(self, start: int, stop: int) -> Offsets:
        """Read the offsets of the records `[start, stop)` and the end of the last, u64: one ranged read.

        Raises:
            IndexNotFoundError: The file does not exist.
            IndexMismatchError: The index has fewer records.
        """
        try:
            data = self._reader.read(start * _ENTRY, (stop + 1) * _ENTRY)
        except SourceNotFoundError as error:
            raise self._missing() from error
        except StorageError as error:
            if self.info.size < (stop + 1) * _ENTRY:
                raise self.mismatch(f"expected at least {stop} records, found {self.count}") from error
            raise
        return np.frombuffer(data, "<u8")

    def ranges(self, records: NDArray[np.int64]) -> tuple[Offsets, Offsets, Offsets]:
        """Read the offsets of some records, without the rest of the index. Neighbours share a request.

        Returns:
            The offset of the previous record (0 for record 0), the offset and the end of each record: three arrays.
        """
        try:
            found = self._reader.read_many(np.maximum(records - 1, 0) * _ENTRY, (records + 2) * _ENTRY)
        except SourceNotFoundError as error:
            raise self._missing() from error
        return three_columns(found)

    def first_and_last(self) -> tuple[int, int, int]:
        """Return the first offset, the offset of the last record, and the sentinel. Without records all are equal."""
        if self._ends is not None:
            return self._ends
        last = max(0, self.count - 1) * _ENTRY
        head, tail = self._reader.read_many([0, last], [_ENTRY, self.info.size])
        ends = np.frombuffer(tail, "<u8")
        return int.from_bytes(head, "little"), int(ends[0]), int(ends[-1])

    def close(self) -> None:
        """Close the file, if it is open; a later read opens it again."""
        self._reader.close()

    def mismatch(self, what: str) -> IndexMismatchError:
        """Return an error that names the index, the source and the remedy."""
        head, hint = self._reader.read(0, min(64, self.info.size)), ""
        if head and not head.strip(b"0123456789\r\n"):
            hint = " (decimal text, as lhotse's StatelessSampler writes it; not a binary index)"
        return IndexMismatchError(
            f"{self.url} does not fit {self.source}: {what}{hint}. Rebuild it: {index_again(self.source)}, which "
            "replaces this file"
        )

    def _missing(self) -> IndexNotFoundError:
        return IndexNotFoundError(
            f"{self.source} has no index: expected {self.url}. Build it: ledgerbeam index {shlex.quote(self.source)}"
        )


def three_columns(entries: Sequence[bytes]) -> tuple[Offsets, Offsets, Offsets]:
    """Return previous offset, offset and end of each record as arrays, from their bytes; no previous offset means 0."""
    rows = np.frombuffer(b"".join(data.rjust(3 * _ENTRY, b"\0") for data in entries), "<u8").reshape(-1, 3)
    return rows[:, 0], rows[:, 1], rows[:, 2]


class RecordLayout:
    """Checks the positions of records in a source: one record after the other, from the first byte to the last.

    A format with other rules has a subclass. One object checks any number of sources.
    """

    def check_ends(self, index: IndexFile, first: int, last: int, sentinel: int, content: RangeReader) -> None:
        """Check the first offset, the offset of the last record and the sentinel of an index, with few requests.

        Without records all three are equal. `content` reads the source, decompressed.

        Raises:
            IndexMismatchError: The three offsets do not fit this source.
        """
        del last
        if first != 0:
            raise index.mismatch(f"expected the first record at byte 0, found {first}")
        if sentinel != content.size:
            raise index.mismatch(
                f"expected the last offset to be the size of the source, {content.size}, found {sentinel}"
            )

    def check_offsets(self, offsets: Offsets, index: IndexFile, *, first_record: int = 0) -> None:
        """Raise IndexMismatchError unless offsets increase: O(N). `first_record` is the number of the first record."""
        if len(wrong := np.flatnonzero(offsets[1:] <= offsets[:-1])):
            at = int(wrong[0])
            raise index.mismatch(
                f"expected increasing offsets, found record {first_record + at} at byte {offsets[at]} and the next at "
                f"{offsets[at + 1]}"
            )
        if len(offsets) and int(offsets[-1]) > LAST_OFFSET:
            raise index.mismatch(
                f"expected offsets of at most {LAST_OFFSET}, found the end of record {first_record + len(offsets) - 2} "
                f"at byte {offsets[-1]}"
            )


def is_outdated(index: IndexFile, offsets: Offsets, source: FileInfo) -> bool:
    """Return whether a valid index with these offsets is older than its source, and so belongs to older content."""
    if not is_older(index.info, source):
        return False
    return int(offsets[0]) < max(1, source.size) and bool(np.all(offsets[1:] > offsets[:-1]))


def check_index(
    index: IndexFile, source: FileInfo, layout: RecordLayout, *, deep: bool = False, content: RangeReader | None = None
) -> None:
    """Check that an index fits its source.

    Without `deep`, size, first offset, sentinel and age are checked, with two requests and the requests of the layout.
    With `deep`, all offsets are read and checked too.

    Raises:
        IndexNotFoundError: The index, or the file of seek points of a gzip file, does not exist.
        IndexMismatchError: The index is empty, not a whole number of entries, decimal text, older than its source, or
            its offsets do not fit this source.
    """
    first, last, sentinel = index.first_and_last()
    if fault := age_fault(index.info, source):
        raise index.mismatch(fault)
    with open_content(source.url, index.url, index.options, source.size) as opened:
        reader = opened if content is None else content
        if isinstance(reader, ContentReader):
            reader.check(source)
        layout.check_ends(index, first, last, sentinel, reader)
    if deep:
        layout.check_offsets(index.load(), index)


@dataclass(frozen=True)
class IndexLocation:
    """The rule for the URL of the index of a source.

    Without arguments the index of `X` is `X.idx`. With a root, all indexes are below it:

    - rule `scheme`: `s3://b/x` has `ROOT/s3/b/x.idx`, `/b/x` has `ROOT/file/b/x.idx`. No two sources share an index.
    - rule `lhotse`: `s3://b/x` and `/b/x` both have `ROOT/b/x.idx`, where lhotse's `indexes_root` expects it.

    Names that are too long or lead out of the root are encoded as in `ledgerbeam._base.names`.

    Attributes:
        root: A folder or URL prefix on any store. Default: indexes are beside their sources.
        rule: The rule for paths below `root`.
        explicit: Path or URL of the index, if the job has only one source. Not together with `root`.
    """

    root: str | None = None
    rule: Rule = "scheme"
    explicit: str | None = None

    def __post_init__(self) -> None:
        if self.root is not None and self.explicit is not None:
            raise UsageError(f"index: expected one location, found {self.explicit} and {self.root}; give only one")
        if self.rule not in get_args(Rule):
            raise UsageError(f"index: expected a rule of {get_args(Rule)}, found {self.rule!r}; choose one of these")

    def url_for(self, source_url: str) -> str:
        """Return the canonical URL of the index of a source.

        Raises:
            UsageError: `canonical_url` refuses the name of the source. Or the rule is `lhotse`, and a part `..` of the
                name leads out of the root.
        """
        if self.explicit is not None:
            return canonical_url(self.explicit)
        source = canonical_url(source_url)
        if self.root is None:
            return beside(source, INDEX_ENDING)
        root = check_root(canonical_url(self.root)).rstrip("/")
        scheme, rest = split_scheme(source)
        if self.rule == "lhotse":
            path = rest.lstrip("/")
            if ".." in path.split("/"):
                raise UsageError(f"{source}: its index would be outside {self.root}; give --index-rule scheme")
            return beside(f"{root}/{path}", INDEX_ENDING)
        name = relative_name(f"{scheme}/{rest.removeprefix('/')}", len(INDEX_ENDING), below=root or "/")
        return f"{root}/{name}{INDEX_ENDING}"

    def publish(
        self, url: str, data: bytes, options: Options | None = None, *, not_before_ns: int = 0, force: bool = False
    ) -> None:
        """Publish an index or seek points, and replace an earlier version. A new object takes one request.

        Raises:
            StorageError: No permission, or the store refused; also DiskFullError.
            UsageError: The store cannot publish files, or a file of another kind has the name and `force` is false.
        """
        url = canonical_url(url)
        try:
            if self.root is not None:
                refuse_links(canonical_url(self.root), [url.rpartition("/")[0]])
            if not force:
                if _is_created(url, data, options):
                    return
                looks = looks_like_points if url.endswith(POINTS_ENDING) else looks_like_index
                remedy = "or have it replaced by: ledgerbeam index --force SOURCE"
                refuse_foreign({url: looks}, options, kind="an index", remedy=remedy)
            publish_bytes(url, data, options, not_before_ns=not_before_ns)
        except DiskFullError:
            raise
        except (StorageError, UsageError) as error:
            where = "beside their sources" if self.root is None else f"below {self.root}"
            # Keep the class, so that a StorageError remains one.
            raise type(error)(
                f"{error}; indexes are stored {where}: give a writable folder as --index-root, also to the commands "
                "that read them"
            ) from error


def _is_created(url: str, data: bytes, options: Options | None) -> bool:
    """Create an object unless it exists; return whether it was created. Local files, and stores without this: False."""
    if is_local(url):
        return False
    require_atomic(url)
    scheme, rest = split_scheme(url)
    bucket, _, key = rest.partition("/")  # a folder has no slash at its end, but parts of a key may be empty
    return store_of(url).creates_exclusively and ObjectFolder(f"{scheme}://{bucket}", options).create_new(key, data)


def index_beside(url: str) -> str:
    """Return the canonical URL of the index beside a source, which is the default location."""
    return IndexLocation().url_for(url)
