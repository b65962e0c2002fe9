"""Values are read as they were written, on this host and on every other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ledgerbeam.errors import LedgerbeamError, UnsupportedShapeError, UsageError
from ledgerbeam.io.storage.objects import ObjectFolder
from ledgerbeam.ledger.lmdb.store import LmdbStore
from ledgerbeam.ledger.model import values
from ledgerbeam.ledger.model.accounts import RecordCounts
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
from ledgerbeam.ledger.remote.replay import SnapshotManifest, decode_manifest, encode_manifest
from ledgerbeam.ledger.remote.segment import Segment, decode_segment, encode_segment
from ledgerbeam.ledger.remote.sink import RemoteSink
from tests.cases import each
from tests.ledger.builders import plain
from tests.ledger.conformance import JOB
from tests.ledger.remote.test_store import Hosts
from tests.ledger.views import picture

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
def test_a_control_decodes_to_what_was_encoded(
    number: int, kind: Any, at: float, texts: tuple[str, str], ids: list[bytes]
) -> None:
    token, command = texts
    fields: dict[str, Any] = {
        "run": {"info": {"command": command}, "sources": []},
        "forget": {"sources": ids, "failures_only": True},
        "accept": {"job": JOB, "sources": []},
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


SNAPSHOT = "snapshots/000007-000001-abcdabcd"


@pytest.mark.parametrize(
    "manifest",
    [
        SnapshotManifest(SNAPSHOT, -1, {}, []),
        SnapshotManifest(SNAPSHOT, 1, {"x": "ab" * 16}, []),
        SnapshotManifest(SNAPSHOT, 1, {}, ["../victim"]),
        SnapshotManifest(SNAPSHOT, 1, {f"{SNAPSHOT}/000001.seg": 1}, []),  # type: ignore[dict-item]
    ],
)
def test_a_manifest_that_readers_refuse_is_not_written(manifest: SnapshotManifest) -> None:
    with pytest.raises(ValueError, match="expected"):
        encode_manifest(manifest)


def test_a_manifest_decodes_to_what_was_encoded() -> None:
    manifest = SnapshotManifest(SNAPSHOT, 7, {f"{SNAPSHOT}/000001.seg": "ab" * 16}, ["segments/000001/t-a.seg"])
    assert decode_manifest(encode_manifest(manifest), f"here/{SNAPSHOT}.json") == manifest


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
    "id": lambda: Failure(b"short", (), "task", "reason"),
    "lineage": lambda: Failure(plain().id, ((0, 2**63),), "task", "reason"),
    "reason": lambda: Failure(plain().id, (), "task", ValueError("x")),  # type: ignore[arg-type]
}


@each("name", BAD)
def test_a_value_that_no_ledger_can_hold_is_refused_where_it_is_made(name: str) -> None:
    with pytest.raises(UnsupportedShapeError, match="cannot be recorded: expected"):
        BAD[name]()


@pytest.mark.parametrize("source", [("\ud800", 1, ""), ("a", -1, ""), ("a", 1, 5), ("a", True, "")])
def test_a_source_that_no_ledger_can_hold_is_refused(source: tuple[Any, ...]) -> None:
    with pytest.raises(UsageError, match="cannot be recorded: expected"):
        Source(*source)


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
def test_counts_of_a_leaf_are_special_if_they_say_more_than_its_records(
    counts: RecordCounts | None, special: bool
) -> None:
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
        with pytest.raises(ValueError, match="expected the set-ups of a run"):
            read_set_ups({other: row[other] for other in row if other != name})
