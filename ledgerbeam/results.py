"""What a function of a job may return besides records: `Drop`, `Reject` and `Route`, and `Rows` of an Arrow batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Drop:
    """A record that is left out on purpose, counted under its reason.

    Attributes:
        reason: A category, such as ``too short``; a task has a hundred different ones at most.
    """

    reason: str


@dataclass(frozen=True, slots=True)
class Reject:
    """A record that is not as it should be: with ``--on-error reject`` it is kept aside with its raw bytes.

    With ``--on-error fail``, the default, its task fails.

    Attributes:
        reason: A category, such as ``no text``; a task has a hundred different ones at most.
        error: What is wrong with this record, for people.
    """

    reason: str
    error: str = ""


@dataclass(frozen=True, slots=True)
class Route:
    """A record, or a list of records, for a dataset of its own below the output folder.

    Attributes:
        name: Of the dataset and of its folder: one path component that does not begin with ``_`` or a dot.
        record: A record or a list of records.
    """

    name: str
    record: Any


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """The result of an Arrow batch of which not all rows are kept alike: what becomes of each, by its position.

    `drop`, `reject` and `route` are each a mapping of a name to a mask, of which the first that is true counts, or
    names by position with null for none. A mask, and names, may be an Arrow, NumPy, Polars or pandas array, or a list.
    A row that is rejected is not dropped, and one that is dropped or rejected is not written.

    Attributes:
        batch: The rows to write: a record batch, a table, or a frame of Polars, pandas or another library with the
            Arrow interface. Without `of`, each row stands in the place of the row that it was made of.
        drop: Reasons of the rows given that are dropped, as of `Drop`.
        reject: Reasons of the rows given that are rejected, as of `Reject`. In place of a mask there may be texts,
            which say what is wrong with each row, with null for none.
        route: Names of datasets of the rows returned, as of `Route`.
        of: For each row returned the position of the row that it was made of, ascending: a row may become several, and
            one that became none is dropped as ``returned nothing``.
    """

    batch: Any
    drop: Any = None
    reject: Any = None
    route: Any = None
    of: Any = None
