"""The shared cases of readers on Megatron datasets: mapped, by file, from object stores, with modes, as Megatron."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ledgerbeam.errors import ChangedSourceError, IndexNotFoundError, SourceNotFoundError
from ledgerbeam.io.datasets.megatron import MegatronReader, write_megatron
from tests.conftest import S3Server
from tests.io.conformance import COUNT, SequenceConformance

_numbers = itertools.count()


class TestMapped(SequenceConformance):
    arguments: dict[str, Any] = {}  # noqa: RUF012 - read only
    dtype = "uint16"
    multimodal = False

    def records(self, count: int) -> list[Any]:
        chance = np.random.default_rng(count)
        return [chance.integers(0, 60_000, i * 7 % 300 + 1).astype(self.dtype) for i in range(count)]

    def store(self, folder: str, count: int, options: dict[str, Any] | None = None) -> tuple[str, list[Any]]:
        records = self.records(count)
        prefix = f"{folder}/dataset-{next(_numbers)}"
        with write_megatron(prefix, self.dtype, options, multimodal=self.multimodal) as builder:
            for number, record in enumerate(records):
                builder.add_item(*record) if self.multimodal else builder.add_item(record)
                if number % 3 == 2 or number == count - 1:
                    builder.end_document()
        return prefix + ".bin", records

    def open(self, url: str, options: dict[str, Any] | None = None, *, check: bool = True) -> MegatronReader:
        return MegatronReader(url, options, check=check, **({} if "://" in url else self.arguments))

    def files(self, url: str) -> list[str]:
        return [url, url.removesuffix(".bin") + ".idx"]

    def key(self, record: Any) -> Any:
        return record.dtype, record.tolist()

    def test_repr_names_source_and_index(self, source: tuple[str, list[Any]]) -> None:
        assert source[0].removesuffix(".bin") in repr(self.open(source[0]))

    def test_a_reader_can_be_made_of_any_of_its_names(self, source: tuple[str, list[Any]]) -> None:
        prefix = source[0].removesuffix(".bin")
        assert {self.open(prefix + suffix).prefix for suffix in ("", ".bin", ".idx")} == {prefix}

    @pytest.mark.parametrize("check", [True, False])
    def test_a_missing_file_is_named(self, source: tuple[str, list[Any]], check: bool) -> None:
        data, index = self.files(source[0])
        os.rename(data, data + ".away")
        with pytest.raises(SourceNotFoundError, match=data):
            self.open(data, check=check)[0]
        os.rename(data + ".away", data)
        os.unlink(index)
        with pytest.raises(IndexNotFoundError, match=index):
            self.open(data, check=check)[0]


class TestFile(TestMapped):
    arguments = {"mmap": False}  # noqa: RUF012
    dtype = "int32"

    def test_data_that_was_cut_after_opening_is_an_error(self, source: tuple[str, list[Any]]) -> None:
        url, records = source
        reader = self.open(url)
        size = sum(len(record) * 4 for record in records[:100]) + 3
        os.truncate(url, size)
        assert self.same([reader[99]], [records[99]])
        for read in (
            lambda: reader[100],
            lambda: reader[90:110],
            lambda: reader.read_many([100]),
            lambda: reader.get(100, 1),
        ):
            with pytest.raises(ChangedSourceError, match=str(size)):
                read()

    @pytest.mark.s3
    def test_a_span_of_an_object_takes_its_part_of_the_index_and_its_tokens(
        self, s3: S3Server, counted: Callable[[S3Server], list[str]]
    ) -> None:
        url, records = self.store(f"s3://{s3.bucket()}/deep", 30_000, s3.options)
        reader = self.open(url, s3.options, check=False)
        assert len(reader) == 30_000  # which reads the header
        requests = counted(s3)
        assert self.same(reader.read_span(20_000, 20_100), records[20_000:20_100])
        assert requests == ["GetObject"] * 3  # lengths, pointers, tokens
        assert self.same([reader[29_999]], records[29_999:])

    @pytest.mark.s3
    def test_many_reads_of_an_object_share_requests(
        self, s3: S3Server, counted: Callable[[S3Server], list[str]]
    ) -> None:
        url, records = self.store(f"s3://{s3.bucket()}/deep", COUNT, s3.options)
        reader = self.open(url, s3.options)
        requests = counted(s3)
        assert self.same(reader.read_many(range(COUNT)), records)
        assert self.same(reader[5:60], records[5:60])
        assert requests == ["GetObject"] * 2


class TestCompat(TestMapped):
    arguments = {"compat": True}  # noqa: RUF012

    @pytest.mark.parametrize("part", [slice(3, 9), slice(None), slice(-5, None), slice(190, 999)])
    def test_slices_are_those_of_a_list(self, source: tuple[str, list[Any]], part: slice) -> None:
        super().test_slices_are_those_of_a_list(source, part)


class TestModes(TestMapped):
    arguments = {"multimodal": True}  # noqa: RUF012
    multimodal = True

    def open(self, url: str, options: dict[str, Any] | None = None, *, check: bool = True) -> MegatronReader:
        return MegatronReader(url, options, check=check, multimodal=True)

    def records(self, count: int) -> list[Any]:
        return [(tokens, number % 5 - 2) for number, tokens in enumerate(super().records(count))]

    def key(self, record: Any) -> Any:
        tokens, mode = record
        return super().key(tokens), int(mode)

    def test_modes_are_where_the_size_says_so(self, source: tuple[str, list[Any]]) -> None:
        reader = MegatronReader(source[0])
        assert reader.sequence_modes is not None
        assert reader.sequence_modes.tolist() == [mode for _, mode in source[1]]
        np.testing.assert_array_equal(reader[7], source[1][7][0])
