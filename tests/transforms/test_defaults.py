"""What transforms do that are told nothing: as their documentation says, in Python and in Beam YAML alike."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.testing.util import assert_that

from ledgerbeam.ledger import FailedTask, Job, NoneTask, Source, Task
from ledgerbeam.ledger.opening import open_store
from ledgerbeam.transforms import CommitTasks, Gather, MatchSources, ReadTasks, Scatter, WriteTasks, beam_yaml
from ledgerbeam.transforms.chain.base import ChainTransform, ChainValues, LedgerHandle, give_values
from ledgerbeam.transforms.chain.commit import CommittedTask
from tests.transforms.chain.test_read import make

Made = Callable[[], Any]


@pytest.mark.parametrize(
    ("of_yaml", "plain"),
    [
        (lambda: beam_yaml.ReadListing(["/in/*.jsonl"]), lambda: MatchSources("/in/*.jsonl")),
        (lambda: beam_yaml.ReadListing(graph="module:graph"), lambda: MatchSources(graph="module:graph")),
        (lambda: beam_yaml.ReadBuckets("/runs", "/ledger"), lambda: Gather("/runs", ledger="/ledger")),
        (lambda: beam_yaml.Scatter("/runs", "key"), lambda: Scatter("/runs", "key")),
    ],
    ids=["patterns", "a graph", "buckets", "scatter"],
)
def test_what_yaml_leaves_out_is_what_python_leaves_out(of_yaml: Made, plain: Made) -> None:
    assert vars(of_yaml()) == vars(plain())


def test_who_says_nothing_says_what_the_pages_say() -> None:
    listing, gather, scatter = MatchSources("/in/*"), Gather("/runs", ledger="/ledger"), Scatter("/runs", "key")
    assert vars(listing) == vars(MatchSources("/in/*", epochs=1, build_index=True, shar=False))
    assert vars(gather) == vars(Gather("/runs", ledger="/ledger", whole_keys=True, keep_runs=False))
    assert vars(scatter) == vars(Scatter("/runs", "key", order="key", descending=False, nulls="last"))


class _Behind(ChainTransform):
    """Says nothing of blocks."""

    def dofn(self, values: ChainValues) -> beam.DoFn:
        """Return what shows the form in which records come."""
        return _Shown()


class _Shown(beam.DoFn):
    def process(self, task: Task) -> list[str]:
        return [type(task.records).__name__]


def test_a_transform_that_says_nothing_of_blocks_is_given_lists(tmp_path: Path) -> None:
    task = Task(make(tmp_path, "a.jsonl"), 0, 2)
    with beam.Pipeline(options=PipelineOptions(["--runner=BundleBasedDirectRunner"])) as pipeline:
        shown = pipeline | beam.Create([task], reshuffle=False) | ReadTasks() | _Behind()
        give_values(pipeline, ChainValues())

        def are_lists(found: list[str]) -> None:
            assert found == ["list"]

        assert_that(shown, are_lists)


def test_where_nothing_is_said_to_come_behind_nothing_is_emitted(tmp_path: Path) -> None:
    store = open_store(str(tmp_path / "L"), create=True)
    store.open_job(Job("map", {}))
    source = Source("/data/a.jsonl", 10, "1")
    store.register([source])
    committing = CommitTasks().dofn(ChainValues(LedgerHandle(str(tmp_path / "L"))))
    committing.start_bundle()
    assert committing.process(NoneTask(Task(source, 0, 1))) == []
    assert committing.finish_bundle() == []
    assert store.completed_count() == 1


def test_a_committed_task_of_which_nothing_is_said_has_written_nothing() -> None:
    assert CommittedTask("/a", 0, 1) == CommittedTask("/a", 0, 1, records=0, outputs=(), counts=None)


def test_what_transforms_emit_is_what_they_say_that_they_emit(tmp_path: Path) -> None:
    task = Task(make(tmp_path, "a.jsonl"), 0, 2)
    tasks = [task, NoneTask(task), FailedTask(task, "reason")]
    options = PipelineOptions(["--runner=BundleBasedDirectRunner", "--runtime_type_check"])
    with beam.Pipeline(options=options) as pipeline:
        read = pipeline | beam.Create(tasks, reshuffle=False) | ReadTasks()
        written = read | WriteTasks(str(tmp_path / "out"), "jsonl")
        give_values(pipeline, ChainValues())

        def are_of_each_kind(found: list[Any]) -> None:
            assert sorted(type(one).__name__ for one in found) == ["FailedTask", "NoneTask", "WrittenTask"]

        assert_that(written, are_of_each_kind)
