"""Fields of Shar folders that are given as arrays: encoded, with manifests that are made of them."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ledgerbeam.errors import RecordError, UsageError
from ledgerbeam.io.datasets.audio import Audio, decode_audio
from ledgerbeam.io.datasets.shar.payloads import Frames
from ledgerbeam.io.datasets.shar.reader import SharReader
from ledgerbeam.io.datasets.shar.writer import SharWriter
from ledgerbeam.io.json_values import loads
from tests.io.datasets.shar.content import wav

TONE = Audio(np.linspace(-0.5, 0.5, 800, dtype=np.float32), 8000)


def written(folder: Path, fields: dict[str, Any], *cuts: dict[str, Any]) -> list[dict[str, Any]]:
    with SharWriter(str(folder), fields) as writer:
        for cut in cuts:
            writer.write(cut)
    with_manifests = []
    for cut in SharReader(str(folder)):
        payloads = {name: value for name, value in cut.items() if name in fields and fields[name] != "jsonl"}
        manifests = {f"{name}.json": loads(value["json"]) for name, value in payloads.items()}
        with_manifests.append({**cut, **manifests})
    return with_manifests


def test_audio_makes_its_manifest_and_its_cut(tmp_path: Path) -> None:
    (found,) = written(tmp_path, {"recording": "wav"}, {"id": "a", "recording": TONE})
    assert found["recording.json"] == {
        "id": "a",
        "sources": [{"type": "shar", "channels": [0], "source": ""}],
        "sampling_rate": 8000,
        "num_samples": 800,
        "duration": 0.1,
        "channel_ids": [0],
    }
    assert {name: found[name] for name in ("start", "duration", "channel", "supervisions", "type")} == {
        "start": 0,
        "duration": 0.1,
        "channel": 0,
        "supervisions": [],
        "type": "MonoCut",
    }
    heard = decode_audio(found["recording"]["wav"])
    assert heard.sampling_rate == 8000
    assert np.abs(heard.samples[0] - TONE.samples).max() <= 1 / 32768


def test_several_channels_are_a_multi_cut(tmp_path: Path) -> None:
    both = (np.stack([TONE.samples, -TONE.samples]), 8000)
    (found,) = written(tmp_path, {"recording": "wav"}, {"id": "a", "recording": both, "supervisions": [{"id": "s"}]})
    assert (found["type"], found["channel"], found["supervisions"]) == ("MultiCut", [0, 1], [{"id": "s"}])
    assert found["recording.json"]["channel_ids"] == [0, 1]
    assert decode_audio(found["recording"]["wav"]).samples.shape == (2, 800)


def test_a_cut_that_is_given_stays_as_it_is(tmp_path: Path) -> None:
    cut = {"id": "a", "type": "MonoCut", "start": 0.01, "duration": 0.05, "channel": 0}
    (found,) = written(tmp_path, {"recording": "wav"}, {**cut, "recording": TONE})
    assert {name: found[name] for name in cut} == cut
    assert "supervisions" not in found


def test_arrays_have_their_shape_and_frames_their_times(tmp_path: Path) -> None:
    cut = {"id": "a", "vector": np.arange(4, dtype=np.float32), "track": Frames(np.ones((10, 3)), 0.01), "label": 7}
    (found,) = written(tmp_path, {"vector": "numpy", "track": "numpy", "label": "jsonl"}, cut, {"id": "b"})[:1]
    place = {"storage_type": "shar", "storage_path": "", "storage_key": ""}
    assert found["vector.json"] == {**place, "shape": [4]}
    times = {"temporal_dim": 0, "frame_shift": 0.01, "start": 0}
    assert found["track.json"] == {"array": {**place, "shape": [10, 3]}, **times}
    assert found["custom"]["vector"] == found["vector.json"]
    np.testing.assert_array_equal(np.load(io.BytesIO(found["vector"]["npy"])), cut["vector"])
    assert found["label"] == 7


def test_missing_values_and_payloads_that_are_encoded_already_are_taken(tmp_path: Path) -> None:
    manifest = {"id": "mine", "sampling_rate": 8000, "num_samples": 800, "duration": 0.1}
    cuts: list[dict[str, Any]] = [
        {"id": "a", "recording": None},
        {"id": "b", "recording": wav(1)},
        {"id": "c", "recording": {"wav": wav(2), "json": manifest}},
    ]
    first, second, third = written(tmp_path, {"recording": "wav"}, *cuts)
    assert "recording" not in first
    assert (second["recording"]["wav"], second["recording.json"]["num_samples"]) == (wav(1), 808)
    assert (third["recording"]["wav"], third["recording.json"]) == (wav(2), manifest)


@pytest.mark.parametrize(
    ("fields", "cut", "message"),
    [
        ({"recording": "wav"}, {"recording": np.zeros(5)}, r"'a'.*'recording': expected Audio\(samples"),
        ({"recording": "wav"}, {"recording": b"no audio"}, "expected the header of WAV or FLAC"),
        ({"recording": "wav"}, {"recording": TONE, "duration": 0.2}, r"expected audio of at least 0\.2 s"),
        ({"recording": "wav"}, {"recording": TONE, "start": 0.06, "duration": 0.06}, "expected audio of at least 0.12"),
        ({"vector": "numpy"}, {"vector": [1, 2]}, "expected an array, Frames, or a payload"),
        ({"vector": "numpy"}, {"vector": np.array([None])}, "expected an array of numbers"),
        ({"vector": "numpy"}, {"vector": Frames(np.zeros(3), 0.01, 1)}, "temporal_dim=1"),
        ({"vector": "numpy"}, {"vector": Frames(np.zeros(3), 0.0)}, "frame_shift=0.0"),
    ],
)
def test_what_does_not_fit_is_refused_and_the_writer_goes_on(
    tmp_path: Path, fields: dict[str, Any], cut: dict[str, Any], message: str
) -> None:
    with SharWriter(str(tmp_path), fields) as writer:
        with pytest.raises(RecordError, match=message):
            writer.write({"id": "a", **cut})
        writer.write({"id": "b"})
    assert [cut["id"] for cut in SharReader(str(tmp_path))] == ["b"]


def test_a_form_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    fields: dict[str, Any] = {"recording": "aiff"}
    with pytest.raises(UsageError, match="'tar', 'jsonl', 'wav', 'flac', 'mp3', 'opus' or 'numpy', found 'aiff'"):
        SharWriter(str(tmp_path), fields)


def test_a_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "soundfile", None)
    with SharWriter(str(tmp_path), {"recording": "flac"}) as writer:
        with pytest.raises(UsageError, match=r"pip install .*\[audio\]'"):
            writer.write({"id": "a", "recording": TONE})
        writer.write({"id": "b"})
