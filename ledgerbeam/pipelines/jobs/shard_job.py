"""Jobs that write a shard for each task."""

from __future__ import annotations

import dataclasses
import re
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

from ledgerbeam._base.names import REJECTS
from ledgerbeam.errors import UsageError
from ledgerbeam.io import Format, ShardEncoder
from ledgerbeam.io.formats.registry import format_named, formats
from ledgerbeam.ledger import Job, Task
from ledgerbeam.ledger.model.job import Json
from ledgerbeam.pipelines.jobs.sources import OutputPlace
from ledgerbeam.pipelines.jobs.spec import NO_SHARDS, JobSpec
from ledgerbeam.pipelines.outputs.columns import ColumnLayout, decide_layout, recorded_schema
from ledgerbeam.pipelines.outputs.compression import OutputCompression

if TYPE_CHECKING:  # Beam takes a second to import
    import apache_beam as beam

    from ledgerbeam.transforms import MapRecords
    from ledgerbeam.transforms.mapping.audit import AuditedWork


_ENDINGS = {
    "jsonl": r"\.jsonl(?:\.zst)?(?:\.idx)?",
    "tar": r"\.tar(?:\.zst)?(?:\.idx)?",
    "shar": r"\.[^./]+\.(?:jsonl|tar)(?:\.idx)?",
    "megatron": r"[^/]*\.(?:bin|idx)",
    "run": r"\.run",
}
"""Regular expressions for the end of the names of a shard's files, by output format; see `transforms.shards`."""


def shard_form(to: Any) -> str:
    """Return a regular expression for the end of the names of shards of a format, and of their indexes.

    It includes the first record and the ordinals of `transforms.output_name`, and matches files of rejected records
    too. It matches no name if `to` is not a format.
    """
    ending = _ENDINGS.get(to)
    if ending is None and to is not None and to in formats():  # of another package: a file and its index
        ending = rf"{re.escape(formats()[to].suffixes[0])}(?:\.zst)?(?:\.idx)?"
    task = r"-\d{10}(?:-\d{6})*"
    return NO_SHARDS if ending is None else rf"(?:{task}{ending}|(?:^|/){REJECTS}/(?s:.*){task}\.jsonl)"


@dataclass(frozen=True, kw_only=True)
class ShardJob(JobSpec):
    """A job that reads records, applies a function to each task, and writes each task as one shard.

    Attributes:
        output: URL of the folder of the shards.
        to: Name of their format.
        layout: Layout of columnar files; None for other formats.
        compression: Compression of the files; None for none.
    """

    output: str
    to: str
    layout: ColumnLayout | None = None
    compression: OutputCompression | None = None

    keeps_columns: ClassVar[bool] = False
    """Whether rows of columnar sources are written unchanged."""

    @abstractmethod
    def work(self) -> Callable[[Task], Any]:
        """Return the function that processes the records of each task."""

    @abstractmethod
    def encoder(self) -> str | ShardEncoder:
        """Return the encoder of shards, or the name of a format."""

    @abstractmethod
    def parameters(self) -> dict[str, Json]:
        """Return the parameters of the outputs besides sources, folder and format."""

    @property
    def shard_form(self) -> str:
        """A regular expression for the end of the names of the job's shards."""
        return shard_form(self.to)

    def output_places(self) -> list[OutputPlace]:
        """Return the folder of the shards."""
        return [(self.output, "", True)]

    def identity(self) -> Job:
        """Return the parameters of the job's output."""
        columns = {} if self.layout is None else self.layout.parameters(self.to)
        compressed = {} if self.compression is None else self.compression.parameters()
        shaping = {**self.sources().parameters(), "output": self.output, "to": self.to, **columns, **compressed}
        return Job(self.command, {**shaping, **self.parameters()})

    def schemas_json(self) -> dict[str, Any] | None:
        """Return the schemas of the outputs as JSON; None if they have none, or they are not set."""
        schemas = None if self.layout is None else self.layout.schemas()
        return None if schemas is None else schemas.as_json()

    def audited(self) -> AuditedWork:
        """Return the work to audit."""
        if not self.can_be_audited:
            return super().audited()
        from ledgerbeam.sources import TaskLimits  # noqa: PLC0415 - few processes audit
        from ledgerbeam.transforms.mapping.audit import AuditedWork  # noqa: PLC0415

        work: Any = self.work()
        encoder = self._shard_encoder()
        return AuditedWork(
            work,
            format_named(encoder) if isinstance(encoder, str) else encoder,
            self.sources().opened(self.storage_options),
            TaskLimits(*self.sources().limits()),
            self.output,
            self.storage_options,
        )

    def _shard_encoder(self) -> str | ShardEncoder:
        return self.encoder() if self.compression is None else self.compression.encoder(self.encoder())

    @property
    def output_format(self) -> str | Format:
        """The format of the shards: its name, or of columns one that knows their schemas."""
        return self.to if self.layout is None else self.layout.format(self.to)

    def trial_work(self) -> MapRecords:
        """Return the function that maps sampled records.

        Raises:
            UsageError: The job does not map records one by one.
        """
        raise UsageError(f"{self.command} cannot be tried on some records")

    decisions: ClassVar[tuple[str, ...]] = ("schema",)

    def with_recorded(self, stored: Job) -> Self:
        """Return the job with the recorded schemas of its columns, unless others were given."""
        if self.layout is None or self.layout.schema is not None:
            return self
        recorded = recorded_schema(stored)
        return self if recorded is None else dataclasses.replace(self, layout=self.layout.decided(recorded))

    def with_decisions(self, say: Callable[[str], None]) -> Self:
        """Return the job with the schemas of its columns; see `decide_layout`."""
        return dataclasses.replace(self, layout=decide_layout(self, say))

    def stages(self) -> list[beam.PTransform[Any, Any]]:
        """Return the transforms that read, process and write each task."""
        from ledgerbeam.transforms import PlanTasks, ProcessTask, ReadTasks, WriteTasks  # noqa: PLC0415 - brings Beam

        return [
            PlanTasks(*self.sources().limits()),
            ReadTasks("fail" if self.reject_limit is None else "reject"),
            ProcessTask(self.work()),
            WriteTasks(self.output, self._shard_encoder()),
        ]
