"""Shar folders: cuts with the values of their fields, by position and by id."""

from __future__ import annotations

import gzip
import pickle
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
from ledgerbeam.io import encode_jsonl, publish_bytes, write_index
from ledgerbeam.io.datasets.shar.format import holds_shards
from ledgerbeam.io.datasets.shar.reader import SharReader, find_shar, stream_shar
from ledgerbeam.iterators import Shar
from tests.iterators.data import SHAR_IDS, after, write_shar


@pytest.fixture
def folder(tmp_path: Path) -> str:
    return write_shar(tmp_path / "shar")


def test_cuts_come_with_their_fields(folder: str) -> None:
    reader = SharReader(folder)
    assert reader.fields == ("audio", "label")
    cuts = list(reader)
    assert [cut["id"] for cut in cuts] == SHAR_IDS
    assert [cut["label"] for cut in cuts] == [name[-1] for name in SHAR_IDS]
    heard = [cut["audio"]["wav"].decode() for cut in cuts if "audio" in cut]
    assert heard == [name for number, name in enumerate(SHAR_IDS) if number % 10 % 3]
    assert reader[3:5] == reader.read_many([3, 4]) == pickle.loads(pickle.dumps(reader)).read_span(3, 5)
    assert reader[-1] == cuts[-1]
    for wrong in (23, -24):
        with pytest.raises(IndexError, match="it has 23"):
            reader[wrong]


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
    assert holds_shards(folder)
    assert not holds_shards(str(tmp_path / "run?"))


def test_a_field_of_other_cuts_is_an_error(folder: str) -> None:
    def write_labels(names: list[str]) -> None:
        url = f"{folder}/label.000000.jsonl"
        data, offsets = encode_jsonl([{"cut_id": name, "label": name} for name in names])
        publish_bytes(url, data)
        write_index(f"{url}.idx", offsets)

    write_labels(SHAR_IDS[9::-1])
    with pytest.raises(RecordError, match=r"label\.000000.*'cut-000', found that of 'cut-009'"):
        SharReader(folder)[0]
    write_labels(SHAR_IDS[:9])
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
    rows, _ = encode_jsonl([{"cut_id": name, "label": name} for name in SHAR_IDS[:count]])
    publish_bytes(f"{folder}/label.000000.jsonl", rows)
    with pytest.raises(SourceError, match=rf"label\.000000\.jsonl: .* found {found}"):
        list(stream_shar(find_shar(folder)))


def test_a_stream_finds_a_field_of_other_cuts(folder: str) -> None:
    rows, _ = encode_jsonl([{"cut_id": name, "label": name} for name in SHAR_IDS[9::-1]])
    publish_bytes(f"{folder}/label.000000.jsonl", rows)
    with pytest.raises(
        RecordError, match=r"record 0: expected field 'label' of cut 'cut-000', found that of 'cut-009'"
    ):
        next(stream_shar(find_shar(folder)))


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
