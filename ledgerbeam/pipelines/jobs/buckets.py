"""Between two stages: which run files there are, which buckets they make, and when they may go."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, NamedTuple

import orjson

from ledgerbeam.errors import SourceNotFoundError
from ledgerbeam.io import ObjectFolder, publish_bytes, read_bytes, stat
from ledgerbeam.io.exchange.run_file import SUFFIX
from ledgerbeam.io.exchange.slices import EARLIER, RUNS, SLICES, RunFile, SliceTables
from ledgerbeam.io.listing.own_files import MARKS_FOLDER
from ledgerbeam.io.listing.pages import Page
from ledgerbeam.ledger import Job, LedgerStore
from ledgerbeam.ledger.model.faults import fault_point
from ledgerbeam.ledger.model.identity import source_ids
from ledgerbeam.names import REJECTS
from ledgerbeam.pipelines.jobs.removal import remove_below, require_own_folder
from ledgerbeam.pipelines.jobs.spec import JobSpec
from ledgerbeam.sources.buckets import bucket_page

__all__ = ["FoundBuckets", "RunFiles", "RunWriter", "are_complete", "remove_internal"]


@dataclass(frozen=True)
class FoundBuckets:
    """The buckets that run files make.

    Attributes:
        sizes: Of their records in bytes.
        versions: Of each; empty for one without records.
    """

    sizes: list[int]
    versions: list[str]

    def page(self) -> Page:
        """Return them as sources."""
        return bucket_page(self.sizes, self.versions)


class RunWriter(NamedTuple):
    """A job that has written run files.

    Attributes:
        job: What it is.
        folder: Where they lie.
        store: Its ledger.
        as_read: Whether the records are those of its sources, with their places there.
        is_earlier: Whether it is another job, whose run files lie elsewhere and are only compared with.
    """

    job: Job
    folder: str
    store: LedgerStore
    as_read: bool = True
    is_earlier: bool = False


class RunFiles:
    """The run files that complete jobs have written, in the order of the jobs, and of their sources and records.

    Those of sources that are gone are left out: what is made of them has the records of what was listed.

    Args:
        writers: The jobs that write them.
        folder: In or below which they lie.
        listing_url: Where it is noted which buckets they make.
        storage_options: Passed to fsspec unchanged.

    Attributes:
        state: A hash of all of them, by name and content.
    """

    def __init__(
        self, writers: Sequence[RunWriter], folder: str, listing_url: str, storage_options: dict[str, Any]
    ) -> None:
        self._folder = folder
        self._options = storage_options
        self._listing_url = listing_url
        self._runs: list[RunFile] = []
        digest = blake2b(digest_size=16, person=b"lb.exchange")
        for writer in writers:
            store = writer.store
            digest.update(writer.job.fingerprint.encode())
            mark = EARLIER if writer.is_earlier else ""
            below = f"{mark}{writer.folder}/".removeprefix(f"{folder}/")
            gone = store.gone_ids()
            members = {row.source_id: row.member_urls for row in store.sources() if row.member_urls}
            for row in store.outputs():
                if row.complete and row.source_id not in gone and row.output.route != REJECTS:
                    name, output = f"{below}{row.output.name}", row.output
                    # Of what a function has made the place in the run file is the only one.
                    of = members.get(row.source_id, (row.url,)) if writer.as_read else (f"{folder}/{name}",)
                    self._runs.append(RunFile(name, output.size, tuple(f"{mark}{url}" for url in of)))
                    digest.update(f"\n{name}\t{output.checksum}".encode("utf-8", "surrogateescape"))
        self.state = digest.hexdigest()

    def __len__(self) -> int:
        return len(self._runs)

    @property
    def size(self) -> int:
        """Bytes of all of them."""
        return sum(run.size for run in self._runs)

    def known(self) -> FoundBuckets | None:
        """Return the buckets that these run files make, if they were looked at before; else None."""
        require_own_folder(self._listing_url.rpartition("/")[0])
        try:
            found: dict[str, Any] = orjson.loads(read_bytes(self._listing_url, self._options))
            if found["of"] == self.state:
                return FoundBuckets(found["sizes"], found["versions"])
        except (SourceNotFoundError, ValueError, KeyError, TypeError):  # none, or not whole: it is made again
            pass
        return None

    def are_tabulated(self) -> bool:
        """Return whether the tables of their slices are there."""
        place = SliceTables(self._folder, self.state).place
        try:
            for ending in (RUNS, SLICES):
                stat(f"{place}{ending}", self._options)
        except SourceNotFoundError:
            return False
        return True

    def tabulate(self, buckets: int) -> FoundBuckets:
        """Find out which slices make each bucket, and note it for the workers and for later runs.

        Raises:
            RunFileError: A run file is damaged; also the errors of reading them.
        """
        rows = SliceTables(self._folder, self.state, self._options).write(self._runs, buckets)
        fault_point("exchange.tabulated")
        found = FoundBuckets([row.size for row in rows], [row.version for row in rows])
        noted = {"of": self.state, "sizes": found.sizes, "versions": found.versions}
        publish_bytes(self._listing_url, orjson.dumps(noted), self._options)
        return found


def are_complete(buckets: FoundBuckets, store: LedgerStore) -> bool:
    """Return whether a ledger holds all of some buckets as complete."""
    page = buckets.page()
    return bool(store.completed_mask(source_ids(page.urls, page.sizes, page.versions)).all())


def remove_internal(folders: Iterable[str], job: JobSpec, *, but_runs: bool = False) -> None:
    """Remove run files and tables, once they are not needed.

    Args:
        folders: That hold them.
        job: Whose they are.
        but_runs: Leave the run files, and remove the tables of their slices alone.
    """
    is_internal = _is_table if but_runs else _is_internal
    for url in folders:
        folder = ObjectFolder(url, job.storage_options)
        names = [name for name in folder.names("") if is_internal(name)]
        remove_below(folder.url, names, job.storage_options, ledger=job.ledger, prune=True)


def _is_table(name: str) -> bool:
    return name.endswith((RUNS, SLICES))


def _is_internal(name: str) -> bool:
    return _is_table(name) or name.endswith(SUFFIX) or f"/{MARKS_FOLDER}/" in f"/{name}"
