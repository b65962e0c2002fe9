"""What the statistics of tasks come to: those of all recorded tasks, and those that several steps made of one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ledgerbeam.errors import FunctionError, LedgerDamagedError, LedgerError
from ledgerbeam.ledger.model.accounts import Statistic
from ledgerbeam.ledger.model.store import LedgerStore
from ledgerbeam.ledger.model.values import shown
from ledgerbeam.sketches import Merging, combined, merging


@dataclass
class MergedStatistic:
    """What a statistic comes to over all recorded tasks.

    Attributes:
        kind: ``count``, ``observe``, ``distinct`` or ``top``.
        sketch: What the tasks' sketches were merged to.
        tasks: Number of tasks that have it.
        of: Number of recorded tasks of the ledger.
    """

    kind: str
    sketch: Merging
    tasks: int = 0
    of: int = 0

    def value(self) -> Any:
        """Return its value for JSON: a number, an object of ``observe``, or a list of ``top``."""
        return self.sketch.value()

    def bounds(self) -> str:
        """Return how far off that may be, for people; empty if it is exact."""
        return self.sketch.bounds()


def merged_statistics(store: LedgerStore, name: str | None = None) -> dict[str, MergedStatistic]:
    """Merge the statistics of all recorded tasks of a ledger, in the ledger's order: the same each time.

    Each task counts once, however often it ran, and a source that was replaced does not count.

    Args:
        store: The ledger.
        name: Of the only statistic to merge; None merges all.

    Returns:
        What each comes to, by name, names sorted.

    Raises:
        LedgerDamagedError: A sketch does not read.
        LedgerError: Tasks have statistics of different kinds under one name.
    """
    found: dict[str, MergedStatistic] = {}
    recorded = store.totals().tasks
    for each, (kind, data) in store.statistics():
        if name not in (None, each):
            continue
        known = found.get(each)
        try:
            if known is None:
                known = found[each] = MergedStatistic(kind, merging(kind), of=recorded)
            if known.kind == kind:
                known.sketch.take(data)
                known.tasks += 1
        except (ValueError, ArithmeticError) as error:
            raise LedgerDamagedError(
                f"{store.url}: the statistic {shown(each)} of a task does not read ({error}); restore the ledger from "
                "a copy, or do its sources again with: ledgerbeam ledger forget"
            ) from error
        if known.kind != kind:
            raise LedgerError(
                f"{store.url}: the statistic {shown(each)} was made by stats.{known.kind} in some tasks and by "
                f"stats.{kind} in others, as the function has changed meanwhile; do the sources again with: ledgerbeam "
                "ledger forget; or look at another one with --name"
            )
    return dict(sorted(found.items()))


def joined_statistics(one: Mapping[str, Statistic], other: Mapping[str, Statistic]) -> Mapping[str, Statistic]:
    """Return the statistics of a task that two steps made, merged by name.

    Raises:
        FunctionError: Both made one of the same name and of different kinds.
    """
    if not (one and other):
        return one or other
    joined = {**one, **other}
    for name in one.keys() & other.keys():
        if one[name].kind != other[name].kind:
            raise FunctionError(
                f"two steps of a task made the statistic {shown(name)}, one by stats.{one[name].kind} and one by "
                f"stats.{other[name].kind}; give one of them another name"
            )
        joined[name] = Statistic(one[name].kind, combined(one[name].kind, [one[name].data, other[name].data]))
    return joined
