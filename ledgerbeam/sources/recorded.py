"""The outputs that ledgers have recorded, as the sources of another job: known by name and content, never by a time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from ledgerbeam.errors import LedgerError, LedgerNotFoundError, SourceNotFoundError
from ledgerbeam.io.listing.left_out import LeftOut
from ledgerbeam.io.listing.pages import Page
from ledgerbeam.ledger import LedgerStore
from ledgerbeam.ledger.model.checksums import content_version
from ledgerbeam.ledger.model.rows import OutputRow
from ledgerbeam.opening import open_ledger
from ledgerbeam.sources.outputs import RecordedOutputs

__all__ = ["RecordedListing", "is_output", "page_of"]

PAGE = 10_000
_INDEXES = (".idx", ".gzidx")


@dataclass(frozen=True)
class RecordedListing:
    """Lists the outputs of complete jobs.

    Attributes:
        outputs: Of each job what is listed, one after the other.
        storage_options: Passed to fsspec unchanged.
    """

    outputs: tuple[RecordedOutputs, ...]
    storage_options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def title(self) -> str:
        """What a console shows."""
        return " ".join(one.shown for one in self.outputs)

    def pages(self, left_out: LeftOut | None = None) -> Iterator[Page]:
        """List them, of each job in the order of its sources and of their records.

        Raises:
            LedgerError: A job is not complete, or no longer.
            SourceNotFoundError: One of them has written nothing of the route.
        """
        del left_out  # nothing is
        for outputs in self.outputs:
            store = opened(outputs, self.storage_options)
            _require_complete(outputs, store)
            rows, found = kept_rows(outputs, store), False
            while some := list(islice(rows, PAGE)):
                found = True
                yield page_of(outputs, some)
            _require_complete(outputs, store)
            if not found:
                raise SourceNotFoundError(f"{outputs.shown}: {_nothing(outputs, store)}")


def opened(outputs: RecordedOutputs, storage_options: Mapping[str, Any]) -> LedgerStore:
    """Return the ledger that has recorded outputs, as it is now.

    Raises:
        LedgerError: There is none.
    """
    try:
        store = open_ledger(outputs.ledger, dict(storage_options), create=False, read_only=True)
    except LedgerNotFoundError as error:
        raise LedgerError(f"{outputs.shown}: it has not run yet ({error})") from error
    store.refresh()
    return store


def kept_rows(outputs: RecordedOutputs, store: LedgerStore) -> Iterator[OutputRow]:
    """Yield what a ledger has recorded of a route, of complete sources that were in the last listing."""
    gone = store.gone_ids()
    for row in store.outputs():
        if is_output(outputs, row) and row.complete and row.source_id not in gone:
            yield row


def is_output(outputs: RecordedOutputs, row: OutputRow) -> bool:
    """Return whether a row is of the route, and not of an index, which lies beside what it is of."""
    return row.output.route == outputs.route and not row.output.name.endswith(_INDEXES)


def page_of(outputs: RecordedOutputs, rows: Iterable[OutputRow]) -> Page:
    """Return outputs as a page of sources."""
    page = Page()
    for row in rows:
        page.urls.append(outputs.url(row))
        page.sizes.append(row.output.size)
        page.versions.append(content_version(row.output.checksum))
    return page


def _require_complete(outputs: RecordedOutputs, store: LedgerStore) -> None:
    """Check that nothing is missing of what is listed: before, and after, since somebody may have begun it again."""
    status = store.status()
    if not status["complete"]:
        left = status["sources"]
        raise LedgerError(
            f"{outputs.shown}: not complete: {left['complete']:,} of its sources are, {left['open']:,} are open, "
            f"{left['failed']:,} failed; finish it, then run this again"
        )


def _nothing(outputs: RecordedOutputs, store: LedgerStore) -> str:
    routes = sorted({row.output.route for row in store.outputs(ordered=False)})
    has = ", ".join(route or "without a route" for route in routes)
    wanted = f"in route {outputs.route}" if outputs.route else "without a route"
    return f"expected outputs {wanted} to read, found {f'only such: {has}' if has else 'none at all'}"
