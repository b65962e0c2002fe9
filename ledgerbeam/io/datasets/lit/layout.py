"""The layout of a LIT dataset: `config.json`, shards, and an index of members for each fold.

    config.json       {"train": "/train_{0000..0071}.tar", "extensions": ["jpg", "cls"], "metadata": {"num_train": ...}}
    train.idx.json    {"train_0000.tar": {".jpg": {"key": 0, ...}, ".cls": {...}}, ...}

An index has the offset of each member's first header. Sources: the README and `litdata.py`, `writer.py` of the
published package.
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from ledgerbeam.errors import LedgerbeamError, SourceError, UsageError
from ledgerbeam.io.listing.patterns import expand_braces
from ledgerbeam.io.storage.client import Options
from ledgerbeam.io.storage.files import read_bytes

CONFIG = "config.json"
"""Name of the file that makes a folder a dataset."""

RESERVED = ("extensions", "metadata")
"""Members of the configuration that are not folds."""


def index_name(fold: str) -> str:
    """Return the name of the index of a fold."""
    return f"{fold}.idx.json"


@dataclass(frozen=True, slots=True)
class LitConfig:
    """The content of `config.json`.

    Attributes:
        url: URL of the file.
        folds: The shard pattern of each fold, unchanged.
        modalities: The default modalities, without leading dots.
        metadata: Metadata of the writer, and `num_<fold>`.
    """

    url: str
    folds: Mapping[str, str]
    modalities: tuple[str, ...]
    metadata: Mapping[str, Any]

    def shards(self, fold: str) -> list[str]:
        """Return the names of the shards of a fold, relative to the folder. A leading slash of a pattern is ignored.

        Raises:
            UsageError: The fold does not exist.
            SourceError: Its pattern does not expand, leaves the folder, or has two shards of one base name.
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
            base = posixpath.basename(name)
            if base in bases:
                raise SourceError(
                    f"{self.url}: expected shards of {fold!r} that differ in their base names, found {bases[base]!r} "
                    f"and {name!r}, which are the same shard in an index; correct the pattern, or rename one"
                )
            bases[base] = name
        return names


def read_config(url: str, options: Options | None = None) -> LitConfig:
    """Read a `config.json`.

    Args:
        url: The file.
        options: Storage options.

    Raises:
        SourceNotFoundError: The file does not exist; also StorageError.
        SourceError: The file is not such a configuration.
    """
    try:
        content = orjson.loads(read_bytes(url, options))
    except orjson.JSONDecodeError as error:
        raise SourceError(f"{url}: expected a LIT configuration, found bad JSON: {error}") from error
    if not isinstance(content, dict):
        raise SourceError(f"{url}: expected a LIT configuration, an object, found {type(content).__name__}")
    extensions, metadata = content.get("extensions"), content.get("metadata", {})
    if not isinstance(extensions, list) or not all(isinstance(name, str) for name in extensions):
        raise SourceError(f"{url}: expected a list of modalities under 'extensions', found {extensions!r:.80}")
    if not isinstance(metadata, dict):
        raise SourceError(f"{url}: expected an object under 'metadata', found {metadata!r:.80}")
    folds = {name: pattern for name, pattern in content.items() if name not in RESERVED and isinstance(pattern, str)}
    return LitConfig(url, folds, without_dots(extensions), metadata)


def without_dots(modalities: Sequence[str]) -> tuple[str, ...]:
    """Remove the leading dot of names of modalities."""
    return tuple(name.removeprefix(".") for name in modalities)
