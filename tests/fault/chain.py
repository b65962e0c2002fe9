"""The chain of a job's transforms, element by element, in this process and without a runner."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ledgerbeam.io import JsonlFormat
from ledgerbeam.ledger import LedgerStore
from ledgerbeam.ledger.model.identity import source_ids
from ledgerbeam.ledger.selection import PendingSource, open_sources, with_progress
from ledgerbeam.ledger.worker.writer import close_shared_writers
from ledgerbeam.sources import FileSources, TaskLimits
from ledgerbeam.sources.listing import SourceListing
from ledgerbeam.transforms import MapRecords
from ledgerbeam.transforms.chain.base import LedgerHandle
from ledgerbeam.transforms.chain.commit import _Commit
from ledgerbeam.transforms.chain.plan import _Plan
from ledgerbeam.transforms.chain.process import _Process
from ledgerbeam.transforms.chain.read import _Read
from ledgerbeam.transforms.chain.write import _Write


@dataclass
class Chain:
    sources: str | Path
    outputs: str | Path
    function: str
    handle: LedgerHandle
    task_bytes: int | None = None
    task_records: int | None = None

    def __post_init__(self) -> None:
        sources = FileSources()
        self._plan = _Plan(self.handle, sources, TaskLimits(self.task_bytes, self.task_records))
        self._commit = _Commit(self.handle, has_downstream=False)
        self._steps: list[Any] = [
            _Read(sources, self.handle, "reject"),
            _Process(MapRecords(self.function, "jsonl", on_error="reject"), self.handle),
            _Write(str(self.outputs), JsonlFormat(), f"{self.sources}/", {}, self.handle),
        ]

    def open_sources(self, store: LedgerStore) -> Iterator[PendingSource]:
        """List the sources and yield those that owe work."""
        for page in SourceListing((f"{self.sources}/*.jsonl",), None, {}).pages():
            ids = source_ids(page.urls, page.sizes, page.versions)
            yield from with_progress(open_sources(ids, page.urls, page.sizes, page.versions, store), store)

    def plan(self, source: PendingSource) -> Iterator[Any]:
        """Yield the tasks of a source that are to be done."""
        yield from self._plan.process(source)
        yield from self._plan.finish_bundle()

    def do(self, task: Any) -> None:
        """Do a task, up to the group commit."""
        elements = [task]
        for step in self._steps:
            elements = [result for element in elements for result in step.process(element)]
        for element in elements:
            self._commit.process(element)

    def finish(self) -> None:
        """Commit what waits."""
        self._commit.finish_bundle()
        close_shared_writers()
