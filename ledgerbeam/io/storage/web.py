"""Reads from web servers: only of the listed version, which every response must name.

A version is the ETag or, if the server sends none, the time of the last change with the size. No condition is sent,
since servers ignore `If-Match` with weak ETags and `If-Unmodified-Since` with ranges. Instead the version in the
response headers is compared.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ledgerbeam.errors import StorageError
from ledgerbeam.io.storage.stat import info_of

__all__ = ["byte_range", "read_web", "require_range"]

_PARTIAL = 206  # HTTP status of a response with a range


async def read_web(store: Any, url: str, start: int | None, stop: int | None) -> tuple[str, bytes]:
    """Read a range of a file of a web server or the whole file: one request.

    Args:
        store: Its fsspec file system.
        url: Canonical URL.
        start: First byte; None for the whole file.
        stop: End, exclusive; None for the whole file.

    Returns:
        The version of what was read, and its bytes.

    Raises:
        StorageError: The server supports no ranges, or sends no version; also the errors of the client.
    """
    request = dict(store.kwargs)
    heads = {**request.pop("headers", {}), "Accept-Encoding": "identity"}
    wanted = byte_range(start, stop)
    if wanted:
        heads["Range"] = wanted
    session = await store.set_session()
    async with session.get(store.encode_url(url), headers=heads, **request) as answer:
        answer.raise_for_status()
        remedy = "copy the file to a store that does, or to a local disk"
        require_range(url, wanted, answer.status, answer.headers, remedy)
        return _version(url, answer.headers), await answer.read()


def byte_range(start: int | None, stop: int | None) -> str | None:
    """Return the value of the header `Range` for the bytes `[start, stop)`; None for the whole file."""
    return None if start is None or stop is None else f"bytes={start}-{stop - 1}"


def require_range(url: str, wanted: str | None, status: int, headers: Mapping[str, str], remedy: str) -> None:
    """Check that a response is the range that was requested.

    Args:
        url: The file, for the message.
        wanted: The `Range` of the request; None if it was for the whole file.
        status: HTTP status of the response.
        headers: Headers of the response.
        remedy: What to do about it, for the message.

    Raises:
        StorageError: It is not.
    """
    found = headers.get("Content-Range", "").removeprefix("bytes ").partition("-")[0]
    if wanted and not (status == _PARTIAL and wanted.startswith(f"bytes={found}-")):
        raise StorageError(
            f"{url}: the server does not support byte ranges, so records cannot be read by position (requested "
            f"{wanted}, the response has status {status}); {remedy}"
        )


def _version(url: str, headers: Mapping[str, str]) -> str:
    """Return the version that a response names, as in `FileInfo.version`."""
    size = headers.get("Content-Range", "").rpartition("/")[2] or headers.get("Content-Length", "")
    fields = {name: headers.get(name) for name in ("ETag", "Last-Modified")}
    # An ETag is the version without the size.
    known = int(size) if size.isdecimal() else 0 if fields["ETag"] else None
    return info_of(url, {**fields, "size": known}).version
