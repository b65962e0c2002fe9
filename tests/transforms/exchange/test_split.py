"""Records by parts: each goes to the part of its key, as what the format holds, and is counted if it has none."""

from __future__ import annotations

import json
from itertools import accumulate
from typing import Any

import pytest

from ledgerbeam.errors import FunctionError
from ledgerbeam.io import JsonlFormat
from ledgerbeam.ledger import Source, Task
from ledgerbeam.sketches import merging
from ledgerbeam.transforms.exchange.keys import HASH_BYTES, WITHOUT_KEY, RecordKeys, SplitRecords, part_of

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


@pytest.mark.parametrize("shares", [[1, 1], [3, 1], [1, 1, 2], [8]])
def test_of_all_keys_a_part_has_its_share(shares: list[int]) -> None:
    """Where one part ends the next one begins, to the last key: a record of the test set is never trained on."""
    keys, ends = 1 << 8 * HASH_BYTES, list(accumulate(shares))
    for part, (end, share) in enumerate(zip(ends, shares, strict=True)):
        first, last = keys * (end - share) // ends[-1], keys * end // ends[-1] - 1
        for key in (first, last):
            assert part_of(key.to_bytes(HASH_BYTES, "big"), shares) == part


def test_a_key_function_that_there_is_not_is_found_before_the_first_task() -> None:
    with pytest.raises(FunctionError, match="none_such"):
        SplitRecords(RecordKeys("hash", function="none_such:key"), PARTS, "json", "jsonl").set_up()
