"""The shared cases of readers on many shards, and on DALI's index."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ledgerbeam.errors import IndexMismatchError, SourceError
from ledgerbeam.io import publish_bytes
from ledgerbeam.io.datasets.webdataset import (
    DaliReader,
    ShardReader,
    ShardWriter,
    open_shards,
    open_wids,
    write_dali_index,
    write_wids_index,
)
from ledgerbeam.io.datasets.webdataset.dali import dali_index_url
from ledgerbeam.io.tar.writer import encode_tar
from tests.conftest import S3Server
from tests.io.conformance import COUNT, SequenceConformance, open_files
from tests.io.datasets.webdataset.content import plain_samples, samples

_numbers = itertools.count()


class _Samples(SequenceConformance):
    def records(self, count: int) -> list[Any]:
        return samples(count)

    def key(self, record: Any) -> Any:
        return record.key, list(record.items())


class TestShards(_Samples):
    def store(self, folder: str, count: int, options: dict[str, Any] | None = None) -> tuple[str, list[Any]]:
        records = self.records(count)
        root = f"{folder}/set-{next(_numbers)}"
        with ShardWriter(f"{root}/x/%04d.tar", options, max_samples=30) as writer:
            for record in records:
                writer.write(record)
        write_wids_index(f"{root}/x/index.json", writer.shards, options)
        return f"{root}/x/index.json", records

    def open(self, url: str, options: dict[str, Any] | None = None) -> ShardReader:
        return open_wids(url, options)

    def files(self, url: str) -> list[str]:
        return [url]

    def opened(self, url: str) -> set[str]:
        return set(self.open(url).shards)

    def test_raw_records_joined_are_the_source(self, source: tuple[str, list[Any]]) -> None:
        reader = self.open(source[0])
        joined = b"".join(reader.raw(number) for number in range(30))
        assert Path(reader.shards[0]).read_bytes().startswith(joined)
        assert Path(reader.shards[-1]).read_bytes().startswith(reader.raw(180))

    def test_a_source_without_records(self, tmp_path: Path) -> None:
        with pytest.raises(SourceError, match="expected shards"):
            self.open(self.store(str(tmp_path), 0)[0])

    def test_few_of_many_shards_are_open_at_a_time(self, tmp_path: Path) -> None:
        with ShardWriter(f"{tmp_path}/%d.tar", max_samples=1) as writer:
            for record in self.records(150):
                writer.write(record)
        urls = [f"{tmp_path}/{shard.name}" for shard in writer.shards]
        reader = open_shards(urls)
        assert self.same(reader.read_many(range(150)), self.records(150))
        assert 0 < len(open_files().intersection(urls)) <= 64


class TestDali(_Samples):
    def records(self, count: int) -> list[Any]:
        return plain_samples(count)

    def store(self, folder: str, count: int, options: dict[str, Any] | None = None) -> tuple[str, list[Any]]:
        records = self.records(count)
        url = f"{folder}/source-{next(_numbers)}.tar"
        publish_bytes(url, encode_tar(records, group="key")[0], options)
        if records:
            assert write_dali_index(url, options=options) == count
        else:
            publish_bytes(dali_index_url(url), b"v1.2 0\n", options)
        return url, records

    def open(self, url: str, options: dict[str, Any] | None = None) -> Any:
        return DaliReader(url, options=options)

    def files(self, url: str) -> list[str]:
        return [url, dali_index_url(url)]

    def test_raw_records_joined_are_the_source(self, source: tuple[str, list[Any]]) -> None:
        with pytest.raises(IndexMismatchError, match=f"{COUNT + 1} records"):
            self.open(source[0]).read_span(0, COUNT + 1)  # the index knows payloads, not the bytes of a sample

    @pytest.mark.s3
    def test_a_sample_of_an_object_is_one_request(self, s3: S3Server, counted: Callable[[S3Server], list[str]]) -> None:
        url, records = self.store(f"s3://{s3.bucket()}/deep", COUNT, s3.options)
        reader = self.open(url, s3.options)
        requests = counted(s3)
        assert self.same([reader[20]], [records[20]])
        assert requests == ["GetObject"]
