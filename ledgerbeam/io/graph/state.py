"""The states of nodes, and taking them apart."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

from ledgerbeam.errors import CheckpointError

__all__ = ["State", "field"]

State: TypeAlias = dict[str, Any]
"""Where a node stands: what JSON can hold, small, without items."""


def field(state: Mapping[str, Any], name: str, owner: str) -> Any:
    """Takes a part of a state.

    Raises:
        CheckpointError: It is not there; a pass is never begun anew in its place.
    """
    try:
        return state[name]
    except (KeyError, TypeError) as error:
        raise CheckpointError(
            f"{owner}: the state has no {name!r}, so the pass cannot go on exactly where it was; load a whole state of "
            "this graph."
        ) from error
