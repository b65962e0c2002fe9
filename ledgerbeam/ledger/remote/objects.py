"""The object store interface of remote ledgers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from ledgerbeam.errors import LedgerDamagedError


def create_own(objects: Objects, name: str, data: bytes) -> None:
    """Create an object under a name that no other writer should use.

    Raises:
        LedgerDamagedError: The name holds other content; nothing was written.
    """
    if not objects.create(name, data):
        raise LedgerDamagedError(
            f"{objects.url}/{name}: expected this name to be free, found other content; nothing was recorded under it. "
            "Find the program that writes into the folder of the ledger, delete the object, and run the same command "
            "again"
        )


class Objects(Protocol):
    """A folder of immutable objects. Names are relative to it, with ``/`` between their parts.

    Listing, reading and creating must be strongly consistent with each other, as they are on S3, GCS and Azure.

    Every method raises StorageError if the store does not answer after the method's own retries.
    """

    @property
    def url(self) -> str:
        """URL of the folder, without a trailing slash."""

    @property
    def exclusive(self) -> bool:
        """Whether `create` decides atomically which of several creators wins."""

    def names(self, folder: str) -> list[str]:
        """Return the names of all objects below a folder, sorted. Objects created meanwhile may be missing."""

    def read(self, names: Sequence[str]) -> list[bytes | None]:
        """Return the contents of objects, in order; None for objects that do not exist (any more)."""

    def create(self, name: str, data: bytes) -> bool:
        """Create an object. It is whole and durable when this returns.

        Returns:
            False if the name holds other content already. Creating the same content again succeeds, so that a creation
            whose answer was lost can be repeated.
        """

    def replace(self, name: str, data: bytes) -> None:
        """Write a whole object, replacing an existing one. It need not be durable."""

    def exists(self, name: str) -> bool:
        """Return whether an object exists, with one small request."""

    def delete(self, names: Iterable[str]) -> None:
        """Delete objects; missing objects are skipped."""
