"""A job that has written to routes alone, such as a split, published as one dataset with its splits."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import ledgerbeam
from ledgerbeam.errors import UsageError
from ledgerbeam.ledger import Output, Source
from ledgerbeam.ledger.model.accounts import RecordCounts
from ledgerbeam.ledger.model.identity import content_checksum
from ledgerbeam.ledger.model.rows import Leaf
from ledgerbeam.ledger.opening import open_store
from ledgerbeam.pipelines.jobs.one_stage import ConvertJob
from ledgerbeam.pipelines.jobs.sources import ListedFiles

LINE = b'{"n": 1}\n'


def made(root: Path, *names: str) -> str:
    """Return the ledger of a job that has written some shards; those in a folder are of its route."""
    files = ListedFiles(patterns=(f"{root}/in/*.jsonl",), base=f"{root}/in/")
    job = ConvertJob(files=files, output=str(root / "out"), to="jsonl").resolve_ledger(str(root / "L"))
    store = open_store(job.ledger, {}, create=True)
    store.open_job(job.identity())
    run = store.begin_run({})
    for name in names:
        path, route = root / "out" / name, name.rpartition("/")[0]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(LINE)
        source = Source(f"{root}/in/{name}", 10, "1")
        store.register([source])
        output = Output(name, len(LINE), content_checksum([LINE]), 1, 0, route=route)
        counts = RecordCounts(1, 1, {}, {}, {route: 1})
        store.commit([Leaf(source.id, (), "published", (output,), 1, 10, counts=counts)])
    store.note_listing(run, listed=len(names), finished=True)
    store.close()
    return job.ledger


def splits(root: Path) -> dict[str, list[str]]:
    """Return the patterns of each split of the card."""
    found: dict[str, list[str]] = {}
    for line in (root / "out" / "README.md").read_text(encoding="utf-8").splitlines():
        words = line.split()
        if words[:2] == ["-", "split:"]:
            found[words[2]] = []
        elif found and words[:1] == ["-"]:
            found[[*found][-1]].append(json.loads(words[1]))
    return found


def test_the_parts_of_a_split_are_the_splits_of_one_dataset(tmp_path: Path) -> None:
    ledger = made(tmp_path, "train/a.jsonl", "train/b.jsonl", "validation/a.jsonl", "test/b.jsonl")
    result = ledgerbeam.publish(ledger, as_="hf")
    assert result.sources == 4
    assert result.records.read == 4
    assert splits(tmp_path) == {
        "test": ["test/*.jsonl"],
        "train": ["train/*.jsonl"],
        "validation": ["validation/*.jsonl"],
    }
    assert [path.parent.name for path in (tmp_path / "out").rglob("README.md")] == ["out"]


def test_routes_can_be_given_other_names_or_be_datasets_of_their_own(tmp_path: Path) -> None:
    ledger = made(tmp_path, "part-0/a.jsonl", "part-1/a.jsonl")
    with pytest.raises(UsageError, match=r"part-0: expected letters.*--part"):
        ledgerbeam.publish(ledger, as_="hf")
    ledgerbeam.publish(ledger, as_="hf", part={"train": "part-0/*", "test": "*"})
    assert splits(tmp_path) == {"train": ["part-0/*.jsonl"], "test": ["part-1/*.jsonl"]}
    ledgerbeam.publish(ledger, as_="hf", route="part-1")
    assert (tmp_path / "out" / "part-1" / "README.md").exists()


def test_the_main_dataset_of_a_job_with_routes_is_published_without_them(tmp_path: Path) -> None:
    ledgerbeam.publish(made(tmp_path, "a.jsonl", "odd/a.jsonl"), as_="hf")
    assert splits(tmp_path) == {"train": ["*.jsonl"]}


def test_formats_that_have_no_splits_ask_for_a_route(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--route NAME takes: 'test', 'train'"):
        ledgerbeam.publish(made(tmp_path, "train/a.jsonl", "test/a.jsonl"), as_="idxpack")
