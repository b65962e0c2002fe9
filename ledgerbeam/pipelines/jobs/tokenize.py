"""Job of ``ledgerbeam tokenize``: texts of records as a Megatron dataset."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ledgerbeam.io import ShardEncoder
from ledgerbeam.io.datasets.megatron.tokenizer import SpecialTokens
from ledgerbeam.ledger import Task
from ledgerbeam.ledger.model.job import Json
from ledgerbeam.pipelines.datasets.megatron_parts import MergedParts
from ledgerbeam.pipelines.jobs.reject_limit import RejectLimit, parse_on_error
from ledgerbeam.pipelines.jobs.shard_job import ShardJob
from ledgerbeam.pipelines.jobs.sources import ListedFiles
from ledgerbeam.user_code.functions import changed_parts
from ledgerbeam.user_code.loading import Reference


@dataclass(frozen=True, kw_only=True)
class TokenizeJob(ShardJob):
    """Tokenizes texts of JSONL records. At the end the shards are merged into one dataset for each key.

    Attributes:
        files: The sources.
        tokenizer: ``bytes``, or the URL of a tokenizer's file.
        checksum: Checksum of that file.
        keys: Keys of the texts in a record.
        eod: Token that ends each document; None for no token.
        special_tokens: Treatment of names of special tokens in texts.
        split: Function that splits a text into a list of texts, or its name; None for no split.
        made_of: Hashes of the code of this function, in groups by name; see `UserFunction`.
        on_error: Treatment of faulty records; see `parse_on_error`. No part of the job's identity.
        dataset: The datasets that the shards are merged into, one for each key.
    """

    command = "tokenize"
    can_be_audited = True

    to: str = "megatron"
    files: ListedFiles
    tokenizer: str
    checksum: str
    keys: tuple[str, ...]
    eod: int | None
    special_tokens: SpecialTokens = "text"
    split: Reference | None = None
    made_of: dict[str, dict[str, str]] = field(default_factory=lambda: {"module": {}})
    on_error: str = "fail"
    dataset: MergedParts

    def sources(self) -> ListedFiles:
        """Return the files whose texts are tokenized."""
        return self.files

    def parameters(self) -> dict[str, Json]:
        """Return the parameters of the outputs. The tokenizer is identified by its content, not by its URL."""
        return {
            "tokenizer": self.checksum,
            "keys": list(self.keys),
            "suffixes": list(self.dataset.suffixes),
            "eod": self.eod,
            "special_tokens": self.special_tokens,
            "split": None if self.split is None else str(self.split),
            **self.made_of,
            "dtype": self.dataset.dtype,
        }

    def work(self) -> Callable[[Task], Any]:
        """Return the function of a task that tokenizes its records."""
        from ledgerbeam.transforms import TokenizeRecords  # noqa: PLC0415 - brings Beam

        return TokenizeRecords(
            self.tokenizer,
            self.checksum,
            self.keys,
            self.split,
            special_tokens=self.special_tokens,
            eod=self.eod,
            on_error="fail" if self.reject_limit is None else "reject",
        )

    @property
    def reject_limit(self) -> RejectLimit | None:
        """Limit of rejected records; None if such a record fails its task."""
        return parse_on_error(self.on_error)

    def encoder(self) -> ShardEncoder:
        """Return the encoder of tokens."""
        from ledgerbeam.io.datasets.megatron.format import TokenShards  # noqa: PLC0415 - imports numpy

        return TokenShards(dict(zip(self.keys, self.dataset.suffixes, strict=True)), self.dataset.dtype, self.eod)

    def changed_code(self) -> list[str]:
        """Return the names of the parts of the splitting function that have changed since this job was made."""
        return [] if self.split is None else changed_parts(self.split, self.made_of)

    def product(self) -> MergedParts:
        """Return the datasets to merge."""
        return self.dataset
