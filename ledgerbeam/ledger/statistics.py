"""Merged statistics: of all recorded tasks of a ledger, and of several steps of one task."""

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
    """A statistic merged over all recorded tasks.

    Attributes:
        kind: ``count``, ``observe``, ``distinct`` or ``top``.
        sketch: The merged sketch of the tasks.
        tasks: Number of tasks that have the statistic.
        of: Number of recorded tasks of the ledger.
    """

    kind: str
    sketch: Merging
    tasks: int = 0
    of: int = 0

    def value(self) -> Any:
        """Return the value for JSON: a number, an object of ``observe``, or a list of ``top``."""
        return self.sketch.value()

    def bounds(self) -> str:
        """Return the error bounds of the value, for people; empty if it is exact."""
        return self.sketch.bounds()


def merged_statistics(store: LedgerStore, name: str | None = None) -> dict[str, MergedStatistic]:
    """Merge the statistics of all recorded tasks of a ledger, in the ledger's order: the result is always the same.

    Each task counts once, regardless of retries. Sources that were replaced do not count.

    Args:
        store: The ledger.
        name: Name of the only statistic to merge; None merges all.

    Returns:
        The merged statistics by name, names sorted.

    Raises:
        LedgerDamagedError: A sketch cannot be decoded.
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
                f"{store.url}: the statistic {shown(each)} of a task cannot be decoded ({error}); restore the ledger "
                "from a copy, or process its sources again with: ledgerbeam ledger forget"
            ) from error
        if known.kind != kind:
            raise LedgerError(
                f"{store.url}: the statistic {shown(each)} was made by stats.{known.kind} in some tasks and by "
                f"stats.{kind} in others, because the function has changed; process the sources again with: ledgerbeam "
                "ledger forget; or choose another statistic with --name"
            )
    return dict(sorted(found.items()))


def joined_statistics(one: Mapping[str, Statistic], other: Mapping[str, Statistic]) -> Mapping[str, Statistic]:
    """Merge the statistics that two steps of a task made, by name.

    Raises:
        FunctionError: Both steps made a statistic of the same name, but of different kinds.
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
