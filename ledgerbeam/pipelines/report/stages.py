"""Ledgers of the earlier stages of a job. They are stored in the folder of the last stage's ledger."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Mapping
from itertools import count
from typing import TYPE_CHECKING, Any

from ledgerbeam.errors import LedgerNotFoundError
from ledgerbeam.ledger import LedgerStore, MergedStatistic, merged_statistics
from ledgerbeam.ledger.opening import open_store
from ledgerbeam.pipelines.exchange.stages import NUMBERED, is_optional, stages_of
from ledgerbeam.pipelines.preview.costs import MOST_SOURCES

if TYPE_CHECKING:
    from ledgerbeam.pipelines.report.state import LedgerState


def stage_ledgers(
    store: LedgerStore, storage_options: Mapping[str, Any], *, besides: Collection[str] = ()
) -> dict[str, LedgerStore]:
    """Open the ledgers of the earlier stages of a job.

    Args:
        store: The ledger of the last stage.
        storage_options: Storage options of the ledgers.
        besides: Names of stages to skip.

    Returns:
        The existing ledgers by name, in order; empty for a job of one stage. Optional stages without sources are left
        out.
    """
    job = store.job()
    found: dict[str, LedgerStore] = {}
    for stage in () if job is None else stages_of(job):
        for name in _numbered(stage):
            with contextlib.suppress(LedgerNotFoundError):
                if name not in besides:
                    ledger = open_store(f"{store.url}/{name}", dict(storage_options), create=False, read_only=True)
                    if not is_optional(stage) or _has_sources(ledger):
                        found[name] = ledger
            if name not in found and name not in besides:
                break
    return found


def _numbered(stage: str) -> Iterator[str]:
    """Yield the names of a stage. A numbered stage yields numbered names without end."""
    if not stage.endswith(NUMBERED):
        yield stage
        return
    yield from (f"{stage.removesuffix(NUMBERED)}-{number}" for number in count(1))


def _has_sources(store: LedgerStore) -> bool:
    gone = store.gone_ids()
    return any(one not in gone for page in store.source_ids() for one in page)


def every_ledger(store: LedgerStore, storage_options: Mapping[str, Any]) -> list[LedgerStore]:
    """Return the ledgers of all stages of a job, in order, the last stage last; see `stage_ledgers`."""
    return [*stage_ledgers(store, storage_options).values(), store]


def stages_line(stages: Mapping[str, LedgerStore]) -> str:
    """Return the done tasks of each stage, in order: ``scatter 12 of 12 tasks, pairs 3 of 8``."""
    found = [f"{name} {stage_tasks(store)}" for name, store in stages.items()]
    return ", ".join([f"{found[0]} tasks", *found[1:]])


def stage_tasks(store: LedgerStore) -> str:
    """Return the done tasks of a stage: ``3 of 8``, or ``3`` if the total is not known.

    The number of tasks of incomplete sources is estimated from the sizes of the sources.
    """
    status, job = store.status(), store.job()
    done = status["tasks"]["done"]
    if status["complete"]:
        return f"{done:,} of {done:,}"
    parameters: Mapping[str, Any] = {} if job is None else job.parameters
    size = parameters.get("task_bytes") or parameters.get("shard_bytes")
    if not isinstance(size, int) or not 0 < sum(status["sources"].values()) <= MOST_SOURCES:
        return f"{done:,}"
    left = sum(
        max(1, -(-row.size // size) - row.totals.tasks) for row in store.sources() if row.state in ("open", "failed")
    )
    return f"{done:,} of {done + left:,}"


def stage_states(store: LedgerStore, storage_options: Mapping[str, Any]) -> dict[str, LedgerState]:
    """Return the state of each earlier stage of a job; see `stage_ledgers`."""
    from ledgerbeam.pipelines.report.state import ledger_state  # noqa: PLC0415 - `ledger failures` does not need it

    return {name: ledger_state(stage) for name, stage in stage_ledgers(store, storage_options).items()}


def stage_statistics(
    store: LedgerStore, storage_options: Mapping[str, Any], name: str | None = None
) -> dict[str, MergedStatistic]:
    """Return the statistics of the functions of all stages, by name; see `merged_statistics`."""
    ledgers = every_ledger(store, storage_options)
    return {each: merged for ledger in ledgers for each, merged in merged_statistics(ledger, name).items()}


def state_values(state: LedgerState, stages: Mapping[str, LedgerState]) -> dict[str, Any]:
    """Return the state of a job as a JSON object. A job is complete when all its stages are complete."""
    values = state.values()
    if not stages:
        return values
    complete = values["complete"] and all(stage.found["complete"] for stage in stages.values())
    return {**values, "complete": complete, "stages": {name: stage.values() for name, stage in stages.items()}}
