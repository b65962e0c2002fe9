"""The jobs of ``ledgerbeam dedup``: an exchange of hashes and places, which decides, and a filter of the files.

    scatter   the hash of the key of each record, and its place          ledger DEDUP/decide/scatter
    decide    of each hash: which records go                             ledger DEDUP/decide
    dedup     the files without them                                     ledger DEDUP

With ``--mark`` the second one is the last, and writes the list.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, Self

from ledgerbeam.io import Options, ShardEncoder
from ledgerbeam.io.conversion import conversion_of
from ledgerbeam.io.exchange.partition import Partition
from ledgerbeam.io.exchange.slices import SliceTables
from ledgerbeam.io.listing.own_files import OwnFiles
from ledgerbeam.ledger import Source, Task
from ledgerbeam.ledger.model.job import Json
from ledgerbeam.pipelines.jobs.exchange import GatherJob, KeyChoice, ScatterJob, as_run, layout_of_rows
from ledgerbeam.pipelines.jobs.partition import PartitionLimits
from ledgerbeam.pipelines.jobs.sources import ListedFiles, Packer
from ledgerbeam.pipelines.jobs.spec import ShardJob, shard_form
from ledgerbeam.sources.drops import DropBuckets, FilteredSources, with_drops

__all__ = ["DECIDE", "DROPS_FOLDER", "DROP_BUCKETS", "DecideJob", "DedupJob"]

DECIDE = "decide"
"""Folder in the ledger of a deduplication of the ledger of what decides."""

DROPS_FOLDER = "_drops"
"""Folder in an output folder of what is to be dropped."""

DROP_BUCKETS = 1024
"""Buckets of what is dropped, by file: a file is filtered again if anything in its bucket changes."""

LISTING = "drops.json"

PART_RECORDS = 2_000_000
"""Records of a part of a bucket, about: what is held of them is some hundred bytes each."""


@dataclass(frozen=True, kw_only=True)
class DecideJob(GatherJob):
    """Finds which records go.

    Attributes:
        prefer: Which record of a key stays: that with the greatest of these; None for the first by place.
        own: What else is written, which is no source; None if it is the last stage.
    """

    command = "decide"

    keeps_columns = False
    within_keys: ClassVar[bool] = False

    shard_bytes: int = PART_RECORDS
    prefer: KeyChoice | None = None
    own: OwnFiles | None = None

    def scatter(self) -> ScatterJob:
        """Return the first job, of which the records stay where they are."""
        return ScatterJob(**self.scatter_values(), with_records=False, prefer=self.prefer)

    def scatter_values(self) -> dict[str, Any]:
        """Return the values of a `ScatterJob` before this one."""
        found = super().scatter_values()
        return found if self.own is None else {**found, "own": self.own}

    @property
    def sizes(self) -> PartitionLimits:
        """The sizes of its buckets and their parts, by the sources."""
        size = self.bucket_bytes or 2**30
        return PartitionLimits(size, size)

    @property
    def is_last(self) -> bool:
        """Whether it writes a list for people and programs."""
        return self.own is None

    @property
    def keeps_shards(self) -> bool:
        """Whether its outputs are there to stay."""
        return self.is_last

    def work(self) -> Callable[[Task], Any]:
        """Return what finds the duplicates."""
        from ledgerbeam.transforms.duplicates import FindDuplicates  # noqa: PLC0415 - brings Beam

        return FindDuplicates(self.is_last)

    def encoder(self) -> str | ShardEncoder:
        """Return what writes them: lines, or a run file by the files that they are of."""
        from ledgerbeam.transforms.scatter import RunEncoder  # noqa: PLC0415 - brings Beam

        return self.to if self.is_last else RunEncoder(Partition(DROP_BUCKETS).cuts())


@dataclass(frozen=True, kw_only=True)
class _RemainingFiles(ListedFiles):
    """Files without what is dropped of them.

    Attributes:
        tables: Of the run files of what is dropped.
        url: The file that lists their buckets.
    """

    tables: SliceTables
    url: str
    storage_options: dict[str, Any] = field(default_factory=dict)

    def packer(self) -> Packer:
        """Return what joins files with what is dropped of them."""
        buckets = DropBuckets(self.url, self.storage_options)
        return partial(_joined, buckets=buckets, pack_bytes=self.pack_bytes)

    def expected_tasks(self, source: Source) -> int:
        """Estimate from its size alone how many tasks a source makes."""
        return 1 if len(source.members) > 2 else max(1, -(-source.size // self.task_bytes))

    def opened(self, options: Options) -> FilteredSources:
        """Return how workers open the files."""
        return FilteredSources(self.opened_files(options), self.tables, DropBuckets(self.url, dict(options or {})))


def _joined(files: Iterable[Source], buckets: DropBuckets, pack_bytes: int | None) -> Iterator[Source]:
    return with_drops(files, buckets, pack_bytes)


@dataclass(frozen=True, kw_only=True)
class DedupJob(ShardJob):
    """Writes the files without duplicates.

    Attributes:
        files: The sources.
        key: What equal records have in common.
        prefer: Which of them stays; None for the first.
        bucket_bytes: Size of a bucket, by the sources.
        state: Names the lists of what goes; empty until they are there.
    """

    command = "dedup"

    keeps_columns = True

    files: ListedFiles
    key: KeyChoice
    prefer: KeyChoice | None = None
    bucket_bytes: int = 2**30
    state: str = ""

    def decide(self) -> DecideJob:
        """Return the job that decides, which has those before it."""
        return DecideJob(**self.decide_values(DECIDE))

    def decide_values(self, name: str) -> dict[str, Any]:
        """Return the values of a `DecideJob` before this one.

        Args:
            name: Of the folder of its ledger in that of this one.
        """
        return {
            "output": f"{self.output}/{DROPS_FOLDER}",
            "to": "run",
            "files": self.files,
            "key": self.key,
            "prefer": self.prefer,
            "bucket_bytes": self.bucket_bytes,
            "ledger": f"{self.ledger}/{name}" if self.ledger else "",
            "own": self._own_files(),
            **as_run(self),
        }

    def _own_files(self) -> OwnFiles:
        return OwnFiles(self.output, f"(?:{self.shard_form}|{shard_form('run')})", self.ledger or None)

    def with_state(self, state: str) -> Self:
        """Return the job with the name of the lists that are there."""
        return dataclasses.replace(self, state=state)

    @property
    def tables(self) -> SliceTables:
        """The tables of what is dropped."""
        return SliceTables(f"{self.output}/{DROPS_FOLDER}", self.state, self.storage_options)

    @property
    def listing_url(self) -> str:
        """The file that lists the buckets of what is dropped."""
        return f"{self.work_folder}/{LISTING}"

    def sources(self) -> _RemainingFiles:
        """Return the files without what is dropped of them."""
        files = {one.name: getattr(self.files, one.name) for one in dataclasses.fields(ListedFiles)}
        more = {"tables": self.tables, "url": self.listing_url, "storage_options": self.storage_options}
        return _RemainingFiles(**{**files, **more, "form": "placed"})

    def with_decisions(self, say: Callable[[str], None]) -> Self:
        """Return the job with the schemas of its columns."""
        return dataclasses.replace(self, layout=layout_of_rows(self, self.files, say))

    def parameters(self) -> dict[str, Json]:
        """Return what shapes the outputs besides sources, folder and format."""
        prefer: dict[str, Json] = {} if self.prefer is None else {"prefer": self.prefer.parameters()}
        return {**self.key.parameters(), **prefer}

    def work(self) -> Callable[[Task], Any]:
        """Return what writes what is left of each task."""
        from ledgerbeam.transforms.duplicates import KeepRemaining  # noqa: PLC0415 - brings Beam

        return KeepRemaining(conversion_of(self.to), self.output_format)

    def encoder(self) -> str | ShardEncoder:
        """Return the format of the shards."""
        return self.output_format
