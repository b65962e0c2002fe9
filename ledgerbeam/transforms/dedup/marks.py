"""Columns that mark duplicates. They are made of lists with a note for each record of a cluster.

A cluster is all records with one key, or all records that are connected as near ones. Its name is a hash.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ledgerbeam._base.names import as_unicode
from ledgerbeam._base.redaction import without_secrets
from ledgerbeam.ledger import Task
from ledgerbeam.sources.listed import ListedSpan

if TYPE_CHECKING:
    import pyarrow as pa

_NAME_BYTES = 16  # size of the name of a cluster
_NUMBER_BYTES = 8


def columns_of_marks() -> pa.Schema:
    """Return the schema of the columns: both null for a record that has no duplicates."""
    import pyarrow as pa  # noqa: PLC0415 - only jobs of columns import it

    place = pa.struct([("source", pa.string()), ("record", pa.int64())])
    return pa.schema([("duplicate_of", place), ("cluster", pa.string())])


def note_of(cluster: bytes, of: tuple[str, int] | None) -> bytes:
    """Return the note of a record: its cluster, and URL and number of the record that stays, if that is another one."""
    if of is None:
        return cluster
    url, number = of
    return cluster + number.to_bytes(_NUMBER_BYTES, "little") + url.encode("utf-8", "surrogateescape")


@dataclass(frozen=True)
class WriteMarks:
    """A function of one task, for `ProcessTask`, that turns the list of a span into columns."""

    def __call__(self, task: Task) -> Task:
        """Return the task with a row for each record."""
        import pyarrow as pa  # noqa: PLC0415 - only jobs of columns import it

        listed: ListedSpan = task.records
        places: list[dict[str, Any] | None] = [None] * listed.records
        clusters: list[str | None] = [None] * listed.records
        for row, note in zip(listed.places.tolist(), listed.notes, strict=True):
            clusters[row] = note[:_NAME_BYTES].hex()
            if of := note[_NAME_BYTES:]:
                url = as_unicode(of[_NUMBER_BYTES:].decode("utf-8", "surrogateescape"))
                places[row] = {
                    "source": without_secrets(url),
                    "record": int.from_bytes(of[:_NUMBER_BYTES], "little"),
                }
        return task.replace(
            records=pa.Table.from_pydict({"duplicate_of": places, "cluster": clusters}, columns_of_marks())
        )
