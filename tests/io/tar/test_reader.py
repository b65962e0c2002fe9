"""Tar archives: the walker against Python's tarfile, which decides every tie; samples grouped, read and written."""

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

from ledgerbeam.errors import ArchiveError, IndexMismatchError, RecordError, SourceNotFoundError
from ledgerbeam.io.formats.streamed import scan_stream
from ledgerbeam.io.index.file import write_index
from ledgerbeam.io.storage.client import filesystem
from ledgerbeam.io.tar import walk as tar_source
from ledgerbeam.io.tar.format import TarFormat
from ledgerbeam.io.tar.grouping import Grouping, are_pairs, name_sample, split_key, split_stem
from ledgerbeam.io.tar.reader import TarReader, build_tar_index
from ledgerbeam.io.tar.sample import Sample
from ledgerbeam.io.tar.walk import TarMembers, walk_bytes, walk_tar
from ledgerbeam.io.tar.writer import encode_tar
from tests.cases import each
from tests.conftest import S3Server

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


def test_a_stem_ends_at_the_last_dot() -> None:
    names = ["a/b.c.wav", "a..jpg", "a.b/c", "a/.hidden", "a"]
    assert list(map(split_stem, names)) == [("a/b.c", "wav"), ("a.", "jpg"), *((name, "") for name in names[2:])]


KEYS = {
    "22.0/1.1.png": ("22.0/1", "1.png"),
    "./a.jpg": ("./a", "jpg"),
    "a..jpg": ("a", ".jpg"),
    "a.JPG": ("a", "JPG"),
    "__x__.json": ("__x__", "json"),
    "dir/__m__/q.jpg": ("dir/__m__/q", "jpg"),
    "___/q.jpg": ("___/q", "jpg"),
    "a.": ("a", ""),
} | dict.fromkeys(["d/.jpg", "d/._a.jpg", "x.y/.jpg", ".jpg", "README", "__x__/q.jpg", "__x__"])


def test_a_key_ends_at_the_first_dot_of_the_base_name() -> None:
    assert {name: split_key(name) for name in KEYS} == KEYS


PAIRS = ["", "a.x a.y b.x b.y", "a.1.x a.1.y a.2.x a.2.y", "a.x a.y a.x a.y", "a.x a.y a.z a.y"]
NO_PAIRS = [
    *("a.x a.y a.z a.w", "a.x a.y b.x", "a.x b.x", "a.seg.x a.y", "a a", "a. a.", "a.x a.X"),
    *(".x .y", "d/.x d/.y", "a.b/c a.b/d", "a.b a.b/c"),
]


@each("names", [*PAIRS, *NO_PAIRS])
def test_what_looks_like_pairs(names: str) -> None:
    assert are_pairs(names.split()) is (names in PAIRS)


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
    start: list[_Member] = [("d", b"5"), "d/a.jpg", "README", "d/a.seg.png", ("d/a.link", b"2")]
    path = write_tar(tmp_path / "x.tar", [*start, ".h.x", "d/b.jpg", "d/a.jpg", "z"])
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
        f"{path}: hidden files are in no sample and are left out: 3, such as 'd/._1.x'"
    ]
    caplog.clear()
    build_tar_index(write_tar(tmp_path / "y.tar", ["d/1.x", "d/1.y"]))
    assert not caplog.records


def test_members_of_a_sample_that_are_apart_are_refused(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "x.tar", ["0.x", "1.x", "0.y", "1.y"])
    for read in (lambda: build_tar_index(path), lambda: TarFormat().split(Path(path).read_bytes(), path)):
        with pytest.raises(ArchiveError, match=r"'0' apart: '0\.x' at byte 0, '0\.y' at byte 2048; .*--sort=name"):
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
    found = r"'0\.img\.jpg' and '0\.mask\.jpg' are members of one.*--group key or --group"
    with pytest.raises(ArchiveError, match=found):
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
    assert "'0.img.x' is read as 'x' of sample '0.img', by webdataset as 'img.x' of sample '0'" in caplog.text


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
def test_what_is_encoded_is_split_again(tmp_path_factory: pytest.TempPathFactory, samples: list[Sample]) -> None:
    data, offsets = encode_tar(samples)
    assert encode_tar(samples)[0] == data
    found = TarFormat().split(data, "x")
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
    assert [sample.key for sample in TarFormat().split(encode_tar(samples)[0], "x")] == ["0.a", "1.a", "2.a"]
    with pytest.raises(RecordError, match=r"output sample 0 \('0\.a'.*key without a dot"):
        encode_tar(samples, group="key")
    with pytest.raises(RecordError, match=r"output sample 0 \('a\.0'.*key without a dot"):  # one sample for webdataset
        encode_tar([Sample(f"a.{i}", {"wav": b"", "json": b""}) for i in range(3)])
    with pytest.raises(RecordError, match=r"output sample 0 .*key without a dot"):
        encode_tar([*samples, Sample("b", {"wav": b""})])


def test_samples_of_two_members_have_the_index_of_energon(tmp_path: Path) -> None:
    one, other = ([Sample(key.format(i), {"wav": b"x", "json": b"{}"}) for i in range(3)] for key in ("a{}", "a.{}"))
    data, index = TarFormat().encode(one)
    (tmp_path / "x.tar").write_bytes(data.data)
    (tmp_path / "x.tar.idx").write_bytes(index.data)
    assert np.frombuffer(index.data, np.uint64)[-1] == 3 * 2 * 1024  # where the last sample ends
    assert TarReader(str(tmp_path / "x.tar"))[:] == one
    with pytest.raises(RecordError, match=r"output sample 0 \('a\.0': .*\) would be read back as \('a', "):
        TarFormat().encode(other)


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
        (Sample("first", {"y": b""}), "the key of the sample before"),
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
    assert TarFormat().split(data, "x") == []


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


FORMATS = {"ustar": tarfile.USTAR_FORMAT, "gnu": tarfile.GNU_FORMAT, "pax": tarfile.PAX_FORMAT}
KINDS = [tarfile.REGTYPE] * 6 + [tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CONTTYPE]

_Item = tuple[str, bytes, int, float]


def archive(items: list[_Item], layout: int = tarfile.USTAR_FORMAT, **options: Any) -> bytes:
    """Return an archive of (name, type, size, mtime); a fractional mtime makes pax write an extension header."""
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w", format=layout, **options) as tar:
        for name, kind, size, mtime in items:
            info = tarfile.TarInfo(name)
            info.type, info.mtime, info.linkname = kind, mtime, "target"
            info.size = size if info.isreg() else 0
            tar.addfile(info, io.BytesIO(b"p" * info.size))
    return target.getvalue()


def require_as_tarfile(found: TarMembers, data: bytes) -> None:
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        members = tar.getmembers()
    assert found.names == [member.name for member in members]
    assert found.header_offset.tolist() == [member.offset for member in members]
    assert found.data_offset.tolist() == [member.offset_data for member in members]
    assert found.size.tolist() == [member.size for member in members]
    assert bytes(found.kind) == b"".join(member.type for member in members)
    assert found.regular.tolist() == [member.isreg() for member in members]


def check_walks(path: Path, data: bytes) -> None:
    """Require the members of tarfile, from a file and from memory."""
    path.write_bytes(data)
    for found in (walk_tar(str(path)), walk_bytes(data, "x")):
        require_as_tarfile(found, data)


_text = st.text(st.characters(codec="utf-8", exclude_characters="\0/"), min_size=1, max_size=20)
_names = st.one_of(
    _text,
    st.lists(_text, min_size=2, max_size=4).map("/".join),
    st.integers(90, 300).map(lambda n: "long/" * (n // 5) + "x" * (n % 5 + 1)),
).filter(lambda name: not name.endswith("/"))
_items = st.lists(
    st.tuples(
        _names,
        st.sampled_from(KINDS),
        st.sampled_from([0, 1, 511, 512, 513, 5000, 70_000]),
        st.sampled_from([0, 0, 0, 1.5]),
    ),
    max_size=40,
)


@pytest.mark.parametrize("padding", [2 * 512, 10_240, 600_000], ids=["no", "as usual", "a large blocking factor"])
@pytest.mark.parametrize("behind", ["an archive", "garbage"])
def test_what_follows_the_end_of_an_archive_is_told(tmp_path: Path, padding: int, behind: str) -> None:
    first = archive([("a.txt", tarfile.REGTYPE, 10, 0)])[:1024]
    data = first + bytes(padding) + (archive([("b.txt", tarfile.REGTYPE, 10, 0)]) if behind == "an archive" else b"x")
    path = tmp_path / "x.tar"
    path.write_bytes(data)
    at = rf"x\.tar: the archive ends at byte 1024, and something follows its end marker at byte {1024 + padding}; "
    for walk in (lambda: walk_tar(str(path)), lambda: walk_bytes(data, "x.tar")):
        with pytest.raises(ArchiveError, match=at) as raised:
            walk()
        assert "tar --concatenate" in str(raised.value)
    subprocess.run(["truncate", "--size", "2048", path], check=True)
    assert walk_tar(str(path)).names == ["a.txt"]


def test_padding_is_no_archive(tmp_path: Path) -> None:
    data = archive([("a.txt", tarfile.REGTYPE, 10, 0)]) + bytes(3_000_000)
    check_walks(tmp_path / "x.tar", data)


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(items=_items, layout=st.sampled_from([tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]))
def test_any_archive(tmp_path_factory: pytest.TempPathFactory, items: list[_Item], layout: int) -> None:
    check_walks(tmp_path_factory.getbasetemp() / "walk.tar", archive(items, layout))


@pytest.mark.slow
@pytest.mark.parametrize("layout", FORMATS)
@pytest.mark.parametrize("size", [100, 3000, 20_000])
def test_long_archives_of_each_format(tmp_path: Path, layout: str, size: int) -> None:
    """Long enough that the walk changes between its ways of reading."""
    items: list[_Item] = []
    for i in range(3000 if size < 20_000 else 1500):
        items.append((f"a/{i:05d}.wav", tarfile.REGTYPE, size + i % 700, 0))
        if i % 500 == 17:
            items += [(f"a/dir{i}", tarfile.DIRTYPE, 0, 0), ("b" * 40 + "/" + "c" * 80 + str(i), tarfile.REGTYPE, 7, 0)]
        if i % 2:
            items.append((f"a/{i:05d}.json", tarfile.REGTYPE, 80, 0))
    data = archive(items, FORMATS[layout])
    check_walks(tmp_path / "x.tar", data)


def test_a_large_member_among_small_ones(tmp_path: Path) -> None:
    items: list[_Item] = [(f"{i}", tarfile.REGTYPE, 9_000_000 if i in (300, 900) else i, 0) for i in range(1200)]
    data = archive(items)
    check_walks(tmp_path / "x.tar", data)


def test_a_long_payload_among_small_members_is_not_read(tmp_path: Path) -> None:
    head = archive([(f"{i}", b"0", 100, 0) for i in range(600)])[: 600 * 1024]
    large = tarfile.TarInfo("large")
    large.size = 1 << 30
    with (tmp_path / "x.tar").open("wb") as file:
        file.write(head + large.tobuf(tarfile.USTAR_FORMAT))
        file.seek(large.size, 1)
        file.write(head + bytes(1024))
    before = bytes_read()
    found = walk_tar(str(tmp_path / "x.tar"))
    assert bytes_read() - before < 10 * len(head)
    assert len(found) == 1201
    assert found.names[600] == "large"


def bytes_read() -> int:
    """Return the number of bytes that this process has requested from the kernel so far."""
    return int(Path("/proc/self/io").read_text(encoding="utf-8").split()[1])


@pytest.mark.parametrize("cut", [0, 100])
def test_pairs_of_a_large_and_a_small_member_without_end_blocks(tmp_path: Path, cut: int) -> None:
    items: list[_Item] = [(f"{i // 2}.{i % 2}", b"0", (40_000, 80)[i % 2], 0) for i in range(400)]
    whole = archive(items)
    end = walk_bytes(whole, "x").end
    (tmp_path / "x.tar").write_bytes(whole[: end - cut])
    if not cut:
        assert len(walk_tar(str(tmp_path / "x.tar"))) == 400
        return
    with pytest.raises(ArchiveError, match=r"member '199\.1'"):
        walk_tar(str(tmp_path / "x.tar"))


@pytest.mark.parametrize("near", [0, 10**9])
def test_remote_archives_by_blocks_and_by_hops(monkeypatch: pytest.MonkeyPatch, near: int) -> None:
    monkeypatch.setattr(tar_source, "_REMOTE", (near, 64 * 1024))
    monkeypatch.setattr(tar_source, "_FIRST_REQUEST", 4096)
    items: list[_Item] = [(f"é{i}" * (i % 30), tarfile.REGTYPE, i * 37, i % 3 / 2) for i in range(1, 300)]
    data = archive(items, tarfile.PAX_FORMAT)
    store = filesystem("memory://")
    store.pipe_file("/walk/x.tar", data)
    try:
        require_as_tarfile(walk_tar("memory://walk/x.tar"), data)
    finally:
        store.rm("/walk", recursive=True)


@pytest.mark.s3
def test_an_archive_in_an_object_store(s3: S3Server) -> None:
    data = archive([(f"{i}.bin", tarfile.REGTYPE, i * 300, 0) for i in range(200)])
    url = f"s3://{s3.bucket()}/x.tar"
    filesystem(url, s3.options).pipe_file(url, data)
    require_as_tarfile(walk_tar(url, s3.options), data)


def patched(start: int, content: bytes, size: int = 700, kind: bytes = b"0") -> bytes:
    """Return three members, the header of the first changed and its checksum made right again."""
    data = bytearray(archive([("first", kind, size, 0), ("second", tarfile.REGTYPE, 9, 0), ("third", b"5", 0, 0)]))
    data[start : start + len(content)] = content
    data[148:156] = b" " * 8
    data[148:156] = b"%06o\0 " % sum(data[:512])
    return bytes(data)


@each(
    ("start", "content"),
    [
        *((124, size) for size in (b"\x80" + (700).to_bytes(11), b"000000001274", b"       1274 ", b"1274" + bytes(8))),
        *((257, b"\0" * 8), (156, b"\0"), (156, b"A"), (345, b"some/prefix")),  # magic, type flags, a prefix
        *((0, name) for name in (b"n" * 100, b"name\0garbage", b"\xff\xfe\n")),
    ],
)
def test_unusual_headers(start: int, content: bytes) -> None:
    data = patched(start, content)
    require_as_tarfile(walk_bytes(data, "x"), data)


@each("kind", [b"1", b"2", b"5"])
def test_a_size_of_what_has_no_payload_is_not_followed(kind: bytes) -> None:
    data = patched(124, b"00000010000", size=0, kind=kind)
    found = walk_bytes(data, "x")
    assert found.names == ["first", "second", "third"]
    assert found.size.tolist() == [0, 9, 0]
    assert found.header_offset.tolist() == [0, 512, 1536]


def test_a_folder_of_an_old_archive() -> None:
    data = patched(0, b"folder/", size=0, kind=b"\0")
    assert walk_bytes(data, "x").names[0] == "folder"
    require_as_tarfile(walk_bytes(data, "x"), data)


def test_gnu_times_are_not_taken_for_a_prefix() -> None:
    data = patched(257, b"ustar  \0".ljust(88, b"\0") + b"14562236130\0")
    assert walk_bytes(data, "x").names == ["first", "second", "third"]


def test_checksums_of_signed_bytes_are_accepted() -> None:
    data = bytearray(patched(0, b"\xc3\xa9"))
    data[148:156] = b"%06o\0 " % (256 + sum((byte ^ 128) - 128 for byte in data[:148] + data[156:512]))
    assert walk_bytes(bytes(data), "x").names[0].startswith("é")


def test_pax_values_of_one_member_and_of_all() -> None:
    long = "größe/" * 30 + "x"
    for options in ({}, {"pax_headers": {"comment": "for all"}}):
        data = archive([(long, b"0", 600, 0), ("b", b"0", 3, 2.5), ("c", b"0", 3, 0)], tarfile.PAX_FORMAT, **options)
        require_as_tarfile(walk_bytes(data, "x"), data)
    data = archive([("a", b"0", 600, 0), ("b", b"0", 3, 0)], tarfile.PAX_FORMAT, pax_headers={"path": "one/name"})
    with pytest.raises(ArchiveError, match="global header at byte 0 sets 'path'"):  # a sample is read without it
        walk_bytes(data, "x")


def test_a_pax_size_is_followed() -> None:
    target = io.BytesIO()
    info = tarfile.TarInfo("large")
    info.size, info.pax_headers = 0, {"size": "1500"}
    target.write(info.tobuf(tarfile.PAX_FORMAT) + bytes(1536) + archive([("next", b"0", 4, 0)]))
    require_as_tarfile(walk_bytes(target.getvalue(), "x"), target.getvalue())


@pytest.mark.skipif(shutil.which("tar") is None, reason="no GNU tar on this machine")
@pytest.mark.parametrize("version", [None, "0.0", "0.1", "1.0"])
def test_sparse_members_of_gnu_tar(tmp_path: Path, version: str | None) -> None:
    with (tmp_path / "holes.bin").open("wb") as file:
        for i in range(40):  # more pieces than one header holds
            file.seek(i * 100_000)
            file.write(b"data")
    (tmp_path / "after.txt").write_bytes(b"after")
    layout = ["--format=gnu"] if version is None else ["--format=pax", f"--sparse-version={version}"]
    command = ["tar", "-C", str(tmp_path), *layout, "-S", "-cf", str(tmp_path / "x.tar"), "holes.bin", "after.txt"]
    subprocess.run(command, check=True)
    found = walk_tar(str(tmp_path / "x.tar"))
    with tarfile.open(tmp_path / "x.tar") as tar:
        members = tar.getmembers()
    assert (tmp_path / "x.tar").stat().st_size < 1_000_000
    assert found.names == [member.name for member in members] == ["holes.bin", "after.txt"]
    assert found.header_offset.tolist() == [member.offset for member in members]
    assert found.data_offset[1] == members[1].offset_data


@pytest.mark.skipif(shutil.which("tar") is None, reason="no GNU tar on this machine")
@pytest.mark.parametrize("layout", ["v7", "oldgnu", "gnu", "ustar", "posix"])
def test_archives_of_gnu_tar(tmp_path: Path, layout: str) -> None:
    folder = tmp_path / "tree"
    (folder / "sub").mkdir(parents=True)
    for i in range(30):
        (folder / "sub" / f"{i}.txt").write_bytes(b"x" * i * 100)
    (folder / "link").symlink_to("sub/1.txt")
    (folder / "hard").hardlink_to(folder / "sub" / "2.txt")
    if layout != "v7":
        (folder / ("n" * 60) / ("m" * 60)).mkdir(parents=True)
        (folder / ("n" * 60) / ("m" * 60) / "deep.txt").write_bytes(b"deep")
    path = tmp_path / "x.tar"
    subprocess.run(["tar", "-C", tmp_path, f"--format={layout}", "-b", "200", "-cf", path, "tree"], check=True)
    found = walk_tar(str(path))
    require_as_tarfile(found, path.read_bytes())
    assert found.consumed < path.stat().st_size
    assert path.stat().st_size % 102_400 == 0


@each("rest", [b"", b"\0" * 100, b"\0" * 512])
def test_an_archive_without_end_blocks_is_complete_where_a_member_ends(rest: bytes) -> None:
    data = archive([("a", b"0", 5, 0), ("b", b"0", 600, 0)])[: 512 * 5] + rest
    found = walk_bytes(data, "x")
    assert (found.names, found.end, found.consumed) == (["a", "b"], 2560, len(data))


def test_an_archive_of_nothing_but_end_blocks() -> None:
    found = walk_bytes(bytes(10240), "x")
    assert (len(found), found.end, found.consumed) == (0, 0, 10240)
    assert found.header_offset.dtype == found.size.dtype == np.uint64


@pytest.mark.parametrize("layout", FORMATS)
def test_every_truncation_is_an_error_or_at_the_end_of_a_member(tmp_path: Path, layout: str) -> None:
    items: list[_Item] = [("a", b"0", 700, 0), ("b/" * 30 + "c" * 70, b"0", 5, 1.5), ("d", b"0", 0, 0)]
    data = archive(items, FORMATS[layout])
    whole = walk_bytes(data, "x")
    boundaries = {int(start): number for number, start in enumerate(whole.header_offset)} | {whole.end: len(whole)}
    sizes = {at + d for at in range(0, whole.end, 512) for d in (-1, 0, 1, 100, 257)} | {whole.end}
    for size in sorted(sizes & set(range(whole.end + 1))):
        if size in boundaries and size:
            assert len(walk_bytes(data[:size], "x")) == boundaries[size]
            continue
        with pytest.raises(ArchiveError, match=r"cut off|empty file|found the end"):
            walk_bytes(data[:size], "x")
    for size in (100, 513, 1200, 1536, whole.end - 1):
        (tmp_path / "x.tar").write_bytes(data[:size])
        if size not in boundaries:
            with pytest.raises(ArchiveError, match=r"x\.tar: .*byte \d+"):
                walk_tar(str(tmp_path / "x.tar"))


def test_a_cut_payload_names_the_member(tmp_path: Path) -> None:
    (tmp_path / "x.tar").write_bytes(archive([("a", b"0", 5, 0), ("b/c", b"0", 5000, 0)])[:3000])
    with pytest.raises(ArchiveError, match=r"x\.tar: member 'b/c' at byte 1024 is cut off.*byte 6536.*3000"):
        walk_tar(str(tmp_path / "x.tar"))


@pytest.mark.parametrize("position", [0, 1536, 300 * 1536])
def test_a_damaged_header_is_an_error_where_tarfile_stops_silently(tmp_path: Path, position: int) -> None:
    data = bytearray(archive([(f"{i:04d}", b"0", 600, 0) for i in range(1000)]))
    data[position + 1] ^= 1
    (tmp_path / "x.tar").write_bytes(data)
    with pytest.raises(ArchiveError, match=f"expected a tar header at byte {position}, found a block whose checksum"):
        walk_tar(str(tmp_path / "x.tar"))


@each(
    ("payload", "found"),
    [*((text, "malformed") for text in (b"30 path=x", b"xx path=y\n", b"9 pathxx\n")), (b"11 size=-1\n", "size")],
)
def test_damaged_pax_values(payload: bytes, found: str) -> None:
    header = tarfile.TarInfo("pax")
    header.type, header.size = tarfile.XHDTYPE, len(payload)
    data = header.tobuf(tarfile.USTAR_FORMAT) + payload.ljust(512, b"\0") + archive([("a", b"0", 5, 0)])
    with pytest.raises(ArchiveError, match=found):
        walk_bytes(data, "x")


@each("size", [b"\xff" * 12, b"-0000000012\0", b"00000000z12\0"])
def test_sizes_that_are_none(size: bytes) -> None:
    with pytest.raises(ArchiveError, match="which is no number"):
        walk_bytes(patched(124, size), "x")


def test_files_that_are_no_tar(tmp_path: Path) -> None:
    for content, found in ((b"", "an empty file"), (b"\x1f\x8b" + b"gzip" * 400, "damaged or not a tar")):
        (tmp_path / "x.tar").write_bytes(content)
        with pytest.raises(ArchiveError, match=found):
            walk_tar(str(tmp_path / "x.tar"))
    with pytest.raises(SourceNotFoundError, match=r"y\.tar"):
        walk_tar(str(tmp_path / "y.tar"))


def test_a_member_of_more_than_8_gib(tmp_path: Path) -> None:
    path = tmp_path / "x.tar"
    size = 9 << 30
    for layout in (tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
        info = tarfile.TarInfo("large")
        info.size = size
        header = info.tobuf(layout)
        with path.open("wb") as file:
            file.write(header)
            file.seek(size, 1)
            file.write(archive([("next", b"0", 4, 0)]))
        found = walk_tar(str(path))
        assert found.names == ["large", "next"]
        assert found.size.tolist() == [size, 4]
        assert found.header_offset.tolist() == [0, len(header) + size]
        path.unlink()


def test_an_archive_may_end_with_a_header_of_what_holds_for_all_members() -> None:
    told = tarfile.TarInfo().create_pax_global_header({"comment": "x"})
    data = archive([("a.txt", tarfile.REGTYPE, 3, 0)])[:1024] + told + bytes(10_240)
    assert walk_bytes(data, "x.tar").names == ["a.txt"]
