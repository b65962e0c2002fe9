"""Iterator graphs as sources of jobs. Each pass of a graph is a source, and its places are divided among tasks."""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from itertools import pairwise
from typing import Any

import orjson

from ledgerbeam.errors import (
    ChangedSourceError,
    FunctionError,
    IndexError_,
    LedgerbeamError,
    SourceError,
    StorageError,
    UnsupportedShapeError,
    UsageError,
)
from ledgerbeam.io.index.reader import RawRecord
from ledgerbeam.io.listing.left_out import LeftOut
from ledgerbeam.io.listing.pages import Page
from ledgerbeam.io.storage.stat import FileInfo, SourceWatch
from ledgerbeam.iterators import IteratorNode, OrderedNode, resolve_iterator_source
from ledgerbeam.iterators.node import walk
from ledgerbeam.ledger import Source
from ledgerbeam.sources import Cut, Opened, SourceKind, TaskLimits
from ledgerbeam.sources.listing import index_of, own_version
from ledgerbeam.user_code.guards import describe_error, is_interrupt
from ledgerbeam.user_code.loading import Reference, import_object

GRAPH_SCHEME = "graph://"  # of URLs that name passes of graphs; no store has them: a process builds the graph

_FIXED = (str, bytes, int, float, type(None))

_object_lock = threading.Lock()  # held while a graph that is a module object is read: threads share it


@dataclass(frozen=True)
class GraphSource(SourceKind):
    """The passes of a graph as sources: one for each epoch, of `positions` places each. Spans count places.

    The version of such a source is a hash of the identity of the graph: its nodes and parameters, and URL, size and
    version of its data. Any change makes a new source. The graph is built once in each process.

    Attributes:
        reference: ``module:function`` of a function without arguments that returns the graph, ``module:object`` of a
            graph, or such a function itself.
        epochs: Number of passes: from 0 to `epochs - 1`.

    Raises:
        UsageError: If `epochs` is less than 1.
    """

    reference: Reference
    epochs: int = 1

    def __post_init__(self) -> None:
        if self.epochs < 1:
            raise UsageError(f"epochs: expected at least 1, found {self.epochs}")

    def __reduce__(self) -> tuple[Any, ...]:
        return GraphSource, (self.reference, self.epochs)  # without the graph, which is built again

    def kind_of(self, source: Source) -> SourceKind:
        return self

    def check_names(self, urls: Iterable[str], *, by_position: bool = False) -> None:
        """Do nothing: this class itself creates the names of passes."""

    @property
    def title(self) -> str:
        return str(self.reference)

    @property
    def base(self) -> str:
        """The common prefix of the URLs of all passes, which ends with ``/``."""
        return f"{GRAPH_SCHEME}{str(self.reference).replace(':', '/', 1)}/"

    def build(self) -> IteratorNode:
        """Build the graph. Raises FunctionError, or UnsupportedShapeError if its places are not known in advance."""
        found = import_object(self.reference)
        if callable(found):
            try:
                found = found()
            except LedgerbeamError:
                raise
            except BaseException as error:
                if is_interrupt(error):
                    raise
                raise FunctionError(
                    f"{self.reference} raised {describe_error(error)}; expected a function without arguments that "
                    "returns a graph"
                ) from error
        try:
            graph = resolve_iterator_source(found)
        except UsageError:
            raise FunctionError(
                f"{self.reference}: expected a graph or a function that returns one, found {type(found).__name__}"
            ) from None
        if graph.positions is None:
            # The lowest node without places, because of which the nodes above have none.
            node = next(
                n for n in walk(graph) if n.positions is None and all(c.positions is not None for c in n.children)
            )
            raise UnsupportedShapeError(
                f"{self.reference}: {node!r} has no fixed number of places before it is read, so a pass cannot be "
                "divided into tasks; use GlobalShuffle instead of Shuffle, IndexedManifest instead of Jsonl and "
                "Manifest, and Repeat with `times`. Put Filter, Flatten and Repeat above a Mux or a Slice, not below "
                "it. Make batches later, when the shards of the job are read"
            )
        return graph

    def urls(self) -> list[str]:
        """Return the URLs of the data that the graph reads."""
        return sorted({part["url"] for part in _with_url(self.build().identity())})

    def pages(self, left_out: LeftOut | None = None) -> Iterator[Page]:
        """List the passes as one page. Raises the errors of `build`, and `StorageError` if data cannot be accessed."""
        del left_out  # all passes are listed
        graph = self.build()
        urls = [f"{self.base}epoch-{epoch:05d}" for epoch in range(self.epochs)]
        yield Page(urls, [graph.positions or 0] * self.epochs, [_version(graph)] * self.epochs)

    def spans(
        self, places: int, *, task_bytes: int | None = None, task_records: int | None = None
    ) -> list[tuple[int, int]]:
        """Divide the places of a pass into spans of equal length. The same graph and data yield the same spans.

        `task_bytes` limits the size of a span, estimated from the mean size of records; `task_records` its places.
        """
        limits = [max(1, places)] if task_records is None else [task_records]
        if task_bytes is not None:
            limits.append(max(1, int(task_bytes / _record_bytes(self.build()))))
        return list(pairwise([*range(0, places, min(limits)), places])) if places else []

    def files(self, source: Source) -> list[FileInfo]:
        """Return no files, since the source is a graph. `read` checks the graph and the files that it reads."""
        return []

    def cut(self, source: Source, limits: TaskLimits, *, changed: bool = False) -> Cut:
        del changed  # after a change of graph or data a pass is another source
        return Cut(source, self.spans(source.size, **limits._asdict()))

    def open(self, source: Source) -> Opened:
        return _OpenedPass(self, source)

    def read(self, source: Source, start: int, stop: int) -> list[Any]:
        """Return the items of a span, in the order of the pass; fewer than places if a filter drops some.

        Raises ChangedSourceError, FunctionError, and the errors of reading the data.
        """
        with nullcontext() if callable(import_object(self.reference)) else _object_lock:
            graph, version = self._built
            if (graph.positions, version) != (source.size, source.version):
                raise ChangedSourceError(
                    f"{source.url}: the graph or its data changed since it was listed. Expected {source.size} places "
                    f"of version {source.version}, found {graph.positions} of version {version}; run the job again. "
                    f"{self.reference} must build the same graph each time"
                )
            watch = SourceWatch(_data_files(graph.identity()))
            epoch = int(source.url.rpartition("-")[2])
            try:
                with watch:
                    items = graph.read_span(start, stop, epoch)
                    changeable = [id(item) for item in items if not isinstance(item, _FIXED)]
                    if len(set(changeable)) == len(changeable):  # no mutable object occurs twice
                        return items
                    # Copy the items of each place before a function of the graph changes them for the next place.
                    places = (graph.read_span(place, place + 1, epoch) for place in range(start, stop))
                    return [copy.deepcopy(item) for items in places for item in items]
            except (FunctionError, IndexError_, SourceError, StorageError):
                raise
            except BaseException as error:
                if is_interrupt(error):
                    raise
                raise FunctionError(
                    f"{source.url}[{start}:{stop}]: {self.reference} raised {describe_error(error)}"
                ) from error

    @cached_property
    def _built(self) -> tuple[IteratorNode, str]:
        graph = self.build()
        return graph, _version(graph)


class _OpenedPass:
    fetches = False

    def __init__(self, passes: GraphSource, source: Source) -> None:
        self._passes = passes
        self._source = source

    def read_span(self, start: int, stop: int) -> list[Any]:
        return self._passes.read(self._source, start, stop)

    def read_raw(self, start: int, stop: int) -> list[RawRecord]:
        raise UnsupportedShapeError(
            f"{self._source.url}[{start}:{stop}]: items of a graph have no raw bytes, so rejected items cannot be "
            "stored; drop such items in the graph, or map the files"
        )

    def read_each(self, start: int, stop: int) -> list[Any]:
        return self.read_span(start, stop)

    def close(self) -> None:
        """Do nothing: the graph stays open for all passes."""


def _version(graph: IteratorNode) -> str:
    try:
        described = orjson.dumps(graph.identity(), option=orjson.OPT_SORT_KEYS)
    except TypeError as error:
        raise UsageError(f"{graph!r}: expected parameters() of plain values that JSON can hold: {error}") from error
    return blake2b(described, digest_size=16, person=b"lb.graph").hexdigest()


def _record_bytes(graph: IteratorNode) -> float:
    """Return the mean size in bytes of the records of all nodes without children, at least 1."""
    leaves = [node for node in walk(graph) if isinstance(node, OrderedNode) and not node.children]
    places = sum(map(len, leaves))
    return max(1.0, sum(len(leaf) * leaf.record_bytes for leaf in leaves) / max(1, places))


def _data_files(described: Any) -> Iterator[FileInfo]:
    """Yield the properties that the files of a graph had when the graph was built, from its description."""
    for part in _with_url(described):
        if {"size", "version"} <= part.keys():
            url, version = part["url"], part["version"]
            yield FileInfo(url, part["size"], own_version(version))
            if index := index_of(url, version):
                yield index


def _with_url(described: Any) -> Iterator[dict[str, Any]]:
    """Yield the dicts in a description, at any depth, that have a URL."""
    if isinstance(described, dict):
        if isinstance(described.get("url"), str):
            yield described
        described = list(described.values())
    if isinstance(described, list):
        for value in described:
            yield from _with_url(value)
