"""The transforms of an exchange as they are built: what they are unless told otherwise, and what they are given."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from ledgerbeam.io.exchange.order import KeyOrder
from ledgerbeam.transforms import Gather, GroupRecords, KeepRecords, Scatter
from ledgerbeam.transforms.beam_yaml import ReadBuckets
from ledgerbeam.transforms.duplicates import FindDuplicates
from ledgerbeam.transforms.gather import lines_of
from ledgerbeam.transforms.join import JoinRecords
from ledgerbeam.transforms.near import FindClusters, PairRecords
from ledgerbeam.transforms.process import ProcessTask
from ledgerbeam.transforms.scatter import ScatterResults
from tests.memory import peak_of


def group(key: Any, records: Any) -> Any:
    return {"key": key, "records": len(list(records))}


@pytest.mark.parametrize(
    "function",
    [
        KeepRecords("jsonl"),
        GroupRecords(group, "jsonl", by="id"),
        PairRecords(),
        *(kind.__new__(kind) for kind in (FindDuplicates, FindClusters, JoinRecords, ScatterResults)),
    ],
    ids=lambda function: type(function).__name__,
)
def test_no_function_of_a_bucket_is_given_a_list_of_all_records(function: Any) -> None:
    """It takes records as they are read, and merges them as it goes."""
    assert ProcessTask(function).takes_blocks


def test_keys_are_whole_and_run_files_go_unless_told_otherwise() -> None:
    gather = Gather("runs", ledger="scattered")
    assert (gather.whole_keys, gather.keep_runs) == (True, False)
    from_yaml = inspect.signature(ReadBuckets).parameters
    of_python = inspect.signature(Gather).parameters
    assert {name: one.default for name, one in from_yaml.items()} == {
        name: one.default for name, one in of_python.items()
    }


def test_keys_ascend_unless_told_otherwise() -> None:
    scatter = Scatter("runs", by="id")
    assert (scatter.order, scatter.scheme) == (KeyOrder(), "key")
    assert KeyOrder() == KeyOrder(descending=False, nulls="last")


def test_lines_are_joined_without_a_list_of_them() -> None:
    line = b'{"x":"' + b"x" * 1000 + b'"}'
    lines, peak = peak_of(lambda: lines_of(line[:] + b"" for _ in range(10_000)))
    assert lines is not None
    assert lines.data == (line + b"\n") * 10_000
    assert lines.offsets.tolist() == [place * (len(line) + 1) for place in range(10_001)]
    assert peak < 1.4 * len(lines.data)  # it grows by an eighth
    assert lines_of(iter([])) is not None
    assert lines_of([line] * 5000 + [b"\1NaN"]) is None
