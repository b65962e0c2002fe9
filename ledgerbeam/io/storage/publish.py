"""Write outputs atomically: a reader sees a whole output or none.

Local files are written to a hidden temporary file, synced, and renamed to the target. Objects are buffered and uploaded
with one request, or as a multipart upload whose completion makes them visible. A killed process leaves at most a hidden
`.lbtmp` file, which `remove_stale_temporaries` recognises by its released lock.
"""

from __future__ import annotations

import contextlib
import fcntl
import io
import itertools
import os
import re
import stat
import tempfile
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, BinaryIO, cast

from ledgerbeam._base.disk import make_folders, sync_folder
from ledgerbeam.errors import DiskFullError, LedgerbeamError, StorageError, UsageError
from ledgerbeam.io.storage.client import Options, call, filesystem
from ledgerbeam.io.storage.files import refuse_links
from ledgerbeam.io.storage.responses import is_full, storage_error
from ledgerbeam.io.storage.urls import canonical_url, is_local, split_scheme, store_of

if TYPE_CHECKING:
    from typing_extensions import Buffer


TEMPORARY_SUFFIX = ".lbtmp"  # suffix of the names of files that are still being written
_TEMPORARY = re.compile(r"\..+(\.\d+-\d+\.lbtmp)", re.DOTALL)
_BUFFER = 1024 * 1024
# Greatest number of bytes in one write. For longer writes Linux allocates larger pages. On a virtual machine that had
# returned them to the host, a file of 16 MB took eight times as long.
_ONE_WRITE = 256 * 1024
_ONE_PUT = 32 * 1024 * 1024  # held in memory up to this size, on disk beyond it
_COPIED = 4 * 1024 * 1024  # largest content that the client may copy if an upload without copies exists
_NAME_MAX = 255
_SYNCS = 16  # number of threads that sync files of a process, besides the threads of tasks, which sync one file each
_counter = itertools.count()


class _Together(threading.local):
    """Unpublished outputs of a thread in `publishing_together`: path, content, `not_before_ns`. None outside of it."""

    outputs: list[tuple[str, bytes, int]] | None = None


_held = _Together()
_syncing: dict[int, ThreadPoolExecutor] = {}  # by process ID: a forked process never uses its parent's threads


@contextlib.contextmanager
def publish(url: str, options: Options | None = None, *, not_before_ns: int = 0) -> Iterator[BinaryIO]:
    """Open an output that appears, complete and durable, when the body ends, and never if the body raises.

    Local: missing folders are created, and stay even if the body raises. The file is written under a temporary name in
    the folder of the target and fsynced. Then it is renamed to the target, and the folder is fsynced. Object stores:
    one put, or one completion of a multipart upload for outputs over 100 MB (GCS and Azure: over 32 MiB). An earlier
    output of the same name is replaced.

    Args:
        url: The output: a local path, or a URL of an object store.
        not_before_ns: The earliest modification time that a local output may have, in nanoseconds since 1970.

    Yields:
        A binary file to write to. It must not be closed or used after the body.

    Raises:
        DiskFullError: No space is left. Nothing was published, and an earlier output is intact.
        StorageError: No permission, or the disk or the store refused. Writes to the file raise these too. Other
            exceptions of the body are not changed.
        UsageError: The URL names a folder, or a store that cannot publish atomically.
    """
    url = _named(url)
    if is_local(url):
        output = _LocalOutput(url, not_before_ns)
        with _publishing([output]):
            yield output.file
    else:
        with _Spool(url) as spool:
            yield cast(BinaryIO, spool)
            _upload(url, cast(BinaryIO, spool), options)


def publish_bytes(url: str, data: bytes, options: Options | None = None, *, not_before_ns: int = 0) -> None:
    """Publish a whole output at once; see `publish` for the arguments, guarantees and errors."""
    if not is_local(target := _named(url)):
        if store_of(target).api == "s3" and len(data) > _COPIED:
            from ledgerbeam.io.storage.uploads import upload_bytes  # noqa: PLC0415 - needs the client of the store

            upload_bytes(target, data, options)
            return
        if len(data) <= _ONE_PUT:
            _put(target, data, options)  # avoids the copies of a file object
            return
    elif _held.outputs is not None:
        _held.outputs.append((target, data, not_before_ns))
        return
    with publish(url, options, not_before_ns=not_before_ns) as file:
        file.write(data)


def publish_all(
    outputs: Sequence[tuple[str, bytes]], options: Options | None = None, *, below: str | None = None
) -> None:
    """Publish whole outputs of one store. They appear in order, and all are durable at the end.

    The contents of local outputs are on the disk before the first one appears. They are written and synced together,
    which takes half the time of separate syncs.

    Args:
        below: Canonical URL of a folder that contains all outputs. No folder below it may be a link. None for no check.

    Raises:
        DiskFullError: No space is left; also the other errors of `publish`. Outputs before the one in error may have
            been published.
        UsageError: A folder between `below` and an output is a link. Nothing was published.
    """
    if below is not None:
        refuse_links(below, {os.path.dirname(url) for url, _ in outputs})
    if all(is_local(url) for url, _ in outputs):
        _publish_all_local([(canonical_url(url), data, 0) for url, data in outputs])
        return
    for url, data in outputs:
        publish_bytes(url, data, options)


@contextlib.contextmanager
def publishing_together() -> Iterator[None]:
    """Publish the local outputs of `publish_bytes` in this thread when the body ends, as `publish_all` does.

    Objects appear at once. If the body raises, no local output appears. The body cannot read its own outputs.
    """
    held = _held.outputs = list[tuple[str, bytes, int]]()
    try:
        yield
    finally:
        _held.outputs = None
    _publish_all_local(held)


def _named(url: str) -> str:
    """Return the canonical URL of an output; UsageError for a folder, or a store that cannot publish atomically."""
    if url.endswith("/"):
        raise UsageError(f"{url}: expected the name of a file, found a folder; add a name for the output")
    url = canonical_url(url)
    if not is_local(url):
        require_atomic(url)
    return url


def require_atomic(url: str) -> None:
    """Raise UsageError if the store of an output cannot publish in one step."""
    if store_of(url).api == "hub":
        raise UsageError(
            f"{url}: every file written to the Hub would be a commit; write to a local path or an object store, then "
            "send all files in one commit: ledgerbeam publish LEDGER --to hf://datasets/OWNER/NAME"
        )
    if not store_of(url).publishes_whole:
        raise UsageError(
            f"{url}: {split_scheme(url)[0]}:// cannot publish an output in one step, so a reader could see half of it; "
            "write to a local path or an object store"
        )


def _upload(url: str, spool: BinaryIO, options: Options | None) -> None:
    size = spool.seek(0, io.SEEK_END)
    spool.seek(0)
    if size <= _ONE_PUT:
        _put(url, spool.read(), options)
        return
    if store_of(url).api == "azure":
        from ledgerbeam.io.storage.uploads import upload_blocks  # noqa: PLC0415 - needs the client of the store

        upload_blocks(url, spool, options)
        return
    # The spool is a file without a name, so a kill leaves nothing behind.
    call(url, "write", filesystem(url, options).put_file, f"/dev/fd/{spool.fileno()}", url)


def _put(url: str, data: bytes, options: Options | None) -> None:
    call(url, "write", filesystem(url, options).pipe_file, url, data)


def _publish_all_local(outputs: Sequence[tuple[str, bytes, int]]) -> None:
    opened: list[_LocalOutput] = []
    with _publishing(opened):
        for path, data, not_before_ns in outputs:
            output = _LocalOutput(path, not_before_ns)
            opened.append(output)
            output.file.write(data)
            output.file.flush()  # in this order: no index is older than its shard


@contextlib.contextmanager
def _publishing(opened: Sequence[_LocalOutput]) -> Iterator[None]:
    """Publish open outputs in order when the body ends: sync all of them, rename them, sync their folders."""
    try:
        yield
        _sync_together(opened)
        for output in opened:
            output.rename()
    except BaseException:
        for output in opened:
            output.discard()
        raise
    with contextlib.ExitStack() as stack:
        for output in opened:
            stack.enter_context(output.file)
        for folder, path in {output.folder: output.path for output in opened}.items():
            with _write_errors(path, folder):
                sync_folder(folder)


def _sync_together(outputs: Sequence[_LocalOutput]) -> None:
    """Sync outputs at the same time, so that they wait for the disk together."""
    # Each process has its own threads, since threads do not survive a fork. If two threads create a pool, the later
    # pool is unused and has started no thread.
    pool = _syncing.get(os.getpid()) or _syncing.setdefault(os.getpid(), ThreadPoolExecutor(_SYNCS, "ledgerbeam-sync"))
    others = [pool.submit(output.sync) for output in outputs[1:]]
    try:
        for output in outputs[:1]:
            output.sync()
    finally:
        wait(others)  # no thread uses an output afterwards
    for other in others:
        other.result()


class _LocalOutput:
    """A file under its temporary name, locked while it is written."""

    def __init__(self, path: str, not_before_ns: int = 0) -> None:
        self.path = path
        self._not_before_ns = not_before_ns
        self.folder = os.path.dirname(path)
        _require_plain(path)
        with _write_errors(path, self.folder):
            make_folders(self.folder)
            self._temporary, descriptor = _open_temporary(path)
        self.file: BinaryIO = io.BufferedWriter(_Raw(path, descriptor), _BUFFER)

    def sync(self) -> None:
        with _write_errors(self.path, self.folder):
            self.file.flush()
            descriptor = self.file.fileno()
            if os.fstat(descriptor).st_mtime_ns < self._not_before_ns:
                os.utime(descriptor, ns=(self._not_before_ns, self._not_before_ns))
            os.fsync(descriptor)

    def rename(self) -> None:
        """Rename the file to its final path. This is durable once the folder is synced."""
        with _write_errors(self.path, self.folder):
            os.replace(self._temporary, self.path)

    def discard(self) -> None:
        """Remove the temporary file, if it was not renamed."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._temporary)
        # Closing writes the rest of the buffer, which may not fit on the disk either; the file is discarded anyway.
        with contextlib.suppress(OSError):
            self.file.close()


def _require_plain(path: str) -> None:
    """Raise UsageError for a device, a pipe or a socket: replacing /dev/null would harm every program."""
    with contextlib.suppress(OSError):  # it does not exist, or no permission: the next step reports it
        mode = os.stat(path).st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
            raise UsageError(f"{path}: it is not a regular file, so no output may replace it; give another name")


class _Raw(io.FileIO):
    """The unbuffered file of an output. Failed writes to it raise DiskFullError or StorageError."""

    def __init__(self, path: str, descriptor: int) -> None:
        super().__init__(descriptor, "wb")
        self._path = path

    def write(self, data: Buffer, /) -> int:
        with _write_errors(self._path, os.path.dirname(self._path)):
            return super().write(memoryview(data)[:_ONE_WRITE])


class _Spool(tempfile.SpooledTemporaryFile[bytes]):
    """A remote output before its upload: in memory, or in a file without a name if it is large."""

    def __init__(self, url: str) -> None:
        super().__init__(_ONE_PUT)
        self._url = url

    def __exit__(self, *_: object) -> None:
        # Closing writes the rest of the buffer, which may not fit. By now the content is sent or discarded.
        with contextlib.suppress(OSError):
            self.close()

    def write(self, data: Buffer, /) -> int:
        with self._errors():
            return super().write(data)

    def flush(self) -> None:
        with self._errors():
            super().flush()

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        with self._errors():  # writes the buffer
            return super().seek(offset, whence)

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        folder = tempfile.gettempdir()
        try:
            yield
        except OSError as error:
            if is_full(error):
                raise _full(self._url, folder) from error
            raise storage_error(error, folder, f"buffer the output {self._url}") from error


@contextlib.contextmanager
def _write_errors(url: str, place: str) -> Iterator[None]:
    """Translate an OSError of an operation on an output to DiskFullError or StorageError."""
    try:
        yield
    except LedgerbeamError:  # raised by `_Raw` when the buffer is written
        raise
    except OSError as error:
        if is_full(error):
            raise _full(url, place) from error
        if isinstance(error, IsADirectoryError):
            raise StorageError(f"{url}: cannot write, a folder of this name exists; choose another name") from error
        raise storage_error(error, url, "write") from error


def _full(url: str, place: str) -> DiskFullError:
    return DiskFullError(
        f"{url}: no space is left on the device of {place}. Nothing was published, and an earlier output "
        "of this name is intact; free some space and run again"
    )


def _open_temporary(path: str) -> tuple[str, int]:
    """Create and lock a hidden temporary file; create another one if it was removed as stale before it was locked."""
    folder, name = os.path.split(path)
    while True:
        temporary = os.path.join(folder, _temporary_name(name, f".{os.getpid()}-{next(_counter)}{TEMPORARY_SUFFIX}"))
        try:
            descriptor = os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)
        except FileExistsError:  # left by a former process with the same id, or by another host
            continue
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            if _still_names(temporary, descriptor):
                return temporary, descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def _still_names(path: str, descriptor: int) -> bool:
    try:
        return os.path.samestat(os.lstat(path), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def remove_stale_temporaries(root: str) -> list[str]:
    """Remove the temporary files that killed writers left below a folder; return their paths, sorted.

    The files of live writers stay: each process of this machine holds a lock on its file. Links are not followed, and
    folders that cannot be read are skipped. A remote root has no temporary files, and a missing one is empty.
    """
    if not is_local(root):
        return []
    walked = os.walk(canonical_url(root))
    paths = [os.path.join(folder, name) for folder, _, names in walked for name in names if _TEMPORARY.fullmatch(name)]
    return _remove_stale(paths)


def remove_stale_temporaries_of(url: str) -> list[str]:
    """Remove the temporary files that killed writers of one output left beside it; return their paths, sorted."""
    if not is_local(url):
        return []
    folder, output = os.path.split(canonical_url(url))
    paths = []
    with contextlib.suppress(OSError):  # the folder does not exist yet, or the next write reports the error
        for name in os.listdir(folder):
            found = _TEMPORARY.fullmatch(name)
            if found and name == _temporary_name(output, found[1]):
                paths.append(os.path.join(folder, name))
    return _remove_stale(paths)


def _temporary_name(output: str, tail: str) -> str:
    """Return the name of a temporary file: as much of the name of its output as fits, and a unique tail."""
    return os.fsdecode(b"." + os.fsencode(output)[: _NAME_MAX - 1 - len(tail)] + os.fsencode(tail))


def _remove_stale(paths: Sequence[str]) -> list[str]:
    removed = []
    for path in paths:
        if os.path.islink(path):
            continue
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if _still_names(path, descriptor):
                    os.unlink(path)
                    removed.append(path)
            finally:
                os.close(descriptor)
        except (FileNotFoundError, BlockingIOError):  # published or removed in the meantime, or its writer is alive
            continue
        except OSError as error:
            raise storage_error(error, path, "remove") from error
    return sorted(removed)
