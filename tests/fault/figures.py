"""What a series of kills has come to."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, fields

from tests.fault.findings import Findings


@dataclass
class Figures:
    """Sums over the jobs of a campaign."""

    kills: int = 0
    targets: Counter[str] = field(default_factory=Counter)
    jobs: int = 0
    false_completions: int = 0
    lost: int = 0
    duplicated: int = 0
    rework: int = 0
    miscounted: int = 0
    redone: int = 0
    tasks: int = 0
    quarantined: int = 0
    anomalies: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        wrong = (self.false_completions, self.lost, self.duplicated, self.rework, self.miscounted)
        return not (any(wrong) or self.anomalies)

    def add(self, findings: Findings, tasks: int) -> None:
        """Add a job that was run to its end."""
        self.jobs += 1
        self.tasks += tasks
        self.false_completions += len(findings.false_completions)
        self.lost += len(findings.lost)
        self.duplicated += len(findings.duplicated)
        self.rework += len(findings.rework)
        self.miscounted += len(findings.miscounted)
        self.redone += len(findings.redone)

    def __add__(self, other: Figures) -> Figures:
        pairs = ((getattr(self, item.name), getattr(other, item.name)) for item in fields(self))
        return Figures(*(mine + theirs for mine, theirs in pairs))

    def line(self) -> str:
        return (
            f"kills {self.kills}, false completions {self.false_completions}, lost {self.lost}, "
            f"duplicated {self.duplicated}, rework {self.rework}, miscounted {self.miscounted}"
        )

    def details(self) -> str:
        targets = ", ".join(f"{name} {count}" for name, count in sorted(self.targets.items()))
        return (
            f"{self.jobs} jobs; killed: {targets or 'nothing'}; {self.redone} of {self.tasks} tasks begun more than "
            f"once, {self.quarantined} quarantined, {len(self.anomalies)} anomalies"
        )
