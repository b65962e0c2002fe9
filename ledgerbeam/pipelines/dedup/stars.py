"""The jobs between pairs and clusters of more pairs than one process can cluster, see `io.exchange.stars`.

    stars     each document with the least one of its pairs              ledger CLUSTER/stars
    round-N   large stars and small stars in turn, until nothing changes ledger CLUSTER/round-1, CLUSTER/round-2, ...
    labels    each document with its cluster                             ledger CLUSTER/labels

Each is an exchange, whose buckets are cut by hashes, as those of signatures are. How many rounds there are is known
when the last one is done: it has counted nothing that is no star.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, ClassVar, Self

from ledgerbeam.io import ShardEncoder
from ledgerbeam.io.exchange.partition import Partition
from ledgerbeam.io.exchange.stars import CHANGES
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
"""Folder in an output folder of what these jobs write."""

PART_BYTES = 1 << 25
"""Of the records of a part of a bucket: some two million edges, of which a worker holds some hundred bytes each."""


def rounds_from(cluster: str, first: int) -> Iterator[str]:
    """Yield the ledgers of rounds.

    Args:
        cluster: Ledger of the stage that clusters.
        first: Number of the first one.
    """
    return (f"{cluster}/{ROUND}-{number}" for number in count(first))


@dataclass(frozen=True, kw_only=True)
class _StarJob(GatherJob, RunsJob):
    """A job between pairs and clusters.

    Attributes:
        near: When documents are near.
        signatures: Folder of the signatures.
        prefer: Which document of a cluster stays; None for the first.
        own: What is written, which is no source.
        cluster: Ledger of the stage that clusters.
        pairs_folder: Folder of the pairs.
        folder: Folder in which these jobs have theirs.
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
        """The folder of all of these jobs."""
        return self.folder

    def pairs(self) -> PairsJob:
        """Return the job before all of these, which pairs."""
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
        """Return the first one of these jobs."""
        return StarsJob(**self._values(STARS))

    def turn(self, number: int) -> RunsJob:
        """Return what one of the rounds does; before the first one there are stars."""
        if not number:
            return self.stars()
        kind = LargeStarsJob if number % 2 else SmallStarsJob
        return kind(**self._values(f"{ROUND}-{number}"), number=number)

    def _values(self, name: str) -> dict[str, Any]:
        """Return the values of another one of these jobs."""
        values = {one.name: getattr(self, one.name) for one in dataclasses.fields(_StarJob)}
        ledger = f"{self.cluster}/{name}" if self.cluster else ""
        return {**values, "output": f"{self.folder}/{name}", "ledger": ledger, "state": ""}

    def scatters(self) -> list[ScatterJob]:
        """Return the first job of all, which signs."""
        return self.pairs().scatters()

    decisions = ("shard_bytes", *GatherJob.decisions)

    def with_recorded(self, stored: Job) -> Self:
        """Return the job with the size of parts that was decided."""
        size = stored.parameters.get("shard_bytes")
        job = super().with_recorded(stored)
        return dataclasses.replace(job, shard_bytes=size) if isinstance(size, int) and size > 0 else job

    @property
    def keeps_shards(self) -> bool:
        """False: what is written goes once the clusters are known."""
        return False

    def shaping(self) -> dict[str, Json]:
        """Return what shapes the run files, but for where they lie."""
        partition = {} if self.partition is None else self.partition.parameters()
        return {**self.pairs().shaping(), "moves": "stars", **partition}

    def shaping_of_runs(self) -> dict[str, Json]:
        """Return what shapes the run files that it reads, but for where they lie."""
        return self.shaping()

    def encoder(self) -> str | ShardEncoder:
        """Return what writes run files of hashes."""
        from ledgerbeam.transforms.dedup.near import HashEncoder  # noqa: PLC0415 - brings Beam

        if self.partition is None:
            raise AssertionError("the partition is that of the signatures")
        return HashEncoder(self.partition.cuts(), self.partition.block_bytes)


@dataclass(frozen=True, kw_only=True)
class StarsJob(_StarJob):
    """Makes of each tree of pairs a star around its least document."""

    command = "stars"

    within_keys: ClassVar[bool] = True

    @property
    def first_folder(self) -> str:
        """The folder of the pairs."""
        return self.pairs_folder

    def reading(self) -> Reading:
        """Return how it reads pairs, which are written as one bucket."""
        return Reading(self.first_folder, self.listing_url, self.storage_options, Partition(1))

    def first_writers(self) -> dict[str, RunsJob]:
        """Return the job before, which pairs."""
        return {PAIRS: self.pairs()}

    def work(self) -> Callable[[Task], Any]:
        """Return what makes stars."""
        from ledgerbeam.transforms.dedup.stars import MakeStars  # noqa: PLC0415 - brings Beam

        return MakeStars()


@dataclass(frozen=True, kw_only=True)
class _RoundJob(_StarJob):
    """One of the rounds.

    Attributes:
        number: Which one.
    """

    number: int

    def first_writers(self) -> dict[str, RunsJob]:
        """Return the round before."""
        before = self.turn(self.number - 1)
        return {before.ledger.rpartition("/")[2]: before}

    def spent(self, read: BucketsJob) -> list[str]:  # noqa: ARG002 - nothing is merged
        """Return the folder of the round before; stars know what the documents are."""
        return [] if self.number == 1 else [self.turn(self.number - 1).output]


@dataclass(frozen=True, kw_only=True)
class LargeStarsJob(_RoundJob):
    """Connects what comes behind a document with the least one of those that it is connected to."""

    command = "large-stars"

    within_keys: ClassVar[bool] = True

    def work(self) -> Callable[[Task], Any]:
        """Return what connects, and counts."""
        from ledgerbeam.transforms.dedup.stars import TurnLargeStars  # noqa: PLC0415 - brings Beam

        return TurnLargeStars()


@dataclass(frozen=True, kw_only=True)
class SmallStarsJob(_RoundJob):
    """Connects a document and all before it that it is connected to with the least of them."""

    command = "small-stars"

    def work(self) -> Callable[[Task], Any]:
        """Return what connects."""
        from ledgerbeam.transforms.dedup.stars import TurnSmallStars  # noqa: PLC0415 - brings Beam

        return TurnSmallStars()


@dataclass(frozen=True, kw_only=True)
class LabelsJob(_StarJob):
    """Finds the cluster of each document, when the rounds have done so.

    Attributes:
        rounds: How many there are, as far as is known: the last one is of large stars.
    """

    command = "labels"

    rounds: int = 1

    def first_writers(self) -> dict[str, RunsJob]:
        """Return the jobs that know what the documents are, and with which one each is connected."""
        return {STARS: self.stars(), f"{ROUND}-{self.rounds}": self.turn(self.rounds)}

    def after(self, before: Sequence[FinishedStage]) -> Self | None:
        """Return the job with two more rounds, if the last one has found what is no star; else None."""
        changes = merged_statistics(before[-1].store, CHANGES).get(CHANGES)
        return None if changes is None or not changes.value() else dataclasses.replace(self, rounds=self.rounds + 2)

    def unused(self) -> Iterator[str]:
        """Yield the ledgers of rounds that there are no more."""
        return rounds_from(self.cluster, self.rounds + 1)

    def spent(self, read: BucketsJob) -> list[str]:  # noqa: ARG002 - nothing is merged
        """Return the folders of all that comes before."""
        return [writer.output for writer in self.first_writers().values()]

    def work(self) -> Callable[[Task], Any]:
        """Return what finds clusters."""
        from ledgerbeam.transforms.dedup.stars import FindLabels  # noqa: PLC0415 - brings Beam

        return FindLabels()
