"""Local files mapped into memory, for as long as anything looks at them."""

from __future__ import annotations

import mmap
import os

from ledgerbeam.io.local import open_local

__all__ = ["map_file"]


def map_file(path: str) -> memoryview:
    """Maps all of a local file to read.

    The map goes when the last view of it does, so no array outlives its memory. Processes that map the same file share
    it.

    Args:
        path: Its canonical URL.

    Returns:
        Its bytes, read-only.

    Raises:
        SourceNotFoundError: There is no such file; also StorageError.
    """
    with open_local(path) as descriptor:
        if os.fstat(descriptor).st_size == 0:
            return memoryview(b"")  # nothing cannot be mapped
        return memoryview(mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ))
