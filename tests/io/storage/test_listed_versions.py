"""Reads of the listed version: they return it or raise `ChangedSourceError`, without an extra request."""

from __future__ import annotations

import os
import pickle
import socket
from collections.abc import Callable
from dataclasses import replace as replaced
from pathlib import Path

import pytest

from ledgerbeam.errors import (
    ChangedSourceError,
    DiskFullError,
    LedgerError,
    RecordError,
    SourceError,
    StorageError,
    UsageError,
)
from ledgerbeam.io import publish_bytes
from ledgerbeam.io.formats.streamed import scan_stream
from ledgerbeam.io.index.newlines import build_jsonl_index
from ledgerbeam.io.listing.pages import list_pages
from ledgerbeam.io.storage.client import Options
from ledgerbeam.io.storage.files import delete, read_bytes, read_many_files
from ledgerbeam.io.storage.ranges import RangeReader
from ledgerbeam.io.storage.stat import FileInfo, SourceWatch, open_descriptor, open_local, require_listed, stat
from ledgerbeam.io.tar.reader import build_tar_index
from tests.cases import each
from tests.conftest import S3Requests
from tests.io.conftest import Place

DATA = b"0123456789" * 10

READS: dict[str, Callable[[FileInfo, Options | None], object]] = {
    "a range": lambda listed, options: RangeReader(listed.url, options, listed=listed).read(10, 20),
    "ranges": lambda listed, options: RangeReader(listed.url, options, listed=listed).read_many(
        [0, 50], [5, 55], gap=0
    ),
    "all": lambda listed, options: read_bytes(listed.url, options, listed),
    "several": lambda listed, options: read_many_files([listed.url] * 2, options, [listed] * 2),
    "lines": lambda listed, options: build_jsonl_index(listed.url, options, listed=listed),
    "unpickled": lambda listed, options: pickle.loads(
        pickle.dumps(RangeReader(listed.url, options, listed=listed))
    ).read(10, 20),
    "a look": require_listed,
}


def put(place: Place, name: str, data: bytes) -> FileInfo:
    publish_bytes(place / name, data, place.options)
    (page,) = list_pages([place / f"{name[:3]}*"], place.options)
    listed = FileInfo(page.urls[0], page.sizes[0], page.versions[0])
    assert listed == stat(place / name, place.options)  # both name one version the same way
    return listed


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A local file of `DATA`."""
    (tmp_path / "abc.jsonl").write_bytes(DATA)
    return tmp_path / "abc.jsonl"


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_a_source_is_what_was_listed_or_an_error(
    place: Place, read: Callable[[FileInfo, Options | None], object]
) -> None:
    listed = put(place, "abc.jsonl", DATA)
    expected = read(listed, place.options)
    if place.url.startswith("/"):
        os.utime(listed.url, ns=(1, 1))
    else:
        publish_bytes(listed.url, DATA[::-1], place.options)
    problem = r"abc\.jsonl: changed since it was listed: expected 100 bytes of version"
    with pytest.raises(ChangedSourceError, match=problem):
        read(listed, place.options)
    now = stat(listed.url, place.options)
    assert type(read(now, place.options)) is type(expected)
    delete(listed.url, place.options)
    with pytest.raises((ChangedSourceError, FileNotFoundError)):
        read(now, place.options)


def test_of_several_files_each_is_of_its_own_listed_version(place: Place, tmp_path: Path) -> None:
    local, (one, other) = Place(str(tmp_path / "local")), (put(place, name, DATA) for name in ("abc", "xyz"))
    beside = put(local, "abc", DATA[::-1])
    files = [one, beside, other]
    urls = [file.url for file in files]
    assert read_many_files(urls, place.options, files) == [DATA, DATA[::-1], DATA]
    for number, name in enumerate(("abc", "local/abc", "xyz")):
        stale = [replaced(file, version="1") if at == number else file for at, file in enumerate(files)]
        with pytest.raises(ChangedSourceError, match=f"{name}: changed since it was listed"):
            read_many_files(urls, place.options, stale)


def test_an_object_that_is_gone_has_changed(place: Place) -> None:
    listed = put(place, "abc.jsonl", DATA)
    delete(listed.url, place.options)
    if not place.url.startswith("/"):
        with pytest.raises(ChangedSourceError, match=r"found (none: it was deleted|another version)"):
            RangeReader(listed.url, place.options, listed=listed).read(0, 5)


@pytest.mark.s3
def test_a_conditional_read_is_one_request(s3_place: Place, s3_requests: S3Requests) -> None:
    listed = put(s3_place, "abc.jsonl", DATA)
    s3_requests.take()
    with RangeReader(listed.url, s3_place.options, listed=listed) as reader:
        assert reader.read(10, 20) == DATA[:10]
        assert reader.size == 100
    assert s3_requests.take() == ["get_object"]
    assert read_many_files([listed.url] * 3, s3_place.options, [listed] * 3) == [DATA] * 3
    assert s3_requests.take() == ["get_object"] * 3


CHANGES: dict[str, Callable[[Path], object]] = {
    "overwritten": lambda path: path.write_bytes(DATA[::-1]),
    "overwritten, its time put back": lambda path: put_back(path, lambda: path.write_bytes(DATA[::-1])),
    "replaced": lambda path: replace(path, DATA[::-1]),
    "replaced, its time put back": lambda path: put_back(path, lambda: replace(path, DATA[::-1])),
    "appended": lambda path: path.write_bytes(DATA * 2),
    "truncated": lambda path: os.truncate(path, 50),
    "emptied": lambda path: os.truncate(path, 0),
    "touched": os.utime,
    "deleted": lambda path: path.unlink(),
    "a folder": lambda path: in_place(path, path.mkdir),
    "a pipe": lambda path: in_place(path, lambda: os.mkfifo(path)),
    "its folder is a file": lambda path: in_place(path, lambda: in_place_of_folder(path.parent)),
}


def in_place(path: Path, make: Callable[[], None]) -> None:
    path.unlink()
    make()


def in_place_of_folder(folder: Path) -> None:
    folder.rmdir()
    folder.write_bytes(b"")


def replace(path: Path, data: bytes) -> None:
    aside = path.with_name("aside")
    aside.write_bytes(data)
    aside.replace(path)


def put_back(path: Path, change: Callable[[], object]) -> None:
    before = path.stat()
    change()
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_watch_notices_what_happens_to_a_file(tmp_path: Path, change: Callable[[Path], object]) -> None:
    path = tmp_path / "in" / "abc.jsonl"
    path.parent.mkdir()
    path.write_bytes(DATA)
    os.utime(path, ns=(10**18, 10**18))
    listed = stat(str(path))
    with SourceWatch([listed]) as watch:
        watch.check()
    with pytest.raises(ChangedSourceError, match=r"abc\.jsonl: changed since it was listed"), SourceWatch([listed]):
        change(path)


def test_each_mark_of_a_file_is_compared(path: Path) -> None:
    listed = stat(str(path))
    assert len(SourceWatch([listed]).marks) == 1
    for other in (replaced(listed, size=99), replaced(listed, version="1"), replaced(listed, changed_ns=1)):
        with pytest.raises(ChangedSourceError, match=r"abc\.jsonl"):
            SourceWatch([other])


def test_a_link_to_another_file_is_another_file(tmp_path: Path) -> None:
    """A file of the same size and times, written within one tick of the file system's clock."""
    first, second, link = tmp_path / "first", tmp_path / "second", tmp_path / "abc.jsonl"
    for _ in range(1000):
        for path in (first, second):
            path.write_bytes(DATA)
        for path in (first, second):
            os.utime(path, ns=(10**18, 10**18))
        if first.stat().st_ctime_ns == second.stat().st_ctime_ns:
            break
    else:
        pytest.skip("the clock of this file system is too fine")
    link.symlink_to(first)
    watch = SourceWatch([stat(str(link))])
    watch.check()
    link.unlink()
    link.symlink_to(second)
    with pytest.raises(ChangedSourceError, match="device, inode"):
        watch.check()


@each(
    ("error", "is_explained"),
    [
        (RecordError("half a record"), True),
        (SourceError("damaged"), True),
        (StorageError("no"), True),
        (DiskFullError("no room"), False),
        (LedgerError("damaged"), False),
        (ValueError("of the caller"), False),
        (OSError(), False),
    ],
)
def test_which_errors_are_explained_by_a_change(path: Path, error: Exception, is_explained: bool) -> None:
    """Unrelated errors are not changed, such as a full disk, nor those of a file that stays."""
    path.write_bytes(DATA)

    def read(*, changes: bool) -> None:
        with SourceWatch([stat(str(path))]):
            if changes:
                os.truncate(path, 50)
            raise error

    with pytest.raises(ChangedSourceError if is_explained else type(error)) as caught:
        read(changes=True)
    assert caught.value.__cause__ is error if is_explained else caught.value is error
    with pytest.raises(type(error)) as caught:
        read(changes=False)
    assert caught.value is error


def test_of_several_files_the_one_that_changed_is_named(tmp_path: Path) -> None:
    paths = [tmp_path / f"{name}.jsonl" for name in "abc"]
    for path in paths:
        path.write_bytes(DATA)
    listed = [stat(str(path)) for path in paths]
    remote = replaced(listed[0], url="s3://bucket/a")
    watch = SourceWatch([remote, *listed])
    assert len(watch.marks) == 3
    watch.check()
    for path in paths[1:]:
        put_back(path, lambda path=path: path.write_bytes(DATA[::-1]))  # type: ignore[misc]
    with pytest.raises(ChangedSourceError, match=r"b\.jsonl: changed since"):
        watch.check()


def test_a_time_of_the_last_change_is_compared_where_it_is_known(path: Path) -> None:
    now = path.stat()
    known = replaced(stat(str(path)), changed_ns=now.st_ctime_ns)
    assert SourceWatch([known]).marks == ((now.st_dev, now.st_ino, now.st_ctime_ns),)
    put_back(path, lambda: path.write_bytes(DATA[::-1]))
    with pytest.raises(ChangedSourceError, match="same size and time, which was written, replaced or renamed since"):
        SourceWatch([known])
    assert SourceWatch([replaced(known, changed_ns=0)]).marks


def test_a_file_that_may_not_be_looked_at_is_no_changed_one(path: Path, tmp_path: Path) -> None:
    listed = stat(str(path))
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    with pytest.raises(StorageError) as refused:
        SourceWatch([replaced(listed, url=str(loop / "abc.jsonl"))])
    assert not isinstance(refused.value, ChangedSourceError)
    with pytest.raises(ChangedSourceError, match="found none"):
        SourceWatch([replaced(listed, url=f"{path}/below")])


@each("later", [1, 1000, 10**9])
def test_a_file_that_was_written_a_moment_later_is_another(path: Path, later: int) -> None:
    os.utime(path, ns=(10**18, 10**18))
    listed = stat(str(path))
    changed = replaced(listed, changed_ns=os.stat(path).st_ctime_ns - later)  # this time cannot be set
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(ChangedSourceError, match="changed since it was listed"):
        SourceWatch([changed])
    os.utime(path, ns=(10**18 + later, 10**18 + later))
    for look in (lambda: open_descriptor(str(path), listed), lambda: SourceWatch([listed])):
        with pytest.raises(ChangedSourceError, match="changed since it was listed"):
            look()
    assert len(os.listdir("/proc/self/fd")) <= before


def test_a_pipe_of_the_size_and_time_of_an_empty_source_is_no_source(tmp_path: Path) -> None:
    """Opening it for reading would wait forever."""
    path = tmp_path / "source"
    path.touch()
    os.utime(path, ns=(10**18, 10**18))
    listed = stat(str(path))
    path.unlink()
    os.mkfifo(path)
    os.utime(path, ns=(10**18, 10**18))
    with pytest.raises(ChangedSourceError, match="source: changed since it was listed"):
        SourceWatch([listed])


def test_an_open_file_is_the_one_that_is_compared(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listed = stat(str(path))
    opened = os.open

    def open_and_replace(name: str, flags: int) -> int:
        descriptor = opened(name, flags)
        monkeypatch.undo()
        replace(path, DATA * 2)
        return descriptor

    monkeypatch.setattr(os, "open", open_and_replace)
    descriptor = open_descriptor(str(path), listed)
    assert os.read(descriptor, 1000) == DATA
    os.close(descriptor)


def bind_socket(path: str) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(path)


SPECIAL: dict[str, Callable[[str], None]] = {
    "a folder": os.mkdir,
    "a pipe": os.mkfifo,
    "a socket": bind_socket,
    "a device": lambda path: os.symlink("/dev/zero", path),
}


@pytest.mark.timeout(20)
@pytest.mark.parametrize("kind", SPECIAL)
def test_only_a_file_is_a_source_and_nothing_waits(tmp_path: Path, kind: str) -> None:
    for name in ("x.jsonl", "x.tar", "x.jsonl.gz"):
        SPECIAL[kind](str(tmp_path / name))
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(ChangedSourceError, match=rf"found none .*x\.jsonl: .*found {kind}"):
        require_listed(FileInfo(str(tmp_path / "x.jsonl"), 1, "1"))
    looks: list[tuple[str, Callable[[str], object]]] = [
        ("x.jsonl", stat),
        ("x.jsonl", lambda url: list(list_pages([url]))),
    ]
    if kind != "a socket":  # which cannot be opened
        looks += [
            ("x.jsonl", read_bytes),
            ("x.jsonl", lambda url: RangeReader(url).read(0, 1)),
            ("x.jsonl", lambda url: RangeReader(url, size=10).read_many([0, 5], [1, 6])),
            ("x.jsonl", lambda url: open_local(url).__enter__()),
            ("x.jsonl", open_descriptor),
            ("x.jsonl", build_jsonl_index),
            ("x.tar", build_tar_index),
            ("x.jsonl.gz", scan_stream),
        ]
    for name, look in looks:
        with pytest.raises(UsageError, match=f"{name}: expected a file.*, found {kind}"):
            look(str(tmp_path / name))
    assert len(os.listdir("/proc/self/fd")) == before
