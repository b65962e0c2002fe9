"""The rows of a task without records that could not be decoded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ledgerbeam._base.lazy import NDArray, np
from ledgerbeam.errors import SourceError

if TYPE_CHECKING:  # only jobs that read columns import it
    import pyarrow as pa


@dataclass(frozen=True, eq=False)
class PartialTable:
    """A table without the records that could not be decoded."""

    table: pa.Table  # the decoded records, in order
    unreadable: Mapping[int, str]  # the error of each other record, by its position among all records
    places: NDArray[np.int64] = field(init=False)  # the positions of the rows of `table` among all records

    def __post_init__(self) -> None:
        places = np.delete(np.arange(len(self)), list(self.unreadable))
        object.__setattr__(self, "places", places)

    @classmethod
    def joined(cls, parts: Sequence[pa.Table | PartialTable]) -> pa.Table | PartialTable:
        """Return tables and partial tables as one; raises SourceError if they have different columns."""
        import pyarrow as pa  # noqa: PLC0415 - only jobs that read columns import it

        unreadable: dict[int, str] = {}
        tables: list[pa.Table] = []
        count = 0
        for part in parts:
            if isinstance(part, PartialTable):
                unreadable.update({count + at: error for at, error in part.unreadable.items()})
            tables.append(part.table if isinstance(part, PartialTable) else part)
            count += len(part)
        try:
            table = pa.concat_tables(tables)
        except pa.ArrowInvalid as error:
            raise SourceError(f"the files of a pack have different columns: {error}; leave --pack out") from error
        return cls(table, unreadable) if unreadable else table

    def __len__(self) -> int:
        return self.table.num_rows + len(self.unreadable)

    def rows_at(self, positions: Sequence[int]) -> NDArray[np.int64]:
        """Return the numbers of the rows of `table` at some positions."""
        return np.searchsorted(self.places, np.asarray(positions))
