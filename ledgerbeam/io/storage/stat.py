"""Properties of sources as their store reports them: size, version, modification time. Checks for changes."""

from __future__ import annotations

import contextlib
import datetime as dt
import os
import stat as stat_modes
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from types import TracebackType
from typing import Any, Self

from ledgerbeam.errors import (
    ChangedSourceError,
    DiskFullError,
    LedgerbeamError,
    LedgerError,
    SourceNotFoundError,
    StorageError,
    UsageError,
)
from ledgerbeam.io.storage.client import CONCURRENCY, Options, ask_each, call, filesystem, map_ahead
from ledgerbeam.io.storage.responses import storage_error
from ledgerbeam.io.storage.urls import canonical_url, is_local, store_of

_KINDS = (
    (stat_modes.S_ISFIFO, "a pipe"),
    (stat_modes.S_ISSOCK, "a socket"),
    (stat_modes.S_ISCHR, "a device"),
    (stat_modes.S_ISBLK, "a device"),
)

_DESCRIBED_AT_ONCE = 500  # files in one request to the Hub
_TIMES = ("LastModified", "last_modified", "mtime", "updated", "Last-Modified", "created")


@dataclass(frozen=True, slots=True)
class FileInfo:
    """A source as the store describes it.

    Attributes:
        url: Canonical URL (`canonical_url`).
        size: Length in bytes.
        version: Changes when the content changes: the generation, ETag or hash of the content. If the store has none of
            them, the time of the last modification in nanoseconds since 1970 as decimal text, for a remote store
            followed by a hyphen and the size.
        modified_ns: Time of the last modification in nanoseconds since 1970 (object stores: whole seconds); 0 if the
            store does not report it. Not part of the comparison.
        changed_ns: For a local file the time of the last change of its inode (`st_ctime_ns`), which no program can set;
            0 if not known. Not part of the comparison.
    """

    url: str
    size: int
    version: str
    modified_ns: int = field(default=0, compare=False)
    changed_ns: int = field(default=0, compare=False)


def stat(url: str, options: Options | None = None) -> FileInfo:
    """Return the properties of a source: one system call or one request.

    Raises:
        SourceNotFoundError: The file or object does not exist; also StorageError.
        UsageError: The name is a folder, a pipe or a device, or fsspec has no store for it.
    """
    url = canonical_url(url)
    if not is_local(url):
        store = filesystem(url, options)
        # No cached listing may be used. The whole cache is dropped, since adlfs does not find an entry by its URL.
        store.invalidate_cache()
        return info_of(url, call(url, "read", store.info, url))
    try:
        found = os.stat(url)
    except (OSError, ValueError) as error:
        raise storage_error(error, url, "read") from error
    require_regular(found, url)
    return FileInfo(url, found.st_size, str(found.st_mtime_ns), found.st_mtime_ns)


def stat_object(url: str, options: Options | None = None) -> FileInfo:
    """Return the properties of an object that often does not exist, such as an index: always one request.

    On S3, `stat` makes a second request for a missing object, since a folder may have the name.
    """
    url = canonical_url(url)
    if store_of(url).api != "s3":
        return stat(url, options)
    store = filesystem(url, options)
    bucket, key, _ = store.split_path(url)
    found = call(url, "read", store.call_s3, "head_object", store.kwargs, Bucket=bucket, Key=key)
    return info_of(url, {**found, "size": found["ContentLength"]})


def stat_many(urls: Sequence[str], options: Options | None = None) -> list[FileInfo]:
    """Return the properties of many sources as `stat` does, in order, with up to `CONCURRENCY` requests at once."""
    if len(urls) > 1 and all(store_of(url).api == "hub" for url in urls):
        names = [canonical_url(url) for url in urls]
        runs = [names[start : start + _DESCRIBED_AT_ONCE] for start in range(0, len(names), _DESCRIBED_AT_ONCE)]
        describe = filesystem(names[0], options).describe  # one request for each repository: the Hub limits requests
        described = map_ahead(lambda run: call(run[0], "read", describe, run), runs, CONCURRENCY)
        infos = list(chain.from_iterable(described))
        for url, info in zip(names, infos, strict=True):
            if info is None:
                raise storage_error(FileNotFoundError(url), url, "read")
        return list(map(info_of, names, infos))
    return ask_each(lambda url: stat(url, options), urls)


def require_regular(found: os.stat_result, url: str) -> None:
    """Raise UsageError unless a path is a regular file: a pipe has no byte offsets, and opening it may block."""
    if stat_modes.S_ISDIR(found.st_mode):
        raise folder_error(url)
    if not stat_modes.S_ISREG(found.st_mode):
        kind = next((name for test, name in _KINDS if test(found.st_mode)), "no file")
        raise UsageError(f"{url}: expected a file with byte offsets, found {kind}; write its content to a file first")


def changed_error(listed: FileInfo, found: str) -> ChangedSourceError:
    """Return the error for a source that changed since it was listed."""
    return ChangedSourceError(
        f"{listed.url}: changed since it was listed: expected {listed.size} bytes of version {listed.version}, found "
        f"{found}; run the job again, or open the source again, to list it again"
    )


def require_listed(listed: FileInfo, options: Options | None = None) -> FileInfo:
    """Return the properties of a source now. ChangedSourceError if it is gone, or changed since it was listed."""
    try:
        found = stat(listed.url, options)
    except (SourceNotFoundError, UsageError) as error:
        raise changed_error(listed, f"none ({error})") from error
    if (found.size, found.version) != (listed.size, listed.version):
        raise changed_error(listed, f"{found.size} bytes of version {found.version}")
    return found


class FolderGivenError(UsageError):
    """A folder was given in place of a file."""

    folder: str = ""


def folder_error(url: str) -> FolderGivenError:
    """Return the error for a folder in place of a file, as a source or as an output."""
    error = FolderGivenError(f"{url}: expected a file, found a folder; name one of its files")
    error.folder = url
    return error


def info_of(url: str, info: Mapping[str, Any]) -> FileInfo:
    """Convert an fsspec `info` mapping.

    Raises:
        StorageError: The store reports no size, or neither a version nor a time, so a change could not be detected.
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
        version = f"{modified_ns}-{size}"  # a web server reports whole seconds
    return FileInfo(url, size, version.strip('"'), modified_ns)


def content_name(info: Mapping[str, Any]) -> str | None:
    """Return the hash of the content of a file that the Hub lists: SHA-256, Git hash or Xet hash."""
    name = getattr(info.get("lfs"), "sha256", None) or info.get("blob_id") or info.get("xet_hash")
    return None if name is None else str(name)


def _date(text: str) -> dt.datetime | None:
    """Parse a date in ISO 8601 or as web servers write it; None if it is not a date."""
    from email.utils import parsedate_to_datetime  # noqa: PLC0415 - of servers of the web alone

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
    # A store may report the same time as a date or as float seconds; both are exact to microseconds.
    return round(moment * 1e6) * 1000 if isinstance(moment, (int, float)) else 0


def open_descriptor(path: str, listed: FileInfo | None = None) -> int:
    """Open a local file for reading, without blocking.

    Raises:
        OSError: The file cannot be opened; also ValueError, if no file can have this name.
        ChangedSourceError: The file changed since it was listed.
        UsageError: The path is a folder, a pipe or a device.
    """
    # Opening a pipe would block until it has a writer.
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
    """Open a local file for reading, and close it after the body.

    Raises:
        ChangedSourceError: The file changed since it was listed; also the errors of `stat`.
        StorageError: The file cannot be opened, or a system call in the body failed.
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


Marks = tuple[tuple[int, int, int], ...]  # device, inode and time of the last change of each file


class SourceWatch:
    """Checks that local sources do not change: when it is created, in `check`, and at the end of its `with` block.

    Args:
        listed: The listed properties of the sources, with `changed_ns` if an earlier check has recorded it. Remote
            sources are ignored.

    Raises:
        ChangedSourceError: A source changed since it was listed.
        StorageError: The properties of a source cannot be read.
    """

    __slots__ = ("_listed", "marks")

    def __init__(self, listed: Iterable[FileInfo]) -> None:
        self._listed = [source for source in listed if is_local(source.url)]
        self.marks: Marks = self._look()

    def check(self) -> None:
        """Raise ChangedSourceError if a source changed since it was listed, or since the first check."""
        for source, before, now in zip(self._listed, self.marks, self._look(), strict=True):
            if before != now:
                raise changed_error(
                    source,
                    f"a file that was written, replaced or renamed while it was read (device, inode and time of change "
                    f"were {before}, are {now})",
                )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.check()
        elif isinstance(error, LedgerbeamError) and not isinstance(error, (DiskFullError, LedgerError)):
            try:  # a half-written file looks damaged and does not fit its index, so report the change instead
                self.check()
            except StorageError as changed:
                raise changed from error

    def _look(self) -> Marks:
        return tuple(map(_mark, self._listed))


def _mark(source: FileInfo) -> tuple[int, int, int]:
    try:
        found = os.stat(source.url)
        require_regular(found, source.url)
    except (FileNotFoundError, NotADirectoryError, UsageError) as error:
        raise changed_error(source, f"none ({error})") from error
    except OSError as error:
        raise storage_error(error, source.url, "read") from error
    if (found.st_size, str(found.st_mtime_ns)) != (source.size, source.version):
        raise changed_error(source, f"{found.st_size} bytes of version {found.st_mtime_ns}")
    if source.changed_ns not in (0, found.st_ctime_ns):
        raise changed_error(source, "a file of the same size and time, which was written, replaced or renamed since")
    return found.st_dev, found.st_ino, found.st_ctime_ns
