"""Output names are deterministic, readable and free of collisions."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ledgerbeam.ledger import Source, Task
from ledgerbeam.transforms.chain.write import output_name

names = st.text("ab.-0/", min_size=1, max_size=12)
keys = st.tuples(names, st.integers(0, 12), st.lists(st.integers(0, 12), max_size=2))


def name_of(url: str, start: int, ordinals: list[int], base: str | None = "/data/") -> str:
    lineage = ((0, 1), *((ordinal, 13) for ordinal in ordinals))
    return output_name(Task(Source(url, 1, "1"), start, start + 1, lineage), base, ".jsonl")


def test_a_name_is_the_path_below_the_base_and_the_first_record() -> None:
    assert name_of("/data/books/a.jsonl", 1200, []) == "books/a.jsonl-0000001200.jsonl"


def test_a_fan_out_of_user_code_adds_its_ordinal() -> None:
    assert name_of("/data/a.tar", 0, [3]) == "a.tar-0000000000-000003.jsonl"


def test_a_source_outside_the_base_goes_by_its_whole_path() -> None:
    assert name_of("s3://bucket/a.jsonl", 0, []) == "%s3/bucket/a.jsonl-0000000000.jsonl"
    assert name_of("s3://bucket/a.jsonl", 0, [], base=None) == "s3/bucket/a.jsonl-0000000000.jsonl"
    assert name_of("/x/a.jsonl", 0, [], base=None) == "file/x/a.jsonl-0000000000.jsonl"


@given(keys, keys)
def test_two_tasks_share_no_name(one: tuple[str, int, list[int]], other: tuple[str, int, list[int]]) -> None:
    same_key = one == other
    assert (name_of("/data/" + one[0], one[1], one[2]) == name_of("/data/" + other[0], other[1], other[2])) == same_key
