"""Samples: grouping, reading, writing."""

from __future__ import annotations

import copy
import io
import pickle
import shutil
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ledgerbeam.errors import ArchiveError, IndexMismatchError, RecordError
from ledgerbeam.io.index.file import write_index
from ledgerbeam.io.tar.encode import encode_tar
from ledgerbeam.io.tar.grouping import Grouping, are_pairs, name_sample, split_key, split_stem
from ledgerbeam.io.tar.reader import TarReader, build_tar_index, split_tar
from ledgerbeam.io.tar.sample import Sample

pytestmark = pytest.mark.usefixtures("implementation")

_Member = str | tuple[str, bytes]


def write_tar(path: Path, members: list[_Member], layout: int = tarfile.PAX_FORMAT) -> str:
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
    """Return the names of the members with which the samples begin."""
    offsets = build_tar_index(path, group=group).tolist()
    with tarfile.open(path) as tar:
        names = {member.offset: member.name for member in tar}
    return [names[offset] for offset in offsets[:-1]]


@pytest.mark.parametrize(
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


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("22.0/1.1.png", ("22.0/1", "1.png")),
        ("./a.jpg", ("./a", "jpg")),
        ("a..jpg", ("a", ".jpg")),
        ("a.JPG", ("a", "JPG")),
        ("__x__.json", ("__x__", "json")),
        ("dir/__m__/q.jpg", ("dir/__m__/q", "jpg")),
        ("___/q.jpg", ("___/q", "jpg")),
        ("d/.jpg", ("d/", "jpg")),
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


@pytest.mark.parametrize(
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
    assert len(build_tar_index(write_tar(tmp_path / "y.tar", ["a.x", "a.y", "a.X"]))) == 2


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
    """A sample with attributes of its own."""

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
_samples = st.lists(
    st.tuples(_keys, st.dictionaries(_part, st.binary(max_size=1500), min_size=1, max_size=4)), max_size=8
).map(lambda items: [Sample(f"{i}{key}", members) for i, (key, members) in enumerate(items)])


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
    samples = [Sample(f"a.{i}", {"wav": b"", "json": b""}) for i in range(3)]
    assert [sample.key for sample in split_tar(encode_tar(samples)[0], "x")] == ["a.0", "a.1", "a.2"]
    with pytest.raises(RecordError, match=r"output sample 0 \('a\.0'.*key without a dot"):
        encode_tar(samples, group="key")
    with pytest.raises(RecordError, match=r"output sample 0 .*key without a dot"):
        encode_tar([*samples, Sample("b", {"wav": b""})])


@pytest.mark.parametrize(
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
