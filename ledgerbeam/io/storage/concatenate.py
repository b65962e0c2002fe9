"""Join sources into one; where the kernel or the store can copy, the bytes do not pass through Python."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, BinaryIO, NamedTuple

from ledgerbeam.errors import ChangedSourceError, StorageError
from ledgerbeam.io.storage.client import Options, call, filesystem, map_ahead
from ledgerbeam.io.storage.publish import publish
from ledgerbeam.io.storage.ranges import RangeReader
from ledgerbeam.io.storage.responses import http_status, storage_error
from ledgerbeam.io.storage.stat import FileInfo, open_local
from ledgerbeam.io.storage.urls import is_local, store_of

_CHUNK = 8 * 1024 * 1024
_AHEAD = 4
_KERNEL_CHUNK = 1 << 30
# Errors of a kernel or file system that cannot copy between these two files.
_NO_COPY = frozenset({errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EBADF, errno.EPERM})


@contextlib.contextmanager
def concatenated(sources: Sequence[FileInfo], target: str, options: Options | None = None) -> Iterator[None]:
    """Join sources in order; the target appears when the body ends, and never if it raises.

    Between local files the kernel copies, or shares blocks where the file system can; within S3 the server copies.
    Everything else streams through memory in blocks. An object must still have its listed version, a local file its
    listed size; use a `SourceWatch` to detect writes to a local file that do not change its size.

    Raises:
        ChangedSourceError: A source changed since it was listed.
        SourceNotFoundError: A source does not exist; also the errors of `publish`.
    """
    if can_copy(sources, target):
        with copied(sources, target, options):
            yield
        return
    with publish(target, options) as file:
        for source in sources:
            if is_local(source.url) and is_local(target):
                _copy_file(source, file, target)
            else:
                with RangeReader(source.url, options, listed=source) as reader:
                    for block in reader.blocks(_CHUNK, _AHEAD):
                        file.write(block)
        yield


def _copy_file(source: FileInfo, file: BinaryIO, target: str) -> None:
    file.flush()
    copied_to = file.fileno()
    with open_local(source.url) as descriptor:
        size = os.fstat(descriptor).st_size
        if size != source.size:
            raise _changed(source, size)
        left = source.size
        sends = False
        while left:
            count, offset = min(left, _KERNEL_CHUNK), source.size - left
            try:
                if sends:
                    done = os.sendfile(copied_to, descriptor, offset, count)
                else:
                    done = os.copy_file_range(descriptor, copied_to, count, offset)
            except OSError as error:
                if sends or error.errno not in _NO_COPY:
                    raise storage_error(error, target, f"copy {source.url} to it") from error
                sends = True
                continue
            if done == 0:
                raise _changed(source, source.size - left)
            left -= done


def _changed(source: FileInfo, size: int) -> ChangedSourceError:
    return ChangedSourceError(f"{source.url}: expected {source.size} bytes, found {size}; the file changed, run again")


LEAST_PART = 5 * 1024 * 1024  # the least size that S3 accepts for every part but the last, in bytes
_MOST_PART = 512 * 1024 * 1024  # S3 accepts 5 GiB; smaller parts are copied in parallel
_MOST_PARTS = 9_000  # S3 accepts 10,000
_SIDE_BY_SIDE = 8
_NO_MATCH = 412  # HTTP status of a condition that does not hold


class Piece(NamedTuple):
    """A range `[start, stop)` of a source, with the position of the source in the list."""

    source: int
    start: int
    stop: int


def can_copy(sources: Sequence[FileInfo], target: str) -> bool:
    """Return whether the server can join sources: its API allows it, and the result has at least one full part."""
    urls = [target, *(source.url for source in sources)]
    return all(store_of(url).joins_objects for url in urls) and sum(s.size for s in sources) >= LEAST_PART


def plan_parts(sizes: Sequence[int], least: int = LEAST_PART, most: int = _MOST_PART) -> list[list[Piece]]:
    """Plan the parts of the multipart upload, in order. Each part except the last has at least `least` bytes.

    A part of one piece can be copied by the server, and has at most `most` bytes; `most` is at least twice `least`. A
    part of several pieces has at most `least` bytes.
    """
    parts: list[list[Piece]] = []
    pending: list[Piece] = []
    missing = least
    for number, size in enumerate(sizes):
        start = 0
        if pending:
            start = min(size, missing)
            pending.append(Piece(number, 0, start))
            missing -= start
            if missing == 0:
                parts.append(pending)
                pending, missing = [], least
        if 0 < size - start < least:
            pending.append(Piece(number, start, size))
            missing -= size - start
        elif start < size:
            count = -(-(size - start) // most)
            edges = [start + (size - start) * edge // count for edge in range(count + 1)]
            parts += [[Piece(number, first, last)] for first, last in pairwise(edges)]
    return [*parts, pending] if pending else parts


@contextlib.contextmanager
def copied(sources: Sequence[FileInfo], target: str, options: Options | None = None) -> Iterator[None]:
    """Join objects for which `can_copy` is true inside the store. The target appears when the body ends without error.

    Sources, or ends of sources, that are too small to be copied as a part of the upload are read and written: in parts
    of 5 MiB, or larger ones if the target has more than 45 GB.
    """
    store = filesystem(target, options)
    bucket, key, _ = store.split_path(target)
    place = {"Bucket": bucket, "Key": key}

    def ask(method: str, **arguments: Any) -> Any:
        return call(target, "write", store.call_s3, method, **place, **arguments)

    upload = ask("create_multipart_upload")["UploadId"]

    def copy(piece: Piece, which: dict[str, Any]) -> Any:
        source = sources[piece.source]
        from_bucket, from_key, _ = store.split_path(source.url)
        origin = {"CopySource": {"Bucket": from_bucket, "Key": from_key}, "CopySourceIfMatch": source.version}
        span = f"bytes={piece.start}-{piece.stop - 1}"
        try:
            method = partial(store.call_s3, "upload_part_copy", **place, **which, **origin, CopySourceRange=span)
            return call(source.url, "read", method)["CopyPartResult"]["ETag"]
        except StorageError as error:
            if http_status(error) == _NO_MATCH:
                raise ChangedSourceError(f"{source.url}: changed since it was listed; run again") from error
            raise

    def read(piece: Piece) -> bytes:
        with RangeReader(sources[piece.source].url, options, listed=sources[piece.source]) as reader:
            return reader.read(piece.start, piece.stop)

    def put(part: tuple[int, list[Piece]]) -> dict[str, Any]:
        number, pieces = part
        which = {"UploadId": upload, "PartNumber": number}
        if len(pieces) == 1:
            tag = copy(pieces[0], which)
        else:
            tag = ask("upload_part", **which, Body=b"".join(map(read, pieces)))["ETag"]
        return {"PartNumber": number, "ETag": tag}

    try:
        least = max(LEAST_PART, sum(source.size for source in sources) // _MOST_PARTS)
        parts = plan_parts([source.size for source in sources], least, max(_MOST_PART, 2 * least))
        tags = list(map_ahead(put, enumerate(parts, 1), _SIDE_BY_SIDE))
        yield
        ask("complete_multipart_upload", UploadId=upload, MultipartUpload={"Parts": tags})
    except BaseException:
        with contextlib.suppress(StorageError):  # the first error says more; stores remove old uploads
            ask("abort_multipart_upload", UploadId=upload)
        raise
    store.invalidate_cache(target)
