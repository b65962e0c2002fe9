"""Samples as cuts of a Shar folder, and properties from the headers of payloads."""

from __future__ import annotations

import json
import struct
from typing import Any

import pytest

from ledgerbeam.errors import RecordError, UsageError
from ledgerbeam.io import Sample
from ledgerbeam.io.datasets.shar.format import field_kinds, parse_fields, sample_cut
from ledgerbeam.io.datasets.shar.payloads import AudioHeader, array_shape, audio_header
from tests.cases import each
from tests.io.datasets.shar.content import RATE, npy, sample, wav

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


def flac(rate: int, channels: int, samples: int) -> bytes:
    packed = rate << 44 | (channels - 1) << 41 | 15 << 36 | samples
    return b"fLaC\x80\0\0\x22" + bytes(10) + packed.to_bytes(8) + bytes(16)


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
