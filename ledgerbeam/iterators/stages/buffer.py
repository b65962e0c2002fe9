"""Buffers of items with tokens: saved as tokens, and read again with as few requests as possible."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

from ledgerbeam.errors import CheckpointError
from ledgerbeam.iterators.node import IteratorNode
from ledgerbeam.iterators.tokens import Token, normalize_graph_token, require_graph_origin

__all__ = ["Pair", "read_pairs", "save_tokens", "split_tokens"]

Pair: TypeAlias = tuple[Token | None, Any]
"""A token and its item."""


def save_tokens(pairs: Iterable[Pair], owner: IteratorNode, source: IteratorNode) -> list[Token]:
    """Return the tokens of buffered items.

    Raises:
        CheckpointError: The source cannot rebuild them, or one of them has no token.
    """
    if not source.has_constant_time_access:
        raise CheckpointError(
            f"{owner!r}: its buffer cannot be saved, since {source!r} cannot rebuild items; read indexed data"
        )
    return [require_graph_origin(token, repr(owner)) for token, _ in pairs]


def read_pairs(tokens: Sequence[Token], source: IteratorNode) -> list[Pair]:
    """Read buffered items again from their tokens."""
    known = [normalize_graph_token(token) for token in tokens]
    return list(zip(known, source.read_many(known), strict=True)) if known else []


def split_tokens(tokens: Sequence[Token], shard: tuple[int, int]) -> list[Token]:
    """Return the part of one shard of the tokens of all shards."""
    return list(tokens[shard[0] :: shard[1]])
