"""Listing of the sources of a job by the launcher: found, open and missing sources."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, islice

from ledgerbeam._base.lazy import NDArray, np
from ledgerbeam.io.listing.left_out import LeftOut
from ledgerbeam.io.listing.pages import Page
from ledgerbeam.ledger import LedgerStore, Source
from ledgerbeam.ledger.model.identity import source_ids
from ledgerbeam.ledger.selection import PACKS_A_PAGE, open_packs, open_sources
from ledgerbeam.pipelines.jobs.sources import listed_files
from ledgerbeam.pipelines.jobs.spec import JobSpec

_FEW = 100_000  # maximum number of IDs in a Python set. Importing NumPy takes longer than a small complete job.


@dataclass(eq=False)
class JobListing:
    """Lists and counts the sources of a job once, and yields the open ones: all, or those with the IDs of `only`."""

    spec: JobSpec
    store: LedgerStore
    pages: Iterator[Page]
    run: str
    only: Collection[bytes] | None = None
    found: int = 0
    skipped: int = 0
    finished: bool = False
    _seen: array[int] = field(default_factory=partial(array, "Q"))

    def open_sources(self) -> Iterator[list[Source]]:
        """Register open sources in the ledger, and yield them page by page. A page may be empty."""
        pack, only = self.spec.packer(), self.only
        for sources, ids in open_packs(pack(listed_files(self.pages)), self.store) if pack else self._open_files():
            self.skipped += len(ids) - len(sources)
            self.count_listed(ids)
            yield sources if only is None else [source for source in sources if source.id in only]
        self.finished = True
        self.store.note_listing(self.run, listed=self.found, finished=True, gone=self.gone())

    def _open_files(self) -> Iterator[tuple[list[Source], list[bytes]]]:
        for page in self.pages:
            ids = source_ids(page.urls, page.sizes, page.versions)
            yield open_sources(ids, page.urls, page.sizes, page.versions, self.store), ids

    def count_listed(self, ids: list[bytes]) -> None:
        """Count sources as listed."""
        self.found += len(ids)
        self._seen += _prefixes(ids)

    def gone(self) -> Iterator[bytes]:
        """Yield the IDs of recorded sources that are missing from the listing. Memory is 8 bytes for each source."""
        listed = _Known(self._seen)
        # The ledger has all listed sources. If it has no others, none is missing, and the ledger need not be read.
        if listed.count() == self.store.source_count():
            return
        for ids in self.store.source_ids():
            yield from listed.missing(ids)


def gone_sources(job: JobSpec, store: LedgerStore) -> Iterator[bytes]:
    """List the sources of a job again, and yield the IDs of recorded sources that are missing from the listing.

    The launcher calls it for runners that list the sources themselves. It ignores new sources: the next run finds them.
    """
    listing = JobListing(job, store, iter(()), "")
    for ids in _ids_by_page(job, job.pages()):
        listing.count_listed(ids)
    return listing.gone()


def _packs(packs: Iterable[Source]) -> Iterator[list[Source]]:
    found = iter(packs)
    while some := list(islice(found, PACKS_A_PAGE)):
        yield some


def listed_sources(job: JobSpec, pages: Iterable[Page]) -> Iterator[list[Source]]:
    """Yield all sources of a job, complete and open, in pages. Small files are packed if the job packs them."""
    packer = job.packer()
    files = listed_files(pages)
    yield from _packs(files if packer is None else packer(files))


def listed_ids(job: JobSpec, pages: Iterable[Page]) -> list[bytes]:
    """Return the IDs of the sources of a job."""
    return [one for ids in _ids_by_page(job, pages) for one in ids]


def _ids_by_page(job: JobSpec, pages: Iterable[Page]) -> Iterator[list[bytes]]:
    packer = job.packer()
    if packer is None:
        yield from (source_ids(page.urls, page.sizes, page.versions) for page in pages)
    else:
        yield from ([pack.id for pack in packs] for packs in _packs(packer(listed_files(pages))))


def listed_pages(job: JobSpec, say: Callable[[str], None], left_out: LeftOut | None = None) -> Iterator[Page]:
    """Return the pages of a job's listing, each checked when it is read.

    The first page is checked before this returns, so that a wrong pattern is an error before anything is created.

    Args:
        say: Prints the number of ignored files, at the end of the listing.

    Raises:
        SourceNotFoundError: A pattern matches nothing, or a list names nothing.
        NotIndexableError: A compressed source has no seek points, and the job indexes it.
        UsageError: No matching name is a source, or a given name is not a source. Or none of the first files has the
            columns to read, or these sources do not permit the product of the job.
    """
    pages = _checked(job, say, LeftOut() if left_out is None else left_out)
    first = list(islice(pages, 1))
    files = job.sources().as_files
    if files is not None:
        for page in first:
            files.check_columns(page, job.storage_options)
    product = job.product()
    if product is not None:
        for page in first:
            product.check(page, job)
    return chain(first, pages)


def _checked(job: JobSpec, say: Callable[[str], None], left_out: LeftOut) -> Iterator[Page]:
    for page in job.pages(left_out):
        job.check(page)
        yield page
    for line in left_out.lines():
        say(line)


class _Known:
    """Prefixes of IDs for lookups: a Python set of few prefixes, or a sorted array with 8 bytes for each prefix."""

    def __init__(self, prefixes: array[int]) -> None:
        self._few = set(prefixes) if len(prefixes) <= _FEW else None
        if self._few is None:
            self._column: NDArray[np.uint64] = np.frombuffer(prefixes, np.uint64)
            self._column.sort()

    def count(self) -> int:
        """Return the number of different prefixes."""
        if self._few is not None:
            return len(self._few)
        return int(np.count_nonzero(self._column[1:] != self._column[:-1])) + 1

    def missing(self, ids: list[bytes]) -> Iterator[bytes]:
        prefixes = _prefixes(ids)
        if self._few is not None:
            yield from (known for known, prefix in zip(ids, prefixes, strict=True) if prefix not in self._few)
            return
        asked = np.frombuffer(prefixes, np.uint64)
        places = np.searchsorted(self._column, asked)
        places[places == len(self._column)] = 0
        yield from (ids[place] for place in np.flatnonzero(self._column[places] != asked).tolist())


def _prefixes(ids: list[bytes]) -> array[int]:
    """Return the first 8 bytes of IDs, as numbers."""
    return array("Q", b"".join(ids))[::2]
