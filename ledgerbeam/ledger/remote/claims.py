"""Claims on an object store: one small object for each launcher, which the launcher rewrites repeatedly."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from ledgerbeam.ledger.model.claims import Claims
from ledgerbeam.ledger.remote.replay import CLAIMS
from ledgerbeam.ledger.remote.store import RemoteStore

SECONDS = 10.0
"""Interval at which a launcher writes its object and reads the others, in seconds."""

_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9.]+")


class ObjectClaims:
    """Claims below ``claims/`` of a remote ledger; see `claims.ClaimPlace`.

    The listing of `RemoteStore.refresh` finds the other claims, without a request of its own.

    Args:
        store: The ledger.
        run: Id of the run.
        host: Name of the host, for people.
        lives: Returns whether the launcher of a run on this host is alive.
    """

    seconds = SECONDS

    def __init__(self, store: RemoteStore, run: str, host: str, lives: Callable[[str], bool]) -> None:
        self._store = store
        self._objects, _ = store.parts()
        self._lives = lives
        self._name = f"{CLAIMS}/{run}/{_NOT_IN_NAMES.sub('-', host)[:40]}.json"

    def put(self, data: bytes) -> None:
        """Write the object."""
        self._objects.replace(self._name, data)

    def names(self) -> Sequence[str]:
        """Return the names of the objects of other launchers."""
        return [name for name in self._store.claimed if name != self._name]

    def read(self, names: Sequence[str]) -> list[bytes | None]:
        """Read objects."""
        return self._objects.read(names)

    def has_died(self, claims: Claims) -> bool:
        """Return whether the launcher, which had its sidecar here, holds no lock any more."""
        return not self._lives(claims.run)

    def remove(self) -> None:
        """Delete the object."""
        self._objects.delete([self._name])
