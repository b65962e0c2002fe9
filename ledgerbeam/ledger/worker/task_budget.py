"""The number of tasks that a wave may still start, in a file: one limit for all of its worker processes."""

from __future__ import annotations

import fcntl
import os
from dataclasses import dataclass

from ledgerbeam.ledger.worker.run_folders import file_errors

_DIGITS = 20


@dataclass(frozen=True)
class TaskBudget:
    """The number of tasks that may still be started, in a file that the processes of a wave share.

    Its methods raise DiskFullError or StorageError if the file cannot be used.

    Attributes:
        path: Path of the file, in the folder of the wave.
    """

    path: str

    @classmethod
    def below(cls, run_dir: str) -> TaskBudget:
        """Return the budget of a wave, from its folder."""
        return cls(os.path.join(run_dir, "task-budget"))

    def make(self, tasks: int) -> None:
        """Create the file."""
        with file_errors(self.path), open(self.path, "x", encoding="ascii") as file:
            file.write(f"{tasks:{_DIGITS}d}")

    def left(self) -> int:
        """Return the number of tasks that may still be started."""
        with file_errors(self.path, "read"), open(self.path, encoding="ascii") as file:
            return int(file.read())

    def claim(self, tasks: int) -> int:
        """Take at most `tasks` from the budget; return the number taken."""
        with file_errors(self.path), open(self.path, "r+", encoding="ascii") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            left = int(file.read())
            granted = min(tasks, left)
            file.seek(0)
            file.write(f"{left - granted:{_DIGITS}d}")
        return granted
