"""The ledgers of the earlier stages of a job that has several: they lie in the folder of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ledgerbeam.errors import LedgerNotFoundError
from ledgerbeam.ledger import LedgerStore
from ledgerbeam.opening import open_ledger
from ledgerbeam.pipelines.jobs.exchange import STAGES
from ledgerbeam.pipelines.report.state import LedgerState, ledger_state

__all__ = ["stage_states", "state_values"]


def stage_states(store: LedgerStore, storage_options: Mapping[str, Any]) -> dict[str, LedgerState]:
    """Look at the ledgers of the earlier stages of a job.

    Args:
        store: The ledger of its last stage.
        storage_options: To reach them.

    Returns:
        How far each stage is, by name, in order; none of a job of one stage.
    """
    job = store.job()
    found: dict[str, LedgerState] = {}
    for name in () if job is None else STAGES.get(job.pipeline, ()):
        try:
            stage = open_ledger(f"{store.url}/{name}", dict(storage_options), create=False, read_only=True)
        except LedgerNotFoundError:
            continue
        found[name] = ledger_state(stage)
    return found


def state_values(state: LedgerState, stages: Mapping[str, LedgerState]) -> dict[str, Any]:
    """Return how far a job is as one JSON object: it is complete when all of its stages are."""
    values = state.values()
    if not stages:
        return values
    complete = values["complete"] and all(stage.found["complete"] for stage in stages.values())
    return {**values, "complete": complete, "stages": {name: stage.values() for name, stage in stages.items()}}
