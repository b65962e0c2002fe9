"""Signatures of earlier deduplications, which the documents of a later one are compared with.

They are run files like those of the later one, which reads the two together: so both must be cut into buckets alike,
and the later one takes over how the earlier one is cut.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from ledgerbeam.errors import UsageError
from ledgerbeam.io.exchange.partition import Partition
from ledgerbeam.ledger import LedgerStore
from ledgerbeam.opening import open_ledger
from ledgerbeam.pipelines.jobs.buckets import RunWriter
from ledgerbeam.pipelines.jobs.recorded import OutputFolder, count_lost
from ledgerbeam.pipelines.jobs.stages import stages_of
from ledgerbeam.pipelines.run_progress import count

__all__ = ["EarlierSignatures", "earlier_signatures"]

_NEAR = ("near", "cluster", "verify")
"""Jobs of ``dedup --near``, by what is their last stage."""


class EarlierSignatures(NamedTuple):
    """The signatures of an earlier deduplication.

    Attributes:
        ledger: Of it, as it was named.
        writer: The job that has signed.
        partition: How they are cut into buckets.
    """

    ledger: str
    writer: RunWriter
    partition: Partition

    def require(self, partition: Partition) -> None:
        """Check that they are cut as others are.

        Raises:
            UsageError: They are not.
        """
        if self.partition != partition:
            expected, found = (one.parameters()["partition"] for one in (partition, self.partition))
            raise UsageError(
                f"--against {self.ledger}: expected signatures that are cut as the others are, by {expected}, found "
                f"{found}; sign one after the other, each --against those before it, or all of them again "
                "in new outputs with a --bucket-bytes that is larger than their sources"
            )

    def require_apart(self, stores: Iterable[LedgerStore], storage_options: Mapping[str, Any]) -> None:
        """Check that they are there, and of other sources than the documents that are compared with them.

        Args:
            stores: The ledgers of what signs those.
            storage_options: Passed to fsspec unchanged.

        Raises:
            UsageError: Some are gone, or of the same sources.
        """
        if lost := count_lost(OutputFolder(self.writer.folder, dict(storage_options)), self.writer.store):
            raise UsageError(
                f"--against {self.ledger}: {count(lost, 'file')} of its signatures in {self.writer.folder} are gone or "
                f"were changed; to have them made again: ledgerbeam ledger forget {shlex.quote(self.writer.store.url)} "
                "'*', then the command of that ledger"
            )
        own = {url for store in stores for url in _urls(store)}
        both = sorted(own.intersection(_urls(self.writer.store)))
        if both:
            raise UsageError(
                f"--against {self.ledger}: it has {count(len(both), 'source')} that this job has, too, such as "
                f"{both[0]}, of which each record would be a duplicate of itself; leave those out of the patterns"
            )


def _urls(store: LedgerStore) -> Iterable[str]:
    gone = store.gone_ids()
    return (url for row in store.sources() if row.source_id not in gone for url in (row.member_urls or (row.url,)))


def earlier_signatures(
    ledgers: Sequence[str], minhash: Any, below: str, storage_options: Mapping[str, Any]
) -> list[EarlierSignatures]:
    """Return the signatures of earlier deduplications.

    Args:
        ledgers: Of those.
        minhash: How texts are signed: the parameter of a job.
        below: The ledger of the job that reads them.
        storage_options: Passed to fsspec unchanged.

    Raises:
        LedgerNotFoundError: There is no such ledger.
        UsageError: One is of another kind of job, or has signed otherwise or not all.
    """
    found = []
    for url in ledgers:
        options = dict(storage_options)
        whole = open_ledger(url, options, create=False, read_only=True).job()
        if whole is None or whole.pipeline not in _NEAR:
            kind = "none" if whole is None else f"that of a job {whole.pipeline!r}"
            raise UsageError(f"--against {url}: expected the ledger of a dedup --near, found {kind}")
        if below.startswith(f"{url}/"):
            raise UsageError(f"--against {url}: this is the ledger of this job; give that of an earlier one")
        store = open_ledger(f"{url}/{stages_of(whole)[0]}", options, create=False, read_only=True)
        job = store.job()
        partition = None if job is None else Partition.recorded(job.parameters)
        if job is None or partition is None or not store.status()["complete"]:
            raise UsageError(f"--against {url}: not all of its sources are signed; run its command to the end")
        if job.parameters.get("minhash") != minhash:
            raise UsageError(
                f"--against {url}: expected signatures of {minhash}, found {job.parameters.get('minhash')}; give the "
                "--minhash and --ngram of that ledger"
            )
        folder = str(job.parameters.get("output"))
        found.append(EarlierSignatures(url, RunWriter(job, folder, store, is_earlier=True), partition))
    return found
