from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import fsspec.asyn
import pytest

from ledgerbeam._base.extensions import install_command
from ledgerbeam.errors import StorageError, UsageError
from ledgerbeam.io.listing.pages import list_pages
from ledgerbeam.io.storage import client, stat, urls
from ledgerbeam.io.storage import files as storage
from ledgerbeam.io.storage.objects import ObjectFolder
from ledgerbeam.io.storage.publish import publish, publish_bytes
from tests.cases import each
from tests.conftest import AzureServer, GcsServer
from tests.io.conftest import Place, store_place


@each(
    ("given", "canonical"),
    [
        ("/a/b.jsonl", "/a/b.jsonl"),
        ("/a//b/./c/../d", "/a/b/d"),
        ("//a/b", "/a/b"),
        ("file:///a/b", "/a/b"),
        ("file:/a/b", "/a/b"),
        ("local:///a/b", "/a/b"),
        ("/a b/c#d?e%20", "/a b/c#d?e%20"),
        ("s3a://b/k//l/../m", "s3://b/k//l/../m"),
        ("S3://b/K", "s3://b/K"),
        ("gcs://b/k", "gs://b/k"),
        ("memory:///b/k", "memory://b/k"),
        ("hdfs:///b/k", "hdfs:///b/k"),
        ("/data/odd://name", "/data/odd:/name"),
    ],
)
def test_one_source_has_one_name(given: str, canonical: str) -> None:
    assert urls.canonical_url(given) == canonical
    assert urls.canonical_url(canonical) == canonical


def test_local_paths_are_below_the_working_folder_and_links_keep_their_name(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    assert urls.canonical_url(str(tmp_path / "link" / "x")) == f"{tmp_path}/link/x"
    monkeypatch.chdir(tmp_path)
    assert urls.canonical_url("a/../b") == f"{tmp_path}/b"
    for name in ("./s3:/b", "a:b", "a/s3:/b", "file:x", "./~/out", "~x", "a/~/b"):
        assert urls.canonical_url(name) == str(tmp_path / name.removeprefix("./").removeprefix("file:"))


@each("name", ["", "pipe:cat x", "simplecache::s3://b/k"])
def test_names_without_addressable_bytes_are_refused(name: str) -> None:
    with pytest.raises(UsageError):
        urls.canonical_url(name)


@each("name", ["s3:/b/k", "S3:/b/k", "s3:", "s3:b/k", "s3a:/b", "gs:/b/k", "https:/host/a", "az:/c"])
def test_a_url_that_lost_a_slash_is_no_local_path(name: str) -> None:
    with pytest.raises(UsageError, match=rf"{name}: expected {name.partition(':')[0]}://, "):
        urls.canonical_url(name)


@each("name", ["~", "~/out", "file:~/out"])
def test_a_home_that_no_shell_has_expanded_is_no_folder_of_that_name(name: str) -> None:
    with pytest.raises(UsageError, match=f"{name}: expected a path, found ~"):
        urls.canonical_url(name)


def test_one_instance_serves_a_process_and_an_unknown_scheme_is_a_usage_error() -> None:
    options = {"asynchronous": False}
    assert client.filesystem("memory://a", options) is client.filesystem("memory://b/c", dict(options))
    with pytest.raises(UsageError, match="nowhere://"):
        client.filesystem("nowhere://b/k")


def test_a_missing_extra_is_named() -> None:
    # In a separate process, because an imported module cannot be hidden in this one.
    script = (
        "import sys; sys.modules['s3fs'] = None\n"
        "from ledgerbeam.errors import UsageError\n"
        "from ledgerbeam.io.storage import stat\n"
        "try: stat.stat('s3://b/k')\n"
        "except UsageError as error: print(error)\n"
    )
    out = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, env=os.environ)
    assert install_command("s3") in out.stdout


def test_the_command_that_indexes_again_is_as_a_shell_takes_it() -> None:
    assert urls.index_again("s3://bucket/a.jsonl") == "ledgerbeam index --force s3://bucket/a.jsonl"
    assert urls.index_again("/in/a[1] b.jsonl") == "ledgerbeam index --force '/in/a[1] b.jsonl'"


pytestmark = pytest.mark.stores


@pytest.fixture(params=["gcs", "azure"])
def place(request: pytest.FixtureRequest) -> Place:
    return store_place(request)


@pytest.fixture
def azure_place(azure: AzureServer) -> Place:
    return Place(azure.place(), azure.options)


def listed(place: Place, pattern: str) -> list[str]:
    return [url for page in list_pages([place / pattern], place.options) for url in page.urls]


def test_versions_are_generations_and_tags(gcs: GcsServer, azure: AzureServer) -> None:
    for server, known_as in ((gcs, "generation"), (azure, "etag")):
        url = f"{server.place()}/x"
        publish_bytes(url, b"1", server.options)
        info = client.filesystem(url, server.options).info(url)
        assert stat.stat(url, server.options).version == info[known_as].strip('"')


@pytest.mark.parametrize("size", [33, 70])
def test_large_outputs_appear_when_they_are_whole(place: Place, size: int) -> None:
    publish_bytes(place / "large", b"former", place.options)
    block = os.urandom(2**20)
    with publish(place / "large", place.options) as file:
        for _ in range(size):
            file.write(block)
        file.write(b"end")
        assert storage.read_bytes(place / "large", place.options) == b"former"
    assert storage.read_bytes(place / "large", place.options) == block * size + b"end"
    assert listed(place, "**") == [place / "large"]


@pytest.mark.slow
def test_of_two_large_outputs_at_once_one_stands_unmixed(place: Place) -> None:
    def write(letter: bytes) -> None:
        with publish(place / "large", place.options) as file:
            file.write(letter * (70 * 2**20))

    with ThreadPoolExecutor(2) as threads:
        list(threads.map(write, (b"a", b"b")))
    found = storage.read_bytes(place / "large", place.options)
    assert found == found[:1] * (70 * 2**20)


def test_no_two_uploads_of_a_blob_share_blocks(azure_place: Place) -> None:
    url = azure_place / "large"
    store = client.filesystem(url, azure_place.options)

    async def blocks() -> set[str]:
        async with store.service_client.get_blob_client(*store.split_path(url)[:2]) as blob:
            committed, staged = await blob.get_block_list("all")
        assert not staged
        return {block.id for block in committed}

    seen: list[set[str]] = []
    for _ in range(2):
        with publish(url, azure_place.options) as file:
            file.write(bytes(40 * 2**20))
        seen.append(fsspec.asyn.sync(store.loop, blocks))
    assert [len(names) for names in seen] == [3, 3]
    assert not seen[0] & seen[1]


def test_a_large_object_is_given_once(place: Place) -> None:
    folder = ObjectFolder(place / "objects", place.options)
    data = os.urandom(40 * 2**20)
    assert folder.create("large", data)
    assert folder.create("large", data)
    assert not folder.create("large", data + b"other")
    assert folder.read(["large"]) == [data]


@pytest.mark.parametrize("size", [1, 33 * 2**20])
def test_a_missing_bucket_is_named(place: Place, size: int) -> None:
    missing = f"{place.url.partition('://')[0]}://no-such-bucket/x"
    with pytest.raises(StorageError, match=r"no-such-bucket/x.*does not exist; create it"):
        publish_bytes(missing, bytes(size), place.options)
    with pytest.raises(StorageError, match=r"no-such-bucket/x.*does not exist; create it"):
        ObjectFolder(missing, place.options).create("a", bytes(size))


def test_wrong_credentials_say_so(azure_place: Place) -> None:
    assert azure_place.options is not None
    known = azure_place.options["connection_string"]
    wrong = {"connection_string": known.replace("AccountKey=b", "AccountKey=c")}
    assert wrong["connection_string"] != known
    for ask in (
        lambda: stat.stat(azure_place / "x", wrong),
        lambda: publish_bytes(azure_place / "x", b"1", wrong),
        lambda: list(list_pages([azure_place / "*"], wrong)),
    ):
        with pytest.raises(StorageError, match="check the credentials") as caught:
            ask()
        assert "\n" not in str(caught.value)


def test_a_url_may_name_the_account(azure_place: Place) -> None:
    named = Place(f"abfs://{azure_place.url.removeprefix('az://')}@account.dfs.core.windows.net", azure_place.options)
    urls = [named / "a.jsonl", named / "d/b.jsonl"]
    for url in urls:
        publish_bytes(url, b"1", named.options)
    assert listed(named, "**/*.jsonl") == urls
    assert listed(named, "*.jsonl") == urls[:1]
    assert ObjectFolder(named / "d", named.options).names("") == ["b.jsonl"]
