"""Lines as spans of bytes in memory."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from ledgerbeam.io.lines import jsonl as held
from ledgerbeam.io.lines.jsonl import HeldLines
from tests.memory import peak_of


@pytest.mark.parametrize("data", [b"", b"\n", b"a", b"a\n", b"\na\r\n\nbc", b"\n\n", b" \n\t\n {}\n"])
@pytest.mark.parametrize("at_once", [1, 2, 100])
def test_lines_are_those_that_newlines_end(data: bytes, at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held, "_AT_ONCE", at_once)
    lines = HeldLines.split(data)
    expected = data.splitlines() if b"\r" not in data else data.removesuffix(b"\n").split(b"\n")
    assert list(lines) == expected == [lines[place] for place in range(len(lines))]
    assert list(HeldLines.joined(expected)) == expected
    assert list(pickle.loads(pickle.dumps(lines))) == expected
    assert lines.blank().tolist() == [not line.strip() for line in expected]
    assert lines.first_bytes().tolist() == [(line + b"\n")[0] for line in expected]
    assert [data[lines.start(place) :][: len(line)] for place, line in enumerate(expected)] == expected


def test_some_lines_are_named_by_places_or_by_a_mask() -> None:
    lines = HeldLines.split(b"a\nbb\n\nccc")
    assert list(lines.at([3, 0])) == [b"ccc", b"a"]
    assert list(lines.at(~lines.blank())) == [b"a", b"bb", b"ccc"]
    assert list(lines.at(np.zeros(0, np.int64))) == []


def test_a_form_feed_is_not_blank_as_json_has_it() -> None:
    assert HeldLines.split(b"\x0c\n\n \x0c\n").blank().tolist() == [False, True, False]


def test_lines_take_sixteen_bytes_each_and_are_not_copied() -> None:
    data = (b"x" * 99 + b"\n") * 100_000
    lines, peak = peak_of(lambda: HeldLines.split(data))
    assert len(lines) == 100_000
    assert peak < 0.6 * len(data)
