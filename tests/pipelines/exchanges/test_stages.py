"""What the tasks of an exchange make of records is what plain Python makes of them."""

from __future__ import annotations

import json
import tempfile
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ledgerbeam.errors import FunctionError, RecordError
from ledgerbeam.io import Sample
from ledgerbeam.io.exchange.order import KeyOrder, Nulls
from ledgerbeam.io.exchange.slices import Partition
from ledgerbeam.io.lines.jsonl import HeldLines
from ledgerbeam.io.tar.writer import encode_tar
from ledgerbeam.ledger import FailedTask, Source, Task
from ledgerbeam.sources.forms import PlacedPart, PlacedRecords
from ledgerbeam.transforms.exchange.gather import KeepRecords
from ledgerbeam.transforms.exchange.keys import RecordKeys
from ledgerbeam.transforms.exchange.scatter import ScatterRecords
from tests.cases import each
from tests.pipelines.exchanges.stages import Stages, by_file

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
ANY = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=25)


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


@each(
    ("record", "name", "value"),
    [
        ({"a": {"b": 1}}, "a.b", 1),
        ({"a.b": 2, "a": {"b": 1}}, "a.b", 2),
        ({"a": 1}, "a.b", None),
        ({"a": None}, "a.b", None),
        ({}, "a", None),
        ([1], "a", None),
        (7, "a", None),
        (Sample("k", {"txt": b"x"}), "__key__", "k"),
        (Sample("k", {"txt": b"x"}), "txt", b"x"),
        (Sample("k", {"a.json": b'{"b": {"c": 3}}'}), "a.json.b.c", 3),
        (Sample("k", {}), "json.n", None),
    ],
)
def test_a_field_is_found_or_null(record: Any, name: str, value: Any) -> None:
    assert RecordKeys("key", (name,)).value(record) == value


def placed(*lines: bytes) -> Task:
    part = PlacedPart("x.jsonl", np.arange(10, 10 + len(lines), dtype=np.uint64), None, HeldLines.joined(lines))
    return Task(Source("x.jsonl", 1, "v"), 10, 10 + len(lines), records=PlacedRecords([part]))


def spoil(record: dict[str, Any]) -> int:
    return int(record.pop("k"))


def raises(record: Any) -> Any:
    if record["k"] == 1:
        raise KeyError("no key")
    return record["k"]


@pytest.mark.parametrize(
    ("keys", "lines", "reason", "said"),
    [
        (RecordKeys("key", ("k",)), [b'{"k":1}', b'{"k":[]}'], RecordError, "x.jsonl: record 11: expected null, true"),
        (RecordKeys("key", ("k",)), [b'{"k":1}', b"{"], RecordError, "x.jsonl: record 11, bytes"),
        (RecordKeys("key", function=f"{__name__}:raises"), [b'{"k":1}'], FunctionError, "x.jsonl: record 10: "),
    ],
)
def test_a_record_without_a_key_fails_its_task_by_name(
    keys: RecordKeys, lines: list[bytes], reason: type[Exception], said: str
) -> None:
    done = ScatterRecords(keys)(placed(*lines))
    assert isinstance(done, FailedTask)
    assert done.reason == reason.__name__
    assert done.error.startswith(said)


def test_a_function_that_changes_its_record_changes_nothing() -> None:
    part = PlacedPart("x.parquet", np.arange(1, dtype=np.uint64), [{"k": 3, "v": 1}])
    task = Task(Source("x.parquet", 1, "v"), 0, 1, records=PlacedRecords([part]))
    done = ScatterRecords(RecordKeys("key", function=f"{__name__}:spoil"))(task)
    assert isinstance(done, Task)
    assert done.records.payloads == [b'{"k":3,"v":1}']


def test_cuts_survive_the_parameters_of_a_job() -> None:
    cuts = [b"\x00a", b"b", b"b\xff"]
    partition = Partition.of_cuts(cuts)
    assert Partition.recorded(json.loads(json.dumps(partition.parameters()))) == partition
    assert list(partition.cuts()) == cuts
    assert Partition.recorded({}) is None
    assert [len(Partition(number).cuts()) for number in (1, 7)] == [0, 6]
