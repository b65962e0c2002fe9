"""Rows of bytes: selected, concatenated, joined and sorted as a list of them would be."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgerbeam.io import native
from ledgerbeam.io.lines.rows import ByteRows

pytestmark = pytest.mark.usefixtures("implementation")

_row = st.binary(max_size=4) | st.sampled_from([b"", b"\0", b"\0\0", b"a\0", b"a", b"\xff", b"x" * 70])
_rows = st.lists(_row, max_size=12)


@given(st.lists(_rows, max_size=4), st.binary(max_size=2), st.binary(max_size=2))
def test_parts_are_one_object_that_shares_their_bytes(parts: list[list[bytes]], before: bytes, after: bytes) -> None:
    rows = ByteRows.concatenated([ByteRows.of(part) for part in parts])
    expected = [row for part in parts for row in part]
    assert rows == expected == [rows[place] for place in range(len(rows))]
    assert rows.joined(before, after) == b"".join(before + row + after for row in expected)
    assert pickle.loads(pickle.dumps(rows)) == expected
    assert rows.lengths.tolist() == list(map(len, expected))


@given(_rows, st.data())
def test_some_rows_are_selected_by_places_a_mask_or_bounds(given_rows: list[bytes], data: st.DataObject) -> None:
    rows = ByteRows.of(given_rows)
    places = data.draw(st.lists(st.sampled_from(range(len(rows))), max_size=5) if given_rows else st.just([]))
    assert rows.at(np.array(places, np.int64)) == [given_rows[place] for place in places]
    assert rows.at(np.array([row > b"a" for row in given_rows], np.bool_)) == [row for row in given_rows if row > b"a"]
    start, stop = sorted(data.draw(st.tuples(*[st.integers(0, len(rows))] * 2)))
    assert rows.at(slice(start, stop)) == rows[start:stop] == given_rows[start:stop]
    assert rows.first_bytes().tolist() == [(row + b"\n")[0] for row in given_rows]
    assert ByteRows.concatenated([rows, rows.at(slice(start, stop))]) == given_rows + given_rows[start:stop]


@given(_rows, _row)
def test_rows_are_sorted_and_found_as_bytes(rows: list[bytes], wanted: bytes) -> None:
    held = ByteRows.of(rows)
    assert held.order().tolist() == sorted(range(len(rows)), key=rows.__getitem__)
    assert held.are(wanted).tolist() == [row == wanted for row in rows]


@pytest.mark.parametrize(("start", "length"), [(5, 0), (4, 1), (0, 5), (1, 2**62), (-1, 1), (1 << 40, 0)])
def test_a_row_outside_of_its_buffer_is_refused(start: int, length: int) -> None:
    if native.compiled is None:
        pytest.skip("only the compiled loop reads addresses")
    rows = ByteRows((b"1234",), np.array([start], np.int64), np.array([length], np.int64))
    with pytest.raises(ValueError, match="outside"):
        rows.joined()
