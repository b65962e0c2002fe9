"""What a source holds, for people and for machines."""

from __future__ import annotations

import base64
import sys
from collections.abc import Sequence
from typing import Any

from ledgerbeam.errors import RecordError
from ledgerbeam.io import (
    FileInfo,
    Format,
    Grouping,
    IndexFile,
    IndexLocation,
    Options,
    Sample,
    TarFormat,
    recognize,
    stat,
)
from ledgerbeam.io.formats.format import json_value
from ledgerbeam.io.json_values import dumps
from ledgerbeam.pipelines.console import print_json, print_json_stream

__all__ = ["print_facts_of", "print_records"]


def print_facts_of(url: str, location: IndexLocation, options: Options, *, as_json: bool) -> None:
    """Print the format, size and number of records of a source, and where its index lies.

    Args:
        url: Of the source.
        location: Where its index lies.
        options: Storage options.
        as_json: Whether to print one JSON object.
    """
    source, kind, index = _looked_up(url, location, options, "auto")
    facts = {
        "source": source.url,
        "format": kind.name,
        "size": source.size,
        "records": index.count,
        "index": index.url,
        "version": source.version,
    }
    if as_json:
        print_json(facts)
    else:
        print("\n".join(f"{name + ':':<9} {value}" for name, value in facts.items()))


def print_records(
    url: str, location: IndexLocation, options: Options, numbers: Sequence[int], *, group: Grouping, as_json: bool
) -> None:
    """Print records of a source, one a line.

    Args:
        url: Of the source.
        location: Where its index lies.
        options: Storage options.
        numbers: Of the records; negative ones count from the end.
        group: How tar members make samples.
        as_json: Whether to print one JSON object.

    Raises:
        RecordError: If there is no such record.
    """
    source, kind, index = _looked_up(url, location, options, group)
    for number in numbers:
        if not -index.count <= number < index.count:
            raise RecordError(
                f"{source.url}: no record {number}: it has {index.count:,}, from 0 to {index.count - 1:,}"
            )
    reader = kind.open(source.url, index, options, check=False)
    records = reader.read_many([number % index.count for number in numbers])
    if as_json:
        rows = [{"record": n, "value": _as_json(r)} for n, r in zip(numbers, records, strict=True)]
        print_json_stream({"source": source.url}, "records", rows)
    else:
        for record in records:
            sys.stdout.buffer.write(_as_line(record) + b"\n")


def _looked_up(
    url: str, location: IndexLocation, options: Options, group: Grouping
) -> tuple[FileInfo, Format, IndexFile]:
    source = stat(url, options)
    kind = recognize(source.url, [TarFormat(group)]).by_position()
    index = kind.index_file(source.url, location, options)
    kind.check_index(index, source)
    return source, kind, index


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
