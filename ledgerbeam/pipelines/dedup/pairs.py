"""The jobs of ``ledgerbeam dedup --near`` before clusters are found: sign documents and connect near ones.

    scatter   the bands of each document, as hashes, and its position    ledger CLUSTER/pairs/scatter
    pairs     connections of documents that share a band                 ledger CLUSTER/pairs

The run files of the first job are the signatures. They are kept, so that a later run signs only added documents.

If there are more pairs than one process can cluster, more jobs follow, see `io.exchange.hash_run`:

    stars     each document with the least document of its pairs         ledger CLUSTER/stars
    round-N   large stars and small stars in turn, until no change       ledger CLUSTER/round-1, CLUSTER/round-2, ...
    labels    each document with its cluster                             ledger CLUSTER/labels

Each of these jobs is an exchange with buckets by hash, like the signatures. A star connects one document, the least in
a fixed order, with others, its neighbors. The last round is the first round of large stars that changes nothing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, ClassVar, Self

from ledgerbeam.io import ShardEncoder
from ledgerbeam.io.exchange.hash_run import CHANGES
from ledgerbeam.io.exchange.run_file import level_in
from ledgerbeam.io.exchange.slices import Partition
from ledgerbeam.io.listing.left_out import OwnFiles
from ledgerbeam.ledger import Job, Task, merged_statistics
from ledgerbeam.ledger.model.job import Json
from ledgerbeam.pipelines.dedup.earlier import EarlierSignatures, earlier_signatures
from ledgerbeam.pipelines.dedup.exact import HashJob, HashScatterJob
from ledgerbeam.pipelines.exchange.buckets import Reading
from ledgerbeam.pipelines.exchange.jobs import (
    BucketsJob,
    GatherJob,
    RunsJob,
    ScatterJob,
    as_run,
)
from ledgerbeam.pipelines.exchange.partition import KeyChoice, decided, partition_parameters, preference, score_of
from ledgerbeam.pipelines.exchange.stages import PAIRS, ROUND, STARS, VERIFY, stage_ledger
from ledgerbeam.pipelines.jobs.spec import FinishedStage
from ledgerbeam.transforms.dedup.duplicates import HashEncoder, PairRecords, SignRecords
from ledgerbeam.transforms.dedup.minhash import VERSION, MinHash
from ledgerbeam.transforms.dedup.stars import FindLabels, MakeStars, TurnLargeStars, TurnSmallStars
from ledgerbeam.transforms.exchange.scatter import RunEncoder

PART_RECORDS = 1 << 20  # approximate bytes of the bands in a part of a bucket; each takes some hundred in memory
CLUSTER_BYTES = 1 << 30  # maximum size of the pairs of all parts that one process clusters, in bytes
STARS_FOLDER = "_stars"  # folder for the outputs of these jobs in an output folder

PART_BYTES = 1 << 25  # approximate bytes of a bucket part: two million edges, of some hundred bytes in memory each


@dataclass(frozen=True)
class NearChoice:
    """Parameters of near duplicates."""

    bands: int  # number of bands of a signature. Documents that share a band are near.
    rows: int  # number of MinHashes of a band
    ngram: int  # number of words of an n-gram
    # Minimum share of common n-grams of near documents that share a band; None for no check.
    verify: float | None = None
    against: tuple[str, ...] = ()  # ledgers of earlier deduplications, whose documents stay
    # Maximum size of pairs that one process clusters, in bytes. It does not affect outputs.
    cluster_bytes: int = CLUSTER_BYTES

    def minhash(self) -> MinHash:
        """Return the object that signs texts."""
        return MinHash(self.bands, self.rows, self.ngram)

    def verified(self) -> dict[str, Json]:
        """Return the parameter of ``--verify``; empty without this option."""
        return {} if self.verify is None else {VERIFY: self.verify}

    def compared(self) -> dict[str, Json]:
        """Return the parameter of ``--against``; empty without this option."""
        return {"against": list(self.against)} if self.against else {}

    def parameters(self, key: KeyChoice) -> dict[str, Json]:
        """Return the parameters of signatures."""
        near: dict[str, Json] = {"bands": self.bands, "rows": self.rows, "ngram": self.ngram, "version": VERSION}
        return {**key.parameters(), "order": "near", "minhash": near}


@dataclass(frozen=True, kw_only=True)
class SignJob(HashScatterJob):
    """Writes the bands of the documents of each task."""

    command = "sign"

    near: NearChoice

    def shaping(self) -> dict[str, Json]:
        return {**super().shaping(), **self.near.parameters(self.key)}

    def work(self) -> Callable[[Task], Any]:
        base = self.files.base
        return SignRecords(self.key.keys(base), self.near.minhash(), score_of(self.prefer, base))


@dataclass(frozen=True, kw_only=True)
class PairsJob(HashJob, RunsJob):
    """Connects the documents that share a band."""

    command = "pairs"
    keeps_shards = False  # the pairs are removed after clustering
    keeps_runs: ClassVar[bool] = True

    to: str = "run"
    shard_bytes: int = PART_RECORDS
    near: NearChoice
    signatures: str  # folder of the signatures
    prefer: KeyChoice | None = None  # score of a document. The best of a cluster stays; None keeps the first.
    own: OwnFiles = field(default_factory=OwnFiles)

    @property
    def first_folder(self) -> str:
        return self.signatures

    def scatter(self) -> ScatterJob:
        return SignJob(**{**self.scatter_values(), "own": self.own}, near=self.near, prefer=self.prefer)

    def shaping(self) -> dict[str, Json]:
        """Return the parameters of the pairs, without their location and the partition of the bands."""
        among: dict[str, Json] = {"among earlier": True} if self._among_earlier else {}
        near = {**self.near.parameters(self.key), **self.near.compared(), **among}
        return {**self.files.parameters(), **near, **preference(self.prefer)}

    @property
    def _among_earlier(self) -> bool:
        """Whether to connect also earlier documents with each other: --verify compares all documents of a band."""
        return bool(self.near.against) and self.near.verify is not None

    def earlier_signatures(self) -> list[EarlierSignatures]:
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
        return PairRecords(self._among_earlier)

    def encoder(self) -> str | ShardEncoder:
        """Return the encoder that writes the pairs of a task, a forest of connected documents, as a run file."""
        return RunEncoder(())


@dataclass(frozen=True, kw_only=True)
class _StarJob(GatherJob, RunsJob):
    """A job between `PairsJob` and `ClusterJob`: the stars, a round, or the labels."""

    keeps_shards = False  # the outputs are removed once the clusters are known
    keeps_columns = False
    within_keys: ClassVar[bool] = False

    to: str = "run"
    shard_bytes: int
    near: NearChoice
    signatures: str
    prefer: KeyChoice | None = None
    own: OwnFiles = field(default_factory=OwnFiles)
    cluster: str  # ledger of the stage that clusters
    pairs_folder: str  # folder of the pairs
    folder: str  # parent folder of the outputs of these jobs

    @property
    def first_folder(self) -> str:
        return self.folder

    def pairs(self) -> PairsJob:
        """Return the job that finds pairs. It runs before the jobs of this class."""
        values = as_run(self, "files", "key", "near", "signatures", "prefer", "own", "bucket_bytes", "max_slices")
        return PairsJob(output=self.pairs_folder, ledger=stage_ledger(self.cluster, PAIRS), **values)

    def stars(self) -> StarsJob:
        """Return the job before the rounds: it turns each tree of pairs into a star around its least document."""
        return StarsJob(**self._values(STARS))

    def turn(self, number: int) -> RunsJob:
        """Return the job of the round with this number, from 1; the job of the stars for 0."""
        if not number:
            return self.stars()
        kind = LargeStarsJob if number % 2 else SmallStarsJob
        return kind(**self._values(f"{ROUND}-{number}"), number=number)

    def _values(self, name: str) -> dict[str, Any]:
        """Return the values for the job of this name, with its own output folder and ledger."""
        values = {one.name: getattr(self, one.name) for one in dataclasses.fields(_StarJob)}
        places = {"output": f"{self.folder}/{name}", "ledger": stage_ledger(self.cluster, name)}
        return {**values, **places, "state": ""}

    def scatters(self) -> list[ScatterJob]:
        return self.pairs().scatters()

    decisions = ("shard_bytes", *GatherJob.decisions)

    def with_recorded(self, stored: Job) -> Self:
        size = stored.parameters.get("shard_bytes")
        job = super().with_recorded(stored)
        return dataclasses.replace(job, shard_bytes=size) if isinstance(size, int) and size > 0 else job

    def shaping(self) -> dict[str, Json]:
        return {**self.pairs().shaping(), "moves": "stars", **partition_parameters(self.partition)}

    def shaping_of_runs(self) -> dict[str, Json]:
        return self.shaping()

    def encoder(self) -> str | ShardEncoder:
        partition = decided(self.partition)  # of the signatures
        return HashEncoder(partition.cuts(), partition.block_bytes, level=level_in(str(self.output)))


@dataclass(frozen=True, kw_only=True)
class StarsJob(_StarJob):
    """Turns each tree of pairs into a star around its least document."""

    command = "stars"

    within_keys: ClassVar[bool] = True

    @property
    def first_folder(self) -> str:
        return self.pairs_folder

    def reading(self) -> Reading:
        """Return the parameters for reading the run files of pairs. All pairs are in one bucket."""
        return Reading(self.first_folder, self.listing_url, self.storage_options, Partition(1))

    def first_writers(self) -> dict[str, RunsJob]:
        return {PAIRS: self.pairs()}

    def work(self) -> Callable[[Task], Any]:
        return MakeStars()


@dataclass(frozen=True, kw_only=True)
class _RoundJob(_StarJob):
    """A round between the stars and the labels: large stars or small stars."""

    number: int

    def first_writers(self) -> dict[str, RunsJob]:
        before = self.turn(self.number - 1)
        return {before.ledger.rpartition("/")[2]: before}

    def spent(self, read: BucketsJob) -> list[str]:  # noqa: ARG002 - nothing is merged
        """Return the folder to remove: of the round before, but not of the stars, which `LabelsJob` reads."""
        return [] if self.number == 1 else [self.turn(self.number - 1).output]


@dataclass(frozen=True, kw_only=True)
class LargeStarsJob(_RoundJob):
    """Connects each greater neighbor of a document with the least document of the neighborhood."""

    command = "large-stars"

    within_keys: ClassVar[bool] = True

    def work(self) -> Callable[[Task], Any]:
        return TurnLargeStars()


@dataclass(frozen=True, kw_only=True)
class SmallStarsJob(_RoundJob):
    """Connects a document, and its lesser neighbors, with the least of these neighbors."""

    command = "small-stars"

    def work(self) -> Callable[[Task], Any]:
        return TurnSmallStars()


@dataclass(frozen=True, kw_only=True)
class LabelsJob(_StarJob):
    """Finds the cluster of each document after the rounds."""

    command = "labels"

    rounds: int = 1  # known number of rounds. The last round is one of large stars.

    def first_writers(self) -> dict[str, RunsJob]:
        """Return two jobs: the stars, which have the documents, and the last round, which has their connections."""
        return {STARS: self.stars(), f"{ROUND}-{self.rounds}": self.turn(self.rounds)}

    def after(self, before: Sequence[FinishedStage]) -> Self | None:
        """Return the job with two more rounds if the last round has changed anything; else None."""
        changes = merged_statistics(before[-1].store, CHANGES).get(CHANGES)
        return None if changes is None or not changes.value() else dataclasses.replace(self, rounds=self.rounds + 2)

    def unused(self) -> Iterator[str]:
        return rounds_from(self.cluster, self.rounds + 1)

    def spent(self, read: BucketsJob) -> list[str]:  # noqa: ARG002 - nothing is merged
        return [writer.output for writer in self.first_writers().values()]

    def work(self) -> Callable[[Task], Any]:
        return FindLabels()


def rounds_from(cluster: str, first: int) -> Iterator[str]:
    """Yield the ledgers of all possible rounds from a number on, without end."""
    return (f"{cluster}/{ROUND}-{number}" for number in count(first))
