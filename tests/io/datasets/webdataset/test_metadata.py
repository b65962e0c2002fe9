"""Metadata of shards for other loaders: the folder of Energon, and the index of DALI."""

from __future__ import annotations

import io
import os
import re
import sqlite3
import subprocess
import tarfile
import time
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]
from hypothesis import given
from hypothesis import strategies as st

from ledgerbeam.errors import (
    ArchiveError,
    IndexMismatchError,
    IndexNotFoundError,
    RecordError,
    SourceError,
    SourceNotFoundError,
    UsageError,
)
from ledgerbeam.io import Sample
from ledgerbeam.io.datasets.webdataset import (
    DaliReader,
    Shard,
    ShardWriter,
    open_energon,
    read_energon,
    write_dali_index,
    write_energon,
)
from ledgerbeam.io.datasets.webdataset.dali import dali_index_url
from ledgerbeam.io.datasets.webdataset.writer import collapse_names
from ledgerbeam.io.listing.patterns import expand_braces
from ledgerbeam.io.storage.client import filesystem
from ledgerbeam.io.tar.writer import encode_tar
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
    with pytest.raises(UsageError, match=r"excludes single samples such as 'd/b.tar/key'"):
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
def test_invalid_files_are_errors_that_name_them(tmp_path: Path, info: str, split: str, found: str) -> None:
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


GOLDEN = "v1.2 2\nseg.png 512 3 d/a.seg.png cls 1536 1 d/a.cls\ntxt 2560 600 b.txt\n"
SAMPLES = [Sample("d/a", {"seg.png": b"png", "cls": b"7"}), Sample("b", {"txt": bytes(600)})]


@pytest.fixture
def shard(tmp_path: Path) -> str:
    (tmp_path / "x.tar").write_bytes(encode_tar(SAMPLES, group="key")[0])
    return f"{tmp_path}/x.tar"


def test_the_index_is_the_text_that_wds2idx_writes(shard: str) -> None:
    assert write_dali_index(shard) == 2
    assert Path(shard.replace(".tar", ".idx")).read_text(encoding="utf-8") == GOLDEN


def test_places_and_sizes_are_those_that_gnu_tar_lists(tmp_path: Path) -> None:
    path = f"{tmp_path}/y.tar"
    Path(path).write_bytes(encode_tar(plain_samples(50), group="key")[0])
    write_dali_index(path)
    blocks = subprocess.run(["tar", "--list", "--block-number", "-f", path], capture_output=True, text=True, check=True)
    listed = {name: (int(block) + 1) * 512 for block, name in re.findall(r"block (\d+): (.+\..+)", blocks.stdout)}
    fields = Path(f"{tmp_path}/y.idx").read_text(encoding="utf-8").split()[2:]
    assert dict(zip(fields[3::4], map(int, fields[1::4]), strict=True)) == listed
    assert len(listed) == 100


@pytest.mark.parametrize(
    ("url", "index"), [("/a/b.tar", "/a/b.idx"), ("s3://b.c/d.e.tar", "s3://b.c/d.idx"), ("/a.b/c", "/a.b/c.idx")]
)
def test_an_index_lies_where_dalis_tool_puts_it(url: str, index: str) -> None:
    assert dali_index_url(url) == index


@pytest.mark.parametrize(
    ("sample", "found"),
    [
        (Sample("a b", {"txt": b""}), "cannot hold the name 'a b.txt'"),
        (Sample("a\u2003b", {"txt": b""}), "cannot hold the name"),
        (Sample("a\udcff", {"txt": b""}), "not UTF-8"),
    ],
)
def test_names_that_the_format_cannot_hold_are_refused(tmp_path: Path, sample: Sample, found: str) -> None:
    (tmp_path / "x.tar").write_bytes(encode_tar([sample], group="key")[0])
    with pytest.raises(ArchiveError, match=f"x.tar: .*{found}"):
        write_dali_index(f"{tmp_path}/x.tar")
    assert not (tmp_path / "x.idx").exists()


def test_a_shard_without_samples_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.tar").write_bytes(encode_tar([])[0])
    with pytest.raises(ArchiveError, match="no samples"):
        write_dali_index(f"{tmp_path}/x.tar")


def opened(folder: Path, data: bytes, *rows: str) -> DaliReader:
    """Open a shard through an index of those rows."""
    (folder / "x.tar").write_bytes(data)
    (folder / "x.idx").write_text("\n".join([f"v1.2 {len(rows)}", *rows, ""]), encoding="utf-8")
    return DaliReader(f"{folder}/x.tar")


@pytest.mark.parametrize(
    ("content", "found"),
    [
        ("", "expected 'v1.2 N'"),
        ("\udcff\udcfe", "expected text"),
        ("v1.1 2\n", "found 'v1.1 2'"),
        ("v1.2 3\n" + GOLDEN[7:], "found 'v1.2 3' and 3 line ends"),
        (GOLDEN[:-1], "line ends"),
        (GOLDEN.replace("512", "x"), "sample 0: expected 'extension offset size name'"),
        (GOLDEN.replace("512", "-512"), "sample 0"),
        (GOLDEN.replace("512", "²"), "sample 0"),
        (GOLDEN.replace(" b.txt", ""), "sample 1"),
        ("v1.2 1\n\n", "sample 0"),
        (GOLDEN.replace("600", "60000"), "found 'b.txt' to end at 62560"),
        (GOLDEN.replace("600", "9" * 18), "found 'b.txt' to end at"),
        (GOLDEN.replace("600", "9" * 19), "sample 1"),
    ],
)
def test_an_index_that_does_not_fit_is_an_error_that_names_both(shard: str, content: str, found: str) -> None:
    Path(dali_index_url(shard)).write_bytes(content.encode(errors="surrogateescape"))
    with pytest.raises(IndexMismatchError, match=f"x.idx does not fit .*x.tar: .*{found}"):
        DaliReader(shard)


def test_a_missing_index_is_named(shard: str) -> None:
    with pytest.raises(IndexNotFoundError, match=r"x.tar has no index at .*x.idx"):
        DaliReader(shard)


def test_samples_are_read_through_a_strangers_index(shard: str) -> None:
    Path(dali_index_url(shard)).write_text(GOLDEN, encoding="utf-8")
    assert plain(DaliReader(shard)[:]) == plain(SAMPLES)


def test_an_index_that_is_older_than_its_shard_is_refused(shard: str) -> None:
    write_dali_index(shard)
    moment = time.time() - 100  # times in the future are not compared
    os.utime(dali_index_url(shard), (moment, moment))
    os.utime(shard, (moment + 10, moment + 10))
    found = "expected a file newer than its source, found one 10.000 s older. Make the index again"
    with pytest.raises(IndexMismatchError, match=f"x.idx does not fit .*x.tar: {found}"):
        DaliReader(shard)


def test_an_index_made_of_a_shard_of_the_future_stays_fit(shard: str) -> None:
    moment = time.time() + 100
    os.utime(shard, (moment, moment))
    write_dali_index(shard)
    assert os.stat(dali_index_url(shard)).st_mtime_ns >= os.stat(shard).st_mtime_ns


@pytest.mark.parametrize(
    ("others", "found"),
    [
        ([Sample("d/a", {"seg.png": b"long", "cls": b"7"}), SAMPLES[1]], "found 'd/a.seg.png' of 4 bytes"),
        ([Sample("d/c", {"seg.png": b"png", "cls": b"7"}), SAMPLES[1]], "found 'd/c.seg.png' of 3 bytes"),
        ([Sample("d/a", {"bin": b"n" * 2048}), SAMPLES[1]], "found 'd/a.bin' of 2048 bytes"),
        ([Sample("d/" + "a" * 120, {"seg.png": b"png"}), SAMPLES[1]], "no header before it"),
    ],
)
def test_a_shard_that_was_replaced_gives_no_bytes(shard: str, others: list[Sample], found: str) -> None:
    write_dali_index(shard)
    Path(shard).write_bytes(encode_tar(others, group="key")[0] + bytes(10240))
    os.utime(dali_index_url(shard))  # so that its age says nothing
    expected = "x.idx does not fit .*: expected 'd/a.seg.png' of 3 bytes at byte 512, .*"
    with pytest.raises(IndexMismatchError, match=f"{expected}{found}"):
        DaliReader(shard)[0]


def test_bytes_inside_another_member_are_none_of_a_file(shard: str) -> None:
    write_dali_index(shard)
    Path(shard).write_bytes(encode_tar([Sample("a", {"bin": b"n" * 10000})], group="key")[0])
    os.utime(dali_index_url(shard))  # so that its age says nothing
    with pytest.raises(IndexMismatchError, match=r"'b.txt' of 600 bytes at byte 2560, found no header"):
        DaliReader(shard)[1]


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (GOLDEN.replace("512", "500"), "'d/a.seg.png' at a multiple of 512, .*found it at byte 500"),
        (GOLDEN.replace("512", "0"), "'d/a.seg.png' at a multiple of 512, from byte 512 on, found it at byte 0"),
        (GOLDEN.replace("1536 1", "1024 1"), "'d/a.cls' .* from byte 1536 on, found it at byte 1024"),
        (GOLDEN.replace("1536 1", "512 1"), "'d/a.cls' .* from byte 1536 on, found it at byte 512"),
        (GOLDEN.replace("512 3", "512 1").replace("1536 1", "1024 1"), "'d/a.cls' .* from byte 1536 on, found it at"),
        (GOLDEN.replace("2560", "2048"), "'b.txt' .* from byte 2560 on, found it at byte 2048"),
        (GOLDEN.replace("2560", "2570"), "'b.txt' at a multiple of 512, .*found it at byte 2570"),
    ],
)
def test_a_place_where_no_content_can_be_is_refused_on_open(shard: str, content: str, found: str) -> None:
    Path(dali_index_url(shard)).write_text(content, encoding="utf-8")
    with pytest.raises(IndexMismatchError, match=f"x.idx does not fit .*x.tar: expected .*{found}"):
        DaliReader(shard)


def test_of_two_members_of_one_name_and_size_the_one_is_read_that_is_listed(tmp_path: Path) -> None:
    members = b"".join(encode_tar([Sample("a", {"txt": data})], group="key")[0][:1024] for data in (b"one", b"two"))
    assert plain(opened(tmp_path, members + bytes(1024), "txt 1536 3 a.txt")[:]) == [("a", {"txt": b"two"})]


def test_a_member_is_found_after_zeros_that_end_another_archive(tmp_path: Path) -> None:
    one, two = (encode_tar([Sample(name, {"txt": b"x"})], group="key")[0] for name in "ab")
    reader = opened(tmp_path, one[:2048] + two, "txt 512 1 a.txt", "txt 2560 1 b.txt")
    assert plain(reader[:]) == [(name, {"txt": b"x"}) for name in "ab"]


def test_a_link_is_not_read_as_an_empty_file(tmp_path: Path) -> None:
    link = tarfile.TarInfo("a.txt")
    link.type, link.linkname = tarfile.SYMTYPE, "b.txt"
    reader = opened(tmp_path, link.tobuf() + bytes(1024), "txt 512 0 a.txt")
    with pytest.raises(IndexMismatchError, match=r"'a.txt' of 0 bytes at byte 512, found 'a.txt', which is no file"):
        reader[0]


def test_a_shard_may_end_with_the_content_of_its_last_file(tmp_path: Path) -> None:
    data, _ = encode_tar([Sample("a", {"txt": b"x" * 512})], group="key")
    assert plain(opened(tmp_path, data[:1024], "txt 512 512 a.txt")[:]) == [("a", {"txt": b"x" * 512})]


def test_an_index_may_lie_elsewhere(shard: str, tmp_path: Path) -> None:
    assert write_dali_index(shard, f"{tmp_path}/other") == 2
    assert (tmp_path / "other").read_text(encoding="utf-8") == GOLDEN
    assert not (tmp_path / "x.idx").exists()
    assert plain(DaliReader(shard, f"{tmp_path}/other")[:]) == plain(SAMPLES)


@pytest.mark.parametrize("form", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT, tarfile.USTAR_FORMAT])
def test_long_names_and_members_of_no_sample_are_read(tmp_path: Path, form: int) -> None:
    names = ["d/é" * 20 + f"/{number}.txt" for number in range(3)] if form != tarfile.USTAR_FORMAT else ["a.txt"]
    with tarfile.open(tmp_path / "x.tar", "w", format=form) as archive:
        for name in names:
            folder = tarfile.TarInfo("d")
            folder.type = tarfile.DIRTYPE
            archive.addfile(folder)
            for other, size in (("README", 10_000), (name, 5), (name.replace("txt", "cls"), 0)):
                member = tarfile.TarInfo(other)
                member.size = size
                archive.addfile(member, io.BytesIO(b"x" * size))
    write_dali_index(f"{tmp_path}/x.tar")
    expected = [(name.removesuffix(".txt"), {"txt": b"xxxxx", "cls": b""}) for name in names]
    assert plain(DaliReader(f"{tmp_path}/x.tar")[:]) == expected


def test_a_name_is_compared_with_the_one_that_gnu_tar_lists(tmp_path: Path) -> None:
    names = ["é.txt", "a\\b.txt", "c\td.txt"]
    with tarfile.open(tmp_path / "x.tar", "w") as archive:
        for name in names:
            archive.addfile(tarfile.TarInfo(name))
    environment = os.environ | {"LC_ALL": "C"}
    listed = subprocess.check_output(["tar", "--list", "-f", tmp_path / "x.tar"], env=environment).decode("ascii")
    assert listed == "\\303\\251.txt\na\\\\b.txt\nc\\td.txt\n"
    places = [1536, 2048, 2560]  # a pax header comes before the first
    rows = [f"txt {at} 0 {name}" for at, name in zip(places, listed.split(), strict=True)]
    reader = opened(tmp_path, (tmp_path / "x.tar").read_bytes(), *rows)
    assert [sample.key for sample in reader] == ["é", "a\\b", "c\td"]


def test_a_sparse_member_is_not_read_as_what_is_stored_of_it(tmp_path: Path) -> None:
    with (tmp_path / "a.bin").open("wb") as file:
        file.truncate(1 << 20)
    subprocess.run(["tar", "--sparse", "--format=gnu", "-cf", "x.tar", "a.bin"], cwd=tmp_path, check=True)
    write_dali_index(f"{tmp_path}/x.tar")
    with pytest.raises(ArchiveError, match=r"x.tar: the member 'a.bin' at byte 0 is sparse, .* without --sparse"):
        DaliReader(f"{tmp_path}/x.tar")[0]
