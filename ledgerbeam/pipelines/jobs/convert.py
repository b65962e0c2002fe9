"""The jobs of ``ledgerbeam convert`` and ``materialize``: records, or the items of a graph, in another format."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from ledgerbeam._base.extensions import load_extension
from ledgerbeam.io import ShardEncoder, conversion
from ledgerbeam.ledger.model.job import Json
from ledgerbeam.pipelines.jobs.shard_job import ShardJob
from ledgerbeam.pipelines.jobs.sources import GraphPasses, ListedFiles
from ledgerbeam.pipelines.jobs.spec import Product

if TYPE_CHECKING:  # Beam takes a second to import
    from ledgerbeam.transforms.mapping.function import ConvertRecords


@dataclass(frozen=True)
class DatasetParts:
    """The datasets that the shards of a job, their parts, are merged into.

    Attributes:
        prefix: Prefix of the names of all files of the datasets.
        suffixes: Suffix of the prefix for each dataset.
        dtype: Name of the tokens' dtype.
        drop: Whether the parts are removed after the merge.
    """

    prefix: str
    suffixes: tuple[str, ...]
    dtype: str
    drop: bool = False


@dataclass(frozen=True, kw_only=True)
class _ConvertingJob(ShardJob):
    """A job that writes any record as a format asks.

    Attributes:
        fields: For ``shar``: name of each field, and the suffix of its members.
        dataset: For ``megatron``: the dataset that the shards are merged into.
        published: Format whose metadata is published beside the outputs; None for none.
    """

    keeps_columns = True

    fields: tuple[tuple[str, str], ...] = ()
    dataset: DatasetParts | None = None
    published: str | None = None

    def parameters(self) -> dict[str, Json]:
        """Return the parameters of the outputs: the conversion, its version, and the options of the format."""
        shaping: dict[str, Json] = {"function": f"convert:{self._conversion}", "conversion": conversion.VERSION}
        if self.dataset is not None:
            shaping |= {"suffixes": list(self.dataset.suffixes), "dtype": self.dataset.dtype}
        if self.to == "shar":
            shaping |= load_extension("ledgerbeam.encoders", self.to)(self.fields).parameters()
        return shaping

    def work(self) -> ConvertRecords:
        """Return the function of a task that converts its records."""
        from ledgerbeam.transforms.mapping.function import ConvertRecords  # noqa: PLC0415 - brings Beam

        return ConvertRecords(self._conversion, self.output_format)

    def trial_work(self) -> ConvertRecords:
        """Return the function that converts sampled records."""
        return self.work()

    def encoder(self) -> str | ShardEncoder:
        """Return the encoder of converted records."""
        if self.dataset is None and self.to != "shar":
            return self.output_format
        options: Any = self.fields if self.dataset is None else self.dataset.dtype
        encoder: ShardEncoder = load_extension("ledgerbeam.encoders", self.to)(options)
        return encoder

    def product(self) -> Product | None:
        """Return the dataset to merge, or the metadata to publish."""
        if self.published is None:
            if self.dataset is None:
                return None
            merged: Product = load_extension("ledgerbeam.products", "megatron")(**asdict(self.dataset))
            return merged
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
        passes: Passes of the graph.
    """

    command = "materialize"

    passes: GraphPasses

    def sources(self) -> GraphPasses:
        """Return the passes to write."""
        return self.passes
