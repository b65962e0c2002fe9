"""The tar walker against Python's tarfile, which decides every tie."""

from __future__ import annotations

import io
import shutil
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ledgerbeam.errors import ArchiveError, SourceNotFoundError
from ledgerbeam.io.storage.client import filesystem
from ledgerbeam.io.tar import walk as tar_source
from ledgerbeam.io.tar.walk import TarMembers, walk_bytes, walk_tar
from tests.cases import each
from tests.conftest import S3Server

pytestmark = pytest.mark.usefixtures("implementation")

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
    (tmp_path / "x.tar").write_bytes(data)
    require_as_tarfile(walk_tar(str(tmp_path / "x.tar")), data)
    require_as_tarfile(walk_bytes(data, "x"), data)


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(items=_items, layout=st.sampled_from([tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]))
def test_any_archive_reads_as_tarfile_reads_it(
    tmp_path_factory: pytest.TempPathFactory, items: list[_Item], layout: int
) -> None:
    data = archive(items, layout)
    path = tmp_path_factory.getbasetemp() / "walk.tar"
    path.write_bytes(data)
    require_as_tarfile(walk_tar(str(path)), data)
    require_as_tarfile(walk_bytes(data, "x"), data)


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
    (tmp_path / "x.tar").write_bytes(data)
    require_as_tarfile(walk_tar(str(tmp_path / "x.tar")), data)


def test_a_large_member_among_small_ones(tmp_path: Path) -> None:
    items: list[_Item] = [(f"{i}", tarfile.REGTYPE, 9_000_000 if i in (300, 900) else i, 0) for i in range(1200)]
    data = archive(items)
    (tmp_path / "x.tar").write_bytes(data)
    require_as_tarfile(walk_tar(str(tmp_path / "x.tar")), data)


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


def patched(change: Callable[[bytearray], None], position: int = 0, size: int = 700, kind: bytes = b"0") -> bytes:
    """Three members, the header of the first changed and its checksum made right again."""
    data = bytearray(archive([("first", kind, size, 0), ("second", tarfile.REGTYPE, 9, 0), ("third", b"5", 0, 0)]))
    header = data[position : position + 512]
    change(header)
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    data[position : position + 512] = header
    return bytes(data)


def put(start: int, content: bytes) -> Callable[[bytearray], None]:
    def change(header: bytearray) -> None:
        header[start : start + len(content)] = content

    return change


@each(
    "change",
    [
        pytest.param(put(124, b"\x80" + (700).to_bytes(11, "big")), id="base-256 size"),
        pytest.param(put(124, b"000000001274"), id="twelve digits"),
        pytest.param(put(124, b"       1274 "), id="blank padded"),
        pytest.param(put(124, b"1274\0\0\0\0\0\0\0\0"), id="NUL padded"),
        pytest.param(put(257, b"\0" * 8), id="no magic"),
        pytest.param(put(156, b"\0"), id="old type flag"),
        pytest.param(put(156, b"A"), id="unknown type"),
        pytest.param(put(345, b"some/prefix"), id="prefix"),
        pytest.param(put(0, b"n" * 100), id="name without terminator"),
        pytest.param(put(0, b"name\0garbage"), id="garbage after the name"),
        pytest.param(put(0, b"\xff\xfe\n"), id="name that is not UTF-8"),
    ],
)
def test_unusual_headers(change: Callable[[bytearray], None]) -> None:
    data = patched(change)
    require_as_tarfile(walk_bytes(data, "x"), data)


@each("kind", [b"1", b"2", b"5"])
def test_a_size_of_what_has_no_payload_is_not_followed(kind: bytes) -> None:
    data = patched(put(124, b"00000010000"), size=0, kind=kind)
    found = walk_bytes(data, "x")
    assert found.names == ["first", "second", "third"]
    assert found.size.tolist() == [0, 9, 0]
    assert found.header_offset.tolist() == [0, 512, 1536]


def test_a_folder_of_an_old_archive() -> None:
    data = patched(put(0, b"folder/"), size=0, kind=b"\0")
    assert walk_bytes(data, "x").names[0] == "folder"
    require_as_tarfile(walk_bytes(data, "x"), data)


def test_gnu_times_are_not_taken_for_a_prefix() -> None:
    data = patched(put(257, b"ustar  \0".ljust(88, b"\0") + b"14562236130\0"))
    assert walk_bytes(data, "x").names == ["first", "second", "third"]


def test_checksums_of_signed_bytes_are_accepted() -> None:
    data = bytearray(patched(put(0, b"\xc3\xa9")))
    data[148:156] = b"%06o\0 " % (256 + sum((byte ^ 128) - 128 for byte in data[:148] + data[156:512]))
    assert walk_bytes(bytes(data), "x").names[0].startswith("é")


def test_pax_values_of_one_member_and_of_all() -> None:
    long = "größe/" * 30 + "x"
    for options in ({}, {"pax_headers": {"comment": "for all"}}):
        data = archive([(long, b"0", 600, 0), ("b", b"0", 3, 2.5), ("c", b"0", 3, 0)], tarfile.PAX_FORMAT, **options)
        require_as_tarfile(walk_bytes(data, "x"), data)
    data = archive([("a", b"0", 600, 0), ("b", b"0", 3, 0)], tarfile.PAX_FORMAT, pax_headers={"path": "one/name"})
    with pytest.raises(ArchiveError, match="global header at byte 0 has 'path'"):  # a sample is read without it
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
    subprocess.run(
        ["tar", "-C", str(tmp_path), f"--format={layout}", "-b", "200", "-cf", str(path), "tree"], check=True
    )
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
    [
        (b"30 path=x", "malformed"),
        (b"xx path=y\n", "malformed"),
        (b"9 pathxx\n", "malformed"),
        (b"11 size=-1\n", "size"),
    ],
)
def test_damaged_pax_values(payload: bytes, found: str) -> None:
    header = tarfile.TarInfo("pax")
    header.type, header.size = tarfile.XHDTYPE, len(payload)
    data = header.tobuf(tarfile.USTAR_FORMAT) + payload.ljust(512, b"\0") + archive([("a", b"0", 5, 0)])
    with pytest.raises(ArchiveError, match=found):
        walk_bytes(data, "x")


@each("size", [b"\xff" * 12, b"-0000000012\0", b"00000000z12\0"])
def test_sizes_that_are_none(size: bytes) -> None:
    with pytest.raises(ArchiveError, match="which is no size"):
        walk_bytes(patched(put(124, size)), "x")


def test_an_empty_and_a_missing_file(tmp_path: Path) -> None:
    (tmp_path / "x.tar").write_bytes(b"")
    with pytest.raises(ArchiveError, match="an empty file"):
        walk_tar(str(tmp_path / "x.tar"))
    with pytest.raises(SourceNotFoundError, match=r"y\.tar"):
        walk_tar(str(tmp_path / "y.tar"))


def test_a_file_that_is_no_tar(tmp_path: Path) -> None:
    (tmp_path / "x.tar").write_bytes(b"\x1f\x8b" + b"gzip" * 400)
    with pytest.raises(ArchiveError, match="damaged or no tar"):
        walk_tar(str(tmp_path / "x.tar"))


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
