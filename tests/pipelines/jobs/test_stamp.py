"""The note of one thing that is made of a job's shards: for which shards and files it stands."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from ledgerbeam.errors import StorageError
from ledgerbeam.ledger import OutputShard
from ledgerbeam.pipelines.outputs.published import OutputStamp

SHARDS = (OutputShard("a-0.tar", 3, "sum:a", 1, "/in/a", 0), OutputShard("b\udcff-0.tar", 4, "sum:b", 2, "/in/b", 0))


OF = "0452a44018078c56b7c7123c85a33993"
"""What names them, also in notes of earlier versions."""


class Place:
    """A work folder, and a folder with files to note."""

    def __init__(self, root: Path) -> None:
        self.work, self.files = root / "work", [f"{root}/{name}" for name in "xy"]
        for url in self.files:
            Path(url).write_bytes(b"abc")

    def stamp(self, *shards: OutputShard, fingerprint: str = "f") -> OutputStamp:
        return OutputStamp(str(self.work), "note", fingerprint, shards or SHARDS, {})

    @property
    def note(self) -> Path:
        return self.work / "note.json"


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_what_is_noted_is_read_until_it_is_made_anew(place: Place) -> None:
    stamp = place.stamp()
    assert (stamp.noted(), stamp.read()) == (None, None)
    assert not stamp.begin()
    assert (stamp.noted(), stamp.read()) == (None, None)
    assert stamp.begin()
    stamp.end(iter(place.files), what="ever")
    found = place.stamp().read()
    assert found == place.stamp().noted() == json.loads(place.note.read_bytes())
    assert found is not None
    assert (found["files"], found["what"]) == (dict.fromkeys(place.files, 3), "ever")
    assert not stamp.begin()
    assert stamp.read() is None


def test_a_note_of_an_earlier_version_counts(place: Place) -> None:
    place.work.mkdir()
    place.note.write_text(f'{{"of": "{OF}", "files": {{}}}}')
    assert place.stamp().read() == {"of": OF, "files": {}}


def test_files_that_are_gone_or_have_another_size_are_noted_and_not_read(place: Place) -> None:
    stamp = place.stamp()
    stamp.end(place.files)
    noted = stamp.noted()
    for url in place.files:
        Path(url).write_bytes(b"ab")
        assert (stamp.noted(), stamp.read()) == (noted, None)
        Path(url).unlink()
        assert (stamp.noted(), stamp.read()) == (noted, None)
        Path(url).write_bytes(b"xyz")
        assert (stamp.noted(), stamp.read()) == (noted, noted)


@pytest.mark.parametrize(
    "other",
    [
        SHARDS[::-1],
        SHARDS[:1],
        (SHARDS[0], replace(SHARDS[1], name="b-0.tar")),
        (SHARDS[0], replace(SHARDS[1], checksum="sum:c")),
    ],
)
def test_it_is_of_these_very_shards(place: Place, other: tuple[OutputShard, ...]) -> None:
    place.stamp().end(place.files)
    assert place.stamp(*other).noted() is None
    assert place.stamp(fingerprint="g").noted() is None
    same = [replace(shard, size=9, records=9, source="/x", first=9) for shard in SHARDS]
    assert place.stamp(*same).noted() is not None


@pytest.mark.parametrize("text", ["{", "[1]", "{}", '{"of": "OF"}', '{"of": "OF", "files": ["x"]}'])
def test_a_note_that_does_not_read_is_none(place: Place, text: str) -> None:
    place.work.mkdir()
    place.note.write_text(text.replace("OF", OF))
    assert (place.stamp().noted(), place.stamp().read()) == (None, None)
    assert not place.stamp().begin()
    place.stamp().end(place.files)
    assert place.stamp().read() is not None


def test_no_link_is_followed(place: Place, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    place.work.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StorageError, match="found a link"):
        place.stamp().noted()
