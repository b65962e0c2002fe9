"""Jobs that read run files by bucket. `MergeJob` runs between the first and the last job of an exchange."""

from __future__ import annotations

import dataclasses
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from ledgerbeam.io import Options, ShardEncoder
from ledgerbeam.io.exchange.slices import Partition, SliceTables
from ledgerbeam.io.listing.left_out import OwnFiles
from ledgerbeam.ledger import Source, Task
from ledgerbeam.ledger.model.job import Json
from ledgerbeam.pipelines.exchange.buckets import Reading
from ledgerbeam.pipelines.exchange.stages import MERGE
from ledgerbeam.pipelines.jobs.shard_job import ShardJob
from ledgerbeam.pipelines.jobs.spec import FinishedStage
from ledgerbeam.sources.buckets import BucketListing, BucketSources

LISTING = "buckets.json"
"""Name of the file beside the ledger of an exchange that names its buckets."""


@dataclass(frozen=True)
class BucketsOf:
    """The buckets of an exchange as the sources of a job: `JobSources`.

    Attributes:
        names: Name of the sources of the exchange.
        shaping: Parameters of the run files, without their location.
        tables: URL of the tables of slices.
        url: URL of the file that names the buckets.
        part_bytes: Size of a part of a bucket, which is a task.
        within_keys: Whether a part may start in the middle of the records of a key.
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
        """Common prefix of the URLs of all buckets."""
        return self.opened({}).base

    @property
    def as_files(self) -> None:
        """None: buckets are not files."""

    def listing(self, own: OwnFiles, options: Options) -> BucketListing:  # noqa: ARG002 - buckets are not files
        """Return the listing of the buckets."""
        return BucketListing(self.url, dict(options or {}))

    def expected_tasks(self, source: Source) -> int:
        """Return the estimated number of parts of a bucket."""
        return max(1, round(source.size / self.part_bytes))

    def opened(self, options: Options) -> BucketSources:  # noqa: ARG002 - the tables have them
        """Return the buckets as workers open them."""
        return BucketSources(self.tables, self.part_bytes, self.within_keys, self.beside)

    def limits(self) -> tuple[int | None, int | None]:
        """Return the size of a task in bytes."""
        return self.part_bytes, None

    def parameters(self) -> dict[str, Json]:
        """Return the parameters of the outputs: the parameters of the run files, and the size of shards."""
        return {**self.shaping, "shard_bytes": self.part_bytes}

    def places(self) -> dict[str, list[str]]:
        """Return only the URLs of the run files, which are in the output folder."""
        return {}

    def forget_patterns(self) -> list[str]:
        """Return the pattern that matches every bucket in a ledger."""
        return ["*"]


@dataclass(frozen=True, kw_only=True)
class BucketsJob(ShardJob):
    """A job that reads run files by bucket.

    Attributes:
        partition: Partition of the exchange into buckets; None until it is set.
        shard_bytes: Size of a task, which is a part of a bucket, by its records.
        state: Name of the run files; empty until they are complete.
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
        """Number of merges of the run files that it reads."""

    @property
    @abstractmethod
    def runs_folder(self) -> str:
        """The folder of the run files that it reads."""

    @property
    @abstractmethod
    def names(self) -> tuple[str, ...]:
        """Name of the sources of the exchange."""

    @abstractmethod
    def shaping_of_runs(self) -> dict[str, Json]:
        """Return the parameters of the run files of the exchange, without their location."""

    def after(self, before: Sequence[FinishedStage]) -> Self | None:  # noqa: ARG002
        """Return the job with more stages before it, if it needs more than there are; else None.

        Args:
            before: The complete jobs that have written its input.
        """
        return None

    def unused(self) -> Iterator[str]:
        """Yield the ledgers of possible stages that the job does not need, in the order of their creation."""
        yield from ()

    def with_state(self, state: str) -> Self:
        """Return the job with the name of the complete run files."""
        return dataclasses.replace(self, state=state)

    @property
    def listing_url(self) -> str:
        """The file that names the buckets."""
        return f"{self.work_folder}/{LISTING}"

    @property
    def cut(self) -> Partition:
        """The partition of the exchange, once it is set."""
        if self.partition is None:
            raise AssertionError("the partition is decided when the job is opened")
        return self.partition

    def reading(self) -> Reading:
        """Return the reading of these run files."""
        merges = self.level < self.cut.merges.number
        return Reading(self.runs_folder, self.listing_url, self.storage_options, self.cut, self.level, merges)

    def sources(self) -> BucketsOf:
        """Return the buckets."""
        tables = SliceTables(self.runs_folder, self.state, self.storage_options)
        places = tables, self.listing_url
        return BucketsOf(self.names, self.shaping_of_runs(), *places, self.shard_bytes, self.within_keys, self.beside)


@dataclass(frozen=True, kw_only=True)
class MergeJob(BucketsJob):
    """Merges the run files of a group and a range of buckets into one run file, with narrower ranges apart.

    Attributes:
        ordinal: Number of the merge in the exchange, from 1.
        runs: Folder of the input run files.
        of: Name of the sources of the exchange.
        shaping: Parameters of its run files, without their location.
    """

    command = "merge"

    to: str = "run"
    ordinal: int
    runs: str
    of: tuple[str, ...]
    shaping: dict[str, Json]

    @property
    def level(self) -> int:
        """Number of merges of the run files that it reads."""
        return self.ordinal - 1

    @property
    def runs_folder(self) -> str:
        """The folder of these run files."""
        return self.runs

    @property
    def names(self) -> tuple[str, ...]:
        """Name of the sources of the exchange."""
        return self.of

    @property
    def keeps_shards(self) -> bool:
        """False: merged run files are removed once the buckets are complete."""
        return False

    def shaping_of_runs(self) -> dict[str, Json]:
        """Return the parameters of the run files of the exchange, without their location."""
        return self.shaping

    def parameters(self) -> dict[str, Json]:
        """Return the parameters of the run files, without those of the merged ones."""
        return {MERGE: self.ordinal}

    def work(self) -> Callable[[Task], Any]:
        """Return the function that merges."""
        from ledgerbeam.transforms.exchange.merge import MergeRuns  # noqa: PLC0415 - brings Beam

        return MergeRuns(self.cut, self.ordinal)

    def encoder(self) -> str | ShardEncoder:
        """Return the encoder of merged run files."""
        from ledgerbeam.transforms.exchange.merge import MergedEncoder  # noqa: PLC0415 - brings Beam

        return MergedEncoder()
