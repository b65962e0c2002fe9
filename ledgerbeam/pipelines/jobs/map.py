"""Job of ``ledgerbeam map``: a user's function of every record."""

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
        made_of: Hashes of the code of the object, in groups by name; see `UserFunction`.
        values: Keyword arguments of the function, or of the class.
        watched: Checksums of the files that the object reads, by their URLs.
        form: Argument of the object: ``records``, or ``arrow`` for record batches.
        batch: Maximum number of records of a batch; None for single records, or for Arrow batches of `ARROW_ROWS`.
        batch_matters: Whether the object declares that its results depend on the size of batches.
        nan: Treatment of NaN and infinities in JSONL.
        on_error: Treatment of faulty records: ``fail``, or ``reject`` with a limit; see `parse_on_error`. No part of
            the job's identity.
        published: Format whose metadata is published beside the outputs; None for none.
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
        """Return the parameters of the outputs: the object, its code, its values and the files that it reads.

        Each module, value and file has its own parameter, so that a mismatch names the changed one. So has each part
        of an object without a module.
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
        """Limit of rejected records; None if such a record fails its task."""
        return parse_on_error(self.on_error)

    decisions = (PARAMETER, *ShardJob.decisions)

    def with_recorded(self, stored: Job) -> Self:
        """Return the job with the stored schemas of its batches and of its outputs."""
        return super(MapJob, with_recorded_batch_schema(self, stored)).with_recorded(stored)

    def with_decisions(self, say: Callable[[str], None]) -> Self:
        """Return the job with the schemas of its batches and of its outputs."""
        return super(MapJob, decide_batch_schema(self)).with_decisions(say)

    def trial_work(self) -> MapRecords:
        """Return the function that maps sampled records one by one. An error is raised."""
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
