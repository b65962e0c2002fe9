"""What a store reports about a source: size, version and modification time."""

from __future__ import annotations

import contextlib
import datetime as dt
import os
import stat as stat_modes
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import Any

from ledgerbeam.errors import ChangedSourceError, LedgerbeamError, SourceNotFoundError, StorageError, UsageError
from ledgerbeam.io.storage.client import CONCURRENCY, Options, call, filesystem, storage_error
from ledgerbeam.io.storage.urls import canonical_url, is_local, store_of

_KINDS = (
    (stat_modes.S_ISFIFO, "a pipe"),
    (stat_modes.S_ISSOCK, "a socket"),
    (stat_modes.S_ISCHR, "a device"),
    (stat_modes.S_ISBLK, "a device"),
)

_DESCRIBED_AT_ONCE = 500  # of the Hub
_TIMES = ("LastModified", "last_modified", "mtime", "updated", "Last-Modified", "created")


@dataclass(frozen=True, slots=True)
class FileInfo:
    """A source as the store describes it.

    Attributes:
        url: Canonical URL (`canonical_url`).
        size: Length in bytes.
        version: What changes when the content does: generation, ETag or name of the content; where the store has
            none of them, the time of the last modification in nanoseconds since 1970, as decimal text, and of a
            remote store a hyphen and the size.
        modified_ns: Time of the last modification in nanoseconds since 1970 (object stores: to the second); 0
            when the store does not tell. Not part of the comparison.
        changed_ns: Of a local file the time of the last change of its inode, which nobody can set, in nanoseconds
            since 1970; 0 where it is not known. Not part of the comparison.
    """

    url: str
    size: int
    version: str
    modified_ns: int = field(default=0, compare=False)
    changed_ns: int = field(default=0, compare=False)


def stat(url: str, options: Options | None = None) -> FileInfo:
    """Ask the store about one source: one system call or one request.

    Args:
        url: A local path or a URL.
        options: Storage options.

    Returns:
        Its canonical URL, size, version and time of modification.

    Raises:
        SourceNotFoundError: There is no such file or object.
        UsageError: The name is a folder, a pipe or a device, or no file system is known for it.
        StorageError: No permission, or the store did not answer.
    """
    url = canonical_url(url)
    if not is_local(url):
        store = filesystem(url, options)
        # A former listing must not answer for the store; all of it, for adlfs does not find an entry by its URL.
        store.invalidate_cache()
        return info_of(url, call(url, "read", store.info, url))
    try:
        found = os.stat(url)
    except (OSError, ValueError) as error:
        raise storage_error(error, url, "read") from error
    require_regular(found, url)
    return FileInfo(url, found.st_size, str(found.st_mtime_ns), found.st_mtime_ns)


def stat_many(urls: Sequence[str], options: Options | None = None) -> list[FileInfo]:
    """Ask about many sources, remote ones up to `CONCURRENCY` at a time.

    Returns:
        One `FileInfo` for each URL, in the order asked.

    Raises:
        SourceNotFoundError: One of them does not exist; also UsageError and StorageError as in `stat`.
    """
    if len(urls) < 2 or all(map(is_local, urls)):
        return [stat(url, options) for url in urls]
    with ThreadPoolExecutor(CONCURRENCY, "ledgerbeam-stat") as pool:
        if all(store_of(url).api == "hub" for url in urls):
            runs = [urls[start : start + _DESCRIBED_AT_ONCE] for start in range(0, len(urls), _DESCRIBED_AT_ONCE)]
            return [info for run in pool.map(lambda run: _stat_hub(run, options), runs) for info in run]
        return list(pool.map(lambda url: stat(url, options), urls))


def _stat_hub(urls: Sequence[str], options: Options | None) -> list[FileInfo]:
    """Ask the Hub about many files: one request for each repository among them, for it counts requests."""
    urls = [canonical_url(url) for url in urls]
    found = call(urls[0], "read", filesystem(urls[0], options).describe, urls)
    for url, info in zip(urls, found, strict=True):
        if info is None:
            raise storage_error(FileNotFoundError(url), url, "read")
    return [info_of(url, info) for url, info in zip(urls, found, strict=True)]


def require_regular(found: os.stat_result, url: str) -> None:
    """Check that what has a name is a file: a pipe has no byte offsets, and opening one may wait for ever.

    Args:
        found: Its properties from the operating system.
        url: Its name, for the message.

    Raises:
        UsageError: It is a folder, a pipe, a socket or a device.
    """
    if stat_modes.S_ISDIR(found.st_mode):
        raise folder_error(url)
    if not stat_modes.S_ISREG(found.st_mode):
        kind = next((name for test, name in _KINDS if test(found.st_mode)), "no file")
        raise UsageError(f"{url} is {kind}; expected a file, which has byte offsets: write its content to one first")


def changed_error(listed: FileInfo, found: str) -> ChangedSourceError:
    """Return the error of a source that is no longer what was listed.

    Args:
        listed: What was listed.
        found: What is there now.
    """
    return ChangedSourceError(
        f"{listed.url}: changed since it was listed: expected {listed.size} bytes of version {listed.version}, found "
        f"{found}; run the job again to list it anew"
    )


def require_listed(listed: FileInfo, options: Options | None = None) -> FileInfo:
    """Ask the store about a source and check that it is what was listed: one system call or one request.

    Args:
        listed: What was listed.
        options: Storage options.

    Returns:
        What the store reports now, with the modification time.

    Raises:
        ChangedSourceError: It is another, no file any more, or gone; also StorageError.
    """
    try:
        found = stat(listed.url, options)
    except (SourceNotFoundError, UsageError) as error:
        raise changed_error(listed, f"none ({error})") from error
    if (found.size, found.version) != (listed.size, listed.version):
        raise changed_error(listed, f"{found.size} bytes of version {found.version}")
    return found


def folder_error(url: str) -> UsageError:
    """Return the error of a folder given where a source is needed."""
    return UsageError(f"{url} is a folder, not a source; name its files, for example '{url}/**/*.jsonl'")


def info_of(url: str, info: Mapping[str, Any]) -> FileInfo:
    """Read an fsspec `info` mapping.

    Args:
        url: The canonical URL of the object.
        info: What `info`, `ls` or `find` gave for it.

    Raises:
        UsageError: It describes a folder.
        StorageError: It reports no size, or neither a version nor a time, so a change could not be detected.
    """
    if info.get("type") == "directory":
        raise folder_error(url)
    if info.get("size") is None:
        raise StorageError(
            f"{url}: the store reports no size, as web servers do for files that they create or compress while "
            "sending; copy it to a store that reports sizes"
        )
    size = int(info["size"])
    modified_ns = _nanoseconds(next((info[key] for key in _TIMES if info.get(key)), None))
    version = next((str(info[key]) for key in ("generation", "ETag", "etag") if info.get(key)), content_name(info))
    if version is None:
        if not modified_ns:
            raise StorageError(
                f"{url}: the store reports neither ETag, generation nor modification time, so a change of the source "
                "could not be detected; copy it to a store that reports one of these"
            )
        version = f"{modified_ns}-{size}"  # the time of a web server has whole seconds
    return FileInfo(url, size, version.strip('"'), modified_ns)


def content_name(info: Mapping[str, Any]) -> str | None:
    """Return the name of the content of a file that the Hub lists: its SHA-256, Git's name or its Xet hash."""
    name = getattr(info.get("lfs"), "sha256", None) or info.get("blob_id") or info.get("xet_hash")
    return None if name is None else str(name)


def _date(text: str) -> dt.datetime | None:
    """Read a date as stores write them, or web servers; None if it is none."""
    for read in (dt.datetime.fromisoformat, parsedate_to_datetime):
        with contextlib.suppress(ValueError):
            return read(text)
    return None


def _nanoseconds(moment: object) -> int:
    if isinstance(moment, str):
        moment = _date(moment)
    if isinstance(moment, dt.datetime):
        since = moment.astimezone(dt.UTC) - dt.datetime.fromtimestamp(0, dt.UTC)
        return (since // dt.timedelta(microseconds=1)) * 1000
    # A store may report the same time once as a date and once as float seconds; both hold microseconds.
    return round(moment * 1e6) * 1000 if isinstance(moment, (int, float)) else 0


def open_descriptor(path: str, listed: FileInfo | None = None) -> int:
    """Open a local file to read, without waiting for anything.

    Args:
        path: Its canonical URL.
        listed: What it was when it was listed, to be checked on the open file.

    Returns:
        A descriptor.

    Raises:
        OSError: It cannot be opened; ValueError, when no file can have this name.
        ChangedSourceError: It is not what was listed.
        UsageError: It is a folder, a pipe or a device.
    """
    # The opening of a pipe would wait for its writer.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        found = os.fstat(descriptor)
        if listed is None:
            require_regular(found, path)
        elif (found.st_size, str(found.st_mtime_ns)) != (listed.size, listed.version):
            raise changed_error(listed, f"{found.st_size} bytes of version {found.st_mtime_ns}")
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


@contextlib.contextmanager
def open_local(path: str, listed: FileInfo | None = None) -> Iterator[int]:
    """Open a local file to read.

    Args:
        path: Its canonical URL.
        listed: As in `open_descriptor`.

    Yields:
        A descriptor, closed after the body.

    Raises:
        SourceNotFoundError: There is no such file.
        ChangedSourceError: It is not what was listed.
        UsageError: It is a folder, a pipe or a device.
        StorageError: It cannot be opened, or a system call of the body failed.
    """
    try:
        try:
            descriptor = open_descriptor(path, listed)
        except LedgerbeamError:
            raise
        except ValueError as error:
            raise storage_error(error, path, "read") from error
        try:
            yield descriptor
        finally:
            os.close(descriptor)
    except LedgerbeamError:
        raise
    except OSError as error:
        raise storage_error(error, path, "read") from error
