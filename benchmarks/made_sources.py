"""Sources without files, and a ledger in which all of them are complete."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from ledgerbeam.io.listing.pages import Page
from ledgerbeam.ledger import Job, Output, Source
from ledgerbeam.ledger.model.identity import source_ids
from ledgerbeam.ledger.model.rows import Leaf
from ledgerbeam.ledger.opening import open_local_store

PAGE = 10_000
MADE_AT_ONCE = 500_000


def page_of(numbers: Iterable[int]) -> Page:
    """Return a page of a listing with the sources of these numbers."""
    listed = list(numbers)
    urls = [f"/data/corpus/shards/{number // 1000:06d}/part-{number:09d}.jsonl" for number in listed]
    versions = [str(1_700_000_000_000_000_000 + 7_919 * number) for number in listed]
    return Page(urls, [100_000 + number % 1_000 for number in listed], versions)


def pages(count: int) -> Iterator[Page]:
    """Yield the pages of a listing of the first `count` sources."""
    for start in range(0, count, PAGE):
        yield page_of(range(start, min(start + PAGE, count)))


def sources(numbers: Iterable[int]) -> list[Source]:
    """Return the sources of these numbers."""
    page = page_of(numbers)
    return [Source(*row) for row in zip(page.urls, page.sizes, page.versions, strict=True)]


def leaf(source: Source, task: int = 0, tasks: int = 1) -> Leaf:
    """Return the ledger row of one of the `tasks` tasks of a source, with one output."""
    first = 100 * task
    output = Output(f"{source.url.removeprefix('/data/')}.{first:010d}.jsonl", source.size, source.id.hex(), 100, first)
    return Leaf(source.id, ((task, tasks),), "published", (output,), 100, source.size)


def make_done(ledger: str, count: int) -> None:
    """Create a ledger in which `count` sources are complete. It is kept between runs."""
    if os.path.isdir(ledger):
        return
    partial = f"{ledger}.partial"
    shutil.rmtree(partial, ignore_errors=True)
    store = open_local_store(partial, create=True)
    store.open_job(Job("bench", {}))
    order = _in_id_order(count)  # in any other, millions of them would write each page of the tree again and again
    for first in range(0, count, MADE_AT_ONCE):
        made = sources(order[first : first + MADE_AT_ONCE].tolist())
        store.register(made)
        store.commit([leaf(source) for source in made])
    store.close()
    os.rename(partial, ledger)


def _in_id_order(count: int) -> NDArray[np.int64]:
    """Return the numbers of sources in the order of their IDs."""
    ids = np.empty(count, np.uint64)
    for place, page in enumerate(pages(count)):
        found = np.frombuffer(b"".join(source_ids(page.urls, page.sizes, page.versions)), ">u8")[::2]
        ids[place * PAGE : place * PAGE + len(found)] = found
    return np.argsort(ids, kind="stable")
