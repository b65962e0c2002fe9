"""Writing Shar folders: round trips, fields given as arrays, refused input, and files after a failure."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import tarfile
import time
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest

import ledgerbeam
from ledgerbeam.errors import NotIndexableError, RecordError, SourceError, SourceNotFoundError, UsageError
from ledgerbeam.io import JsonlReader
from ledgerbeam.io.datasets.audio import Audio, decode_audio
from ledgerbeam.io.datasets.shar.payloads import Frames
from ledgerbeam.io.datasets.shar.reader import FieldKind, SharReader, write_shar_fields
from ledgerbeam.io.datasets.shar.writer import SharWriter
from ledgerbeam.io.idxpack.reader import IndexPack
from ledgerbeam.io.idxpack.writer import PackSources, write_index_pack
from ledgerbeam.io.index.newlines import build_jsonl_index
from ledgerbeam.io.json_values import loads
from ledgerbeam.io.storage.client import filesystem
from ledgerbeam.io.tar.reader import build_tar_index
from ledgerbeam.iterators import Shar
from tests.io.datasets.shar.content import cut, npy, recording, wav

FIELDS: dict[str, FieldKind] = {"recording": "tar", "embedding": "tar", "label": "jsonl"}


def write(folder: Path, count: int = 23, **kwargs: Any) -> str:
    with SharWriter(str(folder), FIELDS, **{"shard_size": 10, **kwargs}) as writer:
        for number in range(count):
            writer.write(cut(number))
    return writer.url


def test_cuts_are_read_back_with_their_fields(tmp_path: Path) -> None:
    with SharReader(write(tmp_path / "shar")) as reader:
        assert reader.fields == ("embedding", "label", "recording")
        found = reader[:]
    assert len(found) == 23
    for number, read in enumerate(found):
        assert read["recording"] == {"wav": wav(number), "json": read["recording"]["json"]}
        assert json.loads(read["recording"]["json"]) == recording(number)
        assert read.get("embedding", {}).get("npy") == (npy(number) if number % 3 != 2 else None)
        assert read.get("label") == (f"label-{number}" if number % 5 != 4 else None)
        plain = {"id", "start", "duration", "channel", "type", "supervisions"}
        assert {name: read[name] for name in plain} == {name: cut(number)[name] for name in plain}


def test_what_was_read_is_written_as_the_same_bytes(tmp_path: Path) -> None:
    first, again = write(tmp_path / "first"), tmp_path / "again"
    with SharWriter(str(again), FIELDS, shard_size=10) as writer:
        for record in SharReader(first):
            writer.write(record)
    files = {path.name: path.read_bytes() for path in Path(first).iterdir()}
    assert files == {path.name: path.read_bytes() for path in again.iterdir()}
    assert len(files) == 3 * 4 * 2


def test_the_layout_is_that_of_lhotse(tmp_path: Path) -> None:
    folder = Path(write(tmp_path / "shar"))
    with tarfile.open(folder / "embedding.000000.tar") as archive:
        assert archive.getnames()[:6] == [
            *("cut-000.npy", "cut-000.json", "cut-001.npy", "cut-001.json", "cut-002.nodata", "cut-002.nometa")
        ]
    rows = [json.loads(line) for line in (folder / "label.000000.jsonl").read_text().splitlines()]
    assert rows[3:5] == [{"cut_id": "cut-003", "label": "label-3"}, {"cut_id": "cut-004"}]
    first = JsonlReader(str(folder / "cuts.000001.jsonl"))[0]
    assert first["recording"] == recording(10)
    assert first["custom"] == {"embedding": cut(10)["embedding"]["json"]}
    for path in folder.glob("*.jsonl"):
        assert (folder / f"{path.name}.idx").read_bytes() == build_jsonl_index(str(path)).tobytes()
    for path in folder.glob("*.tar"):
        assert (folder / f"{path.name}.idx").read_bytes() == build_tar_index(str(path), None, "pairs").tobytes()


def test_names_that_are_long_or_not_ascii_need_no_pax_header(tmp_path: Path) -> None:
    names = ["größe-漢字", "a-folder-with-a-name/" * 6 + "clip"]
    with SharWriter(str(tmp_path), {"recording": "tar"}) as writer:
        for number, name in enumerate(names):
            writer.write(cut(2 + 3 * number, name))
    assert [record["id"] for record in SharReader(str(tmp_path))] == names
    with tarfile.open(tmp_path / "recording.000000.tar") as archive:
        assert [member.name for member in archive][::2] == [f"{name}.wav" for name in names]
        assert not any(member.pax_headers for member in archive.getmembers())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"id": None}, "expected an 'id'"),
        ({"id": "a//b"}, "shortest form, found 'a//b'"),
        ({"recording": recording(1)}, r"'recording'.*found id, sources"),
        ({"recording": {"wav": b"", "json": b"{"}}, "manifest is not JSON"),
        ({"recording": {"wav": b"", "json": [1]}}, "expected an object as manifest"),
        ({"label": object()}, "cut 1: it cannot be written as JSON"),
        ({"other": {"wav": b""}}, "cut 1.*add values with payloads to `fields`"),
    ],
)
def test_bad_cuts_are_refused_and_others_written(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    with SharWriter(str(tmp_path), FIELDS) as writer:
        writer.write(cut(0))
        with pytest.raises(RecordError, match=message) as caught:
            writer.write({**cut(1), **change})
        assert str(tmp_path) in str(caught.value)
        writer.write(cut(2))
    assert [record["id"] for record in SharReader(str(tmp_path))] == ["cut-000", "cut-002"]


def test_a_body_that_raises_leaves_the_shards_that_were_full(tmp_path: Path) -> None:
    def fail() -> None:
        with SharWriter(str(tmp_path), FIELDS, shard_size=2) as writer:
            for number in range(3):
                writer.write(cut(number))
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        fail()
    assert {path.name.split(".")[1] for path in tmp_path.iterdir()} == {"000000"}
    assert len(SharReader(str(tmp_path))) == 2


@pytest.mark.parametrize(
    ("fields", "found"),
    [
        ({"a.b": "tar"}, "field"),
        ({"cuts": "jsonl"}, "field"),
        ({"label": "aiff"}, "field .*'tar', 'jsonl', 'wav', 'flac', 'mp3', 'opus' or 'numpy', found 'aiff'"),
    ],
)
def test_a_field_that_cannot_be_is_refused(tmp_path: Path, fields: dict[str, FieldKind], found: str) -> None:
    with pytest.raises(UsageError, match=found):
        SharWriter(str(tmp_path / "none"), fields)
    assert not (tmp_path / "none").exists()


def test_a_list_of_fields_is_a_dataset_too(tmp_path: Path) -> None:
    folder = write(tmp_path / "shar")
    shards = {
        name: [f"{folder}/{name}.{n:06d}.{kind}" for n in (2, 0)] for name, kind in [*FIELDS.items(), ("cuts", "jsonl")]
    }
    url = str(tmp_path / "fields.json")
    write_shar_fields(url, shards)
    assert [record["id"] for record in SharReader(url, ["label"])][:4] == ["cut-020", "cut-021", "cut-022", "cut-000"]
    (tmp_path / "moved.json").write_text(json.dumps({"cuts": ["shar/cuts.000001.jsonl"]}))
    assert SharReader(str(tmp_path / "moved.json"))[0]["id"] == "cut-010"
    with pytest.raises(UsageError, match="as many shards"):
        write_shar_fields(url, {**shards, "label": []})
    for content, error in [("{", SourceError), ("[]", SourceError), ('{"a": ["b"]}', SourceNotFoundError)]:
        (tmp_path / "bad.json").write_text(content)
        with pytest.raises(error, match=r"bad\.json"):
            SharReader(str(tmp_path / "bad.json"))
    (tmp_path / "bad.json").write_text('{"cuts": ["a.jsonl"], "label": []}')
    with pytest.raises(SourceError, match="1 shards of 'label'"):
        SharReader(str(tmp_path / "bad.json"))


def test_objects_hold_the_same_bytes(tmp_path: Path) -> None:
    folder = Path(write(tmp_path / "shar"))
    store = filesystem("memory://")
    try:
        with SharWriter("memory://shar-test/a", FIELDS, shard_size=10) as writer:
            for record in SharReader(str(folder)):
                writer.write(record)
        found = {path.rpartition("/")[2]: store.cat_file(path) for path in store.find("/shar-test")}
        assert found == {path.name: path.read_bytes() for path in folder.iterdir()}
        urls = [f"{writer.url}/recording.{number:06d}.tar" for number in range(3)]
        write_index_pack("memory://shar-test/a.idxpack", [PackSources("r", "k", "s", urls)])
        pack = IndexPack("memory://shar-test/a.idxpack")
        pack.verify()
        assert pack.collection()[22]["wav"] == wav(22)
    finally:
        store.rm("/shar-test", recursive=True)


KILLED = """
import os, sys
from ledgerbeam.io.datasets.shar.writer import SharWriter
from tests.io.datasets.shar.content import cut
from tests.io.datasets.shar.test_writer import FIELDS
with SharWriter(sys.argv[1], FIELDS, shard_size=3) as writer:
    for number in range(100_000):
        writer.write(cut(number % 50, f"cut-{number}"))
"""


@pytest.mark.slow
def test_a_killed_writer_leaves_whole_shards_with_all_their_fields(tmp_path: Path) -> None:
    for after in (2, 7):
        folder = tmp_path / f"shar-{after}"
        process = subprocess.Popen([sys.executable, "-c", KILLED, str(folder)])
        try:
            while len(list(folder.glob("cuts.*.jsonl.idx"))) < after:
                assert process.poll() is None
                time.sleep(0.001)
        finally:
            process.kill()
            process.wait()
        numbers = sorted(path.name.split(".")[1] for path in folder.glob("cuts.*.jsonl.idx"))
        kinds = {**FIELDS, "cuts": "jsonl"}
        listed = {name: [f"{folder}/{name}.{n}.{kind}" for n in numbers] for name, kind in kinds.items()}
        write_shar_fields(f"{tmp_path}/{after}.json", listed)
        with SharReader(f"{tmp_path}/{after}.json") as reader:
            assert [record["id"] for record in reader[:]] == [f"cut-{n}" for n in range(3 * len(numbers))]
            assert all(record["recording"]["wav"] == wav(n % 50) for n, record in enumerate(reader[:]))


def test_a_writer_is_closed_once_and_then_takes_no_cut(tmp_path: Path) -> None:
    writer = SharWriter(str(tmp_path / "shar"), FIELDS, shard_size=2)
    for number in range(3):
        writer.write(cut(number))
    assert not (tmp_path / "shar/cuts.000001.jsonl").exists()
    writer.close()
    writer.close()
    assert len(SharReader(writer.url)) == 3
    with pytest.raises(UsageError, match=r"closed.*start=2"):
        writer.write(cut(3))
    with SharWriter(writer.url, FIELDS, start=2) as writer:
        writer.write(cut(3))
        writer.close()
    assert [record["id"] for record in SharReader(writer.url)] == [cut(number)["id"] for number in range(4)]


def test_compressed_rows_have_no_index_and_the_same_records_and_bytes_each_time(tmp_path: Path) -> None:
    plain, folder = write(tmp_path / "plain"), write(tmp_path / "a", compress_jsonl=True)
    names = {path.name for path in Path(folder).iterdir()}
    assert {name.replace(".000000.", " ") for name in names if ".000000." in name} == {
        *("cuts jsonl.gz", "label jsonl.gz"),
        *("embedding tar", "embedding tar.idx", "recording tar", "recording tar.idx"),
    }
    assert list(Shar(folder)) == list(SharReader(plain))
    again = write(tmp_path / "b", compress_jsonl=True)
    assert all((Path(folder) / name).read_bytes() == (Path(again) / name).read_bytes() for name in names)
    with pytest.raises(NotIndexableError, match="compressed"):
        SharReader(folder)
    with pytest.raises(UsageError, match="hide"):
        write(tmp_path / "plain", compress_jsonl=True)


def test_shards_without_indexes_are_streamed_and_can_be_indexed_later(tmp_path: Path) -> None:
    plain, folder = write(tmp_path / "plain"), write(tmp_path / "a", create_index=False)
    assert not list(Path(folder).glob("*.idx"))
    assert list(Shar(folder)) == list(SharReader(plain))
    ledgerbeam.index_source(folder)
    assert {path.name for path in Path(folder).iterdir()} == {path.name for path in Path(plain).iterdir()}
    assert list(SharReader(folder)) == list(SharReader(plain))


class ObjectCut:
    """A cut as an object with lhotse's methods, of a recording that began before it."""

    custom: ClassVar[dict[str, Any]] = {"label": "x", "vector": SimpleNamespace(), "other": 5}
    recording = SimpleNamespace(sampling_rate=8000)

    def __init__(self, kind: str = "MonoCut") -> None:
        self.kind = kind

    def to_dict(self) -> dict[str, Any]:
        manifests = {"recording": {"id": "rec"}, "custom": {**self.custom, "vector": {"shape": [3]}}}
        return {"id": "a", "start": 4.0, "duration": 0.1, "channel": 0, "type": self.kind, **manifests}

    def load_audio(self) -> Any:
        return np.zeros((1, 800), np.float32)

    def load_custom(self, name: str) -> Any:
        return np.arange(3)


def test_a_cut_that_is_an_object_is_written_with_what_it_loads(tmp_path: Path) -> None:
    fields: Any = {"recording": "wav", "vector": "numpy", "label": "jsonl", "missing": "numpy"}
    with SharWriter(str(tmp_path / "shar"), fields) as writer:
        writer.write(ObjectCut())
    (record,) = SharReader(writer.url)
    assert (record["id"], record["start"], record["duration"], record["label"]) == ("a", 0, 0.1, "x")
    assert json.loads(record["recording"]["json"])["num_samples"] == 800
    assert np.load(BytesIO(record["vector"]["npy"])).tolist() == [0, 1, 2]
    assert (record["custom"]["other"], "missing" in record) == (5, False)
    for kind, form, error in (
        ("MixedCut", "wav", "expected a MonoCut or MultiCut, found ObjectCut"),
        ("MonoCut", "tar", "field 'recording': expected an audio format"),
    ):
        other: Any = {"recording": form}
        with pytest.raises(RecordError, match=error), SharWriter(str(tmp_path / form), other) as writer:
            writer.write(ObjectCut(kind))


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
    assert [found[name] for name in ("start", "duration", "channel", "supervisions")] == [0, 0.1, 0, []]
    assert found["type"] == "MonoCut"
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
def test_bad_values_are_refused_and_others_written(
    tmp_path: Path, fields: dict[str, Any], cut: dict[str, Any], message: str
) -> None:
    with SharWriter(str(tmp_path), fields) as writer:
        with pytest.raises(RecordError, match=message):
            writer.write({"id": "a", **cut})
        writer.write({"id": "b"})
    assert [cut["id"] for cut in SharReader(str(tmp_path))] == ["b"]


def test_a_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "soundfile", None)
    with SharWriter(str(tmp_path), {"recording": "flac"}) as writer:
        with pytest.raises(UsageError, match=r"pip install .*\[audio\]'"):
            writer.write({"id": "a", "recording": TONE})
        writer.write({"id": "b"})
