"""How the transforms of a chain are given what their pipeline knows, and how Beam sees them and their elements."""

from __future__ import annotations

from typing import Any

import apache_beam as beam
import pytest
from apache_beam.coders.typecoders import registry
from apache_beam.pipeline import PipelineVisitor

from ledgerbeam.errors import UsageError
from ledgerbeam.ledger import FailedTask, NoneTask, Source, Task
from ledgerbeam.transforms import MapRecords, ProcessTask, ReadTasks
from ledgerbeam.transforms.chain.base import (
    TASKS,
    ChainDoFn,
    ChainTransform,
    ChainValues,
    LedgerHandle,
    TaskCoder,
    give_values,
    size_of,
)

TASK = Task(Source("/data/a.jsonl", 10, "1"), 0, 1, ((0, 1),), [1])


class Noting(beam.DoFn):
    """Notes what a runner asks of it."""

    def __init__(self, values: ChainValues) -> None:
        self.values = values
        self.asked: list[str] = []

    def setup(self) -> None:
        self.asked.append("setup")

    def start_bundle(self) -> str:
        self.asked.append("start")
        return "begun"

    def process(self, element: Any) -> list[Any]:
        self.asked.append(f"process {element}")
        return [element]

    def finish_bundle(self) -> list[str]:
        self.asked.append("finish")
        return ["rest"]

    def teardown(self) -> None:
        self.asked.append("teardown")


class Work(ChainTransform):
    """A transform that notes what is made of it."""

    elements = TASKS

    def __init__(self) -> None:
        super().__init__()
        self.made: list[Noting] = []

    def dofn(self, values: ChainValues) -> beam.DoFn:
        self.made.append(Noting(values))
        return self.made[-1]

    def display_data(self) -> dict[str, Any]:
        return {"shown": 7}


def test_a_worker_makes_what_does_the_work_once() -> None:
    work = Work()
    stands = ChainDoFn(work)
    stands.values = values = ChainValues(base="/data/")
    stands.teardown()  # of a worker that had nothing to do
    assert work.made == []
    stands.setup()
    assert stands.start_bundle() == "begun"
    assert stands.process(5) == [5]
    assert stands.finish_bundle() == ["rest"]
    stands.teardown()
    (made,) = work.made
    assert made.values is values
    assert made.asked == ["setup", "start", "process 5", "finish", "teardown"]
    assert stands.display_data() == {"shown": 7}


def test_the_work_is_made_when_it_is_first_asked_for_where_no_runner_has_set_it_up() -> None:
    for ask in ("start_bundle", "finish_bundle", "process"):
        work = Work()
        stands = ChainDoFn(work)
        stands.values = ChainValues()
        for _ in range(2):
            getattr(stands, ask)(*[5] * (ask == "process"))
        assert len(work.made) == 1


def test_a_chain_without_values_says_how_to_make_one_that_has_them() -> None:
    for act in (ChainDoFn(Work()).work, ChainDoFn(Work()).setup, lambda: ChainDoFn(Work()).process(1)):
        with pytest.raises(UsageError, match=r"^Work: this pipeline has no ledger: make it with ledgerbeam\.Pipeline"):
            act()
    with pytest.raises(UsageError, match=r"^this pipeline has no ledger"):
        ChainValues().require_ledger()
    handle = LedgerHandle("/L")
    assert ChainValues(handle).require_ledger() is handle
    with pytest.raises(NotImplementedError):
        ChainTransform().dofn(ChainValues())


def keep(task: Task) -> Task:
    return task


class Steps(PipelineVisitor):
    """Finds the steps of a chain and the type of their elements."""

    def __init__(self) -> None:
        self.found: dict[str, ChainDoFn] = {}
        self.types: dict[str, Any] = {}

    def visit_transform(self, transform_node: Any) -> None:
        fn = getattr(transform_node.transform, "fn", None)
        if isinstance(fn, ChainDoFn):
            label = transform_node.full_label.split("/")[-1].split("(")[-1].rstrip(")")
            self.found[transform_node.full_label] = fn
            self.types[label] = next(iter(transform_node.outputs.values())).element_type


def test_values_go_to_every_transform_and_blocks_to_who_is_before_one_that_takes_them() -> None:
    pipeline = beam.Pipeline()
    tasks = pipeline | beam.Create([TASK])
    tasks | "first" >> ReadTasks() | "blocks" >> ProcessTask(MapRecords("json:dumps", "jsonl"))
    tasks | "second" >> ReadTasks() | "lists" >> ProcessTask(keep) | "more" >> ProcessTask(keep)
    tasks | "third" >> ReadTasks() | beam.Map(keep) | "far" >> ProcessTask(MapRecords("json:dumps", "jsonl"))
    values = ChainValues(base="/data/")
    give_values(pipeline, values)
    steps = Steps()
    pipeline.visit(steps)
    given = {label.partition("/")[0]: step.values for label, step in steps.found.items()}
    assert {label for label, found in given.items() if found is not None and found.in_blocks} == {"first"}
    assert [found for label, found in given.items() if label != "first"] == [values] * 6
    assert given["first"] is not None
    assert given["first"].base == "/data/"
    assert set(steps.types) == {"ReadTasks", "ProcessTask"}


def test_beam_knows_what_a_transform_emits() -> None:
    pipeline = beam.Pipeline()
    pipeline | beam.Create([TASK]) | Work()
    steps = Steps()
    pipeline.visit(steps)
    assert list(steps.found) == ["Work/Work"]
    (kind,) = steps.types.values()
    assert {NoneTask, FailedTask, Task} <= set(kind.union_types)
    assert isinstance(TaskCoder.from_type_hint(kind, None), TaskCoder)
    assert isinstance(registry.get_coder(kind), TaskCoder)  # Beam takes it for them


def test_tasks_are_encoded_whole_and_measured_without() -> None:
    coder = TaskCoder()
    for element in (TASK, NoneTask(TASK), FailedTask(TASK, "reason")):
        assert coder.decode(coder.encode(element)) == element
    assert coder.decode(coder.encode(TASK)).records == [1]
    assert coder.estimate_size(TASK) == coder.estimate_size(TASK.replace(records=[b"x" * 9999])) == 512
    assert coder.is_deterministic() is False
    assert coder.to_type_hint() == TASKS
    assert isinstance(TaskCoder.from_type_hint(beam.typehints.Union[NoneTask, FailedTask], None), TaskCoder)
    unions = [beam.typehints.Union[int, one] for one in (NoneTask, FailedTask)]
    for hint in (int, *unions, beam.typehints.List[NoneTask]):
        with pytest.raises(ValueError, match="expected the type of tasks, found"):
            TaskCoder.from_type_hint(hint, None)


def test_a_pipeline_ends_with_its_chain_and_takes_lists_unless_something_else_is_said() -> None:
    values = ChainValues()
    assert (values.has_downstream, values.in_blocks) == (False, False)


def test_a_size_is_a_number_or_a_text() -> None:
    assert [size_of("x", given) for given in (None, 1, 7, "7", "2K")] == [None, 1, 7, 7, 2048]
    for wrong in (0, -1, "much", ""):
        with pytest.raises(UsageError, match=r"^x: expected"):
            size_of("x", wrong)
