"""Files that the worker processes of a run leave in its folder for the launcher.

What Beam's counters know is lost with a wave that is killed; these files are not.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from ledgerbeam.ledger.model.json_rows import decode, encode


def place_to_leave(run_dir: str, suffix: str) -> str:
    """Return the path of a new file of this process in the run's folder."""
    return os.path.join(run_dir, f"{os.getpid()}-{os.urandom(4).hex()}{suffix}")


def leave(path: str, value: Any) -> None:
    """Write a JSON value as a whole, in the place of what this process has left there before.

    A disk that is full, or a folder that is gone, is no error: what needs them tells of that.
    """
    beside = f"{path}.new"
    with suppress(OSError):
        with open(beside, "wb") as file:
            file.write(encode(value))
        os.replace(beside, path)


def left(run_dir: str, suffix: str) -> Iterator[Any]:
    """Yield the values that the worker processes of a run have left, those that died among them.

    What is no JSON, or no file, was left by others, and is passed over.
    """
    for name in sorted(os.listdir(run_dir)) if os.path.isdir(run_dir) else ():
        if name.endswith(suffix):
            try:
                with open(os.path.join(run_dir, name), "rb") as file:
                    value = decode(file.read())
            except (OSError, ValueError):
                continue
            yield value
