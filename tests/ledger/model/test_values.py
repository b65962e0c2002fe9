"""Values are read as they were written, on this host and on every other."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ledgerbeam.errors import LedgerbeamError, UnsupportedShapeError, UsageError
from ledgerbeam.io.storage.objects import ObjectFolder
from ledgerbeam.ledger.lmdb.accounts import (
    decode_account,
    decode_statistics,
    encode_account,
    encode_statistics,
    sum_parts,
)
from ledgerbeam.ledger.lmdb.store import LmdbStore
from ledgerbeam.ledger.model import values
from ledgerbeam.ledger.model.accounts import (
    NOTHING,
    STATISTIC_BYTES,
    RecordCounts,
    Statistic,
    counts_row,
    read_counts,
    read_shares,
    read_statistics,
    statistics_row,
)
from ledgerbeam.ledger.model.job import Job
from ledgerbeam.ledger.model.rows import (
    Failure,
    Leaf,
    Mark,
    Output,
    SetUps,
    Totals,
    output_row,
    read_output,
    read_set_ups,
)
from ledgerbeam.ledger.model.task import Source
from ledgerbeam.ledger.model.values import decode, encode
from ledgerbeam.ledger.remote.controls import Control, decode_control, decode_ledger, encode_control, encode_ledger
from ledgerbeam.ledger.remote.segment import Segment, decode_segment, encode_segment
from ledgerbeam.ledger.remote.sink import RemoteSink
from ledgerbeam.stats import MOST_NAMES, NAME_CHARACTERS
from tests.cases import each
from tests.ledger.builders import ONE, plain
from tests.ledger.remote.test_store import Hosts
from tests.ledger.stores import picture

SURROGATES = st.characters(min_codepoint=0xD800, max_codepoint=0xDFFF, categories=["Cs"])
TEXTS = st.text(max_size=12) | st.text(SURROGATES, max_size=3) | st.sampled_from(["", "..", "a/../b", "a\0b", "\udcff"])
NUMBERS = st.integers(-2, 5) | st.integers(2**62, 2**65)
TIMES: st.SearchStrategy[Any] = st.floats() | st.integers(-1, 2**41)
IDS = st.binary(min_size=15, max_size=17) | st.just(plain().id)
LINEAGES: st.SearchStrategy[Any] = st.lists(st.tuples(NUMBERS, NUMBERS), max_size=2).map(tuple) | st.just(((0, 2),))


def accepted(make: Any, *args: Any) -> Any:
    """Return the result for values; None if a ledgerbeam error refuses them."""
    try:
        return make(*args)
    except LedgerbeamError:
        return None


@st.composite
def outputs(draw: st.DrawFn) -> Output | None:
    return accepted(Output, draw(TEXTS), draw(NUMBERS), draw(TEXTS), draw(NUMBERS), draw(NUMBERS))


@st.composite
def sources(draw: st.DrawFn) -> Source | None:
    return accepted(Source, draw(TEXTS), draw(NUMBERS), draw(TEXTS))


@st.composite
def leaves(draw: st.DrawFn) -> Leaf | None:
    kind = draw(st.sampled_from(["published", "filtered", "other"]))
    found = [output for output in draw(st.lists(outputs(), max_size=2)) if output is not None]
    rest = (draw(NUMBERS), draw(NUMBERS), draw(TIMES))
    return accepted(Leaf, draw(IDS), draw(LINEAGES), kind, tuple(found), *rest)


@st.composite
def failures(draw: st.DrawFn) -> Failure | None:
    flag = draw(st.booleans())
    return accepted(Failure, draw(IDS), draw(LINEAGES), draw(TEXTS), draw(TEXTS), draw(TEXTS), flag)


def present(strategy: Any) -> Any:
    return st.lists(strategy, max_size=3).map(lambda found: [item for item in found if item is not None])


@st.composite
def segments(draw: st.DrawFn) -> Segment | None:
    marks = draw(st.lists(st.builds(Mark, IDS, IDS, TEXTS), max_size=1))
    columns = [draw(present(strategy)) for strategy in (sources(), leaves(), failures())]
    dropped = draw(st.lists(TEXTS, max_size=1))
    job = draw(st.none() | TEXTS)
    return accepted(Segment, draw(NUMBERS), draw(TIMES), job, *columns, marks, dropped, None, [])


@settings(max_examples=300)
@given(segments())
def test_a_segment_decodes_to_what_was_encoded(segment: Segment | None) -> None:
    if segment is not None:
        assert decode_segment(encode_segment(segment), "here") == segment


@given(
    NUMBERS,
    st.sampled_from(["run", "forget", "accept", "other"]),
    TIMES,
    st.tuples(TEXTS, TEXTS),
    st.lists(IDS, max_size=2),
)
def test_a_control_round_trips(number: int, kind: Any, at: float, texts: tuple[str, str], ids: list[bytes]) -> None:
    token, command = texts
    fields: dict[str, Any] = {
        "run": {"info": {"command": command}, "sources": []},
        "forget": {"sources": ids, "failures_only": True},
        "accept": {"job": ONE, "sources": []},
    }
    control = accepted(lambda: Control(number, kind, at, token, **fields.get(kind, {})))
    if control is not None:
        assert decode_control(encode_control(control), "here") == control


@given(TEXTS, st.dictionaries(TEXTS, TEXTS | NUMBERS | st.lists(TEXTS), max_size=3))
def test_a_job_decodes_to_what_was_encoded(pipeline: str, parameters: dict[str, Any]) -> None:
    job = Job(pipeline, parameters)
    data = accepted(encode_ledger, "token", job)
    if data is not None:
        found = decode_ledger(data, "here")[1]
        assert found == job
        assert found.fingerprint == job.fingerprint


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(found=present(leaves()), failed=present(failures()), source=sources())
def test_what_lands_in_a_ledger_reads_and_is_the_same_on_another_host(
    tmp_path_factory: pytest.TempPathFactory, found: list[Leaf], failed: list[Failure], source: Source | None
) -> None:
    folder = tmp_path_factory.mktemp("ledgers")
    hosts = Hosts(folder)
    local = LmdbStore(str(folder / "local"))
    local.open(create=True)
    for store in (local, hosts.store()):
        store.register([plain(), *([] if source is None else [source])])
        for leaf in found:
            accepted(store.commit, [leaf])
        store.commit([], failed)
    assert len(picture(local)["rows"]) == 1 + (source is not None)
    assert picture(hosts.store()) == picture(hosts._stores[0])
    local.close()
    hosts.close()


BAD = {
    "parent": lambda: Output("a/../../b", 1, "x", 1),
    "empty": lambda: Output("", 1, "x", 1),
    "nul": lambda: Output("a\0", 1, "x", 1),
    "lone": lambda: Output("\ud800", 1, "x", 1),
    "negative": lambda: Output("a", -1, "x", 1),
    "huge": lambda: Output("a", 2**63, "x", 1),
    "float": lambda: Output("a", 1.0, "x", 1),  # type: ignore[arg-type]
    "checksum": lambda: Output("a", 1, "x" * 257, 1),
    "route": lambda: Output("a", 1, "x", 1, route="\ud800"),
    "records": lambda: Leaf(plain().id, (), "published", (), -1),
    "bytes": lambda: Leaf(plain().id, (), "published", (), 1, -1),
    "nan": lambda: Leaf(plain().id, (), "published", (), 1, 1, float("nan")),
    "count": lambda: Leaf(plain().id, ((0, 2**63),), "filtered"),
    "filtered": lambda: Leaf(plain().id, (), "filtered", (), 3),
    "outputs": lambda: Leaf(plain().id, (), "filtered", (Output("out", 1, "x", 1),)),
    "ordinal": lambda: Leaf(plain().id, ((2, 2),)),
    "below": lambda: Leaf(plain().id, ((-1, 2),)),
    "no fan-out": lambda: Leaf(plain().id, ((0, 1), (0, 0))),
    "id": lambda: Failure(b"short", (), "task", "reason"),
    "lineage": lambda: Failure(plain().id, ((0, 2**63),), "task", "reason"),
    "reason": lambda: Failure(plain().id, (), "task", ValueError("x")),  # type: ignore[arg-type]
}


@each("name", BAD)
def test_a_value_that_no_ledger_can_hold_is_refused_where_it_is_made(name: str) -> None:
    with pytest.raises(UnsupportedShapeError, match=r"cannot be recorded: expected|found"):
        BAD[name]()


def test_nothing_is_written_for_what_is_refused(tmp_path: Path) -> None:
    objects = ObjectFolder(str(tmp_path / "ledger"))
    with pytest.raises(UnsupportedShapeError):
        RemoteSink(objects).commit([Leaf(plain().id, (), "published", (Output("../x", 1, "x", 1),))])
    with pytest.raises(UsageError, match="64"):
        encode_control(Control(1, "run", 1.0, "token", info={"pid": 2**70}))
    assert objects.names("") == []


# Each value by itself

GOOD: list[tuple[Any, Any, Any]] = [
    (values.integer, 0, 0),
    (values.integer, 2**63 - 1, 2**63 - 1),
    (lambda value: values.integer(value, 1), 1, 1),
    (values.seconds, 0, 0.0),
    (values.seconds, 2**35 - 1, 2.0**35 - 1),
    (values.seconds, 0.5, 0.5),
    (values.flag, False, False),
    (values.text, "", ""),
    (values.text, "\udc80", "\udc80"),
    (values.output_name, "a/..b/c..", "a/..b/c.."),
    (values.checksum, "x" * 256, "x" * 256),
    (values.id_bytes, b"i" * 16, b"i" * 16),
    (values.identity, "0aff" * 8, b"\x0a\xff" * 8),
    (values.lineage, [[1, 2], (0, 1)], ((1, 2), (0, 1))),
    (values.lineage, [], ()),
    (values.rows, [1], [1]),
    (lambda value: values.row(value, 1, 2), (1, 2), (1, 2)),
    (lambda value: values.row(value, 1, 2), [1], [1]),
    (values.mapping, {"a": 1}, {"a": 1}),
]


@each(("check", "value", "given"), GOOD)
def test_a_value_that_can_be_is_given_back(check: Any, value: Any, given: Any) -> None:
    found = check(value)
    assert (type(found), found) == (type(given), given)


def _one_or_two(value: Any) -> Any:
    return values.row(value, 1, 2)


REFUSED: list[tuple[Any, list[Any]]] = [
    (values.integer, [-1, 2**63, True, 1.0, "1", None]),
    (lambda value: values.integer(value, 1), [0]),
    (values.seconds, [-1, -0.001, 2**35, float("nan"), float("inf"), True, "1", None]),
    (values.flag, [0, 1, None, ""]),
    (values.text, [None, 1, b"a", "\ud800", "é\udc79"]),
    (values.output_name, ["", "a\0", "..", "a/..", "../a", "a/../b", None]),
    (values.checksum, ["x" * 257, None]),
    (values.id_bytes, [b"i" * 15, b"i" * 17, "i" * 16, bytearray(16), None]),
    (values.identity, ["00" * 15, "00" * 17, "0" * 31, "gg" * 16, "00 " * 10 + "00", "00 " * 15 + "00", b"0" * 32]),
    (values.lineage, [[[1]], [[1, 2, 3]], [[-1, 2]], [[0, 2**63]], [3], [[0, True]]]),
    (values.rows, [(), {}, None, "a"]),
    (_one_or_two, [[], [1, 2, 3], "ab", {}, None]),
    (values.mapping, [[], None, "a"]),
]


@each(("check", "value"), [(check, value) for check, found in REFUSED for value in found])
def test_a_value_that_cannot_be_is_refused(check: Any, value: Any) -> None:
    with pytest.raises(ValueError, match=r"expected|hexadecimal"):
        check(value)


@pytest.mark.parametrize("length", [78, 79, 80, 200])
def test_a_message_shows_the_begin_of_a_long_value(length: int) -> None:
    shown = values.shown("é" + "x" * (length - 5))  # as '\xe9xx...'
    assert len(shown) == min(80, length + 1)
    assert shown.startswith(r"'\xe9xx")
    assert shown.endswith("..." if length > 79 else "x'")


@pytest.mark.parametrize("length", [3999, 4000, 4001, 9000])
def test_a_long_text_of_a_failure_is_cut_and_says_so(length: int) -> None:
    failure = Failure(plain().id, (), "t" * length, "r" * length, "é" * length)
    for text, letter in ((failure.task, "t"), (failure.reason, "r"), (failure.error, "é")):
        assert len(text) == min(length, 4000)
        assert text == letter * length if length <= 4000 else text == letter * 3997 + "..."


def test_what_is_no_text_is_escaped_in_failures() -> None:
    assert Failure(plain().id, (), "a\ud800", "b\udc80", "c").task == r"a\ud800"


def test_totals_are_added_and_taken_away_part_by_part() -> None:
    leaf = Leaf(plain().id, (), "filtered", (), 0, 3, 0.0256)
    assert leaf.share() == Totals(tasks=1, records=0, bytes=3, filtered=1, milliseconds=26)
    assert Leaf(plain().id, (), "published", (), 2, 3, 0.0254).share() == Totals(1, 2, 3, 0, 25)
    assert Leaf(plain().id, (), seconds=7200.0).share() == Totals(1, milliseconds=7_200_000)
    total = Totals(1, 2, 3, 4, 5).plus(Totals(10, 20, 30, 40, 50))
    assert total == Totals(11, 22, 33, 44, 55)
    assert total.minus(Totals(1, 2, 3, 4, 5)) == Totals(10, 20, 30, 40, 50)


@pytest.mark.parametrize(
    "mark", [Mark(b"short", b"n" * 16, "t"), Mark(b"s" * 16, b"n", "t"), Mark(b"s" * 16, b"n" * 16, "\ud800")]
)
def test_a_mark_that_cannot_be_is_refused(mark: Mark) -> None:
    with pytest.raises(UnsupportedShapeError, match="cannot be recorded: expected"):
        mark.check()
    with pytest.raises(UnsupportedShapeError, match="cannot be recorded: "):
        Segment(1, 1.0, deaths=[mark])


@pytest.mark.parametrize(
    ("counts", "special"),
    [
        (None, False),
        (RecordCounts.plain(5), False),
        (RecordCounts(6, 5, {"a": 1}, {}, {"": 5}), True),
        (RecordCounts(5, 5, {}, {}, {"de": 5}), True),
    ],
)
def test_counts_are_special_if_they_say_more_than_the_records(counts: RecordCounts | None, special: bool) -> None:
    leaf = Leaf(plain().id, (), records=5, counts=counts)
    assert leaf.special_counts() == (counts if special else None)


@pytest.mark.parametrize(
    ("more", "row"),
    [({}, []), ({"nulled": 4}, [4]), ({"route": "de"}, [0, "de"]), ({"nulled": 4, "route": "de"}, [4, "de"])],
)
def test_the_row_of_an_output_is_no_longer_than_what_it_says(more: dict[str, Any], row: list[Any]) -> None:
    output = Output("a", 1, "x", 2, 3, **more)
    assert output_row(output) == ["a", 1, "x", 2, 3, *row]
    assert read_output(output_row(output)) == output
    assert output_row(Output("a", 1, "x", 2)) == ["a", 1, "x", 2, 0]


@pytest.mark.parametrize("row", [["a", 1, "x", 2], ["a", 1, "x", 2, 3, 4, "de", 5]])
def test_a_row_of_an_output_that_is_too_short_or_too_long_is_refused(row: list[Any]) -> None:
    with pytest.raises(ValueError, match="expected a row of 5 or 6 or 7 values"):
        read_output(row)


# Rows as JSON


@pytest.mark.parametrize(
    "value", [{"a": [1, None, "é", 0.5, True]}, "\udcff", ["\ud800\udc00", "\udc00\ud800"], 2**63 - 1]
)
def test_a_row_decodes_to_what_was_encoded(value: Any) -> None:
    assert decode(encode(value)) == value


@each("value", [2**70, {1: "a"}, {"a": object()}, {"\ud800": object()}, [b"a"]])
def test_what_would_not_come_back_as_it_was_is_refused(value: Any) -> None:
    with pytest.raises(UsageError, match="cannot be stored"):
        encode(value)


@each("data", [b"", b"{", b"[1,]", b"\xff", b"[" * 100_000])
def test_a_damaged_row_is_an_error_of_its_value(data: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - of the decoder
        decode(data)


def test_set_ups_of_several_workers_are_added_up() -> None:
    one, other = SetUps.of([1.5, 0.25]), SetUps.of([2.0])
    assert (one, other) == (SetUps(2, 1.75, 1.5), SetUps(1, 2.0, 2.0))
    assert one.plus(other) == other.plus(one) == SetUps(3, 3.75, 2.0)
    assert SetUps.of([]) == SetUps() == SetUps(0, 0.0, 0.0)
    assert one.plus(SetUps()) == one


def test_the_row_of_set_ups_is_read_as_it_was_written() -> None:
    row = read_set_ups({"times": 2, "seconds": 3, "longest": 2.5})
    assert row == SetUps(2, 3.0, 2.5)._asdict()
    assert [type(value) for value in row.values()] == [int, float, float]


@each("changes", [{"times": -1}, {"times": 1.0}, {"seconds": -1}, {"longest": "1"}, {"shortest": 0.5}])
def test_a_row_that_is_none_of_set_ups_is_refused(changes: dict[str, Any]) -> None:
    row = SetUps(2, 3.0, 2.5)._asdict()
    with pytest.raises(ValueError, match="expected"):
        read_set_ups({**row, **changes})
    with pytest.raises(ValueError, match="expected"):
        read_set_ups([row])
    for name in row:
        with pytest.raises(ValueError, match="in the set-ups of a run"):
            read_set_ups({other: row[other] for other in row if other != name})


ESCAPED = st.binary(max_size=3).map(lambda name: name.decode("utf-8", "surrogateescape"))
NAMES = st.one_of(st.sampled_from(["", "a", "b"]), st.text(max_size=5), ESCAPED)
NAMED = st.dictionaries(NAMES, st.integers(1, 2**40), max_size=4)
STATISTICS = st.dictionaries(NAMES, st.builds(Statistic, NAMES, st.binary(max_size=50)), max_size=4)


@st.composite
def counts(draw: st.DrawFn) -> RecordCounts:
    kept, dropped, rejected = draw(st.integers(0, 2**40)), draw(NAMED), draw(NAMED)
    read = kept + sum(dropped.values()) + sum(rejected.values())
    return RecordCounts(read, kept, dropped, rejected, draw(NAMED))


@each(
    ("counts", "read", "expected"),
    [
        (RecordCounts(5, 4, {}, {"bad": 1}, {"": 4}), 3, RecordCounts(3, 2, {}, {"bad": 1}, {"": 4})),
        (RecordCounts(5, 2, {"short": 3}, {}, {"": 2}), 4, RecordCounts(4, 2, {"short": 2}, {}, {"": 2})),
        (RecordCounts(2, 1, {}, {"bad": 1}, {"": 1}), 6, RecordCounts(6, 1, {NOTHING: 4}, {"bad": 1}, {"": 1})),
    ],
)
def test_rejected_records_stay_counted_where_fewer_records_were_read(
    counts: RecordCounts, read: int, expected: RecordCounts
) -> None:
    assert counts.of_read(read) == expected


@each(
    ("read", "sizes", "shares"),
    [(6, [2, 4], [2, 4]), (3, [2, 4], [2, 1]), (9, [2, 4], [5, 4]), (0, [2, 4], [0, 0]), (4, [0], [4])],
)
def test_every_record_that_was_read_is_counted_for_one_child(read: int, sizes: list[int], shares: list[int]) -> None:
    assert read_shares(read, sizes) == shares


@given(counts(), counts(), counts())
def test_sums_are_those_of_numbers(one: RecordCounts, two: RecordCounts, three: RecordCounts) -> None:
    assert one.plus(two) == two.plus(one)
    assert one.plus(two).plus(three) == one.plus(two.plus(three))
    assert one.plus(RecordCounts()) == one
    assert one.plus(two).since(two) == one
    assert one.since(one) == RecordCounts()
    assert RecordCounts.from_parts(sum_parts([one, two, three])) == one.plus(two).plus(three)
    assert one.plus(two).since(one) == two
    gained = one.since(two)
    assert gained.read == gained.kept + sum(gained.dropped.values()) + sum(gained.rejected.values())


def test_what_was_taken_away_meanwhile_does_not_count_against_what_was_added() -> None:
    before = RecordCounts(9, 5, {"a": 3}, {"b": 1}, {"": 5})
    after = RecordCounts(12, 4, {"a": 4, "c": 4}, {}, {"": 7})
    assert after.since(before) == RecordCounts(5, 0, {"a": 1, "c": 4}, {}, {"": 2})


@given(counts(), STATISTICS)
def test_rows_are_read_as_they_were_written(found: RecordCounts, statistics: dict[str, Statistic]) -> None:
    assert read_counts(decode(encode(counts_row(found)))) == found
    assert read_statistics(decode(encode(statistics_row(statistics)))) == statistics
    row = encode_statistics(statistics)
    assert (row is None) is (not statistics)
    assert row is None or decode_statistics(row) == statistics
    leaf = Leaf(plain().id, ((0, 2),), records=found.records, bytes=7, seconds=1.5, counts=found, statistics=statistics)
    account = encode_account(leaf)
    assert (account is None) is found.is_plain
    if account is not None:
        assert decode_account(account) == (found, 7, 1500)
    (again,) = decode_segment(encode_segment(Segment(1, 1.0, leaves=[leaf])), "x").leaves
    assert again.special_counts() == leaf.special_counts()
    assert again.statistics == statistics


@given(st.integers(0, 2**40))
def test_plain_counts_are_known(records: int) -> None:
    assert RecordCounts.plain(records).is_plain
    assert RecordCounts.plain(records).records == records
    for other in (
        RecordCounts(records + 1, records, {"a": 1}, {}, {"": records}),
        RecordCounts(records + 1, records + 1, {}, {}, {"": records}),
        RecordCounts(records + 1, records + 1, {}, {}, {"de": records + 1}),
    ):
        assert not other.is_plain


@each(
    ("values", "problem"),
    [
        ((2**63, 2**63), "expected a number from 0"),
        ((1.0, 1), "expected a number from 0"),
        ((1, True), "expected a number from 0"),
        ((3, 4, {"a": -1}), "expected a number from 0"),
        ((4, 3, {}, {"a": 1.0}), "expected a number from 0"),
        ((3, 3, {}, {}, {"": 4, "de": -1}), "expected a number from 0"),
        ((4, 3, {"\ud800": 1}), "lone surrogates"),
        ((4, 3, {}, {"a" * (NAME_CHARACTERS + 1): 1}), "at most 200 characters"),
        ((4, 3, {"a": 1}, {"a": 1}), "number of records read to be the sum of those kept"),
    ],
)
def test_counts_that_no_ledger_can_hold_cannot_be_made(values: tuple[Any, ...], problem: str) -> None:
    with pytest.raises(UnsupportedShapeError, match=f"these counts cannot be recorded: .*{problem}"):
        RecordCounts(*values)


def test_counts_are_told_with_sorted_names_and_those_of_nothing_without_any() -> None:
    named = {"b": 1, "a": 2, "c": 3}
    found = RecordCounts(13, 1, named, named, named).as_dict()
    assert found == {"read": 13, "kept": 1, "dropped": named, "rejected": named, "written": named}
    assert [list(found[part]) for part in ("dropped", "rejected", "written")] == [["a", "b", "c"]] * 3
    assert RecordCounts.plain(0) == RecordCounts.from_parts({}) == RecordCounts()
    assert RecordCounts.from_parts({("written", "de"): 3, ("written", ""): 0}) == RecordCounts(written={"de": 3})


def test_rows_do_not_depend_on_the_order_of_names() -> None:
    named = {"b": 2, "a": 1}
    assert counts_row(RecordCounts(7, 1, named, named, named)) == [7, 1, *[[["a", 1], ["b", 2]]] * 3]
    statistics = {"b": Statistic("top", b"x"), "a": Statistic("count", b"12")}
    assert statistics_row(statistics) == [["a", "count", "MTI="], ["b", "top", "eA=="]]


LONG = "x" * (NAME_CHARACTERS + 1)


@each(
    ("read", "row", "problem"),
    [
        (read_counts, [1, 1, [], []], "a row of 5 values"),
        (read_counts, [2, 0, [["a", 1], ["a", 2]], [], []], "expected each name once"),
        (read_counts, [1, 0, [["a"]], [], []], "a row of 2 values"),
        (read_counts, [1, 0, {"a": 1}, [], []], "expected a list"),
        (read_statistics, [["a", "count", "MTI=!"]], "expected a sketch in base64, found 'MTI=!'"),
        (read_statistics, [["a", "count", "MTI"]], "expected a sketch in base64"),
        (read_statistics, [["a", "count", 12]], "expected a text"),
        (read_statistics, [["a", 5, "MTI="]], "expected a text"),
        (read_statistics, [["a", "count", "MTI="], ["a", "top", ""]], "expected each statistic once, found 'a' again"),
        (read_statistics, [[LONG, "count", "MTI="]], "at most 200 characters"),
    ],
)
def test_a_row_of_accounts_that_cannot_be_is_refused(read: Callable[[Any], Any], row: list[Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        read(row)


MANY = {f"r{number}": 1 for number in range(MOST_NAMES + 1)}


@each(
    ("changes", "problem"),
    [
        ({"counts": RecordCounts.plain(4)}, "5 records written, as in"),
        ({"counts": RecordCounts(5 + len(MANY), 5, MANY, {}, {"": 5})}, "at most 100 names"),
        ({"statistics": dict.fromkeys(MANY, Statistic("count", b""))}, "at most 100 statistics"),
        ({"statistics": {"x" * (NAME_CHARACTERS + 1): Statistic("count", b"")}}, "at most 200 characters"),
        ({"statistics": {"x": Statistic("\ud800", b"")}}, "lone surrogates"),
        ({"statistics": {"x": Statistic("count", b"x" * (STATISTIC_BYTES + 1))}}, "at most 1048576 bytes"),
        (
            {"statistics": {f"{n}": Statistic("count", b"x" * STATISTIC_BYTES) for n in range(5)}},
            "for all sketches",
        ),
        ({"statistics": {"x": Statistic("count", "text")}}, "as bytes"),  # type: ignore[arg-type]
    ],
)
def test_what_no_ledger_can_hold_is_refused(changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(UnsupportedShapeError, match=problem):
        Leaf(plain().id, (), "published", (), 5, 1, **changes)


def test_what_a_ledger_can_just_hold_is_taken() -> None:
    names = [f"{number}" for number in range(99)] + ["x" * 200]
    counts = RecordCounts(205, 5, dict.fromkeys(names, 1), dict.fromkeys(names, 1), {"": 5})
    statistics = {name: Statistic("count", b"") for name in names}
    large = {name: Statistic("k" * 200, bytes(1_048_576)) for name in names[:4]}
    leaf = Leaf(plain().id, (), "published", (), 5, 1, counts=counts, statistics={**statistics, **large})
    assert (leaf.counts, leaf.sketch_bytes) == (counts, 4_194_304)


NO_STATISTICS = [
    b"",
    b"\1\0\0\0",
    b"\2\0\0\0[]x",
    b'\x0d\0\0\0[["a","k",2]]x',
    b'\x0d\0\0\0[["a","k",1]]xy',
    b'\x19\0\0\0[["a","k",0],["a","k",0]]',
]


@each("row", NO_STATISTICS)
def test_statistics_that_do_not_read_are_refused(row: bytes) -> None:
    with pytest.raises((ValueError, struct.error)):
        decode_statistics(row)


def test_the_rows_that_do_not_read_are_nearly_right() -> None:
    assert decode_statistics(b'\x0d\0\0\0[["a","k",1]]x') == {"a": Statistic("k", b"x")}
