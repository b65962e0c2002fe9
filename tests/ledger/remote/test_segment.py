"""Segments and control objects are read as they were written, and other content is refused."""

from __future__ import annotations

from dataclasses import replace
from hashlib import blake2b
from struct import pack
from typing import Any, cast

import pytest

from ledgerbeam.errors import LedgerDamagedError, LedgerVersionError, UnsupportedShapeError
from ledgerbeam.ledger.model.accounts import RecordCounts, Statistic
from ledgerbeam.ledger.model.identity import node_id
from ledgerbeam.ledger.model.job import LEDGER_FORMAT, Job
from ledgerbeam.ledger.model.rows import Failure, Leaf, Mark, Output
from ledgerbeam.ledger.model.task import Source
from ledgerbeam.ledger.model.values import decode, encode
from ledgerbeam.ledger.remote.controls import (
    HIGHEST,
    Control,
    control_name,
    control_number,
    decode_control,
    decode_ledger,
    encode_control,
    encode_ledger,
    number_gap_error,
)
from ledgerbeam.ledger.remote.segment import MAGIC, Segment, decode_segment, encode_segment, seal, unseal
from tests.cases import each
from tests.ledger.builders import ONE, leaf_of, plain

ID, NODE = plain().id, node_id(plain().id, ())

WHOLE = Segment(
    7,
    1.5,
    "job",
    sources=[plain(), Source.pack([plain("b"), plain("c")])],
    leaves=[leaf_of(plain(), ((1, 2), (0, 1))), Leaf(ID, (), "published", (Output("a", 1, "s", 2, 3, 4),), 5, 6, 7.5)],
    failures=[Failure(ID, ((0, 2),), "task", "reason", "error", broke=True)],
    deaths=[Mark(ID, NODE, "task")],
    dropped=["a/b"],
    runs={"000001": {"ended": 2.0, "outcome": "done", "tidied": True, "listed": None}},
    back=[b"b" * 16],
    gone=[b"g" * 16],
    state={"durations": [[1, 2]]},
)


def test_every_field_of_a_segment_comes_back() -> None:
    assert decode_segment(encode_segment(WHOLE), "here") == WHOLE
    said: list[list[bytes] | None] = [None, []]
    for gone in said:
        found = decode_segment(encode_segment(Segment(0, 0.0, gone=gone)), "here")
        assert (found.number, found.gone, found.runs, found.state) == (0, gone, None, None)


def test_a_payload_has_the_fields_that_are_not_empty() -> None:
    fields = decode(unseal(encode_segment(Segment(3, 1.0)), "here"))
    assert fields == {"number": 3, "at": 1.0, "job": None}


PLAIN = leaf_of(plain())
COUNTED = replace(PLAIN, counts=RecordCounts(7, 5, {"why": 2}, {}, {"": 5}))
SKETCHED = replace(PLAIN, statistics={"length": Statistic("count", b"5")})
BOTH = replace(SKETCHED, counts=COUNTED.counts)


@pytest.mark.parametrize(("leaf", "values"), [(PLAIN, 7), (COUNTED, 8), (SKETCHED, 9), (BOTH, 9)])
def test_a_leaf_has_its_counts_and_statistics_last_and_only_if_it_has_some(leaf: Leaf, values: int) -> None:
    data = encode_segment(Segment(1, 1.0, leaves=[leaf]))
    (found,) = decode_segment(data, "here").leaves
    assert (found, found.counts, dict(found.statistics)) == (leaf, leaf.counts, dict(leaf.statistics))
    (row,) = decode(unseal(data, "here"))["leaves"]
    assert len(row) == values
    assert (None in row[7:]) == (leaf is SKETCHED)


def test_a_segment_says_that_its_leaves_were_recorded_before() -> None:
    data = encode_segment(Segment(1, 1.0, leaves=[PLAIN], again=True))
    assert decode_segment(data, "here").again is True
    assert decode_segment(encode_segment(Segment(1, 1.0, leaves=[PLAIN])), "here").again is False


BAD_FIELDS: tuple[dict[str, Any], ...] = (
    *({"other": 1}, {"listed": -1}, {"tidied": 1}, {"outcome": 1}, {"ended": "now"}, {"began": -1}),
    {"listing_finished": None, "info": []},
)
BAD_SEGMENTS: list[dict[str, Any]] = [
    *({"number": number} for number in (-1, 1.0)),
    *({"at": at} for at in (-1.0, float("nan"))),
    *({"dropped": names} for names in (["../a"], [1])),
    *({"runs": {run: {}}} for run in ("1", "0000000000001")),
    *({"runs": {"000001": fields}} for fields in BAD_FIELDS),
    *({"job": 5}, {"deaths": [Mark(b"short", NODE, "t")]}, {"back": [b"short"]}, {"gone": [b"short"]}, {"again": 1}),
]


@each("fields", BAD_SEGMENTS)
def test_a_segment_that_cannot_be_is_not_made(fields: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedShapeError, match="cannot be recorded: "):
        Segment(**{"number": 1, "at": 1.0, **fields})


BAD_LEAVES: list[list[Any]] = [
    [ID.hex(), [], "published", 1, 1, 0.0],
    [ID.hex(), {}, "published", 1, 1, 0.0, []],
    [ID.hex(), [], "other", 1, 1, 0.0, []],
    ["00", [], "published", 1, 1, 0.0, []],
    [ID.hex(), [], "published", 1, 1, 0.0, [["../a", 1, "s", 1, 0]]],
    [ID.hex(), [], "published", 1, 1, 0.0, [["a", 1, "s", 1]]],
    [ID.hex(), [], "filtered", 1, 1, 0.0, [["a", 1, "s", 1, 0]]],
    [ID.hex(), [], "published", 1, 1, 0.0, [], []],
    [ID.hex(), [], "published", 1, 1, 0.0, [], None, None],
    [ID.hex(), [], "published", 1, 1, 0.0, [], None, {}, None],
]
BAD_SOURCES: list[list[Any]] = [["/a", 1], ["/a", 1, "v", [], 5], ["/a", -1, "v"], ["/a", 1, "v", [["/b", 1]]]]
BAD_FAILURES: tuple[tuple[Any, ...], ...] = ([], "t", "r", "e"), ([], "t", "r", "e", 1), ([[1]], "t", "r", "e", True)
BAD_DEATHS: tuple[tuple[Any, ...], ...] = ((NODE.hex(),), ("00", "t"), (NODE.hex(), 5))
BAD_PAYLOADS: list[dict[str, Any]] = [
    *({"number": number} for number in (-1, None)),
    *({"sources": sources} for sources in ({}, *([source] for source in BAD_SOURCES))),
    *({"leaves": [leaf]} for leaf in BAD_LEAVES),
    *({"failures": [[ID.hex(), *rest]]} for rest in BAD_FAILURES),
    *({"deaths": [[ID.hex(), *rest]]} for rest in BAD_DEATHS),
    *({"dropped": names} for names in ("a", ["a/../b"])),
    *({"runs": []}, {"runs": {"x": {}}}, {"runs": {"000001": []}}, {"state": None}, {"state": []}),
    *({"gone": sources} for sources in (None, ["00"])),
    *({"at": "now"}, {"job": 5}, {"back": ["00"]}, {"again": 1}),
]


@each("fields", BAD_PAYLOADS)
def test_a_payload_that_cannot_be_is_named(fields: dict[str, Any]) -> None:
    with pytest.raises(LedgerDamagedError, match="here: this object of the ledger is damaged: "):
        decode_segment(seal(encode({"number": 1, "at": 1.0, **fields})), "here")


def test_only_a_whole_object_is_unsealed() -> None:
    payload = b'{"number":1}'
    data = seal(payload)
    assert unseal(data, "here") == payload
    assert unseal(seal(b""), "here") == b""
    digest = blake2b(payload, digest_size=16).digest()
    for damaged in (
        *(data[:length] for length in range(len(data))),
        data + b"x",
        b"LBSEG" + data[5:],
        MAGIC[:-1] + b"\0" + data[8:],
        pack("<8sQ16s", MAGIC, len(payload) + 1, digest) + payload,
        pack("<8sQ16s", MAGIC, len(payload), b"d" * 16) + payload,
    ):
        with pytest.raises(LedgerDamagedError, match="here: "):
            unseal(damaged, "here")
    with pytest.raises(LedgerVersionError, match=r"here: it has version 2, and this ledgerbeam reads versions up to 1"):
        unseal(MAGIC[:-1] + b"\x02" + data[8:], "here")
    with pytest.raises(LedgerDamagedError, match="as its first bytes, found"):
        unseal(b"another\x02" + data[8:], "here")


# Control objects

BAD_CONTROLS: list[dict[str, Any]] = [
    *({"number": number} for number in (0, HIGHEST + 1)),
    *({"kind": kind} for kind in ("other", None, "accept", "restart")),
    *({"at": -1.0}, {"token": None}, {"info": []}, {"failures_only": 1}, {"sources": [b"short"]}),
    *({"job": ONE}, {"kind": "forget", "job": ONE}),
]


@each("fields", BAD_CONTROLS)
def test_a_control_that_cannot_be_is_not_made(fields: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedShapeError, match="cannot be recorded: "):
        Control(**{"number": 1, "kind": "run", "at": 1.0, "token": "t", **fields})


@each(
    "control",
    [
        Control(HIGHEST, "run", 1.0, "t", info={"host": "here"}),
        Control(1, "forget", 1.0, "t", sources=[ID, b"x" * 16], failures_only=True),
        Control(1, "forget", 1.0, "t", sources=[]),
        Control(2, "accept", 1.0, "t", job=ONE),
        Control(3, "restart", 1.0, "t", job=ONE),
    ],
)
def test_every_kind_of_control_comes_back(control: Control) -> None:
    found = decode_control(encode_control(control), "here")
    assert encode_control(found) == encode_control(control)
    assert (found.kind, found.number, list(found.sources)) == (control.kind, control.number, list(control.sources))
    assert (found.failures_only, found.job, found.info) == (control.failures_only, control.job, control.info)


FIELDS: dict[str, Any] = {"format": LEDGER_FORMAT, "number": 1, "kind": "run", "at": 1.0, "token": "t"}


@each(
    "fields",
    [
        *({"format": number} for number in (0, None, True)),
        *({"number": 0}, {"kind": "other"}, {"token": 5}, {"info": None}, {"failures_only": None}),
        *({"sources": {}}, {"sources": ["00"]}),
        *({"kind": "accept"}, {"kind": "accept", "job": None}),
        {"kind": "accept", "job": {"pipeline": 5, "parameters": {}}},
        {"kind": "accept", "job": {"pipeline": "map", "parameters": []}},
    ],
)
def test_a_control_whose_values_cannot_be_is_named(fields: dict[str, Any]) -> None:
    with pytest.raises(LedgerDamagedError, match="here: this object of the ledger is damaged: "):
        decode_control(encode({**FIELDS, **fields}), "here")


def test_objects_of_a_newer_format_are_refused_as_such() -> None:
    newer = rf"here: it has format {LEDGER_FORMAT + 1}, and this ledgerbeam reads formats up to {LEDGER_FORMAT}"
    about = {"ledger": "token", "pipeline": "map", "parameters": {}}
    for read, fields in ((decode_control, FIELDS), (decode_ledger, about)):
        with pytest.raises(LedgerVersionError, match=newer):
            read(encode({**fields, "format": LEDGER_FORMAT + 1}), "here")


@each("fields", [{"ledger": None}, {"pipeline": None}, {"parameters": None}, {"format": None}, {"format": 0}])
def test_a_ledger_that_does_not_say_its_job_is_named(fields: dict[str, Any]) -> None:
    known = decode(encode_ledger("token", ONE))
    assert decode_ledger(encode(known), "here") == ("token", ONE)
    assert known["fingerprint"] == ONE.fingerprint
    with pytest.raises(LedgerDamagedError, match="here: "):
        decode_ledger(encode({**known, **fields}), "here")


def test_a_job_whose_name_is_no_text_is_not_recorded() -> None:
    with pytest.raises(UnsupportedShapeError, match="this job cannot be recorded: "):
        encode_ledger("token", Job(cast("str", 5), {}))


def test_a_control_is_known_by_its_name() -> None:
    control = Control(12, "run", 1.0, "ab12")
    assert control.run == "000012"
    assert control_name(control, exclusive=True) == "controls/000012.json"
    assert control_name(control, exclusive=False) == "controls/000012-ab12.json"
    for name, number in (
        ("controls/000012.json", 12),
        ("controls/000012-ab12.json", 12),
        ("controls/1000000.json", 1_000_000),
        (f"controls/{HIGHEST}.json", HIGHEST),
        (f"controls/{HIGHEST}0.json", None),
        ("controls/0000012.json", None),
        ("controls/12.json", None),
        ("controls/000012.jsonx", None),
        ("other/000012.json", None),
        ("controls/000012-xyz.json", None),
    ):
        assert control_number(name) == number


def test_what_may_follow_is_said() -> None:
    said = str(number_gap_error("here", 9, 4))
    assert "found 9;" in said
    assert "expected a number up to 5 in a control object, up to 4 in another object" in said
