"""The places where launchers exchange claims: run folders for a local ledger, objects for a remote one.

Claims of dead launchers on this host are removed with their run folders. Modules for remote ledgers are imported on
first use.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ledgerbeam.errors import LedgerbeamError
from ledgerbeam.ledger import LedgerStore
from ledgerbeam.ledger.lmdb.errors import translated
from ledgerbeam.ledger.lmdb.store import LmdbStore
from ledgerbeam.ledger.model.claims import CLAIMS, MOST_BYTES, ClaimPlace, Claims, decode_claims
from ledgerbeam.ledger.model.identity import run_order
from ledgerbeam.ledger.opening import run_folders
from ledgerbeam.ledger.worker.run_folders import RunFolder, RunFolders

if TYPE_CHECKING:
    from ledgerbeam.ledger.remote.store import RemoteStore

FOLDER_SECONDS = 2.0
"""Interval at which a launcher writes its file and reads the others, in seconds."""

OBJECT_SECONDS = 10.0
"""Interval at which a launcher writes its object and reads the others, in seconds."""

_FILE = "claims.json"
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9.]+")


def claim_place(store: LedgerStore, folder: RunFolder, run: str) -> ClaimPlace:
    """Return the place where the launchers of a ledger exchange claims.

    Args:
        store: The ledger.
        folder: Folder of the launcher's run.
        run: Id of the run.
    """
    folders = run_folders(store)
    remote = _as_remote(store)
    if remote is None:
        return FolderClaims(folders, folder, run)
    return ObjectClaims(remote, run, os.uname().nodename, folders.lives)


def read_claims(store: LedgerStore) -> list[Claims]:
    """Return the current claims of launchers, sorted by run. They are hints: a launcher may have died since.

    For a remote ledger, the objects found by the last `refresh` are read. Unreadable claims are left out.

    Raises:
        StorageError: The store does not answer.
    """
    remote = _as_remote(store)
    if remote is None:
        folders = run_folders(store)
        found = [read_folder_claims(folders, launcher.run) for launcher in folders.launchers() if launcher.lives]
    else:
        found = remote.parts()[0].read(remote.claimed)
    claims: list[Claims] = []
    for data in found:
        with contextlib.suppress(ValueError, LedgerbeamError):
            claims += [] if data is None else [decode_claims(data)]
    return sorted(claims, key=lambda each: run_order(each.run))


def _as_remote(store: LedgerStore) -> RemoteStore | None:
    """Return the store if its ledger is on an object store; None for a local ledger."""
    if type(store) is LmdbStore:
        return None
    from ledgerbeam.ledger.remote.store import RemoteStore  # noqa: PLC0415

    return store if isinstance(store, RemoteStore) else None


class FolderClaims:
    """Claims in the run folders of a local ledger; see `claims.ClaimPlace`.

    Args:
        folders: Run folders of the ledger.
        folder: Folder of this launcher's run.
        run: Id of the run.
    """

    seconds = FOLDER_SECONDS

    def __init__(self, folders: RunFolders, folder: RunFolder, run: str) -> None:
        self._folders = folders
        self._folder = folder
        self._run = run

    def put(self, data: bytes) -> None:
        """Write the file."""
        aside = os.path.join(self._folder.path, f".{secrets.token_hex(6)}")
        with translated(self._folder.path):
            with open(aside, "xb") as file:
                file.write(data)
            os.rename(aside, os.path.join(self._folder.path, _FILE))

    def names(self) -> Sequence[str]:
        """Return the runs of other live launchers."""
        return [found.run for found in self._folders.launchers() if found.lives and found.run != self._run]

    def read(self, names: Sequence[str]) -> list[bytes | None]:
        """Read files."""
        return [read_folder_claims(self._folders, name) for name in names]

    def has_died(self, claims: Claims) -> bool:
        """Return False: `names` has only live launchers."""
        del claims
        return False

    def remove(self) -> None:
        """Remove the file."""
        with contextlib.suppress(OSError):
            os.unlink(os.path.join(self._folder.path, _FILE))


def read_folder_claims(folders: RunFolders, run: str) -> bytes | None:
    """Return the claims of the launcher of a run; None if they cannot be read."""
    with contextlib.suppress(OSError):
        path = os.path.join(folders.path, run, _FILE)
        with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            return file.read(MOST_BYTES + 1)
    return None


class ObjectClaims:
    """Claims below ``claims/`` of a remote ledger; see `claims.ClaimPlace`.

    The listing of `RemoteStore.refresh` finds the other claims, without a request of its own.

    Args:
        store: The ledger.
        run: Id of the run.
        host: Name of the host, for people.
        lives: Returns whether the launcher of a run on this host is alive.
    """

    seconds = OBJECT_SECONDS

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
