"""A folder of objects: on a local disk, in memory, on a real S3 server, on emulators of GCS and Azure."""

from __future__ import annotations

import pickle
import threading
from pathlib import Path

import pytest

from ledgerbeam.errors import StorageError
from ledgerbeam.io import ObjectFolder
from tests.conftest import S3Server
from tests.io.conftest import STORES, store_place

MEGABYTE = 2**20


@pytest.fixture(params=["local", "memory", *STORES])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectFolder:
    if request.param == "local":
        return ObjectFolder(str(tmp_path / "objects"))
    if request.param == "memory":
        return ObjectFolder(f"memory://{tmp_path.name}/objects")
    place = store_place(request)
    return ObjectFolder(place / "deep/objects", place.options)


def test_an_empty_folder_has_no_names(folder: ObjectFolder) -> None:
    assert folder.names("") == []
    assert folder.names("a") == []
    assert folder.read(["a/1"]) == [None]
    assert not folder.exists("a/1")
    folder.delete(["a/1"])


def test_what_is_created_is_listed_and_read(folder: ObjectFolder) -> None:
    contents = {f"a/{n:02d}": bytes([n]) * (n + 1) for n in range(70)} | {"a/b/c.seg": b"deep", "b": b"top"}
    for name, data in contents.items():
        assert folder.create(name, data)
    assert folder.names("") == sorted(contents)
    assert folder.names("a") == sorted(name for name in contents if name.startswith("a/"))
    assert folder.names("a/b") == ["a/b/c.seg"]
    asked = [*sorted(contents, reverse=True), "a/none", "b"]
    assert folder.read(asked) == [contents.get(name) for name in asked]
    assert folder.exists("a/b/c.seg")


def test_a_name_is_given_once(folder: ObjectFolder) -> None:
    assert folder.create("job.json", b"first")
    assert not folder.create("job.json", b"second")
    assert folder.read(["job.json"]) == [b"first"]


def test_creating_the_same_again_is_a_success(folder: ObjectFolder) -> None:
    assert folder.create("a", b"same")
    assert folder.create("a", b"same")


@pytest.mark.parametrize("size", [1, 70 * MEGABYTE])
def test_of_many_creators_one_wins(folder: ObjectFolder, size: int) -> None:
    creators = 12 if size == 1 else 2
    won: list[int] = []

    def create(number: int) -> None:
        if folder.create("contested", bytes([number]) * size):
            won.append(number)

    threads = [threading.Thread(target=create, args=(number,)) for number in range(creators)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1
    assert folder.read(["contested"]) == [bytes(won) * size]
    assert folder.names("") == ["contested"]


def test_what_is_deleted_is_gone(folder: ObjectFolder) -> None:
    for n in range(120):
        folder.create(f"x/{n:04d}", b"1")
    folder.delete([f"x/{n:04d}" for n in range(1, 120)])
    assert folder.names("x") == ["x/0000"]
    assert folder.read(["x/0000", "x/0001"]) == [b"1", None]


def test_a_folder_travels(folder: ObjectFolder) -> None:
    folder.create("a", b"1")
    assert pickle.loads(pickle.dumps(folder)).read(["a"]) == [b"1"]


def test_a_local_object_that_cannot_be_made_is_an_error_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StorageError, match="file/a"):
        ObjectFolder(str(tmp_path / "file")).create("a", b"1")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_bucket_that_does_not_exist_is_an_error(s3: S3Server) -> None:
    folder = ObjectFolder("s3://no-such-bucket-here/x", s3.options)
    with pytest.raises(StorageError, match="no-such-bucket-here"):
        folder.create("a", b"1")
