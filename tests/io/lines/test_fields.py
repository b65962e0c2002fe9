"""Values of a field that are found without decoding: those that decoding finds, or none at all."""

from __future__ import annotations

import json
from typing import Any

import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ledgerbeam.io import native
from ledgerbeam.io.lines.fields import find_field
from ledgerbeam.io.lines.rows import ByteRows

pytestmark = pytest.mark.usefixtures("implementation")

_names = st.sampled_from(["k", "a", "b", "a.b", "é", ""])
_texts = st.text(max_size=10) | st.sampled_from(['"', "\\", "é", "€", "😀", "\x7f", "\n", "x" * 9])
_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | _texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_names, inner, max_size=3),
    max_leaves=6,
)
_objects = st.dictionaries(_names, _values, max_size=4)


def field_of(value: Any, name: str) -> Any:
    """Return a field of a decoded line, as a key of an exchange is found."""
    if isinstance(value, dict) and name in value:
        return value[name]
    for part in name.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value if "." in name else None


@given(st.lists(_objects | _values, min_size=1, max_size=3), _names, st.booleans(), st.booleans())
def test_a_found_value_is_the_decoded_one(values: list[Any], name: str, ascii_only: bool, spaced: bool) -> None:
    separators = (" ,\t", " : ") if spaced else (",", ":")
    lines = [json.dumps(value, ensure_ascii=ascii_only, separators=separators).encode() for value in values]
    if b"\\ud" in b"".join(lines):  # a surrogate alone is no JSON to orjson
        return
    found = find_field(ByteRows.of(lines), name)
    if found is not None:
        expected = [field_of(orjson.loads(line), name) for line in lines]
        assert json.dumps(list(found.values())) == json.dumps(expected)
        assert not found.is_plain or [text.decode() for text in found.texts()] == expected


@given(_objects, st.integers(0, 200), st.binary(max_size=2), st.integers(0, 2))
@example({}, 1, b"", 1)
@example({"k": "ab"}, 6, b"\xed\xa0\x80", 0)
@example({"k": 1}, 5, b"\0", 0)
def test_no_value_is_found_in_what_is_not_json(value: dict[str, Any], place: int, new: bytes, gone: int) -> None:
    whole = json.dumps(value, ensure_ascii=False).encode("utf-8", "replace")
    damaged = whole[:place] + new + whole[place + gone :]
    try:
        expected = field_of(orjson.loads(damaged), "k")
    except ValueError:
        assert find_field(ByteRows.of([b'{"k":1}', damaged]), "k") is None
        return
    found = find_field(ByteRows.of([damaged]), "k")
    assert found is None or json.dumps(list(found.values())) == json.dumps([expected])


def test_ordinary_lines_are_not_decoded() -> None:
    if native.compiled is None:
        pytest.skip("lines are decoded without the compiled loop")
    lines = [b'{"id":12,"k":"a","k":"b\xc3\xa9","m":{"k":[1.5e3,{}],"t":"x\\ny"}}', b' {"k" : "c", "m":{"t":null}} ']
    text, inner, missing = (find_field(ByteRows.of(lines), name) for name in ("k", "m.t", "none"))
    assert text is not None
    assert inner is not None
    assert missing is not None
    assert (text.is_plain, list(text.texts())) == (True, [b"b\xc3\xa9", b"c"])
    assert (inner.is_plain, list(inner.values())) == (False, ["x\ny", None])
    assert list(missing.values()) == [None, None]
