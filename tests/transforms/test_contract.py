"""What every transform must do, whatever it is for: travel to workers, show itself, and pass markers on."""

from __future__ import annotations

import pickle
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.testing.util import assert_that, equal_to
from apache_beam.transforms.display import DisplayData

from ledgerbeam.ledger import FailedTask, NoneTask, Source, Task
from ledgerbeam.transforms import (
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
    WriteTasks,
)
from ledgerbeam.transforms.chain.base import ChainValues, give_values
from tests.cases import each


def keep(task: Task) -> Task:
    return task


def keep_all(tasks: list[Task]) -> list[Task]:
    return tasks


TRANSFORMS: list[Any] = [
    MatchSources("/data/*.jsonl"),
    SkipCompleted(),
    PlanTasks(task_bytes=1234),
    PlanIndexes(1234),
    ReadTasks(),
    BuildIndexes("/work"),
    ProcessTask(keep),
    ProcessBatch(keep_all, batch_size=17),
    WriteTasks("/out", "tar"),
    Gather("/runs", ledger="/ledger"),
    Scatter("/runs", by="url"),
    CommitTasks(),
]
BETWEEN = [
    transform for transform in TRANSFORMS if isinstance(transform, ReadTasks | ProcessTask | ProcessBatch | WriteTasks)
]
TASK = Task(Source("/a.jsonl", 1, "1"), 0, 1, ((0, 1),))
MARKERS = [NoneTask(TASK), NoneTask(TASK, "short"), FailedTask(TASK, "earlier")]


def name_of(transform: Any) -> str:
    return type(transform).__name__


@each("transform", TRANSFORMS, ids=name_of)
def test_it_travels_to_workers(transform: Any) -> None:
    again = pickle.loads(pickle.dumps(transform))
    assert type(again) is type(transform)
    assert pickle.dumps(again) == pickle.dumps(transform)


@each("transform", TRANSFORMS, ids=name_of)
def test_it_has_its_name_in_a_pipeline(transform: Any) -> None:
    assert transform.label == name_of(transform)
    for item in DisplayData.create_from(transform).items:
        assert item.value is not None


@pytest.mark.parametrize(
    "transform",
    [
        MatchSources("/data\udcff/*.jsonl"),
        WriteTasks("/out\udcff", "tar"),
        Gather("/runs\udcff", ledger="/ledger"),
        Scatter("/runs\udcff", by="url"),
    ],
    ids=name_of,
)
def test_a_name_that_is_not_utf8_can_be_shown(transform: Any) -> None:
    (shown,) = [item.value for item in DisplayData.create_from(transform).items if "\\udcff" in str(item.value)]
    assert shown.encode()


@each("transform", BETWEEN, ids=name_of)
def test_markers_pass_on_as_they_are(transform: Any) -> None:
    with beam.Pipeline("FnApiRunner") as pipeline:
        found = pipeline | beam.Create(MARKERS, reshuffle=False) | transform
        assert_that(found, equal_to(MARKERS))
        give_values(pipeline, ChainValues())
