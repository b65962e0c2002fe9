"""Small sources, trees of tasks, and the leaves that a job would commit for them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from itertools import product

from ledgerbeam.ledger.model.accounts import RecordCounts, Statistic
from ledgerbeam.ledger.model.identity import Lineage, node_id
from ledgerbeam.ledger.model.job import Job
from ledgerbeam.ledger.model.rows import Failure, Leaf, Mark, Output
from ledgerbeam.ledger.model.task import Source

Tree = tuple["Tree", ...] | None
"""A task that fans out into its children, or None for a leaf."""

ONE, TWO = Job("map", {"to": "jsonl"}), Job("map", {"to": "tar"})


def plain(name: str = "a", version: str = "1", size: int = 10) -> Source:
    return Source(f"/data/{name}.jsonl", size, version)


def failure_of(source: Source, lineage: Lineage = (), error: str = "bad input") -> Failure:
    return Failure(source.id, lineage, f"{source.url} {lineage}", "ValueError", error)


def mark_of(source: Source, lineage: Lineage = ()) -> Mark:
    return Mark(source.id, node_id(source.id, lineage), "task")


def output_of(source: Source, lineage: Lineage, content: str = "") -> Output:
    place = "-".join(str(ordinal) for ordinal, _ in lineage)
    stem = source.url.removeprefix("/").removesuffix(".jsonl")
    return Output(f"{stem}-{place}.jsonl", 100, f"sum:{stem}{place}{content}", 5, sum(o for o, _ in lineage))


def leaf_of(source: Source, lineage: Lineage = (), content: str = "") -> Leaf:
    return Leaf(source.id, lineage, "published", (output_of(source, lineage, content),), 5, 50)


def filtered_leaf(source: Source, lineage: Lineage = ()) -> Leaf:
    return Leaf(source.id, lineage, "filtered", (), 0, 30)


def counted_leaf(source: Source, lineage: Lineage = (), dropped: int = 1, rejected: int = 1) -> Leaf:
    """Return a leaf of which not every record was written as it was read, with statistics."""
    ordinal = sum(o for o, _ in lineage)
    counts = RecordCounts(
        4 + dropped + rejected,
        4,
        {f"why {ordinal % 2}": dropped} if dropped else {},
        {"bad": rejected} if rejected else {},
        {"": 3, "de": 2},
    )
    statistics = {"length": Statistic("count", f"{source.url} {lineage}".encode()), "b\udc80": Statistic("kll", b"\0")}
    return replace(leaf_of(source, lineage), seconds=0.25, counts=counts, statistics=statistics)


def dropping_leaf(source: Source, lineage: Lineage = (), dropped: int = 2) -> Leaf:
    """Return a leaf all of whose records were left out."""
    counts = RecordCounts(dropped, 0, {"returned nothing": dropped})
    return Leaf(source.id, lineage, "filtered", counts=counts, statistics={"seen": Statistic("count", b"2")})


def sum_of(leaves: Iterable[Leaf]) -> RecordCounts:
    """Return the sum of the record counts of leaves."""
    total = RecordCounts()
    for leaf in leaves:
        total = total.plus(RecordCounts.plain(leaf.records) if leaf.counts is None else leaf.counts)
    return total


def leaves_of_split(source: Source, count: int, content: str = "") -> list[Leaf]:
    return [leaf_of(source, ((ordinal, count),), content) for ordinal in range(count)]


def lineages(tree: Tree, above: Lineage = ()) -> list[Lineage]:
    """Return the lineage of every leaf of a tree."""
    if tree is None:
        return [above]
    return [found for ordinal, child in enumerate(tree) for found in lineages(child, (*above, (ordinal, len(tree))))]


@cache
def trees(leaves: int, depth: int) -> Sequence[Tree]:
    """Return all trees with so many leaves and at most so many levels of fan-out; fan-outs into 1 included."""
    found: list[Tree] = [None] if leaves == 1 else []
    if depth:
        found += _forests(leaves, depth - 1)
    return found


def _forests(leaves: int, depth: int) -> Iterator[tuple[Tree, ...]]:
    yield from ((tree,) for tree in trees(leaves, depth))
    for first in range(1, leaves):
        for head, tail in product(trees(first, depth), list(_forests(leaves - first, depth))):
            yield (head, *tail)
