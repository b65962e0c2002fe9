"""Decompressing a source from its beginning, in blocks: gzip, bzip2, xz, Zstandard and LZ4, of one or several frames.

However much a few bytes may expand to, a block stays small. A stream that is cut off, damaged or followed by something
else is an error that names the byte of the file.
"""

from __future__ import annotations

import bz2
import importlib
import lzma
import threading
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from ledgerbeam.errors import ArchiveError, LedgerbeamError, SourceError, UsageError
from ledgerbeam.io.compression.names import split_compression
from ledgerbeam.io.storage.client import Options
from ledgerbeam.io.storage.pipes import is_pipe, read_pipe
from ledgerbeam.io.storage.ranges import RangeReader
from ledgerbeam.io.storage.stat import FileInfo

__all__ = [
    "BLOCK",
    "REQUEST",
    "DeflateFrame",
    "Frame",
    "Stream",
    "decompressed",
    "decompressed_pieces",
    "whole_zstd_frame",
]

BLOCK = 1024 * 1024
"""Bytes of a block, at most; of Zstandard at most 32 times as many."""

REQUEST = 4 * 1024 * 1024
"""Compressed bytes that are read at once."""
_WINDOW = 1 << 27  # what a Zstandard frame may ask for as memory: all that zstd takes without being told to
_PIECE = 1024  # of Zstandard: a block of it is at least 4 bytes and expands to at most 128 KiB


class Frame:
    """One frame of the formats whose decompressors limit their output themselves.

    Args:
        make: Makes its decompressor.
    """

    def __init__(self, make: Callable[[], Any]) -> None:
        self._decompressor = make()

    def feed(self, data: bytes | memoryview) -> Iterator[bytes]:
        """Take compressed bytes and yield what they give, in blocks."""
        while not self.ended:
            found = self._decompressor.decompress(data, BLOCK)
            if found:
                yield found
            data = b""
            if self._decompressor.needs_input:
                return

    @property
    def ended(self) -> bool:
        """Whether its end was among the bytes."""
        return bool(self._decompressor.eof)

    @property
    def rest(self) -> bytes | memoryview:
        """The bytes after its end."""
        return bytes(self._decompressor.unused_data or b"")


class DeflateFrame(Frame):
    """zlib's: what it has not looked at yet is for the caller to keep."""

    def __init__(self, make: Callable[[], Any] = lambda: zlib.decompressobj(wbits=31)) -> None:
        super().__init__(make)

    def feed(self, data: bytes | memoryview) -> Iterator[bytes]:
        """Take compressed bytes and yield what they give, in blocks."""
        while not self.ended:
            found = self._decompressor.decompress(data, BLOCK)
            if found:
                yield found
            data = self._decompressor.unconsumed_tail
            if not data and len(found) < BLOCK:
                return


class _ZstdFrame(Frame):
    """zstandard's does not limit its output, so it gets little at a time."""

    def __init__(self) -> None:
        zstandard = importlib.import_module("zstandard")
        # Not that of the thread: two of its objects would share what they know.
        super().__init__(lambda: zstandard.ZstdDecompressor(max_window_size=_WINDOW).decompressobj())
        self._unused: bytes | memoryview = b""

    def feed(self, data: bytes | memoryview) -> Iterator[bytes]:
        view = memoryview(data)  # what follows a frame is not copied: there may be thousands of them
        for start in range(0, len(view), _PIECE):
            found = self._decompressor.decompress(view[start : start + _PIECE])
            if found:
                yield found
            if self.ended:
                fed = min(start + _PIECE, len(view))
                self._unused = view[fed - len(self._decompressor.unused_data) :]
                return

    @property
    def rest(self) -> bytes | memoryview:
        return self._unused


_decompressors = threading.local()


def _zstd_decompressor() -> Any:
    """Return what decompresses whole frames in this thread; making one costs as much as a small frame."""
    found = getattr(_decompressors, "zstd", None)
    if found is None:
        zstandard = importlib.import_module("zstandard")
        found = _decompressors.zstd = zstandard.ZstdDecompressor(max_window_size=_WINDOW)
        _decompressors.size_in, _decompressors.error = zstandard.frame_content_size, zstandard.ZstdError
    return found


def whole_zstd_frame(data: bytes, size: int) -> bytes | None:
    """Decompress one Zstandard frame at once; None if it is not one whole frame of that size, or is damaged.

    Args:
        data: The frame.
        size: Its decompressed size in bytes; memory for it is taken at once.
    """
    decompressor = _zstd_decompressor()
    try:
        if _decompressors.size_in(data) != size:  # it would take the memory that the frame asks for
            return None
        whole: bytes = decompressor.decompress(data, allow_extra_data=False)
    except _decompressors.error:
        return None
    return whole


@dataclass(frozen=True)
class _Codec:
    """How a format is decompressed, and what may stand between and after its frames."""

    frame: Callable[[], Frame]
    padding: bytes = b""


def _lz4_frame() -> Frame:
    try:
        frame: Any = importlib.import_module("lz4.frame")
    except ImportError as error:
        raise UsageError("LZ4 needs a package that is not installed: pip install 'ledgerbeam[lz4]'") from error
    return Frame(frame.LZ4FrameDecompressor)


_CODECS = {
    "gzip": _Codec(DeflateFrame, b"\0"),
    "bzip2": _Codec(lambda: Frame(bz2.BZ2Decompressor)),
    "xz": _Codec(lambda: Frame(lambda: lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=1 << 30)), b"\0"),
    "zstd": _Codec(_ZstdFrame),
    "lz4": _Codec(_lz4_frame),
}


def decompressed(url: str, options: Options | None = None, listed: FileInfo | None = None) -> Iterator[bytes]:
    """Read a source from its beginning, decompressed; one that is not compressed as it is.

    Args:
        url: The source; its name shows the compression. Of a pipe it is what its command prints, as it is.
        options: Storage options.
        listed: The listed properties of the source; see `RangeReader`.

    Yields:
        Its bytes, in blocks; a remote source is read a few requests ahead.

    Raises:
        SourceError: The data is cut off, damaged, or followed by something else; the message has the byte of the file.
        SourceNotFoundError: There is no such source; also StorageError.
        UsageError: It takes a package that is not installed, or is a pipe, and these are not allowed.
    """
    if is_pipe(url):
        yield from read_pipe(url)
        return
    compression = split_compression(url).compression
    with RangeReader(url, options, listed=listed) as reader:
        pieces = reader.blocks(REQUEST, 2 if reader.local_path is None else 0)
        yield from pieces if compression is None else decompressed_pieces(pieces, compression.name, reader.url)


def decompressed_pieces(
    pieces: Iterator[bytes], name: str, url: str, *, frame: Frame | None = None, at: int = 0
) -> Iterator[bytes]:
    """Decompress consecutive pieces of a source.

    Args:
        pieces: The compressed bytes.
        name: The name of the compression.
        url: The source, for messages.
        frame: What decompresses the first frame, when they begin inside of one.
        at: Where in the file they begin, for messages.

    Yields:
        The decompressed bytes, in blocks.

    Raises:
        SourceError: As in `decompressed`.
    """
    codec = _CODECS[name]
    taken, made, frames = at, 0, 0
    try:
        for piece in pieces:
            data: bytes | memoryview = piece
            while data:
                if frame is None:
                    data = bytes(data).lstrip(codec.padding) if frames and codec.padding else data
                    if not data:
                        break
                    frame = codec.frame()
                for block in frame.feed(data):
                    made += len(block)
                    yield block
                data = b""
                if frame.ended:
                    data, frame, frames = frame.rest, None, frames + 1
            taken += len(piece)
    except (LedgerbeamError, MemoryError):
        raise
    except Exception as error:  # each decompressor has errors of its own
        raise SourceError(_wrong(f"{url}: the {name} data is damaged", taken, made, error)) from error
    if frame is not None or not frames:
        raise SourceError(_wrong(f"{url}: the {name} data is cut off", taken, made, "its end is missing"))


def _wrong(what: str, taken: int, made: int, why: object) -> str:
    return f"{what} at or after byte {taken:,} of the file, {made:,} bytes decompressed ({why}); write the file again."


class Stream:
    """Reads ranges of a decompressed source, forward: what was read is forgotten, but for the last block.

    Args:
        url: The source.
        options: Storage options.
        listed: The listed properties of the source; see `RangeReader`.

    Attributes:
        url: As given.
    """

    def __init__(self, url: str, options: Options | None = None, listed: FileInfo | None = None) -> None:
        self.url = url
        self._blocks = decompressed(url, options, listed)
        self._base = 0
        self._data = bytearray()
        self._ended = False
        self._error: LedgerbeamError | None = None

    @property
    def reached(self) -> int:
        """How many bytes were decompressed so far."""
        return self._base + len(self._data)

    def read(self, start: int, stop: int) -> bytes:
        """Return the bytes `[start, stop)`; fewer at the end.

        Raises:
            ArchiveError: `start` lies before what is kept.
            SourceError: As in `decompressed`.
        """
        if start < self._base:
            raise ArchiveError(f"{self.url}: byte {start} of a stream was passed; it is kept from {self._base} on")
        while self.reached < stop and not self._ended:
            self._forget(start)
            self._ended = not self._take()
        return bytes(self._data[start - self._base : stop - self._base])

    def window(self, start: int) -> tuple[bytes, int]:
        """Return what is at hand from `start` on, at least a block unless the source ends; and where that begins."""
        self.read(start, start + 512)
        self._forget(start)
        return bytes(self._data), self._base

    def blocks(self) -> Iterator[bytes]:
        """Read all that is left, block by block, from the first byte that is kept."""
        if self._data:
            kept = bytes(self._data)
            self._forget(self.reached)
            yield kept
        while (block := self._next()) is not None:
            self._base += len(block)
            yield block
        self._ended = True

    def drain(self) -> int:
        """Read to the end, so that all of it is checked, and return the size."""
        while not self._ended:
            self._forget(self.reached)
            self.read(self.reached, self.reached + 1)
        return self.reached

    def close(self) -> None:
        """End the reading."""
        close = getattr(self._blocks, "close", None)
        if close is not None:
            close()

    def _take(self) -> bool:
        """Append a block; return whether there was one."""
        block = self._next()
        self._data += block or b""
        return block is not None

    def _next(self) -> bytes | None:
        """Return the next block, None at the end. Damage ends every further read too."""
        if self._error is not None:
            raise self._error
        try:
            return next(self._blocks, None)
        except LedgerbeamError as error:
            self._error = error
            raise

    def _forget(self, start: int) -> None:
        unneeded = min(start - self._base, len(self._data))
        if unneeded > 0:
            del self._data[:unneeded]
            self._base += unneeded
