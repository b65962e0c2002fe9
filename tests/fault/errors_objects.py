"""An object store that fails to order: a stand-in for the network between a ledger and its objects."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from ledgerbeam.errors import StorageError
from ledgerbeam.ledger.remote.segment import Objects

FAULTS = {
    "names": ("refused",),
    "read": ("refused", "short"),
    "create": ("refused", "lost"),
    "exists": ("refused",),
    "delete": ("refused", "lost", "half"),
}
"""Operations that are made to fail, and how."""

_T = TypeVar("_T")


@dataclass(frozen=True)
class Fault:
    """A fault.

    Attributes:
        operation: A method of `Objects`.
        kind: ``refused``: nothing is done, and the error is what the store says after its retries. ``lost``: it is
            done, and its answer is lost. ``half``: half of it is done. ``short``: objects are read but for their end.
        when: The number of the operation that fails, from 1.
        for_good: Whether all after it fail too.
    """

    operation: str
    kind: str
    when: int
    for_good: bool

    def __str__(self) -> str:
        return f"{self.operation} {self.when}{'+' if self.for_good else ''} {self.kind}"


class FaultyObjects:
    """Real objects, of which one operation fails, or all from one on."""

    def __init__(self, objects: Objects, fault: Fault | None) -> None:
        self._objects = objects
        self._fault = fault
        self.calls: Counter[str] = Counter()
        self.hits = 0

    @property
    def url(self) -> str:
        return self._objects.url

    @property
    def exclusive(self) -> bool:
        return self._objects.exclusive

    def _kind(self, operation: str) -> str | None:
        """Return how this call of an operation fails; None if it does not."""
        self.calls[operation] += 1
        fault, number = self._fault, self.calls[operation]
        if fault is None or fault.operation != operation or number < fault.when:
            return None
        if number > fault.when and not fault.for_good:
            return None
        self.hits += 1
        return fault.kind

    def _do(self, operation: str, do: Callable[[], _T]) -> _T:
        kind = self._kind(operation)
        if kind == "lost":
            do()
        if kind is not None:
            raise StorageError(f"{self.url}: cannot {operation} (503, Service Unavailable).")
        return do()

    def names(self, folder: str) -> list[str]:
        return self._do("names", lambda: self._objects.names(folder))

    def read(self, names: Sequence[str]) -> list[bytes | None]:
        if self._fault is not None and self._fault.kind == "short":
            found = self._objects.read(names)
            return [data and data[: len(data) // 2] for data in found] if self._kind("read") else found
        return self._do("read", lambda: self._objects.read(names))

    def create(self, name: str, data: bytes) -> bool:
        return self._do("create", lambda: self._objects.create(name, data))

    def replace(self, name: str, data: bytes) -> None:
        self._do("replace", lambda: self._objects.replace(name, data))

    def exists(self, name: str) -> bool:
        return self._do("exists", lambda: self._objects.exists(name))

    def delete(self, names: Iterable[str]) -> None:
        asked = list(names)
        if self._fault is not None and self._fault.kind == "half":
            kind = self._kind("delete")
            # The last ones: a request that deletes many keys promises no order.
            self._objects.delete(asked[len(asked) // 2 :] if kind else asked)
            if kind:
                raise StorageError(f"{self.url}: cannot delete (503, Service Unavailable).")
            return
        self._do("delete", lambda: self._objects.delete(asked))
