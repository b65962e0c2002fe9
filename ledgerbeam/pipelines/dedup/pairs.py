"""The first two jobs of ``ledgerbeam dedup --near``: an exchange that signs documents and connects near ones.

    scatter   the bands of each document, as hashes, and its position    ledger CLUSTER/pairs/scatter
    pairs     connections of documents that share a band                 ledger CLUSTER/pairs

The run files of the first job are the signatures. They are kept, so that a later run signs only added documents.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from ledgerbeam.io import ShardEncoder
from ledgerbeam.io.exchange.slices import Partition
from ledgerbeam.io.listing.left_out import OwnFiles
from ledgerbeam.ledger import Task
from ledgerbeam.ledger.model.job import Json
from ledgerbeam.pipelines.dedup.earlier import EarlierSignatures, earlier_signatures
from ledgerbeam.pipelines.exchange.jobs import GatherJob, RunsJob, ScatterJob
from ledgerbeam.pipelines.exchange.partition import KeyChoice, PartitionLimits
from ledgerbeam.pipelines.exchange.stages import VERIFY
from ledgerbeam.transforms.dedup.minhash import VERSION

if TYPE_CHECKING:
    from ledgerbeam.transforms.dedup.minhash import MinHash


PART_RECORDS = 1 << 20
"""Approximate size of the bands of a part of a bucket, in bytes. A band takes some hundred bytes of memory."""

CLUSTER_BYTES = 1 << 30
"""Maximum size of the pairs of all parts that one process clusters, in bytes."""


@dataclass(frozen=True)
class NearChoice:
    """Parameters of near duplicates.

    Attributes:
        bands: Number of bands of a signature. Documents that share a band are near.
        rows: Number of MinHashes of a band.
        ngram: Number of words of an n-gram.
        verify: Minimum share of common n-grams of near documents that share a band; None for no check.
        against: Ledgers of earlier deduplications, whose documents stay.
        cluster_bytes: Maximum size of pairs that one process clusters, in bytes. It does not affect outputs.
    """

    bands: int
    rows: int
    ngram: int
    verify: float | None = None
    against: tuple[str, ...] = ()
    cluster_bytes: int = CLUSTER_BYTES

    def minhash(self) -> MinHash:
        """Return the object that signs texts. It imports Beam."""
        from ledgerbeam.transforms.dedup.minhash import MinHash  # noqa: PLC0415

        return MinHash(self.bands, self.rows, self.ngram)

    def verified(self) -> dict[str, Json]:
        """Return the parameters of the outputs, without the parameters of signatures."""
        return {} if self.verify is None else {VERIFY: self.verify}

    def compared(self) -> dict[str, Json]:
        """Return the parameters of the pairs, without the parameters of signatures."""
        return {"against": list(self.against)} if self.against else {}

    def parameters(self, key: KeyChoice) -> dict[str, Json]:
        """Return the parameters of signatures.

        Args:
            key: Finds the text.
        """
        near: dict[str, Json] = {"bands": self.bands, "rows": self.rows, "ngram": self.ngram, "version": VERSION}
        return {**key.parameters(), "order": "near", "minhash": near}


@dataclass(frozen=True, kw_only=True)
class SignJob(ScatterJob):
    """Writes the bands of the documents of each task.

    Attributes:
        near: Parameters of near duplicates.
    """

    command = "sign"

    near: NearChoice
    with_records: bool = False

    def shaping(self) -> dict[str, Json]:
        """Return the parameters of the run files, without their location."""
        return {**super().shaping(), **self.near.parameters(self.key)}

    def work(self) -> Callable[[Task], Any]:
        """Return the function that signs the records of each task."""
        from ledgerbeam.transforms.dedup.near import SignRecords  # noqa: PLC0415 - brings Beam

        score = None if self.prefer is None else self.prefer.keys(self.files.base)
        return SignRecords(self.key.keys(self.files.base), self.near.minhash(), score)

    def encoder(self) -> str | ShardEncoder:
        """Return the encoder of run files of hashes."""
        from ledgerbeam.transforms.dedup.near import HashEncoder  # noqa: PLC0415 - brings Beam

        return HashEncoder(self._partition.cuts_of(1), self._partition.block_bytes)


@dataclass(frozen=True, kw_only=True)
class PairsJob(GatherJob, RunsJob):
    """Connects the documents that share a band.

    Attributes:
        near: Parameters of near duplicates.
        signatures: Folder of the signatures.
        prefer: Score of a document. The best of a cluster stays; None keeps the first.
        own: The job's own outputs, which are not sources.
    """

    command = "pairs"

    keeps_columns = False
    keeps_runs: ClassVar[bool] = True
    within_keys: ClassVar[bool] = False

    to: str = "run"
    shard_bytes: int = PART_RECORDS
    near: NearChoice
    signatures: str
    prefer: KeyChoice | None = None
    own: OwnFiles = field(default_factory=OwnFiles)

    @property
    def first_folder(self) -> str:
        """The folder of the signatures."""
        return self.signatures

    def scatter(self) -> ScatterJob:
        """Return the first job, which signs documents."""
        return SignJob(**{**self.scatter_values(), "own": self.own}, near=self.near, prefer=self.prefer)

    @property
    def sizes(self) -> PartitionLimits:
        """The sizes of its buckets and their parts, by the sources."""
        size = self.bucket_bytes or 2**30
        return PartitionLimits(size, size)

    @property
    def merged_bytes(self) -> int:
        """Size of a task that merges, by the records. Hashes take much more memory than their size on disk."""
        return self.shard_bytes

    @property
    def keeps_shards(self) -> bool:
        """False: the pairs are removed after clustering."""
        return False

    def shaping(self) -> dict[str, Json]:
        """Return the parameters of the pairs, without their location and the partition of the bands."""
        prefer: dict[str, Json] = {} if self.prefer is None else {"prefer": self.prefer.parameters()}
        among: dict[str, Json] = {"among earlier": True} if self._among_earlier else {}
        return {**self.files.parameters(), **self.near.parameters(self.key), **self.near.compared(), **among, **prefer}

    @property
    def _among_earlier(self) -> bool:
        """Whether to connect earlier documents too: with --verify, any document of a band may be the near one."""
        return bool(self.near.against) and self.near.verify is not None

    def earlier_signatures(self) -> list[EarlierSignatures]:
        """Return the signatures of earlier deduplications."""
        minhash = self.near.parameters(self.key)["minhash"]
        found = earlier_signatures(self.near.against, minhash, self.ledger, self.storage_options)
        for one in found:
            one.require(self.partition or found[0].partition)
            if self.near.verify is not None:
                one.require_texts({**self.near.parameters(self.key), "group": self.files.group})
        return found

    def decided_partition(self, say: Callable[[str], None]) -> Partition:
        """Return the partition of the bands, equal to the partition of earlier deduplications."""
        found = self.earlier_signatures()
        return found[0].partition if found else super().decided_partition(say)

    def work(self) -> Callable[[Task], Any]:
        """Return the function that connects documents."""
        from ledgerbeam.transforms.dedup.near import PairRecords  # noqa: PLC0415 - brings Beam

        return PairRecords(self._among_earlier)

    def encoder(self) -> str | ShardEncoder:
        """Return the encoder that writes a forest as a run file."""
        from ledgerbeam.transforms.exchange.scatter import RunEncoder  # noqa: PLC0415 - brings Beam

        return RunEncoder(())
