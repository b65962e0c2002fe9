"""Joining sources into one, without their bytes passing through Python where kernel or store can do it."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator, Sequence
from typing import BinaryIO

from ledgerbeam.errors import ChangedSourceError
from ledgerbeam.io.ahead import map_ahead
from ledgerbeam.io.local import open_local
from ledgerbeam.io.publish import publish
from ledgerbeam.io.s3_copy import can_copy, copied
from ledgerbeam.io.storage import FileInfo, Options, RangeReader, is_local

__all__ = ["concatenated"]

_CHUNK = 8 * 1024 * 1024
_AHEAD = 4
_KERNEL_CHUNK = 1 << 30
# What a kernel or a file system says that has no such copy between these two files.
_NO_COPY = frozenset({errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EBADF, errno.EPERM})


@contextlib.contextmanager
def concatenated(sources: Sequence[FileInfo], target: str, options: Options | None = None) -> Iterator[None]:
    """Joins sources in order; the target appears when the body ends, and never if it raises.

    From local to local the kernel copies, or shares the blocks where the file system can; within S3 the server does.
    Everything else streams through memory in blocks.

    Args:
        sources: What to join; each must still have its size.
        target: Where the result goes.
        options: Storage options of all of them.

    Raises:
        ChangedSourceError: A source has not the size it had.
        SourceNotFoundError: There is no such source; also the errors of `publish`.
    """
    if can_copy(sources, target):
        with copied(sources, target, options):
            yield
        return
    with publish(target, options) as file:
        for source in sources:
            if is_local(source.url) and is_local(target):
                _copy_file(source, file)
            else:
                _stream(source, file, options)
        yield


def _copy_file(source: FileInfo, file: BinaryIO) -> None:
    file.flush()
    target = file.fileno()
    with open_local(source.url) as descriptor:
        size = os.fstat(descriptor).st_size
        if size != source.size:
            raise _changed(source, size)
        left = source.size
        copy = _copy_range
        while left:
            try:
                done = copy(descriptor, target, min(left, _KERNEL_CHUNK), source.size - left)
            except OSError as error:
                if copy is not _copy_range or error.errno not in _NO_COPY:
                    raise
                copy = _send
                continue
            if done == 0:
                raise _changed(source, source.size - left)
            left -= done


def _copy_range(source: int, target: int, count: int, offset: int) -> int:
    return os.copy_file_range(source, target, count, offset)


def _send(source: int, target: int, count: int, offset: int) -> int:
    return os.sendfile(target, source, offset, count)


def _stream(source: FileInfo, file: BinaryIO, options: Options | None) -> None:
    with RangeReader(source.url, options, source.size) as reader:

        def read(start: int) -> bytes:
            return reader.read(start, min(start + _CHUNK, source.size))

        for block in map_ahead(read, range(0, source.size, _CHUNK), _AHEAD):
            file.write(block)


def _changed(source: FileInfo, size: int) -> ChangedSourceError:
    return ChangedSourceError(f"{source.url}: expected {source.size} bytes, found {size}; it changed, run again.")
