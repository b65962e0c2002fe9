"""The jobs of ``ledgerbeam join``: an exchange into which two jobs write, one for each side.

    right     the records of the right side, by a hash of their keys     ledger JOIN/right
    left      those of the left side, by the same                        ledger JOIN/left
    join      of each key: the records of both                           ledger JOIN

The run files of the right side come first: so a task has seen the records of a key there when those of the left side
come, which need not fit into memory.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from ledgerbeam.errors import UsageError
from ledgerbeam.io.conversion import conversion_of
from ledgerbeam.io.exchange.order import Joining
from ledgerbeam.io.tar.sample import KEY
from ledgerbeam.ledger import Task
from ledgerbeam.ledger.model.job import Json
from ledgerbeam.pipelines.exchange.jobs import GatherJob, RunsJob, ScatterJob, layout_of_rows
from ledgerbeam.pipelines.exchange.partition import KeyChoice
from ledgerbeam.pipelines.exchange.stages import LEFT, RIGHT
from ledgerbeam.pipelines.jobs.sources import ListedFiles
from ledgerbeam.pipelines.outputs.columns import ColumnLayout

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, kw_only=True)
class JoinJob(GatherJob):
    """Joins the records of two sides by key; of the left side are `files` and `key`.

    Attributes:
        right: The sources of the right side.
        right_key: The key of its records.
        how: Which records come of it.
        suffix: Behind the name of a field of the right side that the left side has as well; None refuses it.
        under: The field that all of a record of the right side comes to; None for its fields.
    """

    command = "join"

    beside: ClassVar[int] = 1  # the right side

    right: ListedFiles
    right_key: KeyChoice
    how: Joining
    suffix: str | None = None
    under: str | None = None

    def first_writers(self) -> dict[str, RunsJob]:
        """Return `sides`."""
        return {**self.sides()}

    def sides(self) -> dict[str, ScatterJob]:
        """Return the jobs that write run files: of the right side, of which a filter needs the keys alone, and left."""
        left = self.scatter()
        right = dataclasses.replace(left, files=self.right, key=self.right_key, with_records=not self._is_filter)
        return {
            side: dataclasses.replace(
                job, output=f"{self.first_folder}/{side}", ledger=f"{self.ledger}/{side}" if self.ledger else ""
            )
            for side, job in ((RIGHT, right), (LEFT, left))
        }

    @property
    def _is_filter(self) -> bool:
        """Whether records of the left side alone come of it, as they are."""
        return self.how in ("semi", "anti")

    def shaping_of_runs(self) -> dict[str, Json]:
        """Return what shapes the run files of both sides."""
        sides = self.sides()
        right = dataclasses.replace(sides[RIGHT], partition=None)  # which is that of both
        return {**sides[LEFT].shaping(), RIGHT: right.shaping()}

    def parameters(self) -> dict[str, Json]:
        """Return what shapes the outputs besides sources, folder and format."""
        given: dict[str, Json] = {"how": self.how, "suffix": self.suffix, "as": self.under}
        return {name: value for name, value in given.items() if value is not None}

    def work(self) -> Callable[[Task], Any]:
        """Return what joins the records of each part."""
        from ledgerbeam.transforms.exchange.join import JoinRecords, RightFields  # noqa: PLC0415 - brings Beam

        fields = RightFields(self.right_key.fields, self.suffix, self.under)
        return JoinRecords(self.how, fields, conversion_of(self.to), self.output_format)

    def decided_layout(self, say: Callable[[str], None]) -> ColumnLayout | None:
        """Return how files of columns are written: with the columns of both sides, if their schema is not given.

        Raises:
            UsageError: There is no schema of both.
        """
        layout = self.layout
        if self._is_filter or layout is None or layout.schema is not None:
            return super().decided_layout(say)
        from ledgerbeam.io.columns.schema import JobSchema  # noqa: PLC0415 - brings pyarrow

        left, right = (_schema_of(layout_of_rows(self, files, say)) for files in (self.files, self.right))
        if left is None or (right is None and self.how == "inner"):
            return layout.decided(JobSchema({}))  # no record comes of it; the columns are decided once one may
        if right is None:
            raise UsageError(
                f"--to {self.to}: the right side has no records yet, so its columns are not known; give --schema FILE"
            )
        return layout.decided(JobSchema({"": self._columns(left, right)}))

    def _columns(self, left: pa.Schema, right: pa.Schema) -> pa.Schema:
        """Return the columns of what is made of a row of each side."""
        import pyarrow as pa  # noqa: PLC0415 - only jobs that write columns import it

        if KEY in left.names:
            raise UsageError(f"--to {self.to}: samples of a join have no columns of their own; give --schema FILE")
        if self.under is not None:
            more = [pa.field(self.under, pa.struct(list(right)))]
        else:
            more = [
                field.with_name(f"{field.name}{self.suffix or ''}" if field.name in left.names else field.name)
                for field in right
                if field.name not in self.right_key.fields
            ]
        names = [*left.names, *(field.name for field in more)]
        if twice := {name for name in names if names.count(name) > 1}:
            raise UsageError(
                f"both sides have a column {min(twice)!r}; give --suffix TEXT, which comes behind the name of that of "
                "the right side, or --as NAME for the column that all of its row comes to"
            )
        return pa.schema([*left, *(field.with_nullable(True) for field in more)])


def _schema_of(layout: ColumnLayout | None) -> pa.Schema | None:
    """Return the schema of the rows of a side; None if it has none yet."""
    schemas = None if layout is None else layout.schemas()
    if schemas is None:
        raise AssertionError("the schema of a side is decided here")
    return schemas.of() if schemas.by_route else None
