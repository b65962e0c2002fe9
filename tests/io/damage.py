"""Random damage to files, for tests that damage raises typed errors only."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Literal

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

NUMBERS = [0, 1, 2, 7, 255, 2**15, 2**31 - 1, 2**31, 2**32 - 1, 2**60, 2**62, 2**63 - 1, 2**63, 2**64 - 8, 2**64 - 1]
"""Values for damaged fields; the last one is -1, too."""


def mangled(content: bytes, chance: random.Random, fields: Sequence[int] = (), width: int = 8) -> bytes:
    """Change bits, numbers, blocks and the length of a binary file.

    Args:
        content: The intact content.
        chance: Source of random changes.
        fields: Offsets of its number fields, from its end if negative. They are changed more often than other bytes.
        width: Size of these fields in bytes.
    """
    data = bytearray(content)
    orders: list[Literal["little", "big"]] = ["little", "little", "big"]
    for _ in range(chance.choice([1, 1, 1, 2, 4])):
        at = chance.randrange(len(data) + 1)
        order = chance.choice(orders)
        match chance.randrange(11):
            case 0 if data:
                data[at % len(data)] ^= 1 << chance.randrange(8)
            case 1:
                data[at : at + 1] = chance.randbytes(1)
            case 2:
                size = chance.choice([2, 4, 8])
                data[at : at + size] = (chance.choice(NUMBERS) & (1 << 8 * size) - 1).to_bytes(size, order)
            case 3:
                at -= at % width
                data[at : at + width] = (chance.choice(NUMBERS) & (1 << 8 * width) - 1).to_bytes(width, order)
            case 4 | 5 if fields:
                at = chance.choice(fields) % max(1, len(data))
                data[at : at + width] = (chance.choice(NUMBERS) & (1 << 8 * width) - 1).to_bytes(width, order)
            case 6:  # a little more or less than before
                at = chance.choice(fields) % max(1, len(data)) if fields else at - at % width
                number = int.from_bytes(data[at : at + width], "little") + chance.choice([-512, -8, -1, 1, 8, 512])
                data[at : at + width] = (number & (1 << 8 * width) - 1).to_bytes(width, "little")
            case 7:
                del data[at:]
            case 8:
                data[at:at] = chance.randbytes(chance.choice([1, 8, 40]))
            case 9:
                size, other = chance.choice([1, 8, 16, 512]), chance.randrange(len(data) + 1)
                data[at:at] = data[other : other + size]
            case _:
                del data[at : at + chance.choice([1, 8, 16, 512])]
    return bytes(data)


def damaged(content: bytes, chance: random.Random) -> bytes:
    """Change a text file at random."""
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
