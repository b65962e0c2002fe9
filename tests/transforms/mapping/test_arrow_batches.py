"""Functions of Arrow batches: the outcome of each row, by position, without Python objects for records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ledgerbeam import Drop, Reject, Route, Rows, sketches, stats
from ledgerbeam.errors import FunctionError, RecordError, UsageError
from ledgerbeam.io.columns.format import ParquetFormat
from ledgerbeam.io.index.reader import RawRecord
from ledgerbeam.ledger import FailedTask, NoneTask, Source, Task
from ledgerbeam.ledger.model.accounts import NOTHING, RecordCounts
from ledgerbeam.sources.forms import PartialTable
from ledgerbeam.stats import MOST_NAMES
from ledgerbeam.transforms import MapRecords
from ledgerbeam.transforms.mapping.arrow_batches import RowsOutcome, require_few, rows_outcome
from ledgerbeam.transforms.mapping.outcomes import CategoryError
from tests.cases import each

pd: Any = pytest.importorskip("pandas")

HERE = __name__
sizes: list[int] = []


def mapped(function: str, records: Any, batch: int | None = 4, to: Any = "parquet", **options: Any) -> Any:
    source = Source("/data/a.parquet", 100, "1")
    raws = [RawRecord(source.url, number, number, number + 1, b"x") for number in range(len(records))]
    task = Task(source, 0, len(records), ((0, 1),), records, raw=lambda: raws)
    sizes.clear()
    return MapRecords(f"{HERE}:{function}", to, batch=batch, form="arrow", **options)(task)


def ids(count: int, **columns: Any) -> pa.Table:
    return pa.table({"id": pa.array(range(count), pa.int64()), **columns})


def rows_of(found: Any, route: str = "") -> list[Any]:
    ids: list[Any] = found.records.datasets[route]["id"].to_pylist()
    return ids


def same(batch: pa.RecordBatch) -> Any:
    assert isinstance(batch, pa.RecordBatch)
    sizes.append(batch.num_rows)
    return batch


def test_batches_are_full_but_for_the_last_though_the_chunks_of_the_table_are_others() -> None:
    table = pa.concat_tables([ids(3), ids(7)])
    found = mapped("same", table)
    assert sizes == [4, 4, 2]
    assert found.records.datasets[""].equals(table)
    assert found.records.counts == RecordCounts.plain(10)


def test_all_of_a_task_is_one_batch_if_nothing_is_said() -> None:
    assert mapped("same", ids(100), batch=None).records.counts.kept == 100
    assert sizes == [100]


def filtered(batch: pa.RecordBatch) -> Any:
    return batch.filter(pc.greater(batch["id"], 5))


def by_table(batch: pa.RecordBatch) -> Any:
    return pa.Table.from_batches([batch.slice(0, 1), batch.slice(1)])


def by_pandas(batch: pa.RecordBatch) -> Any:
    frame = batch.to_pandas()
    return frame[frame["id"] > 5]


class Frame:
    """A frame of a library that has nothing in common with pyarrow but its interface."""

    def __init__(self, batch: pa.RecordBatch) -> None:
        self.batch = batch


class Streamed(Frame):
    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return pa.Table.from_batches([self.batch]).__arrow_c_stream__(requested_schema)


class Whole(Frame):
    def __arrow_c_array__(self, requested_schema: Any = None) -> Any:
        return self.batch.__arrow_c_array__(requested_schema)


def streamed(batch: pa.RecordBatch) -> Any:
    return Streamed(batch)


def whole(batch: pa.RecordBatch) -> Any:
    return Whole(batch)


@each(("function", "kept"), [("filtered", 4), ("by_table", 10), ("by_pandas", 4), ("streamed", 10), ("whole", 10)])
def test_frames_of_any_library_are_taken(function: str, kept: int) -> None:
    found = mapped(function, ids(10))
    assert rows_of(found) == list(range(10))[-kept:]
    assert found.records.datasets[""].schema == pa.schema([("id", pa.int64())])
    assert found.records.datasets[""].schema.metadata is None
    dropped = {"returned nothing": 10 - kept} if kept < 10 else {}
    assert found.records.counts == RecordCounts(10, kept, dropped, {}, {"": kept})


def viewed(batch: pa.RecordBatch) -> Any:
    """Return what Polars makes of texts: views, of which pyarrow can take no rows."""
    view = pa.array([str(one) for one in batch["id"].to_pylist()]).cast(pa.string_view())
    listed = pa.ListArray.from_arrays(range(len(view) + 1), view)
    words = pa.DictionaryArray.from_arrays(pa.array([0] * len(view)), pa.array(["a"]).cast(pa.string_view()))
    struct = pa.StructArray.from_arrays([view, view.cast(pa.binary_view())], ["s", "b"])
    frame = pa.table({"id": batch["id"], "text": view, "list": listed, "struct": struct, "words": words})
    return Rows(Streamed(frame.combine_chunks().to_batches()[0]), drop={"x": pc.equal(batch["id"], 1)})


def test_views_of_strings_are_strings() -> None:
    table = mapped("viewed", ids(4)).records.datasets[""]
    assert table.drop(["words"]).to_pylist() == [
        {"id": one, "text": str(one), "list": [str(one)], "struct": {"s": str(one), "b": str(one).encode()}}
        for one in (0, 2, 3)
    ]
    assert table["words"].to_pylist() == ["a"] * 3
    assert table.schema.field("text").type == pa.string()


def indexed(batch: pa.RecordBatch) -> Any:
    return pd.DataFrame({"n": batch["id"].to_numpy()}, index=pd.Index(batch["id"].to_numpy(), name="id"))


def test_an_index_with_a_name_is_a_column() -> None:
    assert rows_of(mapped("indexed", ids(5))) == [0, 1, 2, 3, 4]


def dropped(batch: pa.RecordBatch) -> Any:
    return Drop("old")


def test_a_whole_batch_is_dropped() -> None:
    found = mapped("dropped", ids(10))
    assert isinstance(found, NoneTask)
    assert found.counts == RecordCounts(10, 0, {"old": 10}, {}, {})


def rejected(batch: pa.RecordBatch) -> Any:
    return Reject("old", "it is") if batch["id"][0].as_py() >= 4 else batch


def test_a_whole_batch_is_rejected_row_by_row() -> None:
    found = mapped("rejected", ids(6), on_error="reject")
    assert found.records.counts == RecordCounts(6, 4, {}, {"old": 2}, {"": 4})
    assert [(row.raw.record, row.rejection.error) for row in found.records.rejects] == [(4, "it is"), (5, "it is")]
    failed = mapped("rejected", ids(6))
    assert (failed.reason, failed.error.startswith("/data/a.parquet, record 4: ")) == ("old", True)


def apart(batch: pa.RecordBatch) -> Any:
    number = batch["id"]
    rest = number.to_numpy() % 5
    worse = pa.array([f"it is {one}" if one == 6 else None for one in number.to_pylist()])
    return Rows(
        batch,
        drop={"four": pc.equal(number, 4), "large": pc.greater(number, 7)},
        reject={"bad": rest == 0, "worse": worse},
        route=pa.array([None, "one", "two", None, None]).take(pa.array(rest)),
    )


def test_what_becomes_of_each_row_is_said_by_position() -> None:
    found = mapped("apart", ids(10), on_error="reject")
    results = found.records
    assert {route: table["id"].to_pylist() for route, table in results.datasets.items()} == {
        "": [3],
        "one": [1],
        "two": [2, 7],
    }
    assert results.counts == RecordCounts(
        10, 4, {"four": 1, "large": 2}, {"bad": 2, "worse": 1}, {"": 1, "one": 1, "two": 2}
    )
    assert [(row.raw.record, row.rejection.reason, row.rejection.error) for row in results.rejects] == [
        (0, "bad", ""),
        (5, "bad", ""),
        (6, "worse", "it is 6"),
    ]


def twice(batch: pa.RecordBatch) -> Any:
    number = np.arange(batch.num_rows).repeat(np.asarray(batch["id"]) % 3)
    return Rows(batch.take(pa.array(number)), of=number, drop={"four": pc.equal(batch["id"], 4)})


def test_a_row_becomes_several_if_it_is_said_of_which_each_was_made() -> None:
    found = mapped("twice", ids(6))
    assert rows_of(found) == [1, 2, 2, 5, 5]
    assert found.records.counts == RecordCounts(6, 3, {"four": 1, "returned nothing": 2}, {}, {"": 5})


def by_frames(batch: pa.RecordBatch) -> Any:
    frame = batch.to_pandas()
    return Rows(frame, drop={"small": frame["id"] < 5}, route=["even" if one % 2 == 0 else None for one in frame["id"]])


def test_masks_are_arrays_of_any_library_and_lists() -> None:
    found = mapped("by_frames", ids(10))
    assert (rows_of(found), rows_of(found, "even")) == ([5, 7, 9], [6, 8])


async def promised() -> pa.Table:
    return ids(1)


class Lazy:
    """A frame that is not collected yet."""

    def collect(self) -> pa.Table:
        return ids(1)


TEXTS = ["error"] * 4
MISTAKES: dict[str, tuple[Callable[[pa.RecordBatch], Any], str]] = {
    "a list": (lambda b: b.to_pylist(), "returned a list: expected a record batch.*RecordBatch.from_pylist"),
    "a dict": (lambda b: {"id": 1}, r"returned a dict: .* of ledgerbeam; make one with"),
    "a bool": (lambda b: True, "returned a bool: expected a record batch.* of ledgerbeam$"),
    "a promise": (lambda b: promised(), "returned a coroutine: .* of ledgerbeam$"),
    "a lazy frame": (lambda b: Lazy(), "returned a Lazy: .* of ledgerbeam; collect it first$"),
    "an array": (lambda b: b["id"], "Array: expected a record batch"),
    "more rows": (
        lambda b: pa.concat_tables([pa.table(b)] * 2),
        "returned 8 rows for a batch of 4: expected at most one for each row of the batch",
    ),
    "no columns": (lambda b: b.select([]), "a frame without columns"),
    "mixed objects": (
        lambda b: pd.DataFrame({"x": [[("a", 1)], float("nan"), None, "b"]}),
        "returned a DataFrame that Arrow cannot convert: Arrow.*column x.*give each column one type",
    ),
    "rows of fewer": (
        lambda b: Rows(b.slice(1)),
        "returned Rows of 3 rows for a batch of 4: expected one for each row",
    ),
    "rows of none": (lambda b: Rows(None), "returned a NoneType: expected"),
    "a short mask": (
        lambda b: Rows(b, drop={"x": [True]}),
        r"drop 'x': expected one value for each row \(4\), by position, found 1",
    ),
    "no mask": (
        lambda b: Rows(b, drop={"x": [1, 2, 3, 4]}),
        "drop 'x': expected a mask of true and false, found int64",
    ),
    "a mask with null": (
        lambda b: Rows(b, drop={"x": [True, None, False, True]}),
        "drop 'x': expected a mask of true and false, found nulls in it",
    ),
    "names of numbers": (
        lambda b: Rows(b, drop=[1, 2, 3, 4]),
        "drop: expected texts and nulls, or masks by text, found int64",
    ),
    "no array": (lambda b: Rows(b, drop={"x": object()}), "drop 'x': expected an array, found a object"),
    "an empty reason": (lambda b: Rows(b, drop={"": [True] * 4}), r"returned Drop\(''\): expected a short text"),
    "rejects without a reason": (lambda b: Rows(b, reject={"": [True] * 4}), "expected a short text as the reason"),
    "errors without a reason": (lambda b: Rows(b, reject={"": TEXTS}), "expected a short text as the reason"),
    "a drop without a reason": (lambda b: Drop(""), r"returned Drop\(''\): expected a short text"),
    "a reject without a reason": (lambda b: Reject(""), "expected a short text as the reason"),
    "a bad route": (lambda b: Rows(b, route=["../x"] * 4), r"returned a Route: .*\.\./x"),
    "a batch of a bad route": (lambda b: Route("a/b", b), "returned a Route: "),
    "a route of none": (lambda b: Route("x", None), "returned a NoneType: expected"),
    "descending": (
        lambda b: Rows(b, of=[3, 2, 1, 0]),
        r"of: expected positions from 0 to 3, ascending, found \[3, 2, 1, 0\]",
    ),
    "before": (lambda b: Rows(b, of=[-1, 0, 1, 2]), "of: expected positions from 0 to 3, ascending"),
    "beyond": (lambda b: Rows(b, of=[0, 1, 2, 4]), "of: expected positions from 0 to 3, ascending"),
    "not ascending": (lambda b: Rows(b, of=[0, 2, 1, 3]), "of: expected positions from 0 to 3, ascending"),
    "of other length": (
        lambda b: Rows(b, of=[0, 1]),
        r"of: expected an integer for each row \(4\), found 2 of type int64",
    ),
    "of floats": (
        lambda b: Rows(b, of=[0.0, 1.0, 2.0, 3.0]),
        r"of: expected an integer for each row \(4\), found 4 of type double",
    ),
    "of null": (lambda b: Rows(b, of=[0, None, 2, 3]), "found 4 of type int64, some of them null"),
    "of no array": (lambda b: Rows(b, of=object()), "of: expected an array, found a object"),
    "many reasons": (
        lambda b: Rows(b, drop=[str(number) * 201 for number in range(4)]),
        "categories of at most 200 characters",
    ),
}
"""What a function returns for four rows, and how the message ends."""
mistake = ""


def mistaken(batch: pa.RecordBatch) -> Any:
    return MISTAKES[mistake][0](batch)


@pytest.mark.parametrize("on_error", ["fail", "reject"])
@pytest.mark.parametrize("name", MISTAKES)
def test_what_cannot_be_traced_or_means_nothing_fails_the_task(
    name: str, on_error: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.transforms.mapping.test_arrow_batches.mistake", name)
    failed = mapped("mistaken", ids(4), on_error=on_error)
    assert isinstance(failed, FailedTask)
    assert failed.reason == "FunctionError"
    assert failed.error.startswith("/data/a.parquet, record 0, and 3 more after it: ")
    with pytest.raises(AssertionError, match=MISTAKES[name][1]):
        raise AssertionError(failed.error)


def too_many_routes(batch: pa.RecordBatch) -> Any:
    return Rows(batch, route=batch["id"].cast(pa.string()))


@pytest.mark.parametrize("batch", [4, 200])
def test_routes_are_categories(batch: int) -> None:
    failed = mapped("too_many_routes", ids(200), batch=batch)
    assert failed.reason == "FunctionError"
    assert "routes" in failed.error or "names of route" in failed.error


def centred(batch: pa.RecordBatch) -> Any:
    return pa.table({"id": pc.subtract(batch["id"], pc.sum(batch["id"]))})


def centred_and_says_so(batch: pa.RecordBatch) -> Any:
    return centred(batch)


centred_and_says_so.batch_invariant = False  # type: ignore[attr-defined]


def test_a_function_may_depend_on_its_batch_if_it_says_so() -> None:
    assert rows_of(mapped("centred_and_says_so", ids(8), batch=8)) == [-28 + number for number in range(8)]


def not_a_number(batch: pa.RecordBatch) -> Any:
    return pa.table({"id": pa.array([float("nan")] * batch.num_rows)})


def narrow(batch: pa.RecordBatch) -> Any:
    return pd.DataFrame({"id": [None if one % 3 else "x" for one in batch["id"].to_pylist()]})


def test_the_same_values_are_the_same_though_they_are_no_numbers_or_of_a_narrower_type() -> None:
    assert mapped("not_a_number", ids(4)).records.counts.kept == 4
    found = mapped("narrow", ids(8), batch=2)
    assert rows_of(found) == ["x", None, None, "x", None, None, "x", None]


def bad(batch: pa.RecordBatch) -> Any:
    sizes.append(batch.num_rows)
    if pc.any(pc.is_in(batch["id"], pa.array([3, 30]))).as_py():
        raise ValueError("three")
    return batch


def test_of_a_batch_that_raises_the_rows_to_blame_are_found_in_its_halves() -> None:
    found = mapped("bad", ids(64), batch=64, on_error="reject")
    assert found.records.counts == RecordCounts(64, 62, {}, {"ValueError": 2}, {"": 62})
    assert [row.raw.record for row in found.records.rejects] == [3, 30]
    assert rows_of(found) == [number for number in range(64) if number not in (3, 30)]
    assert len(sizes) < 25
    failed = mapped("bad", ids(64), batch=64)
    assert failed.error.startswith("/data/a.parquet, record 0, and 63 more after it: ")


class Unreadable:
    """A frame that raises when it is read, as of a library that computes it then."""

    def __init__(self, error: BaseException) -> None:
        self._error = error

    def __arrow_c_stream__(self, schema: Any = None) -> Any:
        raise self._error


def computed_late(batch: pa.RecordBatch) -> Any:
    return Unreadable(ValueError("three")) if 3 in batch["id"].to_pylist() else batch


def far_away(batch: pa.RecordBatch) -> Any:
    times = [10**17 if number == 3 else number for number in batch["id"].to_pylist()]
    return pa.table({"id": batch["id"], "time": pa.array(times, pa.timestamp("s"))})


@pytest.mark.parametrize(("function", "reason"), [("computed_late", "ValueError"), ("far_away", "OverflowError")])
def test_of_a_batch_that_cannot_be_read_or_written_the_rows_to_blame_are_found(function: str, reason: str) -> None:
    found = mapped(function, ids(8), batch=8, to="jsonl", on_error="reject")
    assert [row.raw.record for row in found.records.rejects] == [3]
    assert found.records.counts == RecordCounts(8, 7, {}, {reason: 1}, {"": 7})


interrupts: list[KeyboardInterrupt] = []


def interrupted(batch: pa.RecordBatch) -> Any:
    return Unreadable(interrupts.pop()) if interrupts else batch


class InterruptedFormat(ParquetFormat):
    """A user's own, whose checks take long."""

    def written(self, route: str = "") -> Any:
        return self

    def table(self, records: Any, **where: Any) -> pa.Table:
        if interrupts:
            raise interrupts.pop()
        return records


@pytest.mark.parametrize(("function", "to"), [("interrupted", "jsonl"), ("same", InterruptedFormat())])
def test_an_interrupt_blames_no_row(function: str, to: Any) -> None:
    interrupts[:] = [KeyboardInterrupt()]
    with pytest.raises(KeyboardInterrupt):
        mapped(function, ids(8), to=to, on_error="reject")


def observes(batch: pa.RecordBatch) -> Any:
    for number in batch["id"].to_pylist():
        stats.count("seen")
        if number == 3:
            raise ValueError("three")
    return batch


def test_what_a_batch_observed_before_it_raised_counts_once() -> None:
    found = mapped("observes", ids(12), on_error="reject")
    assert found.records.counts.rejected == {"ValueError": 1}
    kind, data = found.records.statistics["seen"]
    merged = sketches.merging(kind)
    merged.take(data)
    assert merged.value() == 12


def test_records_that_could_not_be_decoded_are_rejected_in_their_places() -> None:
    partial = PartialTable(ids(6), {0: "bad", 4: "worse"})
    found = mapped("same", partial, on_error="reject")
    assert found.records.counts == RecordCounts(8, 6, {}, {"not decoded": 2}, {"": 6})
    assert [(row.raw.record, row.rejection.error) for row in found.records.rejects] == [(0, "bad"), (4, "worse")]
    assert rows_of(found) == list(range(6))
    assert sizes == [3, 3]


@given(
    fates=st.lists(st.sampled_from(["keep", "drop", "reject", "route"]), min_size=1, max_size=40),
    size=st.integers(1, 41),
)
def test_every_row_is_accounted_for_and_results_do_not_depend_on_cuts(fates: list[str], size: int) -> None:
    table = ids(len(fates), fate=pa.array(fates))
    found = mapped("by_fate", table, batch=size, on_error="reject")
    counts: Any = found.counts if isinstance(found, NoneTask) else found.records.counts
    rejected = fates.count("reject")
    assert counts.read == len(fates) == counts.kept + sum(counts.dropped.values()) + sum(counts.rejected.values())
    assert (sum(counts.dropped.values()), sum(counts.rejected.values())) == (fates.count("drop"), rejected)
    assert counts.written == {
        route: fates.count(fate) for route, fate in (("", "keep"), ("r", "route")) if fate in fates
    }


def by_fate(batch: pa.RecordBatch) -> Any:
    fate = batch["fate"]
    return Rows(
        batch,
        drop={"d": pc.equal(fate, "drop")},
        reject={"r": pc.equal(fate, "reject")},
        route=pc.if_else(pc.equal(fate, "route"), "r", pa.scalar(None, pa.string())),
    )


def test_what_no_batch_can_be_written_as_is_refused_before_it_is_called() -> None:
    with pytest.raises(UsageError, match=r"expected one of jsonl, parquet, arrow .*, found tar"):
        MapRecords(f"{HERE}:same", "tar", form="arrow")


@pytest.mark.parametrize("partial", [False, True])
def test_batches_are_cut_where_they_have_too_many_bytes(partial: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ledgerbeam.io.columns.encode.MOST_BYTES", 4000)
    lists = pa.chunked_array([[["x" * (1000 if row == 13 else 300)]] for row in range(20)])
    table = ids(20, lists=lists)
    records: Any = table
    if partial:
        records = PartialTable(pa.concat_tables([table.slice(0, 5), table.slice(6)]), {5: "unreadable"})
    found = mapped("same", records, batch=16, **({"on_error": "reject"} if partial else {}))
    kept = [row for row in range(20) if not partial or row != 5]
    assert rows_of(found) == kept
    assert len(sizes) > 2
    assert max(sizes) < 16
    assert found.records.counts.kept == len(kept)


def test_a_batch_that_cannot_be_made_names_the_column(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ledgerbeam.io.columns.encode.MOST_BYTES", 2**40)  # as where items without bytes are too many
    wide = pa.chunked_array([pa.array([["x" * 2**20]])] * 2200)
    with pytest.raises(RecordError, match="column 'wide': the 2200 rows"):
        mapped("same", ids(2200, wide=wide), batch=5000)


def table(*ids: Any, kind: Any = None) -> pa.Table:
    return pa.table({"id": pa.array(ids, kind or pa.int64())})


def outcome(result: Any, rows: int = 4) -> RowsOutcome:
    return rows_outcome(result, rows, "f")


def kept(found: RowsOutcome) -> dict[str, list[Any]]:
    return {route: rows["id"].to_pylist() for route, rows, _ in found.by_route()}


@each(
    ("result", "expected", "dropped"),
    [
        (None, {}, {NOTHING: 4}),
        (Drop("short"), {}, {"short": 4}),
        (table(1, 2, 3, 4), {"": [1, 2, 3, 4]}, {}),
        (table(1, 2, 3), {"": [1, 2, 3]}, {NOTHING: 1}),
        (table(), {}, {NOTHING: 4}),
        (Route("en", table(1, 2, 3)), {"en": [1, 2, 3]}, {NOTHING: 1}),
        (Route("en", table()), {}, {NOTHING: 4}),
    ],
)
def test_a_batch_goes_one_way(result: Any, expected: dict[str, list[int]], dropped: dict[str, int]) -> None:
    found = outcome(result)
    assert (found.rows, kept(found), found.dropped, found.rejected) == (4, expected, dropped, [])


FATES = st.sampled_from(["kept", "en", "de", "short", "long", "bad", "worse", "bad and short", "short and en"])


@settings(deadline=None, max_examples=40)
@given(st.lists(FATES, min_size=1, max_size=12), st.sampled_from(["masks", "names"]), st.booleans())
def test_each_row_goes_the_way_that_is_said_of_it(fates: list[str], given_as: str, told: bool) -> None:
    """A row that is rejected is not dropped, and one that is dropped or rejected is not written."""

    def said(*names: str) -> Any:
        chosen = [next((name for name in names if name in fate.split(" and ")), None) for fate in fates]
        if given_as == "names":
            return pa.array(chosen, pa.string())
        return {name: [one == name for one in chosen] for name in names}

    reject = said("bad", "worse")
    if told and given_as == "masks":
        reject = {
            name: pa.array([f"{name}!" if is_so else None for is_so in mask], pa.string())
            for name, mask in reject.items()
        }
    rows = table(*range(len(fates)))
    found = outcome(Rows(rows, drop=said("short", "long"), reject=reject, route=said("en", "de")), len(fates))
    rejected: list[tuple[int, Reject]] = []
    dropped, written = Counter[str](), dict[str, list[int]]()
    for number, fate in enumerate(fates):
        names = fate.split(" and ")
        if names[0] in ("bad", "worse"):
            error = f"{names[0]}!" if told and given_as == "masks" else ""
            rejected.append((number, Reject(names[0], error)))
        elif names[0] in ("short", "long"):
            dropped[names[0]] += 1
        else:
            written.setdefault("" if fate == "kept" else fate, []).append(number)
    assert (kept(found), found.dropped, found.rejected) == (written, dropped, rejected)


@settings(deadline=None, max_examples=40)
@given(st.lists(st.integers(0, 5), max_size=10).map(sorted), st.sets(st.integers(0, 5)), st.sets(st.integers(0, 5)))
def test_rows_go_the_way_of_those_that_they_were_made_of(of: list[int], dropped: set[int], rejected: set[int]) -> None:
    found = outcome(
        Rows(
            table(*range(len(of))),
            of=of if of else pa.array([], pa.int8()),
            drop={"short": [row in dropped for row in range(6)]},
            reject={"bad": [row in rejected for row in range(6)]},
        ),
        6,
    )
    written = [number for number, row in enumerate(of) if row not in dropped | rejected]
    assert kept(found) == ({"": written} if written else {})
    assert found.rejected == [(row, Reject("bad")) for row in sorted(rejected)]
    none = set(range(6)) - dropped - rejected - set(of)
    assert found.dropped == +Counter({"short": len(dropped - rejected), NOTHING: len(none)})


def test_of_several_masks_the_first_that_is_true_counts() -> None:
    every, first = [True] * 4, [True, False, False, False]
    assert outcome(Rows(table(1, 2, 3, 4), drop={"a": first, "b": every})).dropped == {"a": 1, "b": 3}
    assert outcome(Rows(table(1, 2, 3, 4), drop={"b": every, "a": first})).dropped == {"b": 4}


@each(
    "names",
    [
        ["a", None, "b", "a"],
        np.array(["a", None, "b", "a"], object),
        pa.chunked_array([["a", None], ["b", "a"]]),
        pa.array(["a", None, "b", "a"], pa.large_string()),
        pa.array(["a", None, "b", "a"], pa.string_view()),
        pa.array(["a", None, "b", "a"]).dictionary_encode(),
    ],
)
def test_names_are_texts_of_any_library(names: Any) -> None:
    found = outcome(Rows(table(1, 2, 3, 4), route=names))
    assert kept(found) == {"a": [1, 4], "": [2], "b": [3]}
    assert outcome(Rows(table(1, 2, 3, 4), drop=names)).dropped == {"a": 2, "b": 1}


def test_texts_say_what_is_wrong_of_rejected_rows_alone() -> None:
    for texts, found in ((["x", "y", "x", "y"], "string"), ([None] * 4, r"nulls in it \(4\); use fill_null")):
        with pytest.raises(FunctionError, match=rf"f: Rows: drop 'a': expected a mask .*, found {found}"):
            outcome(Rows(table(1, 2, 3, 4), drop={"a": texts}))
        with pytest.raises(FunctionError, match="f: Rows: route 'a': expected a mask"):
            outcome(Rows(table(1, 2, 3, 4), route={"a": texts}))
    assert outcome(Rows(table(1, 2, 3, 4), reject={"a": ["x", None, "y", None]})).rejected == [
        (0, Reject("a", "x")),
        (2, Reject("a", "y")),
    ]


def test_no_names_say_nothing_of_any_row() -> None:
    found = outcome(Rows(table(1, 2, 3, 4), drop=[None] * 4, reject={}, route=pa.nulls(4)))
    assert (kept(found), found.dropped, found.rejected) == ({"": [1, 2, 3, 4]}, {}, [])


def test_a_batch_may_have_as_many_names_as_a_task() -> None:
    require_few(MOST_NAMES, "drop", "f")
    with pytest.raises(CategoryError, match="names of drop in f"):
        require_few(MOST_NAMES + 1, "drop", "f")
    with pytest.raises(CategoryError, match="names of route in f"):
        outcome(Rows(table(*range(200)), route=[str(number) for number in range(200)]), 200)


def test_positions_may_be_the_first_and_the_last_row_and_repeat() -> None:
    found = outcome(Rows(table(1, 2, 3, 4), of=[0, 0, 4, 4]), 5)
    assert (kept(found), found.dropped) == ({"": [1, 2, 3, 4]}, {NOTHING: 3})
    assert outcome(Rows(table(), of=pa.array([], pa.int64())), 5).dropped == {NOTHING: 5}


def test_lists_of_nothing_say_nothing() -> None:
    """As a function makes them for a batch of which no row is left: Arrow gives an empty list no type."""
    found = outcome(Rows(table(), of=[], route={"en": []}, drop={"a": [True, False, False, False]}))
    assert (kept(found), found.dropped) == ({}, {"a": 1, NOTHING: 3})
    assert kept(outcome(Rows(table(), of=[], route=[]))) == {}
    with pytest.raises(FunctionError, match=r"of: expected an integer for each row \(1\), found 0"):
        outcome(Rows(table(1), of=[]))
    with pytest.raises(FunctionError, match=r"of: expected an integer for each row \(0\), found 1"):
        outcome(Rows(table(), of=[0]))
    with pytest.raises(FunctionError, match=r"route 'en': expected one value for each row \(0\), by position, found 1"):
        outcome(Rows(table(), of=[], route={"en": [True]}))
