"""Random generators that can be saved, or that depend only on the item."""

from __future__ import annotations

import base64
import json
import random
import struct
from hashlib import blake2b
from typing import Any

from ledgerbeam.errors import CheckpointError
from ledgerbeam.iterators.tokens import Token, normalize_graph_token, require_graph_origin

_WORDS = struct.Struct("<625I")
_VERSION = 3


def new_chance(seed: int) -> random.Random:
    """Return a generator that depends only on the seed."""
    return random.Random(seed)  # noqa: S311 - for shuffling, not for cryptography


def save_chance(chance: random.Random) -> str:
    """Return the state of a generator as 3,336 characters."""
    return base64.b64encode(_WORDS.pack(*chance.getstate()[1])).decode("ascii")


def load_chance(text: Any, owner: str) -> random.Random:
    """Return a generator with a saved state.

    Raises:
        CheckpointError: The text is not a result of `save_chance`.
    """
    found = new_chance(0)
    try:
        found.setstate((_VERSION, _WORDS.unpack(base64.b64decode(text, validate=True)), None))
    except (ValueError, TypeError, struct.error) as error:
        raise CheckpointError(f"{owner}: the saved state of its random numbers is damaged: {error}") from error
    return found


def item_chance(seed: int, epoch: int, token: Token | None, owner: str) -> random.Random:
    """Return the generator of one item in one epoch, which is always the same.

    Raises:
        CheckpointError: The item has no token.
    """
    plain = normalize_graph_token(require_graph_origin(token, owner))
    text = json.dumps([seed, epoch, plain], separators=(",", ":"))
    return new_chance(int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little"))


def below(chance: random.Random, limit: int) -> int:
    """Draw a number of `range(limit)`: the same as `random.Random.randrange`, in half the time."""
    bits = limit.bit_length()
    found = chance.getrandbits(bits)
    while found >= limit:
        found = chance.getrandbits(bits)
    return found
