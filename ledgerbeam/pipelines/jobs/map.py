"""The job of ``ledgerbeam map``: a user's function of every record."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Self

from ledgerbeam.io import ShardEncoder
from ledgerbeam.io.json_values import NanRule
from ledgerbeam.ledger import Job
from ledgerbeam.ledger.model.job import Json
from ledgerbeam.pipelines.jobs.reject_limit import RejectLimit, parse_on_error
from ledgerbeam.pipelines.jobs.shard_job import ShardJob
from ledgerbeam.pipelines.jobs.sources import ListedFiles
from ledgerbeam.pipelines.jobs.spec import Product
from ledgerbeam.pipelines.outputs.batch_schema import PARAMETER, decide_batch_schema, with_recorded_batch_schema
from ledgerbeam.sources.forms import ARROW_ROWS, RecordForm
from ledgerbeam.user_code.functions import changed_parts
from ledgerbeam.user_code.loading import Reference

if TYPE_CHECKING:  # Beam takes a second to import
    from ledgerbeam.transforms import MapRecords


@dataclass(frozen=True, kw_only=True)
class MapJob(ShardJob):
    """Calls a user's object with every record, or with batches of them, and writes what it returns.

    Attributes:
        files: The sources.
        function: ``module:object``, or the object itself: a function, an object that can be called, or a class.
        made_of: Hashes of what the object is made of, in groups by name; see `UserFunction`.
        values: What the function, or the class when it is built, is given by name.
        watched: Checksums of the files that the object reads, by their URLs.
        form: What the object is called with: ``records``, or ``arrow`` for record batches.
        batch: Records of a batch, at most; None for single records, or for Arrow batches of `ARROW_ROWS`.
        batch_matters: Whether the object says of itself that its results depend on the size of batches.
        nan: What becomes of NaN and infinities in JSONL.
        on_error: What becomes of a record that cannot be used: ``fail``, or ``reject`` with a limit; see
            `parse_on_error`. No part of the job's identity.
        published: The format whose metadata is published beside the outputs; None publishes nothing.
    """

    command = "map"
    can_be_audited = True

    files: ListedFiles
    function: Reference
    made_of: dict[str, dict[str, str]]
    values: dict[str, Any] = field(default_factory=dict)
    watched: dict[str, str] = field(default_factory=dict)
    form: RecordForm = "records"
    batch: int | None = None
    batch_matters: bool = False
    nan: NanRule = "refuse"
    on_error: str = "fail"
    published: str | None = None

    def sources(self) -> ListedFiles:
        """Return the files whose records are mapped."""
        return replace(self.files, form=self.form)

    def with_files(self, files: ListedFiles) -> Self:
        """Return the job with other sources."""
        return replace(self, files=files)

    def parameters(self) -> dict[str, Json]:
        """Return what shapes the outputs: the object, its code, its values and the files that it reads.

        Each module, value and file has a name of its own, so that a ledger of another job says which has changed, as
        has each part of an object that no module holds.
        """
        shaping: dict[str, Json] = {"function": str(self.function), **self.made_of, "nan": self.nan}
        if self.values:
            shaping["set"] = dict(self.values)
        if self.watched:
            shaping["watched file"] = dict(self.watched)
        if self.form != "records":
            shaping["as"] = self.form
        size = self.batch or (ARROW_ROWS if self.form == "arrow" else None)
        if size is not None and self.batch_matters:
            shaping["batch"] = size
        return shaping

    def work(self) -> MapRecords:
        """Return the function of a task that maps its records."""
        from ledgerbeam.transforms import MapRecords  # noqa: PLC0415 - brings Beam

        return MapRecords(
            self.function,
            self.output_format,
            values=self.values,
            batch=self.batch,
            form=self.form,
            watched=self.watched,
            nan=self.nan,
            on_error="fail" if self.on_error == "fail" else "reject",
        )

    def changed_code(self) -> list[str]:
        """Return the names of the parts of the function that have changed since this job was made."""
        return changed_parts(self.function, self.made_of)

    @property
    def reject_limit(self) -> RejectLimit | None:
        """How many records may be rejected; None where one fails its task."""
        return parse_on_error(self.on_error)

    decisions = (PARAMETER, *ShardJob.decisions)

    def with_recorded(self, stored: Job) -> Self:
        """Return the job with the recorded columns of its batches, and schemas of what comes of these."""
        return super(MapJob, with_recorded_batch_schema(self, stored)).with_recorded(stored)

    def with_decisions(self, say: Callable[[str], None]) -> Self:
        """Return the job with the columns of its batches, and with the schemas of what comes of these."""
        return super(MapJob, decide_batch_schema(self)).with_decisions(say)

    def trial_work(self) -> MapRecords:
        """Return what maps records that are only looked at: each once, and an error is one."""
        trial = replace(self, on_error="fail").work()
        return trial.with_storage_options(self.storage_options)

    def encoder(self) -> str | ShardEncoder:
        """Return the format of the shards."""
        return self.output_format

    def product(self) -> Product | None:
        """Return the metadata to publish."""
        if self.published is None:
            return None
        from ledgerbeam.pipelines.outputs.published import PublishedMetadata  # noqa: PLC0415 - for few jobs

        return PublishedMetadata(self.published)
