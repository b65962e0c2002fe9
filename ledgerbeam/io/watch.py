"""Local sources between two looks at them: what is read in between is what was listed, or an error.

An object store checks each request itself (`conditional`). A file can be overwritten while it is read, and its time put
back after that, so besides size and time the looks compare device, inode and the time of the last change of the inode,
which nobody can set.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from types import TracebackType
from typing import Self

from ledgerbeam.errors import DiskFullError, LedgerbeamError, LedgerError, StorageError, UsageError
from ledgerbeam.io.file_info import FileInfo, changed_error, require_regular
from ledgerbeam.io.remote import is_local, storage_error

__all__ = ["SourceWatch"]

Marks = tuple[tuple[int, int, int], ...]
"""Device, inode and time of the last change of each file."""


class SourceWatch:
    """Looks at local sources when it is made and whenever it is asked. A context manager, which looks at the end too.

    Args:
        listed: What was listed, with the time of the last change of a file where that is known from an earlier look;
            remote sources among it are passed over.

    Raises:
        ChangedSourceError: One of them is not what was listed.
        StorageError: No permission to look.
    """

    __slots__ = ("_listed", "marks")

    def __init__(self, listed: Iterable[FileInfo]) -> None:
        self._listed = [source for source in listed if is_local(source.url)]
        self.marks: Marks = self._look()

    def check(self) -> None:
        """Looks again.

        Raises:
            ChangedSourceError: A source is not what was listed, or has changed since the first look.
        """
        marks = self._look()
        for source, before, now in zip(self._listed, self.marks, marks, strict=True):
            if before != now:
                raise changed_error(
                    source,
                    f"them written, replaced or renamed while they were read (device, inode and time of change were "
                    f"{before}, are {now})",
                )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.check()
        elif isinstance(error, LedgerbeamError) and not isinstance(error, (DiskFullError, LedgerError)):
            try:  # half of a file that is being written is also damaged, and an index does not fit it
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
        raise changed_error(source, "a file of that size and time which was written, replaced or renamed since")
    return found.st_dev, found.st_ino, found.st_ctime_ns
