"""Damaging files at random, for tests that nothing but typed errors comes of it."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

from ledgerbeam.errors import LedgerbeamError, SourceNotFoundError

_TEXT = [
    b"{",
    b"}",
    b"[",
    b"]",
    b'"',
    b":",
    b",",
    b"-",
    b"9" * 30,
    b"null",
    b"1e999",
    b"..",
    b"\\ud800",
    b"\xff",
    b"\n",
]


def damaged(content: bytes, chance: random.Random) -> bytes:
    """Changes a file here and there."""
    data = bytearray(content)
    for _ in range(chance.choice([1, 1, 2, 5])):
        at = chance.randrange(len(data) + 1)
        match chance.randrange(6):
            case 0:
                data[at : at + 1] = chance.randbytes(1)
            case 1:
                data[at:at] = chance.choice(_TEXT)
            case 2:
                data[at : at + chance.randrange(1, 9)] = chance.choice(_TEXT)
            case 3:
                del data[at:]
            case 4:
                other = chance.randrange(len(data) + 1)
                data[at:at] = data[other : other + chance.randrange(1, 40)]
            case _:
                del data[at : at + chance.randrange(1, 600)]
    return bytes(data)


def run(files: Mapping[Path, bytes], read: Callable[[], object], inputs: int, seed: int) -> Counter[str]:
    """Damages one of the files at a time and reads.

    Args:
        files: What may be damaged, and its sound content.
        read: Reads; may raise typed errors, which name one of the files or their folder.
        inputs: How often.
        seed: Of the damages.

    Returns:
        How often it was read, and each error came.
    """
    chance = random.Random(seed)
    outcomes: Counter[str] = Counter()
    for _ in range(inputs):
        path = chance.choice(list(files))
        path.write_bytes(damaged(files[path], chance))
        try:
            read()
        except LedgerbeamError as error:
            outcome, message = type(error).__name__, str(error)
            if isinstance(error, SourceNotFoundError):  # of a name that the damage made
                message = str(path)
        else:
            outcome, message = "read", str(path)
        assert any(str(one.parent) in message for one in files), message
        outcomes[outcome] += 1
        path.write_bytes(files[path])
    return outcomes
