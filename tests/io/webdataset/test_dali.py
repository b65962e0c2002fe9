"""DALI's index: golden text, what is refused, what GNU tar says of the same shard."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from ledgerbeam.errors import ArchiveError, IndexMismatchError, IndexNotFoundError
from ledgerbeam.io import Sample
from ledgerbeam.io.tar.encode import encode_tar
from ledgerbeam.io.webdataset import DaliReader, write_dali_index
from ledgerbeam.io.webdataset.dali import dali_index_url
from tests.io.webdataset.content import plain, plain_samples

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
