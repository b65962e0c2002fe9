"""Tests for formats of your own: derive a class, define its format and records, and run it with pytest or unittest.

class TestTextLines(FormatContract):
    def format(self):
        return TextLines()

    def records(self, count):
        return [f"line {number}" for number in range(count)]

`ColumnContract` is the same for formats of columns.
"""

# ruff: noqa: D102, S311 - the names of the tests describe them; random numbers only choose test cases

from __future__ import annotations

import bz2
import gzip
import os
import pickle
import random
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, closing, contextmanager
from functools import partial
from typing import Any

import numpy as np

from ledgerbeam.errors import LedgerbeamError, NotIndexableError, UsageError
from ledgerbeam.io.compression.streams import Stream
from ledgerbeam.io.formats.format import ColumnFormat, OffsetFormat, Reader, StreamSpan, json_value
from ledgerbeam.io.formats.registry import recognize, require_unused
from ledgerbeam.io.formats.streamed import SpanReader, decode_raw, scan_stream, split_source
from ledgerbeam.io.index.file import IndexFile, write_index
from ledgerbeam.io.json_values import dumps, loads
from ledgerbeam.io.storage.publish import publish_bytes
from ledgerbeam.io.storage.stat import stat

_COUNT = 60
_TRIALS = 60
_SPANS = ((0, _COUNT), (0, 1), (17, 41), (_COUNT - 1, _COUNT), (5, 5))


class _Contract(ABC):
    @abstractmethod
    def format(self) -> Any: ...

    @abstractmethod
    def records(self, count: int) -> list[Any]: ...

    def key(self, record: Any) -> Any:
        return record

    @abstractmethod
    def _opened(self, count: int, kind: Any = None) -> AbstractContextManager[tuple[Any, list[Any]]]:
        """Write a file of `count` records; yield its reader and the records. Default of `kind`: `format()`."""

    def test_its_name_and_suffixes_can_be_registered(self) -> None:
        require_unused(self.format())
        equal(recognize(f"s3://bucket/a{self._suffix}", [self.format()]).format.name, self.format().name, "a name")

    def test_records_come_back_as_they_were_written(self) -> None:
        with self._opened(_COUNT) as (reader, records):
            equal(len(reader), _COUNT, "the number of records")
            self._same(list(reader), records, "all records")
            self._same([reader[number] for number in range(_COUNT)], records, "records one by one")
            self._same([reader[-1], reader[-_COUNT]], [records[-1], records[0]], "records counted from the end")
            self._same(reader[7:40:3], records[7:40:3], "a slice")
            self._same(reader[50:], records[50:], "the end")
            numbers = random.Random(3).choices(range(-_COUNT, _COUNT), k=90)
            self._same(reader.read_many(numbers), [records[number] for number in numbers], "records in the order asked")
            for start, stop in _SPANS:
                self._same(reader.read_span(start, stop), records[start:stop], f"the span [{start}, {stop})")
            for number in (_COUNT, -_COUNT - 1):
                refused(partial(reader.__getitem__, number), IndexError, f"record {number} of {_COUNT}")

    def test_an_empty_source_has_no_records(self) -> None:
        with self._opened(0) as (reader, _):
            equal((len(reader), list(reader), reader.read_span(0, 0)), (0, [], []), "an empty source")

    def test_formats_and_readers_are_pickled_and_shared(self) -> None:
        kind = pickle.loads(pickle.dumps(self.format()))  # noqa: S301 - our own
        equal(kind.name, self.format().name, "the name of a pickled format")
        with self._opened(_COUNT, kind) as (reader, records):
            copied: Reader = pickle.loads(pickle.dumps(reader))  # noqa: S301 - our own
            self._same([copied[3], copied[-1]], [records[3], records[-1]], "records of a pickled reader")
            numbers = random.Random(1).choices(range(_COUNT), k=500)
            with ThreadPoolExecutor(4) as pool:
                found = list(pool.map(reader.__getitem__, numbers))
            self._same(found, [records[number] for number in numbers], "records that threads read")
            copied.close()
            self._same([copied[5]], [records[5]], "a record of a reader that was closed")
            copied.close()

    @property
    def _suffix(self) -> str:
        suffix: str = self.format().suffixes[0]
        return suffix

    def _same(self, found: list[Any], expected: list[Any], what: str) -> None:
        equal([self.key(record) for record in found], [self.key(record) for record in expected], what)


class FormatContract(_Contract):
    """Tests for every format of offsets.

    Attributes:
        takes_json: Whether `encode` also accepts the JSON values of its records, as `convert` passes them.
    """

    takes_json: bool = True

    @abstractmethod
    def format(self) -> OffsetFormat:
        """Create the format."""

    @abstractmethod
    def records(self, count: int) -> list[Any]:
        """Return distinct records, of different lengths."""

    def key(self, record: Any) -> Any:
        """Return a value that is equal for equal records only. Default: `repr`."""
        return repr(record)

    def test_the_index_that_is_written_is_the_one_that_is_found(self) -> None:
        for count in (0, 1, _COUNT):
            with self._source(count) as (url, _):
                found = self.format().build_index(url)
                equal(str(found.dtype), "uint64", "the type of offsets")
                equal(found.tolist(), IndexFile(f"{url}.idx").load().tolist(), "the offsets")
                self.format().check_index(IndexFile(f"{url}.idx"), stat(url), deep=True)

    def test_the_bytes_of_records_make_up_the_source(self) -> None:
        with self._source(_COUNT) as (url, _), self._open(url) as reader:
            joined = b"".join(reader.raw(number) for number in range(_COUNT))
            equal(_read(url).startswith(joined), True, "whether the bytes of all records make up the source")

    def test_the_bytes_of_spans_are_decoded_one_by_one(self) -> None:
        with self._source(_COUNT) as (url, records), self._open(url) as reader:
            data = _read(url)
            for start, stop in ((0, _COUNT), (17, 41), (_COUNT - 1, _COUNT), (5, 5)):
                found = reader.read_raw(start, stop)
                equal([raw.record for raw in found], list(range(start, stop)), "the numbers of raw records")
                equal([raw.data for raw in found], [data[raw.start : raw.stop] for raw in found], "their bytes")
                if self.format().is_streamable:
                    decoded = [decode_raw(self.format(), raw) for raw in found]
                    self._same(decoded, records[start:stop], "records decoded one by one")
            if self.format().is_streamable:
                whole = reader.read_raw(0, _COUNT)
                equal(self.format().split_raw(data, reader.url)[:-1], whole[:-1], "raw records in memory")

    def test_encoding_is_a_pure_function_of_the_records(self) -> None:
        first = self.format().encode(self.records(_COUNT))
        equal(self.format().encode(self.records(_COUNT)), first, "the bytes of the same records")
        equal([file.records for file in first], [_COUNT, 0], "the records of the two files of a shard")
        equal([file.ending for file in first], [self._suffix, f"{self._suffix}.idx"], "the endings of their names")

    def test_a_source_in_memory_is_split(self) -> None:
        with self._source(_COUNT) as (url, records):
            data, own = _read(url), [self.format()]
            self._same(split_source(data, url, own), records, "a source in memory")
            if self.format().is_streamable:
                self._same(split_source(gzip.compress(data), f"{url}.gz", own), records, "a compressed one in memory")

    def test_a_compressed_source_is_found_and_read_in_spans(self) -> None:
        if not self.format().is_streamable:
            return
        with self._source(_COUNT) as (url, records):
            packed = f"{url}.bz2"
            publish_bytes(packed, bz2.compress(_read(url)))
            found = scan_stream(packed, None, self.format())
            offsets = found.offsets.tolist()
            equal(offsets[:-1], IndexFile(f"{url}.idx").load().tolist()[:-1], "the offsets of a compressed source")
            kind = pickle.loads(pickle.dumps(found.format))  # noqa: S301 - as for workers
            for step in (1, 7, _COUNT):
                with SpanReader(packed, None, kind) as reader:
                    for start in range(0, _COUNT, step):
                        stop = min(_COUNT, start + step)
                        span = StreamSpan(start, stop - start, offsets[start], offsets[stop])
                        self._same(reader.read(span), records[start:stop], f"the span [{start}, {stop}) of a stream")
            with SpanReader(packed, None, kind) as reader:
                wrong = StreamSpan(0, 2, 0, offsets[1])
                refused(lambda: reader.read(wrong), LedgerbeamError, "a span of another number of records")

    def test_records_may_reach_over_the_blocks_of_a_stream(self) -> None:
        if not self.format().is_streamable:
            return
        with self._source(_COUNT) as (url, _):
            data = _read(url)
            expected = self._scanned(url, [data])
            for size in (1, 3, 100, 4096):
                pieces = [data[at : at + size] for at in range(0, len(data), size)]
                equal(self._scanned(url, pieces), expected, f"the offsets found in blocks of {size} bytes")

    def test_records_have_a_json_value(self) -> None:
        for record in self.records(_COUNT):
            again = loads(dumps(json_value(record)))
            if self.takes_json:
                equal(
                    self.format().encode([again])[0].data,
                    self.format().encode([record])[0].data,
                    f"the bytes of the JSON value of {record!r:.60}",
                )

    def test_an_index_of_other_boundaries_gives_no_wrong_record(self) -> None:
        for change in (1, 3, 512):
            with self._source(_COUNT) as (url, records):
                offsets = IndexFile(f"{url}.idx").load().copy()
                offsets[1:-1] += np.uint64(change)
                write_index(f"{url}.idx", offsets)
                for read in (lambda reader: [reader[5]], lambda reader: reader.read_span(5, 6)):
                    try:
                        with self._open(url) as reader:
                            found = read(reader)
                    except LedgerbeamError:
                        continue
                    self._same(found, records[5:6], f"record 5 through an index that is off by {change}")

    def test_a_source_that_was_cut_is_an_error(self) -> None:
        with self._source(_COUNT) as (url, _):
            size = int(IndexFile(f"{url}.idx").load()[_COUNT // 2]) + 1
            with self._open(url) as reader:
                os.truncate(url, size)
                refused(lambda: reader.read_span(0, _COUNT), LedgerbeamError, "reading a source that was cut")
            refused(lambda: self.format().open(url), LedgerbeamError, "opening a source that was cut")

    def test_damage_gives_no_other_errors_than_those_of_the_library(self) -> None:
        chance = random.Random(11)
        with self._source(_COUNT) as (url, _):
            whole = _read(url)
            for _ in range(_TRIALS):
                publish_bytes(url, _damaged(whole, chance))
                for use in (self.format().build_index, self._read_all, lambda url: self._scanned(url, [_read(url)])):
                    with _own_errors():
                        use(url)

    def _read_all(self, url: str) -> None:
        split_source(_read(url), url, [self.format()])
        reader = self.format().open(url, check=False)
        reader.read_span(0, len(reader))

    def _scanned(self, url: str, blocks: list[bytes]) -> list[int]:
        if not self.format().is_streamable:
            return []
        stream = Stream(url)
        stream.close()
        stream._blocks = iter(blocks)  # noqa: SLF001 - blocks of a real file are larger than the files of tests
        found: list[int] = self.format().scan(stream).offsets.tolist()
        return found

    @contextmanager
    def _source(self, count: int) -> Iterator[tuple[str, list[Any]]]:
        """Write a shard of `count` records; yield its URL and the records."""
        records = self.records(count)
        with tempfile.TemporaryDirectory() as folder:
            for file in self.format().encode(records):
                publish_bytes(f"{folder}/source{file.ending}", file.data)
            yield f"{folder}/source{self._suffix}", records

    def _open(self, url: str, kind: OffsetFormat | None = None) -> AbstractContextManager[Reader]:
        return closing((kind or self.format()).open(url))

    @contextmanager
    def _opened(self, count: int, kind: Any = None) -> Iterator[tuple[Any, list[Any]]]:
        with self._source(count) as (url, records), self._open(url, kind) as reader:
            yield reader, records


class ColumnContract(_Contract):
    """Tests for every format of columns: reads by rows and by columns return the written values."""

    @abstractmethod
    def format(self) -> ColumnFormat:
        """Create the format."""

    @abstractmethod
    def records(self, count: int) -> list[dict[str, Any]]:
        """Return distinct records with the same keys, at least two."""

    @abstractmethod
    def content(self, records: list[dict[str, Any]]) -> bytes:
        """Return a file of records, with several row groups if there are many records."""

    def test_its_name_and_suffixes_can_be_registered(self) -> None:
        super().test_its_name_and_suffixes_can_be_registered()
        found = recognize(f"s3://bucket/a{self._suffix}", [self.format()])
        refused(found.by_position, NotIndexableError, "an index of a file of columns")
        refused(
            recognize(f"a{self._suffix}.gz", [self.format()]).columns, NotIndexableError, "a file compressed as a whole"
        )

    def test_spans_begin_and_end_anywhere(self) -> None:
        with self._opened(_COUNT) as (reader, records):
            equal(sum(group.rows for group in reader.groups), _COUNT, "the rows of the row groups")
            for start, stop in (*_SPANS, (_COUNT, _COUNT)):
                equal(reader.read_span(start, stop), records[start:stop], f"the span [{start}, {stop})")
                equal(reader.read_each(start, stop), records[start:stop], f"the span [{start}, {stop}) one by one")
                batch, numbers = reader.read_batch(start, stop), np.arange(start, stop, 2)
                equal(batch.num_rows, stop - start, "the rows of a batch")
                some = reader.decode_each(reader.read_rows(numbers), numbers.tolist())
                equal(some, records[start:stop:2], f"every second row of [{start}, {stop})")
                raws = reader.read_raw(start, stop)
                equal([raw.record for raw in raws], list(range(start, stop)), "the numbers of raw records")
                values = [loads(dumps(json_value(record))) for record in records[start:stop]]
                equal([loads(raw.data) for raw in raws], values, "raw records")
            equal(loads(reader.raw(3)), loads(dumps(json_value(records[3]))), "a raw record")
            refused(partial(reader.read_span, 0, _COUNT + 1), LedgerbeamError, "a span beyond the end")
            refused(partial(reader.read_span, 5, 4), UsageError, "a span that ends before it begins")

    def test_chosen_columns_are_all_that_is_read(self) -> None:
        names = list(self.records(1)[0])
        for chosen in ([names[0]], [names[-1], names[0]], names):
            with self._opened(_COUNT, self.format().select(chosen)) as (reader, records):
                kept = [{name: record[name] for name in names if name in chosen} for record in records]
                equal(list(reader), kept, f"the columns {chosen}")
                equal(reader.read_batch(3, 9).column_names, [name for name in names if name in chosen], "their names")
        refused(
            lambda: self._opened(1, self.format().select(["no such column"])).__enter__(),
            UsageError,
            "an unknown column",
        )

    def test_a_source_in_memory_is_read_alike(self) -> None:
        records = self.records(_COUNT)
        data = self.content(records)
        reader = self.format().open_bytes(data, f"a{self._suffix}")
        equal((list(reader), reader[-1]), (records, records[-1]), "a source in memory")
        equal(split_source(data, f"a{self._suffix}", [self.format()]), records, "the same, split")

    def test_a_source_that_was_cut_is_an_error(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            url = f"{folder}/a{self._suffix}"
            publish_bytes(url, self.content(self.records(_COUNT)))
            reader = self.format().open_columns(url)
            os.truncate(url, 100)
            refused(lambda: reader.read_span(0, _COUNT), LedgerbeamError, "reading a source that was cut")
            refused(lambda: self.format().open_columns(url), LedgerbeamError, "opening a source that was cut")
            reader.close()

    def test_damage_gives_no_other_errors_than_those_of_the_library(self) -> None:
        chance = random.Random(11)
        whole = self.content(self.records(_COUNT))
        for _ in range(_TRIALS):
            data = _damaged(whole, chance)
            with _own_errors():
                reader = self.format().open_bytes(data, f"a{self._suffix}")
                reader.read_span(0, min(len(reader), 10 * _COUNT))

    @contextmanager
    def _opened(self, count: int, kind: Any = None) -> Iterator[tuple[Any, list[Any]]]:
        records = self.records(max(count, 1))[:count]
        with tempfile.TemporaryDirectory() as folder:
            url = f"{folder}/a{self._suffix}"
            publish_bytes(url, self.content(records))
            with closing((kind or self.format()).open_columns(url)) as reader:
                yield reader, records


def _read(url: str) -> bytes:
    with open(url, "rb") as file:
        return file.read()


def equal(found: Any, expected: Any, what: str) -> None:
    """Raise AssertionError unless two values are equal."""
    if found != expected:
        raise AssertionError(f"{what}: expected {expected!r:.500}, found {found!r:.500}")


def refused(act: Callable[[], Any], error: type[Exception], what: str) -> None:
    """Raise AssertionError unless a call raises an error of a kind."""
    try:
        act()
    except error:
        return
    raise AssertionError(f"{what}: expected {error.__name__}, found no error")


@contextmanager
def _own_errors() -> Iterator[None]:
    """Accept errors of the library, as of damaged data; raise AssertionError for any other exception."""
    try:
        yield
    except LedgerbeamError:
        pass
    except Exception as error:
        raise AssertionError(f"damaged data: expected a LedgerbeamError, found {error!r}") from error


def _damaged(whole: bytes, chance: random.Random) -> bytes:
    """Return the bytes with one to four random changes, and truncated in 30 % of the calls."""
    data = bytearray(whole[: chance.randrange(1, len(whole) + 1)] if chance.random() < 0.3 else whole)
    for _ in range(chance.randrange(1, 5)):
        data[chance.randrange(len(data))] = chance.randrange(256)
    return bytes(data)
