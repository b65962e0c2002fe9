"""An object store in memory on which every operation is a point where others run, or where its caller dies."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from ledgerbeam.errors import StorageError
from tests.fault.baton import Scheduler

ERROR_SHARE = 0.01


class SimulatedObjects:
    """As strong as S3: listing, reading and creating are consistent, but a listing is made in pages.

    Attributes:
        content: Objects by name.
        error_share: Part of the creations that fail: half of them have taken effect all the same.
    """

    url = "memory:/ledger"
    exclusive = True

    def __init__(self, scheduler: Scheduler, on_create: Callable[[str, bytes], None]) -> None:
        self.content: dict[str, bytes] = {}
        self.error_share = ERROR_SHARE
        self._scheduler = scheduler
        self._on_create = on_create
        self._in_write = False

    def fault_point(self, point: str) -> None:
        """Stand for `faults.fault_point` of the stores: between these points a write lock is held."""
        if point == "record.before":
            self._in_write = True

    def _point(self, label: str) -> None:
        self._scheduler.point(label)

    def names(self, folder: str) -> list[str]:
        """List in two pages, between which others may create and delete."""
        self._point(f"list {folder}")
        prefix = f"{folder}/" if folder else ""
        below = sorted(name for name in self.content if name.startswith(prefix))
        if len(below) < 2 or self._scheduler.current is None:
            return below
        last = below[len(below) // 2 - 1]
        self._point(f"list {folder} after {last}")
        rest = sorted(name for name in self.content if name.startswith(prefix) and name > last)
        return [name for name in below if name <= last] + rest

    def read(self, names: Sequence[str]) -> list[bytes | None]:
        """Read in two goes."""
        self._point(f"read {len(names)}")
        half = len(names) // 2
        found = [self.content.get(name) for name in names[:half]]
        if half:
            self._point("read on")
        return found + [self.content.get(name) for name in names[half:]]

    def create(self, name: str, data: bytes) -> bool:
        """Create an object; the caller may die, or get an error, before and after it took effect."""
        point = self._scheduler.locked_point if self._in_write else self._scheduler.point
        self._in_write = False
        point(f"create {name}")
        if self._fails():
            raise StorageError(f"{name}: the store did not answer")
        if name not in self.content:
            self.content[name] = data
            self._on_create(name, data)
        is_own = self.content[name] == data  # as the store answers: by the time it is heard a compaction may be done
        point(f"created {name}")
        if self._fails():
            raise StorageError(f"{name}: the answer was lost")
        return is_own

    def replace(self, name: str, data: bytes) -> None:
        """Write an object anew; the writer may die, or get an error, before and after."""
        self._point(f"write {name}")
        if self._fails():
            raise StorageError(f"{name}: the store did not answer")
        self.content[name] = data
        self._point(f"wrote {name}")

    def exists(self, name: str) -> bool:
        self._point(f"look {name}")
        return name in self.content

    def delete(self, names: Iterable[str]) -> None:
        """Delete one by one."""
        for name in names:
            self._point(f"delete {name}")
            self.content.pop(name, None)

    def _fails(self) -> bool:
        return self._scheduler.current is not None and self._scheduler.chance(self.error_share / 2)
