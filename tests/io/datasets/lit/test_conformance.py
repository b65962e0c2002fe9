"""The shared cases of readers on LIT datasets."""

from __future__ import annotations

import itertools
import pickle
from pathlib import Path
from typing import Any

import pytest

from ledgerbeam.errors import UsageError
from ledgerbeam.io.datasets.lit import LitDataset, LitWriter
from tests.io.conformance import SequenceConformance, open_files
from tests.io.datasets.lit.content import sample

_numbers = itertools.count()
MODALITIES = ("jpg", "info.json")


class TestLit(SequenceConformance):
    def records(self, count: int) -> list[Any]:
        return [(one["jpg"], one["info.json"]) for one in map(sample, range(count))]

    def store(self, folder: str, count: int, options: dict[str, Any] | None = None) -> tuple[str, list[Any]]:
        root = f"{folder}/set-{next(_numbers)}"
        with LitWriter(root, options, max_samples=30) as writer:
            writer.write({"__key__": "other", "cls": 1})  # has none of the modalities
            for number in range(count):
                writer.write(sample(number))
        return root, self.records(count)

    def open(self, url: str, options: dict[str, Any] | None = None) -> Any:
        return LitDataset(url, modalities=MODALITIES, decoders={"jpg": bytes}, options=options)

    def files(self, url: str) -> list[str]:
        return [url]

    def test_a_source_without_records(self, tmp_path: Path) -> None:
        url, _ = self.store(str(tmp_path), 0)  # which has a sample without these modalities
        with pytest.raises(UsageError, match="no modality 'jpg'; expected some of cls"):
            self.open(url)

    def test_raw_records_joined_are_the_source(self, source: tuple[str, list[Any]]) -> None:
        assert not hasattr(self.open(source[0]), "raw")  # the members of an item need not lie together

    def test_pickled_readers_read_the_same(self, source: tuple[str, list[Any]]) -> None:
        url, records = source
        reader = self.open(url)
        for _ in ("new", "used"):
            copy = pickle.loads(pickle.dumps(reader))
            assert self.same([copy[3], copy[-1]], [records[3], records[-1]])
            reader[0]

    def test_a_reader_can_be_closed_and_used_again(self, source: tuple[str, list[Any]]) -> None:
        url, records = source
        reader = self.open(url)
        reader[0], reader[-1]
        shards = {str(path) for path in Path(url).glob("*.tar")}
        assert len(open_files() & shards) == 2
        reader.close()
        assert not open_files() & shards
        assert self.same([reader[1]], [records[1]])
