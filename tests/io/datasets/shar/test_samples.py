"""Files of the shards of a Shar dataset, and its cuts as samples."""

from __future__ import annotations

from typing import Any

import pytest

from ledgerbeam.errors import LedgerbeamError, RecordError, SourceError
from ledgerbeam.io import JsonlFormat, OffsetFormat, Sample, TarFormat
from ledgerbeam.io.datasets.shar.format import HeldRecords, SharSamples, group_shards, sample_cut
from tests.cases import each


def test_files_of_one_number_or_name_make_a_shard() -> None:
    names = [
        *("a/recording.000001.tar", "a/cuts.000001.jsonl", "a/cuts.000001.jsonl.idx", "a/README.md"),
        *("a/cuts.000000.jsonl.gz", "a/recording.000000.tar", "a/recording.000000.tar.gz"),
        *("b/x.tar-0000000000.cuts.jsonl", "b/x.tar-0000000000.label.jsonl"),
        "c/cuts.jsonl",
    ]
    assert group_shards(names) == group_shards(names[::-1])
    assert group_shards(names) == [
        ["a/cuts.000000.jsonl.gz", "a/recording.000000.tar"],
        ["a/cuts.000001.jsonl", "a/recording.000001.tar"],
        ["b/x.tar-0000000000.cuts.jsonl", "b/x.tar-0000000000.label.jsonl"],
        ["c/cuts.jsonl"],
    ]


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["a/recording.0.tar"], "a/recording.0.tar: expected cuts beside this file"),
        (["a/cuts.0.jsonl", "a/cuts.1.jsonl", "a/x.1.tar"], "some with and some without 'x'"),
        (["a/README.md"], "found none"),
    ],
)
def test_a_shard_that_lacks_a_file_is_told(names: list[str], message: str) -> None:
    with pytest.raises(LedgerbeamError, match=message):
        group_shards(names)


def held(url: str, kind: OffsetFormat, records: list[Any]) -> HeldRecords:
    return HeldRecords(url, kind, kind.split_raw(kind.encode(records)[0].data, url))


def samples(cut: object, *pairs: Sample) -> SharSamples:
    fields = {"recording": held("a/recording.0.tar", TarFormat("pairs"), list(pairs))}
    return SharSamples(held("a/cuts.0.jsonl", JsonlFormat(), [cut]), fields)


def test_a_sample_of_a_cut_becomes_the_cut_again() -> None:
    cut = {"id": "a/1", "type": "MonoCut", "start": 0, "duration": 1, "custom": {"x": 1}}
    pair = Sample("a/1", {"wav": b"RIFF", "json": b'{"id":"r"}'})
    (found,) = samples(cut, pair)[:]
    assert found == {"json": found["json"], "recording.wav": b"RIFF", "recording.json": b'{"id":"r"}'}
    assert sample_cut(found, {"recording": "recording.wav"}) == {
        **cut,
        "recording": {"wav": b"RIFF", "json": {"id": "r"}},
    }


def test_a_field_without_a_value_has_no_member() -> None:
    (found,) = samples({"id": "a"}, Sample("a", {"nodata": b"", "nometa": b""}))[:]
    assert list(found) == ["json"]


@each("cut", [3, None, [], {}, {"id": 3}, {"id": "b"}])
def test_records_of_another_cut_are_told(cut: object) -> None:
    with pytest.raises(RecordError, match="record 0: expected"):
        samples(cut, Sample("a", {"wav": b"", "json": b"{}"}))[0]


def test_a_field_of_another_length_is_told() -> None:
    with pytest.raises(SourceError, match=r"a/recording.0.tar: expected 1 records, as many as cuts"):
        samples({"id": "a"}, *(Sample(key, {"wav": b"", "json": b"{}"}) for key in "ab"))
