"""The completion of a source, decided by counting, as pure functions.

``pending[source]`` counts the unfinished tasks in the tree below a source. The source itself adds 1, a fan-out into N
adds N-1, a finished leaf adds -1. The lineage of a leaf has the size of every fan-out above it. So the entries of all
its ancestors follow from the leaf. Each entry has a key, and is applied at most once.

Proof that the count cannot reach zero early: take any set of applied leaves, each with its ancestors. The count is then
the number of subtrees below those ancestors from which no leaf has arrived. It is never negative, and it is zero
exactly when there is no such subtree. Only a leaf applied without an ancestor could break this. Therefore the entries
of a leaf are one group: check the count after the group, never inside it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Literal, NamedTuple

from ledgerbeam.errors import NegativePendingCountError, NonDeterministicTaskError, UnsupportedShapeError
from ledgerbeam.ledger.model.identity import ID_BYTES, ROOT, Lineage, node_id

Terminal = Literal["published", "filtered"]  # end of a leaf: its output is durable, or it was filtered out


class Entry(NamedTuple):
    """One change of a source's count."""

    node: bytes  # the key of the entry within its source, 16 bytes: `identity.ROOT` or an `identity.node_id`
    delta: int  # the number added to the count, >= -1


def check_leaf(source_id: bytes, lineage: Lineage, terminal: Terminal) -> None:
    """Check the source, the lineage and the kind of a finished leaf. Raises UnsupportedShapeError."""
    if len(source_id) != ID_BYTES:
        raise UnsupportedShapeError(f"expected {ID_BYTES} bytes as the id of a source, found {source_id!r}")
    if terminal not in ("published", "filtered"):
        raise UnsupportedShapeError(f"expected a task that is 'published' or 'filtered', found {terminal!r}")
    for depth, (ordinal, count) in enumerate(lineage):
        if not 0 <= ordinal < count:
            raise UnsupportedShapeError(
                f"lineage {lineage} of source {source_id.hex()}: pair {depth} must have 0 <= ordinal < count, "
                f"found ({ordinal}, {count}); make children with Task.fan_out or Task.split"
            )


def entries(source_id: bytes, lineage: Lineage, *, terminal: Terminal = "published") -> tuple[Entry, ...]:
    """Return the entries that a finished leaf adds to its source's count: one group, to be applied together.

    These are the source's entry (+1), each ancestor's fan-out (+N-1) from the source downwards, and the leaf (-1). A
    task that fanned out into 0 is itself the leaf. Published and filtered leaves have equal entries. Raises like
    `check_leaf`.
    """
    check_leaf(source_id, lineage, terminal)
    above = _above(source_id, lineage[:-1], lineage[-1][1]) if lineage else (Entry(ROOT, 1),)
    return (*above, Entry(node_id(source_id, lineage), -1))


@lru_cache(maxsize=1024)  # all siblings of a leaf have the same result, often thousands
def _above(source_id: bytes, lineage: Lineage, count: int) -> tuple[Entry, ...]:
    """Return the entries of a source and of its tasks down to the task at `lineage`, which fanned out into `count`."""
    counts = (*(number for _, number in lineage), count)
    fan_outs = (Entry(node_id(source_id, lineage[:depth]), number - 1) for depth, number in enumerate(counts))
    return (Entry(ROOT, 1), *fan_outs)


def fold(
    pending: int, applied: Mapping[bytes, int] | Callable[[bytes], int | None], group: Iterable[Entry]
) -> tuple[int, list[Entry]]:
    """Apply groups of `entries` to a source's count. An entry counts once, and not at all if it is in `applied`.

    Return the new count, and the entries that were not applied before, in order.

    Raises:
        NonDeterministicTaskError: An entry is applied with another delta.
        NegativePendingCountError: The count would fall below zero.
    """
    known = applied if callable(applied) else applied.get
    fresh: dict[bytes, int] = {}
    for node, delta in group:
        before = fresh.get(node)
        if before is None:
            before = known(node)
        if before is None:
            fresh[node] = delta
        elif before != delta:
            raise NonDeterministicTaskError(
                f"task {node.hex()} {_meaning(before)} before and {_meaning(delta)} now; make the function depend on "
                "its input only, then run `ledgerbeam ledger forget` on the source"
            )
    after = pending + sum(fresh.values())
    if after < 0:
        raise NegativePendingCountError(
            "the rows of a source contradict each other: more of its tasks ended than were started (pending would "
            f"become {after}); run `ledgerbeam ledger forget` on the source, and the job again"
        )
    return after, [Entry(node, delta) for node, delta in fresh.items()]


def require_count(pending: int, deltas: Iterable[int]) -> None:
    """Check a source's count: 1 for its own entry, plus the deltas of its other applied entries.

    Raises ValueError if it differs. A lost entry would be applied once more, and the count would reach zero early.
    """
    found = 1 + sum(deltas)
    if found != pending:
        raise ValueError(f"expected the recorded tasks of a source to leave {pending} pending, found {found}")


def is_done(
    lineage: Lineage,
    source_id: bytes,
    applied: Mapping[bytes, int] | Callable[[bytes], int | None],
    most: int | None = None,
) -> bool:
    """Return whether a task and all tasks that it fanned out into are finished.

    A complete source has no applied entries left: check its completion first. If `applied` is a function, `most` is
    an upper bound for the number of entries that it can find.
    """
    known = applied if callable(applied) else applied.get
    limit = most if callable(applied) else len(applied)
    waiting: list[Lineage] = [lineage]
    while waiting:
        here = waiting.pop()
        delta = known(node_id(source_id, here))
        if delta is None:
            return False
        children = delta + 1
        if limit is not None and children > limit:
            return False  # most of them have no entry
        waiting.extend((*here, (ordinal, children)) for ordinal in range(children))
    return True


def _meaning(delta: int) -> str:
    return "ended" if delta < 0 else f"fanned out into {delta + 1}"
