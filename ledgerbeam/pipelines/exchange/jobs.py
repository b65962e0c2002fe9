"""Jobs of an exchange: `ScatterJob` writes run files, and subclasses of `GatherJob` read them by bucket.

Each job has its own ledger. The user names the ledger of the gather job, which records the outputs. The ledger of the
scatter job is in the folder ``scatter`` of this ledger. If the gather job would read too many slices, a `MergeJob` runs
before it, once or several times, with ledgers in the folders ``merge-1`` and so on.
"""

from __future__ import annotations

import dataclasses
import itertools
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Self, cast

from ledgerbeam.io import Options, ShardEncoder
from ledgerbeam.io.exchange.run_file import level_in
from ledgerbeam.io.exchange.slices import MOST_SLICES, Partition, SliceTables
from ledgerbeam.io.listing.left_out import OwnFiles
from ledgerbeam.io.listing.pages import Page
from ledgerbeam.ledger import Job, LedgerStore, Source, Task
from ledgerbeam.ledger.model.job import Json
from ledgerbeam.pipelines.console.run_progress import count
from ledgerbeam.pipelines.exchange.buckets import Reading, RunFiles, RunWriter, are_complete, remove_internal
from ledgerbeam.pipelines.exchange.partition import (
    KeyChoice,
    PartitionLimits,
    decide_partition,
    decided,
    partition_parameters,
    preference,
    score_of,
)
from ledgerbeam.pipelines.exchange.stages import GATHER, MERGE, SCATTER, merge_stage, stage_ledger
from ledgerbeam.pipelines.jobs.one_stage import ConvertJob
from ledgerbeam.pipelines.jobs.shard_job import ShardJob, shard_form
from ledgerbeam.pipelines.jobs.sources import ListedFiles
from ledgerbeam.pipelines.jobs.spec import FinishedStage, JobSpec, Stage, StageSources
from ledgerbeam.pipelines.outputs.columns import ColumnLayout
from ledgerbeam.sources import RecordForm
from ledgerbeam.sources.buckets import BucketListing, BucketSources
from ledgerbeam.transforms.exchange.gather import MergedEncoder, MergeRuns
from ledgerbeam.transforms.exchange.scatter import RunEncoder, ScatterRecords

if TYPE_CHECKING:
    from ledgerbeam.pipelines.dedup.earlier import EarlierSignatures

RUNS_FOLDER = "_runs"  # folder for the run files of an exchange in an output folder
MERGED_FOLDER = "_merged"  # prefix of the folders of merged run files, beside the first one
LISTING = "buckets.json"  # name of the file beside the ledger of an exchange that names its buckets


@dataclass(frozen=True)
class BucketsOf:
    """The buckets of an exchange as the sources of a job: `JobSources`."""

    names: tuple[str, ...]  # names of the sources of the exchange
    shaping: dict[str, Json]  # parameters of the run files, without their location
    tables: SliceTables  # URL of the tables of slices
    url: str  # URL of the file that names the buckets
    task_bytes: int  # size of a part of a bucket, which is a task
    within_keys: bool  # whether a part may start in the middle of the records of a key
    beside: int = 0  # see `BucketSources`

    @property
    def base(self) -> str | None:
        return self.opened({}).base

    @property
    def as_files(self) -> None:
        """None: buckets are not files."""

    def listing(self, own: OwnFiles, options: Options) -> BucketListing:  # noqa: ARG002 - buckets are not files
        return BucketListing(self.url, dict(options or {}))

    def expected_tasks(self, source: Source) -> int:
        return max(1, round(source.size / self.task_bytes))

    def opened(self, options: Options) -> BucketSources:  # noqa: ARG002 - the tables have them
        return BucketSources(self.tables, self.task_bytes, self.within_keys, self.beside)

    def limits(self) -> tuple[int | None, int | None]:
        return self.task_bytes, None

    def parameters(self) -> dict[str, Json]:
        return {**self.shaping, "shard_bytes": self.task_bytes}

    def places(self) -> dict[str, list[str]]:
        """Return no URLs: the run files are in the output folder, which the job names itself."""
        return {}

    def forget_patterns(self) -> list[str]:
        return ["*"]


@dataclass(frozen=True, kw_only=True)
class BucketsJob(ShardJob):
    """A job that reads run files by bucket."""

    partition: Partition | None = None  # partition of the exchange into buckets; None until it is set
    shard_bytes: int = 64 * 2**20  # size of a task, which is a part of a bucket, by its records
    state: str = ""  # hash of the run files; empty until they are complete

    reads_sources = False
    removes_gone = True
    within_keys: ClassVar[bool] = True
    beside: ClassVar[int] = 0

    @property
    @abstractmethod
    def level(self) -> int:
        """Number of earlier merges of the run files that the job reads."""

    @property
    @abstractmethod
    def runs_folder(self) -> str:
        """The folder of the run files that the job reads."""

    @property
    @abstractmethod
    def names(self) -> tuple[str, ...]:
        """Names of the sources of the exchange."""

    @abstractmethod
    def shaping_of_runs(self) -> dict[str, Json]:
        """Return the parameters of the run files of the exchange, without their location."""

    def after(self, before: Sequence[FinishedStage]) -> Self | None:  # noqa: ARG002
        """Return the job with more stages before it, if the results of `before` require them; else None."""
        return None

    def unused(self) -> Iterator[str]:
        """Yield the ledgers of stages that this job does not need, in order. An earlier run may have created some."""
        yield from ()

    def with_state(self, state: str) -> Self:
        """Return the job with the hash of the complete run files."""
        return dataclasses.replace(self, state=state)

    @property
    def listing_url(self) -> str:
        """The file that names the buckets."""
        return f"{self.work_folder}/{LISTING}"

    @property
    def cut(self) -> Partition:
        """The partition of the exchange, once it is set."""
        return decided(self.partition)

    def reading(self) -> Reading:
        """Return the parameters for reading the run files of the job's inputs."""
        merges = self.level < self.cut.merges.number
        return Reading(self.runs_folder, self.listing_url, self.storage_options, self.cut, self.level, merges)

    def sources(self) -> BucketsOf:
        tables = SliceTables(self.runs_folder, self.state, self.storage_options)
        places = tables, self.listing_url
        return BucketsOf(self.names, self.shaping_of_runs(), *places, self.shard_bytes, self.within_keys, self.beside)


@dataclass(frozen=True, kw_only=True)
class MergeJob(BucketsJob):
    """Merges a group of run files into one run file. It divides their range of buckets into narrower ranges."""

    command = "merge"
    keeps_shards = False  # merged run files are removed once the buckets are complete

    to: str = "run"
    ordinal: int  # number of the merge in the exchange, from 1
    runs: str  # folder of the input run files
    of: tuple[str, ...]  # names of the sources of the exchange
    shaping: dict[str, Json]  # parameters of its run files, without their location

    @property
    def level(self) -> int:
        return self.ordinal - 1

    @property
    def runs_folder(self) -> str:
        return self.runs

    @property
    def names(self) -> tuple[str, ...]:
        return self.of

    def shaping_of_runs(self) -> dict[str, Json]:
        return self.shaping

    def parameters(self) -> dict[str, Json]:
        """Return only the number of the merge. All other parameters belong to its sources, the input run files."""
        return {MERGE: self.ordinal}

    def work(self) -> Callable[[Task], Any]:
        return MergeRuns(self.cut, self.ordinal, level_in(str(self.output)))

    def encoder(self) -> str | ShardEncoder:
        return MergedEncoder()


class RunsJob(ShardJob):
    """A job that writes run files for another job, which reads them by bucket."""

    files: ListedFiles

    @abstractmethod
    def shaping(self) -> dict[str, Json]:
        """Return the parameters of the run files, without their location."""

    def parameters(self) -> dict[str, Json]:
        return self.shaping()

    def earlier_urls(self) -> Collection[str]:
        """Return the sources of earlier jobs. Their records are only compared, and never written."""
        return ()

    @abstractmethod
    def scatters(self) -> list[ScatterJob]:
        """Return the first jobs, which read the sources."""


@dataclass(frozen=True, kw_only=True)
class ScatterJob(RunsJob):
    """Writes the records of each task as a run file, by bucket and key."""

    command = "scatter"
    keeps_shards = False  # run files are removed once the buckets are complete; stages check them before use

    to: str = "run"
    files: ListedFiles  # the sources
    key: KeyChoice  # key that orders the records
    partition: Partition | None = None  # partition of the order into buckets; None until it is set
    own: OwnFiles = field(default_factory=OwnFiles)  # outputs of the exchange, which are not sources
    form: RecordForm = "placed"  # form in which records are read
    with_records: bool = True  # whether run files contain the records; otherwise only keys and positions
    # Score that orders records of a key, without `with_records`; None for the order of positions.
    prefer: KeyChoice | None = None

    def sources(self) -> ListedFiles:
        """Return the files. Workers read each record with its position."""
        return dataclasses.replace(self.files, form=self.form)

    def shaping(self) -> dict[str, Json]:
        moved: dict[str, Json] = {} if self.with_records else {"moves": "keys"}
        shaping = {**self.files.parameters(), **self.key.parameters(), **moved}
        return {**shaping, **preference(self.prefer), **partition_parameters(self.partition)}

    def scatters(self) -> list[ScatterJob]:
        return [self]

    def doubts(self, store: LedgerStore) -> Iterator[str]:
        return self.key.doubts(self.files.names, store)

    def work(self) -> Callable[[Task], Any]:
        base = self.files.base
        return ScatterRecords(self.key.keys(base), self.with_records, score_of(self.prefer, base))

    def encoder(self) -> str | ShardEncoder:
        partition = decided(self.partition)
        return RunEncoder(partition.cuts_of(1), partition.block_bytes, level=level_in(str(self.output)))

    def _own_files(self) -> OwnFiles:
        return self.own


@dataclass(frozen=True, kw_only=True)
class GatherJob(BucketsJob):
    """The last job of an exchange. It also has the parameters of the earlier jobs."""

    files: ListedFiles  # the sources of the exchange
    key: KeyChoice  # key that orders the records
    bucket_bytes: int | None = None  # size of a bucket; None for the size of a shard
    # Maximum number of slices of run files that a stage reads. More run files are merged first.
    max_slices: int = MOST_SLICES

    keeps_columns = True
    last_stage = GATHER
    keeps_runs: ClassVar[bool] = False  # whether the run files of the first stage are kept at the end

    @property
    def level(self) -> int:
        return 0 if self.partition is None else self.partition.merges.number

    def stage(self, name: str) -> BucketStage:
        return BucketStage(name, job=self, whole=self, merges="" if name == GATHER else f"{name}/")

    @property
    def first_folder(self) -> str:
        return f"{self.output}/{RUNS_FOLDER}"

    @property
    def runs_folder(self) -> str:
        return self._folder_of(self.level)

    def _folder_of(self, level: int) -> str:
        return f"{self.output}/{MERGED_FOLDER}-{level}" if level else self.first_folder

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(name for scatter in self.scatters() for name in scatter.files.names)

    def first_writers(self) -> dict[str, RunsJob]:
        """Return the jobs that write unmerged run files, by stage name, in order."""
        return {SCATTER: self.scatter()}

    def merge(self, ordinal: int) -> MergeJob:
        """Return the job of the merge with this number, from 1."""
        return MergeJob(
            output=self._folder_of(ordinal),
            shard_bytes=self.merged_bytes,
            ledger=stage_ledger(self.ledger, merge_stage(ordinal)),
            ordinal=ordinal,
            runs=self._folder_of(ordinal - 1),
            of=self.names,
            shaping=self.shaping_of_runs(),
            **as_run(self, "partition"),
        )

    @property
    def merged_bytes(self) -> int:
        """Size of the records of a task that merges, in bytes: about the size of a task that has written a run file."""
        return self.files.task_bytes

    def earlier_signatures(self) -> Sequence[EarlierSignatures]:
        """Return the signatures of earlier deduplications, read before the job's own run files; empty by default."""
        return ()

    def scatters(self) -> list[ScatterJob]:
        """Return the first jobs, which read the sources."""
        return [scatter for writer in self.first_writers().values() for scatter in writer.scatters()]

    def scatter(self) -> ScatterJob:
        """Return the job that reads `files`, with the run options of this one."""
        return ScatterJob(**self.scatter_values())

    def scatter_values(self) -> dict[str, Any]:
        places = {"output": self.first_folder, "ledger": stage_ledger(self.ledger, SCATTER), "own": own_files(self)}
        return {**places, **as_run(self, "files", "key", "partition")}

    def unused(self) -> Iterator[str]:
        return (f"{self.ledger}/{merge_stage(ordinal)}" for ordinal in itertools.count(self.level + 1))

    def spent(self, read: BucketsJob) -> list[str]:
        """Return the folders of run files to remove when `read`, this job or one of its merges, is complete."""
        return [] if self.keeps_runs and not read.level else [read.runs_folder]

    @property
    def sizes(self) -> PartitionLimits:
        """The sizes of buckets and of their parts, in bytes of the sources."""
        return PartitionLimits(self.bucket_bytes or self.shard_bytes, self.shard_bytes)

    def shaping_of_runs(self) -> dict[str, Json]:
        (writer,) = self.first_writers().values()
        return writer.shaping()

    decisions = ("partition", *ShardJob.decisions)

    def with_recorded(self, stored: Job) -> Self:
        job = super().with_recorded(stored)
        return dataclasses.replace(job, partition=self.partition or Partition.recorded(stored.parameters))

    def with_decisions(self, say: Callable[[str], None]) -> Self:
        partition = self.partition or self.decided_partition(say)
        return dataclasses.replace(self, layout=self.decided_layout(say), partition=partition)

    def decided_partition(self, say: Callable[[str], None]) -> Partition:
        """Return the partition of the records into buckets; see `decide_partition`."""
        return decide_partition(self.scatters(), self.sizes._replace(slices=self.max_slices), say)

    def decided_layout(self, say: Callable[[str], None]) -> ColumnLayout | None:
        """Return the layout of columnar files, with schemas."""
        return layout_of_rows(self, self.files, say)

    def parameters(self) -> dict[str, Json]:
        return {}


@dataclass(frozen=True, kw_only=True)
class BucketStage(Stage):
    """A stage that reads run files by bucket: the last stage of an exchange, or a merge before that stage."""

    job: BucketsJob
    whole: GatherJob  # the last job of the exchange
    merges: str

    def with_job(self, job: JobSpec) -> Self:
        whole = job if isinstance(job, GatherJob) else self.whole
        return dataclasses.replace(self, job=cast(BucketsJob, job), whole=whole)

    def inputs(self) -> list[Stage]:
        """Return the merge before this stage, or else the stages that write unmerged run files."""
        level = self.job.level
        if level:
            return [dataclasses.replace(self, name=f"{self.merges}{merge_stage(level)}", job=self.whole.merge(level))]
        writers = [writer.stage(name) for name, writer in self.whole.first_writers().items()]
        return [dataclasses.replace(stage, target=self.whole.output) for stage in writers]

    def earlier_signatures(self) -> Sequence[EarlierSignatures]:
        """Return the signatures of earlier deduplications that the stage reads."""
        return () if self.job.level else self.whole.earlier_signatures()

    def require_others(self) -> None:
        self.earlier_signatures()

    def longer(self, inputs: Sequence[FinishedStage]) -> Self | None:
        job = self.job.after(inputs)
        return None if job is None else self.with_job(job)

    def unused(self) -> Iterator[str]:
        return self.job.unused()

    def sources(
        self,
        store: LedgerStore,
        done: Mapping[str, FinishedStage],
        list_pages: Callable[[JobSpec], Iterator[Page]],  # noqa: ARG002 - buckets are not listed
    ) -> BucketsRead:
        return BucketsRead(self, store, [done[stage.job.ledger] for stage in self.inputs()])


class BucketsRead(StageSources):
    """Buckets that a stage reads, from the run files of its inputs."""

    def __init__(self, stage: BucketStage, store: LedgerStore, inputs: Sequence[FinishedStage]) -> None:
        job = stage.job
        self._whole, self._inputs, self._earlier = stage.whole, inputs, stage.earlier_signatures()
        self.runs = self._run_files(job)
        self._buckets = self.runs.known()
        super().__init__(job.with_state(self.runs.state), iter(()))
        self.is_settled = self._buckets is not None and are_complete(self._buckets, store)

    def _run_files(self, job: BucketsJob) -> RunFiles:
        last = self._inputs[-1]
        if isinstance(last.sources, BucketsRead) and isinstance(last.job, MergeJob):
            return last.sources.runs.merged(last.store, last.job.identity().fingerprint, job.reading())
        writers = [*(one.writer for one in self._earlier), *(run_writer(one.job, one.store) for one in self._inputs)]
        return RunFiles.written(writers, job.reading())

    def settle(self, say: Callable[[str], None]) -> None:
        for one in self._earlier:
            one.require_apart((writer.store for writer in self._inputs), self.job.storage_options)
        self._buckets = self.runs.tabulate()
        made = count(len(self._buckets.sizes), "merge" if self.runs.reading.merges else "bucket")
        say(f"{count(len(self.runs), 'run file')} of {count(self.runs.size, 'byte')} -> {made}")

    def pages(self) -> Iterator[Page]:
        if self._buckets is None:
            raise AssertionError("expected known buckets: the stage was settled")
        return iter([self._buckets.page()])

    def remove_inputs(self, writers: Collection[str]) -> None:
        self.runs.remove_tables(self.job.ledger)
        remove_internal(self._whole.spent(cast(BucketsJob, self.job)), self.job, writers)

    def lost_text(self, number: int) -> str:
        again = f"{count(number, 'run file')} must be written again (a complete job removes them)"
        return f"{again}, from the sources"


def run_writer(job: JobSpec, store: LedgerStore) -> RunWriter:
    """Return a job of an exchange as the writer of run files."""
    earlier = job.earlier_urls() if isinstance(job, RunsJob) else ()
    return RunWriter(job.identity(), str(job.output), store, earlier_urls=earlier)


def layout_of_rows(job: ShardJob, files: ListedFiles, say: Callable[[str], None]) -> ColumnLayout | None:
    """Return the layout, with schemas, of a job that writes rows of columnar sources unchanged."""
    layout = job.layout
    if layout is None or layout.schema is not None:
        return layout
    places: dict[str, Any] = {"output": job.output, "ledger": job.ledger, "storage_options": job.storage_options}
    return ConvertJob(to=job.to, layout=layout, files=files, **places).with_decisions(say).layout


def own_files(job: ShardJob) -> OwnFiles:
    """Return the outputs of an exchange and of its stages. Listings of sources leave them out."""
    return OwnFiles(job.output, f"(?:{job.shard_form}|{shard_form('run')})", job.ledger or None)


def as_run(job: JobSpec, *more: str) -> dict[str, Any]:
    """Return fields of a job by name: the run options, which all its stages share, and the fields in `more`."""
    return {name: getattr(job, name) for name in (*_HOW, *more)}


# Fields of a job that are run options, equal for all its stages.
_HOW = ("storage_options", "workers", "devices", "flush_interval", "flush_entries", "log_level")
