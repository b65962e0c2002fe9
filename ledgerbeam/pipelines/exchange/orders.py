"""Jobs of exchanges that reorder records, or call a function with groups of records."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from ledgerbeam.errors import UsageError
from ledgerbeam.ledger import Task
from ledgerbeam.ledger.model.job import Json
from ledgerbeam.pipelines.exchange.jobs import GatherJob
from ledgerbeam.pipelines.outputs.columns import ColumnLayout
from ledgerbeam.user_code.functions import changed_parts
from ledgerbeam.user_code.loading import Reference


class _KeepJob(GatherJob):
    """An exchange that writes its records unchanged, in another order."""

    def work(self) -> Callable[[Task], Any]:
        """Return the function that writes the records in order."""
        from ledgerbeam.transforms.exchange.gather import KeepRecords  # noqa: PLC0415 - brings Beam

        return KeepRecords(self.output_format)


@dataclass(frozen=True, kw_only=True)
class SortJob(_KeepJob):
    """Writes all records in the order of their keys."""

    command = "sort"


@dataclass(frozen=True, kw_only=True)
class ShuffleJob(_KeepJob):
    """Writes all records in a pseudorandom order, given by a seed."""

    command = "shuffle"


@dataclass(frozen=True, kw_only=True)
class RepartitionJob(_KeepJob):
    """Writes all records in their order, in shards of another size."""

    command = "repartition"


@dataclass(frozen=True, kw_only=True)
class GroupJob(GatherJob):
    """Calls a user's function with each key and the records that have it.

    Attributes:
        function: ``module:function``, or the function itself.
        made_of: Hashes of the code of the function, in groups by name; see `UserFunction`.
    """

    command = "group"
    can_be_audited = True

    keeps_columns = False
    within_keys: ClassVar[bool] = False

    function: Reference
    made_of: dict[str, dict[str, str]]

    def parameters(self) -> dict[str, Json]:
        """Return the parameters of the outputs: the function."""
        return {"function": str(self.function), "function made of": dict(self.made_of)}

    def work(self) -> Callable[[Task], Any]:
        """Return the function that processes groups."""
        from ledgerbeam.transforms.exchange.gather import GroupRecords  # noqa: PLC0415 - brings Beam

        return GroupRecords(self.function, self.output_format, by=self.key.keys(self.files.base))

    def changed_code(self) -> list[str]:
        """Return the names of the parts of the function that have changed since this job was made."""
        return changed_parts(self.function, self.made_of)

    def decided_layout(self, say: Callable[[str], None]) -> ColumnLayout | None:  # noqa: ARG002
        """Return the layout of columnar files.

        Raises:
            UsageError: No schema is given.
        """
        if self.layout is None or self.layout.schema is not None:
            return self.layout
        raise UsageError(
            f"--to {self.to}: what {self.function} returns is not known before all of a group is there; give --schema "
            "FILE, or --to jsonl"
        )
