"""Nodes that stream JSONL and tar without an index, plain or compressed. They cannot rebuild items from tokens."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from ledgerbeam.errors import UnsupportedShapeError, UsageError
from ledgerbeam.io.compression.streams import is_pipe
from ledgerbeam.io.formats.registry import recognize
from ledgerbeam.io.formats.streamed import stream_each
from ledgerbeam.io.lines.jsonl import stream_records
from ledgerbeam.io.storage.client import Options
from ledgerbeam.io.storage.stat import FileInfo, stat
from ledgerbeam.io.tar.format import TarFormat
from ledgerbeam.io.tar.grouping import Grouping
from ledgerbeam.iterators.identity import describe_source
from ledgerbeam.iterators.node import IteratorNode, State, field
from ledgerbeam.iterators.tokens import Token


class Jsonl(IteratorNode):
    """The records of a JSONL source, plain or compressed, streamed from its start. Its position cannot be saved.

    With S shards, each reads the whole source and keeps every S-th record.

    Args:
        url: The source; also `pipe:` and a command that prints lines, if `LEDGERBEAM_ALLOW_PIPES=1` is set.
        options: Storage options.
    """

    def __init__(self, url: str, options: Options | None = None) -> None:
        self.url = url
        self.options = options
        self._read = 0
        self._finished = False
        self._info: FileInfo | None = None

    def __repr__(self) -> str:
        return f"{self._name}({self.url!r})"

    def pairs(self) -> Iterator[tuple[Token | None, Any]]:
        if self._finished:
            return
        shard, shards = self._shard
        for record in islice(self.records(), self._read, None):
            mine = self._read % shards == shard
            self._read += 1
            if mine:
                yield None, record
        self._finished = True

    def records(self) -> Iterator[Any]:
        """Read the source from its start."""
        return stream_records(self.url, self.options)

    def begin(self, epoch: int) -> None:
        self._epoch = epoch
        self._read, self._finished = 0, False

    def finish(self) -> None:
        self._finished = True

    def parameters(self) -> dict[str, Any]:
        return {"data": describe_source(self._as_found())}

    def _as_found(self) -> FileInfo:
        """Return the properties of the source at the first call; a pipe has neither size nor version."""
        if self._info is None:
            self._info = FileInfo(self.url, 0, "") if is_pipe(self.url) else stat(self.url, self.options)
        return self._info


class Manifest(Jsonl):
    """Like `Jsonl`, but its position can be saved: to continue, it reads the source again and skips finished records.

    This is exact, but the time is proportional to the position, also with `Shuffle`, `Flatten`, `Batches`, `Buckets` or
    `Mix` above it; `IndexedManifest` continues immediately. The position in a pipe cannot be saved, because its command
    may print other records the next time.

    Args:
        url: The source.
        options: Storage options.

    Raises:
        ChangedSourceError: In a pass: the file was replaced after the first pass or the first state.
    """

    @property
    def is_checkpointable(self) -> bool:  # type: ignore[override]
        return not is_pipe(self.url)

    def records(self) -> Iterator[Any]:
        return stream_records(self.url, self.options, self._listed())

    def _listed(self) -> FileInfo | None:
        return None if is_pipe(self.url) else self._as_found()

    def save(self) -> State:
        return {"read": self._read, "finished": self._finished}

    def load(self, state: Mapping[str, Any]) -> None:
        self._read, self._finished = field(state, "read", self._name), field(state, "finished", self._name)

    def merge(self, states: Sequence[Mapping[str, Any]]) -> State:
        raise UnsupportedShapeError(
            f"{self!r}: a partly read stream cannot be divided among another number of shards; write an index "
            "(ledgerbeam index) and use IndexedManifest"
        )


class Tar(Manifest):
    """The samples of a tar archive, plain or compressed, streamed from its beginning without an index.

    Its position can be saved, as that of `Manifest`; `IndexedTar` continues immediately. A pass reads the archive
    twice: to find the samples, and to decode them. So the command of a pipe runs twice.

    Args:
        url: The archive; also `pipe:` and a command that prints one, if `LEDGERBEAM_ALLOW_PIPES=1` is set.
        options: Storage options.
        group: How members form samples; see `TarReader`.

    Raises:
        UsageError: The URL does not have the name of a tar archive.
    """

    def __init__(self, url: str, options: Options | None = None, *, group: Grouping = "auto") -> None:
        super().__init__(url, options)
        self.group: Grouping = group
        self._kind: Any = TarFormat(group)
        if not is_pipe(url):
            self._kind = recognize(url, [self._kind]).in_one_pass()
            if not isinstance(self._kind, TarFormat):
                raise UsageError(f"{url}: expected a tar archive, found {self._kind.name}; read that with Manifest")

    def records(self) -> Iterator[Any]:
        return stream_each(self.url, self.options, self._kind, self._listed())

    def parameters(self) -> dict[str, Any]:
        return {**super().parameters(), "group": self.group}
