"""Files below a folder, with their sizes; and folders of objects that are read and written as a whole.

Nearly all objects are created once and never changed.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import re
import stat
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from itertools import compress, groupby, islice
from typing import Any, NamedTuple

from ledgerbeam._base.disk import make_folders, sync_folder
from ledgerbeam.errors import SourceNotFoundError
from ledgerbeam.io import native
from ledgerbeam.io.storage.client import Options, call, filesystem
from ledgerbeam.io.storage.fetch import fetch_many
from ledgerbeam.io.storage.publish import TEMPORARY_SUFFIX, publish
from ledgerbeam.io.storage.responses import http_status, storage_error
from ledgerbeam.io.storage.urls import canonical_url, is_local, split_scheme, store_of

_PRECONDITION_FAILED = 412
_CONFLICT = 409  # another writer is creating the same name
_BAD_REQUEST = 400
_REFUSALS = {"AccessDenied": 403, "InternalError": 500, "ServiceUnavailable": 503, "SlowDown": 503}
_READ_AT_ONCE = 64
_PAGE = 10_000
_ONE_PUT = 32 * 1024 * 1024
_NO_MARKUP = re.compile("[\0-\x1f\x7f-\x9f\ufffe\uffff]")  # characters that XML cannot represent, or changes


class ObjectFolder:
    """A folder of objects, which are read and written as a whole. Picklable, thread-safe and fork-safe."""

    def __init__(self, url: str, options: Options | None = None) -> None:
        canonical = canonical_url(url)
        self._url = canonical.rstrip("/")
        self._options = dict(options or {})
        self._kind = store_of(canonical)
        self._local = is_local(canonical)

    def __repr__(self) -> str:
        return f"ObjectFolder({self._url!r})"

    @property
    def url(self) -> str:
        """Canonical URL of the folder, without a trailing slash: empty for the root of the file system."""
        return self._url

    @property
    def exclusive(self) -> bool:
        """Whether exactly one of several concurrent creators of a name succeeds."""
        return self._kind.creates_exclusively

    @property
    def _store(self) -> Any:
        return filesystem(self._url, self._options)

    def names(self, folder: str) -> list[str]:
        """Return the names of all objects below a folder, relative to the root, sorted."""
        root = f"{self._url}/{folder}".rstrip("/")
        if not self._local:
            below = f"{folder}/" if folder else ""
            with contextlib.suppress(SourceNotFoundError):  # there is no bucket
                pages = list_files(root, self._options)
                return sorted(below + name for page in pages for name in page.names if not name.endswith("/"))
            return []
        found: list[str] = []
        for here, _, files in os.walk(root or "/", onerror=_raise_unless_gone):
            found += [os.path.join(here, name) for name in files if not name.endswith(TEMPORARY_SUFFIX)]
        return sorted(os.path.relpath(path, self._url or "/") for path in found)

    def read(self, names: Sequence[str]) -> list[bytes | None]:
        """Return whole objects in the order of `names`, None for those that do not exist."""
        if self._local:
            return [self._read_local(f"{self._url}/{name}") for name in names]
        found: list[bytes | None] = []
        for start in range(0, len(names), _READ_AT_ONCE):
            found += self._fetch([f"{self._url}/{name}" for name in names[start : start + _READ_AT_ONCE]])
        return found

    def _read_local(self, path: str) -> bytes | None:
        try:
            with open(path, "rb") as file:
                return file.read()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise storage_error(error, path, "read") from error

    def _fetch(self, urls: list[str]) -> list[bytes | None]:
        nothing = [None] * len(urls)
        try:
            return list(fetch_many(self._store, urls, nothing, nothing, None, **self._kind.whole_read))
        except FileNotFoundError:
            return [None] if len(urls) == 1 else [data for url in urls for data in self._fetch([url])]

    def create(self, name: str, data: bytes) -> bool:
        """Create an object, whole and durable when this returns; return False if it exists already with other content.

        If the store cannot create exclusively (see `exclusive`), a concurrent creator may replace it unnoticed.
        """
        return self.create_new(name, data) or self.read([name]) == [data]

    def create_new(self, name: str, data: bytes) -> bool:
        """Create an object unless it exists. Return whether it was created; False also if the response was lost."""
        url = f"{self._url}/{name}"
        if not self._local:
            return call(url, "write", self._put, url, data)
        folder, is_new = os.path.dirname(url), False
        try:
            make_folders(folder)
            descriptor, aside = tempfile.mkstemp(suffix=TEMPORARY_SUFFIX, prefix=".", dir=folder)
            try:
                with open(descriptor, "wb") as file:
                    file.write(data)
                    file.flush()
                    os.fsync(descriptor)
                with contextlib.suppress(FileExistsError):
                    os.link(aside, url)
                    is_new = True
            finally:
                os.unlink(aside)
            sync_folder(folder)  # also of an existing name: an earlier attempt may have failed before that
        except OSError as error:
            raise storage_error(error, url, "write") from error
        return is_new

    def replace(self, name: str, data: bytes) -> None:
        """Create or replace an object atomically."""
        url = f"{self._url}/{name}"
        if not self._local:
            call(url, "write", self._store.pipe_file, url, data)
            return
        with publish(url) as file:
            file.write(data)

    def _put(self, url: str, data: bytes) -> bool:
        store = self._store
        if not self.exclusive:
            if store.exists(url):
                return False
            store.pipe_file(url, data)
            return True
        try:
            if len(data) > _ONE_PUT and self._kind.api == "azure":
                from ledgerbeam.io.storage.uploads import upload_blocks  # noqa: PLC0415 - needs the client of the store

                upload_blocks(url, io.BytesIO(data), self._options, exclusive=True)
            else:
                store.pipe_file(url, data, mode="create")
        except FileExistsError:
            return False
        except OSError as error:
            if (status := http_status(error)) == _CONFLICT:
                # Raised to be retried; `from None`, since the status of the response is otherwise final.
                raise ConnectionError(f"{url}: is being created by another writer ({error})") from None
            if status == _PRECONDITION_FAILED or error.errno == errno.EINVAL:
                return False
            raise
        return True

    def exists(self, name: str) -> bool:
        """Return whether an object exists: one request for one byte, which bypasses the caches of the client."""
        url = f"{self._url}/{name}"
        if self._local:
            return os.path.exists(url)
        try:
            call(url, "read", self._store.cat_file, url, start=0, end=1)
        except FileNotFoundError:
            return False
        return True

    def delete(self, names: Iterable[str]) -> None:
        """Delete objects durably; those that do not exist are ignored."""
        urls = [f"{self._url}/{name}" for name in names]
        if not self._local:
            self._delete_remote(urls)
            return
        for folder, paths in groupby(sorted(urls), key=os.path.dirname):
            try:
                for path in paths:
                    with contextlib.suppress(FileNotFoundError):
                        os.unlink(path)
                with contextlib.suppress(FileNotFoundError):  # another launcher has removed the empty folder
                    sync_folder(folder)
            except OSError as error:
                raise storage_error(error, folder, "delete") from error

    def _delete_remote(self, urls: list[str]) -> None:
        if not urls:
            return
        store, at_once = self._store, self._kind.deletes_many
        if at_once > 1:  # S3 takes the keys of one bucket as XML
            keyed = [url for url in urls if not _NO_MARKUP.search(url)]
            for start in range(0, len(keyed), at_once):
                some = keyed[start : start + at_once]
                call(some[0], "delete", _delete_keys, store, some)
            urls = [url for url in urls if _NO_MARKUP.search(url)]
        for url in urls:
            try:
                call(url, "delete", store.rm_file, url)
            except FileNotFoundError:
                continue


def _raise_unless_gone(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError | NotADirectoryError):
        raise storage_error(error, str(error.filename), "list") from error


class FilePage(NamedTuple):
    """Files below a folder, as two columns of equal length: paths relative to the folder, and sizes in bytes."""

    names: list[str]
    sizes: list[int]


def list_files(
    folder: str, options: Options | None = None, *, beginning: str = "", recursive: bool = True
) -> Iterator[FilePage]:
    """List every file below a folder, including hidden files. A missing folder has no files.

    Links to folders are not followed. A file that is removed during the listing may be listed or not. On an object
    store, names that do not start with `beginning` may be skipped, and subfolders are skipped unless `recursive`.
    """
    url = canonical_url(folder).rstrip("/") or "/"
    if is_local(url):
        return _list_local(url)
    if store_of(url).api == "s3":
        return _list_s3(url, options, beginning, recursive=recursive)
    return _list_store(url, options, recursive=recursive)


def _list_local(root: str) -> Iterator[FilePage]:
    waiting = [""]
    while waiting:
        below = waiting.pop()
        folder = os.path.join(root, below)
        try:
            with os.scandir(folder) as entries:
                while found := list(islice(entries, _PAGE)):
                    names = [entry.name for entry in found if not entry.is_dir()]
                    waiting += [f"{below}{entry.name}/" for entry in found if entry.is_dir(follow_symlinks=False)]
                    sizes = sizes_of(folder, names)
                    if -1 in sizes:  # files that were removed meanwhile, and broken links
                        there = [size >= 0 for size in sizes]
                        names, sizes = list(compress(names, there)), list(compress(sizes, there))
                    yield FilePage([below + name for name in names], sizes)
        except (FileNotFoundError, NotADirectoryError):
            continue  # it does not exist, or was removed meanwhile
        except OSError as error:
            raise storage_error(error, folder, "list") from error


def sizes_of(folder: str, names: list[str]) -> list[int]:
    """Return the sizes of local files in bytes; -1 for a name without a file. Names may also be absolute paths."""
    found = native.compiled.stat_files(folder, names)[0] if native.compiled is not None else []
    return found + [_size(os.path.join(folder, name)) for name in names[len(found) :]]


def _size(path: str) -> int:
    try:
        found = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return -1
    except OSError as error:
        raise storage_error(error, path, "read") from error
    return -1 if stat.S_ISDIR(found.st_mode) else found.st_size


def _list_s3(url: str, options: Options | None, beginning: str, *, recursive: bool) -> Iterator[FilePage]:
    key = split_scheme(url)[1].partition("/")[2]
    prefix = f"{key}/" if key else ""
    for page in s3_pages(url, prefix + beginning, options, recursive=recursive):
        items = [item for item in page if item["Key"] != prefix]
        yield FilePage([item["Key"][len(prefix) :] for item in items], [item["Size"] for item in items])


def _list_store(url: str, options: Options | None, *, recursive: bool) -> Iterator[FilePage]:
    store = filesystem(url, options)
    store.invalidate_cache()
    try:
        found = call(url, "list", store.find if recursive else store.ls, url, detail=True)
    except SourceNotFoundError:
        return
    start = len(store._strip_protocol(url).rstrip("/")) + 1  # noqa: SLF001 - fsspec offers no public name for it
    infos = found.values() if recursive else found
    files = [info for info in infos if info["type"] != "directory" and len(info["name"]) > start]
    for begin in range(0, len(files), _PAGE):
        page = files[begin : begin + _PAGE]
        yield FilePage([info["name"][start:] for info in page], [int(info["size"] or 0) for info in page])


def s3_pages(
    url: str, prefix: str, options: Options | None = None, *, recursive: bool = True
) -> Iterator[list[dict[str, Any]]]:
    """List objects as S3 describes them, one request for each page. SourceNotFoundError if there is no bucket."""
    store = filesystem(url, options)
    bucket = split_scheme(url)[1].partition("/")[0]
    request = {"Bucket": bucket, "Prefix": prefix, **({} if recursive else {"Delimiter": "/"})}
    while True:
        try:
            answer = call(url, "list", store.call_s3, "list_objects_v2", **request)
        except SourceNotFoundError as error:
            raise SourceNotFoundError(f"{url}: there is no bucket {bucket}; check its name") from error
        yield answer.get("Contents", [])
        if not answer.get("IsTruncated"):
            return
        request["ContinuationToken"] = answer["NextContinuationToken"]


def _delete_keys(store: Any, urls: Sequence[str]) -> None:
    """Delete objects of an S3 bucket with one request. Keys are literal, also with ``*``, ``?`` or ``[``.

    `rm` of s3fs interprets names as patterns, and ignores the objects that the store refused to delete.
    """
    names = [split_scheme(url)[1].partition("/") for url in urls]
    chosen = {"Objects": [{"Key": key} for _, _, key in names], "Quiet": True}
    for error in store.call_s3("delete_objects", Bucket=names[0][0], Delete=chosen).get("Errors", ()):
        if error.get("Code") != "NoSuchKey":
            raise _RefusedError(error)


class _RefusedError(OSError):
    """Error of S3 for an object that it did not delete, in the form of an error response of botocore."""

    def __init__(self, error: dict[str, Any]) -> None:
        super().__init__(f"{error.get('Key')}: {error.get('Code')}: {error.get('Message')}")
        status = _REFUSALS.get(str(error.get("Code")), _BAD_REQUEST)
        self.response = {"Error": error, "ResponseMetadata": {"HTTPStatusCode": status}}
