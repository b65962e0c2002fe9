"""Job of a user's Beam pipeline."""

from __future__ import annotations

import base64
import dataclasses
import pickle
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

from ledgerbeam._base.process import WHOLE, BeamParts
from ledgerbeam.io.exchange.slices import Partition
from ledgerbeam.ledger import Job, LedgerStore
from ledgerbeam.ledger.model.job import Json
from ledgerbeam.pipelines.exchange.bucket_jobs import BucketsOf
from ledgerbeam.pipelines.exchange.jobs import ScatterJob, as_run
from ledgerbeam.pipelines.exchange.pipeline_exchange import BucketTables, GatheredRuns, ScatterChoice
from ledgerbeam.pipelines.jobs.shard_job import shard_form
from ledgerbeam.pipelines.jobs.sources import GraphPasses, ListedFiles, OutputPlace
from ledgerbeam.pipelines.jobs.spec import JobSpec, Part
from ledgerbeam.sources.kind import TaskLimits

if TYPE_CHECKING:  # Beam takes a second to import
    import apache_beam as beam
    from apache_beam.options.pipeline_options import PipelineOptions
    from apache_beam.portability.api import beam_runner_api_pb2
    from apache_beam.runners.runner import PipelineRunner

    from ledgerbeam.transforms.mapping.audit import AuditedWork


def proto_text(pipeline: beam_runner_api_pb2.Pipeline) -> str:
    """Return a pipeline in Beam's own form as text, for JSON."""
    return base64.b85encode(pipeline.SerializeToString()).decode("ascii")


@dataclass(frozen=True, kw_only=True)
class PipelineJob(JobSpec):
    """Runs the chain of a user's pipeline, and then the transforms after it.

    Attributes:
        name: Name of the pipeline, from the user.
        output: URL of the folder of its shards.
        to: Output format: a name, or the description of an encoder.
        files: The sources, if they are files; None for others.
        passes: The passes of a graph; None for others.
        gathered: The run files of another pipeline; None for others.
        scatter: Options of its `Scatter`; None if it writes shards.
        partition: Partition of scattered records into buckets; None until it is set.
        functions: Hashes of the code of the chain's functions, by name.
        given: Further parameters of the outputs, from the user.
        whole: The pipeline, as `proto_text` of Beam's own form.
        chain: The chain alone, as `proto_text`.
        steps: Labels of the steps between reading and writing, in order.
        rest: The transforms after the chain, as `proto_text`; None if there are none.
        audits: The function to audit and the encoder, pickled, as base 85; None if the pipeline cannot be audited.
    """

    command = "pipeline"
    why_open = (
        "a transform between ReadTasks and WriteTasks has dropped tasks, or another run has taken the ledger over; let "
        "a function of ProcessTask return None for what is to be left out, then run the pipeline again"
    )

    name: str
    output: str
    to: str
    files: ListedFiles | None = None
    passes: GraphPasses | None = None
    gathered: GatheredRuns | None = None
    scatter: ScatterChoice | None = None
    partition: Partition | None = None
    functions: dict[str, Any] = field(default_factory=dict)
    given: dict[str, Any] = field(default_factory=dict)
    whole: str
    chain: str
    steps: tuple[str, ...] = ()
    rest: str | None = None
    audits: str | None = None

    decisions = ("partition",)

    def sources(self) -> ListedFiles | GraphPasses | BucketsOf:
        """Return the sources of the chain."""
        if self.gathered is not None:
            return self.gathered.sources(self.storage_options)
        return self.passes if self.files is None else self.files  # type: ignore[return-value] # one of them is set

    def labels(self) -> tuple[str, ...]:
        """Return the labels of the steps between reading and writing."""
        return self.steps

    def require_sources(self, store: LedgerStore) -> None:
        """Raise an error for missing run files."""
        if self.gathered is not None:
            self.gathered.require(store, self.storage_options)

    @property
    def run_partition(self) -> Partition | None:
        """The partition of scattered records into buckets."""
        return self.partition

    def product(self) -> BucketTables | None:
        """Return the tables of the buckets, if it scatters."""
        return None if self.partition is None else BucketTables(self.partition.buckets)

    def doubts(self, store: LedgerStore) -> Iterator[str]:
        """Yield possible mistakes; see `KeyChoice.doubts`."""
        if self.scatter is not None:
            yield from self.scatter.key.doubts(self.sources().names, store)

    def with_recorded(self, stored: Job) -> Self:
        """Return the job with its stored buckets."""
        if self.scatter is None:
            return self
        return dataclasses.replace(self, partition=self.partition or Partition.recorded(stored.parameters))

    def with_decisions(self, say: Callable[[str], None]) -> Self:
        """Return the job with its buckets, if it scatters."""
        if self.scatter is None or self.partition is not None:
            return self
        sampled = None
        if self.files is not None:
            places: dict[str, Any] = {"output": self.output, "ledger": self.ledger, "own": self._own_files()}
            sampled = ScatterJob(files=self.files, key=self.scatter.key, **places, **as_run(self))
        return dataclasses.replace(self, partition=self.scatter.decided(sampled, say))

    @property
    def shard_form(self) -> str:
        """A regular expression for the end of the names of the job's shards."""
        return shard_form(self.to)

    def output_places(self) -> list[OutputPlace]:
        """Return the folder of the shards."""
        return [(self.output, "", True)]

    def identity(self) -> Job:
        """Return the parameters of the outputs: of the transforms, their functions, and the user's own."""
        said: dict[str, Json] = {**self.sources().parameters(), "output": self.output, "to": self.to}
        if self.scatter is not None:
            said |= self.scatter.parameters()
        if self.partition is not None:
            said |= self.partition.parameters()
        return Job(self.name, {**self.given, **said, "functions": dict(self.functions)})

    def parts_of_beam(self) -> BeamParts:
        """Return all of Beam, since user code uses it."""
        return WHOLE

    def stages(self) -> list[beam.PTransform[Any, Any]]:
        """Return no transforms: the user's pipeline has the stages, see `pipeline`."""
        return []

    def pipeline(self, part: Part, runner: PipelineRunner | None, options: PipelineOptions) -> beam.Pipeline:
        """Return a part of the user's pipeline."""
        import apache_beam as beam  # noqa: PLC0415 - takes a second
        from apache_beam.portability.api import beam_runner_api_pb2  # noqa: PLC0415

        text = {"whole": self.whole, "chain": self.chain, "rest": self.rest}[part]
        proto = beam_runner_api_pb2.Pipeline.FromString(base64.b85decode(str(text)))
        return beam.Pipeline.from_runner_api(proto, runner, options)  # type: ignore[arg-type] # None is that of options

    @property
    def can_be_audited(self) -> bool:
        """Whether the chain has one function, `MapRecords` or `GroupRecords`."""
        return self.audits is not None

    def audited(self) -> AuditedWork:
        """Return the work to audit."""
        if self.audits is None:
            return super().audited()
        from ledgerbeam.transforms.mapping.audit import AuditedWork  # noqa: PLC0415 - few processes audit

        function, encoder = self._audits()
        sources = self.sources()
        opened, limits = sources.opened(self.storage_options), TaskLimits(*sources.limits())
        return AuditedWork(function, encoder, opened, limits, self.output, self.storage_options)

    def _audits(self) -> Any:
        return pickle.loads(base64.b85decode(str(self.audits)))  # noqa: S301 - the chain is pickled, too

    def changed_code(self) -> list[str]:
        """Return the name of the function, if its code has changed since this job was made."""
        function, _ = self._audits()
        return [] if function.identity() == self.functions.get(repr(function)) else [repr(function)]

    @property
    def has_downstream(self) -> bool:
        """Whether transforms follow `CommitTasks`."""
        return self.rest is not None
