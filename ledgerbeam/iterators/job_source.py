"""Iterator graphs as sources of jobs: named by who builds them, cut by the places of a pass."""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
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
from ledgerbeam.io import FileInfo, Page, SourceWatch
from ledgerbeam.iterators import IteratorNode, OrderedNode, resolve_iterator_source
from ledgerbeam.iterators.node import walk
from ledgerbeam.ledger import Task, describe_error, import_object, is_interrupt

__all__ = ["GRAPH_SCHEME", "GraphReader", "GraphSource"]

GRAPH_SCHEME = "graph://"
"""How the URLs of passes of graphs begin. Nothing can be read there; only who builds the graph can."""

_FIXED = (str, bytes, int, float, type(None))

_object_lock = threading.Lock()
"""Held while a graph that is an object of a module is read: the threads of a process share it."""


@dataclass(frozen=True)
class GraphSource:
    """The passes of a graph as sources: one for each epoch, of `positions` places each.

    The version of such a source is a hash of the graph's identity: its nodes and parameters, and URL, size and version
    of its data. A change of any of them is a new source.

    Attributes:
        reference: ``module:function`` that takes nothing and returns the graph, or ``module:object`` that is one.
        epochs: How many passes: those from 0 to `epochs - 1`.

    Raises:
        UsageError: If `epochs` is less than 1.
    """

    reference: str
    epochs: int = 1

    def __post_init__(self) -> None:
        if self.epochs < 1:
            raise UsageError(f"epochs must be at least 1, found {self.epochs}")

    @property
    def title(self) -> str:
        """What a console shows."""
        return self.reference

    @property
    def base(self) -> str:
        """What the URLs of all passes begin with, ending in ``/``."""
        return f"{GRAPH_SCHEME}{self.reference.replace(':', '/', 1)}/"

    def build(self) -> IteratorNode:
        """Builds the graph.

        Raises:
            FunctionError: If it cannot be imported, or what builds it raises or returns something else.
            UnsupportedShapeError: If it has no places that are known before it is read.
        """
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
            raise UnsupportedShapeError(f"{self.reference}: {_why_no_places(graph)}")
        return graph

    def urls(self) -> list[str]:
        """Returns the URLs of the data that the graph reads."""
        return sorted(set(_data_urls(self.build().identity())))

    def pages(self) -> Iterator[Page]:
        """Lists the passes: one page. Raises what `build` raises, and `StorageError` if data cannot be looked at."""
        graph = self.build()
        urls = [f"{self.base}epoch-{epoch:05d}" for epoch in range(self.epochs)]
        yield Page(urls, [graph.positions or 0] * self.epochs, [_version(graph)] * self.epochs)

    def spans(
        self, places: int, *, task_bytes: int | None = None, task_records: int | None = None
    ) -> list[tuple[int, int]]:
        """Cuts the places of a pass into spans of one length, as a pure function of graph and data.

        Args:
            places: How many there are.
            task_bytes: Size of a span in bytes of the data below, by the mean size of its records.
            task_records: Places of a span, at most. Both limits may be given.

        Returns:
            Half-open ranges in order; empty for no places.
        """
        limits = [max(1, places)] if task_records is None else [task_records]
        if task_bytes is not None:
            limits.append(max(1, int(task_bytes / _record_bytes(self.build()))))
        return list(pairwise([*range(0, places, min(limits)), places])) if places else []


class GraphReader:
    """Reads spans of a graph that it builds once.

    Args:
        source: How the graph is named.
    """

    def __init__(self, source: GraphSource) -> None:
        self._source = source
        self._graph: IteratorNode | None = None
        self._version = ""

    def read(self, task: Task) -> list[Any]:
        """Returns the items of `task`, in the order of the pass; fewer than places where a filter drops.

        Raises:
            ChangedSourceError: If the graph or its data is no longer what was listed.
            FunctionError: If the graph cannot be built, or a function of it raises.
            IndexError_, SourceError, StorageError: If the data cannot be read.
        """
        with self._alone():
            if self._graph is None:
                graph = self._source.build()
                self._version = _version(graph)
                self._graph = graph
            if (self._graph.positions, self._version) != (task.source.size, task.source.version):
                raise ChangedSourceError(
                    f"{task.source.url}: the graph or its data changed since it was listed: expected "
                    f"{task.source.size} places of version {task.source.version}, found {self._graph.positions} of "
                    f"{self._version}; what builds it must build the same graph each time; run the job again to list "
                    "it anew"
                )
            watch = SourceWatch(_data_files(self._graph.identity()))
            epoch = int(task.source.url.rpartition("-")[2])
            try:
                with watch:
                    items = self._graph.read_span(task.start, task.stop, epoch)
                    return items if _are_apart(items) else self._read_one_by_one(self._graph, task, epoch)
            except (FunctionError, IndexError_, SourceError, StorageError):
                raise
            except BaseException as error:
                if is_interrupt(error):
                    raise
                raise FunctionError(f"{task.name}: {self._source.reference} raised {describe_error(error)}") from error

    def _read_one_by_one(self, graph: IteratorNode, task: Task, epoch: int) -> list[Any]:
        """Reads each place and copies what it gave, before a function of the graph changes it for the next."""
        return [
            copy.deepcopy(item)
            for place in range(task.start, task.stop)
            for item in graph.read_span(place, place + 1, epoch)
        ]

    def _alone(self) -> AbstractContextManager[Any]:
        return nullcontext() if callable(import_object(self._source.reference)) else _object_lock


def _are_apart(items: list[Any]) -> bool:
    """Tells whether no object that could be changed is there twice."""
    changeable = [id(item) for item in items if not isinstance(item, _FIXED)]
    return len(set(changeable)) == len(changeable)


def _version(graph: IteratorNode) -> str:
    try:
        described = orjson.dumps(graph.identity(), option=orjson.OPT_SORT_KEYS)
    except TypeError as error:
        raise UsageError(f"{graph!r}: expected parameters() of plain values that JSON can hold: {error}") from error
    return blake2b(described, digest_size=16, person=b"lb.graph").hexdigest()


def _record_bytes(graph: IteratorNode) -> float:
    """Returns the mean size of the records that the leaves of a graph hold, at least 1."""
    leaves = [node for node in walk(graph) if isinstance(node, OrderedNode) and not node.children]
    places = sum(map(len, leaves))
    return max(1.0, sum(len(leaf) * leaf.record_bytes for leaf in leaves) / max(1, places))


def _data_files(described: Any) -> Iterator[FileInfo]:
    """Yields what a graph knew of its files when it was built."""
    if isinstance(described, dict):
        if {"url", "size", "version"} <= described.keys():
            yield FileInfo(described["url"], described["size"], described["version"])
        else:
            for value in described.values():
                yield from _data_files(value)
    elif isinstance(described, list):
        for value in described:
            yield from _data_files(value)


def _data_urls(described: Any) -> Iterator[str]:
    if isinstance(described, dict):
        for name, value in described.items():
            if name == "url" and isinstance(value, str):
                yield value
            else:
                yield from _data_urls(value)
    elif isinstance(described, list):
        for value in described:
            yield from _data_urls(value)


def _why_no_places(graph: IteratorNode) -> str:
    """Names the lowest node that has no places, which is why those above it have none."""
    node = next(node for node in walk(graph) if node.positions is None and all(_has_places(c) for c in node.children))
    return (
        f"{node!r} has no fixed number of places that are known before it is read, so a pass cannot be cut into tasks; "
        "use GlobalShuffle for Shuffle, IndexedManifest for Jsonl and Manifest, Repeat with a number of times, Filter "
        "and Repeat above a Mux, not below it; leave what batches or flattens to those who read the shards"
    )


def _has_places(node: IteratorNode) -> bool:
    return node.positions is not None
