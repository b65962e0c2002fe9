"""Beam transforms of a restartable job: one linear chain, from URLs with wildcards to the ledger.

    patterns -> MatchSources -> SkipCompleted -> PlanTasks -> ReadTasks -> ProcessTask -> WriteTasks -> CommitTasks

`PlanTasks` spreads sources and tasks over the workers. No `Reshuffle` or other barrier is allowed after `ReadTasks`:
transforms after a barrier start only when all work before it is done. The transforms get their ledger from the
pipeline: `ledgerbeam.Pipeline` or `ledgerbeam.run`. Elements are `Source` and `Task`. A filtered task becomes a
`NoneTask`, a failed task a `FailedTask`. Later transforms pass them on, and `CommitTasks` records them.

Each name is imported at its first use, so a program that maps records without a pipeline does not import Beam.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ledgerbeam._base.lazy import lazy_names
from ledgerbeam._base.process import import_beam

if TYPE_CHECKING:
    from ledgerbeam.transforms.chain.commit import CommittedTask
    from ledgerbeam.transforms.chain.write import WrittenTask
    from ledgerbeam.transforms.exchange.gather import GroupRecords, KeepRecords
    from ledgerbeam.transforms.mapping.function import EachRecord, FilterRecords, MapRecords
    from ledgerbeam.transforms.mapping.tokenize import TokenizeRecords
    from ledgerbeam.transforms.on_beam import (
        BuildIndexes,
        CommitTasks,
        Gather,
        MatchSources,
        PlanIndexes,
        PlanTasks,
        ProcessBatch,
        ProcessTask,
        ReadTasks,
        Scatter,
        SkipCompleted,
        WriteColumns,
        WriteTasks,
    )

__all__ = [
    "BuildIndexes",
    "CommitTasks",
    "CommittedTask",
    "EachRecord",
    "FilterRecords",
    "Gather",
    "GroupRecords",
    "KeepRecords",
    "MapRecords",
    "MatchSources",
    "PlanIndexes",
    "PlanTasks",
    "ProcessBatch",
    "ProcessTask",
    "ReadTasks",
    "Scatter",
    "SkipCompleted",
    "TokenizeRecords",
    "WriteColumns",
    "WriteTasks",
    "WrittenTask",
]

_ON_BEAM = (
    "BuildIndexes CommitTasks Gather MatchSources PlanIndexes PlanTasks ProcessBatch ProcessTask ReadTasks Scatter "
    "SkipCompleted WriteColumns WriteTasks"
)


def _import_beam_for(name: str) -> None:
    if name in _ON_BEAM.split():
        import_beam()  # without the warnings that Beam logs at import


if not TYPE_CHECKING:  # a type checker would take any name for one that is there
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "chain.commit": "CommittedTask",
            "chain.write": "WrittenTask",
            "exchange.gather": "GroupRecords KeepRecords",
            "mapping.function": "EachRecord FilterRecords MapRecords",
            "mapping.tokenize": "TokenizeRecords",
            "on_beam": _ON_BEAM,
        },
        _import_beam_for,
    )
