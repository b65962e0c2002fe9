"""Energon's `.nv-meta` folder, which makes a folder of indexed shards a dataset of Megatron-Energon.

The file `index.sqlite` in this folder lists all samples and their members; Energon uses it to find samples by key.

Source: `megatron.energon.flavors.webdataset` of megatron-energon 7.4.1 (`prepare.py`, `metadata.py`, `structs.py`).
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import shutil
import sqlite3
import tempfile
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson
import yaml  # type: ignore[import-untyped]

from ledgerbeam.errors import LedgerbeamError, RecordError, SourceError, SourceNotFoundError, UsageError
from ledgerbeam.io.datasets.webdataset.writer import ShardLike, collapse_names, filled
from ledgerbeam.io.listing.patterns import expand_braces
from ledgerbeam.io.storage.client import Options
from ledgerbeam.io.storage.files import read_bytes, refuse_links
from ledgerbeam.io.storage.publish import publish, publish_bytes
from ledgerbeam.io.storage.urls import canonical_url, join_url
from ledgerbeam.io.tar.grouping import group_key, split_key
from ledgerbeam.io.tar.walk import walk_tar

# The same statements as in `SqliteIndexWriter`.
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


def _publish_sample_table(
    url: str, root: str, counts: Mapping[str, int], options: Options | None, digest: hashlib.blake2b
) -> None:
    """Read the headers of the shards, and publish `index.sqlite` at `url`. Add its content to the digest.

    `counts` has the number of samples of each shard by name; shards are numbered in the order of `counts`.
    """
    with tempfile.TemporaryDirectory(prefix="ledgerbeam-") as folder:
        path = os.path.join(folder, "index.sqlite")
        table = sqlite3.connect(path)
        try:
            # No journal: after a crash the file is created again.
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
    members = walk_tar(url, options)
    firsts = group_key(members, url).tolist()
    if len(firsts) != count:
        raise SourceError(f"{url}: expected {count} samples, as listed, found {len(firsts)}; list the shards again")
    starts = members.header_offset[firsts].tolist()
    sizes = np.diff([*starts, members.end]).tolist()
    samples: list[_SampleRow] = []
    parts: list[_PartRow] = []
    columns = members.data_offset.tolist(), members.size.tolist(), members.regular.tolist()
    bounds = itertools.pairwise([*firsts, len(members)])
    for index, ((first, stop), start, size) in enumerate(zip(bounds, starts, sizes, strict=True)):
        found = zip(members.names[first:stop], *(column[first:stop] for column in columns), strict=True)
        named = [
            (*key, offset, length)
            for name, offset, length, is_file in found
            if is_file and (key := split_key(name)) is not None
        ]
        samples.append((number, named[0][0], index, start, size))
        parts += [(number, index, extension, offset, length) for _, extension, offset, length in named]
    for name in itertools.chain((row[1] for row in samples), (row[2] for row in parts)):
        try:
            name.encode()
        except UnicodeEncodeError as error:
            raise RecordError(f"{url}: the name {name!r} is not UTF-8, as Energon's table requires") from error
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
                "Energon refuses duplicate keys: give each sample its own, or call write_energon(sample_table=False)"
            )


CRUDE: Mapping[str, Any] = {"__module__": "megatron.energon", "__class__": "CrudeWebdataset"}
"""The `dataset.yaml` of unchanged samples: a mapping of extension to bytes, for a `Cooker` to process."""

VERSION = "7.4.1"  # version of Energon that defines this layout; written to `.info.json`
_FOLDER = ".nv-meta"


@dataclass(frozen=True, slots=True)
class EnergonDataset:
    """The content of `.nv-meta`.

    Attributes:
        root: Canonical URL of the folder with `.nv-meta`.
        counts: Number of samples of each shard, by its name relative to `root`; shards are numbered in this order.
        splits: Names of the shards of each part, such as `train`, without excluded shards.
        excluded: Samples that `split.yaml` excludes, as `<shard's name>/<key>`. Energon leaves them out.
    """

    root: str
    counts: dict[str, int]
    splits: dict[str, list[str]]
    excluded: list[str]


def write_energon(
    root: str,
    shards: Iterable[ShardLike],
    options: Options | None = None,
    *,
    splits: Mapping[str, Sequence[str]] | None = None,
    dataset: Mapping[str, Any] = CRUDE,
    sample_table: bool = True,
) -> list[str]:
    """Publish `.nv-meta` for shards that have their `.idx`.

    `.info.json` is written last: if it exists, the other files exist too. The content does not depend on the time.

    Args:
        root: The folder of the shards.
        shards: Shards named relative to `root`, with names that end with `.tar`, in the order of their numbers. Empty
            shards are left out.
        splits: Names of the shards of each part. Default: all are `train`.
        dataset: Content of `dataset.yaml`: the type of the samples, and the member for each field of this type.
        sample_table: Also write `index.sqlite`, for which the headers of every shard are read. Energon needs the table
            to find samples by key (auxiliary and joined datasets, `energon mount`), not to train on the dataset.

    Returns:
        The written URLs, `.info.json` last.

    Raises:
        UsageError: Energon cannot use the name of a shard, a name in `splits` is not in `shards`, or the folder of the
            metadata is a link.
        RecordError: Two samples have the same key, which Energon refuses; only with `sample_table`.
        SourceError: A shard has another number of samples than listed; only with `sample_table`.
        StorageError: The store refused the write.
    """
    root = canonical_url(root).rstrip("/") or "/"
    counts = {shard.name: shard.records for shard in filled(shards, root)}
    for name in counts:
        if not name.endswith(".tar") or set(name) & set("{}\\,"):
            raise UsageError(
                f"{root}: Energon cannot have a shard named {name!r}; expected a name that ends with .tar, without "
                "braces, commas and backslashes"
            )
    if not counts:
        raise UsageError(f"{root}: no shard holds samples; Energon refuses an empty dataset")
    parts = {part: list(names) for part, names in (splits or {"train": list(counts)}).items()}
    for part, names in parts.items():
        if unknown := sorted(set(names) - set(counts)):
            raise UsageError(f"{root}: the part {part!r} has {unknown[0]!r}, which is not a shard with samples")
    folder = f"{root.rstrip('/')}/{_FOLDER}"
    refuse_links(root, [folder])
    info = orjson.dumps({"energon_version": VERSION, "shard_counts": counts}, option=orjson.OPT_INDENT_2)
    digest = hashlib.blake2b(info, digest_size=16)
    if sample_table:
        _publish_sample_table(f"{folder}/index.sqlite", root, counts, options, digest)
    files = {"index.uuid": str(uuid.UUID(bytes=digest.digest(), version=5)).encode()} if sample_table else {}
    split = {"split_parts": {part: collapse_names(names) for part, names in parts.items()}, "exclude": []}
    files |= {"dataset.yaml": _yaml(dict(dataset)), "split.yaml": _yaml(split), ".info.json": info}
    for name, content in files.items():
        publish_bytes(f"{folder}/{name}", content, options)
    return [f"{folder}/{name}" for name in (*(["index.sqlite"] if sample_table else []), *files)]


def _yaml(content: Mapping[str, Any]) -> bytes:
    return bytes(yaml.safe_dump(content, sort_keys=False, encoding="utf-8", allow_unicode=False))


def read_energon(root: str, options: Options | None = None) -> EnergonDataset:
    """Read `.nv-meta`: `.info.json` or `.info.yaml`, and `split.yaml` or `split.json`.

    Raises:
        SourceNotFoundError: A file is missing; also StorageError.
        SourceError: A file cannot be parsed or has another structure, or a part lists a shard without a count.
    """
    root = canonical_url(root).rstrip("/") or "/"
    folder = f"{root.rstrip('/')}/{_FOLDER}"
    url, info = _read_first_existing([f"{folder}/.info.json", f"{folder}/.info.yaml"], options)
    counts = info.get("shard_counts")
    if not isinstance(counts, dict) or not all(
        isinstance(name, str) and type(count) is int and 0 <= count < 2**53 for name, count in counts.items()
    ):
        raise SourceError(f"{url}: expected numbers of samples by shard under 'shard_counts', found {counts!r:.80}")
    url, split = _read_first_existing([f"{folder}/split.yaml", f"{folder}/split.json"], options)
    if not isinstance(parts := split.get("split_parts"), dict):
        raise SourceError(f"{url}: expected lists of shards by part under 'split_parts', found {parts!r:.80}")
    exclude = set(_parse_shard_names(split.get("exclude", []), "exclude", url))
    splits = {}
    for part, listed in parts.items():
        names = _parse_shard_names(listed, part, url)
        if (unknown := next((name for name in names if name not in counts), None)) is not None:
            raise SourceError(f"{url}: the part {part!r} has {unknown!r}, which has no count in 'shard_counts'")
        splits[str(part)] = [name for name in names if name not in exclude]
    return EnergonDataset(root, counts, splits, sorted(exclude - set(counts)))


def _read_first_existing(urls: Sequence[str], options: Options | None) -> tuple[str, dict[str, Any]]:
    for url in urls:
        with contextlib.suppress(SourceNotFoundError):
            return url, _parse_mapping(url, read_bytes(url, options))
    raise SourceNotFoundError(
        f"{' or '.join(urls)}: there is no such file; expected the folder of a dataset that Energon or write_energon "
        "has prepared"
    )


def _parse_mapping(url: str, data: bytes) -> dict[str, Any]:
    try:
        content = orjson.loads(data) if url.endswith(".json") else yaml.safe_load(data)
    # PyYAML also raises errors of parsing dates and numbers.
    except (yaml.YAMLError, ValueError, TypeError, LookupError, RecursionError) as error:
        raise SourceError(f"{url}: it cannot be parsed: {error!r:.300}") from error
    if not isinstance(content, dict):
        raise SourceError(f"{url}: expected a mapping, found {type(content).__name__}")
    return content


def _parse_shard_names(listed: Any, part: Any, url: str) -> list[str]:
    if not isinstance(listed, list) or not all(isinstance(name, str) for name in listed):
        raise SourceError(f"{url}: expected a list of shards under {part!r}, found {listed!r:.80}")
    try:
        return [name for pattern in listed for name in expand_braces(pattern)]
    except (LedgerbeamError, RecursionError) as error:
        raise SourceError(f"{url}: a name under {part!r} does not expand: {error!r:.200}") from error
