"""Folders of objects on a local disk, in memory, on a real S3 server, and on emulators of GCS and Azure."""

from __future__ import annotations

import copy
import errno
import os
import pickle
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

import pytest

from ledgerbeam.errors import StorageError
from ledgerbeam.io import publish_bytes
from ledgerbeam.io.storage import client as remote
from ledgerbeam.io.storage import objects, uploads
from ledgerbeam.io.storage.files import read_bytes
from ledgerbeam.io.storage.objects import ObjectFolder
from ledgerbeam.io.storage.stat import stat
from tests.cases import each
from tests.conftest import S3Server
from tests.disk import Disk
from tests.io.conftest import STORES, store_place


@pytest.fixture(params=["local", "memory", *STORES])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectFolder:
    if request.param == "local":
        return ObjectFolder(str(tmp_path / "objects"))
    if request.param == "memory":
        return ObjectFolder(f"memory://{tmp_path.name}/objects")
    place = store_place(request)
    return ObjectFolder(place / "deep/objects", place.options)


def test_what_is_replaced_is_there_whole(folder: ObjectFolder) -> None:
    name = "claims/1/a.json"
    folder.replace(name, b"one")
    assert folder.names("claims") == [name]
    folder.replace(name, b"another")
    assert folder.read([name]) == [b"another"]
    assert folder.names("") == [name]
    for _ in range(2):  # an object that does not exist is deleted, too
        folder.delete([name])
        assert folder.names("") == folder.names("claims") == []
        assert folder.read([name]) == [None]
        assert not folder.exists(name)


def test_what_is_created_is_listed_and_read(folder: ObjectFolder) -> None:
    contents = {f"a/{n:02d}": bytes([n]) * (n + 1) for n in range(70)}
    contents |= {"a/b/c.seg": b"deep", "b": b"top", "a/.b": b"hidden", ".c": b"hidden"}
    for name, data in contents.items():
        assert folder.create(name, data)
    assert folder.names("") == sorted(contents)
    assert folder.names("a") == sorted(name for name in contents if name.startswith("a/"))
    assert folder.names("a/b") == ["a/b/c.seg"]
    asked = [*sorted(contents, reverse=True), "a/none", "b"]
    for some in (folder, pickle.loads(pickle.dumps(folder))):
        assert some.read(asked) == [contents.get(name) for name in asked]
    assert folder.exists("a/b/c.seg")


def test_a_name_is_given_once(folder: ObjectFolder) -> None:
    assert folder.create("job.json", b"first")
    assert not folder.create("job.json", b"second")
    assert folder.create("job.json", b"first")  # the same again is a success
    assert folder.read(["job.json"]) == [b"first"]


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 70 * 2**20])
def test_of_many_creators_one_wins(folder: ObjectFolder, size: int) -> None:
    creators = 12 if size == 1 else 2
    with ThreadPoolExecutor(creators) as threads:
        created = list(threads.map(lambda number: folder.create("contested", bytes([number]) * size), range(creators)))
    assert created.count(True) == 1
    assert folder.read(["contested"]) == [bytes([created.index(True)]) * size]
    assert folder.names("") == ["contested"]


def test_what_is_deleted_is_gone(folder: ObjectFolder) -> None:
    for n in range(120):
        folder.create(f"x/{n:04d}", b"1")
    folder.delete([f"x/{n:04d}" for n in range(1, 120)])
    assert folder.names("x") == ["x/0000"]
    assert folder.read(["x/0000", "x/0001"]) == [b"1", None]


def test_a_name_is_no_pattern_of_what_is_deleted(folder: ObjectFolder) -> None:
    odd, plain = ["a*.jsonl", "b[cd].jsonl", "{y,z}", "a\nb", "a&b"], ["ab.jsonl", "bc.jsonl", "y"]
    for name in [*odd, "a?.jsonl", *plain]:
        folder.create(f"x/{name}", b"1")
    folder.delete([f"x/{name}" for name in odd])
    assert folder.names("x") == [f"x/{name}" for name in ("a?.jsonl", *plain)]
    folder.delete(["x/a?.jsonl"])
    assert folder.names("x") == [f"x/{name}" for name in plain]


def test_the_root_of_the_file_system_is_a_folder_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").write_bytes(b"1")
    folder, name = ObjectFolder("/"), str(tmp_path / "a")[1:]
    assert folder.url == ""
    assert folder.names(str(tmp_path)[1:]) == [name]
    assert folder.read([name]) == [b"1"]
    monkeypatch.setattr(os, "walk", lambda root, **_: [(root, [], ["b", "a"])])
    assert folder.names("") == ["a", "b"]


def test_a_store_is_asked_with_the_options_that_were_given(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, object]] = []

    def filesystem(url: str, options: object) -> Store:
        asked.append((url, options))
        return Store()

    monkeypatch.setattr(objects, "filesystem", filesystem)
    ObjectFolder("gs://bucket/x/", {"token": "anon"}).delete(["a"])
    pickle.loads(pickle.dumps(ObjectFolder("gs://bucket/x", {"token": "anon"}))).delete(["a"])
    assert asked == [("gs://bucket/x", {"token": "anon"})] * 2


@each("mark", ["?versionId=1", "?versionid=1", "#1", "?a#b", "#b?a", "\n", "%0A", "?", "#"])
def test_a_key_that_looks_like_more_is_a_name(folder: ObjectFolder, mark: str) -> None:
    names = ["x/a", f"x/a{mark}", f"x/a{mark}.idx"]
    for name in names:
        folder.create(name, name.encode())
    folder.replace(names[1], b"replaced")
    assert folder.names("") == sorted(names)
    assert folder.read(names) == [b"x/a", b"replaced", names[2].encode()]
    assert all(map(folder.exists, names))
    publish_bytes(f"{folder.url}/{names[1]}", b"published", folder._options)
    assert read_bytes(f"{folder.url}/{names[1]}", folder._options) == b"published"
    assert stat(f"{folder.url}/{names[1]}", folder._options).size == 9
    folder.delete(names[1:])
    assert folder.names("") == ["x/a"]
    folder.delete(names[:1])


def test_a_local_object_that_cannot_be_written_is_an_error_and_leaves_nothing(tmp_path: Path) -> None:
    folder = ObjectFolder(str(tmp_path))
    (tmp_path / "a" / "below").mkdir(parents=True)
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StorageError, match=f"{tmp_path}/a: cannot write"):
        folder.replace("a", b"data")
    with pytest.raises(StorageError, match="file/a"):
        folder.create("file/a", b"1")
    assert sorted(os.listdir(tmp_path)) == ["a", "file"]


def test_a_bucket_that_does_not_exist_is_an_error(s3: S3Server) -> None:
    folder = ObjectFolder("s3://no-such-bucket-here/x", s3.options)
    with pytest.raises(StorageError, match="no-such-bucket-here"):
        folder.create("a", b"1")


# responses of stores


class Store:
    """A scripted store that records its requests."""

    def __init__(self, *answers: BaseException | None) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[str, object]] = []
        self.there: set[str] = set()
        self.refused: list[dict[str, str]] = []

    def _answer(self, asked: str, of: object) -> None:
        self.asked.append((asked, of))
        answer = self.answers.pop(0) if self.answers else None
        if answer is not None:
            raise answer

    def exists(self, url: str) -> bool:
        return url in self.there

    def pipe_file(self, url: str, data: bytes, mode: str = "overwrite") -> None:
        self._answer(mode, url)

    def call_s3(self, method: str, *, Bucket: str, Delete: dict[str, Any]) -> dict[str, Any]:  # noqa: N803 - of S3
        keys = [one["Key"] for one in Delete["Objects"]]
        self._answer(method, [f"s3://{Bucket}/{key}" for key in keys])
        return {"Errors": [{"Key": key, **self.refused.pop(0)} for key in keys[:1] if self.refused]}

    def rm_file(self, url: str) -> None:
        self._answer("rm_file", url)

    def cat_file(self, url: str, *, start: int, end: int) -> bytes:
        self._answer("bytes", (start, end))
        return b"t"

    def cat_ranges(self, urls: list[str], starts: object, stops: object, **kwargs: object) -> list[object]:
        self.asked.append(("read", kwargs.get("max_concurrency")))
        return [b"there" if url in self.there else FileNotFoundError(url) for url in urls]


Use: TypeAlias = Callable[[Store], Store]


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch) -> Use:
    """A function that puts a scripted store in the place of every store."""

    def put(store: Store) -> Store:
        monkeypatch.setattr(objects, "filesystem", lambda url, options: store)
        return store

    monkeypatch.setattr(remote, "PAUSE_SECONDS", 0.001)
    return put


class AnswerError(OSError):
    """The exception of a client for a response."""

    def __init__(self, status: int) -> None:
        super().__init__(f"status {status}")
        self.status = status


@pytest.mark.parametrize(
    "answer", [FileExistsError("there"), AnswerError(412), OSError(errno.EINVAL, "the name is taken")]
)
def test_a_store_that_says_that_the_name_is_taken_is_believed(use: Use, answer: OSError) -> None:
    store = use(Store(answer, copy.copy(answer)))
    store.there = {"s3://bucket/x/a"}
    assert not ObjectFolder("s3://bucket/x").create("a", b"here")
    assert ObjectFolder("s3://bucket/x").create("a", b"there")
    assert [asked for asked, _ in store.asked if asked != "read"] == ["create", "create"]


def test_a_creation_beside_another_is_tried_again_and_another_refusal_is_an_error(use: Use) -> None:
    store = use(Store(AnswerError(409), AnswerError(409)))
    assert ObjectFolder("gs://bucket/x").create("a", b"here")
    assert store.asked == [("create", "gs://bucket/x/a")] * 3
    use(Store(AnswerError(400), AnswerError(400)))
    with pytest.raises(StorageError, match="gs://bucket/x/a: cannot write"):
        ObjectFolder("gs://bucket/x").create("a", b"here")


def test_a_store_that_cannot_create_exclusively_is_asked_what_is_there_before(use: Use) -> None:
    store = use(Store())
    folder = ObjectFolder("oss://bucket/x")
    assert not folder.exclusive
    assert folder.create("a", b"here")
    assert store.asked == [("overwrite", "oss://bucket/x/a")]
    store.there = {"oss://bucket/x/a"}
    assert not folder.create("a", b"here")
    assert folder.create("a", b"there")
    assert len([asked for asked, _ in store.asked if asked == "overwrite"]) == 1


@pytest.mark.parametrize(("scheme", "large"), [("az", "in blocks"), ("s3", "create"), ("gs", "create")])
def test_a_large_object_is_created_in_blocks_where_one_request_does_not_take_it(
    monkeypatch: pytest.MonkeyPatch, use: Use, scheme: str, large: str
) -> None:
    store = use(Store())

    def in_blocks(url: str, file: BinaryIO, options: object, *, exclusive: bool) -> None:
        assert exclusive, "of two creators one is first"
        assert file.read() == b"x" * 11
        store.pipe_file(url, b"", "in blocks")

    monkeypatch.setattr(objects, "_ONE_PUT", 10)
    monkeypatch.setattr(uploads, "upload_blocks", in_blocks)
    for size in (10, 11):
        assert ObjectFolder(f"{scheme}://bucket/x").create("a", b"x" * size)
    assert [how for how, _ in store.asked] == ["create", large]


def test_a_folder_that_a_store_does_not_know_is_empty_and_no_cache_answers(use: Use) -> None:
    class Listed(Store):
        """A store whose objects appear once its cache is dropped."""

        def invalidate_cache(self) -> None:
            self.there = {"bucket/x/a/1", "bucket/x/a/2"}

        def _strip_protocol(self, url: str) -> str:
            return url.partition("://")[2]

        def find(self, url: str, *, detail: bool) -> dict[str, dict[str, Any]]:
            assert detail
            found = sorted((path for path in self.there if path.startswith(self._strip_protocol(url))), reverse=True)
            if not found:
                raise FileNotFoundError(url)
            return {path: {"name": path, "type": "file", "size": 1} for path in found}

    use(Listed())
    assert ObjectFolder("gs://bucket/x").names("") == ["a/1", "a/2"]
    assert ObjectFolder("gs://bucket/x").names("b") == []


@each("scheme", ["s3", "gs", "az", "abfs", "abfss", "memory", "/local"])
def test_stores_that_create_exclusively_are_known(scheme: str) -> None:
    assert ObjectFolder(scheme if scheme == "/local" else f"{scheme}://bucket/x").exclusive


class Bucket:
    """The client of an S3 bucket with two objects in each page. It records its requests."""

    def __init__(self, *keys: str) -> None:
        self.keys = sorted(keys)
        self.asked: list[dict[str, str]] = []

    def call_s3(self, method: str, *, Bucket: str, **request: str) -> dict[str, Any]:  # noqa: N803 - of S3
        assert method == "list_objects_v2"
        self.asked.append(dict(request))
        if Bucket != "bucket":
            raise FileNotFoundError(Bucket)
        found = [{"Key": key, "Size": 1} for key in self.keys if key.startswith(request["Prefix"])]
        start = int(request.get("ContinuationToken", "0"))
        follows = {"IsTruncated": True, "NextContinuationToken": str(start + 2)} if found[start + 2 :] else {}
        return {**({"Contents": found[start : start + 2]} if found else {}), **follows}


@pytest.mark.parametrize(
    ("url", "below", "prefix", "expected"),
    [
        ("s3://bucket/x", "", "x/", ["a", "b/c", "b/d", "e"]),
        ("s3://bucket/x", "b", "x/b/", ["b/c", "b/d"]),
        ("s3://bucket/x/b", "", "x/b/", ["c", "d"]),
        ("s3://bucket", "", "", ["x/a", "x/b/c", "x/b/d", "x/e", "xy"]),
        ("s3://bucket/x", "none", "x/none/", []),
        ("s3://none/x", "", "x/", []),
    ],
)
def test_s3_is_asked_for_the_objects_of_a_folder_page_by_page(
    monkeypatch: pytest.MonkeyPatch, url: str, below: str, prefix: str, expected: list[str]
) -> None:
    bucket = Bucket("x/a", "x/b/", "x/b/c", "x/b/d", "x/e", "xy")  # one that ends with "/" is a folder
    monkeypatch.setattr(objects, "filesystem", lambda url, options: bucket)
    assert ObjectFolder(url).names(below) == expected
    under = [key for key in bucket.keys if key.startswith(prefix)] if url != "s3://none/x" else []
    pages = range(0, max(1, len(under)), 2)
    assert bucket.asked == [
        {"Prefix": prefix, **({"ContinuationToken": str(start)} if start else {})} for start in pages
    ]


def test_s3_deletes_a_thousand_objects_in_a_request(use: Use) -> None:
    folder = ObjectFolder("s3://bucket/x")
    for count in (0, 1, 2500):
        store = use(Store())
        names = [f"{n:04d}" for n in range(count)]
        folder.delete(names)
        urls = [f"s3://bucket/x/{name}" for name in names]
        assert store.asked == [("delete_objects", urls[at : at + 1000]) for at in range(0, count, 1000)]


def test_what_a_store_refuses_to_delete_among_many_is_tried_again_or_an_error(use: Use) -> None:
    store = use(Store())
    store.refused = [{"Code": "SlowDown"}, {"Code": "InternalError"}, {"Code": "NoSuchKey"}]
    ObjectFolder("s3://bucket/x").delete(["a", "b"])
    assert [asked for asked, _ in store.asked] == ["delete_objects"] * 3
    for code, message, problem in (
        ("AccessDenied", "Access Denied.", r"s3://bucket/x/a: cannot delete.*permission"),
        ("InvalidRequest", "Nobody knows.", r"x/a: cannot delete \(x/a: InvalidRequest: Nobody knows\.\)$"),
    ):
        store.asked, store.refused = [], [{"Code": code, "Message": message}]
        with pytest.raises(StorageError, match=problem):
            ObjectFolder("s3://bucket/x").delete(["a", "b"])
        assert [asked for asked, _ in store.asked] == ["delete_objects"]


def test_what_xml_does_not_hold_is_deleted_from_s3_by_itself(use: Use) -> None:
    store = use(Store())
    ObjectFolder("s3://bucket/x").delete(["a", "b\nc", "d"])
    assert store.asked == [
        ("delete_objects", ["s3://bucket/x/a", "s3://bucket/x/d"]),
        ("rm_file", "s3://bucket/x/b\nc"),
    ]


def test_whether_an_object_exists_costs_one_byte(use: Use) -> None:
    store = use(Store(None, FileNotFoundError("gone")))
    assert ObjectFolder("s3://bucket/x").exists("a")
    assert not ObjectFolder("s3://bucket/x").exists("a")
    assert store.asked == [("bytes", (0, 1))] * 2


def test_other_stores_delete_one_by_one_and_pass_over_what_is_gone(use: Use) -> None:
    store = use(Store(None, FileNotFoundError("gone"), None))
    ObjectFolder("gs://bucket/x").delete(iter("abc"))
    assert store.asked == [("rm_file", f"gs://bucket/x/{name}") for name in "abc"]
    use(Store(AnswerError(400)))
    with pytest.raises(StorageError, match="gs://bucket/x/a: cannot delete"):
        ObjectFolder("gs://bucket/x").delete(["a"])


@pytest.mark.parametrize("scheme", ["s3", "gs"])
def test_what_is_gone_is_told_from_what_is_there_among_many(use: Use, scheme: str) -> None:
    store = use(Store())
    names = [f"{n:03d}" for n in range(150)]
    store.there = {f"{scheme}://bucket/x/{name}" for name in names if name[-1] != "7"}
    found = ObjectFolder(f"{scheme}://bucket/x").read(names)
    assert found == [None if name[-1] == "7" else b"there" for name in names]
    assert {how for _, how in store.asked} == {1 if scheme == "s3" else None}, "a request for the length before"


def test_what_is_being_made_is_not_listed(tmp_path: Path) -> None:
    folder = ObjectFolder(str(tmp_path))
    folder.create("a/1", b"1")
    folder.create("a/1", b"2")
    assert os.listdir(tmp_path / "a") == ["1"]
    (tmp_path / "a" / ".b.lbtmp").write_bytes(b"half")
    assert folder.names("") == ["a/1"]


def test_a_local_object_is_on_the_disk_before_it_has_its_name_and_the_name_before_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "deep").mkdir()
    disk = Disk(monkeypatch)
    for data, is_new in ((b"data", True), (b"other", False)):
        disk.seen.clear()
        assert ObjectFolder(str(tmp_path)).create("deep/a", data) == is_new
        (_, aside, size), (linked, name, _), (unlinked, gone, _), (_, folder, _) = disk.seen
        assert (size, linked, name) == (len(data), "link", str(tmp_path / "deep" / "a"))
        assert (unlinked, gone, folder) == ("unlink", aside, str(tmp_path / "deep"))
        assert Path(aside).parent == tmp_path / "deep"
        assert Path(aside).name.startswith(".")
        assert aside.endswith(".lbtmp"), "so that it is not listed"


def test_a_local_object_is_replaced_by_a_file_of_its_folder_that_is_not_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace, folder, listed = os.replace, ObjectFolder(str(tmp_path)), list[tuple[str, list[str]]]()

    def noted(aside: str, path: str) -> None:
        listed.append((os.path.dirname(aside), folder.names("")))
        replace(aside, path)

    monkeypatch.setattr(os, "replace", noted)
    folder.replace("deep/a", b"data")
    assert listed == [(str(tmp_path / "deep"), [])]


def test_a_local_object_that_does_not_read_or_go_is_an_error(
    tmp_path: Path, nobody: AbstractContextManager[None]
) -> None:
    folder = ObjectFolder(str(tmp_path / "x"))
    folder.create("deep/a", b"1")
    (tmp_path / "x" / "deep" / "a").chmod(0o000)
    (tmp_path / "x" / "deep").chmod(0o500)
    with nobody:
        with pytest.raises(StorageError, match="deep/a: cannot read"):
            folder.read(["deep/a"])
        with pytest.raises(StorageError, match="deep: cannot delete"):
            folder.delete(["deep/a"])
    assert folder.exists("deep/a")


@pytest.mark.parametrize("code", [errno.EACCES, errno.EIO])
def test_a_local_folder_that_cannot_be_listed_is_not_an_empty_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    real = os.scandir

    def scandir(path: str) -> Any:
        if path.endswith("inner"):
            raise OSError(code, os.strerror(code), path)
        return real(path)

    (tmp_path / "outer" / "inner").mkdir(parents=True)
    folder = ObjectFolder(str(tmp_path))
    assert folder.names("outer") == folder.names("nothing") == []
    monkeypatch.setattr(os, "scandir", scandir)
    with pytest.raises(StorageError, match=f"{tmp_path}/outer/inner: .*{os.strerror(code)}"):
        folder.names("outer")


def test_a_folder_is_synced_once_after_all_that_is_deleted_from_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = ObjectFolder(str(tmp_path))
    for name in ("a/1", "b/1", "a/2", "b/2"):
        folder.create(name, b"1")
    disk = Disk(monkeypatch)
    folder.delete(["a/1", "b/1", "a/2", "none/1"])
    assert folder.names("") == ["b/2"]
    assert sorted(disk.synced_folders()) == [str(tmp_path / where) for where in "ab"]
    for name in "ab":
        gone = [place for place, (what, path, _) in enumerate(disk.seen) if what == "unlink" and f"/{name}/" in path]
        assert disk.seen.index(("sync", str(tmp_path / name), os.stat(tmp_path / name).st_size)) > max(gone)
