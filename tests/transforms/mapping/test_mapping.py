"""Records are mapped once each and in order, however they are cut, and an error is laid to its record."""

from __future__ import annotations

import dataclasses
import inspect
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pytest

from ledgerbeam import Drop, Reject, Route
from ledgerbeam._base.redaction import register_secrets
from ledgerbeam.errors import FunctionError, IndexMismatchError, RecordError, SourceError, StorageError
from ledgerbeam.io import JsonlFormat, ParquetFormat, ShardFile
from ledgerbeam.io.columns.schema import JobSchema
from ledgerbeam.io.formats.format import StreamSpan
from ledgerbeam.io.formats.streamed import HeldBlock, LineBlocks
from ledgerbeam.io.index.reader import RawRecord
from ledgerbeam.ledger import FailedTask, NoneTask, Source, Task
from ledgerbeam.ledger.model.accounts import RecordCounts, Statistic
from ledgerbeam.ledger.worker.reports import take_times, timed
from ledgerbeam.sources import Unreadable
from ledgerbeam.sources.forms import RecordBlocks
from ledgerbeam.stats import MOST_NAMES, NAME_CHARACTERS, Collected
from ledgerbeam.transforms.mapping import record_mapping as mapping_module
from ledgerbeam.transforms.mapping.collectors import UnplacedError, collector
from ledgerbeam.transforms.mapping.outcomes import (
    NOT_DECODED,
    CategoryError,
    Tally,
    check_value,
    require_category,
    require_reason,
    route_name,
    routed,
)
from ledgerbeam.transforms.mapping.record_mapping import RecordMapping
from ledgerbeam.transforms.mapping.stages import ReadyFunction
from ledgerbeam.transforms.mapping.task_mapping import MappingRules, TaskFailedError, record_place
from tests.cases import each

SOURCE = Source("/data/a.jsonl", 100, "1")


def rules(call: Callable[[Any], Any], **given: Any) -> MappingRules:
    defaults = {"output": "jsonl", "nan": "refuse", "rejects": False}
    return MappingRules([ReadyFunction("f", call)], **{**defaults, **given})


def task_of(records: Any, count: int | None = None, **more: Any) -> Task:
    size = len(records) if count is None else count
    raws = [RawRecord(SOURCE.url, 10 + n, n, n + 1, b"x") for n in range(size)]
    return Task(SOURCE, 10, 10 + size, ((0, 1),), records, raw=lambda: raws, **more)


def mapped(call: Callable[[Any], Any], records: Any, count: int | None = None, **given: Any) -> Any:
    """Return what a task became, a failed one too."""
    mapping = RecordMapping(rules(call, **given), task_of(records, count), Collected())
    try:
        mapping.run()
        return mapping.results({})
    except TaskFailedError as failed:
        return failed.task


def in_blocks(sizes: Sequence[int]) -> RecordBlocks:
    numbers = iter(range(sum(sizes)))
    return RecordBlocks([HeldBlock([{"n": next(numbers)} for _ in range(size)]) for size in sizes])


@pytest.mark.parametrize("measured", [1, 2, 3, 100])
@pytest.mark.parametrize("check", [False, True])
@pytest.mark.parametrize("sizes", [[], [0], [1], [3], [0, 2, 1], [3, 1, 0, 4], [20, 20]])
def test_each_record_is_mapped_in_order_and_the_first_ones_twice(
    monkeypatch: pytest.MonkeyPatch, sizes: list[int], check: bool, measured: int
) -> None:
    monkeypatch.setattr(mapping_module, "MEASURED_RECORDS", measured)
    calls: list[int] = []

    def call(record: Any) -> Any:
        calls.append(record["n"])
        return record if record["n"] % 3 else [record, record]

    count = sum(sizes)
    found = mapped(call, in_blocks(sizes), count)
    assert calls == list(range(count))
    if not count:
        assert isinstance(found, NoneTask)
        assert found.counts == RecordCounts()
        return
    expected = [number for number in range(count) for _ in range(1 if number % 3 else 2)]
    assert [row["n"] for row in found.records.datasets[""]] == expected
    assert found.records.counts == RecordCounts(count, count, {}, {}, {"": len(expected)})


@pytest.mark.parametrize("measured", [1, 2, 100])
@pytest.mark.parametrize("bad", range(7))
def test_an_error_is_laid_to_its_record(monkeypatch: pytest.MonkeyPatch, bad: int, measured: int) -> None:
    monkeypatch.setattr(mapping_module, "MEASURED_RECORDS", measured)

    def call(record: Any) -> Any:
        if record["n"] == bad:
            raise KeyError("id")
        return record

    failed = mapped(call, in_blocks([2, 0, 3, 2]), 7)
    assert isinstance(failed, FailedTask)
    assert failed.reason == "KeyError"
    assert failed.error.startswith(f"/data/a.jsonl, record {10 + bad}: f raised KeyError: 'id' (at ")
    results = mapped(call, in_blocks([2, 0, 3, 2]), 7, rejects=True).records
    assert results.counts == RecordCounts(7, 6, {}, {"KeyError": 1}, {"": 6})
    (rejected,) = results.rejects
    assert (rejected.raw.record, rejected.rejection.position, rejected.rejection.error) == (10 + bad, bad, "'id'")
    assert rejected.rejection.at.rpartition("/")[2].startswith("test_mapping.py:")


@pytest.mark.parametrize(
    ("error", "reason", "said"),
    [
        (FunctionError("of f"), "FunctionError", "record 10: of f"),
        (RecordError("of a format"), "RecordError", "record 10: of a format"),
        (SourceError("of another"), "SourceError", "record 10: f raised SourceError: of another"),
        (SystemExit(3), "SystemExit", "record 10: f raised SystemExit: 3"),
    ],
)
def test_an_error_that_says_what_is_wrong_is_told_by_its_own_words(error: Any, reason: str, said: str) -> None:
    def call(_: Any) -> Any:
        raise error

    failed = mapped(call, [{}])
    assert failed.reason == reason
    assert f"{said}" in failed.error
    (rejected,) = mapped(call, [{}], rejects=True).records.rejects
    assert rejected.rejection.reason == reason
    assert rejected.rejection.error == str(error)
    assert bool(rejected.rejection.at) == ("raised" in said)


def test_what_is_told_of_a_rejected_record_holds_no_secret() -> None:
    register_secrets({"secret": "hidden-from-rejects"})

    def ask(record: Any) -> Any:
        raise ValueError("no answer with the key hidden-from-rejects")

    (rejected,) = mapped(ask, [1], rejects=True).records.rejects
    assert "no answer with the key" in rejected.rejection.error
    assert "hidden-from-rejects" not in rejected.rejection.error


def test_a_record_that_was_not_decoded_is_not_mapped() -> None:
    calls: list[Any] = []

    def call(record: Any) -> Any:
        calls.append(record)
        return record

    results = mapped(call, [{"n": 1}, Unreadable("no JSON")], rejects=True).records
    assert results.counts == RecordCounts(2, 1, {}, {NOT_DECODED: 1}, {"": 1})
    (rejected,) = results.rejects
    assert (rejected.rejection.error, rejected.rejection.at) == ("no JSON", "")
    assert calls == [{"n": 1}]


def test_without_rejects_a_function_is_given_the_mark_of_what_was_not_decoded() -> None:
    found = mapped(lambda record: {"said": record.error}, [Unreadable("no JSON")])
    assert list(found.records.datasets[""]) == [{"said": "no JSON"}]
    found = mapped(lambda record: record, [{"n": 1}], rejects=True)
    assert found.records.counts == RecordCounts.plain(1)


@pytest.mark.parametrize(
    ("given", "said"), [(Reject("bad", "why"), "f rejected it: bad: why"), (Reject("bad"), "f rejected it: bad")]
)
def test_a_reject_fails_its_task_or_is_put_aside(given: Reject, said: str) -> None:
    failed = mapped(lambda _: given, [{}])
    assert (failed.reason, failed.error) == ("bad", f"/data/a.jsonl, record 10: {said}")
    (rejected,) = mapped(lambda _: given, [{}], rejects=True).records.rejects
    assert (rejected.rejection.reason, rejected.rejection.error) == ("bad", given.error)


def test_too_many_categories_fail_the_task_whatever_becomes_of_records() -> None:
    numbers = [{"n": number} for number in range(101)]
    for call in (
        lambda record: Drop(f"reason {record['n']}"),
        lambda record: Reject(f"reason {record['n']}"),
        lambda record: Route(f"route {record['n']}", record),
    ):
        assert not isinstance(mapped(call, numbers[:100], rejects=True), FailedTask)
        failed = mapped(call, numbers, rejects=True)
        assert failed.reason == "FunctionError"
        assert failed.error.startswith("/data/a.jsonl, record 110: f: a task has at most 100 different ")


def test_samples_are_looked_at_one_by_one() -> None:
    found = mapped(lambda _: {"txt": b"x"}, [{"n": 1}, {"n": 2}], output="tar").records
    assert [sample.key for sample in found.datasets[""]] == ["a-000000010", "a-000000011"]


def test_bytes_that_are_not_decoded_fail_the_task_by_their_own_words() -> None:
    data = b'{"n": 1}\n{"n"\n'
    blocks = RecordBlocks([LineBlocks(JsonlFormat(), data, SOURCE.url, StreamSpan(10, 2, 0, len(data)))])
    failed = mapped(lambda record: record, blocks, 2)
    assert failed.reason == "RecordError"
    assert failed.error.startswith("/data/a.jsonl: record 11")
    assert "raised" not in failed.error
    results = mapped(lambda record: record, blocks.marking(), 2, rejects=True).records
    assert results.counts == RecordCounts(2, 1, {}, {NOT_DECODED: 1}, {"": 1})


@pytest.mark.parametrize("error", [SourceError("gone"), IndexMismatchError("gone"), StorageError("gone")])
def test_what_cannot_be_read_meanwhile_fails_the_task(error: Exception) -> None:
    class Broken:
        def decoded(self, *, each: bool = False) -> Iterator[list[Any]]:
            yield [{"n": 1}]
            raise error

    for rejects in (False, True):
        failed = mapped(lambda record: record, RecordBlocks([Broken()]), 2, rejects=rejects)
        assert (failed.reason, failed.error) == (type(error).__name__, "gone")


def test_a_task_fails_whose_rejected_records_cannot_be_found_again() -> None:
    def gone() -> list[RawRecord]:
        raise StorageError("gone")

    mapping = RecordMapping(
        rules(lambda _: Reject("bad"), rejects=True), task_of([{"n": 1}]).replace(raw=gone), Collected()
    )
    mapping.run()
    with pytest.raises(TaskFailedError) as failed:
        mapping.results({})
    assert (failed.value.task.reason, failed.value.task.error) == ("StorageError", "/data/a.jsonl[10:11]: gone")


def test_what_was_observed_goes_with_the_task_whatever_becomes_of_it() -> None:
    statistics = {"words": Statistic("count", b"1")}
    for call in (lambda record: record, lambda _: None):
        mapping = RecordMapping(rules(call), task_of([{"n": 1}]), Collected())
        mapping.run()
        found: Any = mapping.results(statistics)
        assert (found if isinstance(found, NoneTask) else found.records).statistics == statistics


def test_a_result_that_fits_no_column_is_placed_where_that_is_asked_for() -> None:
    columns = ParquetFormat(schema=JobSchema({"": pa.schema([("n", pa.int64())])}))
    records = [{"n": 0}, {"n": 1}, {"n": "bad"}]
    failed = mapped(lambda record: record, records, output=columns, placed=True)
    assert failed.reason == "RecordError"
    assert failed.error.startswith("/data/a.jsonl, record 12: ")
    with pytest.raises(UnplacedError, match=r"^result record 2: field n"):
        mapped(lambda record: record, records, output=columns)
    found = mapped(lambda record: record, records[:2], output=columns, placed=True)
    assert found.records.datasets[""].to_pylist() == records[:2]


class Slow:
    """A result that takes long to be kept."""

    def __deepcopy__(self, memo: Any) -> Slow:
        time.sleep(0.002)
        return self


class Own:
    """A format of the user."""

    name = "own"

    def encode(self, records: Sequence[Any]) -> list[ShardFile]:
        return [ShardFile(".own", b"", len(records))]


def test_the_time_that_results_take_is_not_that_of_the_function() -> None:
    take_times()
    with timed("function"):
        mapped(lambda _: Slow(), in_blocks([5, 5]), 10, output=Own())
    times = take_times()
    assert times["encode"] > 0.01
    assert times["encode"] > 2 * times["function"]


def test_a_record_is_named_as_exactly_as_it_is_known() -> None:
    pack = Source.pack([SOURCE, Source("/data/b.jsonl", 1, "1")])
    raws = [RawRecord("/data/b.jsonl", 4, 0, 1, b"x"), RawRecord("/data/b.jsonl", 7, 0, 1, b"x")]
    lines = b"1\n2\n"
    whole = RecordBlocks([LineBlocks(JsonlFormat(), lines, SOURCE.url, StreamSpan(10, 2, 0, len(lines)))])
    changed = RecordBlocks([LineBlocks(JsonlFormat(), lines, SOURCE.url, StreamSpan(10, 3, 0, len(lines)))])
    for task, expected in (
        (Task(SOURCE, 10, 12, (), [1, 2]), "/data/a.jsonl, record 11"),
        (Task(SOURCE, 10, 12, (), whole), "/data/a.jsonl, record 11"),
        (Task(SOURCE, 10, 15, (), [1, 2], raw=lambda: raws), "/data/b.jsonl, record 7"),
        (Task(SOURCE, 10, 13, (), changed, raw=lambda: raws), "/data/b.jsonl, record 7"),
        (Task(SOURCE, 10, 15, (), [1, 2]), "/data/a.jsonl[10:15], its record 1"),
        (Task(pack, 0, 2, (), [1, 2], raw=lambda: raws), "/data/b.jsonl, record 7"),
        (Task(pack, 0, 2, (), [1, 2]), "/data/a.jsonl[0:2], its record 1"),
    ):
        assert record_place(task, 1) == expected


def tally() -> Tally:
    return Tally(collector("jsonl", "refuse", one_by_one=False, placed=False))


def test_what_becomes_of_records_adds_up() -> None:
    counted = tally()
    counted.drop("short")
    counted.drop("short", 3)
    counted.drop("long", 2)
    counted.reject("bad")
    counted.reject("bad")
    counted.reject("worse")
    assert counted.counts(20, {"": [1, 2], "en": [3]}) == RecordCounts(
        20, 11, {"short": 4, "long": 2}, {"bad": 2, "worse": 1}, {"": 2, "en": 1}
    )
    assert tally().counts(2, {"": [1, 2]}) == RecordCounts.plain(2)


@pytest.mark.parametrize("act", ["drop", "reject"])
def test_a_task_has_so_many_reasons_of_a_kind(act: str) -> None:
    counted = tally()
    for number in range(MOST_NAMES):
        getattr(counted, act)(f"reason {number}")
    getattr(counted, act)("reason 0")  # one that is known
    with pytest.raises(CategoryError, match=rf"at most {MOST_NAMES} different reasons of .*, found one more: 'again'"):
        getattr(counted, act)("again")
    other = {"drop": "reject", "reject": "drop"}[act]
    getattr(counted, other)("again")


def test_a_category_has_so_many_characters() -> None:
    require_category("ä" * NAME_CHARACTERS, "routes", MOST_NAMES - 1)
    with pytest.raises(CategoryError, match=f"at most {NAME_CHARACTERS} characters, found one of 201: 'ä{{60}}' "):
        require_category("ä" * (NAME_CHARACTERS + 1), "routes", 0)
    with pytest.raises(CategoryError, match="different routes, found one more"):
        require_category("x", "routes", MOST_NAMES)


class OwnList(list[Any]):
    """A list of a class of the user's."""


class OwnRoute(Route):
    """A route of a class of the user's."""


def test_results_are_records_with_their_routes() -> None:
    for result, expected in (
        (1, [("", 1)]),
        ([], []),
        ([1, [2]], [("", 1), ("", [2])]),
        (Route("en", 1), [("en", 1)]),
        (Route("en", []), []),
        ([Route("en", [1, 2]), 3, OwnRoute("de", OwnList([4]))], [("en", 1), ("en", 2), ("", 3), ("de", 4)]),
        (OwnList([1, 2]), [("", 1), ("", 2)]),
        ((1, 2), [("", (1, 2))]),
    ):
        assert list(routed(result, "f")) == expected


@each(
    ("result", "said"),
    [
        ([Drop("x")], "f returned a Drop inside of a list: expected records"),
        ([1, Reject("x")], "f returned a Reject inside of a list: expected records"),
        (Route("en", Drop("x")), "f returned a Drop inside of a Route: expected records"),
        (Route("en", [1, Reject("x")]), "f returned a Reject inside of a Route"),
        (Route("en", None), "f returned a Route of None"),
        (Route("en", Route("de", 1)), "f returned a Route in a Route"),
        (Route("en", [OwnRoute("de", 1)]), "f returned a Route in a Route"),
        (Route("a/b", 1), "f returned a Route: "),
    ],
)
def test_what_stands_for_a_whole_record_stands_alone(result: Any, said: str) -> None:
    with pytest.raises(FunctionError, match=said):
        list(routed(result, "f"))


class OwnText(str):
    """A text of a class of the user's, which may be anything when it is compared."""


def test_a_reason_is_a_text_and_so_is_an_error() -> None:
    for good in (Drop("short"), Reject("bad"), Reject("bad", "error"), Reject("bad", "")):
        require_reason(good, "f")
    for reason in ("", 1, None, b"short", "\ud800", OwnText("short")):
        for kind in (Drop, Reject):
            with pytest.raises(FunctionError, match=rf"f returned {kind.__name__}\(.*\): expected a short text"):
                require_reason(kind(reason), "f")  # type: ignore[arg-type]
    with pytest.raises(FunctionError, match="f returned a Reject whose error is not text"):
        require_reason(Reject("bad", 1), "f")  # type: ignore[arg-type]


def test_a_route_is_named_as_a_folder_can_be() -> None:
    assert route_name("en", "f") == "en"
    for name in ("", "a/b", "..", "_rejects", 1):
        with pytest.raises(FunctionError, match="f returned a Route: "):
            route_name(name, "f")


@dataclasses.dataclass
class Point:
    x: int = 1


def generated() -> Iterator[int]:
    yield 1


async def promised() -> int:
    return 1


@each(
    ("value", "record", "output"),
    [
        ({"a": 1}, {"a": 1}, "jsonl"),
        (Point(), {"a": 1}, "jsonl"),
        (orjson.Fragment(b"1"), {"a": 1}, "jsonl"),
        ([1], {"a": 1}, "jsonl"),
        ("text", "other", "jsonl"),
        ("text", 1, "parquet"),
        ("text", {"a": 1}, "megatron"),
        (1, Point(), "own"),
        (True, False, "jsonl"),
        (np.bool_(True), True, "jsonl"),
        (1, 1, "jsonl"),
    ],
)
def test_what_may_be_meant_as_a_record_is_taken(value: Any, record: Any, output: str) -> None:
    check_value(value, record, "f", output)


@each(
    ("value", "record", "output", "said"),
    [
        ((1,), 1, "megatron", "f returned a tuple: expected a record"),
        ({1}, 1, "megatron", "f returned a set: expected a record"),
        (generated(), 1, "megatron", "f returned a generator: expected a record"),
        (True, 1, "megatron", r"f returned a bool \(True\): expected a record"),
        (np.bool_(True), 1, "megatron", "f returned a bool"),
        (True, {"a": 1}, "jsonl", "to keep some records"),
        *(("text", {"a": 1}, output, "a str for a record that is a dict") for output in ("jsonl", "tar", "parquet")),
        (None, {"a": 1}, "arrow", "a NoneType for a record that is a dict.* leave None out of a list"),
        (1, Point(), "jsonl", "an? int for a record that is a Point"),
    ],
)
def test_what_can_hardly_be_meant_as_a_record_is_refused(value: Any, record: Any, output: str, said: str) -> None:
    with pytest.raises(FunctionError, match=said):
        check_value(value, record, "f", output)


def test_a_promise_is_refused_and_ended() -> None:
    promise = promised()
    with pytest.raises(FunctionError, match=r"f returned a coroutine: .*asyncio.run"):
        check_value(promise, {}, "f", "jsonl")
    assert inspect.getcoroutinestate(promise) == inspect.CORO_CLOSED

    class Awaited:
        def __await__(self) -> Iterator[Any]:
            yield 1

    with pytest.raises(FunctionError, match=r"f returned a Awaited: .*asyncio.run"):
        check_value(Awaited(), {}, "f", "megatron")
