"""From patterns to the sources that still have work left: `MatchSources` and `SkipCompleted`.

Both work on pages of thousands of sources, so that a rerun of a finished job never makes a Beam element of a finished
source.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import apache_beam as beam
from apache_beam.metrics.metric import Metrics
from apache_beam.pvalue import PBegin, PCollection
from apache_beam.transforms.window import GlobalWindows
from apache_beam.utils.windowed_value import WindowedValue

from ledgerbeam.io.listing.left_out import LeftOut
from ledgerbeam.io.listing.pages import Page
from ledgerbeam.ledger import Source
from ledgerbeam.ledger.model.identity import source_ids
from ledgerbeam.ledger.selection import PendingSource, open_packs, open_sources, with_progress
from ledgerbeam.logger import library_logger
from ledgerbeam.transforms._worker import LedgerHandle

__all__ = ["Listing", "MatchSources", "Packer", "SkipCompleted"]

_log = library_logger(__name__)

Packer: TypeAlias = Callable[[Iterable[Source]], Iterable[Source]]
"""Makes composite sources of the files of a listing, which come in its order; picklable."""


class Listing(Protocol):
    """The input of a job: a `SourceListing`, or a `GraphSource` with its passes as the sources. Picklable."""

    @property
    def title(self) -> str:
        """What a console shows."""

    def pages(self, left_out: LeftOut | None = None) -> Iterator[Page]:
        """List the sources, in an order that does not change between runs."""


@dataclass
class MatchSources(beam.PTransform[PBegin, PCollection[Page]]):
    """Lists sources in pages: ``p | MatchSources(SourceListing(("s3://bucket/**/*.jsonl",)))``.

    Attributes:
        listing: The patterns or the list; or a graph, with its passes as the sources.
    """

    listing: Listing

    def expand(self, pbegin: PBegin) -> PCollection[Page]:
        """Apply the transform to the beginning of a pipeline."""
        return (
            pbegin
            | "Listing" >> beam.Create([self.listing], reshuffle=False)
            | "ListPages" >> beam.FlatMap(_pages).with_output_types(Page)
        )

    def display_data(self) -> dict[str, Any]:
        """Show the patterns in a runner's console."""
        return {"sources": self.listing.title}


def _pages(listing: Listing) -> Iterator[Page]:
    left_out = LeftOut()
    yield from listing.pages(left_out)
    for line in left_out.lines():
        _log.info("%s", line)


@dataclass
class SkipCompleted(beam.PTransform[PCollection[Page], PCollection[PendingSource]]):
    """Drops the sources that are complete in the ledger, registers the others as open, and adds what is done of them.

    From here on no transform reads the ledger: the finished tasks of a source travel with it.

    Attributes:
        ledger: The job's ledger.
        pack: If given, it makes packs of the listed files, and these packs are the sources; the listing's pages must
            then come in order, as from a `MatchSources` that is fused with this transform.
    """

    ledger: LedgerHandle
    pack: Packer | None = None

    def expand(self, pages: PCollection[Page]) -> PCollection[PendingSource]:
        """Apply the transform to pages of a listing."""
        skip = _SkipPacks(self.ledger, self.pack) if self.pack else _SkipPages(self.ledger)
        return pages | "SkipCompleted" >> beam.ParDo(skip).with_output_types(PendingSource)

    def display_data(self) -> dict[str, Any]:
        """Show the ledger in a runner's console."""
        return {"ledger": self.ledger.url}


class _SkipPages(beam.DoFn):
    def __init__(self, ledger: LedgerHandle) -> None:
        self._ledger = ledger
        self._open = Metrics.counter("ledgerbeam", "sources_open")
        self._skipped = Metrics.counter("ledgerbeam", "sources_skipped")

    def setup(self) -> None:
        with self._ledger.fatal_errors():
            self._ledger.store().refresh()  # it may be open since a former pipeline of this process

    def process(self, page: Page) -> Iterator[PendingSource]:
        with self._ledger.fatal_errors():
            store = self._ledger.store()
            ids = source_ids(page.urls, page.sizes, page.versions)
            sources = with_progress(open_sources(ids, page.urls, page.sizes, page.versions, store), store)
        self._open.inc(len(sources))
        self._skipped.inc(len(page.urls) - len(sources))
        yield from sources


class _SkipPacks(beam.DoFn):
    """Holds the sources of a bundle, since a pack may begin on one page and end on the next."""

    def __init__(self, ledger: LedgerHandle, pack: Packer) -> None:
        self._ledger = ledger
        self._pack = pack
        self._members: list[Source] = []
        self._open = Metrics.counter("ledgerbeam", "sources_open")
        self._skipped = Metrics.counter("ledgerbeam", "sources_skipped")

    def start_bundle(self) -> None:
        self._members = []

    def setup(self) -> None:
        with self._ledger.fatal_errors():
            self._ledger.store().refresh()  # it may be open since a former pipeline of this process

    def process(self, page: Page) -> None:
        self._members.extend(Source(*row) for row in zip(page.urls, page.sizes, page.versions, strict=True))

    def finish_bundle(self) -> Iterator[WindowedValue]:
        with self._ledger.fatal_errors():
            store = self._ledger.store()
            packs = open_packs(self._pack(self._members), store)
            found = [(with_progress(sources, store), ids) for sources, ids in packs]
        for sources, ids in found:
            self._open.inc(len(sources))
            self._skipped.inc(len(ids) - len(sources))
            for source in sources:
                yield GlobalWindows.windowed_value(source)
