"""The rows of a task of which some could not be decoded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:  # only jobs that read columns import it
    import pyarrow as pa

__all__ = ["PartialTable"]


@dataclass(frozen=True, eq=False)
class PartialTable:
    """A table that lacks the records that could not be decoded.

    Attributes:
        table: The others, in order.
        unreadable: Why a record could not be decoded, by its position among all.
        places: The positions of the rows of `table` among all.
    """

    table: pa.Table
    unreadable: Mapping[int, str]
    places: NDArray[np.int64] = field(init=False)

    def __post_init__(self) -> None:
        places = np.delete(np.arange(len(self)), list(self.unreadable))
        object.__setattr__(self, "places", places)

    def __len__(self) -> int:
        return self.table.num_rows + len(self.unreadable)

    def rows_at(self, positions: Sequence[int]) -> NDArray[np.int64]:
        """Return the rows of `table` that stand at some positions."""
        return np.searchsorted(self.places, np.asarray(positions))
