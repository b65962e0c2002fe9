"""Energon's table of all samples and their parts, `index.sqlite`, by which it looks samples up by key."""

from __future__ import annotations

import itertools
import os
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator, Mapping
from typing import Protocol

import numpy as np

from ledgerbeam.errors import RecordError, SourceError
from ledgerbeam.io.storage.client import Options
from ledgerbeam.io.storage.publish import publish
from ledgerbeam.io.storage.urls import join_url
from ledgerbeam.io.tar.grouping import group_key, split_key
from ledgerbeam.io.tar.walk import TarMembers, walk_tar

# As `SqliteIndexWriter` makes them.
_TABLES = """
CREATE TABLE samples (tar_file_id INTEGER NOT NULL, sample_key TEXT NOT NULL UNIQUE, sample_index INTEGER NOT NULL,
    byte_offset INTEGER, byte_size INTEGER);
CREATE TABLE sample_parts (tar_file_id INTEGER, sample_index INTEGER, part_name TEXT, content_byte_offset INTEGER,
    content_byte_size INTEGER);
"""
_INDEXES = """
CREATE INDEX idx_samples_by_tar_and_idx ON samples(tar_file_id, sample_index);
CREATE INDEX idx_sample_parts_seq ON sample_parts(tar_file_id, sample_index, content_byte_offset);
CREATE INDEX idx_sample_parts_full
    ON sample_parts(tar_file_id, sample_index, part_name, content_byte_offset, content_byte_size);
"""

_SampleRow = tuple[int, str, int, int, int]
_PartRow = tuple[int, int, str, int, int]


class _Digest(Protocol):
    def update(self, data: bytes, /) -> None: ...


def publish_sample_table(
    url: str, root: str, counts: Mapping[str, int], options: Options | None, digest: _Digest
) -> None:
    """Walk the shards and publish the table of their samples.

    Args:
        url: Where the table goes.
        root: The folder below which the shards lie.
        counts: How many samples each shard holds, by name; the order numbers the shards.
        options: Storage options.
        digest: Is given what the table says.

    Raises:
        RecordError: Two samples have the same key, or a name is not UTF-8.
        SourceError: A shard holds another number of samples, or is damaged.
    """
    with tempfile.TemporaryDirectory(prefix="ledgerbeam-") as folder:
        path = os.path.join(folder, "index.sqlite")
        table = sqlite3.connect(path)
        try:
            # A file that a crash spoils is made anew.
            table.executescript(f"PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF; {_TABLES}")
            shards = list(counts)
            for number, name in enumerate(shards):
                samples, parts = _shard_rows(number, join_url(root, name), counts[name], options)
                _add(table, samples, parts, shards)
                digest.update(repr((samples, parts)).encode("utf-8", "surrogateescape"))
            table.executescript(_INDEXES)
            table.commit()
        finally:
            table.close()
        with open(path, "rb") as built, publish(url, options) as file:
            shutil.copyfileobj(built, file)


def _shard_rows(number: int, url: str, count: int, options: Options | None) -> tuple[list[_SampleRow], list[_PartRow]]:
    samples, parts = _rows(number, walk_tar(url, options), url)
    if len(samples) != count:
        raise SourceError(f"{url}: expected {count} samples, as is said of it, found {len(samples)}; list it again")
    for name in itertools.chain((row[1] for row in samples), (row[2] for row in parts)):
        try:
            name.encode()
        except UnicodeEncodeError as error:
            raise RecordError(f"{url}: the name {name!r} is not UTF-8, which Energon's table needs") from error
    return samples, parts


def _add(table: sqlite3.Connection, samples: list[_SampleRow], parts: list[_PartRow], shards: list[str]) -> None:
    added = table.executemany("INSERT OR IGNORE INTO samples VALUES (?, ?, ?, ?, ?)", samples).rowcount
    table.executemany("INSERT INTO sample_parts VALUES (?, ?, ?, ?, ?)", parts)
    if added == len(samples):
        return
    for number, key, index, _, _ in samples:
        kept = table.execute("SELECT tar_file_id, sample_index FROM samples WHERE sample_key = ?", (key,)).fetchone()
        if kept != (number, index):
            raise RecordError(
                f"{shards[number]}: sample {index} has the key {key!r} of sample {kept[1]} of {shards[kept[0]]}; "
                "Energon refuses a dataset with such keys. Give each sample a key of its own, or write no sample table"
            )


def _rows(number: int, members: TarMembers, url: str) -> tuple[list[_SampleRow], list[_PartRow]]:
    firsts = group_key(members, url).tolist()
    starts = members.header_offset[firsts].tolist()
    sizes = np.diff([*starts, members.end]).tolist()
    samples: list[_SampleRow] = []
    parts: list[_PartRow] = []
    columns = members.data_offset.tolist(), members.size.tolist(), members.regular.tolist()
    bounds = itertools.pairwise([*firsts, len(members)])
    for index, ((first, stop), start, size) in enumerate(zip(bounds, starts, sizes, strict=True)):
        named = list(_named(members.names[first:stop], *(column[first:stop] for column in columns)))
        samples.append((number, named[0][0], index, start, size))
        parts += [(number, index, extension, offset, length) for _, extension, offset, length in named]
    return samples, parts


def _named(
    names: list[str], offsets: list[int], sizes: list[int], regular: list[bool]
) -> Iterator[tuple[str, str, int, int]]:
    """Return key, extension, place and size of the members that belong to samples."""
    for name, offset, size, is_file in zip(names, offsets, sizes, regular, strict=True):
        parts = split_key(name) if is_file else None
        if parts is not None:
            yield *parts, offset, size
