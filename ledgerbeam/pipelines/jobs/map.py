"""The job of ``ledgerbeam map``: a user's function of every record."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ledgerbeam.io.jsonl.values import NanRule
from ledgerbeam.ledger import Task
from ledgerbeam.ledger.model.job import Json
from ledgerbeam.pipelines.jobs.metadata import PublishedMetadata
from ledgerbeam.pipelines.jobs.reject_limit import RejectLimit, parse_on_error
from ledgerbeam.pipelines.jobs.sources import ListedFiles
from ledgerbeam.pipelines.jobs.spec import Product, ShardJob

__all__ = ["MapJob"]


@dataclass(frozen=True, kw_only=True)
class MapJob(ShardJob):
    """Applies a function to every record and writes what it returns.

    Attributes:
        files: The sources.
        function: ``module:function`` of one record.
        function_source: Hash of the function's module.
        nan: What becomes of NaN and infinities in JSONL.
        check_purity: Whether the first records are mapped twice.
        on_error: What becomes of a record that cannot be used: ``fail``, or ``reject`` with a limit; see
            `parse_on_error`. No part of the job's identity.
        published: The format whose metadata is published beside the outputs; None publishes nothing.
    """

    command = "map"

    files: ListedFiles
    function: str
    function_source: str
    nan: NanRule = "refuse"
    check_purity: bool = True
    on_error: str = "fail"
    published: str | None = None

    def sources(self) -> ListedFiles:
        """Return the files whose records are mapped."""
        return self.files

    def parameters(self) -> dict[str, Json]:
        """Return what shapes the outputs: the function and its source."""
        return {"function": self.function, "function_source": self.function_source, "nan": self.nan}

    def work(self) -> Callable[[Task], Any]:
        """Return the function of a task that maps its records."""
        from ledgerbeam.transforms import MapRecords  # noqa: PLC0415 - brings Beam

        return MapRecords(self.function, self.to, check_purity=self.check_purity, nan=self.nan)

    @property
    def reject_limit(self) -> RejectLimit | None:
        """How many records may be rejected; None where one fails its task."""
        return parse_on_error(self.on_error)

    def encoder(self) -> str:
        """Return the format of the shards."""
        return self.to

    def product(self) -> Product | None:
        """Return the metadata to publish."""
        return None if self.published is None else PublishedMetadata(self.published)
