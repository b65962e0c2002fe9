"""The restart ledger: identities of sources and tasks, counts that show when a source is complete, and stores.

`opening.open_store` returns a `LedgerStore`. The names below are the ones that transforms and pipelines use. This
package does not import Beam.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ledgerbeam._base.lazy import lazy_names

if TYPE_CHECKING:
    from ledgerbeam.ledger.model.accounts import RecordCounts as RecordCounts
    from ledgerbeam.ledger.model.accounts import Statistic as Statistic
    from ledgerbeam.ledger.model.counting import entries as entries
    from ledgerbeam.ledger.model.counting import fold as fold
    from ledgerbeam.ledger.model.identity import ROOT as ROOT
    from ledgerbeam.ledger.model.job import Job as Job
    from ledgerbeam.ledger.model.job import OnJobChange as OnJobChange
    from ledgerbeam.ledger.model.rows import Output as Output
    from ledgerbeam.ledger.model.rows import Totals as Totals
    from ledgerbeam.ledger.model.store import LedgerStore as LedgerStore
    from ledgerbeam.ledger.model.task import FailedTask as FailedTask
    from ledgerbeam.ledger.model.task import NoneTask as NoneTask
    from ledgerbeam.ledger.model.task import Source as Source
    from ledgerbeam.ledger.model.task import Task as Task
    from ledgerbeam.ledger.remote.compaction import Compaction as Compaction
    from ledgerbeam.ledger.remote.compaction import compact as compact
    from ledgerbeam.ledger.remote.segment import Objects as Objects
    from ledgerbeam.ledger.summaries import DatasetManifest as DatasetManifest
    from ledgerbeam.ledger.summaries import MergedStatistic as MergedStatistic
    from ledgerbeam.ledger.summaries import OutputShard as OutputShard
    from ledgerbeam.ledger.summaries import dataset_manifest as dataset_manifest
    from ledgerbeam.ledger.summaries import merged_statistics as merged_statistics

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
