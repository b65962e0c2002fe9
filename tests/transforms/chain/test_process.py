"""`ProcessTask` and `ProcessBatch` trace what they can and refuse the rest by name."""

from __future__ import annotations

import asyncio
import dataclasses
import os
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest

from ledgerbeam import stats
from ledgerbeam._base.redaction import register_secrets
from ledgerbeam.errors import UnsupportedShapeError, UsageError
from ledgerbeam.ledger import FailedTask, NoneTask, Source, Task
from ledgerbeam.ledger.model.accounts import Statistic
from ledgerbeam.ledger.worker.reports import reported_set_ups
from ledgerbeam.transforms import GroupRecords, MapRecords, ProcessBatch, ProcessTask
from ledgerbeam.transforms.chain.base import ChainValues, LedgerHandle
from ledgerbeam.transforms.chain.process import _Batch, _Process, check_result
from ledgerbeam.user_code.guards import running_user_code
from ledgerbeam.user_code.objects import close_objects, take_set_ups
from tests.cases import each
from tests.transforms.conftest import in_work, reported
from tests.transforms.exchange.test_gather import exchange

SOURCE = Source("/data/a.jsonl", 10, "1")
OTHER = Source("/data/b.jsonl", 10, "1")


def tasks(count: int = 5) -> list[Task]:
    return [Task(SOURCE, i, i + 1, ((i, count),), [i]) for i in range(count)]


def run(transform: ProcessTask | ProcessBatch, inputs: list[Task]) -> list[Any]:
    """Return what a transform makes of a bundle."""
    work: Any = transform.make_work(ChainValues())
    work.start_bundle()
    found = [result for task in inputs for result in work.process(task)]
    return [*found, *(work.finish_bundle() or ())]


def double(task: Task) -> Task:
    return task.replace(records=[r * 2 for r in task.records])


def fan(task: Task) -> list[Task]:
    return task.fan_out([[r, k] for r in task.records for k in range(r)])


def none(task: Task) -> None:
    return None


def fail(task: Task) -> Task:
    raise ValueError("no good")


def as_strings(task: Task) -> Any:
    return "records"


def merged(task: Task) -> Any:
    return [Task(OTHER, 0, 1, (*task.lineage, (0, 1)), [])]


def without_lineage(task: Task) -> Any:
    return [Task(SOURCE, 0, 1, (), []), Task(SOURCE, 1, 2, (), [])]


def of_another_task(task: Task) -> Any:
    return Task(SOURCE, 0, 1, ((99, 100),), [])


def test_one_to_one_keeps_the_lineage() -> None:
    found = run(ProcessTask(double), tasks())
    assert [(t.lineage, t.records) for t in found] == [(((i, 5),), [2 * i]) for i in range(5)]


def test_fan_out_extends_the_lineage_and_zero_children_filter_the_task() -> None:
    found = run(ProcessTask(fan), tasks(3))
    assert isinstance(found[0], NoneTask)
    assert found[0].task.lineage == ((0, 3),)
    assert [t.lineage for t in found[1:]] == [((1, 3), (0, 1)), ((2, 3), (0, 2)), ((2, 3), (1, 2))]


def test_none_filters_the_task() -> None:
    assert [type(t) for t in run(ProcessTask(none), tasks(2))] == [NoneTask] * 2


def test_an_exception_fails_the_task_and_names_it() -> None:
    (failed,) = run(ProcessTask(fail), tasks(1))
    assert isinstance(failed, FailedTask)
    assert failed.reason == "ValueError"
    for text in (failed.task.name, "no good", "test_process.py"):
        assert text in failed.error


@pytest.mark.parametrize("function", [as_strings, merged, without_lineage, of_another_task])
def test_a_result_that_cannot_be_traced_is_refused_with_the_remedy(function: Callable[[Task], Any]) -> None:
    with pytest.raises(UnsupportedShapeError, match=r"task\.(fan_out|replace)"):
        run(ProcessTask(function), tasks(1))


def test_a_batch_is_processed_by_position() -> None:
    def by_position(batch: list[Task]) -> list[Any]:
        return [NoneTask(t) if t.start == 1 else None if t.start == 2 else double(t) for t in batch]

    found = run(ProcessBatch(by_position, batch_size=2), tasks())
    assert [type(t) for t in found] == [Task, NoneTask, NoneTask, Task, Task]
    assert [t.records for t in found if isinstance(t, Task)] == [[0], [6], [8]]


def test_a_batch_that_raises_fails_each_of_its_tasks() -> None:
    def broken(batch: list[Task]) -> list[Any]:
        raise KeyError("id")

    found = run(ProcessBatch(broken, batch_size=2), tasks(3))
    assert [(type(t), t.reason) for t in found] == [(FailedTask, "KeyError")] * 3


@each(
    "function",
    [
        lambda batch: batch[:-1],
        lambda batch: [*batch, batch[0]],
        lambda batch: list(reversed(batch)),
        iter,
        lambda batch: [t.records for t in batch],
    ],
)
def test_a_batch_that_changes_length_order_or_type_is_refused(function: Callable[[list[Task]], Any]) -> None:
    with pytest.raises(UnsupportedShapeError, match=r"expected|lineage"):
        run(ProcessBatch(function, batch_size=3), tasks(3))


def test_a_batch_size_below_one_is_refused() -> None:
    with pytest.raises(UsageError, match="batch_size: expected at least 1, found"):
        ProcessBatch(lambda batch: batch, batch_size=0)


@each("error", [asyncio.CancelledError, SystemExit, GeneratorExit])
@each("kind", [ProcessTask, ProcessBatch])
def test_what_is_no_exception_fails_the_task_too(kind: Any, error: type[BaseException]) -> None:
    def raising(_: Any) -> Any:
        raise error

    found = run(kind(raising), tasks(2))
    assert [(type(t), t.reason, t.broke) for t in found] == [(FailedTask, error.__name__, True)] * 2


def starts(results: Iterable[Any]) -> list[int]:
    return [task.start for task in results if isinstance(task, Task)]


def batch(function: Callable[[list[Task]], Any], size: int = 2, ledger: LedgerHandle | None = None) -> _Batch:
    made: Any = ProcessBatch(function, size).make_work(ChainValues(ledger=ledger))
    made.start_bundle()
    return cast(_Batch, made)


class TestBatches:
    """What a batch holds and when."""

    def test_a_full_batch_goes_at_once_and_the_rest_when_the_bundle_ends(self) -> None:
        sizes: list[int] = []

        def noting(tasks: list[Task]) -> list[Task]:
            sizes.append(len(tasks))
            return tasks

        made = batch(noting)
        found = [len(list(made.process(task))) for task in tasks(5)]
        assert (found, sizes) == ([0, 2, 0, 2, 0], [2, 2])
        assert [getattr(row, "start", None) for row in made.finish_bundle()] == [4]
        assert list(made.finish_bundle()) == []
        assert sizes == [2, 2, 1]

    def test_a_bundle_that_is_tried_again_begins_anew(self) -> None:
        made = batch(lambda batch: batch)
        assert list(made.process(tasks()[0])) == []
        made.start_bundle()
        assert list(made.process(tasks()[1])) == []
        assert starts(made.process(tasks()[2])) == [1, 2]

    def test_a_function_may_change_the_list_that_it_is_given(self) -> None:
        def emptying(some: list[Task]) -> list[Task]:
            return [some.pop(0) for _ in range(len(some))]

        made = batch(emptying, 1)
        assert starts(made.process(tasks()[3])) == [3]

    def test_all_tasks_of_a_batch_are_in_work(self, handle: LedgerHandle) -> None:
        def looking(batch: list[Task]) -> list[Task]:
            assert in_work(handle) == [task.name for task in batch]
            return batch

        made = batch(looking, ledger=handle)
        for task in tasks(2):
            for found in made.process(task):
                assert isinstance(found, Task)
                assert len(in_work(handle)) == 2  # until what comes after them has taken them
        assert in_work(handle) == []

    def test_an_interrupt_is_no_failure(self) -> None:
        def interrupted(_: Any) -> Any:
            raise KeyboardInterrupt

        for act in (
            lambda: list(batch(interrupted, 1).process(tasks()[0])),
            lambda: list(_Process(interrupted, None).process(tasks()[0])),
        ):
            with pytest.raises(KeyboardInterrupt):
                act()

    @pytest.mark.parametrize("result", [5, "text", [Task(OTHER, 0, 1, ((0, 5),), [])], [NoneTask(tasks()[1])]])
    def test_what_is_in_another_place_is_refused(self, result: Any) -> None:
        results = result if isinstance(result, list) else [result]
        with pytest.raises(UnsupportedShapeError, match="returned"):
            list(batch(lambda _: results, 1).process(tasks()[0]))


@each(
    "result",
    [
        NoneTask(tasks()[1]),
        FailedTask(tasks()[1], "reason"),
        Task(OTHER, 0, 1, ((0, 5),), []),
        [Task(SOURCE, 0, 1, ((0, 5), (0, 2)), []), Task(OTHER, 0, 1, ((0, 5), (1, 2)), [])],
        [Task(SOURCE, 0, 1, ((0, 5), (1, 2)), []), Task(SOURCE, 0, 1, ((0, 5), (0, 2)), [])],
        [Task(SOURCE, 0, 1, ((0, 5), (0, 2)), []), None],
        {"a": 1},
        5,
    ],
)
def test_a_result_of_another_task_is_refused(result: Any) -> None:
    with pytest.raises(UnsupportedShapeError, match=r"fan_out|replace"):
        check_result(tasks()[0], result, "f")


def test_results_that_can_be_traced_are_given_back() -> None:
    task = tasks()[0]
    children = task.fan_out([[1], [2]])
    for result, expected in (
        (None, [NoneTask(task)]),
        ([], [NoneTask(task)]),
        ((), [NoneTask(task)]),
        (task, [task]),
        (NoneTask(task), [NoneTask(task)]),
        (FailedTask(task, "x"), [FailedTask(task, "x")]),
        (children, children),
        (tuple(children), children),
    ):
        assert check_result(task, result, "f") == expected
    assert [ProcessBatch(keep_all).batch_size, ProcessBatch(keep_all, batch_size=1).batch_size] == [8, 1]


def test_what_a_function_returned_is_described() -> None:
    for result, said in (([1, 2], "f returned a list of 2 for"), ({1}, "f returned a set for")):
        with pytest.raises(UnsupportedShapeError, match=said):
            check_result(tasks()[0], result, "f")  # type: ignore[arg-type]


def test_what_a_console_shows_of_a_function_holds_no_secret() -> None:
    register_secrets({"secret": "hidden-from-consoles"})
    shown = ProcessTask(partial(print, "hidden-from-consoles")).display_data()["function"]
    assert "print" in shown
    assert "hidden-from-consoles" not in shown


def test_a_function_without_a_name_is_shown() -> None:
    shown = ProcessTask(partial(double)).display_data()["function"]
    assert shown.startswith("functools.partial")
    assert ProcessTask(double).display_data() == {"function": "double"}
    assert ProcessBatch(keep_all).display_data() == {"function": "keep_all", "batch_size": 8}


def test_failed_tasks_are_counted() -> None:
    with reported() as metrics:
        for function in (double, fail, none):
            list(_Process(function, None).process(tasks()[1]))
    assert metrics.total("tasks_failed") == 1


@pytest.mark.parametrize("kind", ["task", "batch"])
def test_a_function_that_closes_a_standard_descriptor_closes_it_for_nobody_else(kind: str) -> None:
    child = os.fork()
    if child == 0:
        status = 1
        try:

            def close(found: Any) -> Any:
                os.close(1)
                return found

            if kind == "task":
                list(_Process(close, None).process(tasks()[0]))
            else:
                batch = _Batch(close, 1, None)
                list(batch.process(tasks()[0]))
            os.fstat(1)
            status = 0
        finally:
            os._exit(status)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0


def keep_all(batch: list[Task]) -> list[Task]:
    return batch


def test_a_function_is_given_the_storage_options_of_its_pipeline() -> None:
    @dataclasses.dataclass
    class Reads:
        options: Any = None

        def with_storage_options(self, options: Any) -> Any:
            return dataclasses.replace(self, options=options)

        def __call__(self, task: Task) -> Task:
            return task.replace(records=[self.options])

    work = ProcessTask(Reads()).make_work(ChainValues(storage_options={"key": "secret"}))
    (result,) = cast(Any, work.process(tasks()[0]))
    assert list(result.records) == [{"key": "secret"}]


class Model:
    """Is built before the first task."""

    def __call__(self, record: Any) -> Any:
        return record


def test_a_function_is_set_up_before_the_first_task_and_the_time_is_left_for_the_launcher(
    tmp_path: Path, handle: LedgerHandle
) -> None:
    for ledger, count in ((None, 0), (handle, 1)):
        close_objects()
        take_set_ups()
        process = _Process(MapRecords(f"{__name__}:Model", "jsonl"), ledger)
        process.setup()
        assert take_set_ups() == []  # they are taken already
        assert reported_set_ups(str(tmp_path / "run")).times == count
        assert len(process._set_ups) == 1
    _Process(double, handle).setup()  # a function that has nothing to set up
    close_objects()


def test_the_time_of_set_ups_is_counted_in_milliseconds_and_once() -> None:
    process = _Process(double, None)
    process._set_ups = [2.5, 0.0004]
    with reported() as metrics:
        process.start_bundle()
        process.start_bundle()
    assert metrics.values("set_up_ms") == (2, 2500)


def test_a_transform_takes_blocks_if_its_function_does() -> None:
    assert ProcessTask(MapRecords("json:dumps", "jsonl")).takes_blocks
    assert not ProcessTask(double).takes_blocks


def statistics_of(result: Any) -> dict[str, Statistic]:
    return dict((result.task if isinstance(result, NoneTask | FailedTask) else result).statistics)


def test_the_first_result_that_is_not_tried_again_carries_what_was_observed() -> None:
    def observing(result: Callable[[Task], Any]) -> list[Any]:
        def function(task: Task) -> Any:
            stats.count("seen", 2)
            return result(task)

        before = tasks()[1].replace(statistics={"before": Statistic("count", b"7")})
        return list(_Process(function, None).process(before))

    for result in (double, none, lambda task: task.fan_out([[1], [2]])):
        first, *others = observing(result)
        assert set(statistics_of(first)) == {"before", "seen"}
        assert statistics_of(first)["before"] == Statistic("count", b"7")
        assert [statistics_of(other) for other in others] == [{}] * len(others)
    (failed,) = observing(lambda task: FailedTask(task, "reason"))
    assert set(statistics_of(failed)) <= {"before"}
    (plain,) = _Process(double, None).process(tasks()[1])
    assert statistics_of(plain) == {}


def test_a_batch_observes_nothing() -> None:
    def observing(batch: list[Task]) -> list[Task]:
        stats.count("seen", 2)
        return batch

    made = batch(observing, 1)
    with pytest.raises(UnsupportedShapeError, match=r"observing used ledgerbeam\.stats \(seen\) for a batch"):
        list(made.process(tasks()[0]))


HERE = __name__
calls: list[int] = []


@pytest.fixture(autouse=True)
def _noted(tmp_path: Path) -> Iterator[None]:
    calls[:] = [os.open(tmp_path / "calls", os.O_CREAT | os.O_APPEND | os.O_WRONLY)]
    yield
    os.close(calls.pop())


def forks_once(value: Any) -> Any:
    """Note a call of this process or of a child; the first call forks, and waits for what the child does."""
    os.write(calls[0], b".")
    if os.fstat(calls[0]).st_size == 1 and (child := os.fork()):
        os.waitpid(child, 0)
    return value


def forks_in_group(key: Any, records: Any) -> Any:
    return list(forks_once(records))


def task_of(count: int) -> Task:
    return Task(Source("/data/a.jsonl", 100, "1"), 0, count, ((0, 1),), [{"id": number} for number in range(count)])


@pytest.mark.parametrize(("batch", "expected"), [(None, 6), (2, 3)])
def test_of_records_and_batches(tmp_path: Path, batch: int | None, expected: int) -> None:
    mapper = MapRecords(f"{HERE}:forks_once", "jsonl", batch=batch)
    with running_user_code():
        mapper(task_of(6))
    assert (tmp_path / "calls").stat().st_size == expected


def test_of_groups(tmp_path: Path) -> None:
    stages = exchange(tmp_path, [{"k": number} for number in range(4)])
    with running_user_code():
        stages.gather(GroupRecords(forks_in_group, "jsonl", by="k"))
    assert (tmp_path / "calls").stat().st_size == 4
