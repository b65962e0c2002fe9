"""The shared cases of readers on LIT datasets."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from ledgerbeam.errors import UsageError
from ledgerbeam.io.datasets.lit import LitDataset, LitWriter
from tests.io.conformance import SequenceConformance
from tests.io.datasets.lit.content import sample

_numbers = itertools.count()
MODALITIES = ("jpg", "info.json")


class TestLit(SequenceConformance):
    most_pickled = 10**6  # it has the places of all members

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

    def opened(self, url: str) -> set[str]:
        return {str(path) for path in Path(url).glob("*.tar")}

    def test_a_source_without_records(self, tmp_path: Path) -> None:
        url, _ = self.store(str(tmp_path), 0)  # which has a sample without these modalities
        with pytest.raises(UsageError, match="no modality 'jpg'; expected some of cls"):
            self.open(url)

    def test_raw_records_joined_are_the_source(self, source: tuple[str, list[Any]]) -> None:
        assert not hasattr(self.open(source[0]), "raw")  # the members of an item need not lie together
