"""Job of a user's Beam pipeline, which may scatter records for another pipeline, or gather them."""

from __future__ import annotations

import base64
import dataclasses
import pickle
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Self

from ledgerbeam.errors import LedgerNotFoundError, ScatterIncompleteError, UsageError
from ledgerbeam.io import Options
from ledgerbeam.io.exchange.slices import MOST_SLICES, Partition, SliceTables
from ledgerbeam.ledger import Job, LedgerStore
from ledgerbeam.ledger.model.job import Json
from ledgerbeam.ledger.opening import open_store
from ledgerbeam.pipelines.console.run_progress import count
from ledgerbeam.pipelines.exchange.buckets import Reading, RunFiles, RunWriter, are_complete
from ledgerbeam.pipelines.exchange.jobs import LISTING, BucketsOf, ScatterJob, as_run
from ledgerbeam.pipelines.exchange.partition import KeyChoice, PartitionLimits, decide_partition
from ledgerbeam.pipelines.jobs.one_stage import published_metadata
from ledgerbeam.pipelines.jobs.shard_job import shard_form
from ledgerbeam.pipelines.jobs.sources import GraphPasses, ListedFiles
from ledgerbeam.pipelines.jobs.spec import JobSpec, Part, Product, work_folder_of
from ledgerbeam.pipelines.outputs.recorded import OutputFolder, forget_lost

if TYPE_CHECKING:
    import apache_beam as beam
    from apache_beam.options.pipeline_options import PipelineOptions
    from apache_beam.portability.api import beam_runner_api_pb2
    from apache_beam.runners.runner import PipelineRunner

    from ledgerbeam.transforms.chain.base import ChainStep
    from ledgerbeam.transforms.mapping.audit import AuditedWork

SCATTER = "scatter"  # name of the parameter of a job with the options of its pipeline's `Scatter`
BUCKET_BYTES = 64 * 2**20

_LARGER = 'PlanTasks("{0}") and Scatter(bucket_bytes="{0}"), and MatchSources(pack=...) for small sources'
_AGAIN = "run the pipeline with Scatter to its end, and then this one again"


def proto_text(pipeline: beam_runner_api_pb2.Pipeline) -> str:
    """Return a pipeline in Beam's own form as text, for JSON."""
    return base64.b85encode(pipeline.SerializeToString()).decode("ascii")


@dataclass(frozen=True, kw_only=True)
class PipelineJob(JobSpec):
    """Runs the chain of a user's pipeline, and then the transforms after it."""

    command = "pipeline"
    is_pipeline = True
    why_open = (
        "a transform between ReadTasks and WriteTasks has dropped tasks, or another run has taken over the ledger; "
        "to drop a task, return None from a function of ProcessTask, then run the pipeline again"
    )

    name: str  # name of the pipeline, from the user
    output: str  # URL of the folder of its shards
    to: str  # output format: a name, or the description of an encoder
    files: ListedFiles | None = None  # the sources, if they are files; None for others
    passes: GraphPasses | None = None  # the passes of a graph; None for others
    gathered: GatheredRuns | None = None  # the run files of another pipeline; None for others
    scatter: ScatterChoice | None = None  # options of its `Scatter`; None if it writes shards
    partition: Partition | None = None  # partition of scattered records into buckets; None until it is set
    published: str | None = None  # format whose metadata is published beside the outputs; None for none
    functions: dict[str, Any] = field(default_factory=dict)  # hashes of the code of the chain's functions, by name
    given: dict[str, Any] = field(default_factory=dict)  # further parameters of the outputs, from the user
    whole: str  # the pipeline, as `proto_text` of Beam's own form
    chain: str  # the chain alone, as `proto_text`
    steps: tuple[str, ...] = ()  # labels of the steps between reading and writing, in order
    rest: str | None = None  # the transforms after the chain, as `proto_text`; None if there are none
    # The function to audit and the encoder, pickled, as base 85; None if the pipeline cannot be audited.
    audits: str | None = None

    decisions = ("partition",)

    def sources(self) -> ListedFiles | GraphPasses | BucketsOf:
        if self.gathered is not None:
            return self.gathered.sources(self.storage_options)
        return self.passes if self.files is None else self.files  # type: ignore[return-value] # one of them is set

    def labels(self) -> tuple[str, ...]:
        return self.steps

    def require_sources(self, store: LedgerStore) -> None:
        if self.gathered is not None:
            self.gathered.require(store, self.storage_options)

    @property
    def run_partition(self) -> Partition | None:
        return self.partition

    def product(self) -> Product | None:
        return published_metadata(self.published) if self.partition is None else BucketTables(self.partition.buckets)

    def doubts(self, store: LedgerStore) -> Iterator[str]:
        if self.scatter is not None:
            yield from self.scatter.key.doubts(self.sources().names, store)

    def with_recorded(self, stored: Job) -> Self:
        if self.scatter is None:
            return self
        return dataclasses.replace(self, partition=self.partition or Partition.recorded(stored.parameters))

    def with_decisions(self, say: Callable[[str], None]) -> Self:
        if self.scatter is None or self.partition is not None:
            return self
        sampled = None
        if self.files is not None:
            places: dict[str, Any] = {"output": self.output, "ledger": self.ledger, "own": self._own_files()}
            sampled = ScatterJob(files=self.files, key=self.scatter.key, **places, **as_run(self))
        return dataclasses.replace(self, partition=self.scatter.decided(sampled, say))

    @property
    def shard_form(self) -> str:
        return shard_form(self.to)

    def identity(self) -> Job:
        said: dict[str, Json] = {**self.sources().parameters(), "output": self.output, "to": self.to}
        if self.scatter is not None:
            said |= self.scatter.parameters()
        if self.partition is not None:
            said |= self.partition.parameters()
        return Job(self.name, {**self.given, **said, "functions": dict(self.functions)})

    def chain_steps(self) -> list[ChainStep]:
        """Return no steps: the user's pipeline has them, see `pipeline`."""
        return []

    def pipeline(self, part: Part, runner: PipelineRunner | None, options: PipelineOptions) -> beam.Pipeline:
        import apache_beam as beam  # noqa: PLC0415 - takes a second
        from apache_beam.portability.api import beam_runner_api_pb2  # noqa: PLC0415

        text = {"whole": self.whole, "chain": self.chain, "rest": self.rest}[part]
        proto = beam_runner_api_pb2.Pipeline.FromString(base64.b85decode(str(text)))
        return beam.Pipeline.from_runner_api(proto, runner, options)  # type: ignore[arg-type] # None is that of options

    calls_are_async = True  # perhaps

    @property
    def can_be_audited(self) -> bool:
        """Whether the chain has one function, `MapRecords` or `GroupRecords`."""
        return self.audits is not None

    def audited(self) -> AuditedWork:
        if self.audits is None:
            return super().audited()
        return self._audited_work(*self._audits())

    def _audits(self) -> Any:
        return pickle.loads(base64.b85decode(str(self.audits)))  # noqa: S301 - the chain is pickled, too

    def changed_code(self) -> list[str]:
        function, _ = self._audits()
        return [] if function.identity() == self.functions.get(repr(function)) else [repr(function)]

    @property
    def has_downstream(self) -> bool:
        return self.rest is not None


@dataclass(frozen=True, kw_only=True)
class ScatterChoice:
    """The options of `Scatter` in a user's pipeline."""

    key: KeyChoice  # key that orders the records
    buckets: int | None = None  # number of buckets; None to compute it from the size of a bucket
    bucket_bytes: int | None = None  # size of a bucket in bytes, by the size of the sources
    cuts: tuple[str, ...] = ()  # keys at which buckets start, in hexadecimal; empty to compute them
    as_read: bool = True  # whether the records are unchanged records of the sources; otherwise functions have made them

    def parameters(self) -> dict[str, Json]:
        """Return the parameters of the run files."""
        given: dict[str, Json] = {"buckets": self.buckets, "bucket_bytes": self.bucket_bytes}
        if self.cuts:
            given["cuts"] = list(self.cuts)
        shaping: dict[str, Json] = {**self.key.parameters(), "as_read": self.as_read}
        return {SCATTER: shaping | {name: value for name, value in given.items() if value is not None}}

    def decided(self, scatter: ScatterJob | None, say: Callable[[str], None]) -> Partition:
        """Return the partition of the records into buckets. `scatter` samples files; None for other sources."""
        if self.cuts:
            return Partition.of_cuts([bytes.fromhex(cut) for cut in self.cuts])
        if scatter is None:
            if self.key.scheme == "hash" and self.buckets is not None:
                return Partition(self.buckets)
            raise UsageError(
                "Scatter: only keys of files can be sampled, to divide the records into buckets; give cuts=[...], or "
                'order="hash" and buckets=N'
            )
        size = BUCKET_BYTES if self.bucket_bytes is None else self.bucket_bytes
        partition = decide_partition([scatter], PartitionLimits(size, size, self.buckets, merges=0), say, _LARGER)
        if partition.buckets == 1 and self.key.scheme == "key" and not self.as_read and self._wants_more(scatter, size):
            raise UsageError(
                f"Scatter: {self.key}: expected two or more keys in a sample of the sources, to divide the records by "
                'key, found fewer; if a function before Scatter computes the key, give cuts=[...], or order="hash"'
            )
        return partition

    def _wants_more(self, scatter: ScatterJob, size: int) -> bool:
        """Return whether several buckets are needed: by option, or because the sources are larger than `size` bytes."""
        if self.buckets is not None:
            return self.buckets > 1
        return sum(sum(page.sizes) for page in scatter.pages()) > size


@dataclass(frozen=True)
class BucketTables(Product):
    """The tables of a pipeline's run files, which list the slices of each bucket."""

    name: ClassVar[str] = "buckets"
    replaces_shards: ClassVar[bool] = True  # run files need not stay after they are gathered

    buckets: int

    def is_made(self, job: JobSpec, store: LedgerStore) -> bool:
        return _run_files(str(job.output), job.ledger, store, job.storage_options).known() is not None

    def make(
        self, job: JobSpec, store: LedgerStore, *, rewrite: Callable[[int], bool], say: Callable[[str], None]
    ) -> list[dict[str, Any]]:
        """Find the buckets of the run files, unless they are known. Missing run files are first written again."""
        runs = _run_files(str(job.output), job.ledger, store, job.storage_options)
        buckets = runs.known()
        if buckets is None:
            if lost := forget_lost(job, store):
                if not rewrite(lost):
                    return []
                runs = _run_files(str(job.output), job.ledger, store, job.storage_options)
            buckets = runs.tabulate()
        say(f"{count(len(runs), 'run file')} of {count(runs.size, 'byte')} -> {count(self.buckets, 'bucket')}")
        return [{"buckets": len(buckets.sizes), "run_files": len(runs), "bytes": runs.size}]

    def not_made(self, job: JobSpec) -> str:
        return f"{job.output}: its run files cannot be gathered before all sources are scattered"


@dataclass(frozen=True, kw_only=True)
class GatheredRuns:
    """The run files that a user's pipeline gathers."""

    runs: str  # folder of the run files
    ledger: str  # ledger of the pipeline that has scattered
    scattered: dict[str, Any]  # parameters of that pipeline, without the location of its output
    state: str  # hash of the names and contents of the run files
    task_bytes: int  # size of a task
    whole_keys: bool = True  # whether all records of a key are in one task

    @classmethod
    def found(cls, runs: str, ledger: str, options: dict[str, Any], *, task_bytes: int, whole_keys: bool) -> Self:
        """Return the run files that are complete in a ledger."""
        job, files, _ = _look(runs, ledger, options)
        others = {name: value for name, value in job.parameters.items() if name != "output"}
        scattered = {"pipeline": job.pipeline, **others}
        return cls(
            runs=runs,
            ledger=ledger,
            scattered=scattered,
            state=files.state,
            task_bytes=task_bytes,
            whole_keys=whole_keys,
        )

    @property
    def key(self) -> Mapping[str, Any]:
        """The parameters of `ScatterChoice` with which the records were scattered."""
        found: Mapping[str, Any] = self.scattered[SCATTER]
        return found

    def sources(self, options: Options) -> BucketsOf:
        """Return the buckets."""
        tables = SliceTables(self.runs, self.state, dict(options or {}))
        shaping: dict[str, Json] = {"scattered": self.scattered}
        url = f"{work_folder_of(self.ledger)}/{LISTING}"
        return _Buckets((self.runs,), shaping, tables, url, self.task_bytes, not self.whole_keys)

    def require(self, store: LedgerStore, options: dict[str, Any]) -> None:
        """Check the run files and write their tables of slices, if the ledger has incomplete buckets.

        Raises:
            ScatterIncompleteError: Run files are missing, or the sources were scattered again meanwhile.
        """
        _, files, scattered = _look(self.runs, self.ledger, options)
        buckets = files.known()
        if buckets is None or files.state != self.state:
            raise ScatterIncompleteError(f"{self.runs}: sources were scattered in another run; run the pipeline again")
        if are_complete(buckets, store):
            return
        if lost := forget_lost(OutputFolder(self.runs, options), scattered):
            raise ScatterIncompleteError(
                f"{self.runs}: missing {count(lost, 'run file')} of the ledger {self.ledger}. Another pipeline may "
                f"have gathered and removed run files: {_AGAIN}. If several pipelines gather the same run files, give "
                "each Gather(keep_runs=True)"
            )
        parts = sum(max(1, -(-size // self.task_bytes)) for size in buckets.sizes)
        if len(files) * parts > MOST_SLICES:
            raise UsageError(
                f"{self.runs}: {count(len(files), 'run file')} and {count(parts, 'task')} would read "
                f"{len(files) * parts:,} slices, and at most {MOST_SLICES:,} are allowed; give larger tasks with "
                "PlanTasks(task_bytes), in this pipeline or in the pipeline with Scatter"
            )
        if not files.are_tabulated():
            files.tabulate()


@dataclass(frozen=True)
class _Buckets(BucketsOf):
    """The buckets that a pipeline gathers."""

    def parameters(self) -> dict[str, Json]:
        return {**self.shaping, "whole_keys": not self.within_keys, "task_bytes": self.task_bytes}

    def places(self) -> dict[str, list[str]]:
        return {"the run files": [self.tables.folder]}


def _look(runs: str, ledger: str, options: dict[str, Any]) -> tuple[Job, RunFiles, LedgerStore]:
    """Return the scattering job, its run files, and its ledger."""
    try:
        store = open_store(ledger, options)
    except LedgerNotFoundError as error:
        raise ScatterIncompleteError(f"{runs}: no pipeline has scattered with {ledger}: {error}; {_AGAIN}") from error
    job = _scattering(ledger, store)
    if not _scatter_of(job):
        raise UsageError(
            f"{ledger}: expected the ledger of a pipeline that ends with Scatter and CommitTasks, found the ledger of "
            f"{job.pipeline!r}; give Gather the ledger of the pipeline with Scatter"
        )
    if job.parameters.get("output") != runs:
        raise UsageError(
            f"Gather({runs!r}): the pipeline of {ledger} has scattered to {job.parameters.get('output')}; give that "
            f"folder, or the ledger of the pipeline that has scattered to {runs!r}"
        )
    files = _run_files(runs, ledger, store, options)
    if files.known() is None:
        raise ScatterIncompleteError(
            f"{runs}: the pipeline with Scatter ended before it recorded its buckets; {_AGAIN}"
        )
    return job, files, store


def _run_files(folder: str, ledger: str, store: LedgerStore, options: dict[str, Any]) -> RunFiles:
    job = _scattering(ledger, store)
    partition = Partition.recorded(job.parameters) or Partition(1)
    writer = RunWriter(job, folder, store, bool(_scatter_of(job).get("as_read")))
    return RunFiles.written([writer], Reading(folder, f"{work_folder_of(ledger)}/{LISTING}", options, partition))


def _scattering(ledger: str, store: LedgerStore) -> Job:
    job = store.job()
    if job is None:
        raise ScatterIncompleteError(f"{ledger}: expected a ledger of a pipeline with Scatter, found no job; {_AGAIN}")
    return job


def _scatter_of(job: Job) -> Mapping[str, Any]:
    found: Any = job.parameters.get(SCATTER)
    return found if isinstance(found, Mapping) else {}
