"""The jobs of ``ledgerbeam dedup --near``: two exchanges, one behind the other, and a filter of the files.

    scatter   the bands of each document: hashes, and its place          ledger NEAR/cluster/pairs/scatter
    pairs     what shares a band is connected                            ledger NEAR/cluster/pairs
    cluster   all that is connected: of each cluster one stays           ledger NEAR/cluster
    near      the files without the others                               ledger NEAR

With ``--mark`` the third one is the last, and writes the list. The run files of the first one are the signatures: they
stay, so that of documents that are added later only those are signed.

With ``--verify`` what is connected is only candidates, and another exchange is behind the third stage, which decides:

    texts     the n-grams of the candidates, which are read again        ledger NEAR/texts
    verify    what shares a band and has enough of them in common        ledger NEAR/verify
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from ledgerbeam.errors import UsageError
from ledgerbeam.io import Options, ShardEncoder
from ledgerbeam.io.exchange.partition import Partition
from ledgerbeam.io.listing.own_files import OwnFiles
from ledgerbeam.ledger import Task
from ledgerbeam.ledger.model.job import Json
from ledgerbeam.pipelines.jobs.dedup import LIST_BUCKETS, DecideJob, DedupJob, FilesWithLists, ListedJob
from ledgerbeam.pipelines.jobs.earlier import EarlierSignatures, earlier_signatures
from ledgerbeam.pipelines.jobs.exchange import GatherJob, KeyChoice, RunsJob, ScatterJob, as_run
from ledgerbeam.pipelines.jobs.partition import PartitionLimits
from ledgerbeam.pipelines.jobs.stages import CLUSTER, PAIRS, TEXTS, VERIFY
from ledgerbeam.sizes import size_text
from ledgerbeam.sources.listed import ChosenSources, ListBuckets
from ledgerbeam.transforms.minhash import VERSION

if TYPE_CHECKING:
    from ledgerbeam.transforms.minhash import MinHash

__all__ = [
    "CandidatesJob",
    "ClusterJob",
    "NearChoice",
    "NearJob",
    "PairsJob",
    "SignJob",
    "TextsJob",
    "VerifyJob",
    "marking_job",
]

SIGNATURES_FOLDER = "_signatures"
"""Folder in an output folder of the signatures."""

PART_RECORDS = 1 << 20
"""Bands of a part of a bucket, about: what is held of them is some hundred bytes each."""

COMPARED_BYTES = 1 << 26
"""Of the n-grams of a part of a bucket, about: at least those of all that is connected."""

MOST_PAIRS_BYTES = 1 << 30
"""Of the pairs of all parts, together: all of them are clustered by one process."""


@dataclass(frozen=True)
class NearChoice:
    """When documents are near.

    Attributes:
        bands: How many bands a signature has: two documents that share one are near.
        rows: MinHashes of a band.
        ngram: Words of an n-gram.
        verify: What documents that share a band must have in common of their n-grams to be near; None for nothing.
        against: Ledgers of earlier deduplications, whose documents stay.
    """

    bands: int
    rows: int
    ngram: int
    verify: float | None = None
    against: tuple[str, ...] = ()

    def minhash(self) -> MinHash:
        """Return how texts are signed; it brings Beam."""
        from ledgerbeam.transforms.minhash import MinHash  # noqa: PLC0415

        return MinHash(self.bands, self.rows, self.ngram)

    def verified(self) -> dict[str, Json]:
        """Return what of it shapes the outputs besides signatures."""
        return {} if self.verify is None else {VERIFY: self.verify}

    def compared(self) -> dict[str, Json]:
        """Return what of it shapes the pairs besides signatures."""
        return {"against": list(self.against)} if self.against else {}

    def parameters(self, key: KeyChoice) -> dict[str, Json]:
        """Return what of it shapes signatures.

        Args:
            key: Finds the text.
        """
        near: dict[str, Json] = {"bands": self.bands, "rows": self.rows, "ngram": self.ngram, "version": VERSION}
        return {**key.parameters(), "order": "near", "minhash": near}


@dataclass(frozen=True, kw_only=True)
class SignJob(ScatterJob):
    """Writes the bands of the documents of each task.

    Attributes:
        near: When documents are near.
    """

    command = "sign"

    near: NearChoice
    with_records: bool = False

    def shaping(self) -> dict[str, Json]:
        """Return what shapes the run files, but for where they lie."""
        return {**super().shaping(), **self.near.parameters(self.key)}

    def work(self) -> Callable[[Task], Any]:
        """Return what signs the records of each task."""
        from ledgerbeam.transforms.near import SignRecords  # noqa: PLC0415 - brings Beam

        score = None if self.prefer is None else self.prefer.keys(self.files.base)
        return SignRecords(self.key.keys(self.files.base), self.near.minhash(), score)

    def encoder(self) -> str | ShardEncoder:
        """Return what writes run files of hashes."""
        from ledgerbeam.transforms.near import HashEncoder  # noqa: PLC0415 - brings Beam

        return HashEncoder(self._partition.cuts_of(1), self._partition.block_bytes)


@dataclass(frozen=True, kw_only=True)
class PairsJob(GatherJob, RunsJob):
    """Connects the documents that share a band.

    Attributes:
        near: When documents are near.
        signatures: Folder of the signatures.
        prefer: Which document of a cluster stays; None for the first.
        own: What is written, which is no source.
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
        """Return the first job, which signs."""
        return SignJob(**{**self.scatter_values(), "own": self.own}, near=self.near, prefer=self.prefer)

    @property
    def sizes(self) -> PartitionLimits:
        """The sizes of its buckets and their parts, by the sources."""
        size = self.bucket_bytes or 2**30
        return PartitionLimits(size, size)

    @property
    def merged_bytes(self) -> int:
        """Size of a task that merges, by the records: what is held of hashes is much larger than they are."""
        return self.shard_bytes

    @property
    def keeps_shards(self) -> bool:
        """False: the pairs go once they are clustered."""
        return False

    def shaping(self) -> dict[str, Json]:
        """Return what shapes the pairs, but for where they lie; not how the bands are cut into buckets."""
        prefer: dict[str, Json] = {} if self.prefer is None else {"prefer": self.prefer.parameters()}
        return {**self.files.parameters(), **self.near.parameters(self.key), **self.near.compared(), **prefer}

    def earlier_signatures(self) -> list[EarlierSignatures]:
        """Return the signatures of earlier deduplications."""
        minhash = self.near.parameters(self.key)["minhash"]
        found = earlier_signatures(self.near.against, minhash, self.ledger, self.storage_options)
        for one in found:
            one.require(self.partition or found[0].partition)
        return found

    def decided_partition(self, say: Callable[[str], None]) -> Partition:
        """Return how the bands are cut into buckets: as those of earlier deduplications."""
        found = self.earlier_signatures()
        return found[0].partition if found else super().decided_partition(say)

    def work(self) -> Callable[[Task], Any]:
        """Return what connects documents."""
        from ledgerbeam.transforms.near import PairRecords  # noqa: PLC0415 - brings Beam

        return PairRecords()

    def encoder(self) -> str | ShardEncoder:
        """Return what writes a forest as a run file."""
        from ledgerbeam.transforms.scatter import RunEncoder  # noqa: PLC0415 - brings Beam

        return RunEncoder(())


@dataclass(frozen=True, kw_only=True)
class _NearDecideJob(DecideJob):
    """Finds which documents go.

    Attributes:
        near: When documents are near.
        signatures: Folder of the signatures.
    """

    near: NearChoice
    signatures: str

    def writer_values(self) -> dict[str, Any]:
        """Return the values of the job before, but for its ledger and how its order is cut."""
        return {
            "output": self.first_folder,
            "files": self.files,
            "key": self.key,
            "near": self.near,
            "signatures": self.signatures,
            "prefer": self.prefer,
            "max_slices": self.max_slices,
            "own": self.scatter_values()["own"],
            **as_run(self),
        }

    def places(self) -> dict[str, list[str]]:
        """Return the URLs that workers must reach, by how a message names them."""
        return {**super().places(), "--against": list(self.near.against)}

    def encoder(self) -> str | ShardEncoder:
        """Return what writes the documents that go: lines, or a run file by the files that they are of."""
        from ledgerbeam.transforms.near import HashEncoder  # noqa: PLC0415 - brings Beam

        return self.to if self.is_last else HashEncoder(Partition(LIST_BUCKETS).cuts())


@dataclass(frozen=True, kw_only=True)
class ClusterJob(_NearDecideJob):
    """Finds which documents go: of each cluster all but one."""

    command = "cluster"

    shard_bytes: int = MOST_PAIRS_BYTES

    def decided_partition(self, say: Callable[[str], None]) -> Partition:  # noqa: ARG002
        """Return how the pairs are cut: not at all, since all of them are clustered together."""
        return Partition(1)

    def first_writers(self) -> dict[str, RunsJob]:
        """Return the job before, which pairs."""
        ledger = f"{self.ledger}/{PAIRS}" if self.ledger else ""
        values = {**self.writer_values(), "bucket_bytes": self.bucket_bytes}
        return {PAIRS: PairsJob(**values, ledger=ledger)}

    def check_buckets(self, sizes: Sequence[int]) -> None:
        """Refuse more pairs than one process can cluster.

        Args:
            sizes: Of their records in bytes.

        Raises:
            UsageError: There are more.
        """
        if sum(sizes) > MOST_PAIRS_BYTES:
            raise UsageError(
                f"near duplicates: expected pairs of at most {size_text(MOST_PAIRS_BYTES)}, which one process clusters "
                f"in some times that memory, found {sum(sizes):,} bytes; remove equal records first, with ledgerbeam "
                "dedup --by or --content, or give fewer bands or more rows, such as --minhash 8x12"
            )

    def work(self) -> Callable[[Task], Any]:
        """Return what clusters."""
        from ledgerbeam.transforms.near import FindClusters  # noqa: PLC0415 - brings Beam

        return FindClusters(self.is_last)


@dataclass(frozen=True, kw_only=True)
class CandidatesJob(ClusterJob):
    """Finds which documents are to be compared: all that share a band with another one."""

    command = "candidates"

    def work(self) -> Callable[[Task], Any]:
        """Return what clusters."""
        from ledgerbeam.transforms.near import FindCandidates  # noqa: PLC0415 - brings Beam

        return FindCandidates()


class _CandidateFiles(FilesWithLists):
    """Of files the documents that are to be compared."""

    def opened(self, options: Options) -> ChosenSources:
        """Return how workers open the files."""
        return ChosenSources(self.opened_files(options), self.tables, ListBuckets(self.url, dict(options or {})))


@dataclass(frozen=True, kw_only=True)
class TextsJob(ListedJob, RunsJob):
    """Writes the n-grams of the documents that are to be compared, by what is connected.

    Attributes:
        near: When documents are near.
        signatures: Folder of the signatures.
        partition: How the candidates are cut into buckets; None until that is decided.
        cluster: Ledger of the stage before.
        own: What is written, which is no source.
    """

    command = "texts"

    joined = _CandidateFiles

    to: str = "run"
    near: NearChoice
    signatures: str
    partition: Partition | None = None
    cluster: str = ""
    own: OwnFiles = field(default_factory=OwnFiles)

    def decide(self) -> CandidatesJob:
        """Return the job that finds the candidates, which has those before it."""
        values = self.decide_values(self.cluster, self.own)
        return CandidatesJob(**values, near=self.near, signatures=self.signatures)

    def scatters(self) -> list[ScatterJob]:
        """Return the first job of all, which signs."""
        return self.decide().scatters()

    @property
    def keeps_shards(self) -> bool:
        """False: the n-grams go once they are compared."""
        return False

    def shaping(self) -> dict[str, Json]:
        """Return what shapes the run files, but for where they lie."""
        partition = {} if self.partition is None else self.partition.parameters()
        prefer: dict[str, Json] = {} if self.prefer is None else {"prefer": self.prefer.parameters()}
        return {**self.files.parameters(), **self.near.parameters(self.key), "moves": "n-grams", **prefer, **partition}

    def parameters(self) -> dict[str, Json]:
        """Return what shapes the run files besides sources and folder."""
        return self.shaping()

    def work(self) -> Callable[[Task], Any]:
        """Return what finds the n-grams."""
        from ledgerbeam.transforms.verify import CollectGrams  # noqa: PLC0415 - brings Beam

        score = None if self.prefer is None else self.prefer.keys(self.files.base)
        return CollectGrams(self.key.keys(self.files.base), self.near.minhash(), score)

    def encoder(self) -> str | ShardEncoder:
        """Return what writes run files of hashes."""
        from ledgerbeam.transforms.near import HashEncoder  # noqa: PLC0415 - brings Beam

        if self.partition is None:
            raise AssertionError("the partition is decided when the job is opened")
        return HashEncoder(self.partition.cuts_of(1), self.partition.block_bytes)

    def _own_files(self) -> OwnFiles:
        return self.own


@dataclass(frozen=True, kw_only=True)
class VerifyJob(_NearDecideJob):
    """Finds which documents go: of those that share a band and have enough n-grams in common all but one.

    Attributes:
        earlier: Folder of the ledgers of the stages before; empty for that of its own ledger.
    """

    command = "verify"

    shard_bytes: int = COMPARED_BYTES
    earlier: str = ""

    def first_writers(self) -> dict[str, RunsJob]:
        """Return the job before, which reads the candidates."""
        stages = self.earlier or self.ledger
        texts = TextsJob(
            **self.writer_values(),
            bucket_bytes=self.sizes.bucket_bytes,
            partition=self.partition,
            ledger=f"{stages}/{TEXTS}" if stages else "",
            cluster=f"{stages}/{CLUSTER}" if stages else "",
        )
        return {TEXTS: texts}

    def parameters(self) -> dict[str, Json]:
        """Return what shapes the outputs besides sources, folder and format."""
        return self.near.verified()

    def work(self) -> Callable[[Task], Any]:
        """Return what compares."""
        from ledgerbeam.transforms.verify import VerifyClusters  # noqa: PLC0415 - brings Beam

        if self.near.verify is None:
            raise AssertionError("there is a share to verify")
        return VerifyClusters(self.is_last, self.near.minhash(), self.near.verify, self.prefer is not None)


@dataclass(frozen=True, kw_only=True)
class NearJob(DedupJob):
    """Writes the files without near duplicates.

    Attributes:
        near: When documents are near.
    """

    command = "near"

    near: NearChoice

    def decide(self) -> DecideJob:
        """Return the job that decides, which has those before it."""
        near: dict[str, Any] = {"near": self.near, "signatures": f"{self.output}/{SIGNATURES_FOLDER}"}
        if self.near.verify is None:
            return ClusterJob(**self.decide_values(self.ledger_of(CLUSTER), self._own_files()), **near)
        values = self.decide_values(self.ledger_of(VERIFY), self._own_files())
        return VerifyJob(**values, **near, earlier=self.ledger)

    def places(self) -> dict[str, list[str]]:
        """Return the URLs that workers must reach, by how a message names them."""
        return {**super().places(), "--against": list(self.near.against)}

    def parameters(self) -> dict[str, Json]:
        """Return what shapes the outputs besides sources, folder and format."""
        return {
            **super().parameters(),
            **self.near.parameters(self.key),
            **self.near.compared(),
            **self.near.verified(),
        }


def marking_job(near: NearChoice, *, output: str, **values: Any) -> DecideJob:
    """Return the job that decides as the last one, which writes the list to an output folder.

    Args:
        near: When documents are near.
        output: The folder.
        values: All others of a `DecideJob`.
    """
    kind = ClusterJob if near.verify is None else VerifyJob
    return kind(near=near, output=output, signatures=f"{output}/{SIGNATURES_FOLDER}", **values)
