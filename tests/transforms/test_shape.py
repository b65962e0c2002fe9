"""Pipelines of a wrong shape are refused before anything of them runs, with the transform and the remedy."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import apache_beam as beam
import pyarrow as pa
import pytest
from apache_beam.coders import VarIntCoder
from apache_beam.io.restriction_trackers import OffsetRange, OffsetRestrictionTracker
from apache_beam.portability.api import beam_runner_api_pb2
from apache_beam.transforms.combiners import Count
from apache_beam.transforms.timeutil import TimeDomain
from apache_beam.transforms.userstate import ReadModifyWriteStateSpec, TimerSpec, on_timer
from apache_beam.transforms.window import FixedWindows

import ledgerbeam as lb
from ledgerbeam.errors import UnsupportedShapeError
from ledgerbeam.io import JsonlFormat
from ledgerbeam.ledger import Task
from ledgerbeam.transforms import (
    CommitTasks,
    MatchSources,
    PlanTasks,
    ProcessTask,
    ReadTasks,
    Scatter,
    SkipCompleted,
    WriteColumns,
    WriteTasks,
)
from ledgerbeam.transforms.chain.base import TASKS
from ledgerbeam.transforms.shape import chain_alone, find_chain, rest_alone

COLUMN = pa.schema([("length", pa.int64())])
RUNNERS = {
    "FnApi": [],
    "Prism": ["--runner=PrismRunner", "--prism_location=/nothing/prism"],
    "Flink": ["--runner=PortableRunner", "--job_endpoint=localhost:1", "--environment_type=LOOPBACK"],
}
"""Options of engines, of which none is there: what is refused does not come to ask for one."""


def keep(task: Task) -> Task:
    return task


def paired(task: Any) -> tuple[int, Any]:
    return 1, task


def unpaired(pair: Any) -> Any:
    return pair[1]


def all_of(pair: tuple[int, Iterable[Any]]) -> Iterable[Any]:
    return pair[1]


class Counting(beam.DoFn):
    """Numbers tasks."""

    COUNT = ReadModifyWriteStateSpec("count", VarIntCoder())

    def process(self, element: Any, count: Any = beam.DoFn.StateParam(COUNT)) -> Iterable[Any]:  # noqa: B008
        count.write((count.read() or 0) + 1)
        yield element[1]


class Waiting(beam.DoFn):
    """Sets a timer for each task."""

    LATER = TimerSpec("later", TimeDomain.REAL_TIME)

    def process(self, element: Any, later: Any = beam.DoFn.TimerParam(LATER)) -> Iterable[Any]:  # noqa: B008
        later.set(0)
        yield element[1]

    @on_timer(LATER)
    def done(self) -> Iterable[Any]:
        return []


class Nested(beam.PTransform[Any, Any]):
    """A transform of the user in which a barrier hides."""

    def expand(self, tasks: Any) -> Any:
        return tasks | beam.Map(paired) | beam.GroupByKey() | beam.FlatMap(all_of)


def reshuffle(tasks: Any) -> Any:
    return tasks | "Again" >> beam.Reshuffle()


def group_by_key(tasks: Any) -> Any:
    return tasks | beam.Map(paired) | "Together" >> beam.GroupByKey() | beam.FlatMap(all_of)


def flatten(tasks: Any) -> Any:
    return (tasks | "A" >> ProcessTask(keep), tasks | "B" >> ProcessTask(keep)) | "Both" >> beam.Flatten()


def side_input(tasks: Any) -> Any:
    words = tasks.pipeline | beam.Create(["a"])
    return tasks | "Look" >> beam.Map(lambda task, words: task, beam.pvalue.AsList(words)).with_output_types(TASKS)


def state(tasks: Any) -> Any:
    return tasks | beam.Map(paired) | "Count" >> beam.ParDo(Counting())


def timer(tasks: Any) -> Any:
    return tasks | beam.Map(paired) | "Wait" >> beam.ParDo(Waiting())


def combine(tasks: Any) -> Any:
    return tasks | "Sum" >> beam.CombineGlobally(lambda tasks: next(iter(tasks)))


def branch(tasks: Any) -> Any:
    tasks | "Sizes" >> beam.Map(lambda task: len(task.records)) | beam.Map(print)
    return tasks


def no_tasks(tasks: Any) -> Any:
    return tasks | "Records" >> beam.FlatMap(lambda task: task.records)


def nested(tasks: Any) -> Any:
    return tasks | "Mine" >> Nested()


def dropping(tasks: Any) -> Any:
    return tasks | "Short" >> beam.Filter(lambda task: len(task.records) < 10)


def windows(tasks: Any) -> Any:
    return tasks | "Hours" >> beam.WindowInto(FixedWindows(3600))


class Offsets(beam.transforms.core.RestrictionProvider):
    """Restrictions of a task, by which a runner may cut it."""

    def initial_restriction(self, element: Any) -> OffsetRange:
        return OffsetRange(0, 1)

    def create_tracker(self, restriction: OffsetRange) -> OffsetRestrictionTracker:
        return OffsetRestrictionTracker(restriction)


class Splitting(beam.DoFn):
    """Takes tasks that a runner cuts."""

    def process(self, element: Any, tracker: Any = beam.DoFn.RestrictionParam(Offsets())) -> Iterable[Any]:  # noqa: B008
        yield element


class Primitive(beam.PTransform[Any, Any]):
    """What a runner alone can do."""

    def expand(self, tasks: Any) -> Any:
        return beam.pvalue.PCollection.from_(tasks)


class Same(beam.PTransform[Any, Any]):
    """Does nothing."""

    def expand(self, tasks: Any) -> Any:
        return tasks


class Aside(beam.PTransform[Any, Any]):
    """Does nothing, but has another output that a runner alone can make."""

    def expand(self, tasks: Any) -> Any:
        return {"same": tasks, "other": beam.pvalue.PCollection.from_(tasks)}


def splittable(tasks: Any) -> Any:
    return tasks | "Cut" >> beam.ParDo(Splitting())


def primitive(tasks: Any) -> Any:
    return tasks | "Other" >> Primitive()


def aside(tasks: Any) -> Any:
    return (tasks | "More" >> Aside())["same"]


def of_numbers(tasks: Any) -> Any:
    return tasks | "Count" >> beam.Map(len).with_output_types(int)


INSIDE: dict[Callable[[Any], Any], str] = {
    reshuffle: "'Again' is a Reshuffle .* leave it out",
    group_by_key: "'Together' is a GroupByKey .* after CommitTasks",
    flatten: "'Both' is a Flatten .* one ProcessTask",
    side_input: "'Look' is a side input .* functools.partial",
    state: "'Count' is state .* keep state within a task",
    timer: "'Wait' is a timer .* keep state within a task",
    combine: "'Sum' is a combine .* ledgerbeam.stats",
    branch: "'Sizes' is a branch that leaves the chain after 'ReadTasks': .* second job",
    no_tasks: r"'Records' emits elements of the type Any: expected tasks.* ProcessTask",
    nested: "'Mine' is a GroupByKey",
    dropping: "'Short' is a Filter .* return None",
    windows: "'Hours' is a window",
    splittable: "'Cut' is a splittable DoFn inside",
    primitive: "'Other' is a Primitive inside",
    aside: "'More' is a Aside inside",
    of_numbers: "'Count' emits elements of the type int: expected tasks",
}
"""What stands between ReadTasks and WriteTasks, and what is said of it."""


def build(pipeline: beam.Pipeline, folder: Path, inside: Callable[[Any], Any] = lambda tasks: tasks) -> None:
    inside(read(pipeline, folder)) | write(folder) | CommitTasks()


def match(folder: Path) -> MatchSources:
    return MatchSources(str(folder / "*.jsonl"))


def begin(pipeline: beam.Pipeline, folder: Path) -> Any:
    return pipeline | match(folder) | SkipCompleted()


def read(pipeline: beam.Pipeline, folder: Path) -> Any:
    return begin(pipeline, folder) | PlanTasks() | ReadTasks()


def write(folder: Path) -> WriteTasks:
    return WriteTasks(str(folder / "out"), "jsonl")


def two_writes(pipeline: beam.Pipeline, folder: Path) -> None:
    tasks = read(pipeline, folder)
    for name in "ab":
        written = tasks | f"Write{name}" >> WriteTasks(str(folder / name), "jsonl")
        written | f"Commit{name}" >> CommitTasks()


def two_commits(pipeline: beam.Pipeline, folder: Path) -> None:
    written = read(pipeline, folder) | write(folder)
    written | CommitTasks()
    written | "Twice" >> CommitTasks()


def two_chains(pipeline: beam.Pipeline, folder: Path) -> None:
    """A chain that ends nowhere, and the end of one that begins nowhere."""
    read(pipeline, folder)
    pipeline | beam.Create([]) | write(folder) | CommitTasks()


def two_ways(pipeline: beam.Pipeline, folder: Path) -> None:
    """Sources that come on two ways."""
    pages = pipeline | match(folder)
    both = (pages | "One" >> beam.Map(lambda page: page), pages | "Other" >> beam.Map(lambda page: page))
    both | beam.Flatten() | SkipCompleted() | PlanTasks() | ReadTasks() | write(folder) | CommitTasks()


def leaving_late(pipeline: beam.Pipeline, folder: Path) -> None:
    """A branch that is applied when the chain is."""
    tasks = read(pipeline, folder)
    tasks | write(folder) | CommitTasks()
    tasks | "Sizes" >> beam.Map(lambda task: len(task.records))


def unwritten(pipeline: beam.Pipeline, folder: Path) -> None:
    read(pipeline, folder) | CommitTasks()
    pipeline | beam.Create([]) | write(folder)


SAME = beam.Map(lambda element: element)
WHOLE: dict[str, tuple[Callable[[beam.Pipeline, Path], Any], str]] = {
    "without skip": (
        lambda p, f: p | match(f) | PlanTasks() | ReadTasks() | write(f) | CommitTasks(),
        "no SkipCompleted; put it after MatchSources",
    ),
    "without write": (lambda p, f: read(p, f) | CommitTasks(), "no WriteTasks; put it before CommitTasks"),
    "without commit": (lambda p, f: read(p, f) | write(f), "no CommitTasks; end the chain with it"),
    "of pages": (
        lambda p, f: (
            p | match(f) | "Some" >> SAME | SkipCompleted() | PlanTasks() | ReadTasks() | write(f) | CommitTasks()
        ),
        "'Some' is directly after MatchSources",
    ),
    "of sources": (
        lambda p, f: begin(p, f) | "Some" >> SAME | PlanTasks() | ReadTasks() | write(f) | CommitTasks(),
        "'Some' is a transform of sources",
    ),
    "before reading": (
        lambda p, f: begin(p, f) | PlanTasks() | "Early" >> ProcessTask(keep) | ReadTasks() | write(f) | CommitTasks(),
        "'Early' is before ReadTasks",
    ),
    "before columns": (
        lambda p, f: read(p, f) | "Drop" >> ProcessTask(keep) | WriteColumns(str(f), len, COLUMN) | CommitTasks(),
        "'Drop' is before WriteColumns, which needs a row for each record",
    ),
    "after writing": (
        lambda p, f: read(p, f) | write(f) | "Late" >> ProcessTask(keep) | CommitTasks(),
        "'Late' is directly after WriteTasks",
    ),
    "written unread": (
        lambda p, f: begin(p, f) | PlanTasks() | write(f) | ReadTasks() | CommitTasks(),
        "'WriteTasks' is in the place of ReadTasks",
    ),
    "unwritten": (unwritten, "'CommitTasks' is in the place of WriteTasks"),
    "two writes": (two_writes, "2 transforms WriteTasks, 'Writea' and 'Writeb'"),
    "two commits": (two_commits, "2 transforms CommitTasks, 'CommitTasks' and 'Twice'"),
    "two chains": (two_chains, "'ReadTasks' does not lead to CommitTasks"),
    "two ways": (two_ways, "'Other' is a branch that leaves the chain after 'MatchSources'"),
    "leaving late": (leaving_late, "'Sizes' is a branch that leaves the chain after 'ReadTasks'"),
}
"""Pipelines of which the chain is not whole, and what is said of each."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"id": number}) + "\n" for number in range(4)))
    return tmp_path


@pytest.mark.parametrize("runner", RUNNERS)
@pytest.mark.parametrize(
    ("make", "said"),
    [
        *(pytest.param(partial(build, inside=inside), said, id=inside.__name__) for inside, said in INSIDE.items()),
        *(pytest.param(make, said, id=name) for name, (make, said) in WHOLE.items()),
    ],
)
def test_what_would_cut_the_chain_or_is_no_whole_one_is_refused_before_anything_runs(
    folder: Path, make: Callable[[beam.Pipeline, Path], Any], said: str, runner: str
) -> None:
    pipeline = lb.Pipeline(ledger=str(folder / "L"), name="wrong", options=RUNNERS[runner])
    make(pipeline, folder)
    with pytest.raises(UnsupportedShapeError, match=said):
        pipeline.run()
    assert [path.name for path in folder.iterdir()] == ["a.jsonl"]


def test_all_that_is_refused_is_in_one_message(folder: Path) -> None:
    pipeline = beam.Pipeline()
    tasks = read(pipeline, folder) | "Spread" >> beam.Reshuffle()
    tasks = tasks | "Long" >> beam.Filter(bool) | "Same" >> beam.Map(lambda task: task).with_output_types(TASKS)
    others = beam.pvalue.AsList(pipeline | beam.Create([1]))
    tasks = tasks | "Aside" >> beam.Map(lambda task, _: task, others).with_output_types(TASKS)
    tasks = tasks | "Records" >> beam.Map(lambda record: {"id": record})
    tasks | write(folder)
    with pytest.raises(UnsupportedShapeError) as refused:
        find_chain(pipeline)
    lines = str(refused.value).splitlines()
    assert lines[0].startswith("a ledger cannot protect this pipeline, for 5 reasons:")
    for line, named in zip(lines[1:], ("no CommitTasks", "'Spread'", "'Long'", "'Aside'", "'Records'"), strict=True):
        assert named in line
    assert "FilterRecords" in lines[3]


class Whole(beam.PTransform[Any, Any]):
    """A chain in a transform of the user."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder

    def expand(self, pipeline: Any) -> Any:
        planned = begin(pipeline, self.folder) | beam.Reshuffle() | PlanTasks() | "Again" >> beam.Reshuffle()
        tasks = planned | ReadTasks() | ProcessTask(keep) | beam.Map(lambda task: task).with_output_types(TASKS)
        return tasks | write(self.folder) | CommitTasks()


def test_a_chain_is_found_in_transforms_of_the_user_with_its_functions(folder: Path) -> None:
    pipeline = beam.Pipeline()
    pipeline | Whole(folder)
    found = find_chain(pipeline)
    assert (found.write.output, found.plan.task_bytes, found.has_downstream) == (str(folder / "out"), 16 * 2**20, False)
    assert [function.__name__ for function in found.functions] == ["keep", "<lambda>"]
    assert found.labels[0].endswith("MatchSources/Impulse")
    assert found.labels[-1].endswith("CommitTasks/CommitTasks")


def test_what_comes_behind_the_chain_may_be_anything(folder: Path) -> None:
    pipeline = beam.Pipeline()
    committed = read(pipeline, folder) | write(folder) | CommitTasks()
    words = pipeline | beam.Create(["a"])
    committed | Count.Globally() | beam.Map(lambda n, words: n, beam.pvalue.AsList(words))
    assert find_chain(pipeline).has_downstream


class Around(beam.PTransform[Any, Any]):
    """A transform of the user in which another one does nothing."""

    def expand(self, tasks: Any) -> Any:
        return tasks | Same() | beam.Map(keep).with_output_types(TASKS) | "Again" >> Same()


@pytest.mark.parametrize("inside", [lambda tasks: tasks | Same(), lambda tasks: tasks | Around()])
def test_what_does_nothing_may_stand_anywhere(folder: Path, inside: Callable[[Any], Any]) -> None:
    pipeline = beam.Pipeline()
    build(pipeline, folder, inside)
    assert find_chain(pipeline).write.output == str(folder / "out")


class Planned(PlanTasks):
    """A transform of the chain that a user has changed."""


def test_a_transform_that_a_user_has_derived_is_code_of_the_user(folder: Path) -> None:
    pipeline = beam.Pipeline()
    begin(pipeline, folder) | Planned() | ReadTasks() | ProcessTask(keep) | write(folder) | CommitTasks()
    assert find_chain(pipeline).functions == (keep, Planned)


def test_what_makes_keys_for_a_scatter_is_no_function_of_the_user(folder: Path) -> None:
    pipeline = beam.Pipeline()
    read(pipeline, folder) | ProcessTask(keep) | Scatter(str(folder / "runs"), by="id") | CommitTasks()
    found = find_chain(pipeline)
    assert found.functions == (keep,)
    assert found.labels[-3:] == ("Scatter/Keys", "Scatter/Scatter", "CommitTasks/CommitTasks")


def test_what_else_is_in_the_pipeline_comes_before_or_behind(folder: Path) -> None:
    pipeline = beam.Pipeline()
    pipeline | beam.Create(["a"]) | beam.Map(len)
    build(pipeline, folder)
    found = find_chain(pipeline)
    assert found.labels[0] == "MatchSources/Impulse"
    assert found.has_downstream


class Own(beam.DoFn):
    """Gives each task on."""

    def process(self, task: Any, more: Any = 0, a: Any = 0) -> Iterable[Any]:
        del more, a
        return [task]


def with_more(task: Any, more: Any = 0, a: Any = 0) -> Any:
    del more, a
    return task


@pytest.mark.parametrize(("args", "kwargs"), [((), {}), ((1,), {}), ((), {"a": 2}), ((1,), {"a": 2})])
def test_functions_of_the_user_are_found_with_what_they_are_given(
    folder: Path, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    pipeline = beam.Pipeline()
    build(
        pipeline,
        folder,
        lambda tasks: (
            tasks
            | beam.ParDo(Own(), *args, **kwargs).with_output_types(TASKS)
            | beam.Map(with_more, *args, **kwargs).with_output_types(TASKS)
        ),
    )
    own, mapped = find_chain(pipeline).functions
    if args or kwargs:
        assert (own.args, own.keywords) == (mapped.args, mapped.keywords) == (args, kwargs)
        own, mapped = own.func, mapped.func
    assert own.__func__ is Own.process
    assert mapped is with_more


class Encoder:
    """Writes nothing."""

    def encode(self, records: Any) -> list[Any]:
        del records
        return []


@pytest.mark.parametrize("to", ["jsonl", JsonlFormat(), Encoder()])
def test_what_encodes_shards_is_a_function_of_the_user_if_it_is_no_format_of_ours(folder: Path, to: Any) -> None:
    pipeline = beam.Pipeline()
    read(pipeline, folder) | WriteTasks(str(folder / "out"), to) | CommitTasks()
    assert find_chain(pipeline).functions == ((to.encode,) if isinstance(to, Encoder) else ())


Proto = beam_runner_api_pb2.Pipeline
Described = dict[str, tuple[list[str], list[str], list[str]]]

LABELS = ("Chain/Start/Begin", "Chain/Start/Between", "Chain/Commit")


class Start(beam.PTransform[Any, Any]):
    def expand(self, begin: Any) -> Any:
        return begin | "Begin" >> beam.Impulse() | "Between" >> beam.Map(str)


class Chain(beam.PTransform[Any, Any]):
    def expand(self, begin: Any) -> Any:
        return begin | "Start" >> Start() | "Commit" >> beam.Map(len)


class GivesOn(beam.PTransform[Any, Any]):
    """As Beam's own that act on some runners alone."""

    def expand(self, taken: Any) -> Any:
        return taken


class Rest(beam.PTransform[Any, Any]):
    def expand(self, committed: Any) -> Any:
        return committed | "GivesOn" >> GivesOn() | "Show" >> beam.Map(print)


@pytest.fixture(scope="module")
def whole() -> Proto:
    pipeline = beam.Pipeline()
    committed = pipeline | "Chain" >> Chain()
    committed | "Rest" >> Rest()
    committed | "End" >> beam.ParDo(print).with_outputs("odd", main="even")
    return pipeline.to_runner_api()


def described(proto: Proto) -> Described:
    """Return of each transform by its label what gives its inputs, its outputs, and its parts."""
    transforms = proto.components.transforms
    held = {name: one.unique_name for name, one in proto.components.pcollections.items()}

    def names(ends: Any) -> list[str]:
        return sorted(held[name] for name in ends.values())

    return {
        "" if name in proto.root_transform_ids else one.unique_name: (
            names(one.inputs),
            names(one.outputs),
            [transforms[part].unique_name for part in one.subtransforms],
        )
        for name, one in transforms.items()
    }


def collections(proto: Proto) -> set[str]:
    return {one.unique_name for one in proto.components.pcollections.values()}


def test_the_chain_alone_is_all_of_it_and_nothing_behind_it(whole: Proto) -> None:
    every = described(whole)
    found = chain_alone(whole, LABELS)
    assert described(found) == {
        "": ([], [], ["Chain"]),
        **{label: every[label] for label in every if label.startswith("Chain")},
    }
    assert collections(found) == {name for label in LABELS for name in every[label][1]}


def test_what_comes_behind_is_begun_by_the_commits(whole: Proto) -> None:
    every = described(whole)
    (begun,), (committed,) = every["Chain/Start/Begin"][1], every["Chain/Commit"][1]
    found = rest_alone(whole, LABELS)
    assert described(found) == {
        "": ([], [], ["Chain", "Rest", "End"]),
        "Chain": ([], [committed], ["Chain/Start", "Chain/Commit"]),
        "Chain/Start": ([], [], ["Chain/Start/Begin"]),
        "Chain/Start/Begin": ([], [begun], []),
        "Chain/Commit": ([begun], [committed], []),
        "Rest": ([committed], every["Rest"][1], ["Rest/Show"]),
        "Rest/Show": every["Rest/Show"],
        **{label: every[label] for label in every if label.startswith("End")},
    }
    assert collections(found) == {begun, committed, *every["Rest/Show"][1], *every["End"][1]}


def test_what_gives_nothing_is_kept(whole: Proto) -> None:
    changed = Proto()
    changed.CopyFrom(whole)
    (show,) = (one for one in changed.components.transforms.values() if one.unique_name == "Rest/Show")
    show.outputs.clear()
    assert described(rest_alone(changed, LABELS))["Rest/Show"] == (described(whole)["Rest/Show"][0], [], [])


def test_a_pipeline_is_not_changed_by_what_is_cut_from_it(whole: Proto) -> None:
    before = whole.SerializeToString(deterministic=True)
    chain_alone(whole, LABELS)
    rest_alone(whole, LABELS)
    assert whole.SerializeToString(deterministic=True) == before
