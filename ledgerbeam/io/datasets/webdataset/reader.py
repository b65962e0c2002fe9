"""Random access to the samples of many indexed shards as one sequence, and the indexes of wids that list shards.

Source of the index: `wids_specs.py` and `wids_index.py` of webdataset 0.2.111, the last release that has them.
"""

from __future__ import annotations

import posixpath
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson

from ledgerbeam.errors import IndexMismatchError, SourceError, UsageError
from ledgerbeam.io.datasets.webdataset.energon import read_energon
from ledgerbeam.io.datasets.webdataset.writer import ShardLike, filled
from ledgerbeam.io.index.file import IndexFile, IndexLocation
from ledgerbeam.io.index.reader import NumberedRecords, read_by_part
from ledgerbeam.io.storage.client import Options
from ledgerbeam.io.storage.files import read_json
from ledgerbeam.io.storage.publish import publish_bytes
from ledgerbeam.io.storage.stat import FileInfo, stat_many
from ledgerbeam.io.storage.urls import canonical_url, join_url
from ledgerbeam.io.tar.reader import TarReader
from ledgerbeam.io.tar.sample import Sample

_MOST_OPEN = 64


class ShardReader(NumberedRecords[Sample]):
    """Random access to the samples of shards, with one numbering in the order of the shards. Each shard has an `.idx`.

    Deterministic, picklable, safe to share between threads and to use after a fork. Up to 64 shards stay open, with
    their indexes in memory, 8 bytes for each sample. `open_wids`, `open_energon` and `open_shards` return readers.

    The number of samples and the size of a shard are checked when it is opened. Shards that are listed without samples
    are opened immediately, because no later read opens them.

    Args:
        url: URL of the dataset, for messages.
        shards: URL and number of samples of each shard.
        indexes: Location of the indexes. Default: `<shard>.idx`.
        sizes: Size of each shard in bytes, None if unknown. Default: all are unknown.

    Raises:
        IndexMismatchError: A shard that is listed without samples has some; also the errors of opening a shard.
    """

    def __init__(
        self,
        url: str,
        shards: Sequence[tuple[str, int]],
        options: Options | None = None,
        indexes: IndexLocation | None = None,
        sizes: Sequence[int | None] | None = None,
    ) -> None:
        self.url = url
        self.shards = [shard for shard, _ in shards]
        self.options = options
        self.indexes = indexes or IndexLocation()
        self._sizes = sizes or [None] * len(shards)
        self._ends = np.cumsum([0, *(count for _, count in shards)], dtype=np.int64)
        self._open: OrderedDict[int, TarReader] = OrderedDict()
        for number, (_, count) in enumerate(shards):
            if not count:
                self._reader(number)

    def __repr__(self) -> str:
        return f"ShardReader({self.url!r}, {len(self.shards)} shards, {len(self)} samples)"

    def __reduce__(self) -> tuple[Any, ...]:
        shards = list(zip(self.shards, np.diff(self._ends).tolist(), strict=True))
        return type(self), (self.url, shards, self.options, self.indexes, self._sizes)

    def __len__(self) -> int:
        return int(self._ends[-1])

    @property
    def files(self) -> list[FileInfo]:
        """The current properties of all files, from one request each."""
        return stat_many(self.shards, self.options)

    def __iter__(self) -> Iterator[Sample]:
        """Read all samples in order, some MB at a time."""
        for shard in range(len(self.shards)):
            yield from self._reader(shard)

    def raw(self, index: int) -> bytes:
        """Read the bytes of one sample, headers included; raises IndexError if the number is out of range."""
        return read_by_part(
            [self._number(index)], self._ends, lambda shard, inside: [self._reader(shard).raw(inside[0])]
        )[0]

    def close(self) -> None:
        """Close open files. The next read opens them again. No read may be running."""
        while self._open:
            self._open.popitem()[1].close()

    def _read(self, records: list[int]) -> list[Sample]:
        return read_by_part(records, self._ends, lambda shard, inside: self._reader(shard).read_many(inside))

    def _reader(self, shard: int) -> TarReader:
        if (kept := self._open.get(shard)) is not None:
            return kept
        url = self.shards[shard]
        index = IndexFile(self.indexes.url_for(url), self.options, source=url)
        reader = TarReader(url, index, self.options, group="key")
        size = self._sizes[shard]
        if reader.found is not None and size not in (None, reader.found.size):
            raise IndexMismatchError(
                f"{self.url}: expected {url} to have {size} bytes, found {reader.found.size}; write the file that "
                "is out of date again"
            )
        if len(reader) != (expected := int(self._ends[shard + 1] - self._ends[shard])):
            raise IndexMismatchError(
                f"{self.url}: expected {expected} samples in {url}, found {len(reader)} in its index {index.url}; "
                "write the file that is out of date again"
            )
        # Of two threads that open a shard, both use the first reader. The last user of an evicted reader closes it.
        reader = self._open.setdefault(shard, reader)
        while len(self._open) > _MOST_OPEN:
            self._open.popitem(last=False)
        return reader


def open_shards(
    urls: Sequence[str], options: Options | None = None, *, indexes: IndexLocation | None = None
) -> ShardReader:
    """Open shards by their URLs, in the order of the samples.

    Raises:
        IndexNotFoundError: A shard has no index; `ledgerbeam index --group key` makes it.
        UsageError: There are no URLs.
    """
    if not urls:
        raise UsageError("open_shards: expected the URL of at least one shard, found none")
    location = indexes or IndexLocation()
    names = [canonical_url(url) for url in urls]
    counts = [IndexFile(location.url_for(name), options, source=name).count for name in names]
    return ShardReader(names[0], list(zip(names, counts, strict=True)), options, location)


def open_wids(url: str, options: Options | None = None, *, indexes: IndexLocation | None = None) -> ShardReader:
    """Open the shards of a wids index.

    A wids index has the number of samples of each shard, not their offsets, so each shard also needs its `.idx`. When a
    shard is opened, number and size are checked. The MD5 sum is not checked: this would read the whole shard.

    Raises:
        SourceError: The file is not a wids index; see `read_wids_index`. IndexMismatchError: A shard that is listed
            without samples has some.
    """
    index = read_wids_index(url, options)
    shards = [(shard.url, shard.records) for shard in index.shards]
    return ShardReader(index.url, shards, options, indexes, [shard.size for shard in index.shards])


def open_energon(root: str, part: str = "train", options: Options | None = None) -> ShardReader:
    """Open a part of a dataset that Energon or `write_energon` has prepared, in the order of `split.yaml`.

    Raises:
        UsageError: The part does not exist, or `split.yaml` excludes single samples. Then sample numbers would depend
            on the keys of all samples.
        SourceError: The metadata is damaged; see `read_energon`.
    """
    dataset = read_energon(root, options)
    if part not in dataset.splits:
        raise UsageError(f"{dataset.root}: there is no part {part!r}; it has {', '.join(sorted(dataset.splits))}")
    if dataset.excluded:
        raise UsageError(
            f"{dataset.root}: split.yaml excludes single samples such as {dataset.excluded[0]!r}; open_energon opens "
            "only whole shards. To read all samples, use read_energon and open_shards"
        )
    shards = [(join_url(dataset.root, name), dataset.counts[name]) for name in dataset.splits[part]]
    return ShardReader(dataset.root, shards, options)


_KIND, _WHAT = "wids-shard-index-v1", "a wids index"


@dataclass(frozen=True, slots=True)
class WidsShard:
    """A shard as listed in a wids index.

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
    """The content of a wids index, with its references to other indexes resolved.

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
    """Publish a wids index of shards. The shards are below the folder of the index.

    Args:
        url: URL of the index; names of shards are relative to its folder.
        shards: Shards. The index lists them sorted by name, as `wids-index create` does, without empty shards. For a
            shard with an attribute `md5`, the index has this MD5 sum.
        name: Name of the dataset. wids generates one if it is missing.
        info: A description.

    Raises:
        UsageError: A name is absolute or a duplicate, or leaves the folder.
        StorageError: The store refused the write.
    """
    url = canonical_url(url)
    listed = []
    for shard in sorted(filled(shards, url), key=lambda shard: shard.name):
        md5 = getattr(shard, "md5", None)
        listed.append(
            {"url": shard.name, **({"md5sum": md5} if md5 else {}), "nsamples": shard.records, "filesize": shard.size}
        )
    content: dict[str, Any] = {"__kind__": _KIND, "wids_version": 1, "shardlist": listed}
    content |= {key: value for key, value in (("name", name), ("info", info)) if value is not None}
    publish_bytes(url, orjson.dumps(content, option=orjson.OPT_INDENT_2), options)


def read_wids_index(url: str, options: Options | None = None) -> WidsIndex:
    """Read a wids index and the indexes to which it refers.

    Relative URLs of shards are resolved against the member `base` if it exists, else against the folder of the file
    that lists them.

    Raises:
        SourceError: The file is not a wids index: bad JSON, another version, a shard without `url` or `nsamples`, no
            shards, or a reference to an index with references.
        SourceNotFoundError: The file or a referenced file does not exist; also StorageError.
    """
    url = canonical_url(url)
    content = read_json(url, options, _WHAT)
    if content.get("wids_version") != 1:
        raise SourceError(f"{url}: expected 1 as wids_version, found {content.get('wids_version')!r}")
    shards = _shards(content, url) if "shardlist" in content else []
    for number, component in enumerate(_list(content, "datasets", url)):
        shards += _component(component, f"{url}: dataset {number}", url, options)
    if not shards:
        raise SourceError(f"{url}: expected shards under 'shardlist' or 'datasets', found none")
    name, info = content.get("name"), content.get("info")
    return WidsIndex(url, shards, name if isinstance(name, str) else None, info if isinstance(info, str) else None)


def _list(content: Mapping[str, Any], key: str, where: str) -> list[dict[str, Any]]:
    found = content.get(key, [])
    if not isinstance(found, list) or not all(isinstance(row, dict) for row in found):
        raise SourceError(f"{where}: expected a list of objects under {key!r}, found {found!r:.80}")
    return found


def _component(component: dict[str, Any], where: str, url: str, options: Options | None) -> list[WidsShard]:
    if (source := component.get("source_url")) is None:
        return _shards(component, url, where)
    if not isinstance(source, str):
        raise SourceError(f"{where}: expected a URL under 'source_url', found {source!r:.80}")
    target = join_url(posixpath.dirname(url), source)
    content = read_json(target, options, _WHAT)
    if "source_url" in content or "datasets" in content:
        raise SourceError(f"{where}: {target} refers to further indexes; list their shards in this index instead")
    return _shards(content, target)


def _shards(content: Mapping[str, Any], url: str, where: str | None = None) -> list[WidsShard]:
    if (base := content.get("base")) is not None and not isinstance(base, str):
        raise SourceError(f"{where or url}: expected a URL under 'base', found {base!r:.80}")
    folder = posixpath.dirname(url) if not base else join_url(posixpath.dirname(url), base)
    rows = _list(content, "shardlist", where or url)
    return [_shard(row, folder, f"{where or url}: shard {number}") for number, row in enumerate(rows)]


def _shard(row: Mapping[str, Any], folder: str, where: str) -> WidsShard:
    url, records, size, md5 = (row.get(key) for key in ("url", "nsamples", "filesize", "md5sum"))
    if not isinstance(url, str) or not url:
        raise SourceError(f"{where}: expected the URL of the shard under 'url', found {url!r:.80}")
    if type(records) is not int or not 0 <= records < 2**53:
        raise SourceError(f"{where} ({url}): expected a number of samples under 'nsamples', found {records!r:.80}")
    return WidsShard(
        join_url(folder, url), records, size if type(size) is int else None, md5 if isinstance(md5, str) else None
    )
