"""Job of ``ledgerbeam split``: records in folders, by key. It needs no exchange, because the key alone decides."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from ledgerbeam.io import ShardEncoder
from ledgerbeam.io.conversion import conversion_of
from ledgerbeam.ledger import LedgerStore
from ledgerbeam.ledger.model.job import Json
from ledgerbeam.pipelines.exchange.jobs import layout_of_rows
from ledgerbeam.pipelines.exchange.partition import KeyChoice
from ledgerbeam.pipelines.jobs.shard_job import ShardJob
from ledgerbeam.pipelines.jobs.sources import ListedFiles

if TYPE_CHECKING:  # Beam takes a second to import
    from ledgerbeam.transforms.exchange.split import SplitRecords


@dataclass(frozen=True, kw_only=True)
class SplitJob(ShardJob):
    """Writes each record to the part of its key.

    Attributes:
        files: The sources.
        key: Common key of the records of a part.
        parts: Name and share of each part.
    """

    command = "split"

    keeps_columns = True

    files: ListedFiles
    key: KeyChoice
    parts: tuple[tuple[str, int], ...]

    def sources(self) -> ListedFiles:
        """Return the files whose records are split."""
        return self.files

    def parameters(self) -> dict[str, Json]:
        """Return the parameters of the outputs: the key, and the parts."""
        return {**self.key.parameters(), "parts": dict(self.parts)}

    def with_decisions(self, say: Callable[[str], None]) -> Self:
        """Return the job with the schema of the sources, which all parts use."""
        return dataclasses.replace(self, layout=layout_of_rows(self, self.files, say))

    def doubts(self, store: LedgerStore) -> Iterator[str]:
        """Yield possible mistakes; see `KeyChoice.doubts`."""
        return self.key.doubts(self.files.names, store)

    def work(self) -> SplitRecords:
        """Return the function that writes each record to its part."""
        from ledgerbeam.transforms.exchange.split import SplitRecords  # noqa: PLC0415 - brings Beam

        return SplitRecords(self.key.keys(self.files.base), self.parts, conversion_of(self.to), self.output_format)

    def encoder(self) -> str | ShardEncoder:
        """Return the format of the shards."""
        return self.output_format
