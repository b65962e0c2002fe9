"""Whatever of an exchange's output folder is removed, and however often, the same call makes the same bytes again."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import ledgerbeam
from ledgerbeam.pipelines.exchange.buckets import remove_internal
from ledgerbeam.pipelines.jobs.one_stage import MapJob
from ledgerbeam.pipelines.jobs.sources import ListedFiles
from tests.pipelines.exchanges.in_process import call_here
from tests.pipelines.exchanges.stages import write_jsonl
from tests.pipelines.exchanges.test_near import rows_of


def counted(key: Any, records: Iterator[Any]) -> dict[str, Any]:
    return {"k": key, "n": sum(1 for _ in records)}


HOW: dict[str, Any] = {"to": "jsonl", "output": "out", "ledger": "L", "task_bytes": 3000, "workers": 1}
FILES, SHARDS = ["in/*.jsonl"], {**HOW, "shard_bytes": 4000}

sort = partial(ledgerbeam.sort, FILES, by="k", **SHARDS)
dedup = partial(ledgerbeam.dedup, FILES, by="k", bucket_bytes=8000, **HOW)
near = partial(ledgerbeam.dedup, FILES, near="text", minhash="6x2", ngram=2, bucket_bytes=8000, **HOW)
verify = partial(near, threshold=0.75, verify=True)
join = partial(ledgerbeam.join, FILES, ["right/*.jsonl"], by="k", **SHARDS)

CALLS: dict[str, Callable[[], ledgerbeam.Result]] = {
    "sort": sort,
    "sort in rounds": partial(sort, max_slices=60),
    "shuffle": partial(ledgerbeam.shuffle, FILES, seed=7, **SHARDS),
    "repartition": partial(ledgerbeam.repartition, FILES, **SHARDS),
    "group": partial(ledgerbeam.group, f"{__name__}:counted", FILES, by="k", **SHARDS),
    "dedup to marks": partial(dedup, mark=True),
    "near": near,
    "near to marks": partial(near, mark=True),
    "near in rounds": partial(near, cluster_bytes=2000),
    "verify": verify,
    "verify to marks": partial(verify, mark=True),
    "join": join,
    "anti-join": partial(join, how="anti"),
}


def _all(out: Path) -> None:
    shutil.rmtree(out)


def _shards(out: Path) -> None:
    for path in out.glob("*.jsonl*"):
        path.unlink()


def _one(out: Path) -> None:
    min(out.glob("*.jsonl")).unlink()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in "ab":
        rows = [{**row, "k": number % 37} for number, row in enumerate(rows_of(name, 120))]
        write_jsonl(tmp_path / "in" / f"{name}.jsonl", rows)
    write_jsonl(tmp_path / "right" / "r.jsonl", [{"k": number, "of": number**2} for number in range(20)])
    monkeypatch.chdir(tmp_path)
    return tmp_path


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (folder / "out").iterdir() if path.is_file()}


def require_same_bytes_again(
    folder: Path, call: Callable[[], ledgerbeam.Result], removals: list[Callable[[Path], None]]
) -> None:
    assert call().complete
    made = contents(folder)
    assert made
    for remove in removals:
        remove(folder / "out")
        assert call().complete
        assert contents(folder) == made, remove.__name__
    assert call().tasks == 0


@pytest.mark.slow
def test_a_deduplication_of_which_all_outputs_are_gone_is_done_again(folder: Path) -> None:
    require_same_bytes_again(folder, dedup, [_all])


@pytest.mark.slow
@pytest.mark.parametrize("name", CALLS)
def test_outputs_that_are_gone_are_written_again(folder: Path, name: str) -> None:
    require_same_bytes_again(folder, CALLS[name], [_all, _shards, _one, _all])


def foreign_files(folder: Path) -> dict[Path, bytes]:
    """Write what looks like files of ours to where run files, lists and tables lie; return the contents."""
    owner = f"_ledgerbeam/{'0' * 32}.json"
    names = (
        "mine.run",
        "x.runs",
        "x.slices",
        "sub/mine.run",
        "sub/notes.txt",
        "theirs/a-0000000000.run",
        f"theirs/{owner}",
    )
    paths = [folder / "out" / inner / name for inner in ("_runs", "_drops") for name in names]
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(str(path))
    return {path: path.read_bytes() for path in paths}


@pytest.mark.parametrize(
    "call", [dedup, pytest.param(sort, marks=pytest.mark.slow), pytest.param(join, marks=pytest.mark.slow)]
)
def test_files_of_others_beside_run_files_stay(folder: Path, call: Callable[[], ledgerbeam.Result]) -> None:
    there = foreign_files(folder)
    assert call_here(call).complete
    assert {path: path.read_bytes() for path in there if path.is_file()} == there
    left = {path for path in (folder / "out").rglob("*.run*") if path.is_file()}
    assert left == {path for path in there if path.name.endswith((".run", ".runs"))}, "our own are left"


def test_files_of_rejected_records_stay_where_run_files_go(tmp_path: Path) -> None:
    files = ListedFiles(patterns=("in/*.jsonl",), base="in/")
    job = MapJob(files=files, function="m:f", made_of={}, output=str(tmp_path), to="jsonl").resolve_ledger("L")
    rejects = [
        "_rejects/a.jsonl-0000000000.jsonl",
        "_rejects/a.jsonl-0000000046-000001.jsonl",
        "_rejects/sub/b-0000000000.jsonl",
    ]
    gone = ["a.jsonl-0000000000.run", "sub/b-0000000000.run", f"{'1' * 32}.runs", f"_ledgerbeam/{'0' * 32}.json"]
    for name in rejects + gone:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    remove_internal([str(tmp_path)], job, {"0" * 32})
    assert {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()} == set(rejects)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "left"),
    [
        ("sort in rounds", set()),
        ("near", {"_signatures"}),
        ("near in rounds", {"_signatures"}),
        ("verify", {"_signatures"}),
        ("verify to marks", {"_signatures"}),
        ("join", set()),
    ],
)
def test_what_is_between_stages_goes(folder: Path, name: str, left: set[str]) -> None:
    assert call_here(CALLS[name]).complete
    assert {path.name for path in (folder / "out").iterdir() if path.is_dir()} - {"_ledgerbeam"} == left
    assert not list((folder / "out").rglob("*.slices"))


@pytest.mark.parametrize(
    "value",
    [
        {"names": [], "sizes": [], "versions": []},
        pytest.param({"versions": [None] * 4}, marks=pytest.mark.slow),
        pytest.param({"sizes": []}, marks=pytest.mark.slow),
    ],
)
def test_a_damaged_list_of_buckets_is_made_again(folder: Path, value: dict[str, Any]) -> None:
    call = partial(ledgerbeam.sort, ["in/a.jsonl"], by="k", **SHARDS)
    assert call_here(call).complete
    made = contents(folder)
    listing = folder / "L/work/buckets.json"
    found = json.loads(listing.read_text())
    listing.write_text(json.dumps({**found, **value}))
    for path in (folder / "out").glob("*.jsonl*"):
        path.unlink()
    assert call_here(call).complete
    assert contents(folder) == made
