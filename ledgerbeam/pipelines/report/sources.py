"""Facts, records and checks of sources and their indexes."""

from __future__ import annotations

import base64
import os
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import islice, zip_longest
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson

from ledgerbeam.errors import IndexMismatchError, LedgerbeamError, RecordError
from ledgerbeam.io import ColumnFormat, OffsetFormat, Options, Reader, Sample, TarFormat, build_index, recognize
from ledgerbeam.io.columns.values import record_json, to_records
from ledgerbeam.io.formats.format import json_value
from ledgerbeam.io.formats.registry import require_no_columns
from ledgerbeam.io.index.file import IndexFile, IndexLocation
from ledgerbeam.io.json_values import dumps
from ledgerbeam.io.listing.pages import Page
from ledgerbeam.io.storage.stat import FileInfo, stat
from ledgerbeam.io.storage.urls import index_again
from ledgerbeam.io.tar.grouping import Grouping
from ledgerbeam.ledger import Source
from ledgerbeam.pipelines.console.reporter import print_json, print_json_stream
from ledgerbeam.sources.listing import stat_source

if TYPE_CHECKING:
    from ledgerbeam.sources.columns import Columns

DEEP_CHUNK_RECORDS = 10_000
PAGE_SOURCES = 1_000


@dataclass(frozen=True)
class Shown:
    """A source and the options to read it."""

    url: str
    location: IndexLocation
    options: Options
    group: Grouping = "auto"
    columns: tuple[str, ...] = ()  # columns to read of a column file; empty for all
    beside: tuple[str, ...] = ()  # folders of columns beside the source

    def columns_beside(self) -> Columns | None:
        """Return the columns beside the source; None without folders. It raises the errors of `ColumnFolder`."""
        if not self.beside:
            return None
        from ledgerbeam.sources.columns import ColumnFolder, Columns  # noqa: PLC0415 - brings pyarrow

        found = stat_source(self.url, self.options)
        source = Source(found.url, found.size, found.version)
        options = self.options or {}
        return Columns([(ColumnFolder(url, options).files_of(source), ()) for url in self.beside], options)

    @contextmanager
    def opened(self) -> Iterator[tuple[Reader, dict[str, Any]]]:
        """Open the source; yield its reader and its facts."""
        source = stat(self.url, self.options)
        found = recognize(source.url, [TarFormat(self.group)])
        columns = found.columns()
        facts: dict[str, Any] = {"source": source.url, "format": found.format.name, "size": source.size}
        if columns is not None:
            with closing(columns.select(self.columns).open_columns(source.url, self.options)) as reader:
                yield reader, facts | {"records": len(reader), "version": source.version} | dict(reader.facts())
            return
        require_no_columns(source.url, self.columns)
        kind = found.by_position()
        index = kind.index_file(source.url, self.location, self.options)
        kind.check_index(index, source)
        facts |= {"records": index.count, "index": index.url, "version": source.version}
        with closing(kind.open(source.url, index, self.options, check=False)) as opened:
            yield opened, facts


def print_facts_of(shown: Shown, *, as_json: bool) -> None:
    """Print format, size and number of records of a source, with the URL of its index or its columns."""
    with shown.opened() as (_, facts):
        if as_json:
            print_json(facts)
            return
        columns: dict[str, str] = facts.pop("columns", {})
        width = max(9, *(len(name) + 1 for name in facts))
        print("\n".join(f"{name.replace('_', ' ') + ':':<{width}} {value}" for name, value in facts.items()))
        for name, kind in columns.items():
            print(f"{'column:':<{width}} {name} ({kind})")


def print_records(shown: Shown, numbers: Sequence[int], *, as_json: bool) -> None:
    """Print records of a source, one per line, or one JSON object. Negative numbers count from the end.

    Raises:
        RecordError: A number is out of range.
    """
    with shown.opened() as (reader, facts):
        count = facts["records"]
        for number in numbers:
            if not -count <= number < count:
                numbers_of = f"records 0 to {count - 1:,}" if count else "no records"
                raise RecordError(f"{reader.url}: record {number} does not exist: the source has {numbers_of}")
        records = reader.read_many([number % count for number in numbers])
    columns = shown.columns_beside()
    places = [number % count for number in numbers]
    beside = [] if columns is None else [record_json(to_records(columns.rows(n, n + 1))[0]) for n in places]
    if as_json:
        rows = [{"record": n, "value": _as_json(r)} for n, r in zip(numbers, records, strict=True)]
        for row, values in zip(rows, beside, strict=False):
            row["columns"] = orjson.loads(values)
        print_json_stream({"source": reader.url}, "records", rows)
    else:
        for line, values in zip_longest(map(_as_line, records), beside):
            sys.stdout.buffer.write(line + b"\n" + (b"" if values is None else b"  " + values + b"\n"))


def _as_json(record: Any) -> Any:
    """Return a record as JSON. Members of a tar sample are text if they are UTF-8, otherwise Base64."""
    if not isinstance(record, Sample):
        return json_value(record)
    members: dict[str, Any] = {"__key__": record.key}
    for extension, content in record.items():
        try:
            members[extension] = content.decode()
        except UnicodeDecodeError:
            members[extension] = {"base64": base64.b64encode(content).decode()}
    return members


def _as_line(record: Any) -> bytes:
    if isinstance(record, Sample):
        members = ", ".join(f"{extension} ({len(content):,} bytes)" for extension, content in record.items())
        return f"{record.key}: {members}".encode(errors="surrogateescape")
    return dumps(_as_json(record))


@dataclass(frozen=True)
class IndexCheck:
    """A check of the indexes of sources, several at a time."""

    location: IndexLocation
    group: Grouping
    options: Options
    deep: bool = False  # whether to scan the sources again and decode every record
    columns: tuple[str, ...] = ()  # columns to read of column files; empty for all

    def run(self, pages: Iterator[Page]) -> Iterator[tuple[str, int | str]]:
        """Yield the URL of each source of a listing with its number of records, or with the problem of the check."""
        sources = (url for page in pages for url in page.urls)
        with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
            while chunk := list(islice(sources, PAGE_SOURCES)):
                yield from zip(chunk, pool.map(self._outcome, chunk), strict=True)

    def _outcome(self, url: str) -> int | str:
        try:
            return self.check(url)
        except LedgerbeamError as error:
            return str(error)

    def check(self, url: str) -> int:
        """Check one source's index and return its number of records.

        A deep check also compares its offsets with a fresh scan, and decodes every record.
        """
        found = recognize(url, [TarFormat(self.group)])
        columns = found.columns()
        if columns is not None:
            return self._check_columns(columns.select(self.columns), url)
        require_no_columns(url, self.columns)
        kind = found.by_position()
        source = stat(url, self.options)
        index = kind.index_file(source.url, self.location, self.options)
        kind.check_index(index, source, deep=self.deep)
        if self.deep:
            if kind.is_indexable:
                self._check_offsets(kind, index, source)
            reader = kind.open(source.url, index, self.options, check=False)
            for start in range(0, index.count, DEEP_CHUNK_RECORDS):
                reader.read_span(start, min(start + DEEP_CHUNK_RECORDS, index.count))
        return index.count

    def _check_columns(self, kind: ColumnFormat, url: str) -> int:
        """Check the footer of a column file; a deep check also decodes every row."""
        with closing(kind.open_columns(url, self.options)) as reader:
            count = len(reader)
            start = 0
            for group in reader.groups if self.deep else ():
                for begin in range(start, start + group.rows, DEEP_CHUNK_RECORDS):
                    reader.read_span(begin, min(begin + DEEP_CHUNK_RECORDS, start + group.rows))
                start += group.rows
            return count

    def _check_offsets(self, kind: OffsetFormat, index: IndexFile, source: FileInfo) -> None:
        found = index.load()
        expected = build_index(source.url, self.options, configured=[kind])
        # The last offset may be anywhere in the padding at the end of a tar file; check_index has checked it.
        if not np.array_equal(expected[:-1], found[:-1]):
            shared = min(len(expected), len(found)) - 1
            differs = np.flatnonzero(expected[:shared] != found[:shared])
            first = int(differs[0]) if len(differs) else shared
            raise IndexMismatchError(
                f"{index.url}: does not match {source.url}: it has {len(found) - 1:,} records, a fresh scan has "
                f"{len(expected) - 1:,}; record {first} is the first that differs; index it again with: "
                f"{index_again(source.url)}"
            )
