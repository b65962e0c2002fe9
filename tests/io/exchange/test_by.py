"""Keys as users name them."""

from __future__ import annotations

from typing import Any

import pytest

from ledgerbeam.errors import UsageError
from ledgerbeam.io.exchange.order import key_fields, key_function


def own_key(record: Any) -> Any:
    return record


@pytest.mark.parametrize(
    ("by", "fields"),
    [("id", ("id",)), ("meta.url,id", ("meta.url", "id")), (["a,b", "c"], ("a,b", "c")), ("http://x", ("http://x",))],
)
def test_names_of_fields(by: Any, fields: tuple[str, ...]) -> None:
    assert key_fields(by) == fields


@pytest.mark.parametrize("by", ["module:function", "package.module:Class.method", own_key])
def test_a_function_has_no_fields(by: Any) -> None:
    assert key_fields(by) == ()
    assert key_function(by) is by


@pytest.mark.parametrize("by", ["", "a,,b", ["a", ""], ["a", 1]])
def test_what_is_no_name_is_refused(by: Any) -> None:
    with pytest.raises(UsageError, match="by: expected names of fields such as"):
        key_fields(by)


def test_no_name_at_all_is_refused() -> None:
    assert key_fields([]) == ()
    with pytest.raises(UsageError, match="by: expected names of fields, found none"):
        key_function([])
