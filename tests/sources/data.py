"""Files that are sources."""

from __future__ import annotations

import dataclasses
import io
import json
import tarfile
from pathlib import Path

from ledgerbeam.io import build_index, publish_bytes, write_index
from ledgerbeam.io.any_source import seek_points_of
from ledgerbeam.io.index.file import Offsets
from ledgerbeam.io.listing.pages import list_pages
from ledgerbeam.io.storage.client import Options
from ledgerbeam.ledger import Source
from ledgerbeam.ledger.model.identity import content_checksum, content_version


def listed(url: str | Path, options: Options | None = None) -> Source:
    """Return a source as a listing finds it."""
    (page,) = list_pages([str(url)], options)
    return Source(page.urls[0], page.sizes[0], page.versions[0])


def put(path: Path, data: bytes) -> Source:
    """Write a file, and return it as a source."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return listed(path)


def with_content(source: Source, data: bytes) -> Source:
    """Return a source that is identified by its content."""
    return dataclasses.replace(source, version=content_version(content_checksum([data])))


def put_known(path: Path, data: bytes) -> Source:
    return with_content(put(path, data), data)


def put_index(source: Source, offsets: Offsets | None = None) -> None:
    """Write the index of a source, and the seek points of one in gzip."""
    offsets = build_index(source.url) if offsets is None else offsets
    index = f"{source.url}.idx"
    points = seek_points_of(source.url, index, offsets)
    if points is not None:
        publish_bytes(*points)
    write_index(index, offsets)


def lines(count: int, word: str = "a") -> bytes:
    """Return records of JSONL, 13 bytes each."""
    return b"".join(json.dumps({"id": f"{word}{number}"}).encode() + b"\n" for number in range(count))


def tar(*names: str) -> bytes:
    """Return an archive of members that are JSON."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as file:
        for name in names:
            member = tarfile.TarInfo(name)
            member.size = 3
            file.addfile(member, io.BytesIO(b"{} "))
    return data.getvalue()
