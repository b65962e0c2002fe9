"""How often user code was set up in a run, and how long that took."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from ledgerbeam.ledger.model.values import integer, mapping, seconds


class SetUps(NamedTuple):
    """The set-ups of user code in a run: what each worker process imports and builds before its first task.

    Attributes:
        times: How many there were.
        seconds: How long they took, all together.
        longest: How long the longest took, in seconds.
    """

    times: int = 0
    seconds: float = 0.0
    longest: float = 0.0

    @classmethod
    def of(cls, found: Sequence[float]) -> SetUps:
        """Add up what single ones took."""
        return cls(len(found), sum(found), max(found, default=0.0))

    def plus(self, other: SetUps) -> SetUps:
        """Return both together."""
        return SetUps(self.times + other.times, self.seconds + other.seconds, max(self.longest, other.longest))


def read_set_ups(value: Any) -> dict[str, Any]:
    """Check what a ledger holds of the set-ups of a run. Raises ValueError."""
    found = mapping(value)
    if found.keys() != set(SetUps._fields):
        raise ValueError(f"expected the set-ups of a run as {SetUps._fields}, found {sorted(found)!r:.80}")
    integer(found["times"])
    return {"times": found["times"], **{name: seconds(found[name]) for name in ("seconds", "longest")}}
