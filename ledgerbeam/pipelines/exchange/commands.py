"""Jobs of the commands sort, shuffle, repartition, group, join and split."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

from ledgerbeam.errors import UsageError
from ledgerbeam.io.conversion import conversion_of
from ledgerbeam.io.exchange.order import Joining
from ledgerbeam.io.tar.sample import KEY
from ledgerbeam.ledger import LedgerStore, Task
from ledgerbeam.ledger.model.job import Json
from ledgerbeam.pipelines.exchange.jobs import GatherJob, RunsJob, ScatterJob, layout_of_rows
from ledgerbeam.pipelines.exchange.partition import KeyChoice
from ledgerbeam.pipelines.exchange.stages import LEFT, RIGHT, stage_ledger
from ledgerbeam.pipelines.jobs.one_stage import MarkingJob
from ledgerbeam.pipelines.jobs.sources import ListedFiles
from ledgerbeam.pipelines.outputs.columns import ColumnLayout
from ledgerbeam.transforms.exchange.gather import GroupRecords, KeepRecords
from ledgerbeam.transforms.exchange.join import JoinRecords, RightFields
from ledgerbeam.transforms.exchange.keys import SplitRecords
from ledgerbeam.user_code.functions import changed_parts
from ledgerbeam.user_code.loading import Reference

if TYPE_CHECKING:
    import pyarrow as pa


class _KeepJob(GatherJob):
    """An exchange that writes its records unchanged, in another order."""

    def work(self) -> Callable[[Task], Any]:
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
    """Calls a user's function with each key and all records of the key."""

    command = "group"
    can_be_audited = True

    keeps_columns = False
    within_keys: ClassVar[bool] = False

    function: Reference  # ``module:function``, or the function itself
    made_of: dict[str, dict[str, str]]  # hashes of the code of the function, in groups by name; see `UserFunction`

    def parameters(self) -> dict[str, Json]:
        return {"function": str(self.function), "function made of": dict(self.made_of)}

    def work(self) -> Callable[[Task], Any]:
        return GroupRecords(self.function, self.output_format, by=self.key.keys(self.files.base))

    def changed_code(self) -> list[str]:
        return changed_parts(self.function, self.made_of)

    def decided_layout(self, say: Callable[[str], None]) -> ColumnLayout | None:  # noqa: ARG002
        """Return the layout of columnar files. UsageError if it has no schema."""
        if self.layout is None or self.layout.schema is not None:
            return self.layout
        raise UsageError(
            f"--to {self.to}: the columns that {self.function} returns are not known before the run; give --schema "
            "FILE, or --to jsonl"
        )


@dataclass(frozen=True, kw_only=True)
class JoinJob(GatherJob):
    """Joins the records of two sides by key. `files` and `key` belong to the left side.

        right     records of the right side, by a hash of their keys         ledger JOIN/right
        left      records of the left side, by the same hash                 ledger JOIN/left
        join      the records of both sides, by key                          ledger JOIN

    A task reads the right records of a key first, and keeps them in memory. The left records of the key are read one
    by one, and need not fit into memory.
    """

    command = "join"

    beside: ClassVar[int] = 1  # the right side

    right: ListedFiles  # the sources of the right side
    right_key: KeyChoice  # the key of its records
    how: Joining
    # Suffix for field names of the right side that the left side has too; None raises an error for them.
    suffix: str | None = None
    under: str | None = None  # name of a field for the whole record of the right side; None adds its fields

    def first_writers(self) -> dict[str, RunsJob]:
        return {**self.sides()}

    def sides(self) -> dict[str, ScatterJob]:
        """Return the jobs that write run files: right, then left. Semi and anti joins need only keys of the right."""
        left = self.scatter()
        right = dataclasses.replace(left, files=self.right, key=self.right_key, with_records=not self._is_filter)
        return {
            side: dataclasses.replace(job, output=f"{self.first_folder}/{side}", ledger=stage_ledger(self.ledger, side))
            for side, job in ((RIGHT, right), (LEFT, left))
        }

    @property
    def _is_filter(self) -> bool:
        return self.how in ("semi", "anti")

    def shaping_of_runs(self) -> dict[str, Json]:
        sides = self.sides()
        right = dataclasses.replace(sides[RIGHT], partition=None)  # the partition belongs to both sides
        return {**sides[LEFT].shaping(), RIGHT: right.shaping()}

    def parameters(self) -> dict[str, Json]:
        given: dict[str, Json] = {"how": self.how, "suffix": self.suffix, "as": self.under}
        return {name: value for name, value in given.items() if value is not None}

    def work(self) -> Callable[[Task], Any]:
        fields = RightFields(self.right_key.fields, self.suffix, self.under)
        return JoinRecords(self.how, fields, conversion_of(self.to), self.output_format)

    def decided_layout(self, say: Callable[[str], None]) -> ColumnLayout | None:
        """Return the layout of columnar files, with the columns of both sides unless a schema is given."""
        layout = self.layout
        if self._is_filter or layout is None or layout.schema is not None:
            return super().decided_layout(say)
        from ledgerbeam.io.columns.schema import JobSchema  # noqa: PLC0415 - brings pyarrow

        left, right = (_schema_of(layout_of_rows(self, files, say)) for files in (self.files, self.right))
        if left is None or (right is None and self.how == "inner"):
            return layout.decided(JobSchema({}))  # the join has no records; the columns are set when it may have some
        if right is None:
            raise UsageError(
                f"--to {self.to}: the right side has no records yet, so its columns are not known; give --schema FILE"
            )
        return layout.decided(JobSchema({"": self._columns(left, right)}))

    def _columns(self, left: pa.Schema, right: pa.Schema) -> pa.Schema:
        import pyarrow as pa  # noqa: PLC0415 - only jobs that write columns import it

        if KEY in left.names:
            raise UsageError(f"--to {self.to}: the columns of joined samples are not known; give --schema FILE")
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
                f"both sides have a column {min(twice)!r}; give --suffix TEXT to add a text to the name of the right "
                "column, or --as NAME to put the whole right row into one column"
            )
        return pa.schema([*left, *(field.with_nullable(True) for field in more)])


def _schema_of(layout: ColumnLayout | None) -> pa.Schema | None:
    """Return the schema of the rows of a side; None if the side has no records yet."""
    schemas = None if layout is None else layout.schemas()
    if schemas is None:
        raise AssertionError("expected the decided schema of a side")
    return schemas.of() if schemas.by_route else None


@dataclass(frozen=True, kw_only=True)
class SplitJob(MarkingJob):
    """Writes each record to a part, chosen by the hash of its key, or the part as a column. This needs no exchange."""

    command = "split"

    keeps_columns = True

    files: ListedFiles
    key: KeyChoice  # key that determines the part of a record
    parts: tuple[tuple[str, int], ...]  # name and share of each part

    def sources(self) -> ListedFiles:
        return self.files

    def parameters(self) -> dict[str, Json]:
        return {**super().parameters(), **self.key.parameters(), "parts": dict(self.parts)}

    def with_decisions(self, say: Callable[[str], None]) -> Self:
        """Return the job with the schema of the sources, which all parts use."""
        return dataclasses.replace(self, layout=layout_of_rows(self, self.files, say))

    def doubts(self, store: LedgerStore) -> Iterator[str]:
        return self.key.doubts(self.files.names, store)

    def work(self) -> SplitRecords:
        keys = self.key.keys(self.files.base)
        return SplitRecords(keys, self.parts, conversion_of(self.to), self.output_format, mark=self.mark)
