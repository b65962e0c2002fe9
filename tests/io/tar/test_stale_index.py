"""Reading an archive through the index of another of the same size: right, or an error, never a wrong sample."""

from __future__ import annotations

import contextlib
import io
import itertools
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ledgerbeam.errors import ArchiveError, IndexMismatchError
from ledgerbeam.io import TarFormat, TarReader, write_index
from ledgerbeam.io.storage.stat import stat
from ledgerbeam.io.tar.grouping import Grouping, are_pairs
from ledgerbeam.io.tar.reader import build_tar_index

_numbers = itertools.count()
BLOCK = 512

# Names of members with as many blocks as they take: what two archives of one size may differ in.
NAMES = [
    *("a.x", "a.y", "a.z", "b.x", "b.y", "c.x", "a.s.x", "a.s.y", "a.t.x", "a.t.y", ".hidden", "readme", "__meta__.x"),
]


def archive(names: Sequence[str], sizes: Sequence[int], marks: Sequence[bool] = ()) -> bytes:
    """Write members of those sizes; before some of them, a global header."""
    out = io.BytesIO()
    for number, (name, size) in enumerate(zip(names, sizes, strict=True)):
        if number < len(marks) and marks[number]:
            header = {"comment": f"before {number}"}
            out.write(tarfile.TarInfo.create_pax_global_header(header))
        info = tarfile.TarInfo(name)
        info.size = size
        out.write(info.tobuf(tarfile.USTAR_FORMAT) + bytes([number % 251 + 1]) * size + bytes(-size % BLOCK))
    out.write(bytes(-(out.tell() + 2 * BLOCK) % 10240 + 2 * BLOCK))
    return out.getvalue()


def offsets_of(path: Path, data: bytes, group: Grouping) -> Any:
    path.write_bytes(data)
    try:
        return build_tar_index(str(path), group=group)
    except ArchiveError:
        return None


def through_stale(folder: Path, before: bytes, after: bytes, group: Grouping) -> TarReader:
    """Open an archive through the index of the one that it has replaced."""
    stale = offsets_of(folder / "x.tar", before, group)
    (folder / "x.tar").write_bytes(after)
    write_index(f"{folder}/x.tar.idx", stale)
    return TarReader(f"{folder}/x.tar", check=False)


def outcomes(reader: TarReader, count: int) -> list[tuple[int, Any]]:
    """Read each sample alone, among others and in spans; return the results without errors."""
    found: list[tuple[int, Any]] = []

    def attempt(numbers: list[int], read: Any) -> None:
        with contextlib.suppress(IndexMismatchError):
            found.extend(zip(numbers, read(), strict=True))

    for i in range(count):
        attempt([i], lambda i=i: [reader[i]])
        attempt([i], lambda i=i: reader.read_many([i]))
        for j in range(i + 1, min(count, i + 4) + 1):
            attempt(list(range(i, j)), lambda i=i, j=j: reader.read_span(i, j))
    return found


members = st.lists(st.sampled_from(NAMES), min_size=1, max_size=8)


@pytest.mark.parametrize("last", ["a.s.x", "a.t.y"])
def test_a_pair_that_a_third_member_of_its_key_follows_is_a_part_of_a_sample(tmp_path: Path, last: str) -> None:
    sizes = [0, 5, 512]
    before, after = archive(["a.x", "a.y", "b.x"], sizes), archive(["a.x", "a.y", last], sizes)
    assert outcomes(through_stale(tmp_path, before, after, "auto"), 2) == []


def test_a_key_at_the_end_of_an_index_of_pairs_is_a_part_of_a_sample(tmp_path: Path) -> None:
    """The first two were read as the pairs of a former archive, and this one by its key."""
    names, sizes = ["a.0.x", "a.0.y", "a.1.x", "a.1.y", "b.0.x", "b.0.y"], [10, 10, 10, 10, 10, 600]
    reader = through_stale(tmp_path, archive(names, sizes), archive(names[:5], sizes[:5]), "pairs")
    for read in (lambda: [reader[2]], lambda: reader.read_many([2]), lambda: reader.read_span(0, 3)):
        with pytest.raises(IndexMismatchError, match=r"expected sample 2 .*'b.0.x'"):
            read()


@pytest.mark.parametrize("after", [[".hidden", "a.x"], ["a.x", "b.x", ".hidden", "b.y"]])
def test_the_last_two_members_are_a_pair_only_by_their_names(tmp_path: Path, after: list[str]) -> None:
    sizes = [0] * len(after)
    before = archive(["a.x", "a.x", "b.x", "b.x"][: len(after)], sizes)
    assert outcomes(through_stale(tmp_path, before, archive(after, sizes), "pairs"), len(after) // 2) == []


def test_members_of_one_key_at_the_end_of_an_index_of_pairs_are_a_sample_by_key(tmp_path: Path) -> None:
    names, sizes = ["a.x", "a.y"], [5, 5]
    (tmp_path / "x.tar").write_bytes(archive(names, sizes))
    write_index(f"{tmp_path}/x.tar.idx", np.array([0, 10240], np.uint64))  # as lhotse has it
    for group in ("key", "auto", "pairs"):
        reader = TarReader(f"{tmp_path}/x.tar", check=False, group=group)
        assert [number for number, _ in outcomes(reader, 1)] == [0, 0, 0]


def test_single_members_are_no_pairs(tmp_path: Path) -> None:
    names, sizes = ["a.x", "b.x"], [5, 5]
    write_index(f"{tmp_path}/x.tar.idx", offsets_of(tmp_path / "x.tar", archive(names, sizes), "key"))
    assert outcomes(TarReader(f"{tmp_path}/x.tar", check=False, group="pairs"), 2) == []


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(data=st.data(), group=st.sampled_from(["key", "pairs", "auto"]), remote=st.booleans())
def test_a_stale_index_gives_no_wrong_sample(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, group: Grouping, remote: bool
) -> None:
    before = data.draw(members)
    after = data.draw(st.lists(st.sampled_from(NAMES), min_size=len(before), max_size=len(before)))
    sizes = data.draw(st.lists(st.sampled_from([0, 5, 512, 700]), min_size=len(before), max_size=len(before)))
    folder = tmp_path_factory.getbasetemp() / "stale"
    folder.mkdir(exist_ok=True)
    path = folder / "x.tar"
    stale = offsets_of(path, archive(before, sizes), group)
    content = archive(after, sizes)
    views: list[Grouping] = [group] if group != "auto" else ["key", "pairs"] if are_pairs(after) else ["key"]
    fresh = [found for found in (offsets_of(path, content, kind) for kind in views) if found is not None]
    if stale is None or not fresh:  # no archive that can be read by that group
        return
    url = str(path)
    if remote:
        url = f"memory://stale-{next(_numbers)}/x.tar"
        fsspec.filesystem("memory").pipe_file(url, content)
    write_index(f"{url}.idx", stale)
    reader = TarReader(url, group=group, check=False)
    whole = [bounds for offsets in fresh for bounds in itertools.pairwise(offsets.tolist())]
    starts = {start for start, _ in whole}
    for number, sample in outcomes(reader, len(stale) - 1):
        begin, case = int(stale[number]), (before, after, number, sample)
        assert begin in starts, case
        # The members that it holds are all of a sample of the archive as it is.
        assert any(begin == start and _same(content, start, stop, sample) for start, stop in whole), case


def _same(content: bytes, start: int, stop: int, sample: Any) -> bool:
    with tarfile.open(fileobj=io.BytesIO(content[start:stop] + bytes(1024))) as tar:
        names = [member.name for member in tar if member.isfile()]
    kept = [name for name in names if name.startswith(f"{sample.key}.")]
    return [f"{sample.key}.{extension}" for extension in sample] == kept


@pytest.mark.parametrize("group", ["key", "pairs", "auto"])
def test_a_fresh_index_reads_all_of_it(tmp_path: Path, group: Grouping) -> None:
    names = [f"{i:02}.{extension}" for i in range(30) for extension in ("x", "y")]
    sizes = [i * 97 % 2000 for i in range(len(names))]
    for marks in ((), [i % 6 == 0 for i in range(len(names))], [i % 2 == 1 for i in range(len(names))]):
        path = tmp_path / "x.tar"
        offsets = offsets_of(path, archive(names, sizes, marks), group)
        write_index(f"{path}.idx", offsets)
        TarFormat().check_index(TarReader(str(path)).index, stat(str(path)), deep=True)
        with TarReader(str(path), group=group) as reader:
            spans = [sample for i in range(0, 30, 7) for sample in reader.read_span(i, min(i + 7, 30))]
            assert spans == list(reader) == [reader[i] for i in range(30)] == reader.read_many(range(30))
            assert [sample.key for sample in spans] == [f"{i:02}" for i in range(30)]
            assert [len(sample["x"]) for sample in spans] == sizes[::2]
            assert reader.read_many([29, 3, 4]) == [spans[29], spans[3], spans[4]]
        with tarfile.open(path) as tar:
            expected = [tar.extractfile(member).read() for member in tar]  # type: ignore[union-attr]
        assert [part for sample in spans for part in sample.values()] == expected


def test_a_global_header_at_the_end_is_no_sample(tmp_path: Path) -> None:
    data = archive(["a.x", "b.x"], [5, 5]).rstrip(b"\0")
    data += bytes(-len(data) % BLOCK) + tarfile.TarInfo.create_pax_global_header({"comment": "c" * 40}) + bytes(1024)
    path = tmp_path / "x.tar"
    offsets = offsets_of(path, data, "key")
    write_index(f"{path}.idx", offsets)
    with TarReader(str(path)) as reader:
        assert [sample.key for sample in reader] == ["a", "b"]
        assert reader[1].key == "b"


def test_a_global_header_behind_a_payload_of_zeros_is_no_sample(tmp_path: Path) -> None:
    info = tarfile.TarInfo("a.x")
    info.size = 2 * BLOCK
    data = info.tobuf(tarfile.USTAR_FORMAT) + bytes(2 * BLOCK)
    path = tmp_path / "x.tar"
    path.write_bytes(data + tarfile.TarInfo.create_pax_global_header({"comment": "c" * 40}) + bytes(2 * BLOCK))
    write_index(f"{path}.idx", np.array([0, len(data)], np.uint64))
    with TarReader(str(path)) as reader:
        assert [dict(sample) for sample in reader] == [{"x": bytes(2 * BLOCK)}]


def test_a_folder_with_a_point_in_its_name_is_no_sample(tmp_path: Path) -> None:
    path = tmp_path / "x.tar"
    with tarfile.open(path, "w") as tar:
        folder = tarfile.TarInfo("a.x")
        folder.type = tarfile.DIRTYPE
        tar.addfile(folder)
    write_index(f"{path}.idx", np.array([0], np.uint64))
    assert len(TarReader(str(path))) == 0


def test_a_stale_index_that_ends_among_zeros_of_a_payload_is_found_out(tmp_path: Path) -> None:
    path = tmp_path / "x.tar"
    headers = [archive([name], [2 * BLOCK])[:BLOCK] for name in ("a.x", "b.x")]
    path.write_bytes(b"".join(header + bytes(2 * BLOCK) for header in headers) + bytes(2 * BLOCK))
    write_index(f"{path}.idx", np.array([0, 3 * BLOCK], np.uint64))  # of an archive with one sample
    with pytest.raises(IndexMismatchError, match="found more members"):
        TarReader(str(path))


@pytest.mark.parametrize("names", [[], ["readme", ".hidden"]])
def test_an_index_of_no_samples_fits_no_archive_that_has_some(tmp_path: Path, names: list[str]) -> None:
    path = tmp_path / "x.tar"
    stale = offsets_of(path, archive(names, [5] * len(names)), "key")
    write_index(f"{path}.idx", stale)
    assert len(TarReader(str(path))) == 0
    path.write_bytes(archive(["readme", "a.x"], [5, 5]))
    write_index(f"{path}.idx", stale)
    with pytest.raises(IndexMismatchError, match=r"expected no samples, found the member 'a\.x' at byte 1024"):
        TarReader(str(path))
    path.write_bytes(b"no archive" * 1024)
    write_index(f"{path}.idx", stale)
    with pytest.raises(IndexMismatchError, match="expected an archive without samples"):
        TarReader(str(path))


@pytest.mark.parametrize("values", [{"size": "5"}, {"path": "k.txt"}, {"GNU.sparse.size": "9"}])
@pytest.mark.parametrize("before", [0, 1])
def test_global_headers_of_samples_are_refused(tmp_path: Path, values: dict[str, str], before: int) -> None:
    """A sample is read without the headers at the start, so its size would differ from that of the index."""
    path = tmp_path / "a.tar"
    mark = tarfile.TarInfo.create_pax_global_header(values)
    members = [archive([name], [3])[: 2 * BLOCK] for name in ("a.x", "b.x")]
    path.write_bytes(b"".join([*members[:before], mark, *members[before:], bytes(2 * BLOCK)]))
    with pytest.raises(ArchiveError, match=r"a\.tar: the global header at byte \d+ sets .*Write the archive again"):
        build_tar_index(str(path), group="key")
