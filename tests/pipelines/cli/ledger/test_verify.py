"""`ledger verify` in one process: its lines and exit status for outputs, datasets and metadata."""

from __future__ import annotations

import argparse
import importlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ledgerbeam.ledger import Job, LedgerStore, Output, OutputShard, Source
from ledgerbeam.ledger.model.identity import content_checksum
from ledgerbeam.ledger.model.rows import Leaf
from ledgerbeam.ledger.opening import open_local_store
from ledgerbeam.pipelines.datasets.megatron import MergedParts, NotedDataset
from ledgerbeam.pipelines.outputs.published import PublishedFile

verify = importlib.import_module("ledgerbeam.pipelines.cli.ledger.checks")

SECRET = "memory://me:hunter2@host/verify"
HIDDEN = "memory://me:***@host/verify"


class Place:
    """A ledger of three outputs of one source, and recorded metadata files."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.root, self._capsys = root, capsys
        self.store: LedgerStore = open_local_store(str(root / "L"), create=True)
        self.store.open_job(Job("map", {"output": str(root)}))
        self.metadata: list[PublishedFile] = []
        self.datasets: list[NotedDataset] = []
        monkeypatch.setattr(verify, "published_files", lambda store, options: self.metadata)
        monkeypatch.setattr(MergedParts, "noted", staticmethod(lambda store, options: self.datasets))
        self.record("/in/a*.jsonl", "a", "b", "c")

    def record(self, url: str, *names: str) -> None:
        source = Source(url, 10, "1")
        outputs = tuple(Output(name, 3, content_checksum([b"abc"]), 1, 0) for name in names)
        self.store.register([source])
        self.store.commit([Leaf(source.id, (), "published", outputs, len(names), 10)])
        for name in names:
            if "://" not in name:
                (self.root / name).write_bytes(b"abc")

    def verify(self, *, sizes_only: bool = False) -> tuple[int, list[str], Any]:
        """Return the exit status, the printed lines, and the printed JSON."""
        printed = []
        statuses = []
        for as_json in (False, True):
            args = argparse.Namespace(url="L", storage_options={}, sizes_only=sizes_only, json=as_json)
            statuses.append(verify.verify(self.store, args))
            printed.append(self._capsys.readouterr().out)
        assert statuses[0] == statuses[1]
        return statuses[0], printed[0].splitlines(), json.loads(printed[1])


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Place]:
    made = Place(tmp_path, monkeypatch, capsys)
    yield made
    made.store.close()


def test_what_is_as_it_was_recorded_is_counted(place: Place) -> None:
    for sizes_only in (False, True):
        assert place.verify(sizes_only=sizes_only) == (
            0,
            ["3 outputs, 9 bytes, 0 problems"],
            {"outputs": 3, "bytes": 9, "datasets": 0, "metadata": 0, "problems": [], "ok": True},
        )
    (place.root / "wids.json").write_bytes(b"abc")
    place.metadata = [PublishedFile(f"{place.root}/wids.json", "webdataset", 3, content_checksum([b"abc"]))]
    assert place.verify() == (
        0,
        ["3 outputs, 9 bytes, 1 file of metadata, 0 problems"],
        {"outputs": 3, "bytes": 9, "datasets": 0, "metadata": 1, "problems": [], "ok": True},
    )
    place.metadata *= 2
    assert "2 files of metadata, 0 problems" in place.verify()[1][0]


def test_an_output_that_is_not_as_recorded_is_told_with_what_to_do(place: Place) -> None:
    (place.root / "a").write_bytes(b"xyz")
    (place.root / "b").write_bytes(b"ab")
    status, lines, found = place.verify()
    remedy = "write it again with: ledgerbeam ledger forget L '/in/a[*].jsonl'"
    other = f"expected the checksum {content_checksum([b'abc'])}, found {content_checksum([b'xyz'])}"
    shorter = "expected 3 bytes, found 2"
    assert status == 1
    assert sorted(lines[:-1]) == [f"{place.root}/a: {other}; {remedy}", f"{place.root}/b: {shorter}; {remedy}"]
    assert lines[-1] == "3 outputs, 9 bytes, 2 problems"
    assert sorted(found.pop("problems"), key=lambda problem: str(problem["output"])) == [
        {"output": f"{place.root}/{name}", "source": "/in/a*.jsonl", "problem": problem}
        for name, problem in (("a", other), ("b", shorter))
    ]
    assert found == {"outputs": 3, "bytes": 9, "datasets": 0, "metadata": 0, "ok": False}
    status, lines, _ = place.verify(sizes_only=True)
    assert (status, lines) == (1, [f"{place.root}/b: {shorter}; {remedy}", "3 outputs, 9 bytes, 1 problem"])


def test_metadata_that_is_not_as_noted_is_told_with_what_to_do(place: Place) -> None:
    sum_of = content_checksum([b"abc"])
    for name, content in (("x", b"abc"), ("y", b"xyz"), ("z", b"ab")):
        (place.root / name).write_bytes(content)
        place.metadata.append(PublishedFile(f"{place.root}/{name}", "lit", 3, sum_of))
    other = f"expected the checksum {sum_of}, found {content_checksum([b'xyz'])}"
    remedy = "to write this metadata again, run its job again with --to lit"
    shorter = f"{place.root}/z: expected 3 bytes, found 2; {remedy}"
    status, lines, found = place.verify()
    counted = "3 outputs, 9 bytes, 3 files of metadata"
    assert (status, lines) == (1, [f"{place.root}/y: {other}; {remedy}", shorter, f"{counted}, 2 problems"])
    assert found == {
        "outputs": 3,
        "bytes": 9,
        "datasets": 0,
        "metadata": 3,
        "problems": [
            {"output": f"{place.root}/y", "source": None, "problem": other},
            {"output": f"{place.root}/z", "source": None, "problem": "expected 3 bytes, found 2"},
        ],
        "ok": False,
    }
    assert place.verify(sizes_only=True)[1] == [shorter, f"{counted}, 1 problem"]


def dataset_of(prefix: str, *parts: bytes, index: bytes = b"index") -> NotedDataset:
    shards = [OutputShard(f"{n}.bin", len(part), content_checksum([part]), 1, "s", 0) for n, part in enumerate(parts)]
    return NotedDataset(prefix, shards, len(index), content_checksum([index]))


def test_of_a_dataset_each_part_of_it_is_compared_and_told_with_what_to_do(place: Place) -> None:
    prefix = f"{place.root}/all"
    data, index = place.root / "all.bin", place.root / "all.idx"
    place.datasets = [dataset_of(prefix, b"ab", b"", b"cde", b"f")]
    counted, remedy = "3 outputs, 9 bytes, 1 dataset", f"to merge the parts again, delete {index} and run the job again"
    data.write_bytes(b"abcdef")
    index.write_bytes(b"index")
    assert place.verify()[1:] == (
        [f"{counted}, 0 problems"],
        {"outputs": 3, "bytes": 9, "datasets": 1, "metadata": 0, "problems": [], "ok": True},
    )
    data.write_bytes(b"abcxef")
    index.write_bytes(b"xndex")
    sums = [content_checksum([content]) for content in (b"index", b"xndex", b"cde", b"cxe")]
    problems = [f"expected the checksum {sums[0]}, found {sums[1]}"]
    problems.append(f"bytes 2 to 5: expected the checksum {sums[2]}, found {sums[3]}")
    status, lines, found = place.verify()
    said = [f"{path}: {problem}; {remedy}" for path, problem in zip((index, data), problems, strict=True)]
    assert (status, lines) == (1, [*said, f"{counted}, 2 problems"])
    assert found["problems"] == [
        {"output": str(path), "source": None, "problem": problem}
        for path, problem in zip((index, data), problems, strict=True)
    ]
    assert place.verify(sizes_only=True)[0] == 0
    data.write_bytes(b"abcdefg")
    index.unlink()
    problems = ["expected 5 bytes, found no such file or object", "expected 6 bytes, found 7"]
    for sizes_only in (False, True):
        assert [problem["problem"] for problem in place.verify(sizes_only=sizes_only)[2]["problems"]] == problems


def test_an_output_that_is_gone_is_no_problem_if_it_is_in_a_dataset(place: Place) -> None:
    for name in "ab":
        (place.root / name).unlink()
    assert place.verify()[0] == 1
    place.datasets = [dataset_of(f"{place.root}/all", b"abc")]
    (place.root / "all.bin").write_bytes(b"abc")
    (place.root / "all.idx").write_bytes(b"index")
    assert place.verify()[1] == ["1 output, 3 bytes, 1 dataset, 0 problems"]


def test_no_secret_of_a_url_is_printed(place: Place) -> None:
    place.store.open_job(Job("index", {}), "restart")
    place.record(f"{SECRET}/source", f"{SECRET}/output")
    place.metadata = [PublishedFile(f"{SECRET}/{name}", "lit", 3, f"{name}:0") for name in ("x", "y")]
    status, lines, found = place.verify()
    assert status == 1
    assert "hunter2" not in f"{lines}{found}"
    assert [problem["output"] for problem in found["problems"]] == [f"{HIDDEN}/{name}" for name in ("output", "x", "y")]
    assert found["problems"][0]["source"] == f"{HIDDEN}/source"
