"""Facts and records of one source, printed as text or JSON."""

from __future__ import annotations

import base64
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any

from ledgerbeam.errors import RecordError
from ledgerbeam.io import Options, Reader, Sample, TarFormat, recognize
from ledgerbeam.io.formats.format import json_value
from ledgerbeam.io.formats.registry import require_no_columns
from ledgerbeam.io.index.location import IndexLocation
from ledgerbeam.io.json_values import dumps
from ledgerbeam.io.storage.stat import stat
from ledgerbeam.io.tar.grouping import Grouping
from ledgerbeam.pipelines.console.reporter import print_json, print_json_stream


@dataclass(frozen=True)
class Shown:
    """A source and the options to read it.

    Attributes:
        url: The source.
        location: Location of the index.
        options: Storage options.
        group: Grouping of tar members to samples.
        columns: Columns to read of a column file; empty for all.
    """

    url: str
    location: IndexLocation
    options: Options
    group: Grouping = "auto"
    columns: tuple[str, ...] = ()

    @contextmanager
    def opened(self) -> Iterator[tuple[Reader, dict[str, Any]]]:
        """Open the source; yield its reader and its facts.

        Raises:
            IndexNotFoundError: The source has no index.
            IndexMismatchError: The index does not match the source.
            SourceError: The format cannot read the source.
        """
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
    """Print format, size and number of records of a source, with the URL of its index or its columns.

    Args:
        shown: The source.
        as_json: Whether to print one JSON object.
    """
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
    """Print records of a source, one per line.

    Args:
        shown: The source.
        numbers: Numbers of the records. Negative numbers count from the end.
        as_json: Whether to print one JSON object.

    Raises:
        RecordError: A number is out of range.
    """
    with shown.opened() as (reader, facts):
        count = facts["records"]
        for number in numbers:
            if not -count <= number < count:
                raise RecordError(
                    f"{reader.url}: no record {number}: it has {count:,}"
                    + (f", from 0 to {count - 1:,}" if count else "")
                )
        records = reader.read_many([number % count for number in numbers])
    if as_json:
        rows = [{"record": n, "value": _as_json(r)} for n, r in zip(numbers, records, strict=True)]
        print_json_stream({"source": reader.url}, "records", rows)
    else:
        for record in records:
            sys.stdout.buffer.write(_as_line(record) + b"\n")


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
