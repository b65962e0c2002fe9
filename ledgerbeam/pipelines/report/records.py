"""What a source holds, for people and for machines."""

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
    """A source, and how it is read to be shown.

    Attributes:
        url: The source.
        location: Where its index lies.
        options: Storage options.
        group: How tar members make samples.
        columns: Which columns are read of a file of columns; all for none.
    """

    url: str
    location: IndexLocation
    options: Options
    group: Grouping = "auto"
    columns: tuple[str, ...] = ()

    @contextmanager
    def opened(self) -> Iterator[tuple[Reader, dict[str, Any]]]:
        """Open the source; yield what reads it, and its facts.

        Raises:
            IndexNotFoundError, IndexMismatchError: It has no index, or another's; also the errors of its format.
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
    """Print the format, size and number of records of a source, and where its index lies or which columns it has.

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
    """Print records of a source, one a line.

    Args:
        shown: The source.
        numbers: Of the records; negative ones count from the end.
        as_json: Whether to print one JSON object.

    Raises:
        RecordError: If there is no such record.
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
    """Return a record as JSON: text of a tar sample as text, other bytes as Base64; others as they say themselves."""
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
