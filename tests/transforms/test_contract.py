"""Transforms travel to workers, show themselves, pass markers on, and are given what their pipeline knows."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apache_beam as beam
import pyarrow as pa
import pytest
from apache_beam.coders.typecoders import registry
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.pipeline import PipelineVisitor
from apache_beam.testing.util import assert_that, equal_to
from apache_beam.transforms.display import DisplayData

from ledgerbeam import transforms
from ledgerbeam.errors import FunctionError, UsageError
from ledgerbeam.ledger import FailedTask, Job, NoneTask, Source, Task
from ledgerbeam.ledger.opening import open_store
from ledgerbeam.transforms import (
    BuildIndexes,
    CommitTasks,
    Gather,
    MapRecords,
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
    beam_yaml,
)
from ledgerbeam.transforms.chain.base import TASKS, ChainValues, LedgerHandle, StepWork, size_of
from ledgerbeam.transforms.chain.commit import CommittedTask
from ledgerbeam.transforms.on_beam import ChainDoFn, ChainTransform, TaskCoder, give_values
from tests.cases import each
from tests.transforms.chain.test_read import make


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
    WriteColumns("/out", "html:escape", pa.schema([("a", pa.int64())])),
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


GRAPH = "examples.mixture:train"
FUNCTION = "textwrap:shorten"


def test_a_listing_is_of_patterns_or_a_list_or_a_graph(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found: Any = beam_yaml.ReadListing(["in/*.jsonl", "gcs://b/x"], group="key", index_root="idx/", columns=["a"])
    assert found.patterns == (f"{tmp_path}/in/*.jsonl", "gs://b/x")
    assert (found.sources_from, found.graph, found.group) == (None, None, "key")
    assert (found.index_root, found.columns, found.base) == (f"{tmp_path}/idx", ("a",), None)
    found = beam_yaml.ReadListing(sources_from="list", base="in")
    assert (found.patterns, found.sources_from, found.base) == ((), f"{tmp_path}/list", f"{tmp_path}/in/")
    found = beam_yaml.ReadListing(graph=GRAPH, epochs=3)
    assert (found.graph, found.epochs) == (GRAPH, 3)
    for others in ({"patterns": ["x"]}, {"sources_from": "list"}):
        with pytest.raises(UsageError, match="pass one of them"):
            beam_yaml.ReadListing(graph=GRAPH, **others)
    with pytest.raises(UsageError, match="expected auto, pairs or key, found 'keys'"):
        beam_yaml.ReadListing(["x"], group="keys")


def test_each_transform_is_given_what_it_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert isinstance(beam_yaml.SkipCompleted(), transforms.SkipCompleted)
    assert isinstance(beam_yaml.CommitTasks(), transforms.CommitTasks)
    plan: Any = beam_yaml.PlanTasks(task_bytes=7, task_records=8)
    assert (plan.task_bytes, plan.task_records) == (7, 8)
    read: Any = beam_yaml.ReadTasks("reject")
    assert read.on_error == "reject"
    written: Any = beam_yaml.WriteTasks("out", "tar")
    assert (written.output, written.to) == (f"{tmp_path}/out", "tar")
    with pytest.raises(UsageError, match="on_error"):
        beam_yaml.ReadTasks("ignore")


def test_an_exchange_is_of_plain_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    scatter: Any = beam_yaml.Scatter("runs", "a.b,c", order="hash", buckets=7)
    assert (scatter.output, scatter.buckets) == (f"{tmp_path}/runs", 7)
    assert (scatter.keys.fields, scatter.scheme) == (("a.b", "c"), "hash")
    scatter = beam_yaml.Scatter("runs", "a", descending=True, nulls="first", bucket_bytes=9)
    assert (scatter.order.descending, scatter.order.nulls, scatter.bucket_bytes) == (True, "first", 9)
    found: Any = beam_yaml.ReadBuckets("runs", "progress", whole_keys=False, keep_runs=True)
    assert (found.runs, found.ledger) == (f"{tmp_path}/runs", f"{tmp_path}/progress")
    assert (found.whole_keys, found.keep_runs) == (False, True)
    kept: Any = beam_yaml.KeepRecords("tar")
    assert kept.function.output_format == "tar"
    groups: Any = beam_yaml.GroupRecords("operator:add", "jsonl", "url")
    assert (groups.function.reference, groups.function.by) == ("operator:add", "url")
    with pytest.raises(FunctionError, match="expected a function of the key and its records"):
        beam_yaml.GroupRecords("json:loads", "jsonl", "url")


def test_a_function_is_looked_at_before_anything_runs() -> None:
    made: Any = beam_yaml.MapRecords(FUNCTION, "jsonl", values={"width": 9}, batch=4, on_error="reject")
    assert (made.function.name, made.function.output_format) == (FUNCTION, "jsonl")
    assert (made.function.functions[0].batch, made.function.on_error) == (4, "reject")
    assert made.function.set_up()[0].call("some long words") == "[...]"
    with pytest.raises(UsageError, match="textwrap:shorten needs 'width'"):
        beam_yaml.MapRecords(FUNCTION, "jsonl")
    with pytest.raises(FunctionError, match="there is no module"):
        beam_yaml.MapRecords("missing_module_x:f", "jsonl")


READ = Task(Source("/data/a.jsonl", 10, "1"), 0, 1, ((0, 1),), [1])


class Noting(StepWork):
    """Notes what a runner asks of it."""

    def __init__(self, values: ChainValues) -> None:
        self.values = values
        self.asked: list[str] = []

    def setup(self) -> None:
        self.asked.append("setup")

    def start_bundle(self) -> None:
        self.asked.append("start")

    def process(self, element: Any) -> list[Any]:
        self.asked.append(f"process {element}")
        return [element]

    def finish_bundle(self) -> list[str]:
        self.asked.append("finish")
        return ["rest"]

    def teardown(self) -> None:
        self.asked.append("teardown")


class Notes(ChainTransform):
    """A transform that notes what is made of it."""

    elements = TASKS

    def __init__(self) -> None:
        super().__init__()
        self.made: list[Noting] = []

    def make_work(self, values: ChainValues) -> StepWork:
        self.made.append(Noting(values))
        return self.made[-1]

    def display_data(self) -> dict[str, Any]:
        return {"shown": 7}


def test_a_worker_makes_what_does_the_work_once() -> None:
    work = Notes()
    stands = ChainDoFn(work)
    stands.values = values = ChainValues(base="/data/")
    stands.teardown()  # of a worker that had nothing to do
    assert work.made == []
    stands.setup()
    stands.start_bundle()
    assert stands.process(5) == [5]
    assert [windowed.value for windowed in stands.finish_bundle()] == ["rest"]
    stands.teardown()
    (made,) = work.made
    assert made.values is values
    assert made.asked == ["setup", "start", "process 5", "finish", "teardown"]
    assert stands.display_data() == {"shown": 7}


def test_the_work_is_made_when_it_is_first_asked_for_where_no_runner_has_set_it_up() -> None:
    for ask in ("start_bundle", "finish_bundle", "process"):
        work = Notes()
        stands = ChainDoFn(work)
        stands.values = ChainValues()
        for _ in range(2):
            list(getattr(stands, ask)(*[5] * (ask == "process")) or ())
        assert len(work.made) == 1


def test_a_chain_without_values_says_how_to_make_one_that_has_them() -> None:
    for act in (ChainDoFn(Notes()).work, ChainDoFn(Notes()).setup, lambda: ChainDoFn(Notes()).process(1)):
        with pytest.raises(UsageError, match=r"^Notes: this pipeline has no ledger: make it with ledgerbeam\.Pipeline"):
            act()
    with pytest.raises(UsageError, match=r"^this pipeline has no ledger"):
        ChainValues().require_ledger()
    handle = LedgerHandle("/L")
    assert ChainValues(handle).require_ledger() is handle


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
    tasks = pipeline | beam.Create([READ])
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
    pipeline | beam.Create([READ]) | Notes()
    steps = Steps()
    pipeline.visit(steps)
    assert list(steps.found) == ["Notes/Notes"]
    (kind,) = steps.types.values()
    assert {NoneTask, FailedTask, Task} <= set(kind.union_types)
    assert isinstance(TaskCoder.from_type_hint(kind, None), TaskCoder)
    assert isinstance(registry.get_coder(kind), TaskCoder)  # Beam takes it for them


def test_tasks_are_encoded_whole_and_measured_without() -> None:
    coder = TaskCoder()
    for element in (READ, NoneTask(READ), FailedTask(READ, "reason")):
        assert coder.decode(coder.encode(element)) == element
    assert coder.decode(coder.encode(READ)).records == [1]
    assert coder.estimate_size(READ) == coder.estimate_size(READ.replace(records=[b"x" * 9999])) == 512
    assert coder.is_deterministic() is False
    assert coder.to_type_hint() == TASKS
    assert isinstance(TaskCoder.from_type_hint(beam.typehints.Union[NoneTask, FailedTask], None), TaskCoder)
    unions = [beam.typehints.Union[int, one] for one in (NoneTask, FailedTask)]
    for hint in (int, *unions, beam.typehints.List[NoneTask]):
        with pytest.raises(ValueError, match="expected the type of tasks, found"):
            TaskCoder.from_type_hint(hint, None)


def test_a_size_is_a_number_or_a_text() -> None:
    assert [size_of("x", given) for given in (None, 1, 7, "7", "2K")] == [None, 1, 7, 7, 2048]
    for wrong in (0, -1, "much", ""):
        with pytest.raises(UsageError, match=r"^x: expected"):
            size_of("x", wrong)


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

    def make_work(self, values: ChainValues) -> StepWork:
        """Return what shows the form in which records come."""
        return _Shown()


class _Shown(StepWork):
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
    committing = CommitTasks().make_work(ChainValues(LedgerHandle(str(tmp_path / "L"))))
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
