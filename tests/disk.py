"""What a piece of the library asks of the disk, as it asks it, and a disk that refuses it."""

from __future__ import annotations

import contextlib
import os
import resource
from collections.abc import Callable, Iterator

import pytest


class Disk:
    """What asks the disk, in order: each synced path, with its size, and each new name."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seen: list[tuple[str, str, int]] = []
        for name in ("fsync", "link", "unlink", "rename", "replace"):
            monkeypatch.setattr(os, name, self._noted(name, getattr(os, name)))

    def _noted(self, name: str, real: Callable[..., None]) -> Callable[..., None]:
        def noted(*arguments: object) -> None:
            if name == "fsync":
                path = os.readlink(f"/proc/self/fd/{arguments[0]}")
                self.seen.append(("sync", path, os.fstat(int(str(arguments[0]))).st_size))
            else:
                self.seen.append((name, str(arguments[-1]), 0))
            real(*arguments)

        return noted

    def synced_folders(self) -> list[str]:
        return [path for what, path, _ in self.seen if what == "sync" and os.path.isdir(path)]


@contextlib.contextmanager
def no_larger_than(size: int) -> Iterator[None]:
    """Let the writes of this process to files fail beyond a size."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
