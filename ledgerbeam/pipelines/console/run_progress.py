"""Progress of a run: its stage, the share of work that is done, and the time left."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rich.filesize import decimal

Stage = Literal["listing", "starting workers", "indexing", "working", "waiting"]

_MOST_SHARE = 0.99  # maximum share while a source is open, because the number of tasks is an estimate


@dataclass(frozen=True)
class RunProgress:
    """Progress of a run."""

    stage: Stage = "listing"  # current stage. Indexing is all work before the first task: reading or building indexes
    sources_done: int = 0  # number of complete sources, including sources complete before this run
    sources: int = 0
    skipped: int = 0  # number of sources that were complete before this run
    is_listed: bool = False
    tasks: int = 0  # number of tasks recorded since the start of this run, by any run
    bytes: int = 0  # bytes of the outputs of these tasks; for tasks that index, bytes that they read
    expected: int = 0  # expected number of tasks of the open sources, from their sizes
    seconds: float = 0.0  # seconds since the first workers started
    elsewhere: str = ""  # work of other runs that this run waits for, in words
    failed: int = 0
    least: float = 0.0  # share that was shown last. The next share is not smaller
    part: str = ""  # stage of a job of several stages, in words; empty for a job of one stage

    @property
    def share(self) -> float | None:
        """Share of this run's work that is done, never below `least`, the last shown share; None during the listing."""
        found = self._estimated_share
        return None if found is None else max(found, self.least)

    @property
    def title(self) -> str:
        """Stage of a job of several stages, then stage of the run such as `listing`, in words."""
        return f"{self.part}, {self.stage}" if self.part and self.stage != "working" else self.part or self.stage

    @property
    def _estimated_share(self) -> float | None:
        """Share of tasks that are done. If the estimated number of tasks is too low, the share of complete sources."""
        if not self.is_listed or not self.expected:
            return None
        left, done = self.sources - self.skipped, self.sources_done - self.skipped
        if done >= left:
            return 1.0
        by_sources, by_tasks = max(done / left, 0.0), self.tasks / self.expected
        share = by_tasks if by_tasks < _MOST_SHARE else max(by_sources, 1 / (2 * left))
        return min(share, _MOST_SHARE)

    @property
    def seconds_left(self) -> float | None:
        """Estimated seconds left, at the rate so far; None before the first task is done."""
        share = self._estimated_share
        return self.seconds * (1 - share) / share if share and share < 1 and self.tasks else None

    def text(self) -> str:
        """Return the progress in words, without the stage."""
        if not self.sources:
            return ""  # Beam runners do their own listing
        sources = f"{self.sources_done:,} of {count(self.sources, 'source')}"
        if self.stage == "listing" and not self.tasks:
            return count(self.sources, "source")
        if self.elsewhere:
            return f"{self.elsewhere}, {sources}"
        # A narrow terminal cuts off the end, so the most important parts are first.
        parts = [] if self.share is None else [f"{100 * self.share:.0f} %"]
        if self.seconds_left is not None:
            parts.append(f"{duration(self.seconds_left)} left")
        if self.failed:
            parts.append(f"{self.failed:,} failed")
        about = f"{self.tasks:,} of {'about ' if self.tasks <= self.expected else 'over '}{self.expected:,} tasks"
        parts += [about if self.is_listed else count(self.tasks, "task"), sources]
        if self.tasks:
            seconds = max(self.seconds, 0.001)
            parts += [f"{self.tasks / seconds:,.1f} tasks/s", f"{decimal(int(self.bytes / seconds))}/s"]
        return ", ".join(parts)


def count(number: int, noun: str) -> str:
    """Return ``1 task`` or ``1,234 tasks``."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def duration(seconds: float) -> str:
    """Return ``3.2 s``, ``25 s``, ``4 min 10 s``, ``5 h 3 min`` or ``2 d 7 h``."""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    for size, unit, small, small_unit in ((86_400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= size:
            rest = whole % size // small
            return f"{whole // size} {unit}" + (f" {rest} {small_unit}" if rest else "")
    return f"{whole} s"
