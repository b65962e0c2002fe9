"""The layout of a LIT dataset: `config.json`, shards, and an index of members for each fold, read or made from shards.

    config.json       {"train": "/train_{0000..0071}.tar", "extensions": ["jpg", "cls"], "metadata": {"num_train": ...}}
    train.idx.json    {"train_0000.tar": {".jpg": {"key": 0, ...}, ".cls": {...}}, ...}

An index has the offset of each member's first header. `write_lit_metadata` makes a dataset of existing shards. Sources:
the README and `litdata.py`, `writer.py` of the published package.
"""

from __future__ import annotations

import posixpath
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import orjson
from numpy.typing import NDArray

from ledgerbeam.errors import (
    ArchiveError,
    IndexMismatchError,
    LedgerbeamError,
    SourceError,
    SourceNotFoundError,
    UsageError,
)
from ledgerbeam.io.compression.content import age_fault
from ledgerbeam.io.datasets.webdataset.writer import ShardLike, collapse_names, filled
from ledgerbeam.io.listing.patterns import expand_braces
from ledgerbeam.io.storage.client import CONCURRENCY, Options, map_ahead
from ledgerbeam.io.storage.files import read_bytes, read_json
from ledgerbeam.io.storage.publish import publish_bytes
from ledgerbeam.io.storage.stat import FileInfo, stat_many, stat_object
from ledgerbeam.io.storage.urls import canonical_url, join_url
from ledgerbeam.io.tar.grouping import split_key
from ledgerbeam.io.tar.walk import walk_tar

Members: TypeAlias = dict[str, dict[str, int]]  # of a shard: dotted modality, key, offset of the first header
CONFIG = "config.json"  # name of the file that makes a folder a dataset
RESERVED = ("extensions", "metadata")  # members of the configuration that are not folds


@dataclass(frozen=True, slots=True)
class LitConfig:
    """The content of `config.json`.

    Attributes:
        url: URL of the file.
        folds: The pattern of shard names of each fold, as in the file.
        modalities: The default modalities, without leading dots.
        metadata: Metadata of the writer, and `num_<fold>`.
    """

    url: str
    folds: Mapping[str, str]
    modalities: tuple[str, ...]
    metadata: Mapping[str, Any]

    def shards(self, fold: str) -> list[str]:
        """Return the names of the shards of a fold, relative to the folder. A leading slash of a pattern is ignored.

        UsageError: the fold does not exist. SourceError: its pattern does not expand, leaves the folder, or has two
        shards of one base name.
        """
        if fold not in self.folds:
            raise UsageError(f"{self.url}: there is no fold {fold!r}; it has {', '.join(sorted(self.folds)) or 'none'}")
        pattern = self.folds[fold]
        try:
            names = [name.lstrip("/") for name in expand_braces(pattern)]
        except (LedgerbeamError, RecursionError) as error:
            raise SourceError(
                f"{self.url}: the pattern of {fold!r}, {pattern!r:.80}, does not expand: {error!r}"
            ) from error
        bases: dict[str, str] = {}
        for name in names:
            if "://" in name or posixpath.normpath(f"/./{name}") != f"/{name}" or not name:
                raise SourceError(f"{self.url}: expected shards below the folder for {fold!r}, found {name!r}")
            if (base := posixpath.basename(name)) in bases:
                raise SourceError(
                    f"{self.url}: expected shards of {fold!r} that differ in their base names, found {bases[base]!r} "
                    f"and {name!r}, which are the same shard in an index; correct the pattern, or rename one"
                )
            bases[base] = name
        return names


def read_config(url: str, options: Options | None = None) -> LitConfig:
    """Read a `config.json`.

    Raises:
        SourceNotFoundError: The file does not exist; also StorageError.
        SourceError: The file is not such a configuration.
    """
    content = read_json(url, options, "a LIT configuration")
    extensions, metadata = content.get("extensions"), content.get("metadata", {})
    if not isinstance(extensions, list) or not all(isinstance(name, str) for name in extensions):
        raise SourceError(f"{url}: expected a list of modalities under 'extensions', found {extensions!r:.80}")
    if not isinstance(metadata, dict):
        raise SourceError(f"{url}: expected an object under 'metadata', found {metadata!r:.80}")
    folds = {name: pattern for name, pattern in content.items() if name not in RESERVED and isinstance(pattern, str)}
    return LitConfig(url, folds, without_dots(extensions), metadata)


@dataclass(frozen=True, slots=True)
class Selection:
    """Members of the samples that have all requested modalities: a row for each sample, a column for each modality."""

    keys: list[str]  # key of each sample
    shards: NDArray[np.int32]  # number of the shard of each sample; shape `(samples,)`
    starts: NDArray[np.int64]  # offset of each member's first header; shape `(samples, modalities)`
    stops: NDArray[np.int64]  # offset at or after the end of each member, as close as the index shows; same shape


def load_members(
    root: str, fold: str, shards: Sequence[FileInfo], config: LitConfig, options: Options | None = None
) -> list[Members]:
    """Read the members of each shard from the index of a fold, or from the headers of its shards if it has no index.

    IndexMismatchError: the index is damaged, lists other shards or is older than a shard, or the number of samples
    differs from the configuration. ArchiveError: a shard without an index is damaged, or has two members of one name.
    """
    url = join_url(root, index_name(fold))
    try:
        index = stat_object(url, options)
    except SourceNotFoundError:
        members, place = [_walk_members(shard, options) for shard in shards], "its shards"
    else:
        for shard in shards:
            if fault := age_fault(index, shard):
                raise _mismatch(f"{url} does not fit {shard.url}", fault)
        members, place = _parse(read_bytes(url, options, index), url, [shard.url for shard in shards]), url
    expected, count = config.metadata.get(f"num_{fold}"), sum(map(_count_samples, members))
    if type(expected) is int and count != expected:  # other types have another meaning
        raise IndexMismatchError(
            f"{config.url}: expected {expected} samples of {fold!r}, the 'num_{fold}' in its metadata, found {count} "
            f"in {place}. Write the stale file again: write_lit_index makes the index from the shards, "
            "write_lit_metadata makes the index and the configuration"
        )
    return members


def _count_samples(members: Members) -> int:
    """Return the number of samples of a shard: the number of different keys in all its modalities together."""
    return len(set().union(*members.values()))


def write_lit_index(root: str, fold: str, options: Options | None = None) -> int:
    """Read the headers of a fold's shards and publish its index, or replace it. Return the number of members.

    Raises:
        ArchiveError: A shard is damaged, or has two members of one name.
        ChangedSourceError: A shard changed while it was read.
        SourceError: The configuration is damaged or has two shards of one base name, or a member's name is not UTF-8;
            also the errors of reading and writing.
    """
    url = join_url(root, index_name(fold))
    names = read_config(join_url(root, CONFIG), options).shards(fold)
    shards = stat_many([join_url(root, name) for name in names], options)
    index = {posixpath.basename(shard.url): _walk_members(shard, options) for shard in shards}
    publish_bytes(url, _encoded(url, index), options, not_before_ns=max(shard.modified_ns for shard in shards))
    return sum(len(keys) for members in index.values() for keys in members.values())


def _walk_members(shard: FileInfo, options: Options | None) -> Members:
    """Find the members of a shard from its headers. ArchiveError if two members have one name."""
    url = shard.url
    members = walk_tar(url, options, shard)
    found: Members = {}
    regular, offsets = members.regular.tolist(), members.header_offset.tolist()
    for name, is_file, offset in zip(members.names, regular, offsets, strict=True):
        parts = split_key(name) if is_file else None
        if parts is not None and found.setdefault(f".{parts[1]}", {}).setdefault(parts[0], offset) != offset:
            raise ArchiveError(
                f"{url}: the member {name!r} at byte {offset} occurs twice, and LIT finds members by name; give each "
                "sample its own key"
            )
    return found


def _parse(data: bytes, url: str, shards: Sequence[str]) -> list[Members]:
    try:
        index = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise _mismatch(url, f"found bad JSON: {error}") from error
    names = [posixpath.basename(shard) for shard in shards]
    if not isinstance(index, dict) or set(index) != set(names):
        found = sorted(index) if isinstance(index, dict) else type(index).__name__
        raise _mismatch(url, f"expected the shards {names!r:.80}, found {found!r:.80}")
    for name, members in index.items():
        if not isinstance(members, dict):
            raise _mismatch(url, f"expected keys by modality for {name}, found {members!r:.80}")
        for modality, keys in members.items():
            if not isinstance(keys, dict) or not modality.startswith("."):
                raise _mismatch(url, f"expected modalities with a leading dot and their keys, found {modality!r:.80}")
            wrong = next(
                (key for key, at in keys.items() if type(at) is not int or at % 512 or not 0 <= at < 2**62), None
            )
            if wrong is not None:
                raise _mismatch(
                    url, f"expected the byte of a header for {wrong + modality!r} of {name}, found {keys[wrong]!r:.40}"
                )
    return [index[name] for name in names]


def _mismatch(url: str, what: str) -> IndexMismatchError:
    return IndexMismatchError(f"{url}: {what}. Write this index again with write_lit_index, or delete it")


def select(members: Sequence[Members], shards: Sequence[FileInfo], modalities: Sequence[str], place: str) -> Selection:
    """Find the samples that have all `modalities`, in the order of the names of the shards, then of offsets.

    IndexMismatchError: a shard is smaller than the index claims. UsageError: no sample has all modalities.
    """
    keys: list[str] = []
    numbers: list[NDArray[np.int32]] = []
    starts: list[NDArray[np.int64]] = []
    stops: list[NDArray[np.int64]] = []
    for number in sorted(range(len(shards)), key=lambda number: shards[number].url):
        columns = [members[number].get(f".{modality}", {}) for modality in modalities]
        common = [key for key in columns[0] if all(key in column for column in columns[1:])]
        if not common:
            continue
        places = np.array([[column[key] for column in columns] for key in common], np.int64)
        order = np.argsort(places.min(axis=1), kind="stable")
        places = places[order]
        keys += [common[row] for row in order.tolist()]
        numbers.append(np.full(len(common), number, np.int32))
        starts.append(places)
        stops.append(_ends(places, members[number], shards[number]))
    if not keys and any(map(_count_samples, members)):
        raise UsageError(f"{place} {_missing_reason(members, modalities)}")
    empty = np.empty((0, len(modalities)), np.int64)
    return Selection(
        keys,
        np.concatenate([np.empty(0, np.int32), *numbers]),
        np.concatenate([empty, *starts]),
        np.concatenate([empty, *stops]),
    )


def _missing_reason(members: Sequence[Members], modalities: Sequence[str]) -> str:
    counts: Counter[str] = Counter()
    for shard in members:
        counts.update({name.removeprefix("."): len(keys) for name, keys in shard.items()})
    for name in modalities:
        if not counts[name]:
            return f"has no modality {name!r}; expected one or more of {', '.join(+counts)}"
    found = ", ".join(f"{name} in {counts[name]:,} samples" for name in modalities)
    return f"has no sample with all of these modalities: {found}; read fewer modalities"


def _ends(places: NDArray[np.int64], members: Mapping[str, Any], shard: FileInfo) -> NDArray[np.int64]:
    """Return, for each offset, the next larger offset in the index, or the end of the shard."""
    known = np.unique(np.fromiter((at for keys in members.values() for at in keys.values()), np.int64))
    size = known[-1] + 1
    if places.max() == known[-1]:
        size = shard.size
        if size <= known[-1]:
            raise IndexMismatchError(
                f"{shard.url}: expected a member at byte {known[-1]}, as in the index, found the end of the shard at "
                f"byte {size}; write the index again, or the shard if it was truncated"
            )
    bounds = np.append(known, size)
    return bounds[np.searchsorted(bounds, places, "right")]


def write_lit_metadata(
    root: str,
    folds: Mapping[str, Sequence[ShardLike]],
    options: Options | None = None,
    *,
    metadata: Mapping[str, Any] | None = None,
) -> list[str]:
    """Read the headers of shards and publish an index for each fold, then `config.json`.

    Memory: the names of all members of a fold, which are the content of its index.

    Args:
        root: The folder of the shards.
        folds: The shards of each fold, named relative to `root`; empty shards are left out. If their names do not form
            one range, the pattern in the configuration is a list, `{a.tar,b.tar}`. `LitDataset` reads lists; the
            published package reads only ranges.
        metadata: Metadata of the dataset, for the configuration; `num_<fold>` is added.

    Returns:
        The written URLs, the configuration last.

    Raises:
        UsageError: A fold or shard has an invalid name, two shards of a fold have one base name, or there are no
            shards.
        ArchiveError: A shard is damaged, or has two members of one name.
        ChangedSourceError: A shard changed while it was read.
        SourceError: A shard has another number of samples than listed, or a member's name is not UTF-8.
        SourceNotFoundError: A shard does not exist; also StorageError.
    """
    root = canonical_url(root).rstrip("/") or "/"
    for name in folds:
        require_fold(root, name)
    named = {name: list(filled(shards, root)) for name, shards in folds.items()}
    config: dict[str, Any] = {name: _pattern(root, shards) for name, shards in named.items() if shards}
    if not config:
        raise UsageError(f"{root}: no shard holds samples; expected at least one shard with samples")
    numbers = dict(metadata or {})
    modalities: dict[str, None] = {}
    urls = []
    for name in config:
        shards = named[name]
        stored = stat_many([join_url(root, shard.name) for shard in shards], options)
        members = map_ahead(lambda shard: _walk_members(shard, options), stored, CONCURRENCY)
        index = {}
        for shard, found in zip(shards, members, strict=True):
            if (count := _count_samples(found)) != shard.records:
                raise SourceError(
                    f"{join_url(root, shard.name)}: expected {shard.records:,} samples, as listed, found {count:,} "
                    "keys. A key ends at the first dot of a base name; make the names differ before that dot"
                )
            index[posixpath.basename(shard.name)] = found
        urls.append(join_url(root, index_name(name)))
        newest = max(shard.modified_ns for shard in stored)
        publish_bytes(urls[-1], _encoded(urls[-1], index), options, not_before_ns=newest)
        modalities |= {modality.removeprefix("."): None for found in index.values() for modality in found}
        numbers[f"num_{name}"] = sum(shard.records for shard in shards)
    urls.append(join_url(root, CONFIG))
    publish_bytes(urls[-1], orjson.dumps(config | {"extensions": list(modalities), "metadata": numbers}), options)
    return urls


def _pattern(root: str, shards: Sequence[ShardLike]) -> str:
    names = [shard.name for shard in shards]
    seen: set[str] = set()
    for name in names:
        base = posixpath.basename(name)
        if base in seen or set(name) & set("{},\\"):
            found = "a second shard of this name" if base in seen else "with a brace, comma or backslash"
            raise UsageError(f"{root}: expected shards with different base names, found {name!r}, {found}; rename it")
        seen.add(base)
    patterns = collapse_names(names)
    return "/" + (patterns[0] if len(patterns) == 1 else f"{{{','.join(names)}}}")


def require_fold(root: str, fold: Any) -> None:
    """Raise UsageError if a value cannot be the name of a fold."""
    if not isinstance(fold, str) or not fold.isidentifier() or fold in RESERVED:
        raise UsageError(f"{root}: expected the name of a fold, such as 'train', found {fold!r:.80}")


def _encoded(url: str, index: Mapping[str, Members]) -> bytes:
    try:
        return orjson.dumps(index)
    except TypeError as error:  # orjson raises it for lone surrogates
        raise SourceError(f"{url}: a member's name is not UTF-8, so JSON cannot hold it ({error})") from error


def index_name(fold: str) -> str:
    """Return the name of the index of a fold."""
    return f"{fold}.idx.json"


def without_dots(modalities: Sequence[str]) -> tuple[str, ...]:
    """Remove the leading dot of names of modalities."""
    return tuple(name.removeprefix(".") for name in modalities)
