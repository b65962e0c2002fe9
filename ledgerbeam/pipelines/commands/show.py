"""``ledgerbeam show``: what a source holds, or some of its records."""

from __future__ import annotations

import argparse
import base64
import sys
from typing import Any

from ledgerbeam.errors import RecordError
from ledgerbeam.io import IndexLocation, Sample, Tar, canonical_url, recognize, stat
from ledgerbeam.io.formats.conversion import to_json
from ledgerbeam.io.jsonl.values import dumps
from ledgerbeam.pipelines.console import print_json, print_json_stream

__all__ = ["main"]


def main(args: argparse.Namespace, _: list[str]) -> int:
    """Prints the source's facts, or the records asked for, one a line."""
    source = stat(canonical_url(args.source), args.storage_options)
    kind = recognize(source.url, [Tar(args.group)]).by_position()
    location = IndexLocation(root=args.index_root and canonical_url(args.index_root), rule=args.index_rule)
    index = kind.index_file(source.url, location, args.storage_options)
    kind.check_index(index, source)
    if not args.records:
        facts = {"source": source.url, "format": kind.name, "size": source.size, "records": index.count,
                 "index": index.url, "version": source.version}  # fmt: skip
        if args.json:
            print_json(facts)
        else:
            print("\n".join(f"{name + ':':<9} {value}" for name, value in facts.items()))
        return 0
    for number in args.records:
        if not -index.count <= number < index.count:
            raise RecordError(
                f"{source.url}: no record {number}: it has {index.count:,}, from 0 to {index.count - 1:,}"
            )
    reader = kind.open(source.url, index, args.storage_options, check=False)
    records = reader.read_many([number % index.count for number in args.records])
    if args.json:
        rows = [{"record": n, "value": _as_json(r)} for n, r in zip(args.records, records, strict=True)]
        print_json_stream({"source": source.url}, "records", rows)
    else:
        for record in records:
            sys.stdout.buffer.write(_as_line(record) + b"\n")
    return 0


def _as_json(record: Any) -> Any:
    """A tar sample as JSON: text as text, other bytes as Base64; others as `to_json` makes them."""
    if not isinstance(record, Sample):
        (value,) = to_json(record)
        return value
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
