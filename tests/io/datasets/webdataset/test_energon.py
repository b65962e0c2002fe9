"""Energon's folder: written files, reading, and refused input."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]
from hypothesis import given
from hypothesis import strategies as st

from ledgerbeam.errors import RecordError, SourceError, SourceNotFoundError, UsageError
from ledgerbeam.io import Sample
from ledgerbeam.io.datasets.webdataset import Shard, ShardWriter, open_energon, read_energon, write_energon
from ledgerbeam.io.datasets.webdataset.writer import collapse_names
from ledgerbeam.io.listing.patterns import expand_braces
from ledgerbeam.io.storage.client import filesystem
from tests.cases import each
from tests.io.datasets.webdataset.content import plain, plain_samples, samples, write_shards


def test_a_part_reads_as_its_shards(tmp_path: Path) -> None:
    given_samples = samples(45)
    shards = write_shards(tmp_path, given_samples)
    names = [shard.name for shard in shards]
    write_energon(str(tmp_path), shards, splits={"train": [*names[:2], names[4]], "val": [names[3]]})
    assert plain(list(open_energon(str(tmp_path)))) == plain(given_samples[:20] + given_samples[40:])
    assert plain(open_energon(str(tmp_path), "val")[:]) == plain(given_samples[30:40])
    assert yaml.safe_load((tmp_path / ".nv-meta/split.yaml").read_text()) == {
        "split_parts": {"train": ["part-{000..001}.tar", "part-004.tar"], "val": ["part-003.tar"]},
        "exclude": [],
    }
    with pytest.raises(UsageError, match="no part 'test'; it has train, val"):
        open_energon(str(tmp_path), "test")


def test_the_table_has_the_place_of_every_sample_and_part(tmp_path: Path) -> None:
    given_samples = samples(25)
    write_energon(str(tmp_path), write_shards(tmp_path, given_samples))
    table = sqlite3.connect(tmp_path / ".nv-meta/index.sqlite")
    rows = table.execute(
        "SELECT tar_file_id, sample_index, sample_key, byte_offset, byte_size, part_name, content_byte_offset, "
        "content_byte_size FROM samples JOIN sample_parts USING (tar_file_id, sample_index)"
    ).fetchall()
    table.close()
    shards = [path.read_bytes() for path in sorted(tmp_path.glob("*.tar"))]
    found: dict[str, dict[str, bytes]] = {}
    for shard, number, key, start, size, part, offset, length in rows:
        assert key == given_samples[shard * 10 + number].key
        assert start < offset <= offset + length <= start + size
        found.setdefault(key, {})[part] = shards[shard][offset : offset + length]
    assert found == {sample.key: dict(sample) for sample in given_samples}


def test_the_same_shards_make_the_same_files(tmp_path: Path) -> None:
    written = []
    for name in ("one", "two"):
        shards = write_shards(tmp_path / name, plain_samples(12))
        write_energon(str(tmp_path / name), shards)
        folder = tmp_path / name / ".nv-meta"
        written.append({file: (folder / file).read_bytes() for file in os.listdir(folder)})
    assert written[0] == written[1]
    assert sorted(written[0]) == [".info.json", "dataset.yaml", "index.sqlite", "index.uuid", "split.yaml"]


def test_datasets_lie_on_object_stores() -> None:
    with ShardWriter("memory://energon/a-%03d.tar", max_samples=4) as writer:
        for sample in plain_samples(10):
            writer.write(sample)
    try:
        write_energon("memory://energon", writer.shards)
        assert plain(open_energon("memory://energon")[:]) == plain(plain_samples(10))
    finally:
        filesystem("memory://").rm("/energon", recursive=True)


@pytest.mark.parametrize("name", ["a.tar.gz", "a.tar.0", "a{1}.tar", "a,b.tar", "a\\b.tar"])
def test_names_that_energon_cannot_have_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match="Energon cannot have a shard named"):
        write_energon(str(tmp_path), [Shard(name, 1, 1)])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("shards", [[], [Shard("a.tar", 0, 10240)]])
def test_a_dataset_without_samples_is_refused(tmp_path: Path, shards: list[Shard]) -> None:
    with pytest.raises(UsageError, match="no shard holds samples"):
        write_energon(str(tmp_path), shards)


def test_a_part_has_only_shards_that_there_are(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"the part 'val' has 'b.tar'"):
        write_energon(str(tmp_path), [Shard("a.tar", 1, 1)], splits={"val": ["b.tar"]})


def test_a_key_that_comes_twice_is_an_error_that_names_both(tmp_path: Path) -> None:
    shards = write_shards(tmp_path, [Sample(key, {"txt": b""}) for key in ("a", "b", "c", "b")], 3)
    with pytest.raises(RecordError, match=r"part-001.tar: sample 0 has the key 'b' of sample 1 of part-000.tar"):
        write_energon(str(tmp_path), shards)
    assert not (tmp_path / ".nv-meta").exists()
    write_energon(str(tmp_path), shards, sample_table=False)
    assert len(open_energon(str(tmp_path))) == 4


def test_a_shard_with_another_number_of_samples_is_an_error(tmp_path: Path) -> None:
    (shard,) = write_shards(tmp_path, plain_samples(3))
    with pytest.raises(SourceError, match="expected 4 samples, as listed, found 3"):
        write_energon(str(tmp_path), [Shard(shard.name, 4, shard.size)])


INFO = '{"shard_counts": {"a.tar": 1, "d/b.tar": 2}}'
SPLIT = "split_parts: {train: ['a.tar', 'd/b.tar']}\n"


def write_meta(folder: Path, info: str, split: str, *, names: tuple[str, str] = (".info.json", "split.yaml")) -> str:
    (folder / ".nv-meta").mkdir()
    (folder / ".nv-meta" / names[0]).write_text(info)
    (folder / ".nv-meta" / names[1]).write_text(split)
    return str(folder)


def test_old_and_other_names_of_the_files_are_read(tmp_path: Path) -> None:
    content = '{"split_parts": {"train": ["d/{a..b}.tar", "a.tar", "d/b.tar"]}}'.replace("d/{a..b}.tar", "{a,d/b}.tar")
    root = write_meta(tmp_path, "shard_counts: {a.tar: 1, d/b.tar: 2}", content, names=(".info.yaml", "split.json"))
    found = read_energon(root)
    assert found.counts == {"a.tar": 1, "d/b.tar": 2}
    assert found.splits == {"train": ["a.tar", "d/b.tar", "a.tar", "d/b.tar"]}


def test_excluded_shards_are_left_out_and_excluded_samples_refused(tmp_path: Path) -> None:
    root = write_meta(tmp_path, INFO, SPLIT + "exclude: [a.tar, d/b.tar/key]\n")
    found = read_energon(root)
    assert (found.splits, found.excluded) == ({"train": ["d/b.tar"]}, ["d/b.tar/key"])
    with pytest.raises(UsageError, match=r"excludes 1 samples, the first 'd/b.tar/key'"):
        open_energon(root)


@pytest.mark.parametrize(
    ("info", "split", "found"),
    [
        ("{", SPLIT, ".info.json: it cannot be parsed"),
        ("[]", SPLIT, ".info.json: expected a mapping, found list"),
        ("{}", SPLIT, ".info.json: expected numbers of samples by shard"),
        ('{"shard_counts": {"a.tar": "1"}}', SPLIT, ".info.json: expected numbers"),
        (INFO, "a: [", "split.yaml: it cannot be parsed"),
        (INFO, "[" * 5000, "split.yaml: it cannot be parsed"),
        (INFO, "2001-99-99", "split.yaml: it cannot be parsed"),
        (INFO, "!!python/object/apply:os.system ['true']", "split.yaml: it cannot be parsed"),
        (INFO, "a: b", "split.yaml: expected lists of shards by part"),
        (INFO, "split_parts: {train: a.tar}", "split.yaml: expected a list of shards under 'train'"),
        (INFO, "split_parts: {train: [1]}", "split.yaml: expected a list of shards under 'train'"),
        (INFO, "split_parts: {train: [c.tar]}", "split.yaml: the part 'train' has 'c.tar', which has no count"),
        (INFO, "split_parts: {train: ['{0..99999999999}']}", "split.yaml: a name under 'train' does not expand"),
    ],
)
def test_files_that_say_something_else_are_errors_that_name_them(
    tmp_path: Path, info: str, split: str, found: str
) -> None:
    root = write_meta(tmp_path, info, split)
    with pytest.raises(SourceError, match=f"{tmp_path}/.nv-meta/{found}"):
        read_energon(root)


def test_a_folder_that_was_not_prepared_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SourceNotFoundError, match=r"\.info\.json or .*\.info\.yaml: there is no such file"):
        read_energon(str(tmp_path))


@each(
    ("names", "written"),
    [
        ([], []),
        (["a-9.tar", "a-10.tar"], ["a-9.tar", "a-10.tar"]),
        (["a-09.tar", "a-10.tar", "a-12.tar"], ["a-{09..10}.tar", "a-12.tar"]),
        (["1/0", "1/1", "2/0", "2/1"], ["1/{0..1}", "2/{0..1}"]),
        (["0-0", "0-1", "1-1"], ["0-{0..1}", "1-1"]),
        (["a", "b", "b"], ["a", "b", "b"]),
    ],
)
def test_names_that_count_up_are_a_range(names: list[str], written: list[str]) -> None:
    assert collapse_names(names) == written


@given(st.lists(st.tuples(st.integers(0, 12), st.integers(8, 12)).map(lambda pair: "d{:02d}/s-{}.tar".format(*pair))))
def test_ranges_expand_to_the_names(names: list[str]) -> None:
    found: list[Any] = [name for pattern in collapse_names(names) for name in expand_braces(pattern)]
    assert found == names
