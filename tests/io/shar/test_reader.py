"""Shar folders: cuts with the values of their fields, by position and by id."""

from __future__ import annotations

import gzip
import pickle
from pathlib import Path

import pytest

from ledgerbeam.errors import IndexNotFoundError, RecordError, SourceError, SourceNotFoundError
from ledgerbeam.io import SharReader, encode_jsonl, publish_bytes, write_index
from ledgerbeam.io.shar.reader import find_shar
from ledgerbeam.io.shar.samples import holds_shards
from ledgerbeam.io.shar.stream import stream_shar
from tests.iterators.data import SHAR_IDS, write_shar


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
    assert list(stream_shar(find_shar(folder, compressed=True))) == cuts
    assert next(iter(stream_shar(find_shar(folder, fields=["label"], compressed=True)))).keys() == {"id", "label"}


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
