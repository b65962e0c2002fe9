"""What readers of several files share: reading by number on top of one method that reads a batch."""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import ClassVar, Generic, Self, TypeVar, overload

from ledgerbeam.errors import IndexMismatchError, UsageError

__all__ = ["NumberedRecords"]

_T = TypeVar("_T")


class NumberedRecords(ABC, Generic[_T]):
    """Random access to records that are numbered through several files."""

    url: str
    """What it was opened as."""

    _together: ClassVar[int] = 64  # records that iteration reads at once

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def _read(self, records: list[int]) -> list[_T]:
        """Reads records by number, `0 <= number < len(self)`, in the order given."""

    @abstractmethod
    def close(self) -> None:
        """Closes what is open; a later read opens it again."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @overload
    def __getitem__(self, item: int, /) -> _T: ...
    @overload
    def __getitem__(self, item: slice, /) -> list[_T]: ...
    def __getitem__(self, item: int | slice, /) -> _T | list[_T]:
        if isinstance(item, slice):
            return self._read(list(range(*item.indices(len(self)))))
        return self._read([self._number(item)])[0]

    def __iter__(self) -> Iterator[_T]:
        for start in range(0, len(self), self._together):
            yield from self._read(list(range(start, min(start + self._together, len(self)))))

    def read_many(self, indices: Sequence[int]) -> list[_T]:
        """Reads records by number.

        Args:
            indices: Their numbers, in any order, negative ones counting from the end.

        Returns:
            The records in the order asked; neighbours in a remote file came with one request.

        Raises:
            IndexError: A number out of range; also the errors of reading one record.
        """
        return self._read([self._number(index) for index in indices])

    def read_span(self, start: int, stop: int) -> list[_T]:
        """Reads the records `[start, stop)`.

        Args:
            start: First record, `0 <= start`.
            stop: End of the span, exclusive, `start <= stop <= len(self)`.

        Raises:
            IndexMismatchError: There are fewer records.
            UsageError: Not `0 <= start <= stop`.
        """
        if not 0 <= start <= stop:
            raise UsageError(f"{self.url}: [{start}, {stop}) is not a span of records; 0 <= start <= stop is needed.")
        if stop > len(self):
            raise IndexMismatchError(f"{self.url}: expected at least {stop} records, found {len(self)}.")
        return self._read(list(range(start, stop)))

    def _number(self, index: int) -> int:
        """Gives a record's number from the begin."""
        number, count = operator.index(index), len(self)
        if not -count <= number < count:
            raise IndexError(f"{self.url}: there is no record {index}; it has {count}.")
        return number % count
