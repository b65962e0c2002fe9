"""What a task's records become on their way to a run file, and in which order they come out of it again."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ledgerbeam import stats
from ledgerbeam.errors import FunctionError, IndexMismatchError, SourceError, StorageError, UsageError
from ledgerbeam.io import Sample
from ledgerbeam.io.exchange.order import KeyOrder, Nulls
from ledgerbeam.io.exchange.run_file import STORED, decode_block, parse_footer, parse_table, tail_bytes
from ledgerbeam.io.exchange.slices import Partition
from ledgerbeam.io.formats.format import StreamSpan
from ledgerbeam.io.formats.registry import format_named
from ledgerbeam.io.lines.jsonl import JsonLinesBuilder
from ledgerbeam.io.lines.rows import ByteRows
from ledgerbeam.io.tar.writer import encode_tar
from ledgerbeam.ledger import FailedTask, NoneTask, Source, Task
from ledgerbeam.ledger.model.accounts import RecordCounts
from ledgerbeam.sources.forms import PlacedForm, PlacedPart, PlacedRecords, RecordBlocks
from ledgerbeam.sources.kind import Unreadable
from ledgerbeam.transforms import ProcessTask, Scatter
from ledgerbeam.transforms.chain.base import ChainValues
from ledgerbeam.transforms.exchange.gather import KeepRecords
from ledgerbeam.transforms.exchange.keys import WITHOUT_KEY, RecordKeys
from ledgerbeam.transforms.exchange.scatter import RunEncoder, ScatteredRecords, ScatterRecords, ScatterResults
from ledgerbeam.transforms.mapping.outcomes import TaskResults
from tests.cases import each
from tests.memory import peak_of
from tests.pipelines.exchanges.stages import Stages, by_file, moved_of
from tests.test_statistics import value_of


def task_of(*files: list[Any]) -> Task:
    parts = [PlacedPart(f"/in/{n}", np.arange(7, 7 + len(some), dtype=np.uint64), some) for n, some in enumerate(files)]
    return Task(Source("/in/0", 10, "1"), 7, 9, ((0, 1),), PlacedRecords(parts))


ROWS: list[dict[str, Any]] = [{"k": 2, "s": 5}, {"k": None, "s": 9}, {"k": 1, "s": 4}]


def scattered(work: ScatterRecords, task: Task) -> ScatteredRecords:
    done = work(task)
    assert isinstance(done, Task)
    assert done.lineage == task.lineage
    found = moved_of(done)
    assert isinstance(found, ScatteredRecords)
    assert len(found) == len(found.keys) == len(found.payloads) == len(found.numbers)
    return found


def test_records_go_along_with_their_keys_and_places() -> None:
    found = scattered(ScatterRecords(RecordKeys("key", ("k",))), task_of(ROWS[:1], ROWS[1:]))
    assert found.keys == [KeyOrder().encode(row["k"]) for row in ROWS]
    assert found.payloads == [b'{"k":2,"s":5}', b'{"k":null,"s":9}', b'{"k":1,"s":4}']
    assert found.numbers.tolist() == [7, 2**40 + 7, 2**40 + 8]


def test_what_has_no_key_goes_nowhere() -> None:
    keys = RecordKeys("digest", ("k",))
    found = scattered(ScatterRecords(keys), task_of(ROWS))
    assert found.keys == [keys.key(ROWS[0]), keys.key(ROWS[2])]
    assert found.payloads == [b'{"k":2,"s":5}', b'{"k":1,"s":4}']
    assert found.numbers.tolist() == [7, 9]
    without = task_of(ROWS[1:2])
    none = RecordCounts(1, 0, {WITHOUT_KEY: 1})
    assert ScatterRecords(keys)(without) == NoneTask(without, counts=none)


def test_records_without_a_key_are_counted_whether_or_not_they_go_along() -> None:
    done = ScatterRecords(RecordKeys("digest", ("k",)))(task_of(ROWS))
    assert isinstance(done, Task)
    results: Any = done.records
    assert results.counts == RecordCounts(3, 2, {WITHOUT_KEY: 1}, {}, {"": 2})
    for keys, number in (
        (RecordKeys("digest", ("k",)), 1),
        (RecordKeys("key", ("k",), order=KeyOrder(descending=True)), 1),
        (RecordKeys("hash", ("none",)), 3),
        (RecordKeys("hash", ("none", "nor")), 3),
        (RecordKeys("hash", ("none", "s")), 0),
        (RecordKeys("content"), 0),
    ):
        with stats.collecting() as collected:
            ScatterRecords(keys)(task_of(ROWS))
        found = {name: value_of(collected, name) for name in collected.statistics()}
        assert found == ({WITHOUT_KEY: number} if number else {})


def test_places_alone_go_with_what_their_scores_are() -> None:
    score = RecordKeys("key", ("s",), order=KeyOrder(descending=True))
    bare = scattered(ScatterRecords(RecordKeys("digest", ("k",)), with_records=False), task_of(ROWS))
    assert bare.payloads == [b"", b""]
    scored = scattered(ScatterRecords(RecordKeys("digest", ("k",)), with_records=False, score=score), task_of(ROWS))
    assert scored.payloads == [score.key(ROWS[0]), score.key(ROWS[2])]
    assert scored.payloads[0] < scored.payloads[1]


def test_a_task_without_records_is_done() -> None:
    for task in (task_of(), task_of([], [])):
        assert ScatterRecords(RecordKeys("key", ("k",)))(task) == NoneTask(task)


def test_a_task_with_a_record_that_has_no_key_fails() -> None:
    task = task_of([{"k": 1}, {"k": [1]}])
    done = ScatterRecords(RecordKeys("key", ("k",)))(task)
    assert isinstance(done, FailedTask)
    assert done.task == task
    assert done.reason == "RecordError"
    assert done.error.startswith("/in/0: record 8: expected null, true, false,")


def test_functions_of_keys_and_scores_are_imported_before_the_first_task() -> None:
    good, bad = RecordKeys("key", ("k",)), RecordKeys("key", function="none_such:function")
    ScatterRecords(good).set_up()
    for work in (ScatterRecords(bad), ScatterRecords(good, with_records=False, score=bad)):
        for one in (work, ScatterResults(work.keys, work.with_records, work.score)):
            with pytest.raises(FunctionError, match="none_such"):
                one.set_up()


def test_a_run_file_has_as_many_records_as_are_told() -> None:
    keys = [KeyOrder().encode(key) for key in (5, 1, 3, 1)]
    payloads = ByteRows.of([b"a", b"b", b"c", b"d"])
    records = ScatteredRecords(ByteRows.of(keys), np.arange(4, dtype=np.uint64), payloads)
    (file,) = RunEncoder([KeyOrder().encode(3)], 1).encode(records)
    assert (file.ending, file.records) == (".run", 4)
    entries = parse_footer(file.data[-tail_bytes(2) :], len(file.data), 2, "/r.run")
    assert entries["records"].tolist() == entries["blocks"].tolist() == [2, 2]  # a block of its own for each
    start = int(entries[0]["start"])
    table = parse_table(file.data[start : start + int(entries[0]["table"])], entries[0], "/r.run")
    blocks = [decode_block(file.data[table.starts[n] : table.starts[n + 1]], table, n, "/r.run") for n in range(2)]
    assert [(block.numbers.tolist(), list(block.payloads)) for block in blocks] == [([1], [b"b"]), ([3], [b"d"])]


def results_of(task: Task, by: str | None = "k") -> Any:
    keys = RecordKeys("place") if by is None else RecordKeys("key", (by,))
    return ScatterResults(keys)(task)


PLAIN = Task(Source("/in/0", 10, "1"), 7, 9, ((0, 1),))


def test_what_functions_have_made_is_numbered_in_its_task() -> None:
    found = results_of(PLAIN.replace(records=ROWS)).records
    assert found.keys == [KeyOrder().encode(row["k"]) for row in ROWS]
    assert (found.numbers.tolist(), found.payloads[0]) == ([0, 1, 2], b'{"k":2,"s":5}')
    empty = PLAIN.replace(records=[])
    assert [results_of(empty), results_of(empty, None)] == [NoneTask(empty)] * 2
    in_order = results_of(PLAIN.replace(records=ROWS), None).records
    assert in_order.keys == [RecordKeys("place").place_key("/in/0", 7)] * 3
    assert in_order.numbers.tolist() == [0, 1, 2]


def test_lines_that_functions_have_made_stay_as_they_are() -> None:
    lines = JsonLinesBuilder()
    lines.append(b'{"k": 2.50}\n', 0)
    lines.append(b'{"k":1}\n', 0)
    counts = RecordCounts(3, 2, {"odd": 1}, {}, {"": 2})
    done = results_of(PLAIN.replace(records=TaskResults({"": lines.finish()}, counts)))
    assert done.records.counts == counts
    assert list(done.records.datasets[""].payloads) == [b'{"k": 2.50}', b'{"k":1}']
    rejected = PLAIN.replace(records=TaskResults({}, RecordCounts(1, 0, {}, {"bad": 1})))
    assert results_of(rejected) == rejected


@each(
    ("record", "by", "said"),
    [
        ({"k": [1]}, "k", "list"),
        ({"k": 1, "x": {1}}, "k", "set"),
        ({"k": 1, "x": {1}}, None, "set"),
        (Unreadable("no JSON"), "k", "no JSON"),
        (Unreadable("no JSON"), None, "no JSON"),
    ],
)
def test_a_record_that_cannot_be_moved_fails_its_task_by_name(record: Any, by: str | None, said: str) -> None:
    failed = results_of(PLAIN.replace(records=[{"k": 1}, record]), by)
    assert isinstance(failed, FailedTask)
    assert f"{PLAIN.name}: record 1: " in failed.error
    assert said in failed.error


def test_what_functions_have_made_without_a_key_fails_its_task() -> None:
    failed = results_of(PLAIN.replace(records=TaskResults({"": [{"k": [1]}]}, RecordCounts(1, 1, {}, {}, {"": 1}))))
    assert isinstance(failed, FailedTask)
    assert failed.reason == "RecordError"


class Failing:
    """Records of a task that cannot be decoded: `Blocks`."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def decoded(self, *, each: bool = False) -> Iterator[list[Any]]:
        yield [{"k": 1}]
        raise self.error


@pytest.mark.parametrize("error", [SourceError("no"), IndexMismatchError("no"), StorageError("no")])
def test_records_that_cannot_be_read_fail_their_task(error: Exception) -> None:
    failed = results_of(PLAIN.replace(records=RecordBlocks([Failing(error)])))
    assert failed == FailedTask(failed.task, type(error).__name__, "no")
    assert failed.task.node == PLAIN.node


def test_records_that_nothing_was_made_of_keep_their_places() -> None:
    task = task_of(ROWS[:1], ROWS[1:])
    scatter = ScatterResults(RecordKeys("key", ("k",)))
    assert ProcessTask(scatter).takes_blocks
    expected = scattered(scatter, task)
    counts = RecordCounts(3, 3, {}, {}, {"": 3})
    for records in (task.records, TaskResults({"": task.records}, counts)):
        found = scattered(scatter, task.replace(records=records))
        assert (found.keys, found.payloads) == (expected.keys, expected.payloads)
        assert found.numbers.tolist() == expected.numbers.tolist()


def test_run_files_are_cut_as_the_pipeline_says() -> None:
    scatter = Scatter("runs", "id")
    partition = Partition.of_cuts([b"b", b"c"], 77)
    assert scatter.encoder(ChainValues(partition=partition)) == RunEncoder(partition.cuts(), 77, level=STORED)
    assert scatter.encoder(ChainValues()) == RunEncoder(Partition(1).cuts(), Partition(1).block_bytes, level=STORED)
    assert list(Partition(1).cuts()) == []


def test_a_task_of_lines_is_held_as_it_was_read_and_as_it_is_written_and_no_third_time() -> None:
    chance = np.random.default_rng(1)
    texts = [(chance.bytes(8).hex(), chance.bytes(1000).hex()) for _ in range(8000)]
    data = "".join(f'{{"k":"{key}","x":"{text}"}}\n' for key, text in texts).encode()
    jsonl: Any = format_named("jsonl")

    def work() -> int:
        span = StreamSpan(0, len(texts), 0, len(data))
        task = PLAIN.replace(records=PlacedForm().split(jsonl, data, "/in/a", span))
        (file,) = RunEncoder(()).encode(scattered(ScatterRecords(RecordKeys("key", ("k",))), task))
        return len(file.data)

    size, peak = peak_of(work)
    assert peak < 1.25 * size + 2**21  # the file grows by an eighth


@each(
    ("by", "values", "said"),
    [
        ("id", {"order": "digest"}, "expected order key or hash, nulls first or last, found 'digest', 'last'"),
        ("id", {"nulls": "none"}, "expected order key or hash, nulls first or last, found 'key', 'none'"),
        *(
            (None, values, "leave out order, descending, nulls and cuts")
            for values in ({"order": "hash"}, {"descending": True}, {"nulls": "first"}, {"cuts": ["a"]})
        ),
        *(
            ("id", {"order": "hash", **values}, "leave out descending, nulls and cuts")
            for values in ({"descending": True}, {"nulls": "first"}, {"cuts": ["a"]})
        ),
        *(
            ("id", values, "buckets, bucket_bytes and cuts; pass one of them")
            for values in (
                {"buckets": 2, "bucket_bytes": 5},
                {"buckets": 2, "cuts": ["a"]},
                {"bucket_bytes": 5, "cuts": ["a"]},
                {"buckets": 2, "bucket_bytes": 5, "cuts": ["a"]},
            )
        ),
        ([], {}, "Scatter: by: expected names of fields, found none|^by: expected names of fields, found none"),
        ("id", {"buckets": 0}, "buckets: expected from 1 to 10,000,000, found 0"),
        ("id", {"buckets": 10_000_001}, "buckets: expected from 1 to 10,000,000, found 10000001"),
        ("id", {"cuts": [{"a": 1}]}, "Scatter: cuts: expected null, true,"),
        ("id", {"cuts": ["a", "b", "a"]}, "cuts: expected each key once, found one twice"),
        ("id", {"cuts": [1, 1.0]}, "cuts: expected each key once, found one twice"),
    ],
)
def test_arguments_that_mean_nothing_together_are_refused(by: Any, values: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        Scatter("runs", by, **values)


def test_arguments_that_mean_something_are_taken_as_they_are() -> None:
    for buckets in (1, 10_000_000):
        assert Scatter("runs", "id", buckets=buckets).buckets == buckets
    plain = Scatter("runs")
    assert (plain.scheme, plain.keys, plain.cuts, plain.buckets, plain.bucket_bytes) == (
        "place",
        RecordKeys("place"),
        (),
        None,
        None,
    )
    assert Scatter("runs", bucket_bytes="2k").bucket_bytes == Scatter("runs", bucket_bytes=2048).bucket_bytes == 2048
    hashed = Scatter("runs", "a,b", order="hash")
    assert (hashed.scheme, hashed.keys) == ("hash", RecordKeys("hash", ("a", "b")))
    order = KeyOrder(descending=True, nulls="first")
    cut = Scatter("runs", ["a", "b"], descending=True, nulls="first", cuts=[("a", 1), ["b", None], ("c", 2)])
    assert cut.keys == RecordKeys("key", ("a", "b"), order=order)
    assert list(cut.cuts) == [order.encode(key) for key in (("c", 2), ("b", None), ("a", 1))]
    shown = [one.display_data()["by"] for one in (plain, hashed, Scatter("runs", "json:loads"))]
    assert shown == ["place", "a,b", "json:loads"]
    assert plain.display_data()["output"] == plain.output


def test_a_route_or_what_was_rejected_is_no_record_of_a_run_file() -> None:
    task = PLAIN.replace(records=TaskResults({"b": [1], "a": [2], "": [3]}, RecordCounts(3, 3)))
    failed = results_of(task)
    assert isinstance(failed, FailedTask)
    assert failed.reason == "UnsupportedShapeError"
    assert failed.error.startswith(f"{PLAIN.name}: expected records without a route")


VALUES = (
    st.none()
    | st.booleans()
    | st.integers(-5, 5)
    | st.floats(allow_nan=False, allow_infinity=False, width=16)
    | st.text("abé", max_size=3)
)
FILES = st.dictionaries(
    st.text("abc", min_size=1, max_size=2),
    st.lists(st.fixed_dictionaries({"k": VALUES, "t": st.text(max_size=30)}), max_size=15),
    min_size=1,
    max_size=4,
)
ANY = settings(max_examples=25)


def plain_key(row: dict[str, Any], *, descending: bool, nulls: Nulls) -> tuple[Any, ...]:
    """Return what sorts rows as the docs say, in another way."""
    value = row["k"]
    if value is None:
        return (-1 if nulls == "first" else 1, 0, 0)
    kind = 0 if isinstance(value, bool) else 1 if isinstance(value, int | float) else 2
    number = [value] if kind < 2 else [ord(letter) for letter in value]
    return (0, Reversed((kind, number)) if descending else (kind, number), 0)


class Reversed:
    """Sorts the other way round."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __lt__(self, other: Reversed) -> bool:
        return bool(other.value < self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Reversed) and bool(other.value == self.value)

    def __hash__(self) -> int:
        return 0


@ANY
@given(
    FILES,
    st.builds(KeyOrder, st.booleans(), st.sampled_from(["first", "last"])),
    st.lists(VALUES, max_size=4),
    st.sampled_from([None, 60, 10**6]),
    st.sampled_from([1, 200, 10**6]),
)
def test_sorted_is_what_plain_python_sorts(
    files: dict[str, list[Any]], order: KeyOrder, cuts: list[Any], pack_bytes: int | None, part_bytes: int
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        stages = Stages(
            Path(folder), RecordKeys("key", ("k",), order=order), sorted(set(map(order.encode, cuts))), part_bytes
        )
        stages.scatter(by_file(Path(folder) / "in", files), pack_bytes=pack_bytes)
        found = [task.records.data for task in stages.gather(KeepRecords("jsonl"))]
    rows = [row for name in sorted(files, key=lambda name: f"{name}.jsonl") for row in files[name]]
    expected = sorted(rows, key=lambda row: plain_key(row, descending=order.descending, nulls=order.nulls))
    assert [json.loads(line) for data in found for line in data.splitlines()] == expected


@ANY
@given(FILES, st.integers(0, 2**70), st.integers(1, 5), st.sampled_from([2, 100]))
def test_a_shuffle_depends_on_seed_names_and_numbers_alone(
    files: dict[str, list[Any]], seed: int, buckets: int, task_records: int
) -> None:
    found = []
    for cut, number in ((buckets, task_records), (3, 5)):
        with tempfile.TemporaryDirectory() as folder:
            keys = RecordKeys("shuffle", seed=seed, base=f"{folder}/in/")
            stages = Stages(Path(folder), keys, Partition(cut).cuts(), task_records=number)
            stages.scatter(by_file(Path(folder) / "in", files))
            found.append(stages.records())
    assert found[0] == found[1]
    assert sorted(map(json.dumps, found[0])) == sorted(json.dumps(row) for rows in files.values() for row in rows)


def test_a_shuffle_is_another_one_with_another_seed(tmp_path: Path) -> None:
    urls = by_file(tmp_path / "in", {"a": list(range(200)), "b": list(range(200, 400))})
    orders = []
    for seed in (1, 2):
        stages = Stages(tmp_path / str(seed), RecordKeys("shuffle", seed=seed), Partition(4).cuts())
        stages.folder.mkdir()
        stages.scatter(urls)
        orders.append(stages.records())
    one, other = orders
    assert sorted(one) == sorted(other) == list(range(400))
    assert one != other
    # Of a random permutation about half of all neighbours ascend, and a fourth of the first half stays there.
    assert 150 < sum(left < right for left, right in pairwise(one)) < 250
    assert 60 < sum(row < 200 for row in one[:200]) < 140


@ANY
@given(FILES, st.sampled_from([1, 200, 10**6]))
def test_records_in_their_places_stay_in_their_order(files: dict[str, list[Any]], part_bytes: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        keys = RecordKeys("place")
        urls = by_file(Path(folder) / "in", files)
        cuts = [keys.place_key(sorted(urls)[-1], 1)]
        stages = Stages(Path(folder), keys, cuts, part_bytes)
        stages.scatter(urls)
        found = stages.records()
    assert found == [row for name in sorted(files, key=lambda name: f"{name}.jsonl") for row in files[name]]


def test_lines_come_out_as_they_went_in(tmp_path: Path) -> None:
    lines = [
        b'{"k": 2, "a":1.0}',
        b' {"a":[1, 2],\t"k":1}\r',
        b'{"k":"\\u00e9"}',
        b"",
        b"  ",
        b'{"k": 18446744073709551616}',
    ]
    (tmp_path / "a.jsonl").write_bytes(b"\n".join(lines))
    stages = Stages(tmp_path, RecordKeys("key", ("k",)), [])
    stages.scatter([str(tmp_path / "a.jsonl")])
    data = b"".join(task.records.data for task in stages.gather(KeepRecords("jsonl")))
    assert data.split(b"\n") == [lines[1], lines[0], lines[5], lines[2], b""]
    numbers = [number for task in stages.tasks() for part in task.records.merged() for number in part.numbers]
    assert numbers == [1, 0, 5, 2], "blank lines count"


def test_samples_stay_samples_and_can_become_lines(tmp_path: Path) -> None:
    samples = [Sample(f"s/{n}", {"json": b'{"n":  %d}' % (7 - n), "wav": bytes([n, 255])}) for n in range(7)]
    data, _ = encode_tar(samples)
    (tmp_path / "a.tar").write_bytes(data)
    stages = Stages(tmp_path, RecordKeys("key", ("json.n",)), [], part_bytes=10**6)
    stages.scatter([str(tmp_path / "a.tar")])
    assert [(found.key, dict(found)) for found in stages.records()] == [
        (one.key, dict(one)) for one in reversed(samples)
    ]
    (done,) = stages.gather(KeepRecords("jsonl"))
    rows = [json.loads(line) for line in done.records.datasets[""].data.splitlines()]
    assert rows[0] == {"__key__": "s/6", "json": {"n": 1}, "wav": {"__base64__": "Bv8="}}


def spoil(record: dict[str, Any]) -> int:
    return int(record.pop("k"))


def test_a_function_that_changes_its_record_changes_nothing() -> None:
    part = PlacedPart("x.parquet", np.arange(1, dtype=np.uint64), [{"k": 3, "v": 1}])
    task = Task(Source("x.parquet", 1, "v"), 0, 1, records=PlacedRecords([part]))
    done = ScatterRecords(RecordKeys("key", function=f"{__name__}:spoil"))(task)
    assert isinstance(done, Task)
    assert done.records.payloads == [b'{"k":3,"v":1}']
