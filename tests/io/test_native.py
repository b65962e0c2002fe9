"""The compiled module: bounds, hostile input, system failures, and the same results as Python.

`python -m tests.io.test_native COUNT [SEED]` walks and reads hostile tar archives by both implementations.
"""

from __future__ import annotations

import gc
import io
import os
import random
import subprocess
import sys
import tarfile
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeAlias

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from ledgerbeam.errors import ArchiveError, LedgerbeamError
from ledgerbeam.io import json_values, native
from ledgerbeam.io.index.file import write_index
from ledgerbeam.io.native import Compiled
from ledgerbeam.io.tar.grouping import Grouping, group_key
from ledgerbeam.io.tar.headers import BLOCK
from ledgerbeam.io.tar.reader import TarReader
from ledgerbeam.io.tar.sample import Sample
from ledgerbeam.io.tar.walk import TarMembers, walk_bytes, walk_tar
from ledgerbeam.ledger import Source
from ledgerbeam.ledger.opening import open_store
from tests.cases import each
from tests.io.fuzzing import limit_memory

MOST = 2**63 - 1
Opened: TypeAlias = Callable[[bytes], int]


@pytest.fixture(scope="module")
def compiled() -> Compiled:
    if native.compiled is None:
        pytest.skip('no compiled module: run "make setup" where there is a C compiler, LEDGERBEAM_PURE_PYTHON unset')
    return native.compiled


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Opened]:
    """Writes a file and opens it."""
    descriptors = []

    def write(content: bytes) -> int:
        (tmp_path / "data").write_bytes(content)
        descriptors.append(os.open(tmp_path / "data", os.O_RDONLY))
        return descriptors[-1]

    yield write
    for descriptor in descriptors:
        os.close(descriptor)


@pytest.mark.parametrize("value", ["1", "", None])
def test_a_variable_turns_it_off(compiled: Compiled, value: str | None) -> None:
    environment = {name: text for name, text in os.environ.items() if name != "LEDGERBEAM_PURE_PYTHON"}
    if value is not None:
        environment["LEDGERBEAM_PURE_PYTHON"] = value
    program = "import ledgerbeam.io.native as native; print(native.compiled is None)"
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == f"{bool(value)}\n"


@pytest.mark.slow
def test_damaged_archives_give_the_same_members_or_the_same_error(compiled: Compiled, tmp_path: Path) -> None:
    count = 2000
    assert 0.2 * count < fuzz(count, seed=5, folder=tmp_path) < 0.8 * count


@pytest.mark.slow
def test_samples_of_damaged_archives_are_the_same_or_give_the_same_error(compiled: Compiled, tmp_path: Path) -> None:
    assert fuzz_samples(300, seed=5, folder=tmp_path) > 300


def header(size: int, name: str = "x") -> bytes:
    info = tarfile.TarInfo(name)
    info.size = size
    return info.tobuf(tarfile.USTAR_FORMAT)


def arrays(room: int) -> tuple[NDArray[np.uint8], NDArray[np.uint64]]:
    return np.zeros((room, BLOCK), np.uint8), np.zeros(room, np.uint64)


@pytest.mark.parametrize("room", [0, 1, 2, 3, 9])
def test_a_scan_ends_with_its_room_or_the_data(compiled: Compiled, opened: Opened, room: int) -> None:
    data = header(0) + header(700) + bytes(1024) + header(5) + bytes(300)
    for peek in (-1, 0, 512, 700, 2048, 4096, 10**6):
        headers, sizes = arrays(room)
        assert compiled.scan_file_headers(opened(data), 0, peek, headers, sizes) == min(room, 3)
        assert sizes.tolist() == [0, 700, 5, 0, 0, 0, 0, 0, 0][:room]
        assert compiled.scan_bytes_headers(data, 0, headers, sizes) == min(room, 3)
        assert headers[:3].tobytes() == (header(0) + header(700) + header(5))[: room * BLOCK]
    assert compiled.scan_bytes_headers(data, 0, np.zeros(1000, np.uint8), np.zeros(9, np.uint64)) == 1
    assert compiled.scan_bytes_headers(data, 0, np.zeros(5000, np.uint8), np.zeros(2, np.uint64)) == 2


@pytest.mark.parametrize("position", [-1, -(2**63), 1, 511, 512, 1024, MOST - 600, MOST])
def test_a_scan_from_anywhere_stays_inside(compiled: Compiled, opened: Opened, position: int) -> None:
    data = header(8**11 - 1)
    assert compiled.scan_file_headers(opened(data), position, 512, *arrays(4)) == 0
    assert compiled.scan_bytes_headers(data, position, *arrays(4)) == 0
    assert compiled.scan_bytes_headers(data[:511], 0, *arrays(4)) == 0


@pytest.mark.parametrize("room", [0, 1, 2, 100])
@pytest.mark.parametrize("scratch", [0, 1, 7, 64])
def test_newlines_with_little_room(compiled: Compiled, opened: Opened, room: int, scratch: int) -> None:
    data = b"\nab\n\nccc\nend"
    descriptor = opened(data)
    for start in range(len(data)):
        ends = np.zeros(room, np.uint64)
        wanted = [i + 1 for i in range(start, len(data)) if data[i] == 10]
        count, done = compiled.find_newlines(descriptor, start, len(data), memoryview(bytearray(scratch)), ends)
        assert ends[:count].tolist() == wanted[: min(room, len(wanted)) if scratch else 0]
        if scratch and room > len(wanted):
            assert done == len(data)
        elif scratch and room:
            assert done == (wanted[room - 1] if len(wanted) > room else done)


@pytest.mark.parametrize(("start", "stop"), [(-5, 10), (3, 1), (0, MOST), (MOST - 1, MOST), (-(2**63), MOST)])
def test_newlines_of_ranges_that_are_none(compiled: Compiled, opened: Opened, start: int, stop: int) -> None:
    ends = np.zeros(9, np.uint64)
    count, done = compiled.find_newlines(opened(b"a\nb\n"), start, stop, memoryview(bytearray(64)), ends)
    assert (count, done) == ((2, 4) if start == 0 else (0, start))


LINES = b"one\ntwo\n\nlast"
OFFSETS = [0, 4, 8, 9, 13]


def test_a_line_is_read_only_if_it_is_one(compiled: Compiled, opened: Opened) -> None:
    descriptor = opened(LINES)

    def read(start: int, stop: int, which: int = descriptor) -> list[bytes]:
        return compiled.read_lines(which, np.array([start], np.uint64), np.array([stop], np.uint64), 0, 100)[0]

    found = [read(start, stop) for start, stop in pairwise(OFFSETS)]
    assert found == [[b"one\n"], [b"\ntwo\n"], [b"\n\n"], []]
    for start, stop in ((1, 4), (0, 3), (0, 8), (4, 4), (8, 4), (0, 100)):
        assert read(start, stop) == []
    for start, stop in ((0, 2**64 - 1), (2**63, 2**64 - 1), (2**63 - 9, 2**63)):
        assert read(start, stop) == []
    for bad in (-1, 10**6):
        assert read(0, 4, bad) == []


def test_no_room_is_made_for_a_line_of_more_than_8_mib(compiled: Compiled, opened: Opened) -> None:
    most = b"x" * (2**23 - 1) + b"\n"
    descriptor = opened(most + b"\n")
    for stop, line in ((2**23, most), (2**23 + 1, None), (2**61, None)):
        bounds = np.array([0, stop], np.uint64)
        assert compiled.read_lines(descriptor, bounds[:1], bounds[1:], 0, 100) == ([line][: line is not None], False)


def test_lines_end_before_the_first_that_is_none(compiled: Compiled, opened: Opened) -> None:
    data = b"".join(b"%d\n" % i for i in range(1000))
    ends = np.flatnonzero(np.frombuffer(data, np.uint8) == 10).astype(np.uint64) + np.uint64(1)
    starts = np.concatenate((np.zeros(1, np.uint64), ends[:-1]))
    want = [b"0\n", *(b"\n%d\n" % i for i in range(1, 1000))]
    descriptor = opened(data)
    assert compiled.read_lines(descriptor, starts, ends, 0, 10**9) == (want, False)
    assert compiled.read_lines(descriptor, starts[::-1].copy(), ends[::-1].copy(), 0, 10**9) == (want[::-1], False)
    assert compiled.read_lines(descriptor, starts, ends, 990, 10**9) == (want[990:], False)
    assert compiled.read_lines(descriptor, starts, ends[:5], 0, 10**9) == (want[:5], False)
    for first in (-1, 1000, MOST, -MOST - 1):
        assert compiled.read_lines(descriptor, starts, ends, first, 10**9) == ([], False)
    for most in (0, -1, 1, 3, 1000):
        part = compiled.read_lines(descriptor, starts, ends, 0, most)[0]
        assert part == want[: len(part)]
        assert sum(map(len, part[:-1])) < max(most, 1)
    for place in (0, 1, 63, 64, 65, 500):
        for wrong in (0, 2**63, 2**64 - 1, int(ends[place]) - 1, int(ends[place]) + 1):
            broken = ends.copy()
            broken[place] = wrong
            assert compiled.read_lines(descriptor, starts, broken, 0, 10**9)[0] == want[:place]
    assert compiled.read_lines(-1, starts, ends, 0, 10**9) == ([], False)


def test_lines_with_an_integer_beyond_64_bits_are_named(compiled: Compiled, opened: Opened) -> None:
    lines = [b"%d\n" % number for number in range(200)]
    for place in (0, 63, 64, 199):
        data = lines.copy()
        data[place] = b"18446744073709551616\n"
        ends = np.cumsum([len(line) for line in data]).astype(np.uint64)
        starts = np.concatenate((np.zeros(1, np.uint64), ends[:-1]))
        descriptor = opened(b"".join(data))
        found, wide = compiled.read_lines(descriptor, starts, ends, 0, 10**9)
        assert (len(found), wide) == (200, True)
        assert compiled.read_lines(descriptor, starts[:place], ends[:place], 0, 10**9)[1] is False
        assert compiled.read_lines(descriptor, starts, ends, place + 1, 10**9)[1] is False


SAMPLES = [{"a": b"1"}, {"a": b"", "b.c": bytes(700)}, {"x": b"%d" % 7 * 600}, {"a": b"2"}, {"cls": b"3"}]


def tar_of(contents: list[dict[str, bytes]]) -> tuple[bytes, list[int]]:
    """Return an archive of samples `0`, `1`, ..., with their starts and the end of the last one."""
    data, ends = b"", [0]
    for number, members in enumerate(contents):
        for extension, content in members.items():
            data += header(len(content), f"{number}.{extension}") + content + bytes(-len(content) % BLOCK)
        ends.append(len(data))
    return data + bytes(2 * BLOCK), ends


def bounds_of(ends: list[int], records: list[int]) -> NDArray[np.uint64]:
    rows = [[ends[max(0, record - 1)], ends[record], ends[record + 1]] for record in records]
    return np.array(rows, np.uint64).reshape(-1, 3)


def test_samples_are_read_in_any_order_but_for_the_first_and_the_last(compiled: Compiled, opened: Opened) -> None:
    data, ends = tar_of(SAMPLES)
    descriptor = opened(data)

    def read(records: list[int], most: int = 10**9, which: int = descriptor) -> list[tuple[str, dict[str, bytes]]]:
        found = compiled.read_samples(which, bounds_of(ends, records), most, True, Sample)
        assert all(type(sample) is Sample for sample in found)
        return [(sample.key, dict(sample)) for sample in found]

    want = [(str(number), members) for number, members in enumerate(SAMPLES)]
    assert read([3, 1, 2, 1]) == [want[3], want[1], want[2], want[1]]
    assert read([1, 2, 0, 3]) == want[1:3], "members of no sample may precede the first"
    assert read([1, 4, 3]) == want[1:2], "nothing follows the last"
    assert read([]) == []
    assert read([1, 2, 3], 1) == want[1:2]
    assert read([1, 2, 3], 0) == read([1, 2, 3], -1) == read([1], which=-1) == []
    assert compiled.read_samples(descriptor, bounds_of(ends, [1, 2]).ravel()[:5], 10**9, True, Sample) == [SAMPLES[1]]


@pytest.mark.parametrize("place", [0, 1, 2])
def test_bounds_that_are_none_of_a_sample_end_the_reading(compiled: Compiled, opened: Opened, place: int) -> None:
    data, ends = tar_of(SAMPLES)
    descriptor = opened(data)
    right = bounds_of(ends, [2])[0]
    for wrong in {0, 1, 511, *ends, len(data), 2**23, 2**33, 2**63 - 513, 2**63, 2**64 - 1} - {int(right[place])}:
        row = right.copy()
        row[place] = wrong
        both = np.stack((bounds_of(ends, [1])[0], row))
        found = compiled.read_samples(descriptor, both, 10**9, True, Sample)
        # The previous sample may start earlier: then these are the members of the two samples before.
        assert found == SAMPLES[1 : 3 if place == 0 and wrong in ends[:2] else 2], wrong


def sample_between(compiled: Compiled, opened: Opened, *members: bytes, by_stem: bool = True) -> Sample | None:
    """Read the sample of some members, which has one member before it and one after it."""
    data = header(0, "before.x") + b"".join(members) + header(0, "behind.x")
    bounds = np.array([[0, BLOCK, len(data) - BLOCK]], np.uint64)
    found = compiled.read_samples(opened(data), bounds, 10**9, by_stem, Sample)
    return found[0] if found else None


@each(
    ("names", "by_stem", "key", "extensions"),
    [
        (["d/a.b.wav", "d/a.b.json"], True, "d/a.b", ["wav", "json"]),
        (["d/a.b.wav", "d/a.b.json"], False, "d/a", ["b.wav", "b.json"]),
        (["d/a.b.wav", "d/a.json"], True, "d/a", ["b.wav", "json"]),
        (["a.", "a.json"], True, "a", ["", "json"]),
        (["a.b.wav", "a.b.json", "a.b.txt"], True, "a", ["b.wav", "b.json", "b.txt"]),
        (["É.u"], True, "É", ["u"]),
    ],
)
def test_names_of_members_are_split(  # noqa: PLR0917
    compiled: Compiled, opened: Opened, names: list[str], by_stem: bool, key: str, extensions: list[str]
) -> None:
    found = sample_between(compiled, opened, *(header(0, name) for name in names), by_stem=by_stem)
    assert found is not None
    assert (found.key, list(found)) == (key, extensions)


@each(
    "names",
    [
        *(["a.x", "a.x"], ["a.x", "b.x"], ["before.y", "before.z"], ["behind.y"], ["a"], ["a.X"], ["a.ü"]),
        *([".a"], ["d/.a"], ["__a__/b.c"], ["a.\udcff"], ["\udcff.a"], [f"a.{number}" for number in range(33)]),
    ],
)
def test_other_members_are_left_to_python(compiled: Compiled, opened: Opened, names: list[str]) -> None:
    assert sample_between(compiled, opened, *(header(0, name) for name in names)) is None


def test_no_room_is_made_for_a_sample_of_more_than_8_mib(compiled: Compiled, opened: Opened) -> None:
    for size, read in ((2**23 - BLOCK, True), (2**23, False)):
        assert bool(sample_between(compiled, opened, header(size, "a.x"), bytes(size))) is read


def test_samples_are_made_of_what_can_be_one(compiled: Compiled, opened: Opened) -> None:
    data, ends = tar_of(SAMPLES)
    descriptor, bounds = opened(data), bounds_of(ends, [1])
    with pytest.raises(TypeError):
        compiled.read_samples(descriptor, bounds, 10**9, True, list)  # type: ignore[type-var]
    with pytest.raises(AttributeError):
        compiled.read_samples(descriptor, bounds, 10**9, True, dict)
    with pytest.raises(TypeError):
        compiled.read_samples(descriptor, bounds, 10**9, True, Sample("a"))  # type: ignore[arg-type]


def test_files_are_described_up_to_the_first_that_cannot_be(compiled: Compiled, tmp_path: Path) -> None:
    names = [f"{i:04d}" for i in range(300)]
    for i, name in enumerate(names):
        (tmp_path / name).write_bytes(b"x" * i)
    times = [0, -1, -(10**9) - 1, 1, 10**18, -(10**9) * 3]
    for name, time in zip(names, times, strict=False):
        os.utime(tmp_path / name, ns=(0, time))
    found = [os.stat(tmp_path / name) for name in names]
    sizes, versions = compiled.stat_files(str(tmp_path), names)
    assert sizes == [one.st_size for one in found]
    assert versions == [str(one.st_mtime_ns) for one in found]
    for place in (0, 1, 63, 64, 200, 299):
        os.unlink(tmp_path / names[place])
        assert compiled.stat_files(str(tmp_path), names) == (sizes[:place], versions[:place])
        (tmp_path / names[place]).write_bytes(b"x" * place)
        os.utime(tmp_path / names[place], ns=(0, found[place].st_mtime_ns))
    for make in (os.mkfifo, os.mkdir):
        os.unlink(tmp_path / names[250])
        make(tmp_path / names[250])
        assert compiled.stat_files(str(tmp_path), names) == (sizes[:250], versions[:250])
        (tmp_path / names[250]).rename(tmp_path / f"a {make.__name__}")
        (tmp_path / names[250]).touch()
    assert compiled.stat_files(str(tmp_path / "none"), names) == ([], [])
    assert compiled.stat_files(str(tmp_path / names[0]), names) == ([], [])
    assert compiled.stat_files(str(tmp_path), []) == ([], [])
    assert compiled.stat_files(str(tmp_path), ["/" * 5000]) == ([], [])


@pytest.mark.parametrize("name", ["a\0b", b"bytes", 7, None])
def test_what_is_no_name_is_refused(compiled: Compiled, tmp_path: Path, name: object) -> None:
    (tmp_path / "a").touch()
    with pytest.raises((TypeError, ValueError)):
        compiled.stat_files(str(tmp_path), ["a", name])  # type: ignore[list-item]
    with pytest.raises(TypeError):
        compiled.stat_files(str(tmp_path), ("a",))  # type: ignore[arg-type]


def test_files_are_described_as_the_operating_system_names_them(compiled: Compiled, tmp_path: Path) -> None:
    odd = [b"\xff\xfe", "größe".encode(), b"new\nline", b".hidden", b"..x", b"x" * 255]
    for name in odd:
        (tmp_path / os.fsdecode(name)).touch()
    assert compiled.stat_files(str(tmp_path), list(map(os.fsdecode, odd)))[0] == [0] * len(odd)


_parts = st.sampled_from(["a", "b", "B", ".", "/", "__", "é", "É", "x.y", "\udcff", "\0"])


@given(st.lists(st.tuples(st.lists(_parts, max_size=5).map("".join), st.booleans()), max_size=12))
def test_names_are_grouped_as_in_python(members: list[tuple[str, bool]]) -> None:
    names = [name for name, _ in members]
    zeros = np.zeros(len(names), np.uint64)
    kinds = np.array([48 if regular else 53 for _, regular in members], np.uint8)
    archive_members = TarMembers(zeros, zeros, zeros, kinds, names, 0, 0)

    def grouped() -> object:
        try:
            return group_key(archive_members, "x").tolist()
        except ArchiveError as error:
            return str(error)

    found = grouped()
    with pure_python():
        assert grouped() == found


def test_grouping_asks_for_room_and_leaves_large_samples_to_python(compiled: Compiled) -> None:
    names = [f"key.{i}" for i in range(100)]
    starts, files = np.zeros(100, np.int64), np.ones(100, np.bool_)
    assert compiled.group_names(names, files, starts) is None
    assert compiled.group_names(names[:20], files, starts[:19]) is None
    assert compiled.group_names(names[:20], files[:19], starts) is None
    assert compiled.group_names(names[:20], files, starts) == 1
    assert compiled.group_names([], files[:0], starts[:0]) == 0


def test_a_file_that_is_cut_while_it_is_read_ends_no_process(compiled: Compiled, tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"line\n" * 200_000)
    stop = threading.Event()

    def cut() -> None:
        while not stop.is_set():
            os.truncate(path, 0)
            path.write_bytes(b"line\n" * 200_000)

    thread = threading.Thread(target=cut)
    thread.start()
    descriptor = os.open(path, os.O_RDONLY)
    starts = np.arange(0, 1_000_000, 5, dtype=np.uint64)
    ends = np.empty(200_000, np.uint64)
    try:
        for _ in range(50):
            lines, _ = compiled.read_lines(descriptor, starts, starts + np.uint64(5), 0, 10**9)
            assert set(lines) <= {b"line\n", b"\nline\n"}
            count, done = compiled.find_newlines(descriptor, 0, 1_000_000, memoryview(bytearray(65536)), ends)
            assert done == 5 * count or done % 5
    finally:
        stop.set()
        thread.join()
        os.close(descriptor)


@pytest.mark.slow
def test_nothing_is_kept(compiled: Compiled, opened: Opened, tmp_path: Path) -> None:
    data = bytes(archive(random.Random(3)))
    descriptor = opened(LINES + data)
    offsets = np.array(OFFSETS, np.uint64)
    names = ["a.b", "a.c", "b.c"]
    tar, ends = tar_of(SAMPLES)
    (tmp_path / "samples").write_bytes(tar)
    archived = os.open(tmp_path / "samples", os.O_RDONLY)
    (tmp_path / "sub").mkdir()

    def everything() -> None:
        compiled.scan_bytes_headers(data, 0, *arrays(5))
        compiled.scan_file_headers(descriptor, len(LINES), 512, *arrays(5))
        compiled.find_newlines(descriptor, 0, 99, memoryview(bytearray(10)), np.zeros(9, np.uint64))
        compiled.read_lines(descriptor, offsets[:-1], offsets[1:], 0, 99)
        compiled.group_names(names, np.ones(3, np.bool_), np.zeros(3, np.int64))
        compiled.read_samples(archived, bounds_of(ends, [1, 2, 3, 4]), 10**9, True, Sample)
        with pytest.raises(AttributeError):
            compiled.read_samples(archived, bounds_of(ends, [1]), 10**9, True, dict)
        compiled.stat_files(str(tmp_path), ["data", "none", "sub"])
        with pytest.raises(ValueError, match="null"):
            compiled.stat_files(str(tmp_path), ["data", "\0"])

    def kept(calls: int) -> int:
        gc.collect()
        before = sys.getallocatedblocks()
        for _ in range(calls):
            everything()
        gc.collect()
        return sys.getallocatedblocks() - before

    everything()
    descriptors = len(os.listdir("/proc/self/fd"))
    # Other threads of this process may allocate, open and close now and then; a leak grows with every call.
    assert min(kept(60) for _ in range(5)) < 60
    assert len(os.listdir("/proc/self/fd")) < descriptors + 60


@pytest.mark.parametrize("seed", range(4))
def test_wide_integers_and_nulls_are_seen_as_in_python(compiled: Compiled, seed: int) -> None:
    chance = random.Random(seed)
    texts = [bytes(chance.choices(b"0123456789" * 6 + b'.eE-, ["nul', k=chance.randrange(80))) for _ in range(5000)]
    wide = b"1" * 20
    texts += [wide[1:], b"-" + wide[1:], wide, b"." + wide, wide + b".5", b"", b"nul", b"null", b"nnull"]
    with pure_python():
        assert [compiled.holds_wide(text) for text in texts] == list(map(json_values.holds_wide, texts))
    assert [compiled.holds_null(text) for text in texts] == [b"null" in text for text in texts]


_FORMATS = (tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT)
_KINDS = b"0000000\x00A7123456SxgLKX"
_NAMES = ("a.wav", "a.json", "b.seg.png", "d/é.txt", "d/.hidden", "__x__/y.z", "n", "l/" * 60 + "x.y", "d/\udcff.a")
_FIELDS = ((0, 100), (124, 12), (148, 8), (156, 1), (257, 8), (345, 155), (482, 1))
_SIZES = (
    *(b"\x80" + b"\0" * 10 + b"\x07", b"\x80" + b"\xff" * 11, b"\xff" * 12, b"77777777777\0", b"00000000010 "),
    *(b"     100 \0\0\0", b"-0000000001\0", b"0_000000100\0", b"0o000000100\0", b"\0" * 12, b"000000001000"),
)


def archive(chance: random.Random) -> bytearray:
    """Return a small archive of a few members of any kind."""
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w", format=chance.choice(_FORMATS)) as tar:
        for _ in range(chance.randrange(1, 6)):
            info = tarfile.TarInfo(chance.choice(_NAMES))
            info.size = chance.choice((0, 0, 1, 511, 512, 513, 1500))
            info.mtime = chance.choice((0, 0, 1.5))
            tar.addfile(info, io.BytesIO(bytes(info.size)))
    end = target.tell() if chance.random() < 0.5 else len(target.getvalue().rstrip(b"\0")) + BLOCK
    return bytearray(target.getvalue()[:end])


def mutate(data: bytearray, chance: random.Random) -> None:
    """Damage an archive; mostly a header, and mostly so that its checksum fits again."""
    block = chance.randrange(max(1, len(data) // BLOCK)) * BLOCK
    start, size = chance.choice(_FIELDS)
    what = chance.randrange(7)
    if what == 0:
        data[block + start : block + start + size] = chance.randbytes(size)
    elif what == 1:
        data[block + 124 : block + 136] = chance.choice(_SIZES)
    elif what == 2:
        data[block + 156 : block + 157] = bytes([chance.choice(_KINDS)])
    elif what == 3:
        place = min(block + chance.randrange(BLOCK), len(data) - 1)
        data[place] ^= 1 << chance.randrange(8)
    elif what == 4:
        del data[chance.randrange(len(data)) :]
    elif what == 5:
        data[block:block] = chance.randbytes(BLOCK) if chance.random() < 0.5 else data[:BLOCK]
    else:
        data[block + 124 : block + 136] = b"%011o\0" % chance.choice((chance.randrange(3000), chance.randrange(8**11)))
    if chance.random() < 0.8 and block + BLOCK <= len(data):
        data[block + 148 : block + 156] = b" " * 8
        data[block + 148 : block + 156] = b"%06o\0 " % sum(data[block : block + BLOCK])


@contextmanager
def pure_python() -> Iterator[None]:
    """Use the implementation in Python."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "compiled", None)
        yield


def outcome(walk: Callable[[], TarMembers]) -> Any:
    """Return the result of a walk and its grouping, or their error."""
    try:
        found = walk()
        columns = (found.header_offset, found.data_offset, found.size, found.kind)
        told = found.names, found.end, found.consumed, [(column.dtype, column.tolist()) for column in columns]
    except ArchiveError as error:
        return str(error)
    try:
        return told, group_key(found, "x").tolist()
    except ArchiveError as error:
        return told, str(error)


def require_equal(walk: Callable[[], TarMembers], data: bytes) -> bool:
    """Raise unless both implementations have the same result; return whether it is an error."""
    compiled = outcome(walk)
    with pure_python():
        python = outcome(walk)
    if compiled != python:
        raise RuntimeError(f"{data!r}:\ncompiled: {compiled}\nPython: {python}")
    return isinstance(python, str)


def fuzz(count: int, seed: int, folder: Path) -> int:
    """Walk `count` damaged archives from memory, and each tenth from a file; return how many were errors."""
    chance = random.Random(seed)
    path = folder / "fuzz.tar"
    errors = 0
    for number in range(count):
        data = archive(chance) if chance.random() < 0.97 else bytearray(chance.randbytes(chance.randrange(1, 3000)))
        for _ in range(chance.choice((0, 1, 1, 1, 2, 3))):
            if data:
                mutate(data, chance)
        content = bytes(data)
        errors += require_equal(lambda: walk_bytes(content, "x"), content)  # noqa: B023 - called at once
        if number % 10 == 0:
            path.write_bytes(content)
            require_equal(lambda: walk_tar(str(path)), content)
    return errors


def samples(chance: random.Random) -> tuple[bytearray, list[int]]:
    """Return an archive of samples of plain files, with their starts and the end of the last one."""
    target = io.BytesIO()
    bounds = []
    stem = chance.choice(("{}", "d/{}", "{}.x", "{}.é", "a.{}"))
    with tarfile.open(fileobj=target, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for number in range(chance.randrange(1, 7)):
            bounds.append(tar.offset)
            for extension in chance.sample(
                ("wav", "json", "seg.png", "", "é", "cls", "\udcff"), chance.randrange(1, 5)
            ):
                info = tarfile.TarInfo(f"{stem.format(number)}.{extension}")
                info.size = chance.choice((0, 1, 511, 512, 513, 1500, 5000))
                tar.addfile(info, io.BytesIO(chance.randbytes(info.size)))
        bounds.append(tar.offset)
    return bytearray(target.getvalue()), bounds


def damage_bounds(bounds: list[int], chance: random.Random) -> list[int]:
    """Return bounds as an index of another archive may have them: still in order."""
    place = chance.randrange(len(bounds))
    what = chance.randrange(4)
    if what == 0 and len(bounds) > 2:
        bounds = bounds[:place] + bounds[place + 1 :]
    elif what == 1:
        bounds = [*bounds[:place], max(0, bounds[place] - BLOCK), *bounds[place:]]
    elif what == 2:
        bounds = [*bounds[:place], bounds[place] + BLOCK * chance.randrange(-3, 4), *bounds[place + 1 :]]
    return sorted({max(0, bound) for bound in bounds})


def read_all(url: str, index: str, group: Grouping) -> list[list[Any]]:
    """Return the results of each sample, alone and with all samples after it; an error is the last one."""
    with TarReader(url, index, check=False, group=group) as reader:
        count = len(reader)
        alone = [taken(lambda: iter([[reader[record]]])) for record in range(count)]  # noqa: B023 - called at once
        return alone + [taken(lambda: reader.read_pieces(range(record, count))) for record in range(count)]  # noqa: B023


def taken(read: Callable[[], Iterator[list[Sample]]]) -> list[Any]:
    """Return keys and members of samples, and the error that ends them."""
    found: list[Any] = []
    try:
        for piece in read():
            found += [(sample.key, list(sample.items())) for sample in piece]
    except LedgerbeamError as error:
        found.append(str(error))
    return found


def fuzz_samples(count: int, seed: int, folder: Path) -> int:
    """Read the samples of `count` archives, most of them damaged; return how many reads were errors."""
    chance = random.Random(seed)
    path, index = str(folder / "samples.tar"), str(folder / "samples.idx")
    errors = 0
    for _ in range(count):
        data, bounds = samples(chance)
        for _ in range(chance.choice((0, 0, 1, 2))):
            mutate(data, chance)
        for _ in range(chance.choice((0, 0, 1))):
            bounds = damage_bounds(bounds, chance)
        Path(path).write_bytes(data)
        write_index(index, np.array(bounds, np.uint64))
        for group in ("auto", "key", "pairs"):
            compiled = read_all(path, index, group)
            with pure_python():
                python = read_all(path, index, group)
            if compiled != python:
                raise RuntimeError(f"{data!r}, {bounds}, {group}:\ncompiled: {compiled}\nPython: {python}")
            errors += sum(isinstance(found[-1], str) for found in python)
    return errors


INTEGERS = [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]


@given(
    st.sampled_from(INTEGERS),
    st.sampled_from(INTEGERS),
    st.lists(st.tuples(*[st.integers(-2, 12) | st.integers(-MOST, MOST)] * 3), max_size=4),
)
def test_tokens_are_copied_as_numpy_does_and_never_outside_of_an_array(
    compiled: Compiled, kind: str, other: str, rows: list[tuple[int, int, int]]
) -> None:
    tokens, into = np.arange(10).astype(kind), np.full(12, 99, other)
    expected, is_inside = into.copy(), True
    for start, stop, place in rows:
        is_inside = is_inside and 0 <= start <= stop <= 10 and 0 <= place <= 12 - (stop - start)
        if is_inside:
            expected[place : place + stop - start] = tokens[start:stop]
    table = np.array(rows, np.int64).reshape(-1, 3)
    kinds = tokens.itemsize * (-1 if kind[0] == "i" else 1), into.itemsize * (-1 if other[0] == "i" else 1)
    ranges, places = np.ascontiguousarray(table[:, :2].T), np.ascontiguousarray(table[:, 2])
    is_done = compiled.copy_tokens(tokens, into, kinds, ranges, places)
    if is_done or kind == other:
        assert is_done == is_inside
        assert into.tolist() == expected.tolist()


PAGE = 4096
SOURCES = 400

# A program of a user, not a command.
PROGRAM = "import sys; from ledgerbeam.pipelines.cli.cli import main; main(['ledger', 'status', sys.argv[1]])"


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The file of a ledger of some pages."""
    folder = tmp_path_factory.mktemp("ledger")
    with closing(open_store(str(folder), create=True)) as store:
        store.register([Source(f"/in/{number}.jsonl", number, "1") for number in range(SOURCES)])
    return (folder / "data.mdb").read_bytes()


def with_zeros(folder: Path, ledger: bytes, page: int) -> Path:
    (folder / "data.mdb").write_bytes(ledger[: page * PAGE] + bytes(PAGE) + ledger[(page + 1) * PAGE :])
    return folder


def look(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False, cwd="/")


@pytest.mark.slow
def test_a_command_says_what_to_do_whichever_page_is_none(compiled: Compiled, tmp_path: Path, ledger: bytes) -> None:
    ended = []
    for page in range(2, len(ledger) // PAGE):
        folder = with_zeros(tmp_path, ledger, page)
        ran = look("-m", "ledgerbeam", "ledger", "status", str(folder))
        assert ran.returncode in (0, 1), f"page {page}: {ran.stderr}"
        if ran.returncode:
            said = ran.stderr.splitlines()[-1]
            assert said.startswith(f"ledgerbeam: error: ledger {folder}: ")
            assert "restore it from a copy" in said.lower()
            ended += [page] if "a library crashed" in said else []
    assert ended, "no page made LMDB end the command"

    broken = with_zeros(tmp_path, ledger, ended[0])
    for program in (("-c", PROGRAM, str(broken)), ("-m", "ledgerbeam", "ledger", "status", str(broken), "--debug")):
        ran = look(*program)
        assert ran.returncode < 0, "what is no command, or is looked into, is ended by the signal"
        assert "a library ended" not in ran.stderr


if __name__ == "__main__":
    with TemporaryDirectory() as scratch:
        limit_memory()
        total = int(sys.argv[1])
        start = int(sys.argv[2]) if sys.argv[2:] else 1
        print(f"{total} archives, {fuzz(total, start, Path(scratch))} errors, all equal")
        print(f"{total} archives of samples, {fuzz_samples(total, start, Path(scratch))} errors, all equal")
