"""Files of the shards of a Shar dataset, and its cuts as samples."""

from __future__ import annotations

import json
import struct
from typing import Any

import pytest

from ledgerbeam.errors import LedgerbeamError, RecordError, SourceError, UsageError
from ledgerbeam.io import JsonlFormat, OffsetFormat, Sample, TarFormat
from ledgerbeam.io.datasets.shar.format import (
    HeldRecords,
    SharSamples,
    field_kinds,
    group_shards,
    parse_fields,
    sample_cut,
)
from ledgerbeam.io.datasets.shar.payloads import AudioHeader, array_shape, audio_header
from tests.cases import each
from tests.io.datasets.shar.content import RATE, flac, npy, sample, wav


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


FIELDS = {"recording": "wav", "embedding": "vector.npy", "label": "cls"}


def test_members_become_fields_and_the_rest_a_part_of_the_cut() -> None:
    made = sample_cut(Sample("a/1", {**sample(1), "meta.json": b'{"k":[1]}'}), FIELDS)
    assert made["recording"]["wav"] == wav(1)
    assert made["recording"]["json"]["num_samples"] == 808
    assert made["embedding"] == {
        "npy": npy(1),
        "json": {"storage_type": "shar", "storage_path": "", "storage_key": "", "shape": [3]},
    }
    assert made["label"] == "1"
    (said,) = made["supervisions"]
    assert (said["text"], said["duration"], said["recording_id"]) == ("text 1 ü", 808 / RATE, "a/1")
    assert made["custom"] == {"meta.json": {"k": [1]}}
    assert (made["id"], made["type"], made["channel"], made["duration"]) == ("a/1", "MonoCut", 0, 808 / RATE)


def test_a_sample_may_bring_its_cut_and_manifests() -> None:
    cut = {"id": "a", "type": "MonoCut", "start": 1, "duration": 2, "channel": 0, "custom": {"old": 1}}
    members = {"mp3": b"???", "recording.json": b'{"id": "r"}', "json": json.dumps(cut).encode(), "txt": b"x"}
    made = sample_cut(Sample("a", members), {"recording": "mp3"})
    assert made == {**cut, "custom": {"old": 1, "txt": "x"}, "recording": {"mp3": b"???", "json": {"id": "r"}}}
    with pytest.raises(RecordError, match=r"'b'.*this id, found 'a'"):
        sample_cut(Sample("b", members), {"recording": "mp3"})


def test_several_channels_make_a_multi_cut() -> None:
    made = sample_cut(Sample("a", {"wav": wav(0, channels=2)}), {"recording": "wav"})
    assert (made["type"], made["channel"], made["duration"]) == ("MultiCut", [0, 1], 0.1)


@each(
    ("members", "message"),
    [
        ({"mp3": b"ID3"}, "header of WAV or FLAC.*'recording.json'"),
        ({"txt": b"words"}, "a cut needs a length.*found txt"),
        ({"mp3": b"", "recording.json": b"[]"}, "expected a manifest under 'recording.json'"),
        ({"mp3": b"", "recording.json": b"{"}, "expected JSON under 'recording.json'"),
        ({"mp3": b"", "recording.json": b'{"duration": 1}', "png": b"\x89PNG"}, "'png' is neither.*--fields NAME=png"),
    ],
)
def test_what_would_be_lost_or_made_up_is_refused(members: dict[str, bytes], message: str) -> None:
    with pytest.raises(RecordError, match=message):
        sample_cut(Sample("a", members), {"recording": "mp3"})


def test_fields_are_read_from_text() -> None:
    assert parse_fields("recording=.wav,label=cls") == {"recording": "wav", "label": "cls"}
    assert field_kinds(FIELDS) == {"recording": "tar", "embedding": "tar", "label": "jsonl"}
    assert parse_fields("") == {}
    for wrong in ("recording", "a=wav,a=flac", "a=wav,b=wav", "cuts=wav", "a-b=wav", "a="):
        with pytest.raises(UsageError, match="field"):
            parse_fields(wrong)


def test_headers_tell_rate_channels_and_length() -> None:
    assert audio_header(wav(3, 2), "wav") == AudioHeader(RATE, 2, 824)
    assert audio_header(flac(44100, 8, 2**35), "flac") == AudioHeader(44100, 8, 2**35)
    piped = bytearray(wav(3))
    piped[40:44] = b"\xff" * 4  # as written to a pipe: to the end
    assert audio_header(bytes(piped), "wav").samples == 824
    noted = wav(3)[:36] + b"LIST" + struct.pack("<I", 3) + b"abc\0" + wav(3)[36:]  # a chunk of odd length before it
    assert audio_header(noted, "wav").samples == 824


@each(
    "data",
    [b"", b"RIFF", wav(1)[:60], wav(1)[:30], flac(0, 1, 10), flac(8000, 1, 0), flac(8000, 1, 1)[:30], b"OggS" * 20],
)
def test_audio_that_does_not_tell_is_refused(data: bytes) -> None:
    with pytest.raises(RecordError, match="'wav': expected the header"):
        audio_header(data, "wav")


@each("data", [b"", npy(3)[:-1], npy(3) + b"\0", npy(3)[:40], b"\x93NUMPY\x09\0" + npy(3)[8:]])
def test_arrays_that_are_not_whole_are_refused(data: Any) -> None:
    assert array_shape(npy(3), "npy") == [5]
    with pytest.raises(RecordError, match="'npy': expected"):
        array_shape(data, "npy")
