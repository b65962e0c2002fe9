"""Results that a user's function can return in place of records: `Drop`, `Reject`, `Route`, and `Rows` for batches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Drop:
    """A record that is left out on purpose and counted under its reason.

    Attributes:
        reason: A category, such as ``too short``. A task can have at most 100 different reasons.
    """

    reason: str


@dataclass(frozen=True, slots=True)
class Reject:
    """An invalid record. Its task fails, or with ``--on-error reject`` its bytes are stored with the rejected records.

    Attributes:
        reason: A category, such as ``no text``. A task can have at most 100 different reasons.
        error: Description of the fault in this record.
    """

    reason: str
    error: str = ""


@dataclass(frozen=True, slots=True)
class Route:
    """A record, or a list of records, for a separate dataset below the output folder.

    Attributes:
        name: Name of the dataset and of its folder: one path component without ``_`` or a dot at its start.
        record: A record or a list of records.
    """

    name: str
    record: Any


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """The result of an Arrow batch with a separate outcome for each row.

    `drop`, `reject` and `route` are each a mapping of names to masks, or a list of names by position, with null for no
    name. If several masks of a mapping are true for a row, the first mask applies. Masks and names may be Arrow, NumPy,
    Polars or pandas arrays, or lists. A row that is rejected and dropped counts as rejected. Neither is written.

    Attributes:
        batch: The rows to write: a record batch, a table, or a frame of Polars, pandas or another library with the
            Arrow interface. Without `of`, each row replaces the input row at the same position.
        drop: Reasons for dropped input rows, as in `Drop`.
        reject: Reasons for rejected input rows, as in `Reject`. In place of a mask there may be texts that describe the
            fault in each row, with null for no fault.
        route: Names of the datasets of returned rows, as in `Route`.
        of: For each returned row the position of its input row, ascending. An input row may have several returned rows.
            An input row without a returned row is dropped for the reason ``returned nothing``.
    """

    batch: Any
    drop: Any = None
    reject: Any = None
    route: Any = None
    of: Any = None
