from __future__ import annotations

import contextlib
import errno
import fcntl
import itertools
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from stat import S_ISREG
from typing import BinaryIO

import pytest

from ledgerbeam.errors import DiskFullError, SourceNotFoundError, StorageError, UsageError
from ledgerbeam.io.listing import pages as listing
from ledgerbeam.io.storage import client, ranges, stat, uploads, urls
from ledgerbeam.io.storage import files as storage
from ledgerbeam.io.storage import publish as publishing
from ledgerbeam.io.storage.publish import (
    publish,
    publish_all,
    publish_bytes,
    publishing_together,
    remove_stale_temporaries,
    remove_stale_temporaries_of,
)
from tests.cases import each
from tests.conftest import S3Requests
from tests.disk import Disk, no_larger_than
from tests.io.conftest import Place
from tests.memory import peak_of

WRITER = """
import sys
from ledgerbeam.io.storage.publish import publish
with publish(sys.argv[1]) as file:
    file.write(b"half")
    file.flush()
    print("writing", flush=True)
    sys.stdin.read()
"""


class BodyError(Exception):
    pass


def contents(place: Place) -> list[str]:
    if urls.is_local(place.url):
        return sorted(p.name for p in Path(place.url).rglob("*") if p.is_file())
    store = client.filesystem(place.url, place.options)
    store.invalidate_cache()
    return sorted(name.rpartition("/")[2] for name in store.find(place.url))


def write_and_raise(url: str, place: Place, data: bytes, error: BaseException) -> None:
    with publish(url, place.options) as file:
        file.write(data)
        raise error


def write_at_once(url: str, data: bytes) -> None:
    with publish(url) as file:
        file.write(data)


def files(folder: Path) -> dict[str, bytes]:
    """Return the names and contents of the files in a folder."""
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_an_output_appears_whole(place: Place) -> None:
    url = place / "deep/er/out.jsonl"
    with publish(url, place.options) as file:
        file.write(b"one\n")
        file.write(b"two\n")
        assert "out.jsonl" not in contents(place)
    assert storage.read_bytes(url, place.options) == b"one\ntwo\n"
    with publish(place / "empty", place.options):
        pass
    assert stat.stat(place / "empty", place.options).size == 0
    assert contents(place) == ["empty", "out.jsonl"]


def test_a_body_that_raises_leaves_the_former_output_or_nothing(place: Place) -> None:
    with pytest.raises(BodyError):
        write_and_raise(place / "deep/out", place, b"x" * 5_000_000, BodyError())
    assert contents(place) == []
    url = place / "out"
    publish_bytes(url, b"former", place.options)
    with pytest.raises(KeyboardInterrupt):
        write_and_raise(url, place, b"latter", KeyboardInterrupt())
    assert storage.read_bytes(url, place.options) == b"former"
    publish_bytes(url, b"latter", place.options)
    assert storage.read_bytes(url, place.options) == b"latter"
    assert contents(place) == ["out"]


@each(
    ("url", "problem"),
    [
        ("http://host/x", "in one step"),
        ("ftp://host/x", "in one step"),
        ("memory://bucket/folder/", "found a folder"),
        ("s3://bucket/folder/", "found a folder"),
        ("hf://datasets/owner/name/a.jsonl", r"in one commit: ledgerbeam publish LEDGER --to hf://datasets/OWNER/NAME"),
    ],
)
def test_what_cannot_be_an_output_is_refused_before_anything_is_made(url: str, problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        publish_bytes(url, b"x")
    with pytest.raises(UsageError, match=problem), publish(url):
        pytest.fail("the body ran")


def test_the_errors_of_the_body_are_its_own(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="missing") as caught, publish(str(tmp_path / "out")):
        (tmp_path / "missing").read_bytes()
    assert not isinstance(caught.value, StorageError)
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/elsewhere/file")
    with pytest.raises(OSError, match="elsewhere") as caught_full, publish(str(tmp_path / "out")):
        raise full
    assert caught_full.value is full


@pytest.mark.parametrize("size", [33 * 2**20, 110 * 2**20])
@pytest.mark.s3
def test_large_outputs_become_visible_in_one_request(s3_place: Place, s3_requests: S3Requests, size: int) -> None:
    url = s3_place / "large"
    block = os.urandom(2**20)
    s3_requests.take()
    with publish(url, s3_place.options) as file:
        for _ in range(size // len(block)):
            file.write(block)
        assert s3_requests.take() == []
    made = s3_requests.take()
    if size < 100 * 2**20:
        assert made == ["put_object"]
    else:
        assert made[0] == "create_multipart_upload"
        assert made[-1] == "complete_multipart_upload"
    reader = ranges.RangeReader(url, s3_place.options)
    assert reader.size == size
    assert reader.read(size - 2**20, size) == block


@pytest.mark.s3
def test_a_small_output_is_one_request(s3_place: Place, s3_requests: S3Requests) -> None:
    s3_requests.take()
    with publish(s3_place / "small", s3_place.options) as file:
        file.write(b"x")
    publish_bytes(s3_place / "bytes", b"x", s3_place.options)
    assert s3_requests.take() == ["put_object"] * 2


@pytest.mark.s3
def test_what_is_in_memory_is_sent_and_read_without_further_copies(s3_place: Place, s3_requests: S3Requests) -> None:
    data = os.urandom(32 * 2**20)
    url = s3_place / "large"
    publish_bytes(s3_place / "first", data[: 2**23], s3_place.options)  # not counting its imports
    s3_requests.take()
    _, peak = peak_of(lambda: publish_bytes(url, data, s3_place.options))
    assert s3_requests.take() == ["put_object"]
    assert peak < 0.3 * len(data)
    listed = stat.stat(url, s3_place.options)
    with ranges.RangeReader(url, s3_place.options, listed=listed) as reader:
        found, peak = peak_of(lambda: reader.read(0, len(data)))
    assert found == data
    assert peak < 1.4 * len(data)  # it grows by an eighth


@pytest.mark.s3
def test_what_is_in_memory_and_larger_than_one_request_is_sent_in_parts(
    s3_place: Place, s3_requests: S3Requests, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uploads, "_PART", 5 * 2**20)  # the least that a store takes
    monkeypatch.setattr(uploads, "_SIDE_BY_SIDE", 2)
    data = os.urandom(26 * 2**20)
    s3_requests.take()
    _, peak = peak_of(lambda: publish_bytes(s3_place / "parts", data, s3_place.options))
    made = s3_requests.take()
    assert (made[0], made[-1]) == ("create_multipart_upload", "complete_multipart_upload")
    assert made[1:-1] == ["upload_part"] * 6
    assert storage.read_bytes(s3_place / "parts", s3_place.options) == data
    assert peak < 0.5 * len(data)


@pytest.mark.parametrize("data", [b"", b"x" * 5 * 2**20])
@pytest.mark.s3
def test_a_missing_bucket_is_named(s3_place: Place, data: bytes) -> None:
    with pytest.raises(StorageError, match=r"no-such-bucket/x.*does not exist"):
        publish_bytes("s3://no-such-bucket/x", data, s3_place.options)


def test_a_folder_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(StorageError, match="a folder of this name"):
        publish_bytes(str(tmp_path / "folder"), b"x")
    with pytest.raises(UsageError, match="found a folder"):
        publish_bytes(f"{tmp_path}/folder/", b"x")
    assert os.listdir(tmp_path) == ["folder"]
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StorageError, match="file/below"):
        publish_bytes(str(tmp_path / "file" / "below"), b"x")


def test_missing_permission_says_so(tmp_path: Path, nobody: AbstractContextManager[None]) -> None:
    tmp_path.chmod(0o500)
    with nobody, pytest.raises(StorageError, match=r"out.*permission"):
        publish_bytes(str(tmp_path / "out"), b"x")


def test_long_names_fit(tmp_path: Path) -> None:
    name = os.fsdecode("é".encode() * 127 + b"x")  # also where the locale is not UTF-8
    assert len(os.fsencode(name)) == 255
    publish_bytes(str(tmp_path / name), b"x")
    assert os.listdir(tmp_path) == [name]


@pytest.mark.parametrize(("umask", "permissions"), [(0o027, 0o640), (0, 0o666)])
def test_permissions_follow_the_umask(tmp_path: Path, umask: int, permissions: int) -> None:
    before = os.umask(umask)
    try:
        publish_bytes(str(tmp_path / "x"), b"")
    finally:
        os.umask(before)
    assert (tmp_path / "x").stat().st_mode & 0o777 == permissions


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 1 MB."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small tmpfs needs root")
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    if subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("mounting a tmpfs is not allowed here")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def write_in_blocks(path: Path, size: int) -> None:
    with publish(str(path)) as file:
        for _ in range(size // 100_000):
            file.write(b"x" * 100_000)


@pytest.mark.parametrize("size", [1_200_000, 8_000_000])  # the error comes at the flush, or in the body
def test_a_full_disk_keeps_what_was_there(small_disk: Path, size: int) -> None:
    out = small_disk / "out"
    publish_bytes(str(out), b"former")
    with pytest.raises(DiskFullError, match=r"out.*intact"):
        write_in_blocks(out, size)
    assert os.listdir(small_disk) == ["out"]
    assert out.read_bytes() == b"former"
    publish_bytes(str(out), b"latter")
    assert out.read_bytes() == b"latter"


@contextlib.contextmanager
def writer(path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Return a process that is publishing."""
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdin=pipe, stdout=pipe) as process:
        if process.stdout is None or process.stdout.readline() != b"writing\n":
            raise RuntimeError("the writer did not start")
        yield process
        process.kill()


@pytest.mark.parametrize("name", ["out.jsonl", "two\nlines.jsonl"])
@pytest.mark.parametrize("of_one", [True, False], ids=["of one output", "of a folder"])
def test_a_killed_writer_leaves_the_former_output_and_one_temporary(tmp_path: Path, name: str, of_one: bool) -> None:
    out = tmp_path / "deep" / name
    publish_bytes(str(out), b"former")
    with writer(out) as process:
        process.send_signal(signal.SIGKILL)
    (left,) = set(os.listdir(out.parent)) - {name}
    assert re.fullmatch(rf"\.{re.escape(name)}\.\d+-\d+\.lbtmp", left)
    assert out.read_bytes() == b"former"
    assert [page.urls for page in listing.list_pages([f"{tmp_path}/**"])] == [[str(out)]]
    removed = remove_stale_temporaries_of(str(out)) if of_one else remove_stale_temporaries(str(tmp_path))
    assert removed == [str(out.parent / left)]
    assert os.listdir(out.parent) == [name]


def test_the_file_of_a_live_writer_stays(tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    with writer(out) as process:
        assert remove_stale_temporaries(str(tmp_path)) == []
        process.communicate(b"")
        assert process.returncode == 0
    assert out.read_bytes() == b"half"


def test_what_killed_writers_left_among_the_files_of_live_ones_is_removed(tmp_path: Path) -> None:
    stale = [tmp_path / f".stale-{number}.1-2.lbtmp" for number in range(4)]
    with contextlib.ExitStack() as writing:
        for number, path in enumerate(stale):
            path.touch()
            writing.enter_context(publish(str(tmp_path / f"live-{number}")))
        assert remove_stale_temporaries(str(tmp_path)) == [str(path) for path in stale]
    assert sorted(os.listdir(tmp_path)) == [f"live-{number}" for number in range(4)]


def test_beside_an_output_what_killed_writers_of_others_left_stays(tmp_path: Path) -> None:
    for name in ("a", "a.idx", "ab", "b"):
        (tmp_path / f".{name}.1-2.lbtmp").touch()
    assert remove_stale_temporaries_of(str(tmp_path / "a")) == [str(tmp_path / ".a.1-2.lbtmp")]
    assert len(os.listdir(tmp_path)) == 3
    assert remove_stale_temporaries_of("memory://bucket/a") == []


def test_only_our_temporaries_are_removed(tmp_path: Path) -> None:
    for name in ("x.lbtmp", ".x.lbtmp", ".x.1-2.lbtmp.txt", ".x.tmp"):
        (tmp_path / name).write_bytes(b"")
    (tmp_path / ".link.1-2.lbtmp").symlink_to("x.lbtmp")
    assert remove_stale_temporaries(str(tmp_path)) == []
    assert remove_stale_temporaries(str(tmp_path / "missing")) == []
    assert remove_stale_temporaries("memory://bucket/x") == []
    assert len(os.listdir(tmp_path)) == 5


def test_sweeping_never_takes_a_file_from_a_writer(tmp_path: Path) -> None:
    done = threading.Event()
    swept: list[str] = []

    def sweep() -> None:
        while not done.is_set():
            swept.extend(remove_stale_temporaries(str(tmp_path)))

    sweepers = [threading.Thread(target=sweep) for _ in range(3)]
    for sweeper in sweepers:
        sweeper.start()
    try:
        for i in range(300):
            publish_bytes(str(tmp_path / f"{i}"), b"%d" % i)
    finally:
        done.set()
        for sweeper in sweepers:
            sweeper.join()
    assert files(tmp_path) == {f"{i}": b"%d" % i for i in range(300)}


@pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace to see system calls: apt-get install strace")
def test_bytes_are_durable_before_the_name_and_the_name_before_the_end(tmp_path: Path) -> None:
    script = "import sys; from ledgerbeam.io.storage.publish import publish_bytes as p; p(sys.argv[1], b'x')"
    log = tmp_path / "log"
    command = ["strace", "-f", "-y", "-o", str(log), "-e", "trace=mkdir,fsync,fdatasync,rename,renameat,renameat2"]
    subprocess.run([*command, sys.executable, "-c", script, str(tmp_path / "new" / "out")], check=True)
    steps = [line.partition(" ")[2].strip() for line in log.read_text().splitlines() if str(tmp_path) in line]
    patterns = [
        rf'mkdir\("{tmp_path}/new"',
        rf"fsync\(\d+<{tmp_path}>\)",
        rf"fsync\(\d+<{tmp_path}/new/\.out\..*\.lbtmp>\)",
        rf'rename\("{tmp_path}/new/\.out\..*\.lbtmp", "{tmp_path}/new/out"\)',
        rf"fsync\(\d+<{tmp_path}/new>\)",
    ]
    assert len(steps) == len(patterns), steps
    for step, pattern in zip(steps, patterns, strict=True):
        assert re.match(pattern, step), steps


def test_a_device_or_a_pipe_is_not_replaced_by_a_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (str(tmp_path / "pipe"), "/dev/null"):
        with pytest.raises(UsageError, match="not a regular file"):
            publish_bytes(path, b"x")
    assert Path("/dev/null").is_char_device()
    assert [path.name for path in tmp_path.iterdir()] == ["pipe"]


@pytest.mark.parametrize("leads", [True, False])
def test_a_link_is_replaced_by_an_output_and_what_it_leads_to_stays(tmp_path: Path, leads: bool) -> None:
    (tmp_path / "elsewhere").write_bytes(b"of others")
    (tmp_path / "out").symlink_to(tmp_path / ("elsewhere" if leads else "nowhere"))
    publish_bytes(str(tmp_path / "out"), b"ours")
    assert not (tmp_path / "out").is_symlink()
    assert files(tmp_path) == {"elsewhere": b"of others", "out": b"ours"}


# errors of separate steps


def test_no_file_is_left_open_whatever_happens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = open_files()
    publish_bytes(str(tmp_path / "deep" / "out"), b"x")
    with pytest.raises(BodyError):
        write_and_raise(str(tmp_path / "out"), Place(str(tmp_path)), b"x", BodyError())
    (tmp_path / ".left.1-2.lbtmp").write_bytes(b"")
    assert len(remove_stale_temporaries(str(tmp_path))) == 1

    def refuse(descriptor: int, how: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(StorageError, match=r"out: cannot write \(.*lock"):
        publish_bytes(str(tmp_path / "out"), b"x")
    assert open_files() == before


def test_a_name_that_is_taken_aside_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publishing, "_counter", itertools.count())
    taken = tmp_path / f".out.{os.getpid()}-0.lbtmp"
    taken.write_bytes(b"of another host")
    publish_bytes(str(tmp_path / "out"), b"x")
    assert files(tmp_path) == {"out": b"x", taken.name: b"of another host"}


def test_a_file_that_was_swept_before_it_was_locked_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, before = fcntl.flock, open_files()
    swept: list[str] = []

    def sweep_first(descriptor: int, how: int) -> None:
        if not swept:
            swept.append(os.readlink(f"/proc/self/fd/{descriptor}"))
            os.unlink(swept[0])
        real(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", sweep_first)
    publish_bytes(str(tmp_path / "out"), b"x")
    assert files(tmp_path) == {"out": b"x"}
    assert open_files() == before


@pytest.mark.parametrize("then", ["published", "another has its name"])
def test_what_is_published_while_it_is_swept_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, then: str) -> None:
    (tmp_path / ".out.1-2.lbtmp").write_bytes(b"x")
    real = fcntl.flock

    def late(descriptor: int, how: int) -> None:
        os.rename(tmp_path / ".out.1-2.lbtmp", tmp_path / "out")
        if then != "published":
            (tmp_path / ".out.1-2.lbtmp").write_bytes(b"another")
        real(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", late)
    assert remove_stale_temporaries(str(tmp_path)) == []
    assert len(os.listdir(tmp_path)) == (1 if then == "published" else 2)
    assert (tmp_path / "out").read_bytes() == b"x"


def test_what_is_published_before_it_is_swept_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "walk", lambda root: [(root, [], [".gone.1-2.lbtmp"])])
    assert remove_stale_temporaries(str(tmp_path)) == []


def test_what_is_swept_is_told_in_order(tmp_path: Path) -> None:
    names = [f"{name}/.x.1-{n}.lbtmp" for name in "cab" for n in range(3)]
    for name in names:
        publish_bytes(str(tmp_path / name.partition("/")[0] / "kept"), b"")
        (tmp_path / name).write_bytes(b"")
    assert remove_stale_temporaries(f"file://{tmp_path}") == sorted(str(tmp_path / name) for name in names)


def test_a_stale_file_that_cannot_be_removed_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".x.1-2.lbtmp").write_bytes(b"")

    def refuse(path: str) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM), path)

    monkeypatch.setattr(os, "unlink", refuse)
    with pytest.raises(StorageError, match=r"\.x\.1-2\.lbtmp: cannot remove"):
        remove_stale_temporaries(str(tmp_path))


def test_an_output_is_not_older_than_it_must_be_on_the_disk_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = time.time_ns()
    far = now + 10**12
    publish_bytes(str(tmp_path / "now"), b"x", not_before_ns=now - 10**12)
    assert abs((tmp_path / "now").stat().st_mtime_ns - now) < 10**11
    synced: list[int] = []
    real = os.fsync

    def noted(descriptor: int) -> None:
        real(descriptor)
        found = os.fstat(descriptor)
        synced.extend([found.st_mtime_ns] if S_ISREG(found.st_mode) else [])

    monkeypatch.setattr(os, "fsync", noted)
    publish_bytes(str(tmp_path / "later"), b"x", not_before_ns=far)
    assert synced == [far]


@each("size", [9, 10, 11, 25])
@each("write", [publish_bytes, write_at_once])
def test_outputs_of_any_size_reach_a_remote_store_whole(
    monkeypatch: pytest.MonkeyPatch, size: int, write: Callable[[str, bytes], None]
) -> None:
    monkeypatch.setattr(publishing, "_ONE_PUT", 10)
    data, url = os.urandom(size), f"memory://sizes/{size}"
    write(url, data)
    assert storage.read_bytes(url) == data
    storage.delete(url)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EAGAIN])
@pytest.mark.parametrize("url", ["{}/out", "memory://full/out"])
def test_an_error_of_another_file_is_not_taken_for_one_of_the_output(tmp_path: Path, url: str, number: int) -> None:
    error = OSError(number, os.strerror(number))
    with pytest.raises(OSError, match=re.escape(os.strerror(number))) as caught, publish(url.format(tmp_path)):
        raise error
    assert caught.value is error


def write_two(url: str, data: bytes) -> None:
    publish_all([(url, data), (f"{url}.idx", b"x")])


@pytest.mark.parametrize("write", [write_at_once, write_two])
@pytest.mark.parametrize("size", [5_000, 3_000_000])  # raised when the buffer is written at the end, or in the body
def test_a_write_that_is_refused_names_the_output_and_a_remedy(
    tmp_path: Path, size: int, write: Callable[[str, bytes], None]
) -> None:
    out = str(tmp_path / "out")
    publish_bytes(out, b"former")
    with no_larger_than(4096), pytest.raises(StorageError, match=r"/out: cannot write .*File too large.*ulimit -f"):
        write(out, b"x" * size)
    assert files(tmp_path) == {"out": b"former"}


def write_and_seek(url: str, data: bytes) -> None:
    with publish(url) as file:
        file.write(data)
        file.seek(0)


@pytest.mark.parametrize("write", [write_at_once, write_and_seek])
@pytest.mark.parametrize("size", [5_000, 3_000_000])
def test_a_large_remote_output_that_cannot_be_held_names_the_folder_and_the_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int, write: Callable[[str, bytes], None]
) -> None:
    monkeypatch.setattr(publishing, "_ONE_PUT", 10)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    url = "memory://refused/out"
    message = rf"^{tmp_path}: cannot buffer the output {url} .*File too large.*ulimit -f"
    with no_larger_than(4096), pytest.raises(StorageError, match=message):
        write(url, b"x" * size)
    with pytest.raises(SourceNotFoundError):
        storage.read_bytes(url)


def test_a_large_remote_output_for_which_the_disk_has_no_room_is_told_so(
    small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publishing, "_ONE_PUT", 10)
    monkeypatch.setattr(tempfile, "tempdir", str(small_disk))
    with pytest.raises(DiskFullError, match=f"^memory://full/out: no space is left on the device of {small_disk}"):
        write_at_once("memory://full/out", b"x" * 8_000_000)


def test_a_disk_that_is_full_at_a_step_of_ours_is_told_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    publish_bytes(str(tmp_path / "out"), b"former")

    def refuse(descriptor: int) -> None:
        raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(DiskFullError, match=r"out: no space is left.*intact"):
        publish_bytes(str(tmp_path / "out"), b"latter")
    assert files(tmp_path) == {"out": b"former"}


class Asked:
    """A store that records the form of each content."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, bytes]] = []

    def pipe_file(self, url: str, data: bytes) -> None:
        self.asked.append(("one put", data))

    def put_file(self, path: str, url: str) -> None:
        self.asked.append(("in parts", Path(path).read_bytes()))

    def blocks(self, url: str, file: BinaryIO, options: object) -> None:
        self.asked.append(("in blocks", file.read()))

    def in_memory(self, url: str, data: bytes, options: object) -> None:
        self.asked.append(("without copies", data))


def test_outputs_of_a_remote_store_appear_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    store = Asked()
    monkeypatch.setattr(publishing, "filesystem", lambda url, options: store)
    publish_all([("gs://bucket/b", b"shard"), ("gs://bucket/a", b"index")])
    assert store.asked == [("one put", b"shard"), ("one put", b"index")]


def test_no_output_of_several_is_synced_before_all_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publishing, "_SYNCS", 1)
    monkeypatch.setattr(publishing, "_syncing", {})
    real, synced = os.fsync, []

    def sync(descriptor: int) -> None:
        if S_ISREG(os.fstat(descriptor).st_mode):
            synced.append(sorted(path.stat().st_size for path in tmp_path.iterdir()))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", sync)
    publish_all([(str(tmp_path / name), b"x" * size) for size, name in enumerate("abcd", 1)])
    assert synced == [[1, 2, 3, 4]] * 4


def test_outputs_of_several_folders_have_their_names_for_good_when_it_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outputs = [(str(tmp_path / name), data) for name, data in (("a/1", b"1"), ("a/2", b"2"), ("b/3", b""))]
    disk = Disk(monkeypatch)
    publish_all(outputs)
    assert {path: Path(path).read_bytes() for path, _ in outputs} == dict(outputs)
    steps = [(what, path) for what, path, _ in disk.seen]
    named = [path for what, path in steps if what == "replace"]
    assert named == [path for path, _ in outputs]
    assert set(steps[steps.index(("replace", named[-1])) + 1 :]) == {("sync", str(tmp_path / name)) for name in "ab"}


def test_outputs_that_are_published_together_may_be_named_in_any_form(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    publish_all([("a", b"1"), ("deep/../b", b"2"), (f"file://{tmp_path}/c", b"3")])
    assert files(tmp_path) == {"a": b"1", "b": b"2", "c": b"3"}


@pytest.mark.parametrize("most", [10, 1])
def test_all_that_was_written_is_sent_wherever_the_writer_stands(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    store = Asked()
    monkeypatch.setattr(publishing, "filesystem", lambda url, options: store)
    monkeypatch.setattr(publishing, "_ONE_PUT", most)
    monkeypatch.setattr(uploads, "upload_blocks", store.blocks)
    with publish("az://bucket/out") as file:
        file.write(b"whole")
        file.seek(2)
    assert [data for _, data in store.asked] == [b"whole"]


def test_the_folders_that_an_output_needs_are_on_the_disk_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Disk(monkeypatch)
    publish_bytes(str(tmp_path / "a" / "b" / "out"), b"x")
    assert disk.synced_folders() == [str(tmp_path), str(tmp_path / "a"), str(tmp_path / "a" / "b")]


def test_no_output_appears_if_one_of_them_cannot_be_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.fsync

    def refuse(descriptor: int) -> None:
        if "/.b." in os.readlink(f"/proc/self/fd/{descriptor}"):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(StorageError, match=f"{tmp_path}/b: cannot write"):
        publish_all([(str(tmp_path / name), b"x") for name in "abc"])
    assert os.listdir(tmp_path) == []


def test_no_output_is_removed_while_it_is_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, removed = threading.get_ident(), threading.Event()
    removed_while_synced: list[bool] = []
    real = os.unlink

    def sync(descriptor: int) -> None:
        if threading.get_ident() == first:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        removed_while_synced.append(removed.wait(0.2))

    def unlink(path: str) -> None:
        removed.set()
        real(path)

    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(os, "unlink", unlink)
    with pytest.raises(StorageError, match="a: cannot write"):
        publish_all([(str(tmp_path / "a"), b"x"), (str(tmp_path / "b"), b"x")])
    assert removed_while_synced == [False]
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("write", [publish_bytes, write_at_once])
@pytest.mark.parametrize(("scheme", "large"), [("s3", "in parts"), ("gs", "in parts"), ("az", "in blocks")])
def test_a_small_output_is_one_put_and_a_large_one_is_not_held_in_memory(
    monkeypatch: pytest.MonkeyPatch, scheme: str, large: str, write: Callable[[str, bytes], None]
) -> None:
    store = Asked()
    monkeypatch.setattr(publishing, "_ONE_PUT", 10)
    monkeypatch.setattr(publishing, "filesystem", lambda url, options: store)
    monkeypatch.setattr(uploads, "upload_blocks", store.blocks)
    for size in (0, 9, 10, 11, 30):
        write(f"{scheme}://bucket/x", b"x" * size)
    small = [("one put", b"x" * size) for size in (0, 9, 10)]
    assert store.asked == [*small, *((large, b"x" * size) for size in (11, 30))]


def test_what_is_in_memory_goes_to_s3_without_copies_and_to_other_stores_as_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = Asked()
    monkeypatch.setattr(publishing, "_COPIED", 5)
    monkeypatch.setattr(publishing, "filesystem", lambda url, options: store)
    monkeypatch.setattr(uploads, "upload_bytes", store.in_memory)
    for scheme, large in (("s3", "without copies"), ("gs", "one put"), ("memory", "one put")):
        store.asked.clear()
        for size in (5, 6):
            publish_bytes(f"{scheme}://bucket/x", b"x" * size)
        assert store.asked == [("one put", b"x" * 5), (large, b"x" * 6)]


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_process_syncs_in_threads_of_its_own(tmp_path: Path) -> None:
    outputs = [(str(tmp_path / name), b"whole") for name in ("out.jsonl", "out.jsonl.idx")]
    publish_all(outputs)  # now this process has these threads
    child = os.fork()
    if child == 0:
        try:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(20)  # it would wait forever for threads that do not exist
            publish_all([(f"{path}.of-child", data) for path, data in outputs])
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert len(os.listdir(tmp_path)) == 4


def test_after_a_body_that_raised_outputs_appear_at_once_again(tmp_path: Path) -> None:
    with pytest.raises(BodyError), publishing_together():
        raise BodyError
    publish_bytes(str(tmp_path / "out"), b"x")
    assert os.listdir(tmp_path) == ["out"]
