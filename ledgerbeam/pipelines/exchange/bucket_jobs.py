"""Jobs that read run files by bucket; `MergeJob` is the one between the first and the last of an exchange."""

from __future__ import annotations

import dataclasses
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from ledgerbeam.io import Options, ShardEncoder
from ledgerbeam.io.exchange.partition import Partition
from ledgerbeam.io.exchange.slices import SliceTables
from ledgerbeam.io.listing.left_out import OwnFiles
from ledgerbeam.ledger import Source, Task
from ledgerbeam.ledger.model.job import Json
from ledgerbeam.pipelines.exchange.buckets import Reading
from ledgerbeam.pipelines.exchange.stages import MERGE
from ledgerbeam.pipelines.jobs.shard_job import ShardJob
from ledgerbeam.pipelines.jobs.spec import FinishedStage
from ledgerbeam.sources.buckets import BucketListing, BucketSources

LISTING = "buckets.json"
"""The file beside the ledger of an exchange that names its buckets."""


@dataclass(frozen=True)
class BucketsOf:
    """The buckets of an exchange as what a job reads: `JobSources`.

    Attributes:
        names: What names the sources of the exchange.
        shaping: What shapes the run files, but for where they lie.
        tables: Of their slices.
        url: The file that names them.
        part_bytes: Size of a part of a bucket, which is a task.
        within_keys: Whether a part may begin in the middle of the records of a key.
        beside: See `BucketSources`.
    """

    names: tuple[str, ...]
    shaping: dict[str, Json]
    tables: SliceTables
    url: str
    part_bytes: int
    within_keys: bool
    beside: int = 0

    @property
    def task_bytes(self) -> int:
        """Size of a task in bytes."""
        return self.part_bytes

    @property
    def base(self) -> str | None:
        """What the URLs of all buckets begin with."""
        return self.opened({}).base

    @property
    def as_files(self) -> None:
        """None: buckets are no files."""

    def listing(self, own: OwnFiles, options: Options) -> BucketListing:  # noqa: ARG002 - buckets are no files
        """Return what lists the buckets."""
        return BucketListing(self.url, dict(options or {}))

    def expected_tasks(self, source: Source) -> int:
        """Estimate how many parts a bucket has."""
        return max(1, round(source.size / self.part_bytes))

    def opened(self, options: Options) -> BucketSources:  # noqa: ARG002 - the tables have them
        """Return how workers open the buckets."""
        return BucketSources(self.tables, self.part_bytes, self.within_keys, self.beside)

    def limits(self) -> tuple[int | None, int | None]:
        """Return the size of a task in bytes."""
        return self.part_bytes, None

    def parameters(self) -> dict[str, Json]:
        """Return what shapes the outputs: what shapes the run files, and the size of shards."""
        return {**self.shaping, "shard_bytes": self.part_bytes}

    def places(self) -> dict[str, list[str]]:
        """Return no URLs but those of the run files, which lie in the output folder."""
        return {}

    def forget_patterns(self) -> list[str]:
        """Return the pattern of a ledger that matches every bucket."""
        return ["*"]


@dataclass(frozen=True, kw_only=True)
class BucketsJob(ShardJob):
    """A job that reads run files by bucket.

    Attributes:
        partition: How the order of the exchange is cut into buckets; None until that is decided.
        shard_bytes: Size of a task, which is a part of a bucket, by its records.
        state: Names the run files; empty until they are there.
    """

    partition: Partition | None = None
    shard_bytes: int = 64 * 2**20
    state: str = ""

    reads_sources = False
    removes_gone = True
    within_keys: ClassVar[bool] = True
    beside: ClassVar[int] = 0

    @property
    @abstractmethod
    def level(self) -> int:
        """How many times the run files were merged that it reads."""

    @property
    @abstractmethod
    def runs_folder(self) -> str:
        """The folder of the run files that it reads."""

    @property
    @abstractmethod
    def names(self) -> tuple[str, ...]:
        """What names the sources of the exchange."""

    @abstractmethod
    def shaping_of_runs(self) -> dict[str, Json]:
        """Return what shapes the run files of the exchange, but for where they lie."""

    def after(self, before: Sequence[FinishedStage]) -> Self | None:  # noqa: ARG002
        """Return the job as it is to be done, if that takes more stages before it than there are; else None.

        Args:
            before: The jobs that have written what it reads, complete.
        """
        return None

    def unused(self) -> Iterator[str]:
        """Yield the ledgers of stages that there might be, and are not, in the order in which they are made."""
        yield from ()

    def with_state(self, state: str) -> Self:
        """Return the job with the name of the run files that are there."""
        return dataclasses.replace(self, state=state)

    @property
    def listing_url(self) -> str:
        """The file that names the buckets."""
        return f"{self.work_folder}/{LISTING}"

    @property
    def cut(self) -> Partition:
        """How the order of the exchange is cut, once that is decided."""
        if self.partition is None:
            raise AssertionError("the partition is decided when the job is opened")
        return self.partition

    def reading(self) -> Reading:
        """Return how it reads these run files."""
        merges = self.level < self.cut.merges.number
        return Reading(self.runs_folder, self.listing_url, self.storage_options, self.cut, self.level, merges)

    def sources(self) -> BucketsOf:
        """Return the buckets."""
        tables = SliceTables(self.runs_folder, self.state, self.storage_options)
        places = tables, self.listing_url
        return BucketsOf(self.names, self.shaping_of_runs(), *places, self.shard_bytes, self.within_keys, self.beside)


@dataclass(frozen=True, kw_only=True)
class MergeJob(BucketsJob):
    """Writes what a group of run files holds of a range of buckets as one run file, with narrower ranges apart.

    Attributes:
        ordinal: Which merge of the exchange this is, from 1.
        runs: Folder of the run files that it reads.
        of: What names the sources of the exchange.
        shaping: What shapes its run files, but for where they lie.
    """

    command = "merge"

    to: str = "run"
    ordinal: int
    runs: str
    of: tuple[str, ...]
    shaping: dict[str, Json]

    @property
    def level(self) -> int:
        """How many times the run files were merged that it reads."""
        return self.ordinal - 1

    @property
    def runs_folder(self) -> str:
        """The folder of these run files."""
        return self.runs

    @property
    def names(self) -> tuple[str, ...]:
        """What names the sources of the exchange."""
        return self.of

    @property
    def keeps_shards(self) -> bool:
        """False: what was merged goes once the buckets are complete."""
        return False

    def shaping_of_runs(self) -> dict[str, Json]:
        """Return what shapes the run files of the exchange, but for where they lie."""
        return self.shaping

    def parameters(self) -> dict[str, Json]:
        """Return what shapes the run files besides those that are merged."""
        return {MERGE: self.ordinal}

    def work(self) -> Callable[[Task], Any]:
        """Return what merges."""
        from ledgerbeam.transforms.exchange.merge import MergeRuns  # noqa: PLC0415 - brings Beam

        return MergeRuns(self.cut, self.ordinal)

    def encoder(self) -> str | ShardEncoder:
        """Return what hands on run files."""
        from ledgerbeam.transforms.exchange.merge import MergedEncoder  # noqa: PLC0415 - brings Beam

        return MergedEncoder()
