"""Record counts for people: lines and table rows made from `RecordCounts`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from ledgerbeam._base.redaction import printable, without_secrets
from ledgerbeam.ledger.model.accounts import RecordCounts

MAIN_ROUTE = "(no route)"
"""Label of the route without a name."""

SHOWN_NAMES = 10


def shown_records(counts: RecordCounts) -> dict[str, Any]:
    """Return `RecordCounts.as_dict` with secrets removed from the names."""
    shown = counts.as_dict()
    return {name: _shown_names(value) if isinstance(value, Mapping) else value for name, value in shown.items()}


def account_lines(counts: RecordCounts) -> list[tuple[str, str]]:
    """Return record counts as names and values. If all records were written without a route, return one line."""
    if counts.is_plain:
        return [("records", f"{counts.records:,}")]
    dropped, rejected = (sum(part.values()) for part in (counts.dropped, counts.rejected))
    became = f"{counts.read:,} read, {counts.kept:,} kept, {dropped:,} dropped, {rejected:,} rejected"
    lines = [("records", f"{became}; {counts.records:,} written")]
    for name, part in (("dropped", counts.dropped), ("rejected", counts.rejected), ("routes", _routes(counts))):
        if part:
            lines.append((f"  {name}", _listed(_shown_names(part))))
    return lines


def account_table(counts: RecordCounts) -> list[tuple[str, str, int]]:
    """Return rows of outcome, reason or route, and number of records. In each outcome, the largest number is first."""
    rows = [("read", "", counts.read), ("kept", "", counts.kept)]
    written = _routes(counts) or {"": counts.records}
    for what, part in (("dropped", counts.dropped), ("rejected", counts.rejected), ("written", written)):
        rows += [(what, name, number) for name, number in _most_first(_shown_names(part))]
    return rows


def _routes(counts: RecordCounts) -> Mapping[str, int]:
    """Return the number of records written by route; empty if only the route without a name was written."""
    if set(counts.written) <= {""}:
        return {}
    return {name or MAIN_ROUTE: number for name, number in counts.written.items()}


def _shown_names(part: Mapping[str, int]) -> dict[str, int]:
    shown: Counter[str] = Counter()
    for name, number in part.items():
        shown[without_secrets(name)] += number
    return dict(sorted(shown.items()))


def _most_first(part: Mapping[str, int]) -> list[tuple[str, int]]:
    """Return the `SHOWN_NAMES` largest entries, largest first, and one entry for the sum of the others."""
    ordered = sorted(part.items(), key=lambda item: (-item[1], item[0]))
    rest = ordered[SHOWN_NAMES:]
    others = [(f"{len(rest):,} more", sum(number for _, number in rest))] if rest else []
    return [*ordered[:SHOWN_NAMES], *others]


def _listed(part: Mapping[str, int]) -> str:
    return ", ".join(f"{printable(name)} {number:,}" for name, number in _most_first(part))
