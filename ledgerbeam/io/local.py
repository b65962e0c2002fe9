"""A local file by its descriptor, for code whose inner loop cannot afford a reader's checks."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from ledgerbeam.errors import LedgerbeamError
from ledgerbeam.io.file_info import FileInfo, changed_error, require_regular
from ledgerbeam.io.remote import storage_error

__all__ = ["open_descriptor", "open_local"]


def open_descriptor(path: str, listed: FileInfo | None = None) -> int:
    """Opens a local file to read, without waiting for anything.

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
    """Opens a local file to read.

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
