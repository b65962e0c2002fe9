"""The launcher's listing of a job: what was found, what is still open, what is gone."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import chain, islice

import numpy as np
from numpy.typing import NDArray

from ledgerbeam.errors import UsageError
from ledgerbeam.io import Page
from ledgerbeam.ledger import LedgerStore, Source, open_packs, open_sources, source_ids
from ledgerbeam.pipelines.jobs.opening import job_sources
from ledgerbeam.pipelines.jobs.spec import JobSpec

__all__ = ["JobListing", "first_page_checked"]

_SEEN_AT_ONCE = 1_000_000


class JobListing:
    """Lists a job's sources once and counts them.

    Args:
        spec: The job.
        store: Its ledger, taken for the job.
        pages: The listing, not begun or only looked into.
        run: Id of the run.
        only: Ids of the only sources to do; None gives every open one.
    """

    def __init__(
        self,
        spec: JobSpec,
        store: LedgerStore,
        pages: Iterator[Page],
        run: str,
        *,
        only: Collection[bytes] | None = None,
    ) -> None:
        self._spec = spec
        self._store = store
        self._pages = pages
        self._only = only
        self.run = run
        self._seen: NDArray[np.uint64] = np.empty(0, np.uint64)  # of what was found; the rest is room
        self.found = 0
        self.skipped = 0
        self.finished = False

    def open_sources(self) -> Iterator[list[Source]]:
        """Yields the sources that owe work, page by page (a page may owe none), registered in the ledger.

        Raises:
            SourceNotFoundError: If a pattern matches nothing.
            NotIndexableError: If a source is compressed, and the job indexes it, and it has no seek points.
            UsageError: If a source's name tells no known format.
        """
        pages = (_checked(page, self._spec) for page in self._pages)
        pack = self._spec.packer()
        if pack:
            members = (Source(*row) for page in pages for row in zip(page.urls, page.sizes, page.versions, strict=True))
            for sources, ids in open_packs(pack(members), self._store):
                self._count(sources, ids)
                yield self._wanted(sources)
        else:
            for page in pages:
                ids = source_ids(page.urls, page.sizes, page.versions)
                sources = open_sources(ids, page.urls, page.sizes, page.versions, self._store)
                self._count(sources, ids)
                yield self._wanted(sources)
        self.finished = True
        self._store.note_listing(self.run, listed=self.found, finished=True, gone=self._gone())

    def _wanted(self, sources: list[Source]) -> list[Source]:
        only = self._only
        return sources if only is None else [source for source in sources if source.id in only]

    def _count(self, sources: list[Source], ids: list[bytes]) -> None:
        before = self.found
        self.found += len(ids)
        self.skipped += len(ids) - len(sources)
        if self.found > len(self._seen):
            # In place: of ten million sources a second column would be 80 MB.
            self._seen.resize(self.found + _SEEN_AT_ONCE, refcheck=False)
        self._seen[before : self.found] = _prefixes(ids)

    def _gone(self) -> Iterator[bytes]:
        """Yields the ids that the ledger holds and the listing does not: 8 bytes a source tell them apart."""
        seen = self._seen[: self.found]
        seen.sort()
        # The ledger holds all that was listed; if that is all it holds, nothing is gone, and none of it is read.
        if len(seen) and np.count_nonzero(seen[1:] != seen[:-1]) + 1 == self._store.source_count():
            return
        for ids in self._store.source_ids():
            prefixes = _prefixes(ids)
            places = np.searchsorted(seen, prefixes)
            places[places == len(seen)] = 0
            missing = seen[places] != prefixes if len(seen) else np.ones(len(ids), bool)
            yield from (ids[i] for i in np.flatnonzero(missing))


def first_page_checked(pages: Iterator[Page], spec: JobSpec) -> Iterator[Page]:
    """Looks into a listing, so that what cannot be is told before anything is made, and gives it back whole.

    Raises:
        SourceNotFoundError: If a pattern matches nothing.
        NotIndexableError: If a source is compressed, and the job indexes it, and it has no seek points.
        UsageError: If a source's name tells no known format, or the names of shards cannot be published as asked.
    """
    first = [_checked(page, spec) for page in islice(pages, 1)]
    if spec.published == "lit" and not spec.pack_bytes:
        for page in first:
            _require_base_names(page)
    return chain(first, pages)


def _require_base_names(page: Page) -> None:
    """Refuses sources of which shards would differ only in their folders; `write_lit_metadata` would, in the end."""
    seen: dict[str, str] = {}
    for url, size in zip(page.urls, page.sizes, strict=True):
        other = seen.setdefault(url.rpartition("/")[2], url) if size else url
        if other != url:
            raise UsageError(
                f"{other} and {url}: LIT tells shards apart by their base names, which come from those of the sources; "
                "rename one, or use --to webdataset, which keeps folders apart"
            )


def _checked(page: Page, spec: JobSpec) -> Page:
    job_sources(spec).check_names(page.urls, by_position=spec.pipeline == "index")
    return page


def _prefixes(ids: list[bytes]) -> NDArray[np.uint64]:
    return np.frombuffer(b"".join(ids), ">u8")[::2].astype(np.uint64)
