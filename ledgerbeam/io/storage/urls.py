"""URLs of files and objects: schemes and their stores, canonical forms, joining."""

from __future__ import annotations

import os
import posixpath
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from ledgerbeam.errors import UsageError

_ALIASES = {"s3a": "s3", "s3n": "s3", "gcs": "gs", "local": "file"}


@dataclass(frozen=True, slots=True)
class Store:
    """The capabilities of a kind of store; the defaults apply to an unknown store."""

    # The API for requests that fsspec lacks: reads of a version, pages of listings, blocks of Azure.
    api: Literal["s3", "gcs", "azure", "http", "hub"] | None = None
    extra: str | None = None  # extra of ledgerbeam that contains its client
    package: str | None = None  # package that contains its client, if no extra does
    has_buckets: bool = False  # keys have no leading slash, so that `scheme:///b/k` can only mean `scheme://b/k`
    publishes_whole: bool = False  # a put is atomic: readers see the whole object or none
    creates_exclusively: bool = False  # a put can be made conditional on the name not existing
    joins_objects: bool = False  # the server can create an object from parts of others
    deletes_many: int = 1  # number of objects that one request can delete; missing ones are no error
    explains_refusals: bool = True  # the response to a refused HEAD request gives the reason
    imports_quietly: bool = False  # its client starts no thread at import, so that the process may still fork
    # Arguments of the client for reading a whole object without a request for its size.
    whole_read: Mapping[str, Any] = field(default_factory=dict)


_UNKNOWN = Store()
_OBJECTS = Store(publishes_whole=True)
_EXCLUSIVE = Store(publishes_whole=True, creates_exclusively=True)
_WEB = Store(api="http", package="aiohttp")
_AZURE = replace(_EXCLUSIVE, api="azure", extra="azure")

_STORES = {
    "file": _EXCLUSIVE,
    "memory": replace(_EXCLUSIVE, has_buckets=True),
    "s3": replace(
        _EXCLUSIVE,
        api="s3",
        extra="s3",
        has_buckets=True,
        joins_objects=True,
        deletes_many=1000,
        explains_refusals=False,
        imports_quietly=True,
        whole_read={"max_concurrency": 1},
    ),
    "gs": replace(_EXCLUSIVE, api="gcs", extra="gcs", has_buckets=True),
    "az": replace(_AZURE, has_buckets=True),
    "abfs": _AZURE,
    "abfss": _AZURE,
    "adl": replace(_OBJECTS, extra="azure"),
    "http": _WEB,
    "https": _WEB,
    "hf": Store(api="hub", extra="hf"),
    "oss": _OBJECTS,
    "oci": _OBJECTS,
}

_UNUSUAL = re.compile(r"//|/\.|/\Z")  # parts that show that an absolute path may not be canonical


def split_scheme(url: str) -> tuple[str, str]:
    """Split a URL into its canonical scheme and the rest.

    Returns:
        `("file", path)` for local names, with the path as given, else `(scheme, rest)` where `rest` follows `://`.

    Raises:
        UsageError: The name is empty, a `pipe:` command or a chained URL (`a::b`), which have no byte offsets. Or it is
            the URL of a store with a missing slash, or starts with a `~` that no shell has expanded.
    """
    if url.startswith("/") and "://" not in url:  # the common case
        return "file", url
    if not url:
        raise UsageError("expected the name of a source, found an empty text; give a path or a URL: s3://bucket/key")
    if url.startswith("pipe:"):
        raise UsageError(
            f"{url}: a pipe has no byte offsets, so it cannot be read in ranges; write its output to a file"
        )
    scheme, mark, rest = url.partition("://")
    if not mark:
        lost, colon, _ = url.partition(":")
        if colon and canonical_scheme(lost) in _STORES.keys() - {"file"}:
            raise UsageError(
                f"{url}: expected {lost}://, found fewer slashes; give the URL as text, since pathlib removes a slash. "
                f"For a local file of this name, write ./{url}"
            )
        path = url.removeprefix("file:")
        if path == "~" or path.startswith("~/"):
            raise UsageError(
                f"{url}: expected a path, found ~, which only a shell replaces by the home folder; give the path of "
                f"this folder. For a folder named ~, write ./{path}"
            )
        return "file", path
    if "::" in scheme:
        raise UsageError(f"{url}: chained URLs are not supported; give the URL of the object itself, without `::`")
    if "/" in scheme:  # a local path that contains `://`
        return "file", url
    return canonical_scheme(scheme), rest


def canonical_url(url: str) -> str:
    """Return the canonical name of a source.

    Returns:
        For local names an absolute, normalised path without scheme; symbolic links are not resolved. For remote ones
        `scheme://bucket/key`, with `s3a://` written as `s3://` and `gcs://` as `gs://`; keys are not changed.

    Raises:
        UsageError: The name is empty, a `pipe:` command or a chained URL.
    """
    if url.startswith("/") and not _UNUSUAL.search(url):
        return url
    scheme, rest = split_scheme(url)
    if scheme != "file":
        return f"{scheme}://{rest.lstrip('/') if store_named(scheme).has_buckets else rest}"
    path = os.path.abspath(rest)
    # POSIX permits another meaning for exactly two leading slashes; here they have none.
    return path[1:] if path.startswith("//") else path


def is_local(url: str) -> bool:
    """Return whether a URL names a file of this machine."""
    return split_scheme(url)[0] == "file"


def store_of(url: str) -> Store:
    """Return the capabilities of the store of a URL."""
    return store_named(split_scheme(url)[0])


def store_named(scheme: str) -> Store:
    """Return the capabilities of the store of a canonical scheme."""
    return _STORES.get(scheme, _UNKNOWN)


def canonical_scheme(scheme: str) -> str:
    """Return the canonical name of a scheme."""
    scheme = scheme.lower()
    return _ALIASES.get(scheme, scheme)


def join_url(base: str, name: str) -> str:
    """Resolve a path or URL against a folder as wids does.

    Args:
        base: A folder.
        name: A URL, which is returned as it is; an absolute path in the bucket of `base`; or a path relative to `base`.
    """
    if re.match(r"[A-Za-z][\w+.-]*://", name):
        return canonical_url(name)
    if is_local(base):
        return canonical_url(posixpath.join(canonical_url(base), name))
    scheme, rest = split_scheme(base)
    bucket, _, path = rest.partition("/")
    return f"{scheme}://{bucket}{posixpath.normpath(posixpath.join('/' + path, name))}"


def index_again(source: str) -> str:
    """Return the shell command that rebuilds the index and the seek points of a source."""
    return f"ledgerbeam index --force {shlex.quote(source)}"
