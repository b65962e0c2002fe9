"""The restart ledger: identities of sources and tasks, counts that show when a source is complete, and stores.

`opening.open_store` returns a `LedgerStore`. The names below are the ones that transforms and pipelines use. This
package does not import Beam.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ledgerbeam._base.lazy import lazy_names

if TYPE_CHECKING:
    from ledgerbeam.ledger.model.accounts import RecordCounts, Statistic
    from ledgerbeam.ledger.model.counting import entries, fold
    from ledgerbeam.ledger.model.identity import ROOT
    from ledgerbeam.ledger.model.job import Job, OnJobChange
    from ledgerbeam.ledger.model.rows import Output, Totals
    from ledgerbeam.ledger.model.store import LedgerStore
    from ledgerbeam.ledger.model.task import FailedTask, NoneTask, Source, Task
    from ledgerbeam.ledger.remote.compaction import Compaction, compact
    from ledgerbeam.ledger.remote.segment import Objects
    from ledgerbeam.ledger.summaries import (
        DatasetManifest,
        MergedStatistic,
        OutputShard,
        dataset_manifest,
        merged_statistics,
    )

__all__ = [
    "ROOT",
    "Compaction",
    "DatasetManifest",
    "FailedTask",
    "Job",
    "LedgerStore",
    "MergedStatistic",
    "NoneTask",
    "Objects",
    "OnJobChange",
    "Output",
    "OutputShard",
    "RecordCounts",
    "Source",
    "Statistic",
    "Task",
    "Totals",
    "compact",
    "dataset_manifest",
    "entries",
    "fold",
    "merged_statistics",
]

if not TYPE_CHECKING:  # with __getattr__, a type checker would accept any name
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "model.accounts": "RecordCounts Statistic",
            "model.counting": "entries fold",
            "model.identity": "ROOT",
            "model.job": "Job OnJobChange",
            "model.rows": "Output Totals",
            "model.store": "LedgerStore",
            "model.task": "FailedTask NoneTask Source Task",
            "remote.compaction": "Compaction compact",
            "remote.segment": "Objects",
            "summaries": "DatasetManifest MergedStatistic OutputShard dataset_manifest merged_statistics",
        },
    )
