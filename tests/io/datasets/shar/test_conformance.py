"""The shared cases of readers on Shar folders."""

from __future__ import annotations

import glob
import itertools
from pathlib import Path
from typing import Any

import pytest

from ledgerbeam.errors import SourceNotFoundError
from ledgerbeam.io.datasets.shar.reader import SharReader
from ledgerbeam.io.datasets.shar.writer import SharWriter
from tests.io.conformance import COUNT, SequenceConformance
from tests.io.datasets.shar.content import recording, wav

_numbers = itertools.count()


class TestShar(SequenceConformance):
    most_pickled = 10**6  # it has a reader of each shard

    def records(self, count: int) -> list[Any]:
        return [
            {
                "id": f"cut-{number}",
                "recording": {"wav": wav(number), "json": recording(number)},
                **({"label": number} if number % 3 else {}),
            }
            for number in range(count)
        ]

    def key(self, record: Any) -> Any:
        return record["id"], bytes(record["recording"]["wav"]), record.get("label")

    def store(self, folder: str, count: int, options: dict[str, Any] | None = None) -> tuple[str, list[Any]]:
        url = f"{folder}/shar-{next(_numbers)}"
        records = self.records(count)
        with SharWriter(url, {"recording": "tar", "label": "jsonl"}, options, shard_size=60) as writer:
            for record in records:
                writer.write(record)
        return url, records

    def open(self, url: str, options: dict[str, Any] | None = None) -> Any:
        return SharReader(url, options=options)

    def files(self, url: str) -> list[str]:
        return [url]

    def opened(self, url: str) -> set[str]:
        return {str(path) for path in Path(url).iterdir()}

    def test_raw_records_joined_are_the_source(self, source: tuple[str, list[Any]]) -> None:
        reader = self.open(source[0])
        joined = b"".join(reader.raw(number) for number in range(COUNT))
        cuts = b"".join(Path(url).read_bytes() for url in sorted(glob.glob(f"{source[0]}/cuts.*.jsonl")))
        assert cuts == joined  # the fields of a cut are in other files

    def test_a_source_without_records(self, tmp_path: Path) -> None:
        url, _ = self.store(str(tmp_path), 0)
        with pytest.raises(SourceNotFoundError):  # without cuts there are no shards
            self.open(url)
