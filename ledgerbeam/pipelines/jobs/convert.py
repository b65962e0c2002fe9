"""The jobs of ``ledgerbeam convert`` and ``materialize``: records, or the items of a graph, in another format."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ledgerbeam.io import ShardEncoder, conversion
from ledgerbeam.io.datasets.megatron.format import MegatronFormat
from ledgerbeam.io.datasets.shar import cuts
from ledgerbeam.io.datasets.shar.format import SharFormat
from ledgerbeam.ledger.model.job import Json
from ledgerbeam.pipelines.datasets.megatron_parts import MergedParts
from ledgerbeam.pipelines.jobs.shard_job import ShardJob
from ledgerbeam.pipelines.jobs.sources import GraphPasses, ListedFiles
from ledgerbeam.pipelines.jobs.spec import Product

if TYPE_CHECKING:  # Beam takes a second to import
    from ledgerbeam.transforms.mapping.function import ConvertRecords


@dataclass(frozen=True, kw_only=True)
class _ConvertingJob(ShardJob):
    """A job that writes any record as a format asks.

    Attributes:
        fields: Of ``shar``: name of each field, and the extension of the members that it is made of.
        dataset: Of ``megatron``: the dataset that the shards are merged into.
        published: The format whose metadata is published beside the outputs; None publishes nothing.
    """

    keeps_columns = True

    fields: tuple[tuple[str, str], ...] = ()
    dataset: MergedParts | None = None
    published: str | None = None

    def parameters(self) -> dict[str, Json]:
        """Return what shapes the outputs: the conversion, its version, and the options of the format."""
        shaping: dict[str, Json] = {"function": f"convert:{self._conversion}", "conversion": conversion.VERSION}
        if self.dataset is not None:
            shaping |= {"suffixes": list(self.dataset.suffixes), "dtype": self.dataset.dtype}
        if self.to == "shar":
            shaping |= {"fields": ",".join("=".join(field) for field in self.fields), "cuts": cuts.VERSION}
        return shaping

    def work(self) -> ConvertRecords:
        """Return the function of a task that converts its records."""
        from ledgerbeam.transforms.mapping.function import ConvertRecords  # noqa: PLC0415 - brings Beam

        return ConvertRecords(self._conversion, self.output_format)

    def trial_work(self) -> ConvertRecords:
        """Return what converts records that are only looked at."""
        return self.work()

    def encoder(self) -> str | ShardEncoder:
        """Return how converted records are written."""
        if self.to == "shar":
            return SharFormat(self.fields)
        return self.output_format if self.dataset is None else MegatronFormat(self.dataset.dtype)

    def product(self) -> Product | None:
        """Return the dataset to merge, or the metadata to publish."""
        if self.published is None:
            return self.dataset
        from ledgerbeam.pipelines.outputs.published import PublishedMetadata  # noqa: PLC0415 - for few jobs

        return PublishedMetadata(self.published)

    @property
    def _conversion(self) -> str:
        return conversion.conversion_of(self.to)


@dataclass(frozen=True, kw_only=True)
class ConvertJob(_ConvertingJob):
    """Writes every record of files in another format.

    Attributes:
        files: The sources.
    """

    command = "convert"

    files: ListedFiles

    def sources(self) -> ListedFiles:
        """Return the files to convert."""
        return self.files


@dataclass(frozen=True, kw_only=True)
class MaterializeJob(_ConvertingJob):
    """Writes the items of an iterator graph in its order.

    Attributes:
        passes: Of the graph.
    """

    command = "materialize"

    passes: GraphPasses

    def sources(self) -> GraphPasses:
        """Return the passes to write."""
        return self.passes
