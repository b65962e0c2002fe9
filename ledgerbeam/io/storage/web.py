"""Reads from web servers: only of the listed version, which every response must name.

A version is the ETag or, if the server sends none, the time of the last change with the size. No condition is sent:
servers pass over `If-Match` with weak ETags and over `If-Unmodified-Since` in ranges, but what they answer has its own
version in its head, and is read only if that is the right one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ledgerbeam.errors import StorageError
from ledgerbeam.io.storage.stat import info_of

__all__ = ["read_web", "web_version"]

_PARTIAL = 206  # HTTP status of an answer that holds a range


async def read_web(store: Any, url: str, start: int | None, stop: int | None) -> tuple[str, bytes]:
    """Read a range of a file of a web server, or all of it: one request.

    Args:
        store: Its fsspec file system.
        url: Canonical URL.
        start: First byte; None for the whole file.
        stop: End, exclusive; None likewise.

    Returns:
        The version of what was read, and its bytes.

    Raises:
        StorageError: The server supports no ranges, or sends no version; also the errors of the client.
    """
    request = dict(store.kwargs)
    heads = {**request.pop("headers", {}), "Accept-Encoding": "identity"}
    wanted = None if start is None or stop is None else f"bytes={start}-{stop - 1}"
    if wanted:
        heads["Range"] = wanted
    session = await store.set_session()
    async with session.get(store.encode_url(url), headers=heads, **request) as answer:
        answer.raise_for_status()
        if wanted and not (answer.status == _PARTIAL and _first_byte(answer.headers) == start):
            raise StorageError(
                f"{url}: the server supports no byte ranges, so records cannot be read from their places "
                f"(asked for {wanted}, it answered with status {answer.status}); copy the file to a store that "
                "does, or to a local disk"
            )
        version = web_version(url, answer.headers)
        return version, await answer.read()


def web_version(url: str, heads: Mapping[str, str]) -> str:
    """Return the version that a response names, as in `FileInfo.version`.

    Args:
        url: What was asked for.
        heads: Of the answer, to a whole file or a range of it.

    Raises:
        StorageError: It names none.
    """
    size = heads.get("Content-Range", "").rpartition("/")[2] or heads.get("Content-Length", "")
    told = {name: heads.get(name) for name in ("ETag", "Last-Modified")}
    # An ETag is the version by itself.
    known = int(size) if size.isdecimal() else 0 if told["ETag"] else None
    return info_of(url, {**told, "size": known}).version


def _first_byte(heads: Mapping[str, str]) -> int | None:
    first = heads.get("Content-Range", "").removeprefix("bytes ").partition("-")[0]
    return int(first) if first.isdecimal() else None
