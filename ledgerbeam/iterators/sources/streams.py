"""Leaves that stream JSONL without an index, plain or compressed. They cannot rebuild items from tokens."""

# ruff: noqa: ARG002, D102 - what overrides a method of IteratorNode is described there

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from ledgerbeam.errors import UnsupportedShapeError
from ledgerbeam.io.jsonl.reader import stream_records
from ledgerbeam.io.storage.client import Options
from ledgerbeam.io.storage.pipes import is_pipe
from ledgerbeam.io.storage.stat import FileInfo, stat
from ledgerbeam.iterators.identity import describe_source
from ledgerbeam.iterators.node import IteratorNode, State, field
from ledgerbeam.iterators.tokens import Token

__all__ = ["Jsonl", "Manifest"]


class Jsonl(IteratorNode):
    """The records of a JSONL source, plain or compressed, streamed from its beginning. It cannot be saved.

    With several shards, each reads the whole source and keeps every S-th record.

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
        """Read the source from its beginning."""
        return stream_records(self.url, self.options)

    def begin(self, epoch: int) -> None:
        self._epoch = epoch
        self._read, self._finished = 0, False

    def finish(self) -> None:
        self._finished = True

    def parameters(self) -> dict[str, Any]:
        return {"data": describe_source(self._as_found())}

    def _as_found(self) -> FileInfo:
        """Return what the source was when it was first asked for; a pipe has neither size nor version."""
        if self._info is None:
            self._info = FileInfo(self.url, 0, "") if is_pipe(self.url) else stat(self.url, self.options)
        return self._info


class Manifest(Jsonl):
    """Like `Jsonl`, but it can be saved: to continue, it reads the source again and skips finished records.

    This is exact, but the time is proportional to the position. A buffer above this node cannot be rebuilt, so a graph
    with one cannot be saved; `IndexedManifest` has neither limit. A pipe cannot be saved, since its command may print
    something else the next time.

    Args:
        url: The source.
        options: Storage options.

    Raises:
        ChangedSourceError: From a pass: another file has taken the place of the one that states describe.
    """

    @property
    def is_checkpointable(self) -> bool:  # type: ignore[override]
        """Whether `state_dict` and `load_state_dict` work."""
        return not is_pipe(self.url)

    def records(self) -> Iterator[Any]:
        """Read the source from its beginning, as it was when the first pass or the first state needed it."""
        return stream_records(self.url, self.options, None if is_pipe(self.url) else self._as_found())

    def save(self) -> State:
        return {"read": self._read, "finished": self._finished}

    def load(self, state: Mapping[str, Any]) -> None:
        self._read, self._finished = field(state, "read", self._name), field(state, "finished", self._name)

    def merge(self, states: Sequence[Mapping[str, Any]]) -> State:
        raise UnsupportedShapeError(
            f"{self!r}: a partly read stream cannot be divided among another number of shards; write an index "
            "(ledgerbeam index) and use IndexedManifest"
        )
