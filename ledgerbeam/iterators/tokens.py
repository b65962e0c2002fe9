"""Tokens: the data that rebuilds one item of a graph.

Inside a graph tokens travel beside the items, in pairs, so that any value can be an item and none is changed. For code
outside that keeps items in buffers of its own, a token can be attached to an item; it is bookkeeping of a process and
is not written with the item. The attribute is lhotse's, so that lhotse's samplers find it.
"""

from __future__ import annotations

from typing import Any, TypeAlias

from ledgerbeam.errors import CheckpointError, UsageError

__all__ = [
    "MISSING",
    "OriginDict",
    "Token",
    "attach_graph_origin",
    "get_graph_origin",
    "maybe_attach_graph_origin",
    "normalize_graph_token",
    "pair_token",
    "require_graph_origin",
]

Token: TypeAlias = Any
"""A number, a string, or a tuple of tokens. Survives JSON, where tuples become lists."""

_ATTRIBUTE = "_graph_origin"


class _Missing:
    """The type of `MISSING`."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "MISSING"

    def __reduce__(self) -> str:
        return "MISSING"


MISSING = _Missing()
"""Stands where a position of a pass has no item: a blank line, or one that a filter drops."""


class OriginDict(dict[Any, Any]):
    """A dict that can carry a token. Equal to the dict it was made of; written as JSON without the token."""

    __slots__ = (_ATTRIBUTE,)


def normalize_graph_token(token: Token) -> Token:
    """Make tuples of the lists that JSON made of tuples, at any depth."""
    if isinstance(token, (list, tuple)):
        return tuple([normalize_graph_token(part) for part in token])
    return token


def attach_graph_origin(item: Any, token: Token) -> Any:
    """Attach a token to an item.

    Args:
        item: An object that takes attributes, or a dict.
        token: Its token.

    Returns:
        The item itself; for a plain dict an `OriginDict` of the same content.

    Raises:
        UsageError: The item can carry nothing: a list, a number, a string.
    """
    if type(item) is dict:
        item = OriginDict(item)
    try:
        object.__setattr__(item, _ATTRIBUTE, token)  # past hooks that would make it a field of the record
    except AttributeError as error:
        raise UsageError(
            f"a {type(item).__name__} cannot carry a token; expected a dict or an object with attributes. Take "
            "(token, item) pairs from IteratorNode.pairs instead"
        ) from error
    return item


def maybe_attach_graph_origin(item: Any, token: Token | None) -> Any:
    """Attach a token unless it is None; see `attach_graph_origin`."""
    return item if token is None else attach_graph_origin(item, token)


def get_graph_origin(item: Any) -> Token | None:
    """Return the token that an item carries, or None."""
    return getattr(item, _ATTRIBUTE, None)


def require_graph_origin(token: Token | None, owner: str) -> Token:
    """Return a token back.

    Args:
        token: The token of an item that will have to be rebuilt.
        owner: Names the node in messages.

    Raises:
        CheckpointError: It is None.
    """
    if token is None:
        raise CheckpointError(
            f"{owner}: an item of its buffer has no token, so it could not be rebuilt. The source says that it has "
            "constant time access; its pairs() must give each item its token"
        )
    return token


def pair_token(token: Token, owner: str, shape: str) -> tuple[Token, Token]:
    """Take a token of two parts apart.

    Raises:
        UsageError: It has another shape.
    """
    found = normalize_graph_token(token)
    if not isinstance(found, tuple) or len(found) != 2:
        raise UsageError(f"{owner}: expected a token {shape}, found {token!r}")
    return found
