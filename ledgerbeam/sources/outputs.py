"""Names what a job has written, as the sources of another one; `recorded` lists it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class RecordedOutputs:
    """What a job has written of one route.

    Attributes:
        ledger: URL of its ledger.
        output: URL of its output folder.
        route: The name of the route; empty for what has none.
        title: What messages call the job.
    """

    ledger: str
    output: str
    route: str = ""
    title: str = ""

    @property
    def folder(self) -> str:
        """The folder in which they lie, or below."""
        return f"{self.output}/{self.route}" if self.route else self.output

    @property
    def shown(self) -> str:
        """What messages call them."""
        return self.title or self.folder
