"""The ledgers of the earlier stages of a job that has several: they lie in the folder of its own."""

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
        store: The ledger of its last stage.
        storage_options: To reach them.
        besides: Names of those that are not to be opened.

    Returns:
        All others that are there, by name, in order; none of a job of one stage. Of stages that a job may do without,
        those that have sources.
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
    """Yield the names of a stage: one, or as many as are asked for."""
    if not stage.endswith(NUMBERED):
        yield stage
        return
    yield from (f"{stage.removesuffix(NUMBERED)}-{number}" for number in count(1))


def _has_sources(store: LedgerStore) -> bool:
    gone = store.gone_ids()
    return any(one not in gone for page in store.source_ids() for one in page)


def every_ledger(store: LedgerStore, storage_options: Mapping[str, Any]) -> list[LedgerStore]:
    """Return the ledgers of all stages of a job, in order, that of its last stage last; see `stage_ledgers`."""
    return [*stage_ledgers(store, storage_options).values(), store]


def stages_line(stages: Mapping[str, LedgerStore]) -> str:
    """Return how much of each stage is done: ``scatter 12 of 12 tasks, pairs 3 of 8``; stages by name, in order."""
    found = [f"{name} {stage_tasks(store)}" for name, store in stages.items()]
    return ", ".join([f"{found[0]} tasks", *found[1:]])


def stage_tasks(store: LedgerStore) -> str:
    """Return how many of the tasks of a stage are done: ``3 of 8``, or ``3`` where the number of all is not known.

    Tasks of sources that are not complete are estimated from the sizes of these.
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
    """Return how far each earlier stage of a job is; see `stage_ledgers`."""
    from ledgerbeam.pipelines.report.state import ledger_state  # noqa: PLC0415 - who looks for failures needs none of it

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
