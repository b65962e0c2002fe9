"""The functions of a job in another process; see `user_code.isolation`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ledgerbeam.stats import Collected
from ledgerbeam.transforms.mapping.stages import CallStage, ReadyFunction, stages_of
from ledgerbeam.user_code.functions_of_job import JobFunction
from ledgerbeam.user_code.objects import ReadyObject


@dataclass(frozen=True)
class HostedFunctions:
    """The functions of a job that another process hosts; see `isolation.Hosted`."""

    functions: Sequence[JobFunction]
    output: str  # name of the format of the outputs
    size: int | None = None  # maximum number of records of a call of a function without a size of its own

    @property
    def names(self) -> Sequence[str]:
        """Names of the functions, for messages."""
        return [str(one.object.reference) for one in self.functions]

    @property
    def labels(self) -> Sequence[str]:
        """Labels of several functions; empty for one function."""
        return [one.label for one in self.functions] if len(self.functions) > 1 else ()

    def load(self) -> None:
        """Import the modules of the functions."""
        for one in self.functions:
            one.object.check()

    def build(self) -> tuple[ReadyObject, ...]:
        """Return the objects of the functions, which this process builds once."""
        return tuple(one.object.ready() for one in self.functions)

    def mapped(self, ready: Sequence[ReadyObject]) -> list[ReadyFunction]:
        """Return the functions with their objects."""
        return [
            ReadyFunction(name, loaded.call, one.label, one.batch or self.size, not loaded.depends_on_batches)
            for name, one, loaded in zip(self.names, self.functions, ready, strict=True)
        ]

    def stages(self, ready: Sequence[ReadyObject], collected: Collected) -> list[CallStage]:
        """Return the stages of the functions."""
        return stages_of(self.mapped(ready), self.output, collected)
