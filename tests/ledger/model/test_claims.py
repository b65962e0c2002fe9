"""Claims: what is read of them is checked, and orders of runs differ."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgerbeam.ledger.model.claims import (
    MOST_BYTES,
    MOST_SECONDS,
    MOST_SPANS,
    Claims,
    Span,
    decode_claims,
    encode_claims,
    merged,
    place_in_order,
    rank,
)

ONE, TWO = b"1" * 16, b"2" * 16


def test_claims_are_read_as_they_were_said() -> None:
    claims = Claims("000007", "place", 3, 30.0, [Span(ONE, 0, 10), Span(TWO, 5, 5)])
    assert decode_claims(encode_claims(claims)) == claims


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"{",
        b'{"run": "1"}',
        encode_claims(Claims("1", "", 1, 1.0))[:-4],
        encode_claims(Claims("1", "", 1, 1.0)).replace(b'"seconds":1.0', b'"seconds":-1'),
        encode_claims(Claims("1", "", 1, 1.0, [Span(ONE, 0, 1)])).replace(b"31", b"3", 1),
        encode_claims(Claims("1", "", 1, 1.0, [Span(ONE, 0, 1)])).replace(b"0,1", b"0,null"),
        b" " * (MOST_BYTES + 1),
        encode_claims(Claims("1", "", 1, 1.0, [Span(ONE, 0, 1)] * (MOST_SPANS + 1))),
    ],
)
def test_what_no_launcher_has_said_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - of many kinds
        decode_claims(data)


@given(st.binary(max_size=200))
def test_any_bytes_are_claims_or_refused(data: bytes) -> None:
    with contextlib.suppress(ValueError):
        decode_claims(data)


def test_no_claim_holds_longer_than_is_reasonable() -> None:
    assert decode_claims(encode_claims(Claims("1", "", 1, 1e9))).seconds == MOST_SECONDS


@pytest.mark.parametrize(
    ("start", "stop", "holds"), [(0, 5, False), (5, 11, True), (10, 20, True), (19, 25, True), (20, 25, False)]
)
def test_a_span_is_held_if_a_part_of_it_is(start: int, stop: int, holds: bool) -> None:
    claims = Claims("1", "", 1, 30.0, [Span(ONE, 10, 20)])
    assert claims.holds(Span(ONE, start, stop)) is holds
    assert not claims.holds(Span(TWO, start, stop))


def test_an_empty_span_is_held_by_its_like() -> None:
    assert Claims("1", "", 1, 30.0, [Span(ONE, 0, 0)]).holds(Span(ONE, 0, 0))


def test_spans_that_follow_each_other_are_said_as_one() -> None:
    spans = [Span(TWO, 0, 1), Span(ONE, 5, 9), Span(ONE, 0, 5), Span(ONE, 10, 12), Span(TWO, 1, 1)]
    assert merged(spans) == [Span(ONE, 0, 9), Span(ONE, 10, 12), Span(TWO, 0, 1), Span(TWO, 1, 1)]


def test_runs_begin_with_other_sources_and_inside_of_them() -> None:
    sources = [bytes([number]) * 16 for number in range(100)]
    runs = [f"{number:06d}" for number in range(20)]
    firsts = {min((rank(run, source), source) for source in sources)[1] for run in runs}
    assert len(firsts) > 10
    places = [((ordinal, 1000),) for ordinal in range(1000)]
    begins = {min((place_in_order(run, ONE, place), place) for place in places)[1] for run in runs}
    assert len(begins) > 15


def test_the_tasks_of_a_source_stay_together_and_in_turn() -> None:
    keys = sorted(
        (place_in_order("1", source, ((ordinal, 5),)), source, ordinal) for source in (ONE, TWO) for ordinal in range(5)
    )
    assert [source for _, source, _ in keys] in ([ONE] * 5 + [TWO] * 5, [TWO] * 5 + [ONE] * 5)
    for source in (ONE, TWO):
        order = [ordinal for _, of, ordinal in keys if of == source]
        assert order == [(order[0] + step) % 5 for step in range(5)]
