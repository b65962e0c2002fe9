"""Tests for every indexed reader. The test class of a format inherits them."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import pickle
import random
import time
from abc import ABC, abstractmethod
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ledgerbeam.errors import (
    ChangedSourceError,
    IndexMismatchError,
    IndexNotFoundError,
    SourceNotFoundError,
    UsageError,
)
from ledgerbeam.io import Sample
from ledgerbeam.io.formats.format import OffsetFormat, Reader
from ledgerbeam.io.index.file import IndexFile, write_index
from ledgerbeam.io.storage.client import filesystem
from ledgerbeam.io.storage.publish import publish_bytes
from ledgerbeam.io.storage.stat import stat
from tests.conftest import S3Requests, S3Server

COUNT = 200
_numbers = itertools.count()


def fresh(folder: str) -> str:
    """Return a place in a folder that no earlier call has returned."""
    return f"{folder}/source-{next(_numbers)}"


class SequenceConformance(ABC):
    """Tests for every reader with any index. A format defines `open`, `store`, `records` and `key`."""

    most_pickled = 1500  # bytes of a pickled reader

    @abstractmethod
    def open(self, url: str, options: dict[str, Any] | None = None) -> Any:
        """Open the files of `store`: a `Reader`, perhaps without raw records."""

    @abstractmethod
    def store(self, folder: str, count: int, options: dict[str, Any] | None = None) -> tuple[str, list[Any]]:
        """Write a source of `count` records; return its URL and the records."""

    def files(self, url: str) -> list[str]:
        """Name of the files of a source."""
        return [url, url + ".idx"]

    def opened(self, url: str) -> set[str]:
        """Files of which some are open after a read."""
        return {url}

    @abstractmethod
    def records(self, count: int) -> list[Any]:
        """Distinct records."""

    def key(self, record: Any) -> Any:
        """Return a value that is equal for equal records."""
        return (record.key, list(record.items())) if isinstance(record, Sample) else record

    def same(self, found: list[Any], expected: list[Any]) -> bool:
        return [self.key(record) for record in found] == [self.key(record) for record in expected]

    @pytest.fixture
    def source(self, tmp_path: Path) -> tuple[str, list[Any]]:
        return self.store(str(tmp_path), COUNT)

    def test_len_is_the_number_of_records(self, source: tuple[str, list[Any]]) -> None:
        reader = self.open(source[0])
        assert len(reader) == COUNT
        reader[0]
        assert len(reader) == COUNT

    def test_ints_count_from_either_end(self, source: tuple[str, list[Any]]) -> None:
        url, records = source
        reader = self.open(url)
        assert self.same([reader[i] for i in range(COUNT)], records)
        assert self.same([reader[i - COUNT] for i in range(COUNT)], records)
        assert self.same([reader[np.int64(7)]], [records[7]])

    @pytest.mark.parametrize("index", [COUNT, -COUNT - 1, 10**12])
    def test_an_int_out_of_range_is_an_index_error(self, source: tuple[str, list[Any]], index: int) -> None:
        with pytest.raises(IndexError, match="it has 200"):
            self.open(source[0])[index]

    def test_other_indices_are_type_errors(self, source: tuple[str, list[Any]]) -> None:
        with pytest.raises(TypeError):
            self.open(source[0])["0"]

    @pytest.mark.parametrize(
        "part", [slice(3, 9), slice(None), slice(-5, None), slice(9, 3), slice(None, None, -7), slice(190, 999)]
    )
    def test_slices_are_those_of_a_list(self, source: tuple[str, list[Any]], part: slice) -> None:
        url, records = source
        assert self.same(self.open(url)[part], records[part])

    def test_read_many_keeps_the_order_asked(self, source: tuple[str, list[Any]]) -> None:
        url, records = source
        indices = random.Random(5).choices(range(-COUNT, COUNT), k=300)
        assert self.same(self.open(url).read_many(indices), [records[i] for i in indices])
        assert self.open(url).read_many([]) == []

    def test_iteration_gives_all_in_order(self, source: tuple[str, list[Any]]) -> None:
        url, records = source
        assert self.same(list(self.open(url)), records)

    def test_raw_records_joined_are_the_source(self, source: tuple[str, list[Any]]) -> None:
        reader = self.open(source[0])
        joined = b"".join(reader.raw(i) for i in range(COUNT))
        assert Path(source[0]).read_bytes().startswith(joined)

    @pytest.mark.parametrize(("start", "stop"), [(0, COUNT), (0, 1), (17, 60), (COUNT - 1, COUNT), (5, 5)])
    @pytest.mark.parametrize("loaded", [False, True])
    def test_a_span_is_a_slice(self, source: tuple[str, list[Any]], start: int, stop: int, loaded: bool) -> None:
        url, records = source
        reader = self.open(url)
        if loaded:
            reader[0]
        assert self.same(reader.read_span(start, stop), records[start:stop])

    @pytest.mark.parametrize("loaded", [False, True])
    def test_a_span_past_the_end_is_an_error(self, source: tuple[str, list[Any]], loaded: bool) -> None:
        reader = self.open(source[0])
        if loaded:
            reader[0]
        with pytest.raises(IndexMismatchError, match="expected at least 201 records"):
            reader.read_span(190, COUNT + 1)
        with pytest.raises(UsageError, match="not a span"):
            reader.read_span(3, 2)

    def test_pickled_readers_read_the_same(self, source: tuple[str, list[Any]]) -> None:
        url, records = source
        reader = self.open(url)
        for _ in ("new", "used"):
            copy: Reader = pickle.loads(pickle.dumps(reader))
            assert self.same([copy[3], copy[-1]], [records[3], records[-1]])
            reader[0]
        assert len(pickle.dumps(reader)) < self.most_pickled

    def test_repr_names_source_and_index(self, source: tuple[str, list[Any]]) -> None:
        for name in self.files(source[0]):
            assert name in repr(self.open(source[0]))

    def test_threads_share_a_reader(self, source: tuple[str, list[Any]]) -> None:
        url, records = source
        reader = self.open(url)
        indices = random.Random(1).choices(range(COUNT), k=2000)
        with ThreadPoolExecutor(8) as pool:
            assert self.same(list(pool.map(reader.__getitem__, indices)), [records[i] for i in indices])

    def test_a_forked_child_reads_through_the_parents_reader(self, source: tuple[str, list[Any]]) -> None:
        url, records = source
        reader = self.open(url)
        reader[0]
        context = multiprocessing.get_context("fork")
        queue: Any = context.SimpleQueue()

        def child() -> None:
            queue.put(all(self.key(reader[i]) == self.key(records[i]) for i in range(COUNT)))

        process = context.Process(target=child)
        process.start()
        mine = [reader[i] for i in range(COUNT)]
        process.join(60)
        assert process.exitcode == 0
        assert queue.get()
        assert self.same(mine, records)

    def test_a_reader_can_be_closed_and_used_again(self, source: tuple[str, list[Any]]) -> None:
        url, records = source
        reader = self.open(url)
        reader[0]
        assert open_files() & self.opened(url)
        reader.close()
        assert not open_files() & {*self.opened(url), *self.files(url)}
        assert self.same([reader[1]], [records[1]])

    def test_a_single_record(self, tmp_path: Path) -> None:
        url, records = self.store(str(tmp_path), 1)
        reader = self.open(url)
        assert self.same([reader[0], *reader.read_span(0, 1), *reader], records * 3)

    def test_a_source_without_records(self, tmp_path: Path) -> None:
        url, _ = self.store(str(tmp_path), 0)
        reader = self.open(url)
        assert len(reader) == 0
        assert list(reader) == []
        assert reader.read_span(0, 0) == []
        with pytest.raises(IndexError):
            reader[0]

    def test_memory_store_is_read(self) -> None:
        url, records = self.store("memory://conformance", COUNT)
        try:
            reader = self.open(url)
            assert self.same(reader.read_span(5, 50), records[5:50])
            assert self.same(reader[:], records)
        finally:
            filesystem("memory://").rm("/conformance", recursive=True)

    @pytest.mark.s3
    def test_object_store_is_read(self, s3: S3Server) -> None:
        url, records = self.store(f"s3://{s3.bucket()}/deep", COUNT, s3.options)
        reader = self.open(url, s3.options)
        assert self.same(reader.read_span(5, 50), records[5:50])
        assert self.same([reader[-1], *reader.read_many([9, 3, 4])], [records[-1], records[9], records[3], records[4]])
        assert self.same(list(reader), records)


class ReaderConformance(SequenceConformance):
    """Tests for formats with a `.idx` of offsets, which also define `format`."""

    format: OffsetFormat
    shift = 512  # error of wrong boundaries in bytes; less than the shortest record

    def open(self, url: str, options: dict[str, Any] | None = None) -> Reader:
        return self.format.open(url, None, options)

    def store(self, folder: str, count: int, options: dict[str, Any] | None = None) -> tuple[str, list[Any]]:
        records = self.records(count)
        name = fresh(folder)
        for file in self.format.encode(records):
            publish_bytes(name + file.ending, file.data, options)
        return name + self.format.suffixes[0], records

    def test_the_index_of_encode_is_the_one_that_a_scan_finds(self, source: tuple[str, list[Any]]) -> None:
        found = self.format.build_index(source[0])
        assert found.dtype == np.uint64
        np.testing.assert_array_equal(found, IndexFile(source[0] + ".idx").load())

    def test_split_decodes_a_whole_file(self, source: tuple[str, list[Any]]) -> None:
        url, records = source
        assert self.same(self.format.split(Path(url).read_bytes(), url), records)

    @pytest.mark.s3
    def test_object_store_is_indexed(self, s3: S3Server) -> None:
        url, _ = self.store(f"s3://{s3.bucket()}/deep", COUNT, s3.options)
        found = self.format.build_index(url, s3.options)
        np.testing.assert_array_equal(found, IndexFile(url + ".idx", s3.options).load())

    @pytest.mark.s3
    def test_a_span_of_an_object_is_two_requests(self, s3: S3Server, s3_requests: S3Requests) -> None:
        url, records = self.store(f"s3://{s3.bucket()}/deep", COUNT, s3.options)
        reader = self.format.open(url, None, s3.options, check=False)
        s3_requests.take()
        assert self.same(reader.read_span(20, 120), records[20:120])
        assert s3_requests.take() == ["get_object"] * 2  # index and data

    def test_a_missing_source(self, tmp_path: Path) -> None:
        for use in (self.format.open, self.format.build_index):
            with pytest.raises(SourceNotFoundError, match="absent"):
                use(str(tmp_path / f"absent{self.format.suffixes[0]}"))

    def test_a_missing_index_names_the_command_that_builds_it(self, source: tuple[str, list[Any]]) -> None:
        os.unlink(source[0] + ".idx")
        unchecked = self.format.open(source[0], check=False)
        for use in (lambda: self.format.open(source[0]), lambda: unchecked.read_span(0, 3)):
            with pytest.raises(IndexNotFoundError, match=f"ledgerbeam index {source[0]}"):
                use()

    def test_an_index_elsewhere(self, source: tuple[str, list[Any]], tmp_path: Path) -> None:
        os.rename(source[0] + ".idx", tmp_path / "elsewhere")
        for index in (str(tmp_path / "elsewhere"), IndexFile(str(tmp_path / "elsewhere"))):
            assert self.same([self.format.open(source[0], index)[2]], [source[1][2]])

    def test_a_source_that_was_cut_is_an_error_on_open_and_on_read(self, source: tuple[str, list[Any]]) -> None:
        url, records = source
        reader = self.format.open(url)
        part = int(IndexFile(url + ".idx").load()[100]) + 7
        assert self.same([reader[99]], [records[99]])
        os.truncate(url, part)
        assert self.same([reader[99]], [records[99]])
        for read in (lambda: reader[100], lambda: reader.read_span(0, COUNT), lambda: reader[90:110]):
            with pytest.raises(ChangedSourceError, match=str(part)):
                read()
        touch(url, -10)
        with pytest.raises(IndexMismatchError, match=f"{part}.*ledgerbeam index --force {url}"):
            self.format.open(url)

    def test_a_source_replaced_before_its_first_read(self, source: tuple[str, list[Any]], tmp_path: Path) -> None:
        url, records = source
        reader = self.open(url)
        (tmp_path / "new").write_bytes(bytes(os.path.getsize(url)))
        os.replace(tmp_path / "new", url)
        try:
            found = [reader[0]]  # of the file that was opened with the reader, or not at all
        except ChangedSourceError as error:
            assert "changed since it was listed" in str(error)  # noqa: PT017 - one of both
        else:
            assert self.same(found, records[:1])

    def test_a_source_newer_than_its_index_is_stale(self, source: tuple[str, list[Any]]) -> None:
        touch(source[0], 10)
        with pytest.raises(IndexMismatchError, match=r"s older\. Rebuild it: ledgerbeam index --force"):
            self.format.open(source[0])

    @pytest.mark.parametrize(
        ("content", "found"),
        [
            (b"", "an empty file"),
            (b"\0" * 12, "multiple of 8 bytes, found 12"),
            (b"0\n7\n14\n21\n", "decimal text"),
            (b"0\n100\n20000\n30000\n", "decimal text"),
            (b"0\n8\n16\n24\n32\n40\n", "decimal text"),  # of whole numbers of eight bytes
        ],
    )
    def test_a_file_that_is_no_index(self, source: tuple[str, list[Any]], content: bytes, found: str) -> None:
        Path(source[0] + ".idx").write_bytes(content)
        with pytest.raises(IndexMismatchError, match=f"{found}.*ledgerbeam index --force {source[0]}"):
            self.format.open(source[0])

    def test_decreasing_offsets(self, source: tuple[str, list[Any]]) -> None:
        offsets = IndexFile(source[0] + ".idx").load().copy()
        offsets[[50, 51]] = offsets[[51, 50]]
        write_index(source[0] + ".idx", offsets)
        reader, index = self.format.open(source[0]), IndexFile(source[0] + ".idx")
        for use in (
            lambda: reader[0],
            lambda: reader.read_span(45, 60),
            lambda: self.format.check_index(index, stat(source[0]), deep=True),
        ):
            with pytest.raises(IndexMismatchError, match="record 50 at byte"):
                use()

    def test_the_index_of_another_source(self, source: tuple[str, list[Any]], tmp_path: Path) -> None:
        other, _ = self.store(str(tmp_path), COUNT // 2)
        os.replace(other + ".idx", source[0] + ".idx")
        with pytest.raises(IndexMismatchError):
            self.format.open(source[0]).read_span(0, COUNT // 2)

    def test_an_index_with_shifted_boundaries_never_gives_a_wrong_record(self, source: tuple[str, list[Any]]) -> None:
        offsets = IndexFile(source[0] + ".idx").load().copy()
        offsets[1:-1] += np.uint64(self.shift)
        write_index(source[0] + ".idx", offsets)
        reader = self.format.open(source[0])
        for read in (lambda: reader[5], lambda: reader.read_span(5, 9), lambda: reader.read_many([5])):
            with pytest.raises(IndexMismatchError, match=r"expected (record|sample)"):
                read()


def open_files() -> set[str]:
    links = [f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd")]
    return {os.readlink(link) for link in links if os.path.islink(link)}


def touch(path: str, seconds: float) -> None:
    """Make a file newer than its index by some time (older if negative)."""
    moment = time.time() - 100  # a time in the future shows nothing
    os.utime(path + ".idx", (moment, moment))
    os.utime(path, (moment + seconds, moment + seconds))
