"""What a user names as the key of records: fields, or a function."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ledgerbeam.errors import UsageError

By = str | Sequence[str] | Callable[[Any], Any]
"""The key of an exchange: names of fields, or a function of a record."""

_FUNCTION = re.compile(r"[\w.]+:[\w.]+")


def key_fields(by: By, option: str = "by") -> tuple[str, ...]:
    """Return the names of the fields of a key; none for a function.

    Args:
        by: The key.
        option: Its name, for the message.

    Raises:
        UsageError: They cannot be names.
    """
    if isinstance(by, str):
        fields: Iterable[str] = () if _FUNCTION.fullmatch(by) else by.split(",")
    else:
        fields = () if callable(by) else by
    names = tuple(fields)
    if not all(isinstance(name, str) and name for name in names):
        raise UsageError(
            f"{option}: expected names of fields such as meta.url,id, or module:function, found {by!r:.80}"
        )
    return names


def key_function(by: By, option: str = "by") -> str | Callable[[Any], Any]:
    """Return the function of a key that has no names of fields; arguments as of `key_fields`.

    Raises:
        UsageError: It is none.
    """
    if not callable(by) and not isinstance(by, str):
        raise UsageError(f"{option}: expected names of fields, found none")
    return by
