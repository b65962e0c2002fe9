"""Jobs of ``ledgerbeam dedup``: an exchange of hashes and positions that finds duplicates, and a last stage.

    scatter   the hash of the key of each record, and its position       ledger DEDUP/decide/scatter
    decide    the records of each hash to drop                           ledger DEDUP/decide
    dedup     the files without these records, or columns                ledger DEDUP

`decide` writes a list for each file: the positions of its records to drop. With ``--mark``, the lists also have the
records that stay in their place, and the last stage makes columns of the lists.
"""

from __future__ import annotations

import dataclasses
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Any, ClassVar, Self

from ledgerbeam.errors import ChangedSourceError
from ledgerbeam.io import Options, ShardEncoder
from ledgerbeam.io.conversion import conversion_of
from ledgerbeam.io.exchange.run_file import level_in
from ledgerbeam.io.exchange.slices import MOST_SLICES, Partition, SliceTables
from ledgerbeam.io.listing.left_out import OwnFiles
from ledgerbeam.io.listing.pages import Page
from ledgerbeam.ledger import LedgerStore, OutputShard, Source, Task
from ledgerbeam.ledger.model.job import Json
from ledgerbeam.pipelines.console.run_progress import count
from ledgerbeam.pipelines.exchange.buckets import Reading, RunFiles, remove_internal
from ledgerbeam.pipelines.exchange.jobs import GatherJob, ScatterJob, as_run, layout_of_rows, own_files, run_writer
from ledgerbeam.pipelines.exchange.partition import KeyChoice, PartitionLimits, decided, preference
from ledgerbeam.pipelines.exchange.stages import DECIDE, stage_ledger
from ledgerbeam.pipelines.jobs.listing import listed_ids
from ledgerbeam.pipelines.jobs.one_stage import MarkingJob
from ledgerbeam.pipelines.jobs.shard_job import ShardJob
from ledgerbeam.pipelines.jobs.sources import ListedFiles, Packer, listed_files
from ledgerbeam.pipelines.jobs.spec import FinishedStage, JobSpec, Stage, StageSources
from ledgerbeam.sources.listed import ListBuckets, ListedSources, RemainingSources, SourceLists, with_lists
from ledgerbeam.transforms.dedup.duplicates import FindDuplicates, HashEncoder
from ledgerbeam.transforms.dedup.marks import WriteMarks
from ledgerbeam.transforms.mapping.unchanged import KeepPlaced

LISTS_FOLDER = "_drops"  # folder for lists of records, such as records to drop, in an output folder
LIST_BUCKETS = 1024  # number of buckets of lists, by file. A file is processed again if anything in its bucket changes.
LISTING = "drops.json"

_PAGE_SOURCES = 10_000  # number of sources of a ledger that are checked together
PART_RECORDS = 2_000_000  # approximate bytes of records in a part of a bucket; each takes some hundred in memory


def hash_encoder(partition: Partition | None, output: str) -> ShardEncoder:
    """Return the encoder of run files of hashes, in the buckets of a partition."""
    cut = decided(partition)
    return HashEncoder(cut.cuts_of(1), cut.block_bytes, level=level_in(output))


@dataclass(frozen=True, kw_only=True)
class HashScatterJob(ScatterJob):
    """Writes hashes of the records of each task, with NumPy."""

    with_records: bool = False

    def encoder(self) -> str | ShardEncoder:
        return hash_encoder(self.partition, self.output)


@dataclass(frozen=True, kw_only=True)
class HashJob(GatherJob):
    """An exchange of hashes. They need much more memory than disk space, so a task merges only `shard_bytes`."""

    keeps_columns = False
    within_keys: ClassVar[bool] = False

    @property
    def sizes(self) -> PartitionLimits:
        size = self.bucket_bytes or 2**30
        return PartitionLimits(size, size)

    @property
    def merged_bytes(self) -> int:
        return self.shard_bytes


@dataclass(frozen=True, kw_only=True)
class DecideJob(HashJob):
    """Finds the records to drop."""

    command = "decide"
    user_command = "dedup"  # for exact and for near duplicates
    keeps_shards = False  # the lists are removed after the last stage

    to: str = "run"
    shard_bytes: int = PART_RECORDS
    # Score of a record. The record of a key with the greatest score stays; None keeps the first by position.
    prefer: KeyChoice | None = None
    own: OwnFiles = field(default_factory=OwnFiles)  # outputs of all stages, which are not sources
    mark: bool = False  # whether the lists also have the records that stay, and the reasons

    def scatter(self) -> ScatterJob:
        """Return the first job, which writes hashes and positions of records, without the records."""
        return ScatterJob(**self.scatter_values(), with_records=False, prefer=self.prefer)

    def scatter_values(self) -> dict[str, Any]:
        return {**super().scatter_values(), "own": self.own}

    def parameters(self) -> dict[str, Json]:
        return {**super().parameters(), **({"mark": True} if self.mark else {})}

    def work(self) -> Callable[[Task], Any]:
        return FindDuplicates(self.mark)

    def encoder(self) -> ShardEncoder:
        """Return the encoder of lists: run files with buckets by source file."""
        return HashEncoder(Partition(LIST_BUCKETS).cuts())


@dataclass(frozen=True, kw_only=True)
class FilesWithLists(ListedFiles):
    """Files, each joined with its list: the positions of some of its records."""

    tables: SliceTables  # URL of the tables of the lists' run files
    url: str  # URL of the file that names their buckets
    kind: type[ListedSources]  # opens the files for workers
    storage_options: dict[str, Any] = field(default_factory=dict)

    def packer(self, options: Options) -> Packer:  # noqa: ARG002 - `storage_options` has them
        return partial(with_lists, buckets=ListBuckets(self.url, self.storage_options), pack_bytes=self.pack_bytes)

    def _is_pack(self, source: Source) -> bool:
        return len(source.members) > 2  # more than a file and its list

    def opened(self, options: Options) -> ListedSources:
        return self.kind(self.opened_files(options), self.tables, ListBuckets(self.url, dict(options or {})))


@dataclass(frozen=True, kw_only=True)
class ListedJob(ShardJob):
    """Reads files, each joined with its list, which an earlier job has written."""

    files: ListedFiles
    key: KeyChoice  # key of the records that decides about the lists
    prefer: KeyChoice | None = None  # score of a record; None keeps the first record of a key
    bucket_bytes: int = 2**30  # size of a bucket of the exchange before, by the sources
    max_slices: int = MOST_SLICES  # maximum number of slices of run files that a stage reads
    state: str = ""  # hash of the lists; empty until they are complete

    def stage(self, name: str) -> ListedStage:
        return ListedStage(name, self)

    def spent(self) -> list[str]:
        """Return the folders of lists to remove when the job is complete."""
        return []

    @abstractmethod
    def decide(self) -> DecideJob:
        """Return the job that writes the lists. Its own inputs run before it."""

    def decide_values(self, ledger: str) -> dict[str, Any]:
        """Return the values of the job that writes the lists, a `DecideJob` with this ledger."""
        places = {"output": self.lists_folder, "ledger": ledger, "own": self._own_files()}
        return {**places, **as_run(self, "files", "key", "prefer", "bucket_bytes", "max_slices")}

    @property
    @abstractmethod
    def reader(self) -> type[ListedSources]:
        """The class that workers use to read the files with their lists."""

    @property
    def lists_folder(self) -> str:
        return f"{self.output}/{LISTS_FOLDER}"

    def with_state(self, state: str) -> Self:
        """Return a copy of the job with the hash of the complete lists."""
        return dataclasses.replace(self, state=state)

    def earlier_listed(self) -> Collection[str] | None:
        """Return the URLs of files to read that only an earlier deduplication has scattered; None if not listed yet."""
        return ()

    def list_earlier(self) -> bool:
        """Store the listing of files to read from earlier deduplications. Return False if the job has none."""
        return False

    @property
    def listing_url(self) -> str:
        """The file that names the buckets of the lists."""
        return f"{self.work_folder}/{LISTING}"

    def sources(self) -> FilesWithLists:
        return FilesWithLists(
            **{**vars(self.files), "form": "placed"},
            tables=SliceTables(self.lists_folder, self.state, self.storage_options),
            url=self.listing_url,
            kind=self.reader,
            storage_options=self.storage_options,
        )


@dataclass(frozen=True, kw_only=True)
class DedupJob(ListedJob, MarkingJob):
    """Writes the files without duplicates, with one record of each key; or columns that mark duplicates."""

    command = "dedup"
    user_command = "dedup"
    removes_gone = True
    last_stage = "dedup"

    keeps_columns = True

    @property
    def reader(self) -> type[ListedSources]:
        return SourceLists if self.mark else RemainingSources

    def files_of(self, shards: Sequence[OutputShard]) -> Sequence[OutputShard]:
        packed = self.sources().packer(self.storage_options)(listed_files(self.pages()))
        files = {source.id: source.members[0] for source in packed}
        if not all(shard.source_id in files for shard in shards):
            raise ChangedSourceError(f"{self.ledger}: sources have changed during this run; run the same command again")
        found = ((shard, files[shard.source_id]) for shard in shards)
        return [
            dataclasses.replace(shard, source=file.url, source_id=file.id, source_version=file.version)
            for shard, file in found
        ]

    def spent(self) -> list[str]:
        return [self.lists_folder]

    def decide(self) -> DecideJob:
        return DecideJob(**self.decide_values(stage_ledger(self.ledger, DECIDE)), mark=self.mark)

    def _own_files(self) -> OwnFiles:
        return own_files(self)

    def with_decisions(self, say: Callable[[str], None]) -> Self:
        return dataclasses.replace(self, layout=layout_of_rows(self, self.files, say))

    def parameters(self) -> dict[str, Json]:
        return {**super().parameters(), **self.key.parameters(), **preference(self.prefer)}

    def work(self) -> Callable[[Task], Any]:
        if self.mark:
            return WriteMarks()
        return KeepPlaced(conversion_of(self.to), self.output_format)


class ListsRead(StageSources):
    """Files, each joined with its list, which an earlier stage has written."""

    def __init__(
        self,
        job: ListedJob,
        store: LedgerStore,
        decide: FinishedStage,
        scatter: FinishedStage,
        list_pages: Callable[[JobSpec], Iterator[Page]],
    ) -> None:
        self._scatter, self._list_pages = scatter, list_pages
        reading = Reading(job.lists_folder, job.listing_url, job.storage_options, Partition(LIST_BUCKETS))
        self._lists = RunFiles.written([run_writer(decide.job, decide.store)], reading)
        self._job = job.with_state(self._lists.state)
        # One listing for all: the lists are valid only for the scattered files.
        self._listed = self._list()
        is_known = self._lists.known() is not None and self._job.earlier_listed() is not None
        self._ids = listed_ids(self._job, self._listed) if is_known else []
        super().__init__(self._job, iter(()))
        self.is_settled = is_known and all(store.completed_mask(self._ids))

    def _list(self) -> list[Page]:
        pages = list(self._list_pages(self._job))
        check_scattered(self._job, pages, self._scatter)
        return pages

    def settle(self, say: Callable[[str], None]) -> None:  # noqa: ARG002 - the stage before has reported everything
        self._lists.tabulate()
        if self._job.list_earlier():
            self._listed = self._list()
        self._ids = listed_ids(self._job, self._listed)

    def pages(self) -> Iterator[Page]:
        """Return the listing of the scattered files only."""
        return iter(self._listed)

    def check(self, store: LedgerStore, *, is_complete: bool, has_run: bool) -> None:
        if is_complete:
            forget_unscattered(self._ids, store)
        if has_run:
            _check_file_times(store, self._scatter.store)

    def remove_inputs(self, writers: Collection[str]) -> None:
        remove_internal(self._job.spent(), self._job, writers)


class ListedStage(Stage):
    """A stage that reads files, each joined with its list."""

    job: ListedJob

    def inputs(self) -> list[Stage]:
        decide = self.job.decide()
        return [decide.stage(decide.ledger.rpartition("/")[2])]

    def sources(
        self, store: LedgerStore, done: Mapping[str, FinishedStage], list_pages: Callable[[JobSpec], Iterator[Page]]
    ) -> ListsRead:
        decide = self.job.decide()
        (scatter,) = decide.scatters()
        return ListsRead(self.job, store, done[decide.ledger], done[scatter.ledger], list_pages)


def check_scattered(job: ListedJob, pages: Sequence[Page], scatter: FinishedStage) -> None:
    """Raise ChangedSourceError unless the first stage has processed exactly the listed files of this job.

    A missing file is an error, too. Duplicates in other files may be dropped because of its records.
    """
    if earlier := job.earlier_listed():
        pages = [page.select([url not in earlier for url in page.urls]) for page in pages]
    ids, store = listed_ids(scatter.job, pages), scatter.store
    scattered = {one for page in store.source_ids() for one in page} - store.gone_ids()
    if not all(store.completed_mask(ids)) or not scattered.issubset(ids):
        raise ChangedSourceError(
            f"{scatter.job.ledger}: sources have changed since the first stage of this run; run the same command again"
        )


def forget_unscattered(ids: Collection[bytes], store: LedgerStore) -> None:
    """Forget the sources that are not in `ids`, the scattered ones; raise ChangedSourceError if there are any."""
    known = set(ids)
    gone = store.gone_ids()
    strange = {one for page in store.source_ids() for one in page} - known - gone
    if strange:
        store.forget_sources(strange)
        raise ChangedSourceError(
            f"{store.url}: {count(len(strange), 'source')} changed during this run; run the same command again"
        )


def _check_file_times(store: LedgerStore, scatter: LedgerStore) -> None:
    """Raise ChangedSourceError if files were replaced after the first stage by files of the same size and time.

    The new file is the same source to the ledger, but its list was made from the records of the old file. So this
    function forgets the source in the first stage, and the next run makes a new list.
    """
    scattered, read = ({url: time for url, time, _ in _file_times(one)} for one in (scatter, store))
    written = {url for url, time in read.items() if time > scattered.get(url, time)}
    if not written:
        return
    scatter.forget_sources({source for url, _, source in _file_times(scatter) if url in written})
    raise ChangedSourceError(
        f"{store.url}: {count(len(written), 'file')} changed after the first stage without a new size or modification "
        f"time, such as {min(written)}; run the same command again"
    )


def _file_times(store: LedgerStore) -> Iterator[tuple[str, int, bytes]]:
    """Yield URL, time of the last change (ctime) and source ID of each file whose ctime a ledger has recorded."""
    rest = store.sources()
    while some := {row.source_id: row.member_urls or (row.url,) for row in islice(rest, _PAGE_SOURCES)}:
        for source, times in store.file_times(list(some)).items():
            yield from ((url, time, source) for url, time in zip(some[source], times, strict=True) if time)
