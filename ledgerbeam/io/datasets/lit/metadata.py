"""Making a LIT dataset of shards that are there: their index and the configuration."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from ledgerbeam.errors import SourceError, UsageError
from ledgerbeam.io.datasets.lit.index import Members, count_samples, walk_members
from ledgerbeam.io.datasets.lit.layout import CONFIG, RESERVED, index_name
from ledgerbeam.io.datasets.webdataset.braces import collapse_names
from ledgerbeam.io.datasets.webdataset.shards import ShardLike, filled
from ledgerbeam.io.storage.ahead import map_ahead
from ledgerbeam.io.storage.client import CONCURRENCY, Options
from ledgerbeam.io.storage.publish import publish_bytes
from ledgerbeam.io.storage.stat import stat_many
from ledgerbeam.io.storage.urls import canonical_url, join_url


def write_lit_metadata(
    root: str,
    folds: Mapping[str, Sequence[ShardLike]],
    options: Options | None = None,
    *,
    metadata: Mapping[str, Any] | None = None,
) -> list[str]:
    """Walk the headers of shards and publish an index for each fold, then `config.json`.

    Memory: the names of all members of a fold, which is what its index holds.

    Args:
        root: The folder below which the shards lie.
        folds: The shards of each fold, named relative to `root`; those without samples are left out. Shards whose
            names do not make one range are listed in the pattern of the configuration, `{a.tar,b.tar}`, which
            `LitDataset` reads; the published package knows ranges only.
        options: Storage options.
        metadata: Of the dataset, for the configuration; `num_<fold>` is added.

    Returns:
        The URLs that were written, the configuration last.

    Raises:
        UsageError: A fold or shard has a name that it cannot have, two shards of a fold differ only in their folders,
            or there are no shards.
        ArchiveError: A shard is damaged, or has two members of one name.
        ChangedSourceError: A shard changed meanwhile.
        SourceError: A shard does not hold as many samples as is said, or a member's name is not UTF-8.
        SourceNotFoundError: A shard does not exist; also StorageError.
    """
    root = canonical_url(root).rstrip("/") or "/"
    named = {name: list(filled(shards, root)) for name, shards in folds.items()}
    config: dict[str, Any] = {name: _pattern(root, name, shards) for name, shards in named.items() if shards}
    if not config:
        raise UsageError(f"{root}: no shard holds samples; a LIT dataset needs one")
    numbers = dict(metadata or {})
    modalities: dict[str, None] = {}
    urls = []
    for name in config:
        shards = named[name]
        stored = stat_many([join_url(root, shard.name) for shard in shards], options)
        members = map_ahead(lambda shard: walk_members(shard, options), stored, CONCURRENCY)
        index = {}
        for shard, found in zip(shards, members, strict=True):
            _require_samples(join_url(root, shard.name), shard.records, found)
            index[posixpath.basename(shard.name)] = found
        urls.append(join_url(root, index_name(name)))
        newest = max(shard.modified_ns for shard in stored)
        publish_bytes(urls[-1], _encoded(urls[-1], index), options, not_before_ns=newest)
        modalities |= {modality.removeprefix("."): None for found in index.values() for modality in found}
        numbers[f"num_{name}"] = sum(shard.records for shard in shards)
    urls.append(join_url(root, CONFIG))
    publish_bytes(urls[-1], orjson.dumps(config | {"extensions": list(modalities), "metadata": numbers}), options)
    return urls


def _pattern(root: str, fold: str, shards: Sequence[ShardLike]) -> str:
    if not fold.isidentifier() or fold in RESERVED:
        raise UsageError(f"{root}: expected the name of a fold, such as 'train', found {fold!r:.80}")
    names = [shard.name for shard in shards]
    seen: set[str] = set()
    for name in names:
        base = posixpath.basename(name)
        if base in seen or set(name) & set("{},\\"):
            found = "again in another folder" if base in seen else "with a brace, comma or backslash"
            raise UsageError(f"{root}: LIT distinguishes shards by their base names; found {name!r} {found}")
        seen.add(base)
    patterns = collapse_names(names)
    return "/" + (patterns[0] if len(patterns) == 1 else f"{{{','.join(names)}}}")


def _require_samples(url: str, expected: int, members: Members) -> None:
    count = count_samples(members)
    if count != expected:
        raise SourceError(
            f"{url}: expected {expected:,} samples, as is said of it, found {count:,} keys; a key ends "
            "at the first dot of a base name, so give each sample one that differs before it"
        )


def _encoded(url: str, index: Mapping[str, Members]) -> bytes:
    try:
        return orjson.dumps(index)
    except TypeError as error:  # orjson's word for lone surrogates
        raise SourceError(f"{url}: a member's name is not UTF-8, which JSON cannot hold ({error})") from error
