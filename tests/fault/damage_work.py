"""The function of the job whose ledger is damaged."""

from __future__ import annotations

from typing import Any

from ledgerbeam import Drop, Reject, Route, stats


def work(record: dict[str, Any]) -> Any:
    """Do with a record what a function may."""
    number = record["n"]
    stats.observe("length", len(record["text"]))
    if number % 11 == 3:
        return None
    if number % 11 == 5:
        return Drop("short")
    if number % 13 == 7:
        return Reject("bad")
    if number % 7 == 2:
        return Route("other", record)
    return [record, record] if number % 5 == 1 else record
