"""Async functions that tests map."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any, Self

from ledgerbeam import Drop, Reject, Route, stats

running: list[int] = []
log: list[str] = []


async def waits(record: dict[str, Any]) -> Any:
    """Do what the record says after its time; the least records come last."""
    running.append(record["id"])
    log.append(f"{len(running)}")
    try:
        await asyncio.sleep(record.get("seconds", 0.0))
        stats.count("calls")
        stats.top("did", record.get("do", ""))
        return _did(record)
    finally:
        running.remove(record["id"])


def _did(record: dict[str, Any]) -> Any:
    match record.get("do", ""):
        case "raise":
            raise KeyError(record["id"])
        case "exit":
            raise SystemExit(3)
        case "drop":
            return Drop("unwanted")
        case "reject":
            return Reject("bad")
        case "route":
            return Route("other", {**record, "routed": True})
        case "none":
            return None
        case "many":
            return [record, {**record, "copy": True}]
    return {**record, "done": True}


SHARED: dict[str, Any] = {}


async def same_object(record: dict[str, Any]) -> Any:
    """Return one object for all records, which each call changes."""
    await asyncio.sleep(0)
    SHARED["id"] = record["id"]
    return SHARED


async def cancels(record: dict[str, Any]) -> Any:
    """Cancel its own task for one record."""
    if record["id"] == 1:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
    await asyncio.sleep(0)
    return record


async def exits_inside(record: dict[str, Any]) -> Any:
    """Wait for a task that exits, for one record."""

    async def leave() -> None:
        raise SystemExit(3)

    if record["id"] == 2:
        await asyncio.gather(leave())
    await asyncio.sleep(0.01)
    return record


async def stubborn(record: dict[str, Any]) -> Any:
    """Ignore its cancellation for one record."""
    if record["id"] == 1:
        for _ in range(2):
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(2)
    return record


async def of_batch(records: list[dict[str, Any]]) -> list[Any]:
    """Return the size of its batch for each record."""
    await asyncio.sleep(0)
    return [{**record, "batch": len(records)} for record in records]


async def batch_waits(records: list[dict[str, Any]]) -> list[Any]:
    """Do what each record of a batch says, after some time."""
    running.append(records[0]["id"])
    log.append(f"{len(running)}")
    try:
        await asyncio.sleep(0.05)
        return [_did(record) for record in records]
    finally:
        running.remove(records[0]["id"])


def plain(record: dict[str, Any]) -> Any:
    """Drop records whose number is a multiple of 5."""
    return None if record["id"] % 5 == 0 else {**record, "plain": True}


class Client:
    """Has a loop from its constructor to its end."""

    def __init__(self, step: int = 1) -> None:
        self.loop = asyncio.get_running_loop()
        self.step = step

    async def __aenter__(self) -> Self:
        log.append("entered")
        return self

    async def __aexit__(self, *_: object) -> None:
        log.append("left")

    async def __call__(self, record: dict[str, Any]) -> Any:
        assert asyncio.get_running_loop() is self.loop
        return {**record, "id": record["id"] + self.step}


class Closing:
    """Has a coroutine function `close`."""

    async def __call__(self, record: dict[str, Any]) -> Any:
        return record

    async def close(self) -> None:
        await asyncio.sleep(0)
        log.append("closed")
