"""Job of ``pack``: sequences of one length as ranges of the documents of Megatron datasets."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from ledgerbeam.io import Options, ShardEncoder
from ledgerbeam.ledger.model.job import Json
from ledgerbeam.pipelines.jobs.one_stage import published_metadata
from ledgerbeam.pipelines.jobs.shard_job import ShardJob
from ledgerbeam.pipelines.jobs.sources import ListedFiles
from ledgerbeam.pipelines.jobs.spec import Product
from ledgerbeam.sources import Sources
from ledgerbeam.sources.documents import DocumentSources
from ledgerbeam.transforms.mapping.pack import VERSION, PackDocuments, PacksEncoder


@dataclass(frozen=True, kw_only=True)
class DatasetsToPack(ListedFiles):
    """Megatron datasets whose documents are read as lengths."""

    eod: int | None = None  # see `DocumentSources`
    packs: str

    def opened(self, options: Options) -> Sources:
        return DocumentSources(dict(options or {}), self.eod, self.packs)


@dataclass(frozen=True, kw_only=True)
class PackJob(ShardJob):
    """Packs the documents of Megatron datasets. A task is a range of documents, and its packs are one file."""

    command = "pack"
    common = ("length", "eod")

    to: str = "arrow"
    files: ListedFiles
    length: int  # tokens of a pack
    strategy: Literal["best-fit", "concat"] = "best-fit"
    eod: int | None = None  # token that is added to each document; None for none
    longest: Literal["split", "cut"] = "split"  # treatment of documents longer than a pack
    weight: float = 1.0  # how often each document is taken

    def sources(self) -> DatasetsToPack:
        return self._datasets

    @cached_property
    def _datasets(self) -> DatasetsToPack:
        return DatasetsToPack(**vars(self.files), eod=self.eod, packs=str(self.output))

    def parameters(self) -> dict[str, Json]:
        rules: dict[str, Json] = {"length": self.length, "strategy": self.strategy, "eod": self.eod}
        return {**rules, "longest": self.longest, "weight": self.weight, "packs": VERSION}

    def work(self) -> PackDocuments:
        return PackDocuments(self.length, self.strategy, self.eod is not None, self.longest, self.weight)

    def encoder(self) -> ShardEncoder:
        return PacksEncoder(self.parameters(), self.files.base)

    def product(self) -> Product | None:
        return published_metadata("packs")
