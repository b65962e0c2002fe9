"""Exact positional reads of one source. Ranges that are close together are merged; remote reads are retried.

Local files are read with `os.pread`, other sources through fsspec with a bounded number of concurrent requests.
"""

from __future__ import annotations

import io
import os
from collections.abc import Generator, Iterator, Sequence
from typing import Any, Self, TypeAlias, TypeVar

from ledgerbeam._base.lazy import NDArray, np
from ledgerbeam.errors import ChangedSourceError, LedgerbeamError, NotIndexableError, StorageError, UsageError
from ledgerbeam.io import native
from ledgerbeam.io.storage.client import Options, call, filesystem, map_ahead
from ledgerbeam.io.storage.fetch import fetch_many, read_from_beginning
from ledgerbeam.io.storage.responses import http_status, storage_error
from ledgerbeam.io.storage.stat import FileInfo, open_descriptor, stat
from ledgerbeam.io.storage.urls import canonical_url, is_local, store_of

Positions: TypeAlias = "Sequence[int] | NDArray[np.integer[Any]]"  # byte offsets, at least 0
_Integer = TypeVar("_Integer", "np.int64", "np.uint64")

_REMOTE_GAP = 64 * 1024
_LOCAL_GAP = 4 * 1024  # copying a longer gap costs more than another pread
_MAX_REQUEST = 8 * 1024 * 1024
_LINES_AT_ONCE = 128 * 1024  # so that lines are decoded while they are in the cache of the processor
_MANY_NEIGHBOURS = 0.25


class RangeReader:
    """Positional reads of one source.

    The file is opened by the first read. A reader may be pickled, shared by threads and used after a fork: it holds at
    most one descriptor, which is only read by position. Call `close` when no read is running; a later read opens the
    file again.

    Args:
        url: A local path or a URL.
        options: Storage options.
        size: Length in bytes, if the caller has it; saves the request of `size`.
        listed: The listed properties of the source. Every read of an object returns this version or fails. A local file
            is checked when it is opened; use a `SourceWatch` to detect later changes.
    """

    __slots__ = ("_handle", "_local", "_size", "listed", "options", "url")

    def __init__(
        self, url: str, options: Options | None = None, size: int | None = None, listed: FileInfo | None = None
    ) -> None:
        self.url = canonical_url(url)
        self.options = options
        self._local = is_local(self.url)
        self._size = listed.size if listed is not None else size
        self.listed = listed
        self._handle: dict[str, int] = {}

    def __repr__(self) -> str:
        return f"RangeReader({self.url!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.url, self.options, self._size, self.listed)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()

    @property
    def local_path(self) -> str | None:
        """The path when the source is a local file, else None."""
        return self.url if self._local else None

    @property
    def size(self) -> int:
        """Length in bytes: as given, else from one request as in `stat`."""
        if self._size is None:
            self._size = stat(self.url, self.options).size
        return self._size

    def descriptor(self) -> int | None:
        """Return the descriptor of a local file, open until `close`. ChangedSourceError if the file changed.

        None for a remote source, and if the file cannot be opened; the next read reports the error.
        """
        if not self._local:
            return None
        try:
            return self._open()
        except (OSError, ValueError):
            return None

    def close(self) -> None:
        """Close the descriptor, if one is open."""
        if (descriptor := self._handle.pop("fd", None)) is not None:
            os.close(descriptor)

    def read(self, start: int, stop: int) -> bytes:
        """Read exactly the bytes `[start, stop)`: one request when the source is remote.

        Raises:
            ChangedSourceError: The source ends before `stop`, or changed since it was listed.
            SourceNotFoundError: There is no such source.
            StorageError: The store refused or returned too few bytes.
            UsageError: `0 <= start <= stop` does not hold.
        """
        try:
            if (size := stop - start) <= _MAX_REQUEST:  # a larger size may be wrong, and `pread` allocates it first
                data = os.pread(self._handle["fd"], size, start)
                if len(data) == size:
                    return data
        except (KeyError, OSError, OverflowError):  # not open yet, remote, or an error that `_read` reports
            pass
        return self._read(start, stop)

    def read_near(self, start: int, stop: int) -> bytes:
        """Read the bytes `[start, stop)`, fewer if the source ends before: one request when it is remote."""
        if not 0 <= start <= stop:
            raise self._meaningless(start, stop)
        if self._size is not None:
            stop = min(stop, self._size)
        if start >= stop:
            return b""
        return self._pread(start, stop) if self._local else self._fetch([start], [stop])[0]

    def read_many(
        self, starts: Positions, stops: Positions, *, gap: int | None = None, max_request: int = _MAX_REQUEST
    ) -> list[bytes]:
        """Read many ranges; ranges that are close together share a request (in a local source only consecutive ones).

        Args:
            gap: Ranges at most this many bytes apart are merged. Default: 64 KiB remote, 4 KiB local.
            max_request: Largest size of a merged request in bytes; a longer range is its own request.

        Raises:
            ChangedSourceError: The source ends before one of the ranges.
            UsageError: `0 <= start <= stop` does not hold for a range; also the other errors of `read`.
        """
        return list(self.iterate_many(starts, stops, gap=gap, max_request=max_request))

    def iterate_many(
        self, starts: Positions, stops: Positions, *, gap: int | None = None, max_request: int = _MAX_REQUEST
    ) -> Iterator[bytes]:
        """Yield the bytes of many ranges in order; local ranges are read lazily. See `read_many`."""
        bounds = np.array([starts, stops], np.int64)
        if len(wrong := np.flatnonzero((bounds[0] < 0) | (bounds[1] < bounds[0]))):
            raise self._meaningless(*bounds[:, wrong[0]].tolist())
        if self._local:
            return self._iterate_local(bounds[0], bounds[1], _LOCAL_GAP if gap is None else gap, max_request)
        asked = list(zip(*bounds.tolist(), range(len(starts)), strict=True))
        groups = _merge(asked, _REMOTE_GAP if gap is None else gap, max_request)
        blocks = self._fetch([group[0] for group in groups], [group[1] for group in groups])
        pieces = [b""] * len(starts)
        for (start, stop, members), block in zip(groups, blocks, strict=True):
            if len(block) != stop - start:
                raise self._short(start, stop, len(block))
            for position, first, last in members:
                pieces[position] = block[first - start : last - start]
        return iter(pieces)

    def blocks(self, size: int, ahead: int = 0, *, start: int = 0, stop: int | None = None) -> Generator[bytes]:
        """Read the bytes `[start, stop)` in order, in blocks of `size` bytes. Threads read `ahead` further blocks."""
        end = self.size if stop is None else stop

        def read(first: int) -> bytes:
            return self.read(first, min(first + size, end))

        starts = range(start, end, size)
        position = start
        try:
            for block in map_ahead(read, starts, ahead) if ahead else map(read, starts):
                yield block
                position += len(block)
        except NotIndexableError:  # a web server without ranges
            bounds = position, end
            yield from read_from_beginning(self.url, self.options, bounds, size, self.listed)

    def _iterate_local(
        self, starts: NDArray[np.int64], stops: NDArray[np.int64], gap: int, max_request: int
    ) -> Iterator[bytes]:
        joined = are_near(starts, stops, gap)
        if not joined.any():
            yield from self._iterate_apart(starts, stops)
            return
        for block, begin, first, last in self.windows(starts, stops, joined, max_request):
            if last - first == 1:
                yield block
                continue
            cuts = zip((starts[first:last] - begin).tolist(), (stops[first:last] - begin).tolist(), strict=True)
            yield from [block[start:stop] for start, stop in cuts]

    def windows(
        self, starts: NDArray[np.int64], stops: NDArray[np.int64], joined: NDArray[np.bool_], max_request: int
    ) -> Iterator[tuple[bytes, int, int, int]]:
        """Yield the bytes that contain ranges close together, their offset, and the positions of the ranges.

        A window has the ranges `[first, last)`. `joined` is a result of `are_near`; see `read_many` for `max_request`.
        """
        edges = np.flatnonzero(np.concatenate(([True], ~joined, [True])))
        heads, tails = starts[edges[:-1]].tolist(), stops[edges[1:] - 1].tolist()
        read = self.read
        for head, tail, first, last in zip(heads, tails, edges[:-1].tolist(), edges[1:].tolist(), strict=True):
            if last - first == 1:
                yield read(head, tail), head, first, last
                continue
            place = first
            while place < last:
                begin = int(starts[place])
                after = max(place + 1, place + int(stops[place:last].searchsorted(begin + max_request, "right")))
                yield read(begin, int(stops[after - 1])), begin, place, after
                place = after

    def iterate_lines(
        self, starts: NDArray[np.uint64], stops: NDArray[np.uint64]
    ) -> Iterator[tuple[list[bytes], bool]]:
        """Read lines of a local source, some at a time.

        Yields:
            Lists of lines, in the requested order, and whether there may be integers beyond 64 bits in them. Each line
            includes the newline before it, unless it starts at byte 0. The iterator ends, perhaps at once, before the
            first range that `iterate_many` should read: without the compiled module, in a remote source, if a range is
            not one line, or if many ranges are close together.
        """
        if native.compiled is None:
            return
        if np.count_nonzero(are_near(starts, stops, _LOCAL_GAP)) > _MANY_NEIGHBOURS * len(starts):
            return
        if (descriptor := self.descriptor()) is None:
            return
        starts, stops = np.ascontiguousarray(starts), np.ascontiguousarray(stops)
        place = 0
        while place < len(starts):
            lines, wide = native.compiled.read_lines(descriptor, starts, stops, place, _LINES_AT_ONCE)
            if not lines:
                return
            yield lines, wide
            place += len(lines)

    def _iterate_apart(self, starts: NDArray[np.int64], stops: NDArray[np.int64]) -> Iterator[bytes]:
        pread, descriptor = os.pread, self._handle.get("fd", -1)
        for start, size in zip(starts.tolist(), (stops - starts).tolist(), strict=True):
            try:
                data = pread(descriptor, size, start) if size <= _MAX_REQUEST else b""
            except OSError:  # not open yet, or an error that `_read` reports
                data = b""
            if len(data) == size:
                yield data
            else:
                yield self._read(start, start + size)
                descriptor = self._handle.get("fd", -1)

    def _read(self, start: int, stop: int) -> bytes:
        if not 0 <= start <= stop:
            raise self._meaningless(start, stop)
        if start == stop:
            return b""
        data = self._pread(start, stop) if self._local else self._fetch([start], [stop])[0]
        if len(data) != stop - start:
            raise self._short(start, stop, len(data))
        return data

    def _pread(self, start: int, stop: int) -> bytes:
        try:
            descriptor = self._open()
            stop = min(stop, os.fstat(descriptor).st_size)  # a damaged offset can lead to any size
            if start >= stop:
                return b""
            data = os.pread(descriptor, stop - start, start)
            if len(data) == stop - start:
                return data
            # The kernel returns at most 2 GiB per call, and less if a signal interrupts it.
            parts = [data]
            position = start + len(data)
            while parts[-1] and position < stop:
                parts.append(os.pread(descriptor, stop - position, position))
                position += len(parts[-1])
        except LedgerbeamError:
            raise
        except (OSError, ValueError) as error:  # ValueError: no file can have this name
            raise storage_error(error, self.url, "read") from error
        return b"".join(parts)

    def _open(self) -> int:
        if (kept := self._handle.get("fd")) is not None:
            return kept
        mine = open_descriptor(self.url, self.listed)
        # No lock, since a fork could copy it locked: if two threads open the file, the later one closes its descriptor.
        if (kept := self._handle.setdefault("fd", mine)) != mine:
            os.close(mine)
        return kept

    def _fetch(self, starts: list[int], stops: list[int]) -> list[bytes]:
        if not starts:
            return []
        store = filesystem(self.url, self.options)
        try:
            if self.listed is not None:
                return fetch_many(store, [self.url] * len(starts), starts, stops, [self.listed] * len(starts))
            if len(starts) > 1 or store_of(self.url).api == "http":
                return fetch_many(store, [self.url] * len(starts), starts, stops)
            # Keywords: the second positional argument of s3fs is a version.
            return [call(self.url, "read", store.cat_file, self.url, start=starts[0], end=stops[0])]
        except StorageError as error:
            if http_status(error) == 416:  # one of the ranges starts past the end
                last = stops.index(max(stops))
                raise self._short(starts[last], stops[last], 0) from error
            raise

    def _meaningless(self, start: int, stop: int) -> UsageError:
        return UsageError(f"{self.url}: [{start}, {stop}) is not a range; expected 0 <= start <= stop")

    def _short(self, start: int, stop: int, got: int) -> StorageError:
        size = stat(self.url, self.options).size
        wanted = f"{self.url}: expected {stop - start} bytes at [{start}, {stop}), found {got}"
        if size < stop:
            return ChangedSourceError(
                f"{wanted}; the source now ends at {size}. It was truncated or replaced after it was listed or "
                "indexed: index it again and run again"
            )
        return StorageError(f"{wanted}, although the source has {size} bytes; run again")


class SizedFile(io.RawIOBase):
    """A position in a file of a known size. A subclass reads from the position on."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self._size = size
        self._place = 0

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def tell(self) -> int:
        """Return the position of the next read."""
        return self._place

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        """Set the position and return it."""
        self._place = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._place, io.SEEK_END: self._size}[whence]
        return self._place


def are_near(starts: NDArray[_Integer], stops: NDArray[_Integer], gap: int) -> NDArray[np.bool_]:
    """Return for each range except the first whether it is at most `gap` bytes after the previous range."""
    ordered = (starts[1:] >= starts[:-1]) & (stops[1:] >= stops[:-1])
    filled = stops > starts  # an empty range may lie anywhere
    return ordered & filled[1:] & filled[:-1] & (starts[1:] <= stops[:-1] + starts.dtype.type(gap))


_Member = tuple[int, int, int]


def _merge(asked: list[tuple[int, int, int]], gap: int, max_request: int) -> list[tuple[int, int, list[_Member]]]:
    """Merge close ranges into groups of (start, stop, members); a member is (position in the request, start, stop)."""
    groups: list[tuple[int, int, list[_Member]]] = []
    for start, stop, position in sorted(asked):
        if start == stop:
            continue
        if groups:
            begin, end, members = groups[-1]
            if start - end <= gap and max(stop, end) - begin <= max_request:
                members.append((position, start, stop))
                groups[-1] = (begin, max(stop, end), members)
                continue
        groups.append((start, stop, [(position, start, stop)]))
    return groups
