"""The parts of a job merged to Megatron datasets, in one process: what is merged when, and what is noted of it."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from ledgerbeam.io import Options
from ledgerbeam.io.datasets.megatron import MegatronReader, encode_part
from ledgerbeam.io.storage.stat import FileInfo, stat
from ledgerbeam.ledger import LedgerStore, Output, Source
from ledgerbeam.ledger.model.identity import content_checksum
from ledgerbeam.ledger.model.rows import Leaf
from ledgerbeam.ledger.opening import open_local_store
from ledgerbeam.pipelines.datasets import megatron
from ledgerbeam.pipelines.datasets.megatron import MergedParts, noted_datasets
from ledgerbeam.pipelines.jobs.one_stage import ConvertJob
from ledgerbeam.pipelines.jobs.sources import ListedFiles

SUFFIXES = ("_a", "_b")


class Made:
    """A ledger whose job has written parts of two datasets, and is complete once its listing is."""

    def __init__(self, root: Path, suffixes: tuple[str, ...] = SUFFIXES) -> None:
        self.suffixes = suffixes
        self.root, self.parts, self.prefix = root, root / "all.parts", f"{root}/all"
        files = ListedFiles(patterns=(f"{root}/in/**",), base=f"{root}/in/")
        self.product = MergedParts(self.prefix, suffixes, "int32")
        job = ConvertJob(files=files, output=str(self.parts), to="megatron", dataset=self.product)
        self.job = job.resolve_ledger(str(root / "L"))
        self.store: LedgerStore = open_local_store(self.job.ledger, create=True)
        self.store.open_job(self.job.identity())
        self.run = self.store.begin_run({"pid": 1})
        self.said: list[str] = []
        self.parts.mkdir()

    def part(self, source: str, *tokens: list[int], finished: bool = True) -> None:
        """Write the parts of a source, of each dataset one, and record them."""
        outputs = []
        for suffix, some in zip(self.suffixes, tokens, strict=True):
            for ending, data in zip((".bin", ".idx"), encode_part([[some]], np.int32), strict=True):
                name = f"{source}-0000000000{suffix}{ending}"
                (self.parts / name).write_bytes(data)
                records = 1 if ending == ".bin" else 0
                outputs.append(Output(name, len(data), content_checksum([data]), records, 0))
        of = Source(f"{self.root}/in/{source}", 10, "1")
        self.store.register([of])
        self.store.commit([Leaf(of.id, (), "published", tuple(outputs), 1, 10)])
        self.store.note_listing(self.run, listed=1, finished=finished)

    def make(self) -> bool:
        """Return whether parts were merged."""
        self.said.clear()
        self.product.make(self.job, self.store, rewrite=lambda _: False, say=self.said.append)
        assert len(self.said) == len(self.suffixes)
        return not self.said[0].startswith("up to date")

    def documents(self, suffix: str) -> list[list[list[int]]]:
        with MegatronReader(self.prefix + suffix) as reader:
            return [[tokens.tolist() for tokens in reader.document(i)] for i in range(reader.document_count)]

    @property
    def note(self) -> Path:
        return self.root / "L" / "work" / "merged.json"


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Made]:
    found = Made(tmp_path)
    yield found
    found.store.close()


def test_what_was_merged_is_noted_with_the_span_of_each_part(made: Made) -> None:
    made.part("a", [1, 2], [3], finished=False)
    made.part("b", [4], [])
    assert noted_datasets(made.store, {}) == []
    assert made.make()
    assert [made.documents(suffix) for suffix in SUFFIXES] == [[[[1, 2]], [[4]]], [[[3]], []]]
    noted = noted_datasets(made.store, {})
    assert [dataset.prefix for dataset in noted] == [made.prefix + suffix for suffix in SUFFIXES]
    for dataset, suffix, ends in zip(noted, SUFFIXES, ((0, 8, 12), (0, 4, 4)), strict=True):
        names = [f"{source}-0000000000{suffix}.bin" for source in "ab"]
        assert [(part.name, span) for part, span in dataset.spans()] == list(
            zip(names, [ends[:2], ends[1:]], strict=True)
        )
        assert dataset.size == ends[-1] == os.path.getsize(f"{dataset.prefix}.bin")
        index = Path(f"{dataset.prefix}.idx").read_bytes()
        assert (dataset.index_size, dataset.index_checksum) == (len(index), content_checksum([index]))
    assert not made.make()


def test_of_other_parts_nothing_is_noted(made: Made) -> None:
    made.part("a", [1], [2])
    made.make()
    assert noted_datasets(made.store, {})
    made.part("b", [3], [4], finished=False)
    assert noted_datasets(made.store, {}) == []
    made.store.note_listing(made.run, listed=1, finished=True)
    assert noted_datasets(made.store, {}) == []
    made.make()
    assert noted_datasets(made.store, {})
    made.store.register([Source(f"{made.root}/in/c", 10, "1")])
    assert noted_datasets(made.store, {}) == []


@pytest.mark.parametrize("broken", ["suffixes", "indexes", "files", "another prefix", "a list", "no JSON"])
def test_a_note_that_does_not_read_is_none(made: Made, broken: str) -> None:
    made.part("a", [1], [2])
    made.make()
    note = json.loads(made.note.read_bytes())
    contents: list[object] = [{**note, "suffixes": {f"{made.root}/other": "_a"}}] if broken == "another prefix" else []
    if broken in note:
        contents += [{**note, broken: wrong} for wrong in ("", 1, None)]
        contents.append({key: value for key, value in note.items() if key != broken})
    for content in contents or [[note]]:
        made.note.write_text("{" if broken == "no JSON" else json.dumps(content))
        assert noted_datasets(made.store, {}) == []


def test_a_part_that_was_written_again_since_is_merged_again_and_another_file_is_not(made: Made) -> None:
    made.part("a", [1], [2])
    made.make()
    part = made.parts / "a-0000000000_b.bin"
    right = part.read_bytes()
    part.write_bytes(right[::-1])
    assert not made.make()
    part.write_bytes(right)
    assert made.make()
    assert not made.make()
    part.unlink()
    assert not made.make()


def test_what_was_merged_stays_while_one_of_the_parts_that_were_written_since_is_another_file(made: Made) -> None:
    made.part("a", [1, 2], [3], finished=False)
    made.part("b", [4, 5], [6])
    made.make()
    right = {name: (made.parts / f"{name}-0000000000_a.bin").read_bytes() for name in "ab"}
    for wrong in "ab":
        for name, data in right.items():
            (made.parts / f"{name}-0000000000_a.bin").write_bytes(data[::-1] if name == wrong else data)
        assert not made.make()
    assert made.documents("_a") == [[[1, 2]], [[4, 5]]]


def test_the_name_of_a_dataset_may_end_with_that_of_another_or_look_like_one_of_a_part(tmp_path: Path) -> None:
    made = Made(tmp_path, ("_text", "_main_text", "_a-0000000000_b", "_text-2"))
    made.part("a", [1], [2], [3], [4])
    made.make()
    assert [made.documents(suffix) for suffix in made.suffixes] == [[[[1]]], [[[2]]], [[[3]]], [[[4]]]]
    made.store.close()


def test_of_parts_that_are_written_again_those_are_noted_that_are_merged(made: Made) -> None:
    made.part("a", [1], [2])
    (made.parts / "a-0000000000_a.bin").unlink()

    def rewrite(lost: int) -> bool:
        made.part("a", [3] * lost, [4])  # by another version, say
        return True

    made.product.make(made.job, made.store, rewrite=rewrite, say=made.said.append)
    assert made.documents("_a") == [[[3]]]
    assert noted_datasets(made.store, {})
    assert not made.make()


def test_only_the_parts_are_dropped_once_they_are_merged(made: Made) -> None:
    made.part("a", [1], [2])
    (made.parts / "notes.txt").write_text("of somebody")
    product = dataclasses.replace(made.product, drop=True)
    product.make(made.job, made.store, rewrite=lambda _: False, say=made.said.append)
    assert os.listdir(made.parts) == ["notes.txt"]


def test_of_parts_that_were_dropped_nothing_is_asked(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    made.part("a", [1], [2])
    made.make()
    made.product = dataclasses.replace(made.product, drop=True)
    asked: list[str] = []

    def ask(url: str, options: Options) -> FileInfo:
        asked.append(url)
        return stat(url, options)

    monkeypatch.setattr(megatron, "stat", ask)
    assert not made.make()
    assert len(asked) == len(SUFFIXES)
    asked.clear()
    assert not made.make()
    assert asked == []
