"""The keys of records: equal for records that are equal, and for no others."""

from __future__ import annotations

import json
import math
import pickle
from collections import OrderedDict
from typing import Any, get_args

import numpy as np
import pytest

from ledgerbeam.errors import FunctionError, RecordError
from ledgerbeam.io import JsonlFormat
from ledgerbeam.io.exchange.order import KeyOrder, Scheme
from ledgerbeam.io.lines.rows import ByteRows
from ledgerbeam.io.tar.sample import Sample
from ledgerbeam.ledger import Source, Task
from ledgerbeam.sketches import merging
from ledgerbeam.sources.forms import PlacedPart, PlacedRecords
from ledgerbeam.transforms.exchange.keys import WITHOUT_KEY, RecordKeys, SplitRecords, part_of
from tests.cases import each

CONTENT = RecordKeys("content")


def field_of(record: Any, name: str) -> Any:
    return RecordKeys("key", (name,)).value(record)


def placed(values: list[Any], url: str = "/data/in/a.parquet", first: int = 5) -> PlacedRecords:
    numbers = np.arange(first, first + len(values), dtype=np.uint64)
    return PlacedRecords([PlacedPart(url, numbers, values)])


def lines(*data: bytes) -> PlacedRecords:
    return PlacedRecords(
        [PlacedPart("/data/in/a.jsonl", np.arange(len(data), dtype=np.uint64), None, ByteRows.of(data))]
    )


def test_records_that_differ_in_what_json_lacks_are_not_equal() -> None:
    values = [None, math.nan, math.inf, -math.inf, 0, "NaN", 2**70, [math.nan], [None], 2**64, float(2**64)]
    records = [{"a": value} for value in values] + [{"a": 2**70, "b": value} for value in (None, math.nan)]
    found = [CONTENT.key(record) for record in records]
    assert len(set(found)) == len(records)
    assert {len(key) for key in found} == {16}
    assert CONTENT.key({"a": float("nan")}) == CONTENT.key({"a": -math.nan})


def test_the_order_of_fields_is_no_content() -> None:
    for value in (1, math.nan, 2**70, {"d": 1, "c": [{"f": math.inf, "e": 2**70}]}):
        assert CONTENT.key({"a": value, "b": 2}) == CONTENT.key({"b": 2, "a": value})
    assert CONTENT.key({"a": {"d": math.nan, "c": 1}}) == CONTENT.key({"a": {"c": 1, "d": math.nan}})
    assert CONTENT.key({"a": {"d": 2**70, "c": 1}}) == CONTENT.key({"a": {"c": 1, "d": 2**70}})


def test_samples_of_the_same_members_are_equal_whatever_they_are_called() -> None:
    one, other = Sample("1", {"txt": b"a", "cls": b"0"}), Sample("2", {"cls": b"0", "txt": b"a"})
    assert CONTENT.key(one) == CONTENT.key(other)
    others = [{"txt": b"a"}, {"txt": b"a0", "cls": b""}, {"txt": b"a", "cl\udcff": b"0"}, {"cls": b"a", "txt": b"0"}]
    found = {CONTENT.key(sample) for sample in (one, *(Sample("1", members) for members in others))}
    assert len(found) == 5
    assert CONTENT.key(Sample("1", {})) != CONTENT.key([])


RECORD = {"a": 1, "b": {"c": {"d": 2}, "e": None}, "b.e": 3, "f": [4]}


@each(
    ("name", "value"),
    [("a", 1), ("b.c.d", 2), ("b.e", 3), ("b.c.x", None), ("a.b", None), ("x", None), ("x.y", None), ("f.0", None)],
)
def test_a_field_is_the_one_of_this_very_name_or_a_value_inside(name: str, value: Any) -> None:
    assert field_of(RECORD, name) == value
    assert field_of({}, name) is field_of([RECORD], name) is field_of(None, name) is None


def test_null_in_a_field_is_found_before_values_inside() -> None:
    assert field_of({"a.b": None, "a": {"b": 1}}, "a.b") is None


def test_a_sample_has_its_key_its_members_and_what_is_in_members_of_json() -> None:
    sample = Sample("k1", {"json": b'{"a": {"b": 7}, "w": 36893488147419103232}', "seg.json": b"[1]", "txt": b"t"})
    found = {name: field_of(sample, name) for name in ("json.a.b", "json.w", "json.x", "seg.json", "txt", "cls")}
    assert found == {"json.a.b": 7, "json.w": 2**65, "json.x": None, "seg.json": b"[1]", "txt": b"t", "cls": None}
    assert field_of(sample, "__key__") == "k1"
    assert field_of(sample, "seg.json.a") is None
    with pytest.raises(RecordError, match="expected JSON in the member 'txt', found"):
        field_of(sample, "txt.a")
    with pytest.raises(RecordError, match=r"expected JSON in the member 'txt', found"):
        field_of(Sample("k", {"a.txt": b"{"}), "a.txt.b.c")


def test_keys_are_ordered_as_asked_for() -> None:
    rows = [{"k": value} for value in (2, None, 1, "a")]
    up, down = RecordKeys("key", ("k",)), RecordKeys("key", ("k",), order=KeyOrder(descending=True, nulls="first"))
    assert up.of(placed(rows)) == [KeyOrder().encode(row["k"]) for row in rows]
    assert sorted(rows, key=down.key) == [rows[1], rows[3], rows[0], rows[2]]
    assert up.value(rows[0]) == 2


def test_several_fields_make_one_key() -> None:
    keys = RecordKeys("key", ("a", "b.c.d"))
    assert keys.value(RECORD) == (1, 2)
    assert keys.key(RECORD) == KeyOrder().encode((1, 2))


def test_a_hash_stands_before_its_key() -> None:
    keys = RecordKeys("hash", ("k",))
    found = keys.of(placed([{"k": 1}, {"k": 2}, {"k": 1}, {}]))
    assert found[0] == found[2]
    assert [key[8:] for key in found] == [KeyOrder().encode(value) for value in (1, 2, 1, None)]
    assert len({key[:8] for key in found}) == 3


def test_null_is_no_key_of_a_digest_and_a_part_of_one_is() -> None:
    one, both = RecordKeys("digest", ("k",)), RecordKeys("digest", ("k", "l"))
    found = one.of(placed([{"k": 1}, {"k": None}, {}, {"k": 1.0}, {"k": "1"}, {"k": 0}, {"k": ""}, {"k": False}]))
    assert found[0] == found[3]
    assert [len(key) for key in found] == [16, 0, 0, 16, 16, 16, 16, 16]
    assert len(set(found)) == 6
    assert [len(both.key(row)) for row in ({"k": 1, "l": 2}, {"k": 1}, {"l": 0}, {}, {"k": None})] == [16, 16, 16, 0, 0]
    assert both.key({"k": 1}) != both.key({"l": 1})


def test_null_is_a_key_of_an_order_and_matches_nothing() -> None:
    for row in ({}, {"k": None}):
        assert RecordKeys("key", ("k",)).key(row) == KeyOrder().encode(None)
        assert RecordKeys("hash", ("k",)).key(row)[8:] == KeyOrder().encode(None)
        assert RecordKeys("match", ("k",)).key(row) == b""
    assert RecordKeys("match", ("k",)).key({"k": 0}) == RecordKeys("hash", ("k",)).key({"k": 0})
    both = RecordKeys("match", ("k", "l"))
    assert [bool(both.key(row)) for row in ({"k": 1, "l": 2}, {"k": 1}, {"l": 2}, {})] == [True, False, False, False]
    beside = b'{"k":null,"l":{}}'  # what is no key matters only where something may match
    assert both.of(lines(b'{"k":1,"l":2}', beside)) == [both.key({"k": 1, "l": 2}), b""]


def test_the_key_of_a_record_without_any_field_is_known_before_any_is_read() -> None:
    """Records that have it may be told apart from all others by it."""
    for fields in (("k",), ("k", "l")):
        for scheme in get_args(Scheme):
            keys = RecordKeys(scheme, fields)
            orders = scheme in ("key", "hash", "digest", "match")
            assert keys.null == (keys.key({}) if orders else None), (scheme, fields)
    assert RecordKeys("key", function=f"{__name__}:by_length").null == KeyOrder().encode(None)
    down = RecordKeys("key", ("k",), order=KeyOrder(descending=True, nulls="first"))
    assert down.null == down.key({})


def test_keys_that_a_user_names_ascend_unless_told_otherwise() -> None:
    assert RecordKeys.of_user("a,b.c", "hash") == RecordKeys("hash", ("a", "b.c"))
    down = KeyOrder(descending=True)
    assert RecordKeys.of_user(["a"], "key", down) == RecordKeys("key", ("a",), order=down)


def test_a_record_without_a_key_is_named() -> None:
    keys = RecordKeys("key", ("k",))
    with pytest.raises(RecordError, match=r"^/data/in/a\.parquet: record 6: expected null, true, .*, found a list;"):
        keys.of(placed([{"k": 1}, {"k": [2]}, {"k": [3]}]))
    with pytest.raises(RecordError, match=r"^/data/in/a\.jsonl: record 1, bytes ") as raised:
        keys.of(lines(b'{"k": 1}', b'{"k": }'))
    assert str(raised.value).count("/data/in/a.jsonl") == 1


def by_length(record: dict[str, Any]) -> Any:
    if record["k"] is None:
        raise KeyError("k")
    if record["k"] == "said":
        raise RecordError("said by itself")
    if record["k"] == "stop":
        raise KeyboardInterrupt
    return [len(record["k"]), record["k"]] if record["k"] else record["k"]


def test_a_function_makes_keys_and_a_list_is_several() -> None:
    keys = RecordKeys("key", function=f"{__name__}:by_length")
    keys.set_up()
    assert keys.value({"k": "abc"}) == (3, "abc")
    assert keys.of(placed([{"k": "abc"}, {"k": ""}])) == [KeyOrder().encode((3, "abc")), KeyOrder().encode("")]
    with pytest.raises(FunctionError, match=r"^/data/in/a\.parquet: record 6: .*by_length.* raised KeyError: 'k'"):
        keys.of(placed([{"k": "a"}, {"k": None}]))
    with pytest.raises(RecordError, match=r"^/data/in/a\.parquet: record 5: said by itself$"):
        RecordKeys("key", function=keys.function).of(placed([{"k": "said"}]))
    with pytest.raises(KeyboardInterrupt):
        keys.key({"k": "stop"})
    with pytest.raises(FunctionError):
        RecordKeys("key", function=f"{__name__}:none_such").set_up()


def test_keys_travel_without_what_a_process_has_made_of_them() -> None:
    keys = RecordKeys("digest", ("a", "b"), seed=3, base="/data/")
    keys.set_up()
    again = pickle.loads(pickle.dumps(keys))
    assert "_call" in keys.__dict__
    assert "_call" not in again.__dict__
    assert again == keys
    assert again.key({"a": 1}) == keys.key({"a": 1})


def test_a_place_is_the_file_and_the_number_there() -> None:
    keys = RecordKeys("place")
    found = keys.of(PlacedRecords([*placed([0, 0], "/b", 255).parts, *placed([0], "/a", 2**33).parts]))
    assert found == [keys.place_key(*place) for place in (("/b", 255), ("/b", 256), ("/a", 2**33))]
    assert sorted(found) == [found[2], found[0], found[1]]
    assert keys.place_key("/a", 0) < keys.place_key("/a", 2**33) < keys.place_key("/a\0", 0) < keys.place_key("/b", 1)


def test_a_shuffle_is_decided_by_the_seed_the_name_below_the_base_and_the_number() -> None:
    def keys(url: str, seed: int = 1, base: str | None = "/data/", first: int = 0) -> list[bytes]:
        return list(RecordKeys("shuffle", seed=seed, base=base).of(placed([0] * 3, url, first)))

    one = keys("/data/in/a")
    assert len(set(one)) == 3
    assert {len(key) for key in one} == {8}
    assert keys("/data/in/a", first=1)[:2] == one[1:]
    assert keys("/moved/in/a", base="/moved/") == one
    for other in (keys("/data/in/a", 2), keys("/data/in/b"), keys("/data/in/a", base=None)):
        assert not set(other) & set(one)
    assert keys("in/a", base=None) == one


def test_keys_are_the_same_in_every_version() -> None:
    """Else an exchange that was begun by another version would be continued in another order."""
    found = RecordKeys("shuffle", base="/data/").of(placed([0, 0], "/data/in/a", 0))
    assert [key.hex() for key in found] == ["e813a7a163748760", "7eed38361659f05d"]
    row = {"k": "a"}
    assert RecordKeys("hash", ("k",)).key(row).hex() == "381bee99710fa59130610001"
    assert RecordKeys("digest", ("k",)).key(row).hex() == "078eb771509d4b72a9cbe512fee2df46"
    assert CONTENT.key(row).hex() == "5790f025e6d46ce21cd8b6e7f763d3db"
    assert CONTENT.key({"é": [b"x", 1.5, math.nan]}).hex() == "6b593075781d654ae4da460613d69af7"
    assert CONTENT.key(Sample("1", {"a": b"x"})).hex() == "d1044efa41197a773d67f21c73a17465"
    assert RecordKeys("place").place_key("/a", 1).hex() == "302f6100010000000000000001"


class Described:
    """A record of another type, which says what it is as JSON."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def as_json(self) -> Any:
        return self.value


def test_a_field_of_a_record_of_another_type_is_that_of_its_json() -> None:
    assert field_of(OrderedDict(a={"b": 2}), "a.b") == 2
    assert field_of({"a": OrderedDict(b=2)}, "a.b") == 2
    assert field_of(Described({"a": {"b": 2}}), "a.b") == 2
    assert field_of(Described(["a"]), "a") is None
    assert CONTENT.key(Described({"b": 1, "a": 2})) == CONTENT.key({"a": 2, "b": 1})


KEYS = RecordKeys("hash", ("k",))
PARTS = (("train", 3), ("test", 1))
ROWS: list[dict[str, Any]] = [{"k": n % 11, "n": n} for n in range(40)] + [{"n": 40}, {"k": None, "n": 41}]
TASK = Task(Source("/in/a.jsonl", 10, "1"), 0, len(ROWS)).replace(records=ROWS)


def part_name(row: dict[str, Any]) -> str:
    return PARTS[part_of(KEYS.key(row), [share for _, share in PARTS])][0]


@pytest.mark.parametrize("output", ["jsonl", JsonlFormat()])
def test_each_record_goes_to_the_part_of_its_key(output: Any) -> None:
    done = SplitRecords(KEYS, PARTS, "json", output)(TASK)
    assert isinstance(done, Task)
    found = {
        name: [json.loads(line) for line in lines.data.splitlines()] for name, lines in done.records.datasets.items()
    }
    assert found == {name: [row for row in ROWS if part_name(row) == name] for name, _ in PARTS}
    assert all(found.values())
    assert done.records.counts.written == {name: len(rows) for name, rows in found.items()}


def test_records_become_what_the_format_holds() -> None:
    done = SplitRecords(KEYS, PARTS, "sample", "tar")(TASK)
    assert isinstance(done, Task)
    for name, _ in PARTS:
        rows = [json.loads(sample["json"]) for sample in done.records.datasets[name]]
        assert rows == [row for row in ROWS if part_name(row) == name]


@pytest.mark.parametrize(("rows", "number"), [(ROWS, 2), (ROWS[:9], 0), (ROWS[-1:], 1)])
def test_records_without_a_key_are_counted(rows: list[Any], number: int) -> None:
    done = SplitRecords(KEYS, PARTS, "json", "jsonl")(TASK.replace(records=rows))
    assert isinstance(done, Task)
    found = done.records.statistics
    assert set(found) == ({WITHOUT_KEY} if number else set())
    for kind, data in found.values():
        merged = merging(kind)
        merged.take(data)
        assert merged.value() == number


def test_a_key_function_that_there_is_not_is_found_before_the_first_task() -> None:
    with pytest.raises(FunctionError, match="none_such"):
        SplitRecords(RecordKeys("hash", function="none_such:key"), PARTS, "json", "jsonl").set_up()
