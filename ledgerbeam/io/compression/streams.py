"""Sources read from their beginning, in blocks: plain and compressed files, and the output of commands (`pipe:`).

The formats are gzip, bzip2, xz, Zstandard and LZ4, with one or more frames. Blocks stay small even if a few bytes
expand to very many. If a stream is cut off, damaged or followed by other data, the error has the position in the file.

A pipe can run any program. It is refused unless the environment variable `LEDGERBEAM_ALLOW_PIPES` is `1`.
"""

from __future__ import annotations

import bz2
import importlib
import lzma
import os
import shutil
import signal
import subprocess
import threading
import zlib
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import lru_cache
from tempfile import TemporaryFile
from typing import Any, NamedTuple

from ledgerbeam._base.extensions import import_extra
from ledgerbeam._base.redaction import printable, without_secrets
from ledgerbeam.errors import ArchiveError, LedgerbeamError, SourceError, UsageError
from ledgerbeam.io.storage.client import Options
from ledgerbeam.io.storage.content_kind import HEAD, require_compressed
from ledgerbeam.io.storage.ranges import RangeReader
from ledgerbeam.io.storage.stat import FileInfo


@dataclass(frozen=True, slots=True)
class Compression:
    """A compression: its name in messages, the command that decompresses, and whether it allows reads by position."""

    name: str
    command: str
    seekable: bool = False


_GZIP = Compression("gzip", "gunzip", seekable=True)

_BY_SUFFIX = {
    ".gz": _GZIP,
    ".tgz": _GZIP,
    ".bz2": Compression("bzip2", "bunzip2"),
    ".xz": Compression("xz", "unxz"),
    ".zst": Compression("zstd", "unzstd", seekable=True),
    ".lz4": Compression("lz4", "unlz4"),
}


class PlainName(NamedTuple):
    """The name of the decompressed file, and the compression, which is None for a plain file."""

    url: str
    compression: Compression | None


@lru_cache(maxsize=256)  # each stage of the work on a source asks
def split_compression(url: str) -> PlainName:
    """Split a name into the name of the decompressed file and the compression, from one of the last two suffixes.

    `a.jsonl.gz` is `a.jsonl` in gzip, `a.tgz` is `a.tar` in gzip, `a.gz.jsonl` is `a.jsonl` in gzip.
    """
    folder, slash, base = url.rpartition("/")
    parts = base.split(".")
    suffixes = [f".{part.lower()}" for part in parts[1:]][-2:]
    compression = next((_BY_SUFFIX[suffix] for suffix in reversed(suffixes) if suffix in _BY_SUFFIX), None)
    if compression is None and ".tgz" not in url.lower():
        return PlainName(url, None)
    parts = ["tar" if part.lower() == "tgz" else part for part in parts]
    kept = [
        part for number, part in enumerate(parts) if number < len(parts) - 2 or f".{part.lower()}" not in _BY_SUFFIX
    ]
    return PlainName(f"{folder}{slash}{'.'.join(kept)}", compression)


BLOCK = 1024 * 1024  # largest size of a block in bytes; for Zstandard up to 32 times as large
REQUEST = 4 * 1024 * 1024  # compressed bytes that are read at once
_WINDOW = 1 << 27  # memory limit for a Zstandard frame: the default limit of `zstd`
_PIECE = 1024  # for Zstandard: a block has at least 4 bytes and expands to at most 128 KiB


class Frame:
    """One compressed frame. This class serves formats whose decompressors limit the output of a call."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._decompressor = make()

    def feed(self, data: bytes | memoryview) -> Iterator[bytes]:
        """Decompress bytes and yield the result in blocks."""
        while not self.ended:
            if found := self._decompressor.decompress(data, BLOCK):
                yield found
            data = b""
            if self._decompressor.needs_input:
                return

    @property
    def ended(self) -> bool:
        """Whether the end of the frame was reached."""
        return bool(self._decompressor.eof)

    @property
    def rest(self) -> bytes | memoryview:
        """The bytes after the end of the frame."""
        return bytes(self._decompressor.unused_data or b"")


class DeflateFrame(Frame):
    """A gzip frame. zlib limits the output of a call; the rest of the input is passed again."""

    def __init__(self, make: Callable[[], Any] = lambda: zlib.decompressobj(wbits=31)) -> None:
        super().__init__(make)

    def feed(self, data: bytes | memoryview) -> Iterator[bytes]:
        """Decompress bytes and yield the result in blocks."""
        while not self.ended:
            if found := self._decompressor.decompress(data, BLOCK):
                yield found
            data = self._decompressor.unconsumed_tail
            if not data and len(found) < BLOCK:
                return


class _ZstdFrame(Frame):
    """A Zstandard frame. The library cannot limit the output of a call, so it gets small pieces of input."""

    def __init__(self) -> None:
        zstandard = importlib.import_module("zstandard")
        # Not the decompressor of the thread, whose state two frames would share.
        super().__init__(lambda: zstandard.ZstdDecompressor(max_window_size=_WINDOW).decompressobj())
        self._unused: bytes | memoryview = b""

    def feed(self, data: bytes | memoryview) -> Iterator[bytes]:
        view = memoryview(data)  # so the bytes after a frame are not copied: there may be thousands of frames
        for start in range(0, len(view), _PIECE):
            if found := self._decompressor.decompress(view[start : start + _PIECE]):
                yield found
            if self.ended:
                fed = min(start + _PIECE, len(view))
                self._unused = view[fed - len(self._decompressor.unused_data) :]
                return

    @property
    def rest(self) -> bytes | memoryview:
        return self._unused


_decompressors = threading.local()  # the decompressor of each thread for whole frames


def whole_zstd_frame(data: bytes, size: int) -> bytes | None:
    """Decompress one Zstandard frame at once; return None unless it is one whole frame of exactly `size` bytes."""
    if (decompressor := getattr(_decompressors, "zstd", None)) is None:  # reused, since creating one takes time
        zstandard = importlib.import_module("zstandard")
        decompressor = _decompressors.zstd = zstandard.ZstdDecompressor(max_window_size=_WINDOW)
        _decompressors.size_in, _decompressors.error = zstandard.frame_content_size, zstandard.ZstdError
    try:
        if _decompressors.size_in(data) != size:  # else the size in the frame would be allocated
            return None
        whole: bytes = decompressor.decompress(data, allow_extra_data=False)
    except _decompressors.error:
        return None
    return whole


_FRAMES: dict[str, Callable[[], Frame]] = {
    "gzip": DeflateFrame,
    "bzip2": lambda: Frame(bz2.BZ2Decompressor),
    "xz": lambda: Frame(lambda: lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=1 << 30)),
    "zstd": _ZstdFrame,
    "lz4": lambda: Frame(
        import_extra("lz4.frame", "lz4", "LZ4 needs a package that is not installed").LZ4FrameDecompressor
    ),
}
_PADDING = {"gzip": b"\0", "xz": b"\0"}  # bytes that the format permits between and after frames


def decompressed(url: str, options: Options | None = None, listed: FileInfo | None = None) -> Iterator[bytes]:
    """Yield the bytes of a source from its beginning. If its name has the suffix of a compression, decompress them.

    The output of a pipe is not decompressed.

    Raises:
        SourceError: The data is cut off, damaged, or followed by other data; the message names the byte of the file.
        UsageError: A package is not installed, or the source is a pipe and pipes are not allowed.
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
    """Decompress consecutive pieces of a source, of the compression `name`. SourceError: as in `decompressed`.

    `frame` is the first frame if the pieces begin inside it; `at` is the offset of the first piece in the file.
    """
    padding = _PADDING.get(name)
    taken, made, frames, head = at, 0, 0, b""
    try:
        for piece in pieces:
            data: bytes | memoryview = piece
            head = head or bytes(data[:HEAD])
            while data:
                if frame is None:
                    data = bytes(data).lstrip(padding) if frames and padding else data
                    if not data:
                        break
                    frame = _FRAMES[name]()
                for block in frame.feed(data):
                    made += len(block)
                    yield block
                data = b""
                if frame.ended:
                    data, frame, frames = frame.rest, None, frames + 1
            taken += len(piece)
    except (LedgerbeamError, MemoryError):
        raise
    except Exception as error:  # each decompressor has its own errors
        if not at and not made:
            require_compressed(head, url, name)
        if "ictionary" in str(error) and name == "zstd":
            raise SourceError(
                f"{url}: files that were compressed with a Zstandard dictionary cannot be read ({error}); compress it "
                "again without one: zstd -d -D DICTIONARY FILE -c | zstd"
            ) from error
        raise SourceError(_wrong(f"{url}: the {name} data is damaged", taken, made, error)) from error
    if frame is not None or not frames:
        if not at and not made:
            require_compressed(head, url, name)
        raise SourceError(_wrong(f"{url}: the {name} data is cut off", taken, made, "its end is missing"))


def _wrong(what: str, taken: int, made: int, why: object) -> str:
    return f"{what} at or after byte {taken:,} of the file, {made:,} bytes decompressed ({why}); write the file again."


class Stream:
    """Reads ranges of a decompressed source in increasing order; only the last block is kept."""

    def __init__(self, url: str, options: Options | None = None, listed: FileInfo | None = None) -> None:
        self.url = url
        self._blocks = decompressed(url, options, listed)
        self._base = 0
        self._data = bytearray()
        self._ended = False
        self._error: LedgerbeamError | None = None

    @property
    def reached(self) -> int:
        """Number of bytes decompressed so far."""
        return self._base + len(self._data)

    def read(self, start: int, stop: int) -> bytes:
        """Return the bytes `[start, stop)`, fewer at the end. ArchiveError: the byte `start` was already discarded."""
        if start < self._base:
            raise ArchiveError(f"{self.url}: expected a read from byte {self._base} or later, found byte {start}")
        while self.reached < stop and not self._ended:
            self._forget(start)
            block = self._next()
            self._data += block or b""
            self._ended = block is None
        return bytes(self._data[start - self._base : stop - self._base])

    def window(self, start: int) -> tuple[bytes, int]:
        """Return the kept bytes from `start` on, at least 512 unless the source ends; and the offset of the first."""
        self.read(start, start + 512)
        self._forget(start)
        return bytes(self._data), self._base

    def blocks(self) -> Iterator[bytes]:
        """Read the rest, block by block, from the first kept byte."""
        if self._data:
            kept = bytes(self._data)
            self._forget(self.reached)
            yield kept
        while (block := self._next()) is not None:
            self._base += len(block)
            yield block
        self._ended = True

    def drain(self) -> int:
        """Read to the end, so that all data is checked. Return the number of decompressed bytes."""
        while not self._ended:
            self._forget(self.reached)
            self.read(self.reached, self.reached + 1)
        return self.reached

    def close(self) -> None:
        """Close the source."""
        if (close := getattr(self._blocks, "close", None)) is not None:
            close()

    def _next(self) -> bytes | None:
        """Return the next block, None at the end. After an error, every later call raises the same error."""
        if self._error is not None:
            raise self._error
        try:
            return next(self._blocks, None)
        except LedgerbeamError as error:
            self._error = error
            raise

    def _forget(self, start: int) -> None:
        if (unneeded := min(start - self._base, len(self._data))) > 0:
            del self._data[:unneeded]
            self._base += unneeded


_MEASURED = 3  # number of sources of each compression that are measured
_BYTES = 1 << 18  # bytes at the start of a source that are measured


class Expansion:
    """Measures the ratio of decompressed to compressed bytes of the first sources, for each compression."""

    def __init__(self, options: Options | None) -> None:
        self._options = options
        self._found: dict[str, list[float]] = {}

    def held_bytes(self, url: str, size: int) -> int:
        """Estimate the decompressed size of a source; it is `size` if the source is not compressed."""
        compression = split_compression(url).compression
        if compression is None or not size:
            return size
        found = self._found.setdefault(compression.name, [])
        if len(found) < _MEASURED:
            with suppress(LedgerbeamError):  # the task that reads it reports the error
                with closing(RangeReader(url, self._options)) as reader:
                    data = reader.read(0, min(size, _BYTES))
                made = 0
                with suppress(LedgerbeamError):  # the data is cut off here
                    for block in decompressed_pieces(iter([data]), compression.name, url):
                        made += len(block)
                found.append(made / len(data))
        return size if not found else max(size, round(size * sum(found) / len(found)))


ALLOW_PIPES = "LEDGERBEAM_ALLOW_PIPES"  # environment variable that allows pipes in this process and its children
_SCHEME = "pipe:"
_SHOWN = 300
_ENDED_EARLY = 128 + signal.SIGPIPE  # with pipefail: the next command stopped reading, which is no failure


def is_pipe(url: str) -> bool:
    """Return whether a name is a `pipe:` command."""
    return url.startswith(_SCHEME)


def read_pipe(url: str) -> Iterator[bytes]:
    """Run the command of a pipe and yield its output in blocks. Each read runs the command again.

    With bash, a pipeline (`a | b`) fails if one of its commands fails.

    Raises:
        SourceError: The command fails; the output up to the failure was already returned.
        UsageError: Pipes are not allowed, or the command is empty.
    """
    command = url.removeprefix(_SCHEME).strip()
    if os.environ.get(ALLOW_PIPES) != "1":
        raise UsageError(
            f"{without_secrets(url)}: this name runs a command, which is not allowed; if you trust its origin, set the "
            f"environment variable {ALLOW_PIPES}=1"
        )
    if not command:
        raise UsageError(f"{url}: expected a command such as 'pipe:zcat a.jsonl.gz', found none")
    bash = shutil.which("bash")
    shell = [bash, "-o", "pipefail", "-c"] if bash else ["/bin/sh", "-c"]
    with (
        TemporaryFile() as said,
        subprocess.Popen(
            [*shell, command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=said,
            start_new_session=True,  # so that its child processes can be killed too
        ) as process,
    ):
        ended = False
        try:
            while process.stdout is not None and (block := process.stdout.read1(BLOCK)):  # type: ignore[attr-defined]
                yield block
            ended = True
        finally:
            if not ended:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGTERM)
        status = process.wait()
        if status not in (0, _ENDED_EARLY):
            said.seek(0)
            words = printable(said.read().decode(errors="replace")).strip()[-_SHOWN:]
            raise SourceError(
                without_secrets(
                    f"{url}: expected the command to end with status 0, found {status}, so its output is incomplete: "
                    f"{words or 'no error message'}"
                )
            )
