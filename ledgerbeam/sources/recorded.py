"""Recorded outputs of jobs as the sources of another job, identified by name and content, never by a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ledgerbeam._base.names import check_name
from ledgerbeam.errors import LedgerError, LedgerNotFoundError
from ledgerbeam.io.listing.left_out import LeftOut
from ledgerbeam.io.listing.pages import Page
from ledgerbeam.ledger import LedgerStore
from ledgerbeam.ledger.model.checksums import content_version

PAGE = 10_000
_INDEXES = (".idx", ".gzidx")


@dataclass(frozen=True)
class RecordedListing:
    """Lists the outputs of complete jobs.

    Attributes:
        outputs: The outputs of each job, listed one job after the other.
        storage_options: Passed to fsspec unchanged.
    """

    outputs: tuple[RecordedOutputs, ...]
    storage_options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def title(self) -> str:
        """The name for the console."""
        return " ".join(one.shown for one in self.outputs)

    def pages(self, left_out: LeftOut | None = None) -> Iterator[Page]:
        """List the outputs of each job in the order of their names, which is the order of its sources and records.

        A job without recorded outputs, or without outputs of the route, has nothing to list. All names of a job are in
        memory, about 200 bytes each.

        Raises:
            LedgerError: A job is not complete, or not any more.
        """
        del left_out  # no file is left out
        for outputs in self.outputs:
            store = opened(outputs, self.storage_options)
            _require_complete(outputs, store)
            yield from _pages(outputs, store)
            _require_complete(outputs, store)


def opened(outputs: RecordedOutputs, storage_options: Mapping[str, Any]) -> LedgerStore:
    """Return the ledger that has recorded outputs, refreshed.

    Raises:
        LedgerError: The ledger does not exist.
    """
    from ledgerbeam.ledger.opening import open_store  # noqa: PLC0415 - imports LMDB, which help does not need

    try:
        return open_store(outputs.ledger, dict(storage_options), create=False, read_only=True)
    except LedgerNotFoundError as error:
        raise LedgerError(f"{outputs.shown}: it has not run yet ({error})") from error


def _pages(outputs: RecordedOutputs, store: LedgerStore) -> Iterator[Page]:
    """Return the recorded outputs of a route, without those of gone sources, in the order of their names."""
    gone = store.gone_ids()
    found: list[tuple[str, int, str]] = []
    for page in store.content_columns():
        found += (
            (name, size, content_version(checksum))
            for source, name, size, checksum, route in zip(*page, strict=True)
            if is_output(outputs, name, route) and source not in gone
        )
    return outputs_pages(outputs, found)


def outputs_pages(outputs: RecordedOutputs, found: list[tuple[str, int, str]]) -> Iterator[Page]:
    """Yield outputs, given by name, size and version, as pages of sources, in the order of their names."""
    found.sort()
    for start in range(0, len(found), PAGE):
        names, sizes, versions = zip(*found[start : start + PAGE], strict=True)
        yield Page([f"{outputs.output}/{check_name(name)}" for name in names], list(sizes), list(versions))


def is_output(outputs: RecordedOutputs, name: str, route: str) -> bool:
    """Return whether an output is of the route, and not an index of another output."""
    return route == outputs.route and not name.endswith(_INDEXES)


def _require_complete(outputs: RecordedOutputs, store: LedgerStore) -> None:
    """Check that a job is complete, before and after listing it, since a run may have started meanwhile."""
    status = store.status()
    if not status["complete"]:
        left = status["sources"]
        raise LedgerError(
            f"{outputs.shown}: it is not complete: {left['complete']:,} of its sources are complete, {left['open']:,} "
            f"open, {left['failed']:,} failed; finish it, then run this again"
        )


def missing_outputs_warning(outputs: RecordedOutputs, storage_options: Mapping[str, Any]) -> str | None:
    """Return a warning if a complete job has no outputs of a route: the name of the route may be wrong.

    Args:
        outputs: The outputs to read.
        storage_options: Passed to fsspec unchanged.
    """
    store = opened(outputs, storage_options)
    gone = store.gone_ids()
    routes = {row.output.route for row in store.outputs(ordered=False) if row.source_id not in gone}
    if outputs.route in routes:
        return None
    has = ", ".join(f"route {route}" if route else "without a route" for route in sorted(routes)) or "nothing at all"
    wanted = f"in route {outputs.route}" if outputs.route else "without a route"
    return f"{outputs.shown} has no outputs {wanted} to read; it has {has}"


@dataclass(frozen=True)
class RecordedOutputs:
    """The outputs of one route of a job.

    Attributes:
        ledger: URL of the job's ledger.
        output: URL of its output folder.
        route: Name of the route; empty for the main dataset.
        title: Name of the job in messages.
    """

    ledger: str
    output: str
    route: str = ""
    title: str = ""

    @property
    def folder(self) -> str:
        """URL of the folder that contains the outputs, directly or deeper."""
        return f"{self.output}/{self.route}" if self.route else self.output

    @property
    def shown(self) -> str:
        """Name of the outputs in messages."""
        return self.title or self.folder
