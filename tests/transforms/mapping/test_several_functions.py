"""Jobs of several functions: results, counts, rejects and audits, compared with a model in plain Python."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ledgerbeam import Drop, Reject, Route, Rows, stats
from ledgerbeam.io import Sample
from ledgerbeam.io.index.reader import RawRecord
from ledgerbeam.ledger import FailedTask, NoneTask, Source, Task
from ledgerbeam.ledger.model.accounts import FUNCTIONS, NOTHING, RecordCounts
from ledgerbeam.sketches import merging
from ledgerbeam.sources import Unreadable
from ledgerbeam.stats import SEPARATOR
from ledgerbeam.transforms import MapRecords
from ledgerbeam.transforms.mapping.outcomes import TaskResults
from ledgerbeam.user_code.loading import GivenObject

SOURCE = Source("/data/a.jsonl", 100, "1")
KINDS = 5  # of records: what a function does depends on the kind of its record, `n % KINDS`

ACTIONS: dict[str, Callable[[Any], Any]] = {
    "same": lambda one: one,
    "changed": lambda one: {"n": one["n"] + 1, "trail": [*one["trail"], "c"]},
    "mutated": lambda one: one.update(n=one["n"] + 2) or one,
    "none": lambda _: None,
    "empty": lambda _: [],
    "short": lambda _: Drop("short"),
    "long": lambda _: Drop("long"),
    "bad": lambda one: Reject("bad", f"n is {one['n']}"),
    "raises": lambda one: {}[one["n"]],
    "mistake": lambda _: True,
    "two": lambda one: [{**one, "n": one["n"] + number} for number in range(2)],
    "three": lambda one: [{**one, "n": one["n"] * number} for number in range(3)],
    "en": lambda one: Route("en", one),
    "de": lambda one: Route("de", [one, {**one, "n": one["n"] + 3}]),
    "parts": lambda one: [one, Route("en", {**one, "n": one["n"] + 1}), Route("de", dict(one))],
    "unwritable": lambda one: {**one, "trail": object()} if "keep" not in one else one,
}

Plan = list[str]  # the action of a function for each kind of record; then perhaps SILENT
SILENT = "no statistics"


def acting(plan: Plan, record: Any) -> Any:
    if plan[-1] != SILENT:
        stats.count("seen")
    return ACTIONS[plan[record["n"] % KINDS]](record)


def single(plan: Plan) -> Callable[[Any], Any]:
    return lambda record: acting(plan, record)


def batches(plan: Plan) -> Callable[[Any], Any]:
    return lambda records: [acting(plan, record) for record in records]


def work_of(plans: list[Plan], sizes: list[int | None], **options: Any) -> MapRecords:
    functions = [
        GivenObject(f"plans:f{number}", (single if size is None else batches)(plan))
        for number, (plan, size) in enumerate(zip(plans, sizes, strict=True))
    ]
    batch = {f"f{number}": size for number, size in enumerate(sizes) if size is not None}
    return MapRecords(functions, "jsonl", batch=batch, **options)


def task_of(records: list[Any]) -> Task:
    raws = [RawRecord(SOURCE.url, number, number, number + 1, b"%d" % number) for number in range(len(records))]
    return Task(SOURCE, 0, len(records), ((0, 1),), records, raw=lambda: raws)


def records_of(numbers: list[int]) -> list[Any]:
    return [{"n": number, "trail": []} for number in numbers]


@dataclass
class Expected:
    """What a job of several functions must do with the records of a task."""

    datasets: dict[str, list[Any]] = field(default_factory=dict)
    rejected: list[tuple[int, str, str]] = field(default_factory=list)  # position, function, reason
    dropped: list[tuple[int, str, str]] = field(default_factory=list)
    received: Counter[int] = field(default_factory=Counter)
    returned: Counter[int] = field(default_factory=Counter)
    reasons: Counter[tuple[int, str, str]] = field(default_factory=Counter)  # function, outcome, reason

    def add(self, plans: list[Plan], record: Any, position: int) -> None:
        values = [("", record)]
        ends: list[tuple[int, str, str]] = []
        unwritten: list[tuple[int, str, str]] = []
        for number, plan in enumerate(plans):
            found: list[tuple[str, Any]] = []
            for route, value in values:
                self.received[number] += 1
                outcome, made = self.one(plan, value, is_last=number == len(plans) - 1)
                if outcome == "kept":
                    self.returned[number] += len(made)
                    found += [(name or route, one) for name, one in made]
                else:
                    self.reasons[number, outcome, made] += 1
                    (unwritten if made == "RecordError" else ends).append((number, outcome, made))
            values = found
        ends += unwritten
        rejected = [end for end in ends if end[1] == "rejected"]
        if rejected:
            number, _, reason = min(rejected, key=lambda end: end[0])
            self.rejected.append((position, f"f{number}", reason))
        elif values:
            for route, value in values:
                self.datasets.setdefault(route, []).append(value)
        else:
            furthest = max(end[0] for end in ends)
            number, _, reason = [end for end in ends if end[0] == furthest][-1]
            self.dropped.append((position, f"f{number}", reason))

    def one(self, plan: Plan, value: Any, *, is_last: bool) -> tuple[str, Any]:
        action = plan[value["n"] % KINDS]
        match action:
            case "none" | "empty":
                return "dropped", NOTHING
            case "short" | "long":
                return "dropped", action
            case "bad":
                return "rejected", "bad"
            case "raises":
                return "rejected", "KeyError"
            case "mistake":
                return "rejected", "FunctionError"
            case "unwritable" if is_last:
                return "rejected", "RecordError"
            case "unwritable":
                return "kept", [("", value)]
        made = ACTIONS[action](value)
        results = made if isinstance(made, list) else [made]
        parts = [(one.name, one.record) if isinstance(one, Route) else ("", one) for one in results]
        return "kept", [(route, one) for route, held in parts for one in (held if isinstance(held, list) else [held])]

    def counts(self, records: int) -> RecordCounts:
        kept = records - len(self.rejected) - len(self.dropped)
        return RecordCounts(
            records,
            kept,
            Counter(reason for _, _, reason in self.dropped),
            Counter(reason for _, _, reason in self.rejected),
            {route: len(values) for route, values in self.datasets.items()},
        )

    def functions(self, number: int) -> dict[str, Any]:
        reasons = {
            outcome: {
                reason: count for (of, kind, reason), count in self.reasons.items() if (of, kind) == (number, outcome)
            }
            for outcome in ("dropped", "rejected")
        }
        return {
            "function": f"f{number}",
            "received": self.received[number],
            "returned": self.returned[number],
            **reasons,
        }


def expected_of(plans: list[Plan], numbers: list[int]) -> Expected:
    expected = Expected()
    for position, record in enumerate(records_of(numbers)):
        expected.add(plans, record, position)
    return expected


def inner(plan: Plan) -> Plan:
    """Values that cannot be written are for the last function alone."""
    return ["changed" if action == "unwritable" else action for action in plan]


def rows(found: Any) -> list[tuple[int, Any, str]]:
    return [(row.rejection.position, row.rejection.function, row.rejection.reason) for row in found]


def results_of(done: Any) -> TaskResults:
    assert isinstance(done, Task | NoneTask)
    return done.records if isinstance(done, Task) else TaskResults({}, cast(Any, done.counts), (), done.statistics)


plans_of_jobs = st.lists(
    st.tuples(
        st.lists(st.sampled_from(sorted(ACTIONS)), min_size=KINDS, max_size=KINDS),
        st.sampled_from([None, None, 1, 2, 3, 8]),
    ),
    min_size=2,
    max_size=5,
)
numbers_of_records = st.lists(st.integers(0, 40), max_size=24)


@settings(deadline=None, max_examples=200)
@given(plans_of_jobs, numbers_of_records, st.booleans(), st.booleans())
def test_several_functions_act_as_plain_calls_one_after_the_other(
    job: list[tuple[Plan, int | None]], numbers: list[int], keep_dropped: bool, silent: bool
) -> None:
    plans = [plan + [SILENT] * silent for plan in [*(inner(plan) for plan, _ in job[:-1]), job[-1][0]]]
    sizes = [size for _, size in job]
    expected = expected_of(plans, numbers)
    work = work_of(plans, sizes, on_error="reject", keep_dropped=keep_dropped)
    results = results_of(work(task_of(records_of(numbers))))
    assert {route: list(values) for route, values in results.datasets.items()} == expected.datasets
    assert results.counts == expected.counts(len(numbers))
    assert rows(results.rejects) == expected.rejected
    assert rows(results.dropped) == (expected.dropped if keep_dropped else [])
    assert [row.raw.data for row in results.dropped] == [b"%d" % row.rejection.position for row in results.dropped]
    counts = merging("functions")
    counts.take(results.statistics[FUNCTIONS].data)
    assert counts.value() == [expected.functions(number) for number in range(len(plans))]
    seen = {name: int(one.data) for name, one in results.statistics.items() if name != FUNCTIONS}
    received = {} if silent else expected.received
    assert seen == {f"f{number}{SEPARATOR}seen": count for number, count in received.items()}

    again = work.recomputed(task_of(records_of(numbers)), lambda: False)
    assert (again.first, again.records) == (0, len(numbers))
    assert {route: list(values) for route, values in again.datasets.items()} == expected.datasets
    late = work.recomputed(task_of(records_of(numbers)), lambda: True)
    for route, values in late.datasets.items():
        assert list(values) == expected.datasets[route][-len(values) :]
        assert all(position >= late.first for position in late.origins[route])


@settings(deadline=None, max_examples=100)
@given(plans_of_jobs, numbers_of_records)
def test_without_rejects_a_job_fails_where_a_result_is_rejected(
    job: list[tuple[Plan, int | None]], numbers: list[int]
) -> None:
    plans = [*(inner(plan) for plan, _ in job[:-1]), job[-1][0]]
    expected = expected_of(plans, numbers)
    done: Any = work_of(plans, [size for _, size in job])(task_of(records_of(numbers)))
    assert isinstance(done, FailedTask) == bool(expected.rejected)
    if isinstance(done, Task):
        assert {route: list(values) for route, values in done.records.datasets.items()} == expected.datasets


ARROW_ACTIONS = sorted(ACTIONS.keys() - {"mistake", "unwritable"})
SCHEMA = pa.schema([("n", pa.int64()), ("trail", pa.list_(pa.string()))])


def of_rows(plan: Plan) -> Callable[[Any], Any]:
    """Return a function of Arrow batches that does with each row what a function of single records does."""

    def mapped(batch: pa.RecordBatch) -> Rows:
        of, made, routes = list[int](), list[Any](), list[str | None]()
        drop: list[str | None] = [None] * batch.num_rows
        reject: dict[str, list[str | None]] = {name: [None] * batch.num_rows for name in ("bad", "other")}
        for row, record in enumerate(batch.to_pylist()):
            result = acting(plan, record)
            if isinstance(result, Drop):
                drop[row] = result.reason
            elif isinstance(result, Reject):
                reject["bad"][row] = result.error
            elif result is not None:
                for part in result if isinstance(result, list) else [result]:
                    name, inner = (part.name, part.record) if isinstance(part, Route) else (None, part)
                    held = inner if isinstance(inner, list) else [inner]
                    made, routes, of = made + held, routes + [name] * len(held), of + [row] * len(held)
        texts = {name: pa.array(column, pa.string()) for name, column in reject.items()}
        table = pa.Table.from_pylist(made, SCHEMA)
        return Rows(table, drop=pa.array(drop, pa.string()), reject=texts, route=pa.array(routes, pa.string()), of=of)

    return mapped


@settings(deadline=None, max_examples=100)
@given(
    st.lists(
        st.tuples(
            st.lists(st.sampled_from(ARROW_ACTIONS), min_size=KINDS, max_size=KINDS), st.sampled_from([1, 2, 3, 8])
        ),
        min_size=1,
        max_size=4,
    ),
    st.lists(st.integers(0, 40), min_size=1, max_size=16),
    st.booleans(),
)
def test_functions_of_arrow_batches_act_as_functions_of_records(
    job: list[tuple[Plan, int]], numbers: list[int], keep_dropped: bool
) -> None:
    plans = [plan for plan, _ in job]
    expected = expected_of(plans, numbers)
    work = MapRecords(
        [GivenObject(f"plans:f{number}", of_rows(plan)) for number, plan in enumerate(plans)],
        "jsonl",
        form="arrow",
        batch={f"f{number}": size for number, (_, size) in enumerate(job)},
        on_error="reject",
        keep_dropped=keep_dropped,
    )
    task = task_of(records_of(numbers)).replace(records=pa.Table.from_pylist(records_of(numbers), SCHEMA))
    results = results_of(work(task))
    assert {route: list(values) for route, values in results.datasets.items()} == expected.datasets
    assert results.counts == expected.counts(len(numbers))
    assert [(row[0], row[2]) for row in rows(results.rejects)] == [(at, reason) for at, _, reason in expected.rejected]
    assert rows(results.dropped) == (expected.dropped if keep_dropped else [])
    if len(plans) > 1:
        counts = merging("functions")
        counts.take(results.statistics[FUNCTIONS].data)
        assert counts.value() == [expected.functions(number) for number in range(len(plans))]
        assert rows(results.rejects) == expected.rejected
    again = work.recomputed(task, lambda: False)
    assert {route: list(values) for route, values in again.datasets.items()} == expected.datasets


def fewer(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.slice(1)


def twice(batch: pa.RecordBatch) -> Rows:
    rows = [row for row in range(batch.num_rows) for _ in range(2)]
    return Rows(batch.take(pa.array(rows)), of=rows)


def rejecting(batch: pa.RecordBatch) -> Rows:
    return Rows(batch, reject={"bad": [number % 2 == 1 for number in batch["n"].to_pylist()]})


def raising(batch: pa.RecordBatch) -> Any:
    raise ValueError("no row is good")


def dropping(batch: pa.RecordBatch) -> Rows:
    return Rows(batch, drop={"odd": [number % 2 == 1 for number in batch["n"].to_pylist()]})


def arrow_job(*functions: Any, **options: Any) -> Any:
    given = [GivenObject(f"arrows:{function.__name__}", function) for function in functions]
    task = task_of(records_of([0, 1, 2, 3]))
    work = MapRecords(given, "jsonl", form="arrow", **options)
    return work(task.replace(records=pa.Table.from_pylist(records_of([0, 1, 2, 3]), SCHEMA)))


def test_counts_are_exact_if_a_function_of_batches_returns_fewer_rows() -> None:
    found = arrow_job(fewer, dropping, fewer)
    assert found.counts == RecordCounts(4, 0, {NOTHING: 2, "odd": 2}, {}, {})
    assert arrow_job(fewer, dropping).records.counts == RecordCounts(4, 1, {NOTHING: 1, "odd": 2}, {}, {"": 1})


@pytest.mark.parametrize(
    ("functions", "options"),
    [
        ((fewer, rejecting), {"on_error": "reject"}),
        ((fewer, raising), {"on_error": "reject"}),
        ((twice, fewer), {}),
        ((fewer, dropping), {"keep_dropped": True}),
    ],
)
def test_records_that_cannot_be_traced_fail_the_task_with_a_remedy(functions: Any, options: Any) -> None:
    failed = arrow_job(*functions, **options)
    assert isinstance(failed, FailedTask)
    assert "return Rows(batch, of=...)" in failed.error


def job_of(*functions: Any, to: str = "jsonl", **options: Any) -> MapRecords:
    return MapRecords([GivenObject(f"a:{function.__name__}", function) for function in functions], to, **options)


def number(record: Any) -> Any:
    return {"n": record["n"] + 1}


def numbers(records: list[Any]) -> list[Any]:
    return [{"n": record["n"] * 2} for record in records]


def odd_is_bad(record: Any) -> Any:
    return Reject("odd") if record["n"] % 2 else record


def test_a_row_names_the_function_unless_it_is_the_only_one() -> None:
    task = task_of([{"n": 1}, Unreadable("no JSON"), {"n": 2}])
    found: Any = job_of(odd_is_bad, number, on_error="reject")(task)
    assert rows(found.records.rejects) == [(0, "odd_is_bad", "odd"), (1, None, "not decoded")]
    found = job_of(odd_is_bad, on_error="reject")(task)
    assert rows(found.records.rejects) == [(0, "", "odd"), (1, "", "not decoded")]
    assert FUNCTIONS not in found.records.statistics


def nothing(record: Any) -> Any:
    return None


def test_dropped_records_of_the_only_function_are_stored_with_its_name() -> None:
    done: Any = job_of(nothing, keep_dropped=True)(task_of(records_of([4])))
    assert rows(done.records.dropped) == [(0, "nothing", NOTHING)]
    assert isinstance(job_of(nothing)(task_of(records_of([4]))), NoneTask)


def reusing() -> Callable[[Any], Any]:
    held: dict[str, Any] = {}

    def reused(record: Any) -> Any:
        held["n"] = record["n"] + 1
        return held

    return reused


def test_a_function_may_return_the_same_object_again_before_a_function_of_batches() -> None:
    found: Any = job_of(reusing(), numbers, batch={"numbers": 3})(task_of(records_of([1, 2, 3, 4])))
    assert list(found.records.datasets[""]) == [{"n": 4}, {"n": 6}, {"n": 8}, {"n": 10}]


def split(sample: Any) -> Any:
    return [{"txt": sample["txt"] + b"a"}, {"txt": sample["txt"] + b"b"}]


def all_same(samples: list[Any]) -> list[Any]:
    return samples


def same(sample: Any) -> Any:
    return sample


@pytest.mark.parametrize("functions", [(same, split), (split, same), (same, split, all_same), (all_same, split)])
@pytest.mark.parametrize("batch", [1, 2, 5])
def test_samples_have_the_key_of_their_record(functions: Any, batch: int) -> None:
    samples = [Sample(f"k{at}", {"txt": b"%d" % at}) for at in range(3)]
    sizes = {"all_same": batch} if all_same in functions else None
    work = job_of(*functions, to="tar", batch=sizes)
    expected = [(f"k{at}-{part}", b"%d%s" % (at, b"ab"[part : part + 1])) for at in range(3) for part in range(2)]
    done: Any = work(task_of(samples))
    again = work.recomputed(task_of(samples), lambda: False)
    for found in (done.records.datasets[""], again.datasets[""]):
        assert [(sample.key, sample["txt"]) for sample in found] == expected


def counting(record: Any) -> Any:
    stats.count("values", 2)
    return record


def observing(record: Any) -> Any:
    stats.observe("values", 1.5)
    return record


def test_functions_may_use_one_name_for_different_statistics() -> None:
    work = job_of(counting, observing)
    found: Any = work(task_of(records_of([1, 2])))
    kinds = {name: one.kind for name, one in found.records.statistics.items()}
    assert kinds == {
        f"counting{SEPARATOR}values": "count",
        f"observing{SEPARATOR}values": "observe",
        FUNCTIONS: "functions",
    }
    assert work.recomputed(task_of(records_of([1, 2])), lambda: False).records == 2


def centred(records: list[Any]) -> list[Any]:
    mean = sum(record["n"] for record in records) / len(records)
    return [{"n": record["n"] - mean} for record in records]


centred.batch_invariant = False  # type: ignore[attr-defined]


def test_an_audit_maps_the_batches_of_the_run_if_results_depend_on_them() -> None:
    work = job_of(odd_is_bad, split_numbers, centred, batch={"centred": 4}, on_error="reject")
    task = task_of(records_of([0, 1, 2, 4, 6, 7, 8]))
    done: Any = work(task)
    again = work.recomputed(task, lambda: False)
    assert (again.first, again.records) == (0, 7)
    assert list(again.datasets[""]) == list(done.records.datasets[""])
    assert task.stop % work.step == task.stop, "an audit of a part of the task would map other batches"
    identities = [job_of(number, centred, batch={"centred": size}).identity() for size in (4, 5)]
    assert identities[0] != identities[1]


def split_numbers(record: Any) -> Any:
    return [{"n": record["n"]}, {"n": record["n"] + 1}, {"n": record["n"] + 2}]


def test_the_identity_of_several_functions_is_a_list_of_theirs() -> None:
    one, two = job_of(number).identity(), job_of(odd_is_bad).identity()
    both: Any = job_of(number, odd_is_bad).identity()
    assert [function["function"] for function in both["functions"]] == [one["function"], two["function"]]
    assert both != job_of(odd_is_bad, number).identity()
    assert job_of(number, keep_dropped=True).identity() != one
    assert job_of(number, numbers, batch={"numbers": 2}).identity() == job_of(number, numbers).identity()


def interrupted(record: Any) -> Any:
    raise KeyboardInterrupt


@pytest.mark.parametrize("batch", [None, 2])
def test_an_interrupt_is_not_an_error_of_a_function(batch: int | None) -> None:
    with pytest.raises(KeyboardInterrupt):
        job_of(number, interrupted, batch=batch and {"interrupted": batch}, on_error="reject")(task_of(records_of([1])))


class Model:
    made = 0

    def __init__(self, by: int = 1) -> None:
        type(self).made += 1
        self.by = by

    def __call__(self, record: Any) -> Any:
        return {"n": record["n"] + self.by}


def test_a_class_can_occur_twice() -> None:
    work = MapRecords([f"{__name__}:Model"] * 3, "jsonl", values={"Model 2.by": 10})
    found: Any = work(task_of(records_of([0])))
    assert list(found.records.datasets[""]) == [{"n": 12}]
    assert Model.made == 2, "one object for equal values"


def fails_at_three(record: Any) -> Any:
    return record if record["n"] != 3 else cast(dict[str, Any], {})["three"]


def test_the_message_of_a_failed_task_names_function_and_record() -> None:
    failed: Any = job_of(number, fails_at_three, number)(task_of(records_of([1, 2, 5])))
    assert failed.reason == "KeyError"
    assert failed.error.startswith("/data/a.jsonl, record 1: a:fails_at_three raised KeyError: 'three' (at ")
    assert "test_several_functions.py:" in failed.error
    (row,) = cast(Any, job_of(number, fails_at_three, on_error="reject")(task_of(records_of([2])))).records.rejects
    assert row.rejection.at.rpartition("/")[2].startswith("test_several_functions.py:")


def test_functions_may_return_the_same_object_again() -> None:
    """The second function fills one object for each of the records that the first one made."""
    held: dict[str, Any] = {}

    def fill(record: dict[str, Any]) -> dict[str, Any]:
        held.update(record)
        return held

    def count(record: dict[str, Any]) -> dict[str, Any]:
        record["n"] = record.get("n", 0) + 1
        return record

    twice = MapRecords([lambda record: [{**record, "k": 1}, {**record, "k": 2}], fill], "jsonl")
    assert written(twice) == [{"id": 1, "k": 1}, {"id": 1, "k": 2}]
    again = MapRecords([lambda record: [record] * 2, count], "jsonl")
    assert written(again) == [{"id": 1, "n": 1}] * 2


def written(work: MapRecords) -> list[Any]:
    """Return the results for one record."""
    return list(results_of(work(task_of([{"id": 1}]))).datasets[""])
