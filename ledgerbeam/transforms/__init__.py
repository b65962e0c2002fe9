"""Beam transforms of a restartable job: one linear chain from patterns to the ledger.

    patterns -> MatchSources -> SkipCompleted -> PlanTasks -> ReadTasks -> ProcessTask -> WriteTasks -> CommitTasks

`PlanTasks` spreads sources and tasks over the workers. No `Reshuffle` or other barrier may stand after `ReadTasks`,
since a stage behind one starts only when everything before it is done. The transforms get their ledger from the
pipeline: `ledgerbeam.Pipeline`, or `ledgerbeam.run`. Elements are `Source`,
`Task` and, once a task has ended otherwise than well, its `NoneTask` or `FailedTask`, which every transform passes on.

A name is imported when it is used for the first time: what maps records without a pipeline does not import Beam.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ledgerbeam.beam_import import import_beam
from ledgerbeam.lazy_names import lazy_names

if TYPE_CHECKING:
    from ledgerbeam.transforms.commit import CommitTasks as CommitTasks
    from ledgerbeam.transforms.commit import CommittedTask as CommittedTask
    from ledgerbeam.transforms.each import EachRecord as EachRecord
    from ledgerbeam.transforms.each import FilterRecords as FilterRecords
    from ledgerbeam.transforms.function import MapRecords as MapRecords
    from ledgerbeam.transforms.gather import Gather as Gather
    from ledgerbeam.transforms.gather import GroupRecords as GroupRecords
    from ledgerbeam.transforms.gather import KeepRecords as KeepRecords
    from ledgerbeam.transforms.index import BuildIndexes as BuildIndexes
    from ledgerbeam.transforms.index import PlanIndexes as PlanIndexes
    from ledgerbeam.transforms.match import MatchSources as MatchSources
    from ledgerbeam.transforms.match import SkipCompleted as SkipCompleted
    from ledgerbeam.transforms.plan import PlanTasks as PlanTasks
    from ledgerbeam.transforms.process import ProcessBatch as ProcessBatch
    from ledgerbeam.transforms.process import ProcessTask as ProcessTask
    from ledgerbeam.transforms.read import ReadTasks as ReadTasks
    from ledgerbeam.transforms.scatter import Scatter as Scatter
    from ledgerbeam.transforms.tokenize import TokenizeRecords as TokenizeRecords
    from ledgerbeam.transforms.write import WriteTasks as WriteTasks
    from ledgerbeam.transforms.write import WrittenTask as WrittenTask

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
    "WriteTasks",
    "WrittenTask",
]

_WITHOUT_BEAM = {"EachRecord", "FilterRecords", "MapRecords", "TokenizeRecords"}


def _import_beam_for(name: str) -> None:
    if name not in _WITHOUT_BEAM:
        import_beam()  # without the warnings that Beam logs at import


if not TYPE_CHECKING:  # a type checker would take any name for one that is there
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "BuildIndexes": "index",
            "CommitTasks": "commit",
            "CommittedTask": "commit",
            "EachRecord": "each",
            "FilterRecords": "each",
            "Gather": "gather",
            "GroupRecords": "gather",
            "KeepRecords": "gather",
            "MapRecords": "function",
            "MatchSources": "match",
            "PlanIndexes": "index",
            "PlanTasks": "plan",
            "ProcessBatch": "process",
            "ProcessTask": "process",
            "ReadTasks": "read",
            "Scatter": "scatter",
            "SkipCompleted": "match",
            "TokenizeRecords": "tokenize",
            "WriteTasks": "write",
            "WrittenTask": "write",
        },
        _import_beam_for,
    )
