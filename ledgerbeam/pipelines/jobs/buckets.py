"""Between the two jobs of an exchange: which run files there are, which buckets they make, and when they may go."""

from __future__ import annotations

from hashlib import blake2b

import orjson

from ledgerbeam.errors import SourceNotFoundError
from ledgerbeam.io import ObjectFolder, publish_bytes, read_bytes
from ledgerbeam.io.exchange.slices import RunFile
from ledgerbeam.io.listing.own_files import MARKS_FOLDER
from ledgerbeam.io.listing.pages import Page
from ledgerbeam.ledger import LedgerStore
from ledgerbeam.ledger.model.faults import fault_point
from ledgerbeam.ledger.model.identity import source_ids
from ledgerbeam.pipelines.jobs.exchange import GatherJob
from ledgerbeam.pipelines.jobs.removal import remove_below, require_own_folder
from ledgerbeam.sources.buckets import bucket_page

__all__ = ["ExchangeRuns", "are_complete"]


class ExchangeRuns:
    """The run files of a scatter job that is complete, in the order of their sources and records.

    Those of sources that are gone are left out: an exchange has the records of what was listed.

    Args:
        job: The exchange.
        store: The ledger of its scatter job.

    Attributes:
        state: A hash of all of them, by name and content.
    """

    def __init__(self, job: GatherJob, store: LedgerStore) -> None:
        gone = store.gone_ids()
        members = {row.source_id: row.member_urls for row in store.sources() if row.member_urls}
        self._job = job
        self._runs: list[RunFile] = []
        digest = blake2b(job.scatter().identity().fingerprint.encode(), digest_size=16, person=b"lb.exchange")
        for row in store.outputs():
            if row.complete and row.source_id not in gone:
                output = row.output
                self._runs.append(RunFile(output.name, output.size, members.get(row.source_id, (row.url,))))
                digest.update(f"\n{output.name}\t{output.checksum}".encode("utf-8", "surrogateescape"))
        self.state = digest.hexdigest()

    def __len__(self) -> int:
        return len(self._runs)

    @property
    def size(self) -> int:
        """Bytes of all of them."""
        return sum(run.size for run in self._runs)

    def known(self) -> Page | None:
        """Return the buckets that these runs make, if they were looked at before; else None."""
        require_own_folder(self._job.work_folder)
        try:
            found = orjson.loads(read_bytes(self._job.listing_url, self._job.storage_options))
            if found["of"] == self.state:
                return bucket_page(found["sizes"], found["versions"])
        except (SourceNotFoundError, ValueError, KeyError, TypeError):  # none, or not whole: it is made again
            pass
        return None

    def tabulate(self) -> Page:
        """Find out which slices make each bucket, and note it for the workers and for later runs.

        Raises:
            RunFileError: A run file is damaged; also the errors of reading them.
        """
        job = self._job.with_state(self.state)
        rows = job.sources().tables.write(self._runs, job.scatter().buckets)
        fault_point("exchange.tabulated")
        sizes, versions = [row.size for row in rows], [row.version for row in rows]
        records = [row.records for row in rows]
        noted = {"of": self.state, "sizes": sizes, "versions": versions, "records": records}
        publish_bytes(job.listing_url, orjson.dumps(noted), job.storage_options)
        return bucket_page(sizes, versions)

    def remove(self) -> None:
        """Remove all run files and tables, once they are not needed."""
        job = self._job
        folder = ObjectFolder(str(job.scatter().output), job.storage_options)
        names = [name for name in folder.names("") if _is_internal(name)]
        remove_below(folder.url, names, job.storage_options, ledger=job.ledger, prune=True)


def are_complete(page: Page, store: LedgerStore) -> bool:
    """Return whether a ledger holds all buckets of a page as complete."""
    return bool(store.completed_mask(source_ids(page.urls, page.sizes, page.versions)).all())


def _is_internal(name: str) -> bool:
    return name.endswith((".run", ".runs", ".slices")) or name.startswith(f"{MARKS_FOLDER}/")
