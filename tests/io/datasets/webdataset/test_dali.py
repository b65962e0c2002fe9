"""DALI's index: golden text, refused shards, and names in the listing of GNU tar."""

from __future__ import annotations

import io
import os
import re
import subprocess
import tarfile
import time
from pathlib import Path

import pytest

from ledgerbeam.errors import ArchiveError, IndexMismatchError, IndexNotFoundError
from ledgerbeam.io import Sample
from ledgerbeam.io.datasets.webdataset import DaliReader, write_dali_index
from ledgerbeam.io.datasets.webdataset.dali import dali_index_url
from ledgerbeam.io.tar.writer import encode_tar
from tests.io.datasets.webdataset.content import plain, plain_samples

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


@pytest.mark.parametrize(
    ("content", "found"),
    [
        ("", "expected 'v1.2 N'"),
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
    Path(dali_index_url(shard)).write_text(content, encoding="utf-8")
    with pytest.raises(IndexMismatchError, match=f"x.idx does not fit .*x.tar: .*{found}"):
        DaliReader(shard)


def test_an_index_that_is_not_text_is_an_error(shard: str) -> None:
    Path(dali_index_url(shard)).write_bytes(b"\xff\xfe")
    with pytest.raises(IndexMismatchError, match="expected text"):
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
    found = "expected it to be newer than its source, found it 10.000 s older. Make it again"
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
def test_a_shard_that_another_has_replaced_gives_none_of_its_bytes(
    shard: str, others: list[Sample], found: str
) -> None:
    write_dali_index(shard)
    Path(shard).write_bytes(encode_tar(others, group="key")[0] + bytes(10240))
    touch_index(shard)
    with pytest.raises(
        IndexMismatchError, match=f"x.idx does not fit .*: expected 'd/a.seg.png' of 3 bytes at byte 512, .*{found}"
    ):
        DaliReader(shard)[0]


def test_bytes_inside_another_member_are_none_of_a_file(shard: str) -> None:
    write_dali_index(shard)
    Path(shard).write_bytes(encode_tar([Sample("a", {"bin": b"n" * 10000})], group="key")[0])
    touch_index(shard)
    with pytest.raises(IndexMismatchError, match=r"'b.txt' of 600 bytes at byte 2560, found no header"):
        DaliReader(shard)[1]


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (GOLDEN.replace("512", "500"), "'d/a.seg.png' at a multiple of 512, .*found it at byte 500"),
        (GOLDEN.replace("512", "0"), "'d/a.seg.png' .* its header before it and after byte 0, found it at byte 0"),
        (GOLDEN.replace("1536 1", "1024 1"), "'d/a.cls' .* after byte 1024, found it at byte 1024"),
        (GOLDEN.replace("1536 1", "512 1"), "'d/a.cls' .* after byte 1024, found it at byte 512"),
        (
            GOLDEN.replace("512 3", "512 1").replace("1536 1", "1024 1"),
            "'d/a.cls' .* after byte 1024, found it at byte",
        ),
        (GOLDEN.replace("2560", "2048"), "'b.txt' .* after byte 2048, found it at byte 2048"),
        (GOLDEN.replace("2560", "2570"), "'b.txt' at a multiple of 512, .*found it at byte 2570"),
    ],
)
def test_a_place_where_no_content_can_be_is_refused_on_open(shard: str, content: str, found: str) -> None:
    Path(dali_index_url(shard)).write_text(content, encoding="utf-8")
    with pytest.raises(IndexMismatchError, match=f"x.idx does not fit .*x.tar: expected .*{found}"):
        DaliReader(shard)


def test_a_place_of_another_member_is_an_error(shard: str) -> None:
    Path(dali_index_url(shard)).write_text("v1.2 1\ntxt 2048 600 b.txt\n", encoding="utf-8")
    with pytest.raises(IndexMismatchError, match=r"'b.txt' of 600 bytes at byte 2048, found no header before it"):
        DaliReader(shard)[0]


def test_of_two_members_of_one_name_and_size_the_one_is_read_that_is_listed(tmp_path: Path) -> None:
    members = b"".join(encode_tar([Sample("a", {"txt": data})], group="key")[0][:1024] for data in (b"one", b"two"))
    (tmp_path / "x.tar").write_bytes(members + bytes(1024))
    (tmp_path / "x.idx").write_text("v1.2 1\ntxt 1536 3 a.txt\n", encoding="utf-8")
    assert plain(DaliReader(f"{tmp_path}/x.tar")[:]) == [("a", {"txt": b"two"})]


def test_a_member_is_found_behind_zeros_that_end_another_archive(tmp_path: Path) -> None:
    one, two = (encode_tar([Sample(name, {"txt": b"x"})], group="key")[0] for name in "ab")
    (tmp_path / "x.tar").write_bytes(one[:2048] + two)
    (tmp_path / "x.idx").write_text("v1.2 2\ntxt 512 1 a.txt\ntxt 2560 1 b.txt\n", encoding="utf-8")
    assert plain(DaliReader(f"{tmp_path}/x.tar")[:]) == [(name, {"txt": b"x"}) for name in "ab"]


def test_what_is_no_file_is_not_read_as_an_empty_one(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "x.tar", "w") as archive:
        link = tarfile.TarInfo("a.txt")
        link.type, link.linkname = tarfile.SYMTYPE, "b.txt"
        archive.addfile(link)
    (tmp_path / "x.idx").write_text("v1.2 1\ntxt 512 0 a.txt\n", encoding="utf-8")
    with pytest.raises(IndexMismatchError, match=r"'a.txt' of 0 bytes at byte 512, found 'a.txt', which is no file"):
        DaliReader(f"{tmp_path}/x.tar")[0]


def test_a_shard_may_end_with_the_content_of_its_last_file(tmp_path: Path) -> None:
    data, _ = encode_tar([Sample("a", {"txt": b"x" * 512})], group="key")
    (tmp_path / "x.tar").write_bytes(data[:1024])
    (tmp_path / "x.idx").write_text("v1.2 1\ntxt 512 512 a.txt\n", encoding="utf-8")
    assert plain(DaliReader(f"{tmp_path}/x.tar")[:]) == [("a", {"txt": b"x" * 512})]


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
    listed = subprocess.run(
        ["tar", "--list", "-f", "x.tar"],
        cwd=tmp_path,
        env=os.environ | {"LC_ALL": "C"},
        capture_output=True,
        check=True,
    ).stdout.decode("ascii")
    assert listed == "\\303\\251.txt\na\\\\b.txt\nc\\td.txt\n"
    places = [1536, 2048, 2560]  # a pax header comes before the first
    rows = "".join(f"txt {at} 0 {name}\n" for at, name in zip(places, listed.split(), strict=True))
    (tmp_path / "x.idx").write_text(f"v1.2 3\n{rows}", encoding="utf-8")
    assert [sample.key for sample in DaliReader(f"{tmp_path}/x.tar")] == ["é", "a\\b", "c\td"]


def test_a_sparse_member_is_not_read_as_what_is_stored_of_it(tmp_path: Path) -> None:
    with (tmp_path / "a.bin").open("wb") as file:
        file.truncate(1 << 20)
    subprocess.run(["tar", "--sparse", "--format=gnu", "-cf", "x.tar", "a.bin"], cwd=tmp_path, check=True)
    write_dali_index(f"{tmp_path}/x.tar")
    with pytest.raises(ArchiveError, match=r"x.tar: the member 'a.bin' at byte 0 is sparse, .* without --sparse"):
        DaliReader(f"{tmp_path}/x.tar")[0]


def touch_index(shard: str) -> None:
    """Make the age of the index say nothing."""
    os.utime(dali_index_url(shard))
