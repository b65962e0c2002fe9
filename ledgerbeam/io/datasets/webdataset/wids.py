"""wids index files: JSON that lists the shards of a dataset with their numbers of samples.

Source: `wids_specs.py` and `wids_index.py` of webdataset 0.2.111, the last release that has them.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from ledgerbeam.errors import SourceError
from ledgerbeam.io.datasets.webdataset.shards import ShardLike, filled
from ledgerbeam.io.storage.client import Options
from ledgerbeam.io.storage.files import read_bytes
from ledgerbeam.io.storage.publish import publish_bytes
from ledgerbeam.io.storage.urls import canonical_url, join_url

_KIND = "wids-shard-index-v1"


@dataclass(frozen=True, slots=True)
class WidsShard:
    """A shard as listed in an index.

    Attributes:
        url: Canonical URL.
        records: Number of samples.
        size: Size in bytes, if the index has it.
        md5: MD5 sum of its bytes in hexadecimal, if the index has it.
    """

    url: str
    records: int
    size: int | None = None
    md5: str | None = None


@dataclass(frozen=True, slots=True)
class WidsIndex:
    """The content of an index file, with its references resolved.

    Attributes:
        url: URL of the file.
        shards: Shards in the order of the dataset.
        name: Name of the dataset, if present.
        info: Description, if present.
    """

    url: str
    shards: list[WidsShard]
    name: str | None = None
    info: str | None = None


def write_wids_index(
    url: str,
    shards: Iterable[ShardLike],
    options: Options | None = None,
    *,
    name: str | None = None,
    info: str | None = None,
) -> None:
    """Publish an index of shards below its own folder.

    Args:
        url: URL of the index; names of shards are relative to its folder.
        shards: Shards, listed sorted by name, as `wids-index create` does; empty shards are left out. MD5 sums are
            written for shards that have an attribute `md5`.
        options: Storage options.
        name: Name of the dataset. wids generates one if it is missing.
        info: A description.

    Raises:
        UsageError: A name is absolute or a duplicate, or leaves the folder.
        StorageError: The store refused the write.
    """
    url = canonical_url(url)
    listed = [_row(shard) for shard in sorted(filled(shards, url), key=lambda shard: shard.name)]
    content: dict[str, Any] = {"__kind__": _KIND, "wids_version": 1, "shardlist": listed}
    content |= {key: value for key, value in (("name", name), ("info", info)) if value is not None}
    publish_bytes(url, orjson.dumps(content, option=orjson.OPT_INDENT_2), options)


def _row(shard: ShardLike) -> dict[str, Any]:
    md5 = getattr(shard, "md5", None)
    return {"url": shard.name, **({"md5sum": md5} if md5 else {}), "nsamples": shard.records, "filesize": shard.size}


def read_wids_index(url: str, options: Options | None = None) -> WidsIndex:
    """Read an index file and its references.

    Relative URLs of shards are resolved against the member `base` if it exists, else against the folder of the file
    that lists them.

    Args:
        url: The index.
        options: Storage options, also of the referenced files.

    Raises:
        SourceError: The file is not a wids index: bad JSON, another version, a shard without `url` or `nsamples`, no
            shards, or a reference to an index with references.
        SourceNotFoundError: The file or a referenced file does not exist; also StorageError.
    """
    url = canonical_url(url)
    content = _load(url, options)
    if content.get("wids_version") != 1:
        raise SourceError(f"{url}: expected 1 as wids_version, found {content.get('wids_version')!r}")
    shards = _shards(content, url) if "shardlist" in content else []
    for number, component in enumerate(_list(content, "datasets", url)):
        shards += _component(component, f"{url}: dataset {number}", url, options)
    if not shards:
        raise SourceError(f"{url}: expected shards under 'shardlist' or 'datasets', found none")
    name, info = content.get("name"), content.get("info")
    return WidsIndex(url, shards, name if isinstance(name, str) else None, info if isinstance(info, str) else None)


def _load(url: str, options: Options | None) -> dict[str, Any]:
    try:
        content = orjson.loads(read_bytes(url, options))
    except orjson.JSONDecodeError as error:
        raise SourceError(f"{url}: expected a wids index, found bad JSON: {error}") from error
    if not isinstance(content, dict):
        raise SourceError(f"{url}: expected a wids index, an object, found {type(content).__name__}")
    return content


def _list(content: Mapping[str, Any], key: str, where: str) -> list[dict[str, Any]]:
    found = content.get(key, [])
    if not isinstance(found, list) or not all(isinstance(row, dict) for row in found):
        raise SourceError(f"{where}: expected a list of objects under {key!r}, found {found!r:.80}")
    return found


def _component(component: dict[str, Any], where: str, url: str, options: Options | None) -> list[WidsShard]:
    source = component.get("source_url")
    if source is None:
        return _shards(component, url, where)
    if not isinstance(source, str):
        raise SourceError(f"{where}: expected a URL under 'source_url', found {source!r:.80}")
    target = join_url(posixpath.dirname(url), source)
    content = _load(target, options)
    if "source_url" in content or "datasets" in content:
        raise SourceError(f"{where}: {target} refers to further indexes; wids follows one reference only")
    return _shards(content, target)


def _shards(content: Mapping[str, Any], url: str, where: str | None = None) -> list[WidsShard]:
    base = content.get("base")
    if base is not None and not isinstance(base, str):
        raise SourceError(f"{where or url}: expected a URL under 'base', found {base!r:.80}")
    folder = posixpath.dirname(url) if not base else join_url(posixpath.dirname(url), base)
    rows = _list(content, "shardlist", where or url)
    return [_shard(row, folder, f"{where or url}: shard {number}") for number, row in enumerate(rows)]


def _shard(row: Mapping[str, Any], folder: str, where: str) -> WidsShard:
    url, records, size, md5 = (row.get(key) for key in ("url", "nsamples", "filesize", "md5sum"))
    if not isinstance(url, str) or not url:
        raise SourceError(f"{where}: expected its URL under 'url', found {url!r:.80}")
    if type(records) is not int or not 0 <= records < 2**53:
        raise SourceError(f"{where} ({url}): expected a number of samples under 'nsamples', found {records!r:.80}")
    return WidsShard(
        join_url(folder, url), records, size if type(size) is int else None, md5 if isinstance(md5, str) else None
    )
