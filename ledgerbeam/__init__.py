"""Index, process and restart: Apache Beam jobs over training data.

    import ledgerbeam

    result = ledgerbeam.map(clean, "texts/*.jsonl", output="clean", to="jsonl")     # restartable: call it again
    reader = ledgerbeam.open("s3://bucket/cuts.000001.jsonl")                       # any record, by one ranged read
    ledger = ledgerbeam.open_ledger("progress")                                     # the state of a job

    with ledgerbeam.Pipeline(ledger="progress", name="clean") as pipeline:     # a Beam pipeline that can be restarted
        pipeline | MatchSources("texts/*.jsonl") | SkipCompleted() | ...                 # of ledgerbeam.transforms

Other names are in `ledgerbeam.io`, `.ledger`, `.iterators`, `.sources` and `.transforms`.
A name is imported on first use.
"""

from __future__ import annotations

import importlib

from ledgerbeam._base.version import __version__

TYPE_CHECKING = False  # as type checkers expect; `typing` could be a file in the working folder, see __main__

if TYPE_CHECKING:
    from ledgerbeam import stats
    from ledgerbeam.answers import Unavailable, remember
    from ledgerbeam.errors import (
        FunctionError,
        LedgerbeamError,
        LedgerError,
        RecordError,
        SourceError,
        StorageError,
        TasksFailedError,
        UsageError,
    )
    from ledgerbeam.io.any_source import RecordStream, index_source
    from ledgerbeam.io.any_source import open_any as open  # noqa: A004 - `ledgerbeam.open`, as of gzip
    from ledgerbeam.pipelines.calls.columns import annotate, decontaminate, select
    from ledgerbeam.pipelines.calls.convert import convert, materialize
    from ledgerbeam.pipelines.calls.dedup import dedup
    from ledgerbeam.pipelines.calls.exchanges import group, join, repartition, shuffle, sort, split
    from ledgerbeam.pipelines.calls.index import index, verify
    from ledgerbeam.pipelines.calls.map import map as map  # noqa: A004 - as the command is called
    from ledgerbeam.pipelines.calls.megatron import merge, tokenize
    from ledgerbeam.pipelines.calls.packs import pack
    from ledgerbeam.pipelines.calls.publish import publish
    from ledgerbeam.pipelines.calls.result import JobInterrupt, Result
    from ledgerbeam.pipelines.flows.flow import Flow, plan_flow, run_flow
    from ledgerbeam.pipelines.flows.plan import FlowPlan
    from ledgerbeam.pipelines.flows.run import FlowRun
    from ledgerbeam.pipelines.own_pipeline import LedgerRunner, Pipeline, PipelineRun, run
    from ledgerbeam.pipelines.report.ledger import Ledger, open_ledger
    from ledgerbeam.results import Drop, Reject, Route, Rows

__all__ = [
    "Drop",
    "Flow",
    "FlowPlan",
    "FlowRun",
    "FunctionError",
    "JobInterrupt",
    "Ledger",
    "LedgerError",
    "LedgerRunner",
    "LedgerbeamError",
    "Pipeline",
    "PipelineRun",
    "RecordError",
    "RecordStream",
    "Reject",
    "Result",
    "Route",
    "Rows",
    "SourceError",
    "StorageError",
    "TasksFailedError",
    "Unavailable",
    "UsageError",
    "__version__",
    "annotate",
    "convert",
    "decontaminate",
    "dedup",
    "group",
    "index",
    "index_source",
    "join",
    "map",
    "materialize",
    "merge",
    "open",
    "open_ledger",
    "pack",
    "plan_flow",
    "publish",
    "remember",
    "repartition",
    "run",
    "run_flow",
    "select",
    "shuffle",
    "sort",
    "split",
    "stats",
    "tokenize",
    "verify",
]

_MODULES = ("stats",)
_PIPELINES = ("LedgerRunner", "Pipeline", "PipelineRun", "run")
_OF_IO = ("index_source", "open")  # functions of io, which does not handle interrupts of calls; they are wrapped here

_PLACES = {  # modules of the names that are neither errors nor calls
    "answers": ("Unavailable", "remember"),
    "io.any_source": ("RecordStream", *_OF_IO),
    "pipelines.calls.result": ("JobInterrupt", "Result"),
    "pipelines.flows.flow": ("Flow", "plan_flow", "run_flow"),
    "pipelines.flows.plan": ("FlowPlan",),
    "pipelines.flows.run": ("FlowRun",),
    "pipelines.own_pipeline": _PIPELINES,
    "pipelines.report.ledger": ("Ledger", "open_ledger"),
    "results": ("Drop", "Reject", "Route", "Rows"),
}


if not TYPE_CHECKING:  # for a type checker, `__getattr__` would make every name valid

    def __getattr__(name: str) -> object:
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from ledgerbeam._base.interrupts import Interruptible  # noqa: PLC0415 - commands import it first of all

        with Interruptible(_interrupted):
            return _imported(name)

    def _imported(name: str) -> object:
        if name in _MODULES:
            return importlib.import_module(f"{__name__}.{name}")
        if name in _PIPELINES:
            importlib.import_module(f"{__name__}._base.process").import_beam()
        calls = importlib.import_module(f"{__name__}.pipelines.calls").MODULES
        module = next((module for module, names in _PLACES.items() if name in names), "errors")
        module = f"pipelines.calls.{calls[name]}" if name in calls else module
        found = getattr(importlib.import_module(f"{__name__}.{module}"), "open_any" if name == "open" else name)
        if name in calls or name in ("run", "run_flow"):
            importlib.import_module(f"{__name__}.pipelines.calls.call").document(found)
        if name in _OF_IO:
            found = importlib.import_module(f"{__name__}.pipelines.calls.call").interruptible(found)
        globals()[name] = found
        return found

    def _interrupted() -> KeyboardInterrupt:
        from ledgerbeam.pipelines.calls.call import interrupt_of  # noqa: PLC0415

        return interrupt_of(__name__)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
