"""Rows and tables: what was measured, its ratio, its target, and whether it was met."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Verdict = Literal["ok", "short", "noisy", "absent"]

HEADINGS = ("work", "ours", "peer or limit", "ratio", "target", "")


@dataclass(frozen=True)
class Row:
    """One line of a table, its cells as text.

    Attributes:
        work: What was done, in units that both sides share.
        ours: What we reach.
        other: What the peer, or the limit, is.
        ratio: The figure that is judged.
        target: What it should be.
        verdict: `ok`, `short`, `noisy` for a figure that cannot be true, or `absent` for what cannot be measured here.
    """

    work: str
    ours: str
    other: str
    ratio: str
    target: str
    verdict: Verdict

    @property
    def cells(self) -> tuple[str, ...]:
        return self.work, self.ours, self.other, self.ratio, self.target, self.verdict


@dataclass(frozen=True)
class Work:
    """What was done: its name, what it is counted in (`B` for bytes), and how much of that."""

    name: str
    unit: str
    amount: float


def speed_row(work: Work, ours: float, peer: str, theirs: float, target: float, *, note: str = "") -> Row:
    """Compare two times for the same work; a higher ratio is better.

    Args:
        work: What was done by both.
        ours: Our seconds.
        peer: Name of the other.
        theirs: Its seconds.
        target: The least ratio of speeds, ours to theirs.
        note: Follows the peer's figure.
    """
    ratio = theirs / ours
    return Row(
        work.name,
        rate(work.amount / ours, work.unit),
        f"{peer} {rate(work.amount / theirs, work.unit)}{note}",
        f"{ratio:.2f}" if ratio < 100 else f"{ratio:.0f}",
        f">= {target:g}",
        "ok" if ratio >= target else "short",
    )


def least_row(work: Work, seconds: float, target: float, *, note: str = "") -> Row:
    """Judge a rate by a least value; its ratio is value to target, and `note` follows the target."""
    value = work.amount / seconds
    verdict: Verdict = "ok" if value >= target else "short"
    least = f"least {rate(target, work.unit)}{note}"
    return Row(work.name, rate(value, work.unit), least, f"{value / target:.2f}", ">= 1", verdict)


def most_row(work: str, value: float, limit: float, suffix: str, *, ours: str = "", other: str = "") -> Row:
    """Judge a figure that is never negative by a greatest value; the ratio column shows the figure itself."""
    verdict: Verdict = "short" if value > limit else "noisy" if value < -limit else "ok"
    shown = f"{value:.3g}{suffix}" if value < 1000 else f"{value:.0f}{suffix}"
    return Row(work, ours or shown, other or "-", shown, f"<= {limit:g}{suffix}", verdict)


def absent_row(work: str, target: str, remedy: str) -> Row:
    """Stand for what cannot be measured here, and say how to get it."""
    return Row(work, "-", f"not here: {remedy}", "-", target, "absent")


def rate(value: float, unit: str) -> str:
    """Write a rate: `4.9 GB/s`, `310 k records/s`."""
    for prefix, scale in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= scale:
            return f"{value / scale:.3g} {prefix}{'' if unit == 'B' else ' '}{unit}/s"
    return f"{value:.3g} {unit}/s"


def render(title: str, rows: Sequence[Row]) -> str:
    """Lay a table out in columns."""
    lines = [HEADINGS, *(row.cells for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(HEADINGS))]
    text = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]
    return "\n".join([title, *(f"  {line}" for line in text), ""])
