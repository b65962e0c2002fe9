"""Tables of measurements. A row has a measurement, its ratio, its target, and whether the target is met."""

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
        work: The work, with its amount.
        ours: Our speed or time.
        other: The speed or time of the peer, or the limit.
        ratio: The figure that is compared with the target.
        target: The least or greatest allowed ratio.
        verdict: `ok`; `short` of the target; `noisy` if the figure cannot be true; `absent` if it cannot be measured
            here.
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
    """The work that was measured: its name, its unit (`B` for bytes), and its amount in this unit."""

    name: str
    unit: str
    amount: float


def speed_row(work: Work, ours: float, peer: str, theirs: float, target: float, *, note: str = "") -> Row:
    """Compare two times for the same work; a higher ratio is better.

    Args:
        work: The work that both sides did.
        ours: Our seconds.
        peer: Name of the peer.
        theirs: Seconds of the peer.
        target: The least ratio of our speed to that of the peer.
        note: Text after the figure of the peer.
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
    """Compare a rate with its least allowed value. The ratio is rate to target; `note` follows the target."""
    value = work.amount / seconds
    verdict: Verdict = "ok" if value >= target else "short"
    least = f"least {rate(target, work.unit)}{note}"
    return Row(work.name, rate(value, work.unit), least, f"{value / target:.2f}", ">= 1", verdict)


def most_row(work: str, value: float, limit: float, suffix: str, *, ours: str = "", other: str = "") -> Row:
    """Compare a figure that is not negative with its greatest allowed value. The ratio column shows the figure."""
    verdict: Verdict = "short" if value > limit else "noisy" if value < -limit else "ok"
    shown = f"{value:.3g}{suffix}" if value < 1000 else f"{value:.0f}{suffix}"
    return Row(work, ours or shown, other or "-", shown, f"<= {limit:g}{suffix}", verdict)


def absent_row(work: str, target: str, remedy: str) -> Row:
    """Return a row for work that cannot be measured here, with a remedy."""
    return Row(work, "-", f"not here: {remedy}", "-", target, "absent")


def rate(value: float, unit: str) -> str:
    """Return a rate as text: `4.9 GB/s`, `310 k records/s`."""
    for prefix, scale in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= scale:
            return f"{value / scale:.3g} {prefix}{'' if unit == 'B' else ' '}{unit}/s"
    return f"{value:.3g} {unit}/s"


def render(title: str, rows: Sequence[Row]) -> str:
    """Return a table as text in columns."""
    lines = [HEADINGS, *(row.cells for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(HEADINGS))]
    text = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]
    return "\n".join([title, *(f"  {line}" for line in text), ""])
