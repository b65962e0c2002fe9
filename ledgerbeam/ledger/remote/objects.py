"""What a remote ledger needs of an object store."""

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
            "Look which program writes into the folder of the ledger, delete the object, and run the same command again"
        )


class Objects(Protocol):
    """A folder of immutable objects. Names are relative to it, with ``/`` between their parts.

    Listing, reading and creating must be strongly consistent with each other, as they are on S3, GCS and Azure.
    Every method raises StorageError when the store does not answer, after retries of its own.
    """

    @property
    def url(self) -> str:
        """Of the folder, without a trailing slash."""

    @property
    def exclusive(self) -> bool:
        """Whether `create` decides atomically which of several creators wins."""

    def names(self, folder: str) -> list[str]:
        """Return the names of all objects below a folder, sorted. What is created meanwhile may be missing."""

    def read(self, names: Sequence[str]) -> list[bytes | None]:
        """Return the contents of objects, in order; None for those that do not exist (any more)."""

    def create(self, name: str, data: bytes) -> bool:
        """Create an object, whole and durable when this returns.

        Returns:
            False if the name holds other content already. Creating the same again is a success, so that a creation
            whose answer was lost can be repeated.
        """

    def replace(self, name: str, data: bytes) -> None:
        """Write an object whole, in the place of what has the name. It need not be durable."""

    def exists(self, name: str) -> bool:
        """Return whether an object exists: one small request."""

    def delete(self, names: Iterable[str]) -> None:
        """Delete objects; those that do not exist are passed over."""
