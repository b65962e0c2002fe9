"""Job of ``ledgerbeam index``: an index for every source."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ledgerbeam.ledger import Job
from ledgerbeam.pipelines.jobs.sources import FilesToIndex, ListedFiles, OutputPlace
from ledgerbeam.pipelines.jobs.spec import JobSpec

if TYPE_CHECKING:  # Beam takes a second to import
    import apache_beam as beam


@dataclass(frozen=True, kw_only=True)
class IndexJob(JobSpec):
    """Writes the index of every source, beside it or below a root. Its outputs are named by their URLs.

    Attributes:
        files: The sources. The size of a task is the size of the byte ranges that large files are scanned in.
        force: Whether an index replaces any file of its name.
    """

    command = "index"

    files: ListedFiles
    force: bool = False

    def sources(self) -> FilesToIndex:
        """Return the files to index."""
        return self._to_index

    @cached_property
    def _to_index(self) -> FilesToIndex:
        return FilesToIndex(**vars(self.files))

    def output_places(self) -> list[OutputPlace]:
        """Return the places of the indexes."""
        return self.files.index_places()

    def identity(self) -> Job:
        """Return the parameters of the indexes."""
        where = {"index_root": self.files.index_root, "index_rule": self.files.index_rule}
        return Job(self.command, {**self.files.parameters(), **where})

    def stages(self) -> list[beam.PTransform[Any, Any]]:
        """Return the transforms that scan ranges and assemble indexes."""
        from ledgerbeam.transforms import BuildIndexes, PlanIndexes  # noqa: PLC0415 - brings Beam

        return [PlanIndexes(self.files.task_bytes), BuildIndexes(self.work_folder, self.force)]

    def _named_output(self) -> str:
        return self.files.index_root or ""
