"""Offsets of the lines of JSONL and other text.

Blank lines are records, and the last line needs no newline. So the index has the same bytes as that of lhotse.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator

from ledgerbeam._base.lazy import np
from ledgerbeam.errors import ChangedSourceError
from ledgerbeam.io import native
from ledgerbeam.io.index.file import Offsets
from ledgerbeam.io.storage.client import Options, map_ahead
from ledgerbeam.io.storage.content_kind import HEAD, require_kind
from ledgerbeam.io.storage.ranges import RangeReader
from ledgerbeam.io.storage.stat import FileInfo, open_local

_BLOCK = 2 * 1024 * 1024  # fewer, longer calls are faster than a smaller cache footprint
_SEGMENT = 16 * 1024 * 1024  # bytes that one thread scans before it returns its offsets
_REQUEST = 8 * 1024 * 1024
_REQUESTS_AHEAD = 4
_COUNTED = 256 * 1024  # a block that fits in the cache
_FEW = 4096  # bytes that `bytes.count` counts sooner
_NEWLINE = 10


def line_ends(block: bytes | memoryview, base: int) -> Offsets:
    """Return the offsets after each newline of a block that begins at `base`."""
    return np.flatnonzero(np.frombuffer(block, np.uint8) == _NEWLINE).astype(np.uint64) + np.uint64(base + 1)


def count_lines(data: bytes) -> int:
    """Return the number of lines, also of a last one without newline. NumPy counts 4 times as fast as `bytes.count`."""
    if len(data) < _FEW:
        ends = data.count(b"\n")
    else:
        view = np.frombuffer(data, np.uint8)
        parts = (view[begin : begin + _COUNTED] for begin in range(0, len(view), _COUNTED))
        ends = sum(int(np.count_nonzero(part == _NEWLINE)) for part in parts)
    return ends + (data[-1:] not in (b"", b"\n"))


class _Scanner:
    """Finds the newlines of a local file, in buffers that one thread reuses."""

    def __init__(self, size: int = _BLOCK) -> None:
        self._buffer = memoryview(bytearray(size))
        self._ends: Offsets = np.empty(size, np.uint64)

    def scan(self, descriptor: int, path: str, start: int, stop: int) -> Offsets:
        """Read at most `_BLOCK` bytes of a file and return the offsets after their newlines."""
        if native.compiled is not None:
            count, done = native.compiled.find_newlines(descriptor, start, stop, self._buffer, self._ends)
            if done == stop:
                return self._ends[:count].copy()
        view = self._buffer[: stop - start]
        filled = 0
        while filled < len(view):
            if not (got := os.preadv(descriptor, [view[filled:]], start + filled)):
                raise ChangedSourceError(
                    f"{path}: expected {stop} bytes, found {start + filled}: the file was truncated during the scan. "
                    "Index it again when it is complete"
                )
            filled += got
        return line_ends(view, start)


def _joined(parts: Iterable[Offsets]) -> Offsets:
    """Return parts as one array, which grows in place. It needs about 8 bytes for each entry; a list would need 16."""
    joined: Offsets = np.empty(4096, np.uint64)
    size = 0
    for part in parts:
        end = size + len(part)
        if end > len(joined):
            joined.resize(max(end, len(joined) * 9 // 8), refcheck=False)
        joined[size:end] = part
        size = end
    joined.resize(size, refcheck=False)
    return joined


def scan_newlines(source: RangeReader | str, start: int, stop: int, *, threads: int = 1) -> Offsets:
    """Return the offset after each newline in `[start, stop)`, in bytes from the start of the source, increasing.

    Memory: 8 bytes for each newline, and blocks of a fixed size.
    """
    reader = source if isinstance(source, RangeReader) else RangeReader(source)
    return _joined(_scan(reader, start, stop, threads))


def _scan(reader: RangeReader, start: int, stop: int, threads: int, name: str = "") -> Iterator[Offsets]:
    if (path := reader.local_path) is None:
        first = start
        for data in reader.blocks(_REQUEST, _REQUESTS_AHEAD, start=start, stop=stop):
            if name and start == first:
                require_kind(bytes(data[:HEAD]), reader.url, name)
            yield line_ends(data, start)
            start += len(data)
        return
    if name:
        require_kind(reader.read(start, min(start + HEAD, stop)), reader.url, name)
    # With its own descriptor and a reused buffer, since reading into new bytes objects takes twice the time. Not with
    # mmap: if a file is truncated while it is mapped, the process dies.
    with open_local(path, reader.listed) as descriptor:
        if threads < 2 or stop - start <= _SEGMENT:
            scanner = _Scanner(min(_BLOCK, stop - start))
            for at in range(start, stop, _BLOCK):
                yield scanner.scan(descriptor, path, at, min(at + _BLOCK, stop))
            return
        local = threading.local()

        def segment(begin: int) -> Offsets:
            if not hasattr(local, "scanner"):
                local.scanner = _Scanner()
            end = min(begin + _SEGMENT, stop)
            steps = range(begin, end, _BLOCK)
            return np.concatenate([local.scanner.scan(descriptor, path, at, min(at + _BLOCK, end)) for at in steps])

        yield from map_ahead(segment, range(start, stop, _SEGMENT), threads)


def assemble_jsonl_index(parts: Iterable[Offsets], size: int) -> Offsets:
    """Return the index of a source of `size` bytes from the results of `scan_newlines` for all its parts in order.

    Parts from a generator are freed one by one, after they are copied.
    """

    def offsets() -> Iterator[Offsets]:
        last = 0
        yield np.zeros(1, np.uint64)
        for part in parts:
            last = int(part[-1]) if len(part) else last
            yield part
        if last != size:
            yield np.array([size], np.uint64)

    return _joined(offsets())


def build_jsonl_index(
    url: str, options: Options | None = None, *, threads: int = 1, listed: FileInfo | None = None, name: str = ""
) -> Offsets:
    """Return the offsets of the lines of a JSONL source.

    Only a line feed ends a line; blank lines count; the last line needs no newline; an empty source has the index
    `[0]`. The content is not parsed. Equal to the result of `lhotse.indexing.create_jsonl_index` (2.0.0a7). The first
    bytes are checked against the format `name`, if it is given; see `require_kind`.

    Raises:
        ChangedSourceError: The source was truncated meanwhile, or changed since it was listed.
        SourceError: The content of the source is of another kind.
    """
    with RangeReader(url, options, listed=listed) as reader:
        size = reader.size
        return assemble_jsonl_index(_scan(reader, 0, size, threads, name), size)
