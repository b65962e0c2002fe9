"""Joining objects of S3 inside the store: a multipart upload whose parts are ranges of other objects."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

from ledgerbeam.errors import ChangedSourceError, StorageError
from ledgerbeam.io.ahead import map_ahead
from ledgerbeam.io.remote import call, filesystem, http_status, split_scheme
from ledgerbeam.io.storage import FileInfo, Options, RangeReader

__all__ = ["Piece", "can_copy", "copied", "plan_parts"]

LEAST_PART = 5 * 1024 * 1024
"""S3's least size of all parts but the last, in bytes."""

_MOST_PART = 512 * 1024 * 1024  # S3 takes 5 GiB; smaller ones are copied side by side
_MOST_PARTS = 9_000  # S3 takes 10,000
_SIDE_BY_SIDE = 8
_NO_MATCH = 412  # HTTP status of a condition that does not hold


class Piece(NamedTuple):
    """A range of a source.

    Attributes:
        source: Its place among the sources.
        start: First byte.
        stop: End, exclusive.
    """

    source: int
    start: int
    stop: int


def can_copy(sources: Sequence[FileInfo], target: str) -> bool:
    """Tells whether the server can join these: all are objects of S3, and a part of it is large enough."""
    urls = [target, *(source.url for source in sources)]
    return all(split_scheme(url)[0] == "s3" for url in urls) and sum(s.size for s in sources) >= LEAST_PART


def plan_parts(sizes: Sequence[int], least: int = LEAST_PART, most: int = _MOST_PART) -> list[list[Piece]]:
    """Cuts the joined sources into parts.

    Args:
        sizes: Of the sources, in bytes.
        least: Size of every part but the last, at least.
        most: Size of a part that is copied, at most; at least twice `least`.

    Returns:
        The parts in order. One of a single piece can be copied; one of several has at most `least` bytes.
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
    """Joins objects inside the store; the target appears when the body ends, and never if it raises.

    Sources, or ends of them, too small for a part of their own pass through memory, 5 MiB at a time up to 45 GB in all.

    Args:
        sources: For which `can_copy` holds.
        target: Where the result goes.
        options: Storage options of all of them.

    Raises:
        ChangedSourceError: A source is not what was listed.
        SourceNotFoundError: There is no such source; also StorageError.
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
                raise ChangedSourceError(f"{source.url} is not what was listed any more; run again.") from error
            raise

    def read(piece: Piece) -> bytes:
        with RangeReader(sources[piece.source].url, options, sources[piece.source].size) as reader:
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
        with contextlib.suppress(StorageError):  # the first error tells more, and stores drop old uploads themselves
            ask("abort_multipart_upload", UploadId=upload)
        raise
    store.invalidate_cache(target)
