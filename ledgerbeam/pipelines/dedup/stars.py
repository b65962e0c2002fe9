"""Jobs between pairs and clusters, for more pairs than one process can cluster; see `io.exchange.stars`.

    stars     each document with the least document of its pairs         ledger CLUSTER/stars
    round-N   large stars and small stars in turn, until no change       ledger CLUSTER/round-1, CLUSTER/round-2, ...
    labels    each document with its cluster                             ledger CLUSTER/labels

Each job is an exchange with buckets by hash, like the signatures. The number of rounds is known after the last round,
which has counted only stars.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, ClassVar, Self

from ledgerbeam.io import ShardEncoder
from ledgerbeam.io.exchange.hash_run import CHANGES
from ledgerbeam.io.exchange.slices import Partition
from ledgerbeam.io.listing.left_out import OwnFiles
from ledgerbeam.ledger import Job, Task, merged_statistics
from ledgerbeam.ledger.model.job import Json
from ledgerbeam.pipelines.dedup.pairs import NearChoice, PairsJob
from ledgerbeam.pipelines.exchange.bucket_jobs import BucketsJob
from ledgerbeam.pipelines.exchange.buckets import Reading
from ledgerbeam.pipelines.exchange.jobs import GatherJob, RunsJob, ScatterJob, as_run
from ledgerbeam.pipelines.exchange.partition import KeyChoice
from ledgerbeam.pipelines.exchange.stages import PAIRS, ROUND, STARS
from ledgerbeam.pipelines.jobs.spec import FinishedStage

STARS_FOLDER = "_stars"
"""Folder for the outputs of these jobs in an output folder."""

PART_BYTES = 1 << 25
"""Approximate size of the records of a part of a bucket, in bytes: some two million edges, of which a worker holds some
hundred bytes each."""


def rounds_from(cluster: str, first: int) -> Iterator[str]:
    """Yield the ledgers of rounds.

    Args:
        cluster: Ledger of the stage that clusters.
        first: Number of the first round.
    """
    return (f"{cluster}/{ROUND}-{number}" for number in count(first))


@dataclass(frozen=True, kw_only=True)
class _StarJob(GatherJob, RunsJob):
    """A job between pairs and clusters.

    Attributes:
        near: Parameters of near duplicates.
        signatures: Folder of the signatures.
        prefer: Score of a document. The best of a cluster stays; None keeps the first.
        own: The job's own outputs, which are not sources.
        cluster: Ledger of the stage that clusters.
        pairs_folder: Folder of the pairs.
        folder: Parent folder of the outputs of these jobs.
    """

    keeps_columns = False
    within_keys: ClassVar[bool] = False

    to: str = "run"
    shard_bytes: int
    near: NearChoice
    signatures: str
    prefer: KeyChoice | None = None
    own: OwnFiles = field(default_factory=OwnFiles)
    cluster: str
    pairs_folder: str
    folder: str

    @property
    def first_folder(self) -> str:
        """The parent folder of the outputs of these jobs."""
        return self.folder

    def pairs(self) -> PairsJob:
        """Return the job that finds pairs, before all of these."""
        return PairsJob(
            output=self.pairs_folder,
            files=self.files,
            key=self.key,
            near=self.near,
            signatures=self.signatures,
            prefer=self.prefer,
            own=self.own,
            bucket_bytes=self.bucket_bytes,
            max_slices=self.max_slices,
            ledger=f"{self.cluster}/{PAIRS}" if self.cluster else "",
            **as_run(self),
        )

    def stars(self) -> StarsJob:
        """Return the first of these jobs."""
        return StarsJob(**self._values(STARS))

    def turn(self, number: int) -> RunsJob:
        """Return the job of a round; the stars for number 0."""
        if not number:
            return self.stars()
        kind = LargeStarsJob if number % 2 else SmallStarsJob
        return kind(**self._values(f"{ROUND}-{number}"), number=number)

    def _values(self, name: str) -> dict[str, Any]:
        """Return the values of another job of these."""
        values = {one.name: getattr(self, one.name) for one in dataclasses.fields(_StarJob)}
        ledger = f"{self.cluster}/{name}" if self.cluster else ""
        return {**values, "output": f"{self.folder}/{name}", "ledger": ledger, "state": ""}

    def scatters(self) -> list[ScatterJob]:
        """Return the first job of the deduplication, which signs documents."""
        return self.pairs().scatters()

    decisions = ("shard_bytes", *GatherJob.decisions)

    def with_recorded(self, stored: Job) -> Self:
        """Return the job with its size of parts."""
        size = stored.parameters.get("shard_bytes")
        job = super().with_recorded(stored)
        return dataclasses.replace(job, shard_bytes=size) if isinstance(size, int) and size > 0 else job

    @property
    def keeps_shards(self) -> bool:
        """False: the outputs are removed once the clusters are known."""
        return False

    def shaping(self) -> dict[str, Json]:
        """Return the parameters of the run files, without their location."""
        partition = {} if self.partition is None else self.partition.parameters()
        return {**self.pairs().shaping(), "moves": "stars", **partition}

    def shaping_of_runs(self) -> dict[str, Json]:
        """Return the parameters of the run files that it reads, without their location."""
        return self.shaping()

    def encoder(self) -> str | ShardEncoder:
        """Return the encoder of run files of hashes."""
        from ledgerbeam.transforms.dedup.near import HashEncoder  # noqa: PLC0415 - brings Beam

        if self.partition is None:
            raise AssertionError("the partition is that of the signatures")
        return HashEncoder(self.partition.cuts(), self.partition.block_bytes)


@dataclass(frozen=True, kw_only=True)
class StarsJob(_StarJob):
    """Turns each tree of pairs into a star around its least document."""

    command = "stars"

    within_keys: ClassVar[bool] = True

    @property
    def first_folder(self) -> str:
        """The folder of the pairs."""
        return self.pairs_folder

    def reading(self) -> Reading:
        """Return the reading of pairs, which are written as one bucket."""
        return Reading(self.first_folder, self.listing_url, self.storage_options, Partition(1))

    def first_writers(self) -> dict[str, RunsJob]:
        """Return the preceding job, which finds pairs."""
        return {PAIRS: self.pairs()}

    def work(self) -> Callable[[Task], Any]:
        """Return the function that makes stars."""
        from ledgerbeam.transforms.dedup.stars import MakeStars  # noqa: PLC0415 - brings Beam

        return MakeStars()


@dataclass(frozen=True, kw_only=True)
class _RoundJob(_StarJob):
    """One of the rounds.

    Attributes:
        number: Number of the round.
    """

    number: int

    def first_writers(self) -> dict[str, RunsJob]:
        """Return the round before."""
        before = self.turn(self.number - 1)
        return {before.ledger.rpartition("/")[2]: before}

    def spent(self, read: BucketsJob) -> list[str]:  # noqa: ARG002 - nothing is merged
        """Return the folder of the round before. The folder of stars stays, because it has the documents."""
        return [] if self.number == 1 else [self.turn(self.number - 1).output]


@dataclass(frozen=True, kw_only=True)
class LargeStarsJob(_RoundJob):
    """Connects each greater neighbor of a document with the least document of the neighborhood."""

    command = "large-stars"

    within_keys: ClassVar[bool] = True

    def work(self) -> Callable[[Task], Any]:
        """Return the function that connects documents, and counts."""
        from ledgerbeam.transforms.dedup.stars import TurnLargeStars  # noqa: PLC0415 - brings Beam

        return TurnLargeStars()


@dataclass(frozen=True, kw_only=True)
class SmallStarsJob(_RoundJob):
    """Connects a document and its lesser neighbors with the least of them."""

    command = "small-stars"

    def work(self) -> Callable[[Task], Any]:
        """Return the function that connects documents."""
        from ledgerbeam.transforms.dedup.stars import TurnSmallStars  # noqa: PLC0415 - brings Beam

        return TurnSmallStars()


@dataclass(frozen=True, kw_only=True)
class LabelsJob(_StarJob):
    """Finds the cluster of each document after the rounds.

    Attributes:
        rounds: Known number of rounds. The last round is one of large stars.
    """

    command = "labels"

    rounds: int = 1

    def first_writers(self) -> dict[str, RunsJob]:
        """Return the jobs with the documents, and with the connections of the last round."""
        return {STARS: self.stars(), f"{ROUND}-{self.rounds}": self.turn(self.rounds)}

    def after(self, before: Sequence[FinishedStage]) -> Self | None:
        """Return the job with two more rounds if the last round has changed anything; else None."""
        changes = merged_statistics(before[-1].store, CHANGES).get(CHANGES)
        return None if changes is None or not changes.value() else dataclasses.replace(self, rounds=self.rounds + 2)

    def unused(self) -> Iterator[str]:
        """Yield the ledgers of rounds that are no longer needed."""
        return rounds_from(self.cluster, self.rounds + 1)

    def spent(self, read: BucketsJob) -> list[str]:  # noqa: ARG002 - nothing is merged
        """Return the folders of all earlier jobs."""
        return [writer.output for writer in self.first_writers().values()]

    def work(self) -> Callable[[Task], Any]:
        """Return the function that finds clusters."""
        from ledgerbeam.transforms.dedup.stars import FindLabels  # noqa: PLC0415 - brings Beam

        return FindLabels()
