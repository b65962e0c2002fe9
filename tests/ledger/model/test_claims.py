"""Claims are checked when they are read, and runs have different orders."""

from __future__ import annotations

import contextlib
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgerbeam.ledger.model.claims import Claims, Span, decode_claims, encode_claims, merged, order_key, rank
from tests.cases import each

ONE, TWO = b"1" * 16, b"2" * 16


def test_claims_are_read_as_they_were_said() -> None:
    claims = Claims("000007", "place", 3, 30.0, [Span(ONE, 0, 10), Span(TWO, 5, 5)])
    assert decode_claims(encode_claims(claims)) == claims


@each(
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
    ],
)
def test_what_no_launcher_has_said_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - of many kinds
        decode_claims(data)


@given(st.binary(max_size=200))
def test_any_bytes_are_claims_or_refused(data: bytes) -> None:
    with contextlib.suppress(ValueError):
        decode_claims(data)


@pytest.mark.parametrize(("said", "holds"), [(599.5, 599.5), (600.0, 600.0), (600.5, 600.0), (1e9, 600.0)])
def test_no_claim_holds_longer_than_ten_minutes(said: float, holds: float) -> None:
    assert decode_claims(encode_claims(Claims("1", "", 1, said))).seconds == holds


def test_claims_of_more_than_a_mebibyte_are_refused() -> None:
    size = 2**20 - len(encode_claims(Claims("1", "", 1, 1.0)))
    assert len(decode_claims(encode_claims(Claims("1", "x" * size, 1, 1.0))).place) == size
    with pytest.raises(ValueError, match="expected at most 1048576 bytes, found 1048577"):
        decode_claims(encode_claims(Claims("1", "x" * (size + 1), 1, 1.0)))


def test_claims_of_more_than_ten_thousand_spans_are_refused() -> None:
    spans = [Span(ONE, 0, 1)] * 10_000
    assert decode_claims(encode_claims(Claims("1", "", 1, 1.0, spans))).spans == spans
    with pytest.raises(ValueError, match="expected at most 10000 spans, found 10001"):
        decode_claims(encode_claims(Claims("1", "", 1, 1.0, [*spans, spans[0]])))


def test_claims_are_shown_and_compared_by_what_was_said() -> None:
    claims = Claims("1", "here", 2, 30.0, (Span(ONE, 0, 1),))
    assert repr(claims) == f"Claims(run='1', place='here', number=2, seconds=30.0, spans={claims.spans!r})"
    assert len({claims, replace(claims), replace(claims, number=3)}) == 2


@each(
    ("start", "stop", "holds"),
    [(0, 5, False), (5, 10, False), (5, 11, True), (10, 20, True), (19, 25, True), (20, 25, False)],
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
    spans = [Span(ONE, 0, 1), Span(ONE, 5, 6), Span(ONE, 6, 7), Span(TWO, 7, 9)]
    assert merged(spans) == [Span(ONE, 0, 1), Span(ONE, 5, 7), Span(TWO, 7, 9)], "it joins what is apart"


def test_runs_begin_with_other_sources_and_inside_of_them() -> None:
    sources = [bytes([number]) * 16 for number in range(100)]
    runs = [f"{number:06d}" for number in range(20)]
    firsts = {min((order_key(run, source, ()), source) for source in sources)[1] for run in runs}
    assert len(firsts) > 10
    places = [((ordinal, 1000),) for ordinal in range(1000)]
    begins = {min((order_key(run, ONE, place), place) for place in places)[1] for run in runs}
    assert len(begins) > 15


def test_the_tasks_of_a_source_stay_together_and_in_turn() -> None:
    keys = sorted(
        (order_key("1", source, ((ordinal, 5),)), source, ordinal) for source in (ONE, TWO) for ordinal in range(5)
    )
    assert [source for _, source, _ in keys] in ([ONE] * 5 + [TWO] * 5, [TWO] * 5 + [ONE] * 5)
    assert len({key for key, _, _ in keys}) == len(keys), "two tasks have one place"
    for source in (ONE, TWO):
        order = [ordinal for _, of, ordinal in keys if of == source]
        assert order == [(order[0] + step) % 5 for step in range(5)]


@each("source", [bytes([number]) * 16 for number in range(8)])
def test_a_source_that_is_not_split_has_one_place_by_its_rank(source: bytes) -> None:
    assert order_key("000007", source, ()) == rank("000007", source, 0).to_bytes(8) + source + bytes(8)
