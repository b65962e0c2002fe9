"""Shar folders: cuts with their fields, by number and streamed; shards as samples, and samples as cuts."""

from __future__ import annotations

import glob
import gzip
import json
import struct
from pathlib import Path
from typing import Any

import orjson
import pytest

import ledgerbeam
from ledgerbeam.errors import (
    CheckpointError,
    CheckpointMismatchError,
    IndexNotFoundError,
    LedgerbeamError,
    NotIndexableError,
    RecordError,
    SourceError,
    SourceNotFoundError,
    UsageError,
)
from ledgerbeam.io import JsonlFormat, OffsetFormat, Sample, TarFormat, encode_jsonl, publish_bytes, write_index
from ledgerbeam.io.datasets.shar.format import (
    HeldRecords,
    SharFolder,
    SharFormat,
    SharSamples,
    field_kinds,
    group_shards,
    sample_cut,
)
from ledgerbeam.io.datasets.shar.payloads import AudioHeader, array_shape, audio_header
from ledgerbeam.io.datasets.shar.reader import SharReader, find_shar, stream_shar
from ledgerbeam.io.datasets.shar.writer import SharWriter
from ledgerbeam.iterators import Shar
from tests.cases import each
from tests.io.conformance import COUNT, SequenceConformance, fresh
from tests.io.datasets.shar.content import RATE, flac, npy, recording, sample, wav
from tests.iterators.data import SHAR_IDS, after, write_shar


@pytest.fixture
def folder(tmp_path: Path) -> str:
    return write_shar(tmp_path / "shar")


def write_labels(folder: str, names: list[str]) -> None:
    url = f"{folder}/label.000000.jsonl"
    data, offsets = encode_jsonl([{"cut_id": name, "label": name} for name in names])
    publish_bytes(url, data)
    write_index(f"{url}.idx", offsets)


def test_cuts_come_with_their_fields(folder: str) -> None:
    reader = SharReader(folder)
    assert reader.fields == ("audio", "label")
    cuts = list(reader)
    assert [cut["id"] for cut in cuts] == SHAR_IDS
    assert [cut["label"] for cut in cuts] == [name[-1] for name in SHAR_IDS]
    heard = [cut["audio"]["wav"].decode() for cut in cuts if "audio" in cut]
    assert heard == [name for number, name in enumerate(SHAR_IDS) if number % 10 % 3]


def test_only_the_fields_that_are_wanted_are_read(folder: str) -> None:
    for path in Path(folder).glob("audio*"):
        path.unlink()
    assert "audio" not in SharReader(folder)[1]
    assert list(SharReader(folder, [])[1]) == ["id"]
    with pytest.raises(SourceError, match="no field 'audio'"):
        SharReader(folder, ["audio"])


def test_a_shard_or_an_index_that_is_missing_is_an_error(folder: str) -> None:
    (Path(folder) / "label.000001.jsonl.idx").unlink()
    with pytest.raises(IndexNotFoundError, match=r"label\.000001"):
        SharReader(folder)
    (Path(folder) / "label.000001.jsonl").unlink()
    with pytest.raises(SourceError, match=r"'label'.*'\.000001'.*name the fields to read"):
        SharReader(folder)
    assert SharReader(folder, ["audio"]).fields == ("audio",)


def test_the_name_of_a_folder_is_no_pattern(tmp_path: Path) -> None:
    folder = write_shar(tmp_path / "run[1]")
    (tmp_path / "run1").mkdir()
    (tmp_path / "run1" / "cuts.000000.jsonl").write_text('{"id": "other"}\n')
    assert [cut["id"] for cut in SharReader(folder)] == SHAR_IDS
    assert {url.rpartition("/")[0] for urls in find_shar(folder).values() for url in urls} == {folder}
    assert SharFolder().holds(folder, None)
    assert not SharFolder().holds(str(tmp_path / "run?"), None)


def test_a_field_of_other_cuts_is_an_error(folder: str) -> None:
    write_labels(folder, SHAR_IDS[9::-1])
    with pytest.raises(RecordError, match=r"label\.000000.*'cut-000', found that of cut 'cut-009'"):
        SharReader(folder)[0]
    with pytest.raises(RecordError, match=r"record 0: expected field 'label' of cut 'cut-000', .* of cut 'cut-009'"):
        next(stream_shar(find_shar(folder)))
    write_labels(folder, SHAR_IDS[:9])
    with pytest.raises(SourceError, match="expected 10 records"):
        SharReader(folder)


def test_a_folder_without_cuts_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("nothing")
    with pytest.raises(SourceNotFoundError, match="expected shards of cuts"):
        SharReader(str(tmp_path))


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_a_stream_gives_what_a_reader_gives_and_needs_no_index(folder: str, suffix: str) -> None:
    cuts = list(SharReader(folder))
    for path in Path(folder).glob("*.[jt]*"):
        if path.suffix == ".idx":
            path.unlink()
        elif suffix:
            path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
            path.unlink()
    assert list(stream_shar(find_shar(folder, streamed=True))) == cuts
    assert next(iter(stream_shar(find_shar(folder, fields=["label"], streamed=True)))).keys() == {"id", "label"}


@pytest.mark.parametrize(("count", "found"), [(9, "only 9"), (11, "more than 10")])
def test_a_stream_finds_a_field_that_has_another_number_of_records(folder: str, count: int, found: str) -> None:
    write_labels(folder, SHAR_IDS[:count])
    with pytest.raises(SourceError, match=rf"label\.000000\.jsonl: .* found {found}"):
        list(stream_shar(find_shar(folder)))


def test_a_folder_is_opened_by_its_indexes_or_as_a_stream(folder: str) -> None:
    cuts = list(SharReader(folder))
    opened: Any = ledgerbeam.open(folder)
    assert (opened.is_indexed, len(opened), opened[11], list(opened)) == (True, 23, cuts[11], cuts)
    assert opened.raw(11) == Path(f"{folder}/cuts.000001.jsonl").read_bytes().splitlines(keepends=True)[1]
    assert [orjson.loads(raw.data)["id"] for raw in opened.read_raw(8, 12)] == SHAR_IDS[8:12]
    Path(f"{folder}/label.000001.jsonl.idx").unlink()
    stream: Any = ledgerbeam.open(folder)
    assert (stream.is_indexed, "label.000001.jsonl" in stream.why, list(stream)) == (False, True, cuts)
    with pytest.raises(IndexNotFoundError, match=r"label\.000001\.jsonl"):
        ledgerbeam.open(folder, indexed=True)
    assert ledgerbeam.index_source(folder) == folder
    assert ledgerbeam.open(folder, indexed=True)[11] == cuts[11]
    for path in Path(folder).glob("cuts.*.jsonl"):
        path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()
    assert list(ledgerbeam.open(folder)) == cuts
    with pytest.raises(NotIndexableError, match="compressed"):
        ledgerbeam.open(folder, indexed=True)


def test_the_indexes_of_a_folder_lie_in_the_mirrored_tree(folder: str, tmp_path: Path) -> None:
    names = {path.name for path in Path(folder).glob("*.idx")}
    place = ledgerbeam.index_source(folder, index_root=tmp_path / "indexes")
    assert {path.name for path in Path(place).iterdir()} == names


@pytest.mark.parametrize("name", ["empty", "missing", "notes"])
def test_a_folder_that_is_no_dataset_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes/README.md").write_text("notes")
    for call in (ledgerbeam.open, ledgerbeam.index_source):
        with pytest.raises(LedgerbeamError):
            call(str(tmp_path / name))


def test_shards_may_be_the_outputs_of_commands(folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEDGERBEAM_ALLOW_PIPES", "1")
    cuts = list(SharReader(folder))
    shards = {name: [f"pipe:cat {url}" for url in urls] for name, urls in find_shar(folder).items()}
    assert list(Shar(shards)) == cuts
    shards["label"] = find_shar(folder)["label"]
    (tmp_path / "fields.json").write_bytes(orjson.dumps(shards))
    for made in (shards, str(tmp_path / "fields.json")):
        assert list(Shar(made)) == cuts
        assert [cut.keys() for cut in Shar(made, ["label"])] == [{"id", "label"}] * len(cuts)
    with pytest.raises(CheckpointError):
        Shar(shards).state_dict()
    with pytest.raises(SourceError, match="can only be streamed"):
        SharReader(str(tmp_path / "fields.json"))
    shards["audio"] = ["pipe:cat x"] * 3
    with pytest.raises(SourceError, match="expected a command that names files"):
        next(iter(Shar(shards)))
    monkeypatch.delenv("LEDGERBEAM_ALLOW_PIPES")
    with pytest.raises(UsageError, match="LEDGERBEAM_ALLOW_PIPES"):
        next(iter(Shar(shards, [])))


def test_shards_of_each_field_may_be_given(folder: str) -> None:
    shards = {name: urls[::-1] for name, urls in find_shar(folder).items()}
    node = Shar(shards)
    assert [cut["id"] for cut in node] == [*SHAR_IDS[20:], *SHAR_IDS[10:20], *SHAR_IDS[:10]]
    state = after(Shar(shards), 4).state_dict()
    again = Shar(shards)
    again.load_state_dict(state)
    assert len(list(again)) == 19
    with pytest.raises(CheckpointMismatchError):
        Shar(folder).load_state_dict(state)


class TestShar(SequenceConformance):
    most_pickled = 10**6  # it has a reader of each shard

    def records(self, count: int) -> list[Any]:
        return [
            {
                "id": f"cut-{number}",
                "recording": {"wav": wav(number), "json": recording(number)},
                **({"label": number} if number % 3 else {}),
            }
            for number in range(count)
        ]

    def key(self, record: Any) -> Any:
        return record["id"], bytes(record["recording"]["wav"]), record.get("label")

    def store(self, folder: str, count: int, options: dict[str, Any] | None = None) -> tuple[str, list[Any]]:
        url = fresh(folder)
        records = self.records(count)
        with SharWriter(url, {"recording": "tar", "label": "jsonl"}, options, shard_size=60) as writer:
            for record in records:
                writer.write(record)
        return url, records

    def open(self, url: str, options: dict[str, Any] | None = None) -> Any:
        return SharReader(url, options=options)

    def files(self, url: str) -> list[str]:
        return [url]

    def opened(self, url: str) -> set[str]:
        return {str(path) for path in Path(url).iterdir()}

    def test_raw_records_joined_are_the_source(self, source: tuple[str, list[Any]]) -> None:
        reader = self.open(source[0])
        joined = b"".join(reader.raw(number) for number in range(COUNT))
        cuts = b"".join(Path(url).read_bytes() for url in sorted(glob.glob(f"{source[0]}/cuts.*.jsonl")))
        assert cuts == joined  # the fields of a cut are in other files

    def test_a_source_without_records(self, tmp_path: Path) -> None:
        url, _ = self.store(str(tmp_path), 0)
        with pytest.raises(SourceNotFoundError):  # without cuts there are no shards
            self.open(url)


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
    assert SharFormat.parse_fields("recording=.wav,label=cls") == (("recording", "wav"), ("label", "cls"))
    assert field_kinds(FIELDS) == {"recording": "tar", "embedding": "tar", "label": "jsonl"}
    assert SharFormat.parse_fields("") == ()
    for wrong in ("recording", "a=wav,a=flac", "a=wav,b=wav", "cuts=wav", "a-b=wav", "a="):
        with pytest.raises(UsageError, match="field"):
            SharFormat.parse_fields(wrong)


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
