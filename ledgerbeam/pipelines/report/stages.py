"""The ledgers of the earlier stages of a job that has several: they lie in the folder of its own."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

from ledgerbeam.errors import LedgerNotFoundError
from ledgerbeam.io.exchange.partition import Partition
from ledgerbeam.ledger import LedgerStore, MergedStatistic, merged_statistics
from ledgerbeam.opening import open_ledger
from ledgerbeam.pipelines.jobs.stages import stages_of, with_merges
from ledgerbeam.pipelines.report.state import LedgerState, ledger_state

__all__ = ["every_ledger", "stage_ledgers", "stage_states", "stage_statistics", "state_values"]


def stage_ledgers(
    store: LedgerStore, storage_options: Mapping[str, Any], *, besides: Mapping[str, LedgerStore] | None = None
) -> dict[str, LedgerStore]:
    """Open the ledgers of the earlier stages of a job.

    Args:
        store: The ledger of its last stage.
        storage_options: To reach them.
        besides: Those that were opened before, by name.

    Returns:
        All others that are there, by name, in order; none of a job of one stage.
    """
    job = store.job()
    known = dict(besides or {})
    found: dict[str, LedgerStore] = {}
    merges = 0
    for several in () if job is None else stages_of(job):
        for name in with_merges(several, merges):
            if name not in known:
                with contextlib.suppress(LedgerNotFoundError):
                    ledger = open_ledger(f"{store.url}/{name}", dict(storage_options), create=False, read_only=True)
                    found[name] = known[name] = ledger
            if name in known:
                merges = _merges_behind(known[name])
    return found


def _merges_behind(store: LedgerStore) -> int:
    """Return how many times the run files are merged that a stage writes."""
    job = store.job()
    partition = None if job is None else Partition.recorded(job.parameters)
    return 0 if partition is None else partition.merges.number


def every_ledger(store: LedgerStore, storage_options: Mapping[str, Any]) -> list[LedgerStore]:
    """Return the ledgers of all stages of a job, in order, that of its last stage last; see `stage_ledgers`."""
    return [*stage_ledgers(store, storage_options).values(), store]


def stage_states(store: LedgerStore, storage_options: Mapping[str, Any]) -> dict[str, LedgerState]:
    """Return how far each earlier stage of a job is; see `stage_ledgers`."""
    return {name: ledger_state(stage) for name, stage in stage_ledgers(store, storage_options).items()}


def stage_statistics(
    store: LedgerStore, storage_options: Mapping[str, Any], name: str | None = None
) -> dict[str, MergedStatistic]:
    """Return what the functions of all stages observed, by name; see `merged_statistics`."""
    ledgers = every_ledger(store, storage_options)
    return {each: merged for ledger in ledgers for each, merged in merged_statistics(ledger, name).items()}


def state_values(state: LedgerState, stages: Mapping[str, LedgerState]) -> dict[str, Any]:
    """Return how far a job is as one JSON object: it is complete when all of its stages are."""
    values = state.values()
    if not stages:
        return values
    complete = values["complete"] and all(stage.found["complete"] for stage in stages.values())
    return {**values, "complete": complete, "stages": {name: stage.values() for name, stage in stages.items()}}
