"""Samples: grouping, reading, writing."""

from __future__ import annotations

import copy
import gzip
import io
import pickle
import shutil
import subprocess
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ledgerbeam.errors import ArchiveError, IndexMismatchError, RecordError
from ledgerbeam.io.formats.streamed import scan_stream
from ledgerbeam.io.index.file import write_index
from ledgerbeam.io.tar.grouping import Grouping, are_pairs, name_sample, split_key, split_stem
from ledgerbeam.io.tar.reader import TarReader, build_tar_index, split_tar
from ledgerbeam.io.tar.sample import Sample
from ledgerbeam.io.tar.writer import encode_tar
from tests.cases import each

pytestmark = pytest.mark.usefixtures("implementation")

_Member = str | tuple[str, bytes]


def write_tar(path: Path, members: Sequence[_Member], layout: int = tarfile.PAX_FORMAT) -> str:
    with tarfile.open(path, "w", format=layout) as tar:
        for member in members:
            name, kind = (member, tarfile.REGTYPE) if isinstance(member, str) else member
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, "target"
            content = name.encode() if info.isreg() else b""
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return str(path)


def firsts(path: str, group: Grouping = "auto") -> list[str]:
    """Return the names of the first members of the samples."""
    offsets = build_tar_index(path, group=group).tolist()
    with tarfile.open(path) as tar:
        names = {member.offset: member.name for member in tar}
    return [names[offset] for offset in offsets[:-1]]


@each(
    ("name", "parts"),
    [
        ("a/b.c.wav", ("a/b.c", "wav")),
        ("a.b/c", ("a.b/c", "")),
        ("a/.hidden", ("a/.hidden", "")),
        ("a..jpg", ("a.", "jpg")),
        ("a", ("a", "")),
    ],
)
def test_a_stem_ends_at_the_last_dot(name: str, parts: tuple[str, str]) -> None:
    assert split_stem(name) == parts


@each(
    ("name", "parts"),
    [
        ("22.0/1.1.png", ("22.0/1", "1.png")),
        ("./a.jpg", ("./a", "jpg")),
        ("a..jpg", ("a", ".jpg")),
        ("a.JPG", ("a", "JPG")),
        ("__x__.json", ("__x__", "json")),
        ("dir/__m__/q.jpg", ("dir/__m__/q", "jpg")),
        ("___/q.jpg", ("___/q", "jpg")),
        ("d/.jpg", None),
        ("d/._a.jpg", None),
        ("x.y/.jpg", None),
        (".jpg", None),
        ("README", None),
        ("a.", ("a", "")),
        ("__x__/q.jpg", None),
        ("__x__", None),
    ],
)
def test_a_key_ends_at_the_first_dot_of_the_base_name(name: str, parts: tuple[str, str] | None) -> None:
    assert split_key(name) == parts


@each(
    ("names", "paired"),
    [
        ([], True),
        (["a.x", "a.y", "b.x", "b.y"], True),
        (["a.1.x", "a.1.y", "a.2.x", "a.2.y"], True),
        (["a.x", "a.y", "a.x", "a.y"], True),
        (["a.x", "a.y", "a.z", "a.y"], True),
        (["a.x", "a.y", "a.z", "a.w"], False),
        (["a.x", "a.y", "b.x"], False),
        (["a.x", "b.x"], False),
        (["a.seg.x", "a.y"], False),
        (["a", "a"], False),
        (["a.", "a."], False),
        (["a.x", "a.X"], False),
        ([".x", ".y"], False),
        (["d/.x", "d/.y"], False),
        (["a.b/c", "a.b/d"], False),
        (["a.b", "a.b/c"], False),
    ],
)
def test_what_looks_like_pairs(names: list[str], paired: bool) -> None:
    assert are_pairs(names) is paired


def test_a_sample_is_named_by_the_rule_of_its_group() -> None:
    assert name_sample(["a.1.x", "a.1.y"], "auto") == ("a.1", ["x", "y"])
    assert name_sample(["a.1.x", "a.1.y"], "pairs") == ("a.1", ["x", "y"])
    assert name_sample(["a.1.x", "a.1.y"], "key") == ("a", ["1.x", "1.y"])
    assert name_sample(["a.1.x", "README", "a.y"], "auto") == ("a", ["1.x", None, "y"])
    assert name_sample(["a.X", "a.Seg.Y", "a.É"], "key") == ("a", ["x", "seg.y", "é"])
    assert name_sample(["A.X", "A.Y"], "auto") == ("A", ["x", "y"])
    assert name_sample(["A.X", "A.Y"], "pairs") == ("A", ["X", "Y"])
    assert name_sample(["a.x", "b.x"], "auto") is None
    assert name_sample(["README"], "auto") is None
    assert name_sample([], "auto") is None


def test_pairs_take_every_other_member_of_any_kind(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "x.tar", ["a.x", ("dir", b"5"), ("link", b"2"), "b.x"])
    assert firsts(path, "pairs") == ["a.x", "link"]


def test_an_odd_number_of_members_is_no_shar(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "x.tar", ["a.x", "a.y", "b.x"])
    with pytest.raises(ArchiveError, match=r"x\.tar: expected pairs of members, found 3.*'b\.x'"):
        build_tar_index(path, group="pairs")
    assert firsts(path) == ["a.x", "b.x"]


def test_keys_group_adjacent_files_only(tmp_path: Path) -> None:
    members: list[_Member] = [
        ("d", b"5"),
        "d/a.jpg",
        "README",
        "d/a.seg.png",
        ("d/a.link", b"2"),
        ".h.x",
        "d/b.jpg",
        "d/a.jpg",
        "z",
    ]
    path = write_tar(tmp_path / "x.tar", members)
    assert firsts(path, "key") == firsts(path) == ["d/a.jpg", "d/b.jpg", "d/a.jpg"]
    write_index(path + ".idx", build_tar_index(path))
    samples = list(TarReader(path))
    assert [(sample.key, list(sample)) for sample in samples] == [
        ("d/a", ["jpg", "seg.png"]),
        ("d/b", ["jpg"]),
        ("d/a", ["jpg"]),
    ]
    assert samples[0]["seg.png"] == b"d/a.seg.png"


def test_an_extension_twice_in_a_sample_is_an_error(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "x.tar", ["a.x", "a.y", "a.x"])
    with pytest.raises(ArchiveError, match=r"member 'a\.x' at byte 2048 repeats an extension of sample 'a'"):
        build_tar_index(path)
    path = write_tar(tmp_path / "y.tar", ["a.x", "a.y", "a.X"])  # webdataset reads extensions in lower case
    with pytest.raises(ArchiveError, match=r"member 'a\.X' at byte 2048 repeats an extension of sample 'a'"):
        build_tar_index(path)


def test_hidden_files_are_left_out_and_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    names: list[_Member] = ["d/._1.x", "d/1.x", "._1.y", "d/1.y", "d/.DS_Store", "d/2.x", "d/2.y", ("d/.folder", b"5")]
    path = write_tar(tmp_path / "x.tar", names)
    write_index(path + ".idx", build_tar_index(path))
    assert [(sample.key, list(sample)) for sample in TarReader(path)] == [("d/1", ["x", "y"]), ("d/2", ["x", "y"])]
    assert [record.getMessage() for record in caplog.records] == [
        f"{path}: 3 hidden files such as 'd/._1.x' belong to no sample and are left out"
    ]
    caplog.clear()
    build_tar_index(write_tar(tmp_path / "y.tar", ["d/1.x", "d/1.y"]))
    assert not caplog.records


def test_members_of_a_sample_that_are_apart_are_refused(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "x.tar", ["0.x", "1.x", "0.y", "1.y"])
    for read in (lambda: build_tar_index(path), lambda: split_tar(Path(path).read_bytes(), path)):
        with pytest.raises(
            ArchiveError, match=r"sample '0' apart: '0\.x' at byte 0, '0\.y' at byte 2048; .*--sort=name"
        ):
            read()
    (tmp_path / "x.tar.gz").write_bytes(gzip.compress(Path(path).read_bytes()))
    with pytest.raises(ArchiveError, match="sample '0' apart"):
        scan_stream(path + ".gz")


def test_equal_keys_apart_are_samples_of_their_own_where_an_extension_comes_again(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "x.tar", ["0.x", "0.y", "1.x", "0.X", "0.z"])
    assert firsts(path) == ["0.x", "1.x", "0.X"]


def test_names_that_are_pairs_and_larger_samples_are_refused_unless_the_group_is_given(tmp_path: Path) -> None:
    names = [f"{number}.{part}.{kind}" for number in range(3) for part in ("img", "mask") for kind in ("jpg", "json")]
    path = write_tar(tmp_path / "x.tar", names)
    with pytest.raises(
        ArchiveError, match=r"'0\.img\.jpg' and '0\.mask\.jpg' are members of one.*--group key or --group"
    ):
        build_tar_index(path)
    assert firsts(path, "pairs") == names[::2]
    assert firsts(path, "key") == names[::4]
    write_index(path + ".idx", build_tar_index(path, group="key"))
    for group in ("key", "auto"):
        assert list(TarReader(path, group=group)[1]) == ["img.jpg", "img.json", "mask.jpg", "mask.json"]


def test_pairs_that_webdataset_names_otherwise_give_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for names, warnings in (
        (["0.img.x", "0.img.y", "1.img.x", "1.img.y"], 1),
        (["0.img.x", "0.img.y", "1.img.x", "1.img.y", "1.z"], 1),
        (["a_sp0.9.x", "a_sp0.9.y", "b_sp0.9.x", "b_sp0.9.y"], 0),  # as lhotse names a cut whose speed was changed
        (["0.x", "0.y", "1.x", "1.y"], 0),
    ):
        caplog.clear()
        path = write_tar(tmp_path / "x.tar", names)
        assert firsts(path) == names[:4:2]
        assert len(caplog.records) == warnings
    build_tar_index(write_tar(tmp_path / "y.tar", ["0.img.x", "0.img.y"]))
    assert "'0.img.x' is read as 'x' of sample '0.img', and by webdataset as 'img.x' of '0'" in caplog.text


def test_a_name_that_is_not_utf_8_is_named_by_the_error_of_its_json_value() -> None:
    for sample in (Sample("caf\udce9", {"txt": b""}), Sample("caf", {"t": b"", "\udce9": b""})):
        with pytest.raises(RecordError, match=r"member b'caf.*\\xe9.*': expected a name in UTF-8"):
            sample.as_json()


def test_an_archive_without_samples(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "x.tar", [])
    assert build_tar_index(path).tolist() == [10240]
    write_index(path + ".idx", build_tar_index(path))
    assert list(TarReader(path)) == []


@pytest.mark.parametrize("layout", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_long_and_non_ascii_names_are_read(tmp_path: Path, layout: int) -> None:
    keys = ["k" * 150, "größe/ü", "plain"]
    path = write_tar(
        tmp_path / "x.tar", [f"{key}.{extension}" for key in keys for extension in ("wav", "json")], layout
    )
    write_index(path + ".idx", build_tar_index(path))
    reader = TarReader(path)
    assert [sample.key for sample in reader] == keys
    assert [dict(reader[i]) for i in range(3)] == [
        {extension: f"{key}.{extension}".encode() for extension in ("wav", "json")} for key in keys
    ]


@pytest.mark.parametrize("group", ["pairs", "key", "auto"])
def test_a_shar_archive_reads_through_an_index_of_either_grouping(tmp_path: Path, group: Grouping) -> None:
    path = write_tar(tmp_path / "x.tar", ["a.x", "a.y", "b.x", "b.y"])
    write_index(path + ".idx", build_tar_index(path, group=group))
    assert [sample.key for sample in TarReader(path)] == ["a", "b"]


def test_members_of_two_samples_in_one_range_are_an_error(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "x.tar", ["a.x", "b.x", "c.x", "d.x"])
    write_index(path + ".idx", build_tar_index(path, group="pairs"))
    with pytest.raises(IndexMismatchError, match=r"not one sample.*ledgerbeam index"):
        TarReader(path)[1]


@pytest.mark.skipif(shutil.which("tar") is None, reason="no GNU tar on this machine")
@pytest.mark.parametrize("layout", ["gnu", "pax"])
def test_sparse_files_are_read_with_their_holes(tmp_path: Path, layout: str) -> None:
    content = bytes(200_000) + b"end"
    with (tmp_path / "a.bin").open("wb") as file:
        file.seek(200_000)
        file.write(b"end")
    (tmp_path / "a.txt").write_bytes(b"text")
    path = str(tmp_path / "x.tar")
    subprocess.run(["tar", "-C", str(tmp_path), f"--format={layout}", "-S", "-cf", path, "a.bin", "a.txt"], check=True)
    write_index(path + ".idx", build_tar_index(path))
    assert TarReader(path)[0] == {"bin": content, "txt": b"text"}


class Rated(Sample):
    """A sample with additional attributes."""

    rate: int


def test_a_sample_is_a_mapping_that_pickles_with_its_key() -> None:
    sample, rated = Sample("a/1", {"wav": b"12", "json": b"{}"}), Rated("a/2", {"wav": b"3"})
    rated.rate = 8000
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        found, other = pickle.loads(pickle.dumps([sample, rated], protocol))
        assert (found, found.key, type(found)) == ({"wav": b"12", "json": b"{}"}, "a/1", Sample)
        assert (other, other.key, type(other), other.rate) == ({"wav": b"3"}, "a/2", Rated, 8000)
    again = copy.deepcopy(sample)
    assert (again, again.key, again is sample) == (sample, "a/1", False)
    assert repr(sample) == "Sample('a/1', {'wav': 2 bytes, 'json': 2 bytes})"


_part = st.text(st.characters(codec="utf-8", exclude_characters="\0/."), min_size=1, max_size=8).filter(
    lambda part: not part.startswith("__")
)
_keys = st.lists(_part, min_size=1, max_size=3).map("/".join) | st.integers(95, 260).map(lambda n: "k" * n)
_extension = _part.map(str.lower)
_samples = st.lists(
    st.tuples(_keys, st.dictionaries(_extension, st.binary(max_size=1500), min_size=1, max_size=4)), max_size=8
).map(lambda items: [Sample(f"{i}{key}", members) for i, (key, members) in enumerate(items)])


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(samples=_samples)
def test_what_is_encoded_is_split_again_and_tarfile_agrees(
    tmp_path_factory: pytest.TempPathFactory, samples: list[Sample]
) -> None:
    data, offsets = encode_tar(samples)
    assert encode_tar(samples)[0] == data
    found = split_tar(data, "x")
    assert [(sample.key, list(sample.items())) for sample in found] == [(s.key, list(s.items())) for s in samples]
    path = tmp_path_factory.getbasetemp() / "encoded.tar"
    path.write_bytes(data)
    np.testing.assert_array_equal(build_tar_index(str(path)), offsets)
    with tarfile.open(path) as tar:
        members = tar.getmembers()
        assert [member.name for member in members] == [f"{s.key}.{extension}" for s in samples for extension in s]
        assert all(member.mode == 0o644 and not member.mtime and not member.uname for member in members)
    assert len(data) % 10240 == 0


def test_dotted_keys_are_written_where_all_samples_are_pairs() -> None:
    samples = [Sample(f"{i}.a", {"wav": b"", "json": b""}) for i in range(3)]
    assert [sample.key for sample in split_tar(encode_tar(samples)[0], "x")] == ["0.a", "1.a", "2.a"]
    with pytest.raises(RecordError, match=r"output sample 0 \('0\.a'.*key without a dot"):
        encode_tar(samples, group="key")
    with pytest.raises(RecordError, match=r"output sample 0 \('a\.0'.*key without a dot"):  # one sample for webdataset
        encode_tar([Sample(f"a.{i}", {"wav": b"", "json": b""}) for i in range(3)])
    with pytest.raises(RecordError, match=r"output sample 0 .*key without a dot"):
        encode_tar([*samples, Sample("b", {"wav": b""})])


@each(
    ("sample", "found"),
    [
        ({"wav": b""}, "output sample 1 is dict; expected a Sample"),
        (Sample("a"), "output sample 1 .*no member"),
        (Sample("", {"x": b""}), "the key ''"),
        (Sample("/a", {"x": b""}), "the key '/a'"),
        (Sample("a/../b", {"x": b""}), "without '..'"),
        (Sample("..", {"x": b""}), "without '..'"),
        (Sample("a/", {"x": b""}), "the key 'a/'"),
        (Sample("a\0b", {"x": b""}), "the key"),
        (Sample("a", {"": b""}), "the extension ''"),
        (Sample("a", {"x/y": b""}), "the extension 'x/y'"),
        (Sample("a", {"x": "text"}), "has str under 'x'; expected bytes"),  # type: ignore[arg-type]
        (Sample("first", {"y": b""}), "the key of the one before"),
        (Sample(".hidden", {"x": b""}), "would be read back as None"),
        (Sample("__m__/a", {"x": b""}), "would be read back as None"),
        (Sample("a", {"b.x": b"", "b.y": b""}), "would be read back as"),
        (Sample("a", {"X": b""}), "has the extensions X; expected lower case"),
    ],
)
def test_a_sample_that_cannot_be_written_is_named(sample: Any, found: str) -> None:
    with pytest.raises(RecordError, match=found):
        encode_tar([Sample("first", {"x": b"1"}), sample])


def test_no_samples_encode_to_an_archive_of_none() -> None:
    data, offsets = encode_tar([])
    assert (data, offsets.tolist()) == (bytes(10240), [10240])
    assert split_tar(data, "x") == []


@pytest.mark.parametrize("change", ["cut", "grown", "aligned"])
def test_an_index_that_is_not_this_archives(tmp_path: Path, change: str) -> None:
    path = write_tar(tmp_path / "x.tar", [f"{i}.{e}" for i in range(50) for e in "xy"], tarfile.USTAR_FORMAT)
    offsets = build_tar_index(path).copy()
    if change == "cut":
        offsets = offsets[:20]
    elif change == "grown":
        offsets[-1] += np.uint64(512 * 100)
    else:
        offsets[0] += np.uint64(100)
    write_index(path + ".idx", offsets)
    found = {"cut": "found more members", "grown": "up to the size of the source", "aligned": "multiple of 512"}
    with pytest.raises(IndexMismatchError, match=found[change]):
        TarReader(path)
