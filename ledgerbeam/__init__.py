"""Index, process and restart: Apache Beam jobs over training data.

    import ledgerbeam

    reader = ledgerbeam.open("s3://bucket/cuts.000001.jsonl")          # any record, one ranged read away
    ledger = ledgerbeam.open_ledger("progress", read_only=True)        # what a job has done

    with ledgerbeam.Pipeline(ledger="progress", name="clean") as pipeline:     # a Beam pipeline that can be restarted
        pipeline | ledgerbeam.MatchSources("texts/*.jsonl") | ledgerbeam.SkipCompleted() | ...

What is needed less often is in `ledgerbeam.io`, `.ledger`, `.iterators`, `.sources` and `.transforms`.
A name is imported when it is used for the first time.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ledgerbeam import stats as stats
    from ledgerbeam.errors import FunctionError as FunctionError
    from ledgerbeam.errors import LedgerbeamError as LedgerbeamError
    from ledgerbeam.errors import LedgerError as LedgerError
    from ledgerbeam.errors import RecordError as RecordError
    from ledgerbeam.errors import SourceError as SourceError
    from ledgerbeam.errors import StorageError as StorageError
    from ledgerbeam.errors import UsageError as UsageError
    from ledgerbeam.io.formats.registry import open_source as open  # noqa: A004 - `ledgerbeam.open`, as of gzip
    from ledgerbeam.opening import open_ledger as open_ledger
    from ledgerbeam.pipelines.own_pipeline import LedgerRunner as LedgerRunner
    from ledgerbeam.pipelines.own_pipeline import Pipeline as Pipeline
    from ledgerbeam.pipelines.own_pipeline import PipelineRun as PipelineRun
    from ledgerbeam.pipelines.own_pipeline import run as run
    from ledgerbeam.results import Drop as Drop
    from ledgerbeam.results import Reject as Reject
    from ledgerbeam.results import Route as Route
    from ledgerbeam.results import Rows as Rows
    from ledgerbeam.transforms import CommitTasks as CommitTasks
    from ledgerbeam.transforms import CommittedTask as CommittedTask
    from ledgerbeam.transforms import MapRecords as MapRecords
    from ledgerbeam.transforms import MatchSources as MatchSources
    from ledgerbeam.transforms import PlanTasks as PlanTasks
    from ledgerbeam.transforms import ProcessBatch as ProcessBatch
    from ledgerbeam.transforms import ProcessTask as ProcessTask
    from ledgerbeam.transforms import ReadTasks as ReadTasks
    from ledgerbeam.transforms import SkipCompleted as SkipCompleted
    from ledgerbeam.transforms import WriteTasks as WriteTasks

__version__ = "0.1.0"
__all__ = [
    "CommitTasks",
    "CommittedTask",
    "Drop",
    "FunctionError",
    "LedgerError",
    "LedgerRunner",
    "LedgerbeamError",
    "MapRecords",
    "MatchSources",
    "Pipeline",
    "PipelineRun",
    "PlanTasks",
    "ProcessBatch",
    "ProcessTask",
    "ReadTasks",
    "RecordError",
    "Reject",
    "Route",
    "Rows",
    "SkipCompleted",
    "SourceError",
    "StorageError",
    "UsageError",
    "WriteTasks",
    "__version__",
    "open",
    "open_ledger",
    "run",
    "stats",
]

_MODULES = ("stats",)
_ELSEWHERE = {
    "Drop": ("results", "Drop"),
    "Reject": ("results", "Reject"),
    "Route": ("results", "Route"),
    "Rows": ("results", "Rows"),
    "open": ("io.formats.registry", "open_source"),
    "open_ledger": ("opening", "open_ledger"),
    "LedgerRunner": ("pipelines.own_pipeline", "LedgerRunner"),
    "Pipeline": ("pipelines.own_pipeline", "Pipeline"),
    "PipelineRun": ("pipelines.own_pipeline", "PipelineRun"),
    "run": ("pipelines.own_pipeline", "run"),
    "CommitTasks": ("transforms", "CommitTasks"),
    "CommittedTask": ("transforms", "CommittedTask"),
    "MapRecords": ("transforms", "MapRecords"),
    "MatchSources": ("transforms", "MatchSources"),
    "PlanTasks": ("transforms", "PlanTasks"),
    "ProcessBatch": ("transforms", "ProcessBatch"),
    "ProcessTask": ("transforms", "ProcessTask"),
    "ReadTasks": ("transforms", "ReadTasks"),
    "SkipCompleted": ("transforms", "SkipCompleted"),
    "WriteTasks": ("transforms", "WriteTasks"),
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name in _MODULES:
        return importlib.import_module(f"{__name__}.{name}")
    module, attribute = _ELSEWHERE.get(name, ("errors", name))
    found = globals()[name] = getattr(importlib.import_module(f"{__name__}.{module}"), attribute)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
