"""Differences of GCS and Azure from S3, on their emulators."""

from __future__ import annotations

import os
import threading

import fsspec.asyn
import pytest

from ledgerbeam.errors import StorageError
from ledgerbeam.io.listing.pages import list_pages
from ledgerbeam.io.storage import client, stat
from ledgerbeam.io.storage import files as storage
from ledgerbeam.io.storage.objects import ObjectFolder
from ledgerbeam.io.storage.publish import publish, publish_bytes
from tests.conftest import AzureServer, GcsServer
from tests.io.conftest import Place, store_place

pytestmark = pytest.mark.stores

MEBIBYTE = 2**20


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
        told = client.filesystem(url, server.options).info(url)[known_as].strip('"')
        assert stat.stat(url, server.options).version == told


def test_odd_keys_are_listed_and_read_as_they_are(place: Place) -> None:
    odd = ["a b.jsonl", "a+b.jsonl", "ä%20.jsonl", "q&a=1.jsonl", "#?.jsonl", "x:y@z.jsonl"]
    for key in odd:
        publish_bytes(place / f"odd/{key}", key.encode(), place.options)
    found = listed(place, "odd/*.jsonl")
    assert sorted(found) == sorted(place / f"odd/{key}" for key in odd)
    contents = storage.read_many_files(found, place.options)
    assert contents == [url.rpartition("/")[2].encode() for url in found]


@pytest.mark.parametrize("size", [33, 70])
def test_large_outputs_appear_when_they_are_whole(place: Place, size: int) -> None:
    publish_bytes(place / "large", b"former", place.options)
    block = os.urandom(MEBIBYTE)
    with publish(place / "large", place.options) as file:
        for _ in range(size):
            file.write(block)
        file.write(b"end")
        assert storage.read_bytes(place / "large", place.options) == b"former"
    assert storage.read_bytes(place / "large", place.options) == block * size + b"end"
    assert listed(place, "**") == [place / "large"]


@pytest.mark.slow
def test_of_two_large_outputs_at_once_one_stands_unmixed(place: Place) -> None:
    failed: list[BaseException] = []

    def write(letter: bytes) -> None:
        try:
            with publish(place / "large", place.options) as file:
                file.write(letter * (70 * MEBIBYTE))
        except BaseException as error:  # noqa: BLE001 - told below
            failed.append(error)

    threads = [threading.Thread(target=write, args=(letter,)) for letter in (b"a", b"b")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    found = storage.read_bytes(place / "large", place.options)
    assert found == found[:1] * (70 * MEBIBYTE)


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
            file.write(bytes(40 * MEBIBYTE))
        seen.append(fsspec.asyn.sync(store.loop, blocks))
    assert [len(names) for names in seen] == [3, 3]
    assert not seen[0] & seen[1]


def test_a_large_object_is_given_once(place: Place) -> None:
    folder = ObjectFolder(place / "objects", place.options)
    data = os.urandom(40 * MEBIBYTE)
    assert folder.create("large", data)
    assert folder.create("large", data)
    assert not folder.create("large", data + b"other")
    assert folder.read(["large"]) == [data]


@pytest.mark.parametrize("size", [1, 33 * MEBIBYTE])
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
