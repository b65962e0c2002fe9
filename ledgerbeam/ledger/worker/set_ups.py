"""How long worker processes of a local run took to set user code up, left in the run's folder for the launcher."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from ledgerbeam.ledger.model.set_ups import SetUps
from ledgerbeam.ledger.model.values import rows, seconds
from ledgerbeam.ledger.worker.left_files import leave, left, place_to_leave

SUFFIX = ".setup"


def leave_set_ups(run_dir: str, found: Sequence[float]) -> None:
    """Write how long set-ups of this process took to the run's folder."""
    leave(place_to_leave(run_dir, SUFFIX), list(found))


def left_set_ups(run_dir: str) -> SetUps:
    """Return what the worker processes of a run have left."""
    found: list[float] = []
    for times in left(run_dir, SUFFIX):
        with suppress(ValueError, TypeError):  # none of ours
            found += [seconds(value) for value in rows(times)]
    return SetUps.of(found)
