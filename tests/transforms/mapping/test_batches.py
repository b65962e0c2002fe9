"""Functions of batches: results by position, the same however records are cut, and mistakes that are named."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import pyarrow as pa
import pytest

from ledgerbeam import stats
from ledgerbeam.errors import FunctionError, RecordError, UsageError
from ledgerbeam.io import ParquetFormat, Sample
from ledgerbeam.io.columns.schema import JobSchema
from ledgerbeam.io.index.reader import RawRecord
from ledgerbeam.ledger import FailedTask, Source, Task
from ledgerbeam.ledger.model.accounts import RecordCounts
from ledgerbeam.sources import Unreadable
from ledgerbeam.transforms import MapRecords
from ledgerbeam.transforms.mapping.function import RESTARTS
from ledgerbeam.transforms.mapping.record_mapping import RecordMapping
from ledgerbeam.transforms.mapping.stages import ReadyFunction
from ledgerbeam.transforms.mapping.task_mapping import BatchAgainError, MappingRules
from tests.cases import each

HERE = __name__
COLUMNS = ParquetFormat(schema=JobSchema({"": pa.schema([("id", pa.int64())])}))
sizes: list[int] = []


def mapped(function: str, records: list[Any], batch: int | None = 4, to: Any = "jsonl", **options: Any) -> Any:
    source = Source("/data/a.jsonl", 100, "1")
    raws = [RawRecord(source.url, number, number, number + 1, b"x") for number in range(len(records))]
    task = Task(source, 0, len(records), ((0, 1),), records, raw=lambda: raws)
    sizes.clear()
    return MapRecords(f"{HERE}:{function}", to, batch=batch, **options)(task)


def ids(count: int) -> list[dict[str, Any]]:
    return [{"id": number} for number in range(count)]


def doubled(records: list[Any]) -> list[Any]:
    sizes.append(len(records))
    return [{"id": 2 * record["id"]} for record in records]


def test_batches_are_full_but_for_the_last_and_results_stand_in_the_place_of_their_records() -> None:
    found = mapped("doubled", ids(10)).records
    assert list(found.datasets[""]) == [{"id": 2 * number} for number in range(10)]
    assert sizes == [4, 4, 2]


def centred(records: list[Any]) -> list[Any]:
    mean = sum(record["id"] for record in records) / len(records)
    return [{"id": record["id"] - mean} for record in records]


def centred_and_says_so(records: list[Any]) -> list[Any]:
    return centred(records)


centred_and_says_so.batch_invariant = False  # type: ignore[attr-defined]


def test_a_function_may_depend_on_its_batch() -> None:
    found = mapped("centred_and_says_so", ids(4)).records
    assert list(found.datasets[""]) == [{"id": -1.5}, {"id": -0.5}, {"id": 0.5}, {"id": 1.5}]
    assert mapped("centred", ids(4)).records.counts.kept == 4


def one_less(records: list[Any]) -> list[Any]:
    return records[1:]


def lazily(records: list[Any]) -> Any:
    return (record for record in records)


def by_name(records: list[Any]) -> Any:
    return {"results": records}


@each(("function", "found"), [("one_less", "a list of 3"), ("lazily", "a generator"), ("by_name", "a dict")])
@each("on_error", ["fail", "reject"])
def test_a_batch_of_another_length_is_refused_by_name(function: str, found: str, on_error: Any) -> None:
    failed = mapped(function, ids(4), on_error=on_error)
    assert isinstance(failed, FailedTask)
    assert failed.reason == "FunctionError"
    assert f"{HERE}:{function} returned {found}" in failed.error
    assert "a list of 4 results" in failed.error


def three_is_bad(records: list[Any]) -> list[Any]:
    sizes.append(len(records))
    if any(record["id"] == 3 for record in records):
        raise ValueError("three is bad")
    return records


def test_a_batch_that_raises_names_its_records() -> None:
    failed = mapped("three_is_bad", ids(6))
    assert failed.reason == "ValueError"
    assert failed.error.startswith("/data/a.jsonl, record 0, and 3 more after it: ")
    assert mapped("three_is_bad", ids(6), 2).error.startswith("/data/a.jsonl, record 2, and 1 more after it: ")


def test_of_a_batch_that_raises_the_records_to_blame_are_found() -> None:
    found = mapped("three_is_bad", ids(6), on_error="reject").records
    assert found.counts == RecordCounts(6, 5, {}, {"ValueError": 1}, {"": 5})
    assert [row.rejection.position for row in found.rejects] == [3]
    assert sizes == [4, 2, 2, 1, 1, 2]


def three_is_bad_for_all(records: list[Any]) -> list[Any]:
    return three_is_bad(records)


three_is_bad_for_all.batch_invariant = False  # type: ignore[attr-defined]


def test_a_batch_that_cannot_be_cut_differently_fails_its_task() -> None:
    assert mapped("three_is_bad_for_all", ids(6), on_error="reject").reason == "ValueError"


def observes_and_raises(records: list[Any]) -> list[Any]:
    for record in records:
        stats.count("seen", 1)
        if record["id"] in (3, 9):
            raise ValueError("bad")
    return records


def test_what_a_batch_observed_before_it_raised_does_not_count_twice() -> None:
    found = mapped("observes_and_raises", ids(12), on_error="reject").records
    assert found.counts.rejected == {"ValueError": 2}
    assert found.statistics["seen"].data == b"12"


def test_a_task_begins_again_at_its_batch_also_where_a_part_of_that_has_observed_something() -> None:
    """It is said by its first record which batch is to be split; a part of a batch is none."""

    def observes_few(records: list[Any]) -> list[Any]:
        if len(records) > 2:
            raise ValueError("too many")
        if records[-1]["id"] == 7:
            stats.count("rows")
            raise ValueError("bad")
        return records

    rules = MappingRules([ReadyFunction("f", observes_few, batch=4)], "jsonl", "refuse", True)
    task = Task(Source("/data/a.jsonl", 100, "1"), 0, 8, ((0, 1),), ids(8))
    with stats.collecting() as collected, pytest.raises(BatchAgainError) as again:
        RecordMapping(rules, task, collected).run()
    assert again.value.key == 4


def test_a_batch_has_a_record() -> None:
    with pytest.raises(UsageError, match="batch: expected at least 1 record, found 0"):
        MapRecords(f"{HERE}:doubled", "jsonl", batch=0)


def changing(records: list[Any]) -> list[Any]:
    for record in records:
        record["seen"] = record.get("seen", 0) + 1
    return records


def test_a_function_may_change_its_batch() -> None:
    assert list(mapped("changing", ids(2)).records.datasets[""]) == [{"id": 0, "seen": 1}, {"id": 1, "seen": 1}]


def doubled_and_says_so(records: list[Any]) -> list[Any]:
    return doubled(records)


doubled_and_says_so.batch_invariant = False  # type: ignore[attr-defined]


def test_a_batch_of_which_nothing_was_decoded_is_not_mapped() -> None:
    records = [*ids(2), *[Unreadable("no JSON")] * 3, *ids(1), *[Unreadable("no JSON")] * 2]
    found = mapped("doubled", records, 2, on_error="reject").records
    assert sizes == [2, 1]
    assert [row.rejection.position for row in found.rejects] == [2, 3, 4, 6, 7]
    assert list(found.datasets[""]) == [{"id": 0}, {"id": 2}, {"id": 0}]


def interrupted(records: list[Any]) -> Any:
    raise KeyboardInterrupt


@pytest.mark.parametrize("on_error", ["fail", "reject"])
def test_an_interrupt_is_no_failure_of_a_batch(on_error: Any) -> None:
    with pytest.raises(KeyboardInterrupt):
        mapped("interrupted", ids(4), on_error=on_error)


class InterruptedOnce(list[Any]):
    """Records that are interrupted as they are looked at for the first time."""

    interrupts: ClassVar[list[BaseException]] = []

    def __iter__(self) -> Iterator[Any]:
        if self.interrupts:
            raise self.interrupts.pop()
        return super().__iter__()


def interrupted_once(records: list[Any]) -> list[Any]:
    return [InterruptedOnce([record]) for record in records]


def test_nor_is_one_while_the_results_of_a_batch_are_compared() -> None:
    InterruptedOnce.interrupts.append(KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        mapped("interrupted_once", ids(4))
    assert mapped("interrupted_once", ids(4)).records.counts.kept == 4


raised: list[BaseException] = []


def raising(records: list[Any]) -> Any:
    raise raised[0]


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (FunctionError("of a function"), "of a function"),
        (RecordError("of a format"), "of a format"),
        (ValueError("of something"), f"{HERE}:raising raised ValueError: of something (at "),
    ],
)
def test_a_batch_that_says_what_is_wrong_is_told_by_its_own_words(
    monkeypatch: pytest.MonkeyPatch, error: BaseException, said: str
) -> None:
    monkeypatch.setattr("tests.transforms.mapping.test_batches.raised", [error])
    failed = mapped("raising", ids(3))
    assert failed.reason == type(error).__name__
    assert failed.error.startswith(f"/data/a.jsonl, record 0, and 2 more after it: {said}")
    assert mapped("raising", ids(1)).error.startswith(f"/data/a.jsonl, record 0: {said}")


@pytest.mark.parametrize(("count", "batch"), [(4, 1), (4, 3)])
def test_a_record_that_is_alone_in_its_batch_is_to_blame_however_it_depends_on_that(count: int, batch: int) -> None:
    found = mapped("three_is_bad_for_all", ids(count), batch, on_error="reject").records
    assert found.counts == RecordCounts(4, 3, {}, {"ValueError": 1}, {"": 3})
    assert [row.rejection.position for row in found.rejects] == [3]
    for wide in (2, 4):
        failed = mapped("three_is_bad_for_all", ids(4), wide, on_error="reject")
        assert isinstance(failed, FailedTask)


def no_json_for_three(records: list[Any]) -> list[Any]:
    sizes.append(len(records))
    return [{"id": object()} if record["id"] == 3 else record for record in records]


def test_a_result_that_cannot_be_written_is_laid_to_its_record_alone() -> None:
    found = mapped("no_json_for_three", ids(6), on_error="reject").records
    assert found.counts == RecordCounts(6, 5, {}, {"RecordError": 1}, {"": 5})
    assert [row.rejection.position for row in found.rejects] == [3]
    failed = mapped("no_json_for_three", ids(6))
    assert failed.error.startswith("/data/a.jsonl, record 3: ")
    assert sizes == [4]


def bad_numbers(records: list[Any]) -> list[Any]:
    sizes.append(len(records))
    if any(record["id"] in (0, 5, 6) for record in records):
        raise ValueError("bad")
    return records


@each("batch", [1, 2, 3, 5, 8])
def test_all_records_to_blame_are_found(batch: int) -> None:
    found = mapped("bad_numbers", ids(8), batch, on_error="reject").records
    assert [row.rejection.position for row in found.rejects] == [0, 5, 6]
    assert list(found.datasets[""]) == [{"id": number} for number in (1, 2, 3, 4, 7)]


def texts_but_one(records: list[Any]) -> list[Any]:
    if any(record.key == "k1" for record in records):
        raise ValueError("bad")
    return [{"txt": record["txt"]} for record in records]


@pytest.mark.parametrize("batch", [2, 4])
def test_samples_that_are_made_of_a_part_of_a_batch_have_the_keys_of_their_records(batch: int) -> None:
    samples = [Sample(f"k{number}", {"txt": b"%d" % number}) for number in range(4)]
    found = mapped("texts_but_one", samples, batch, to="tar", on_error="reject").records
    assert [(one.key, one["txt"]) for one in found.datasets[""]] == [("k0", b"0"), ("k2", b"2"), ("k3", b"3")]


def counts_and_raises(records: list[Any]) -> list[Any]:
    sizes.append(len(records))
    stats.count("seen", len(records))
    if any(record["id"] % 4 == 0 for record in records):
        raise ValueError("bad")
    return records


def test_a_task_is_begun_anew_a_few_times_however_many_batches_raise() -> None:
    found = mapped("counts_and_raises", ids(40), on_error="reject").records
    assert found.counts.rejected == {"ValueError": 10}
    assert sizes.count(4) <= RESTARTS + 1


def test_the_size_of_batches_belongs_to_the_job_if_results_depend_on_it() -> None:
    def identity(function: str, batch: int | None) -> dict[str, Any]:
        return dict(MapRecords(f"{HERE}:{function}", "jsonl", batch=batch).identity())

    depends = identity("doubled_and_says_so", 4)
    assert depends["batch"] == 4
    assert identity("doubled_and_says_so", 5) == {**depends, "batch": 5}
    assert "batch" not in identity("doubled_and_says_so", None)
    assert identity("doubled", 4) == identity("doubled", 5) == identity("doubled", None)
    assert "batch" not in identity("doubled", 4)


def changing_deep_and_raising(records: list[Any]) -> list[Any]:
    for record in records:
        record["seen"].append(record["id"])
        if record["id"] in (3, 9):
            raise ValueError("bad")
    return records


def observing(records: list[Any]) -> list[Any]:
    stats.count("calls")
    return changing_deep_and_raising(records)


@pytest.mark.parametrize("function", ["changing_deep_and_raising", "observing"])
def test_records_that_a_failed_call_changed_are_mapped_as_they_were_read(function: str) -> None:
    found = mapped(function, [{"id": number, "seen": []} for number in range(12)], on_error="reject").records
    expected = [{"id": number, "seen": [number]} for number in range(12) if number not in (3, 9)]
    assert list(found.datasets[""]) == expected
    assert found.counts.rejected == {"ValueError": 2}


def negating(record: Any) -> Any:
    record["id"] = "x" if record["id"] == 2 else -record["id"]
    return record


def test_a_task_whose_results_do_not_fit_together_maps_its_records_as_they_were_read() -> None:
    found = mapped("negating", ids(4), None, COLUMNS, on_error="reject").records
    assert found.datasets[""].to_pylist() == [{"id": 0}, {"id": -1}, {"id": -3}]
    assert isinstance(mapped("negating", ids(4), None, COLUMNS), FailedTask)


def correcting(record: Any) -> Any:
    record["id"] = [] if record["id"] == 2 else 2 if record["id"] == [] else record["id"]
    return record


def test_a_result_that_fits_only_when_its_record_is_mapped_again_fails_its_task() -> None:
    assert mapped("correcting", ids(4), None, COLUMNS).reason == "RecordError"
