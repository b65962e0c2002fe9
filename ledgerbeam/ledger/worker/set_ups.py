"""How long worker processes of a local run took to set user code up, left in the run's folder for the launcher.

Counters of Beam are lost with a wave that is killed; these files are not.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress

from ledgerbeam.ledger.model.json_rows import decode, encode
from ledgerbeam.ledger.model.set_ups import SetUps
from ledgerbeam.ledger.model.values import rows, seconds

__all__ = ["leave_set_ups", "left_set_ups"]

SUFFIX = ".setup"


def leave_set_ups(run_dir: str, found: Sequence[float]) -> None:
    """Write how long set-ups of this process took to the run's folder."""
    path = os.path.join(run_dir, f"{os.getpid()}-{os.urandom(4).hex()}{SUFFIX}")
    with suppress(OSError), open(path, "xb") as file:  # a full disk is told by what needs it
        file.write(encode(list(found)))


def left_set_ups(run_dir: str) -> SetUps:
    """Return what the worker processes of a run have left."""
    found: list[float] = []
    for name in sorted(os.listdir(run_dir)) if os.path.isdir(run_dir) else ():
        if name.endswith(SUFFIX):
            # Cut short by a kill, or none of ours.
            with suppress(OSError, ValueError, TypeError), open(os.path.join(run_dir, name), "rb") as file:
                found += [seconds(value) for value in rows(decode(file.read()))]
    return SetUps.of(found)
