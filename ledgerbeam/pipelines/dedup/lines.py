"""Jobs of ``ledgerbeam dedup --lines``: the jobs of `exact`, for each line of a text instead of each record.

scatter   the hash of each line, and the ranges at which its record has it
decide    the ranges of repeated lines of each record
lines     the records without these ranges, or columns with the ranges
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ledgerbeam.io.conversion import conversion_of
from ledgerbeam.ledger import Task
from ledgerbeam.ledger.model.job import Json
from ledgerbeam.pipelines.dedup.exact import DecideJob, DedupJob, HashScatterJob
from ledgerbeam.pipelines.exchange.stages import DECIDE, stage_ledger
from ledgerbeam.sources.listed import ListedSources, NotedSources
from ledgerbeam.transforms.dedup.lines import CutRecords, FindLines, HashLines, WriteLines
from ledgerbeam.transforms.mapping.unchanged import KeepPlaced


class HashLinesJob(HashScatterJob):
    """Writes the hashes of the lines of each task."""

    command = "hash-lines"

    def shaping(self) -> dict[str, Json]:
        return {**super().shaping(), "moves": "lines"}

    def work(self) -> Callable[[Task], Any]:
        return HashLines(self.key.keys(self.files.base))


class FindLinesJob(DecideJob):
    """Finds repeated lines."""

    command = "find-lines"

    def scatter(self) -> HashLinesJob:
        return HashLinesJob(**self.scatter_values())

    def work(self) -> Callable[[Task], Any]:
        return FindLines()


@dataclass(frozen=True, kw_only=True)
class LinesJob(DedupJob):
    """Writes the records without their repeated lines, or columns with the ranges of these lines."""

    command = "lines"

    @property
    def reader(self) -> type[ListedSources]:
        return super().reader if self.mark else NotedSources

    def decide(self) -> DecideJob:
        return FindLinesJob(**self.decide_values(stage_ledger(self.ledger, DECIDE)))

    def parameters(self) -> dict[str, Json]:
        return {**super().parameters(), "lines": True}

    def work(self) -> Callable[[Task], Any]:
        if self.mark:
            return WriteLines()
        return CutRecords(self.key.fields[0], KeepPlaced(conversion_of(self.to), self.output_format))
