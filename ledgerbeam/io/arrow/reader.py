"""Random access to the rows of an Arrow IPC file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ledgerbeam.errors import SourceError
from ledgerbeam.io.columns.content import PlacedFile
from ledgerbeam.io.columns.reader import GroupedRows
from ledgerbeam.io.formats.format import RowGroup

if TYPE_CHECKING:  # only jobs that read columns import it
    import pyarrow as pa

__all__ = ["ArrowReader"]

_MAGIC = b"ARROW1"
_FEATHER_1 = b"FEA1"


class ArrowReader(GroupedRows):
    """Random access to the rows of an Arrow IPC file; see `GroupedRows` for arguments and methods."""

    def facts(self) -> Mapping[str, Any]:
        """Return the number of record batches, and the columns with their types."""
        return {
            "record_batches": len(self.groups),
            "columns": {field.name: str(field.type) for field in self.schema},
        }

    def _read_footer(self) -> tuple[pa.Schema, list[RowGroup]]:
        size = self._content.size
        if size < 2 * len(_MAGIC) + 6:
            raise SourceError(f"{self.url}: expected an Arrow IPC file, found {size} bytes; write it again")
        if self._content.read(0, 4) == _FEATHER_1:
            raise SourceError(f"{self.url}: Feather version 1 is not read; write it again as version 2")
        end = self._content.read(size - len(_MAGIC), size)
        if end != _MAGIC:
            raise SourceError(
                f"{self.url}: expected {_MAGIC!r} at the end, found {end!r}; it is cut off, an Arrow stream, or no "
                "Arrow file: write it as an Arrow IPC file"
            )
        opened = self._opened()
        rows = [opened.get_batch(number).num_rows for number in range(opened.num_record_batches)]
        share = size // max(1, len(rows))
        return opened.schema, [RowGroup(count, share) for count in rows]

    def _opened(self, columns: Sequence[int] | None = None) -> Any:
        import pyarrow as pa  # noqa: PLC0415 - only jobs that read columns import it
        from pyarrow import ipc  # noqa: PLC0415

        options = ipc.IpcReadOptions(use_threads=False, included_fields=None if columns is None else list(columns))
        return ipc.open_file(pa.PythonFile(PlacedFile(self._content), mode="r"), options=options)

    def _read_groups(self, numbers: Sequence[int]) -> Iterator[pa.Table]:
        import pyarrow as pa  # noqa: PLC0415

        names = self.schema.names
        every = self._opened().schema.names
        opened = self._opened(None if len(names) == len(every) else [every.index(name) for name in names])
        for number in numbers:
            batch = opened.get_batch(number)
            batch.validate(full=True)
            yield pa.Table.from_batches([batch]).select(names)
