"""How many tasks a wave may still begin, in a file that its processes share: one limit for all of its workers."""

from __future__ import annotations

import fcntl
import os
from dataclasses import dataclass

from ledgerbeam.ledger.worker.run_folders import written

_DIGITS = 20


@dataclass(frozen=True)
class TaskBudget:
    """How many tasks may still be begun, in a file that the processes of a wave share.

    Its methods raise a `DiskFullError` or a `StorageError` where the file cannot be used.

    Attributes:
        path: Of the file, in the folder of the wave.
    """

    path: str

    @classmethod
    def below(cls, run_dir: str) -> TaskBudget:
        """Return that of a wave, by its folder."""
        return cls(os.path.join(run_dir, "task-budget"))

    def make(self, tasks: int) -> None:
        """Make the file."""
        with written(self.path), open(self.path, "x", encoding="ascii") as file:
            file.write(f"{tasks:{_DIGITS}d}")

    def left(self) -> int:
        """Return how many tasks may still be begun."""
        with written(self.path, "read"), open(self.path, encoding="ascii") as file:
            return int(file.read())

    def claim(self, tasks: int) -> int:
        """Take up to so many; return how many were left to take."""
        with written(self.path), open(self.path, "r+", encoding="ascii") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            left = int(file.read())
            granted = min(tasks, left)
            file.seek(0)
            file.write(f"{left - granted:{_DIGITS}d}")
        return granted
