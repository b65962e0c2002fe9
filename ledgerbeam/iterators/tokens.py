"""Tokens: the data from which a graph rebuilds one item.

Inside a graph, tokens and items are passed as pairs, so that any value can be an item and none is changed. For other
code with its own buffers, a token can be attached to an item as an attribute, which is not written with the item.
lhotse's samplers find the token, because the attribute has the name that lhotse uses.

The random generators of nodes are here too: their state can be saved, or they depend only on the item.
"""

from __future__ import annotations

import base64
import json
import random
import struct
from hashlib import blake2b
from typing import Any, TypeAlias

from ledgerbeam.errors import CheckpointError, UsageError

Token: TypeAlias = Any  # A number, a string, or a tuple of tokens. JSON changes tuples to lists.
_ATTRIBUTE = "_graph_origin"


class _Missing:
    __slots__ = ()

    def __repr__(self) -> str:
        return "MISSING"

    def __reduce__(self) -> str:
        return "MISSING"


MISSING = _Missing()  # marks a position of a pass without an item: a blank line, or an item that a filter drops


class OriginDict(dict[Any, Any]):
    """A dict that can have a token as an attribute. It equals a plain dict; its JSON text is without the token."""

    __slots__ = (_ATTRIBUTE,)


def normalize_graph_token(token: Token) -> Token:
    """Return a token with tuples instead of lists at any depth: JSON has only lists."""
    if isinstance(token, (list, tuple)):
        return tuple([normalize_graph_token(part) for part in token])
    return token


def attach_graph_origin(item: Any, token: Token) -> Any:
    """Attach a token to an item.

    Args:
        item: An object with attributes, or a dict.
        token: Its token.

    Returns:
        The item itself; for a plain dict an `OriginDict` with the same content.

    Raises:
        UsageError: The item cannot have attributes: a list, a number, a string.
    """
    if type(item) is dict:
        item = OriginDict(item)
    try:
        object.__setattr__(item, _ATTRIBUTE, token)  # without hooks, which could make it a field of the record
    except AttributeError as error:
        raise UsageError(
            f"a {type(item).__name__} cannot have a token; expected a dict or an object with attributes. Use the "
            "(token, item) pairs of IteratorNode.pairs instead"
        ) from error
    return item


def maybe_attach_graph_origin(item: Any, token: Token | None) -> Any:
    """Attach a token to an item as `attach_graph_origin` does, or return the item if there is no token."""
    return item if token is None else attach_graph_origin(item, token)


def get_graph_origin(item: Any) -> Token | None:
    """Return the token of an item, or None."""
    return getattr(item, _ATTRIBUTE, None)


def require_graph_origin(token: Token | None, owner: str) -> Token:
    """Return the token of an item that must be rebuilt later. Raises CheckpointError if it is None."""
    if token is None:
        raise CheckpointError(
            f"{owner}: an item of its buffer has no token, so it could not be rebuilt. The source has "
            "has_constant_time_access = True, so its pairs() must yield a token with each item"
        )
    return token


def pair_token(token: Token, owner: str, shape: str) -> tuple[Token, Token]:
    """Split a token of two parts. Raises UsageError for another shape."""
    found = normalize_graph_token(token)
    if not isinstance(found, tuple) or len(found) != 2:
        raise UsageError(f"{owner}: expected a token {shape}, found {token!r}")
    return found


_WORDS = struct.Struct("<625I")
_VERSION = 3


def new_chance(seed: int) -> random.Random:
    """Return a random generator that depends only on the seed."""
    return random.Random(seed)  # noqa: S311 - for shuffling, not for cryptography


def save_chance(chance: random.Random) -> str:
    """Return the state of a generator as 3,336 characters."""
    return base64.b64encode(_WORDS.pack(*chance.getstate()[1])).decode("ascii")


def load_chance(text: Any, owner: str) -> random.Random:
    """Return a generator with a state of `save_chance`. Raises CheckpointError for another text."""
    found = new_chance(0)
    try:
        found.setstate((_VERSION, _WORDS.unpack(base64.b64decode(text, validate=True)), None))
    except (ValueError, TypeError, struct.error) as error:
        raise CheckpointError(f"{owner}: the state of its random numbers is damaged: {error}") from error
    return found


def item_chance(seed: int, epoch: int, token: Token | None, owner: str) -> random.Random:
    """Return the random generator of an item in an epoch, the same in each call. CheckpointError: there is no token."""
    text = json.dumps([seed, epoch, normalize_graph_token(require_graph_origin(token, owner))], separators=(",", ":"))
    return new_chance(int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little"))


def below(chance: random.Random, limit: int) -> int:
    """Draw a number of `range(limit)`: the same as `random.Random.randrange`, in half the time."""
    bits = limit.bit_length()
    found = chance.getrandbits(bits)
    while found >= limit:
        found = chance.getrandbits(bits)
    return found
