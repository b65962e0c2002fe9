"""`MatchSources` and `SkipCompleted`: list the sources that match patterns and keep those with open work.

Both take pages of thousands of sources, so a finished source never becomes a Beam element of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import apache_beam as beam
from apache_beam.metrics.metric import Metrics

from ledgerbeam._base.process import library_logger
from ledgerbeam._base.redaction import printable
from ledgerbeam.errors import UsageError
from ledgerbeam.io.listing.left_out import LeftOut
from ledgerbeam.io.listing.pages import Page
from ledgerbeam.io.listing.patterns import canonical_pattern
from ledgerbeam.io.storage.urls import canonical_url
from ledgerbeam.io.tar.grouping import Grouping
from ledgerbeam.ledger import Source
from ledgerbeam.ledger.model.identity import source_ids
from ledgerbeam.ledger.selection import PendingSource, open_packs, open_sources, with_progress
from ledgerbeam.transforms.chain.base import ChainTransform, ChainValues, Listing, Packer, size_of
from ledgerbeam.transforms.chain.worker import LedgerHandle, fatal_errors

_log = library_logger(__name__)


class MatchSources(ChainTransform):
    """List sources in pages, at the start of the chain: ``p | MatchSources("s3://bucket/**/*.jsonl")``.

    The arguments apply to the whole chain: `PlanTasks` and `ReadTasks` open the sources accordingly, and `WriteTasks`
    names outputs relative to `base`.

    Args:
        patterns: One URL with wildcards, or several.
        sources_from: URL of a file that lists the sources, instead of `patterns`.
        graph: ``module:function`` of an iterator graph, instead of both. Each pass of the graph is a source.
        epochs: Number of passes of the graph.
        base: Folder that output names are relative to. Default: the fixed part of the patterns.
        group: Grouping of tar members into samples: ``auto``, ``pairs`` or ``key``.
        index_root: Root of the tree of index files. Default: each index is beside its source.
        build_index: Whether to index sources that have no index.
        columns: Columns to read from Parquet and Arrow files. Default: all.
        pack: Size of a pack of small sources, in bytes or as ``"64M"``. None makes no packs.
        shar: Whether the patterns are folders of Shar datasets. Their shards are the sources.

    Raises:
        UsageError: If arguments exclude each other.
    """

    elements = Page

    def __init__(
        self,
        patterns: str | Sequence[str] = (),
        *,
        sources_from: str | None = None,
        graph: str | None = None,
        epochs: int = 1,
        base: str | None = None,
        group: Grouping = "auto",
        index_root: str | None = None,
        build_index: bool = True,
        columns: Sequence[str] = (),
        pack: int | str | None = None,
        shar: bool = False,
    ) -> None:
        super().__init__()
        named = (patterns,) if isinstance(patterns, str) else patterns
        self.patterns = tuple(canonical_pattern(pattern) for pattern in named)
        self.sources_from = canonical_url(sources_from) if sources_from else None
        self.graph = graph
        self.epochs = epochs
        self.base = canonical_url(base).rstrip("/") + "/" if base else None
        self.group = group
        self.index_root = canonical_url(index_root).rstrip("/") if index_root else None
        self.build_index = build_index
        self.columns = tuple(columns)
        self.pack = size_of("MatchSources: pack", pack)
        self.shar = shar
        if sum(map(bool, (self.patterns, self.sources_from, self.graph))) > 1:
            raise UsageError("MatchSources: found several of patterns, sources_from and graph; pass one of them")
        if group not in ("auto", "pairs", "key"):
            raise UsageError(f"MatchSources: group: expected auto, pairs or key, found {group!r}")
        if shar and (pack or self.columns or group != "auto" or not self.patterns):
            raise UsageError("MatchSources: shar reads whole shards of folders; leave out pack, columns and group")

    def expand(self, elements: Any) -> Any:
        """Apply the transform to a pipeline."""
        return super().expand(elements | beam.Impulse())

    def dofn(self, values: ChainValues) -> beam.DoFn:
        """Return the DoFn that lists the sources."""
        return _ListPages(values.listing if values.open_sources is None and values.packer is None else None)

    def display_data(self) -> dict[str, Any]:
        """Show the patterns in a runner's console."""
        shown = ", ".join(self.patterns) or self.sources_from or self.graph or "those of the job"
        return {"sources": printable(shown)}


class _ListPages(beam.DoFn):
    def __init__(self, listing: Listing | None) -> None:
        self._listing = listing

    def process(self, element: bytes) -> Iterator[Page]:
        del element  # the impulse that starts the pipeline
        if self._listing is None:  # the launcher or the next transform lists the sources
            yield Page([], [], [])
        else:
            yield from _listed(self._listing)


def _listed(listing: Listing) -> Iterator[Page]:
    left_out = LeftOut()
    yield from listing.pages(left_out)
    for line in left_out.lines():
        _log.info("%s", line)


class SkipCompleted(ChainTransform):
    """Drop complete sources. Register the others as open and attach their finished tasks.

    Later transforms make no request to the ledger, because each source carries its finished tasks. On the local runner
    workers also check the local copy of the ledger before they start a task.
    """

    elements = PendingSource

    def dofn(self, values: ChainValues) -> beam.DoFn:
        """Return the DoFn that looks up sources in the ledger. If the launcher has done so, it emits the open ones."""
        if values.open_sources is not None:
            return _Given(values.open_sources, values.ledger)
        ledger = values.require_ledger()
        if values.packer is None or values.listing is None:
            return _SkipPages(ledger)
        return _SkipPacks(ledger, values.packer, values.listing)


class _Given(beam.DoFn):
    def __init__(self, open_sources: Callable[[], Iterable[PendingSource]], ledger: LedgerHandle | None) -> None:
        self._open_sources = open_sources
        self._ledger = ledger

    def process(self, page: Page) -> Iterator[PendingSource]:
        del page  # empty
        with fatal_errors(self._ledger):
            yield from self._open_sources()


class _SkipPages(beam.DoFn):
    def __init__(self, ledger: LedgerHandle) -> None:
        self._ledger = ledger
        self._open = Metrics.counter("ledgerbeam", "sources_open")
        self._skipped = Metrics.counter("ledgerbeam", "sources_skipped")

    def setup(self) -> None:
        with self._ledger.fatal_errors():
            self._ledger.store().refresh()  # an earlier pipeline of this process may have opened it

    def process(self, page: Page) -> Iterator[PendingSource]:
        with self._ledger.fatal_errors():
            store = self._ledger.store()
            ids = source_ids(page.urls, page.sizes, page.versions)
            sources = with_progress(open_sources(ids, page.urls, page.sizes, page.versions, store), store)
        self._open.inc(len(sources))
        self._skipped.inc(len(page.urls) - len(sources))
        yield from sources


class _SkipPacks(beam.DoFn):
    """List the sources here: a pack can span two pages, and the pages of all sources do not fit into memory."""

    def __init__(self, ledger: LedgerHandle, pack: Packer, listing: Listing) -> None:
        self._ledger = ledger
        self._pack = pack
        self._listing = listing
        self._open = Metrics.counter("ledgerbeam", "sources_open")
        self._skipped = Metrics.counter("ledgerbeam", "sources_skipped")

    def setup(self) -> None:
        with self._ledger.fatal_errors():
            self._ledger.store().refresh()  # an earlier pipeline of this process may have opened it

    def process(self, page: Page) -> Iterator[PendingSource]:
        del page  # empty
        with self._ledger.fatal_errors():
            store = self._ledger.store()
            members = (
                Source(*row)
                for listed in _listed(self._listing)
                for row in zip(listed.urls, listed.sizes, listed.versions, strict=True)
            )
            for packs, ids in open_packs(self._pack(members), store):
                sources = with_progress(packs, store)
                self._open.inc(len(sources))
                self._skipped.inc(len(ids) - len(sources))
                yield from sources
