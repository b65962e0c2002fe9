"""Claims of launchers on one host, in their run folders. Claims of dead launchers are removed with their folders."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Sequence

from ledgerbeam.ledger.lmdb.errors import translated
from ledgerbeam.ledger.model.claims import MOST_BYTES, Claims
from ledgerbeam.ledger.worker.run_folders import RunFolder, RunFolders

SECONDS = 2.0
"""Interval at which a launcher writes its file and reads the others, in seconds."""

_FILE = "claims.json"


class FolderClaims:
    """Claims in the run folders of a local ledger; see `claims.ClaimPlace`.

    Args:
        folders: Run folders of the ledger.
        folder: Folder of this launcher's run.
        run: Id of the run.
    """

    seconds = SECONDS

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
