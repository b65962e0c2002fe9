"""``ledgerbeam map --as arrow``, as a user starts it."""

from __future__ import annotations

import gzip
import os
import signal
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.pipelines.conftest import Workspace
from tests.servers.process import wait_until

pytestmark = pytest.mark.slow

BATCHES = '''
import time
import pyarrow as pa
import pyarrow.compute as pc
from ledgerbeam import Rows, stats


def same(batch):
    return batch


def slow(batch):
    time.sleep(0.05)
    return batch


class Sorted:
    """Sends rows to their routes."""

    def __init__(self, least=0):
        self.least = least

    def __call__(self, batch):
        stats.count("rows", batch.num_rows)
        if pc.any(pc.equal(batch["id"], 33)).as_py():
            raise ValueError("thirty-three")
        return Rows(
            batch,
            drop={"small": pc.less(batch["id"], self.least)},
            reject={"odd one": pc.equal(batch["id"], 17)},
            route=pc.if_else(pc.greater_equal(batch["id"], 90), "large", None),
        )


def centred(batch):
    return pa.table({"id": pc.subtract(batch["id"], pc.sum(batch["id"]))})
'''


@pytest.fixture
def place(workspace: Workspace) -> Workspace:
    (workspace.root / "batches.py").write_text(BATCHES)
    return workspace


def parquet(place: Workspace, rows: int = 100) -> pa.Table:
    table = pa.table({"id": pa.array(range(rows), pa.int64()), "text": [f"text {number}" for number in range(rows)]})
    pq.write_table(table, place.root / "a.parquet", row_group_size=10)
    return table


def job(place: Workspace, function: str, source: str, *more: str, to: str = "parquet", **ends: Any) -> Any:
    """Map a source; check how the command ends, which is well by default."""
    options = ("--output", "out", "--to", to, "--ledger", "L", "--as", "arrow")
    return place.run("map", f"batches:{function}", source, *options, *more, **{"status": 0, **ends})


def written(place: Workspace, folder: str = "out") -> list[Path]:
    return sorted((place.root / folder).glob("*.parquet"))


def rows(place: Workspace, folder: str) -> pa.Table:
    return pa.concat_tables(pq.read_table(path) for path in written(place, folder))


def test_rows_go_where_the_function_says_and_each_is_counted(place: Workspace) -> None:
    parquet(place)
    options = ("--set", "least=5", "--on-error", "reject", "--task-bytes", "200")
    job(place, "Sorted", "a.parquet", *options)
    assert rows(place, "out")["id"].to_pylist() == [number for number in range(5, 90) if number not in (17, 33)]
    assert rows(place, "out/large")["id"].to_pylist() == list(range(90, 100))
    found = place.run("ledger", "status", "L", "--json").json
    assert found["records"] == {
        "read": 100,
        "kept": 93,
        "dropped": {"small": 5},
        "rejected": {"ValueError": 1, "odd one": 1},
        "written": {"": 83, "large": 10},
    }
    assert place.run("ledger", "stats", "L", "--json").json["rows"] == 100
    files = (place.root / "out/_rejects").iterdir()
    rejects = [orjson.loads(line) for path in files for line in path.read_bytes().splitlines()]
    assert sorted((row["record"], row["reason"]) for row in rejects) == [(17, "odd one"), (33, "ValueError")]
    job(place, "Sorted", "a.parquet", *options)
    job(place, "Sorted", "a.parquet", "--set", "least=6", *options[2:4], status=1, err="set least: was 5, is 6")


def test_a_killed_job_goes_on_to_the_same_bytes(place: Workspace) -> None:
    table = parquet(place)
    running = place.start(
        *("map", "batches:slow", "a.parquet", "--output", "out", "--to", "parquet", "--ledger", "L", "--as", "arrow"),
        *("--task-bytes", "200", "--audit=off"),
    )
    try:
        wait_until(lambda: len(written(place)) > 1, seconds=120)
    finally:
        os.killpg(running.pid, signal.SIGKILL)
        running.communicate()
    options = ("--task-bytes", "200", "--audit=off")
    job(place, "slow", "a.parquet", *options)
    assert rows(place, "out").equals(table)
    bytes_of = {path.name: path.read_bytes() for path in written(place)}
    job(place, "slow", "a.parquet", "--output", "clean", "--ledger", "C", *options)
    assert {path.name: path.read_bytes() for path in written(place, "clean")} == bytes_of


def test_json_lines_have_columns_that_are_decided_once(place: Workspace) -> None:
    lines = [b'{"id":%d,"text":%s}\n' % (number, b"null" if number % 2 else b'"t"') for number in range(300)]
    (place.root / "a.jsonl").write_bytes(b"".join(lines))
    (place.root / "b.jsonl.gz").write_bytes(gzip.compress(b"".join(lines) + b'\n{"id":300}\n{"id":"x"}\nbroken\n'))
    job(place, "same", "*.jsonl*", "--on-error", "reject", "--task-bytes", "5000", to="jsonl")
    found = place.run("ledger", "status", "L", "--json").json
    assert found["records"]["rejected"] == {"not decoded": 2}
    assert found["records"]["kept"] == 601
    schema = found["job"]["parameters"]["batch schema"]
    assert orjson.loads(schema) == {"columns": {"id": "int64", "text": "string"}}
    records = place.records("out")
    assert {"id": 300, "text": None} in records
    (place.root / "a.jsonl").write_bytes(b'{"id":1,"more":2}\n')
    job(place, "same", "*.jsonl*", "--on-error", "reject", "--task-bytes", "5000", to="jsonl")
    assert place.run("ledger", "status", "L", "--json").json["job"]["parameters"]["batch schema"] == schema


def test_text_and_small_files_in_packs(place: Workspace) -> None:
    for name in "abc":
        (place.root / f"{name}.txt").write_text(f"first {name}\n\nlast {name}")
    job(place, "same", "*.txt", "--pack", "1K", to="jsonl")
    assert [record["text"] for record in place.records("out")][:3] == ["first a", "", "last a"]
    assert place.run("ledger", "status", "L", "--json").json["records"]["read"] == 9


def test_a_function_that_depends_on_its_batch_ends_the_job(place: Workspace) -> None:
    parquet(place)
    job(place, "centred", "a.parquet", "--batch", "20", status=1, err="returned another result when it was audited")


def test_a_sample_is_of_rows(place: Workspace) -> None:
    parquet(place)
    ran = job(place, "same", "a.parquet", "--sample", "2", "--json")
    first_of_groups = ["text 20", "text 70"]
    assert [one["results"][""][0]["text"] for one in ran.json["sample"]] == first_of_groups


@pytest.mark.parametrize(
    ("source", "options", "said"),
    [
        ("a.tar", (), "tar cannot be read as Arrow batches; map it with --as records"),
        ("a.parquet", ("--to", "tar"), "--as arrow writes one of jsonl, parquet, arrow, found --to tar"),
        ("a.parquet", ("--from", "shar"), "found --from shar"),
        ("a.parquet", ("--as", "records", "--batch-schema", "x"), "--batch-schema is for --as arrow"),
    ],
)
def test_what_cannot_be_is_refused_by_name(place: Workspace, source: str, options: tuple[str, ...], said: str) -> None:
    parquet(place)
    (place.root / "a.tar").write_bytes(b"")
    job(place, "same", source, *options, status=2, err=said)
    assert not (place.root / "L").exists()
