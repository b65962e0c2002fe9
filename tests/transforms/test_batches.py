"""Functions of batches: results by position, the same however records are cut, and mistakes that are named."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from ledgerbeam.errors import NonDeterministicTaskError, UsageError
from ledgerbeam.io import RawRecord
from ledgerbeam.ledger import FailedTask, Source, Task
from ledgerbeam.ledger.model.accounts import RecordCounts
from ledgerbeam.transforms import MapRecords

HERE = __name__
sizes: list[int] = []


def mapped(function: str, records: list[Any], batch: int = 4, **options: Any) -> Any:
    source = Source("/data/a.jsonl", 100, "1")
    raws = [RawRecord(source.url, number, number, number + 1, b"x") for number in range(len(records))]
    task = Task(source, 0, len(records), ((0, 1),), records, raw=lambda: raws)
    sizes.clear()
    return MapRecords(f"{HERE}:{function}", "jsonl", batch=batch, **options)(task)


def ids(count: int) -> list[dict[str, Any]]:
    return [{"id": number} for number in range(count)]


def doubled(records: list[Any]) -> list[Any]:
    sizes.append(len(records))
    return [{"id": 2 * record["id"]} for record in records]


def test_batches_are_full_but_for_the_last_and_results_stand_in_the_place_of_their_records() -> None:
    found = mapped("doubled", ids(10), check_purity=False).records
    assert list(found.datasets[""]) == [{"id": 2 * number} for number in range(10)]
    assert sizes == [4, 4, 2]


def test_the_first_records_are_also_mapped_alone() -> None:
    found = mapped("doubled", ids(30)).records
    assert found.counts == RecordCounts.plain(30)
    assert sizes == [4, 1, 1, 1, 1] * 4 + [4, 4, 4, 2]


def centred(records: list[Any]) -> list[Any]:
    mean = sum(record["id"] for record in records) / len(records)
    return [{"id": record["id"] - mean} for record in records]


def centred_and_says_so(records: list[Any]) -> list[Any]:
    return centred(records)


centred_and_says_so.batch_invariant = False  # type: ignore[attr-defined]

coin = itertools.count()


def counted(records: list[Any]) -> list[Any]:
    return [{"id": next(coin)} for _ in records]


def counted_and_says_so(records: list[Any]) -> list[Any]:
    return counted(records)


counted_and_says_so.batch_invariant = False  # type: ignore[attr-defined]


def test_a_function_that_depends_on_its_batch_is_caught_unless_it_says_so() -> None:
    with pytest.raises(NonDeterministicTaskError, match=r"alone than in a batch of 4.*batch_invariant = False"):
        mapped("centred", ids(8))
    found = mapped("centred_and_says_so", ids(4)).records
    assert list(found.datasets[""]) == [{"id": -1.5}, {"id": -0.5}, {"id": 0.5}, {"id": 1.5}]
    assert mapped("centred", ids(4), check_purity=False).records.counts.kept == 4


@pytest.mark.parametrize("function", ["counted", "counted_and_says_so"])
def test_a_function_that_is_not_pure_is_called_that(function: str) -> None:
    with pytest.raises(NonDeterministicTaskError, match="two different results for the same record"):
        mapped(function, ids(4))


def one_less(records: list[Any]) -> list[Any]:
    return records[1:]


def lazily(records: list[Any]) -> Any:
    return (record for record in records)


def by_name(records: list[Any]) -> Any:
    return {"results": records}


@pytest.mark.parametrize(
    ("function", "found"), [("one_less", "a list of 3"), ("lazily", "a generator"), ("by_name", "a dict")]
)
@pytest.mark.parametrize("on_error", ["fail", "reject"])
def test_a_batch_of_another_length_is_refused_by_name(function: str, found: str, on_error: Any) -> None:
    failed = mapped(function, ids(4), on_error=on_error)
    assert isinstance(failed, FailedTask)
    assert failed.reason == "FunctionError"
    assert f"{HERE}:{function} returned {found}" in failed.error
    assert "a list of 4 results, one in each record's place" in failed.error


def three_is_bad(records: list[Any]) -> list[Any]:
    sizes.append(len(records))
    if any(record["id"] == 3 for record in records):
        raise ValueError("three is bad")
    return records


def test_a_batch_that_raises_names_its_records() -> None:
    failed = mapped("three_is_bad", ids(6), check_purity=False)
    assert failed.reason == "ValueError"
    assert failed.error.startswith("/data/a.jsonl, record 0, and the 3 after it: ")


def test_of_a_batch_that_raises_the_records_to_blame_are_found() -> None:
    found = mapped("three_is_bad", ids(6), check_purity=False, on_error="reject").records
    assert found.counts == RecordCounts(6, 5, {}, {"ValueError": 1}, {"": 5})
    assert [row.rejection.position for row in found.rejects] == [3]
    assert sizes == [4, 2, 2, 1, 1, 2]


def three_is_bad_for_all(records: list[Any]) -> list[Any]:
    return three_is_bad(records)


three_is_bad_for_all.batch_invariant = False  # type: ignore[attr-defined]


def test_a_batch_that_cannot_be_cut_differently_fails_its_task() -> None:
    assert mapped("three_is_bad_for_all", ids(6), on_error="reject").reason == "ValueError"


def observing(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Have the statistics of tasks be what `seen` collects; return those of each task that was begun."""
    import contextlib

    from ledgerbeam import stats

    begun: list[list[str]] = []

    class Collected:
        def statistics(self) -> dict[str, tuple[str, bytes]]:
            return dict.fromkeys(begun[-1], ("count", b""))

    @contextlib.contextmanager
    def collecting() -> Any:
        begun.append([])
        yield Collected()

    monkeypatch.setattr(stats, "collecting", collecting)
    observed.append(begun)
    return begun


observed: list[list[list[str]]] = []


def observes_and_raises(records: list[Any]) -> list[Any]:
    for record in records:
        observed[-1][-1].append(f"{record['id']}")
        if record["id"] in (3, 9):
            raise ValueError("bad")
    return records


def test_what_a_batch_observed_before_it_raised_does_not_count_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    begun = observing(monkeypatch)
    found = mapped("observes_and_raises", ids(12), on_error="reject", check_purity=False).records
    assert found.counts.rejected == {"ValueError": 2}
    assert begun[-1] == [str(number) for number in range(12)]
    assert len(begun) == 3


def test_a_batch_has_a_record() -> None:
    with pytest.raises(UsageError, match="batch must be at least 1, found 0"):
        MapRecords(f"{HERE}:doubled", "jsonl", batch=0)


def changing(records: list[Any]) -> list[Any]:
    for record in records:
        record["seen"] = record.get("seen", 0) + 1
    return records


def test_a_function_may_change_its_batch() -> None:
    assert list(mapped("changing", ids(2)).records.datasets[""]) == [{"id": 0, "seen": 1}, {"id": 1, "seen": 1}]
