"""A local file by its descriptor, for code whose inner loop cannot afford a reader's checks."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from ledgerbeam.errors import LedgerbeamError
from ledgerbeam.io.remote import storage_error

__all__ = ["open_local"]


@contextlib.contextmanager
def open_local(path: str) -> Iterator[int]:
    """Opens a local file to read.

    Args:
        path: Its canonical URL.

    Yields:
        A descriptor, closed after the body.

    Raises:
        SourceNotFoundError: There is no such file.
        StorageError: It cannot be opened, or a system call of the body failed.
    """
    try:
        try:
            descriptor = os.open(path, os.O_RDONLY)
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
