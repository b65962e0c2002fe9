"""Nodes that read Shar folders, through indexes or as a stream."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

from ledgerbeam.io.compression.streams import is_pipe
from ledgerbeam.io.datasets.shar.reader import CUTS, SharReader, find_shar, stream_shar
from ledgerbeam.io.storage.client import Options
from ledgerbeam.io.storage.stat import FileInfo, stat_many
from ledgerbeam.io.storage.urls import canonical_url
from ledgerbeam.iterators.identity import describe_source
from ledgerbeam.iterators.indexed import Records
from ledgerbeam.iterators.node import Positions
from ledgerbeam.iterators.streams import Manifest
from ledgerbeam.iterators.tokens import Token, pair_token


class IndexedShar(Records):
    """The cuts of an indexed Shar folder with their fields. The tokens are `(number of the cut, epoch)`, as in lhotse.

    Args:
        folder: A local folder or URL.
        fields: Fields to read with the cuts. Default: all.
        options: Storage options.
        shuffle: Whether to use a new order of the whole folder in each epoch, without a buffer.
        seed: Chooses the orders. The order of epoch 0 is that of lhotse with this seed.

    Raises:
        IndexNotFoundError: A shard has no index. `SharReader` lists the other errors.
    """

    def __init__(
        self,
        folder: str,
        fields: Sequence[str] | None = None,
        options: Options | None = None,
        *,
        shuffle: bool = False,
        seed: int = 0,
    ) -> None:
        super().__init__(SharReader(folder, fields, options), shuffle=shuffle, seed=seed)

    def tokens_of(self, numbers: Positions, epoch: int) -> list[Token]:
        return [(number, epoch) for number in numbers.tolist()]

    def read_many(self, tokens: Sequence[Token], epoch: int | None = None) -> list[Any]:
        parts = [pair_token(token, self._name, "(number of the cut, epoch)") for token in tokens]
        return super().read_many([number for number, _ in parts], epoch)

    def describe_data(self) -> dict[str, Any]:
        return {**super().describe_data(), "fields": list(self.records.fields)}


class Shar(Manifest):
    """The cuts of a Shar folder with their fields, streamed from its beginning, plain or compressed, without an index.

    Its position can be saved. The time to continue is proportional to the position, as with `Manifest`; `IndexedShar`
    continues immediately.

    Args:
        folder: A local folder or URL, the URL of a list of fields, or the shards of each field: a mapping of `cuts` and
            other fields to lists of URLs. Such a list may have `pipe:` and a command, if `LEDGERBEAM_ALLOW_PIPES=1` is
            set; then the position cannot be saved. The command of a tar field runs twice in a pass, and must
            contain the name of a tar file.
        fields: Fields to read with the cuts. Default: all.
        options: Storage options.

    Raises:
        SourceError: As in `find_shar`. Reads raise the errors of `stream_shar`.
    """

    def __init__(
        self,
        folder: str | Mapping[str, Sequence[str]],
        fields: Sequence[str] | None = None,
        options: Options | None = None,
    ) -> None:
        self.shards = find_shar(folder, options, fields, streamed=True)
        super().__init__(
            canonical_url(folder).rstrip("/") if isinstance(folder, str) else self.shards[CUTS][0], options
        )
        self._shards_found: dict[str, FileInfo] | None = None

    @property
    def is_checkpointable(self) -> bool:  # type: ignore[override]
        return not any(map(is_pipe, chain.from_iterable(self.shards.values())))

    def records(self) -> Iterator[Any]:
        return stream_shar(self.shards, self.options, self._shards_as_found())

    def parameters(self) -> dict[str, Any]:
        return {
            "data": {"url": self.url, "shards": [describe_source(info) for info in self._shards_as_found().values()]}
        }

    def _shards_as_found(self) -> dict[str, FileInfo]:
        """Return the properties of the shards by URL, without pipes. Every call returns those of the first call."""
        if self._shards_found is None:
            urls = [url for url in chain.from_iterable(self.shards.values()) if not is_pipe(url)]
            self._shards_found = dict(zip(urls, stat_many(urls, self.options), strict=True))
        return self._shards_found
