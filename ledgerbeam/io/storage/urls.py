"""URLs of files and objects: schemes, their canonical form, joining."""

from __future__ import annotations

import os
import posixpath
import re
import shlex

from ledgerbeam.errors import UsageError
from ledgerbeam.io.storage.stores import Store, canonical_scheme, is_remote_scheme, store_named

_UNUSUAL = re.compile(r"//|/\.|/\Z")
"""Parts that show that an absolute path may not be canonical."""


def split_scheme(url: str) -> tuple[str, str]:
    """Split a URL into its canonical scheme and the rest.

    Args:
        url: A local path, a `file://` URL or any `scheme://...` URL.

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
        if colon and is_remote_scheme(lost):
            raise UsageError(
                f"{url}: expected {lost}://, found fewer slashes; give the URL as text, since pathlib removes a slash. "
                f"A local file of that name is ./{url}"
            )
        path = url.removeprefix("file:")
        if path == "~" or path.startswith("~/"):
            raise UsageError(
                f"{url}: expected a path, found ~, which a shell expands unless it is quoted; give the path of the "
                f"home folder. A folder of that name is ./{path}"
            )
        return "file", path
    if "::" in scheme:
        raise UsageError(f"{url}: chained URLs are not supported; give the URL of the object itself, without `::`")
    if "/" in scheme:  # a local path that contains `://`
        return "file", url
    return canonical_scheme(scheme), rest


def canonical_url(url: str) -> str:
    """Return the canonical name of a source.

    Args:
        url: A local path, absolute or relative to the working folder, or a URL.

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
    """Return whether a URL names a file of this machine.

    Raises:
        UsageError: The name is empty, a `pipe:` command or a chained URL.
    """
    return split_scheme(url)[0] == "file"


def store_of(url: str) -> Store:
    """Return the capabilities of the store of a URL.

    Raises:
        UsageError: The name is empty, a `pipe:` command or a chained URL.
    """
    return store_named(split_scheme(url)[0])


def join_url(base: str, name: str) -> str:
    """Resolve a path or URL against a folder as wids does.

    Args:
        base: A folder.
        name: A URL, which is returned; an absolute path in the bucket of `base`; or a path relative to `base`.

    Returns:
        A canonical URL.
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
