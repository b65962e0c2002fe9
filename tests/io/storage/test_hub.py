"""Sources on the Hub: versions by content, ranged reads, and errors."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from ledgerbeam.errors import ChangedSourceError, SourceNotFoundError, StorageError, UsageError
from ledgerbeam.io.listing.pages import list_pages
from ledgerbeam.io.storage import client
from ledgerbeam.io.storage.files import read_bytes
from ledgerbeam.io.storage.ranges import RangeReader
from ledgerbeam.io.storage.stat import FileInfo, stat, stat_many
from tests.cases import each
from tests.io.storage.test_listed_versions import READS
from tests.servers.hub import TOKEN, Fault, HubServer, Repository, hub_server

pytest.importorskip("huggingface_hub")

DATA = b'{"id": 1}\n' * 10
FILES = {
    "README.md": b"# one\n",
    "data/a.jsonl": DATA,
    "data/b c.jsonl": DATA * 2,
    "data/deep/d.jsonl": DATA * 3,
    "small.txt": b"regular\n" * 10,
}
ROOT = "hf://datasets/some/one"


@pytest.fixture
def hub() -> Iterator[HubServer]:
    with hub_server() as server:
        server.dataset("some/one", FILES)
        server.buckets["some/pail"] = {"data/a.jsonl": DATA}
        yield server


@pytest.fixture
def dataset(hub: HubServer) -> Repository:
    return hub.repositories["datasets/some/one"]


@pytest.fixture(autouse=True)
def _hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "PAUSE_SECONDS", 0.01)


def found(hub: HubServer, pattern: str) -> list[str]:
    return [url for page in list_pages([pattern], hub.options) for url in page.urls]


def put(hub: HubServer, dataset: Repository, **files: bytes) -> str:
    """Create a commit that changes some files."""
    changed = {path.replace("__", "/"): data for path, data in files.items()}
    return dataset.commit({**dataset.files(), **{path: hub.blob(path, data) for path, data in changed.items()}})


NAMES = {
    "large": (f"{ROOT}/data/a.jsonl", "data/a.jsonl"),
    "regular": (f"{ROOT}/small.txt", "small.txt"),
    "a branch": (f"{ROOT}@main/data/a.jsonl", "data/a.jsonl"),
}


@pytest.mark.parametrize("read", READS.values(), ids=READS)
@pytest.mark.parametrize("name", NAMES)
def test_a_file_is_what_was_listed_or_an_error(
    hub: HubServer, dataset: Repository, name: str, read: Callable[[FileInfo, Any], object]
) -> None:
    url, path = NAMES[name]
    listed = stat(url, hub.options)
    read(listed, hub.options)
    before = dataset.files()
    put(hub, dataset, **{path.replace("/", "__"): before[path].data[::-1]})
    with pytest.raises(ChangedSourceError, match=rf"{path}: changed since it was listed: .*found .*version "):
        read(listed, hub.options)
    dataset.commit({other: blob for other, blob in before.items() if other != path})
    with pytest.raises(ChangedSourceError, match="found none"):
        read(listed, hub.options)


def test_a_bucket_is_known_by_the_hash_of_its_content(hub: HubServer) -> None:
    url = "hf://buckets/some/pail/data/a.jsonl"
    listed = stat(url, hub.options)
    assert found(hub, "hf://buckets/some/pail/data/*.jsonl") == [url]
    assert RangeReader(url, hub.options, listed=listed).read(0, 5) == DATA[:5]
    hub.buckets["some/pail"]["data/a.jsonl"] = DATA[::-1]
    with pytest.raises(ChangedSourceError, match="found version"):
        RangeReader(url, hub.options, listed=listed).read(0, 5)


def test_the_version_is_the_name_of_the_content_however_it_is_asked_for(hub: HubServer, dataset: Repository) -> None:
    large, regular = dataset.files()["data/a.jsonl"], dataset.files()["small.txt"]
    assert stat(f"{ROOT}/data/a.jsonl", hub.options).version == large.sha256
    assert stat(f"{ROOT}/small.txt", hub.options).version == regular.oid
    (page,) = list_pages([f"{ROOT}/**"], hub.options)
    described = stat_many(page.urls, hub.options)
    assert page.versions == [info.version for info in described]
    assert page.sizes == [info.size for info in described]


def test_a_commit_that_leaves_a_file_as_it_is_leaves_its_version(hub: HubServer, dataset: Repository) -> None:
    listed = stat(f"{ROOT}/data/a.jsonl", hub.options)
    put(hub, dataset, other=b"new")
    dataset.commit({**dataset.files(), "data/a.jsonl": hub.blob("data/a.jsonl", DATA)})
    assert stat(listed.url, hub.options) == listed
    assert RangeReader(listed.url, hub.options, listed=listed).read(0, 5) == DATA[:5]


def test_a_commit_stays_what_it_was(hub: HubServer, dataset: Repository) -> None:
    first = dataset.branches["main"]
    listed = stat(f"{ROOT}@{first}/data/a.jsonl", hub.options)
    put(hub, dataset, **{"data__a.jsonl": b"other"})
    assert read_bytes(listed.url, hub.options, listed) == DATA
    assert read_bytes(f"{ROOT}/data/a.jsonl", hub.options) == b"other"
    assert found(hub, f"{ROOT}@{first}/data/a*") == [listed.url]


def test_a_range_is_two_requests_of_which_the_first_names_the_version(hub: HubServer) -> None:
    listed = stat(f"{ROOT}/data/b c.jsonl", hub.options)
    hub.asked.clear()
    assert RangeReader(listed.url, hub.options, listed=listed).read(11, 19) == (DATA * 2)[11:19]
    assert [line.partition("?")[0] for line in hub.asked] == [
        "GET /datasets/some/one/resolve/main/data/b c.jsonl",
        f"GET /cdn/{listed.version}",
    ]


def test_one_file_is_described_by_one_request_and_many_by_one_for_500(hub: HubServer) -> None:
    stat(f"{ROOT}/data/a.jsonl", hub.options)
    assert hub.asked == ["POST /api/datasets/some/one/paths-info/main"]
    hub.dataset("some/many", {f"{number:04d}.jsonl": b"x" for number in range(1201)})
    hub.asked.clear()
    urls = [f"hf://datasets/some/many/{number:04d}.jsonl" for number in reversed(range(1201))]
    assert [info.url for info in stat_many(urls, hub.options)] == urls
    assert len(hub.asked) == 3
    with pytest.raises(SourceNotFoundError, match=r"nobody\.jsonl: cannot read, there is no such file"):
        stat_many([*urls, "hf://datasets/some/many/nobody.jsonl"], hub.options)


def test_a_tree_comes_by_pages_and_only_of_the_folder_that_varies(hub: HubServer) -> None:
    hub.page = 2
    everything = [f"{ROOT}/data/a.jsonl", f"{ROOT}/data/b c.jsonl", f"{ROOT}/data/deep/d.jsonl"]
    assert found(hub, f"{ROOT}/data/**/*.jsonl") == everything
    assert found(hub, f"{ROOT}/data/*.jsonl") == everything[:2]
    assert found(hub, f"{ROOT}/data/{{a,b c}}.jsonl") == everything[:2]
    assert hub.count("/tree/main$") == 0


def test_ranges_are_of_the_answer_that_was_asked_for(hub: HubServer) -> None:
    listed = stat(f"{ROOT}/small.txt", hub.options)
    with pytest.raises(StorageError, match=r"expected 10 bytes at \[200, 210\), found 0"):
        RangeReader(listed.url, hub.options, listed=listed).read(200, 210)
    hub.faults = [Fault("GET /datasets/some/one/resolve", 200)]
    with pytest.raises(StorageError, match=r"does not support byte ranges.*status 200"):
        RangeReader(listed.url, hub.options, listed=listed).read(0, 3)


@pytest.mark.parametrize("name", ["a.jsonl", "*.jsonl"])
@pytest.mark.parametrize(
    ("status", "heads", "kind", "said"),
    [
        (401, {}, StorageError, "credentials are missing or refused .*repository that does not exist.*HF_TOKEN"),
        (403, {}, StorageError, "permission denied .*HF_TOKEN"),
        (403, {"X-Error-Code": "GatedRepo"}, StorageError, "its repository is gated; accept its conditions"),
        (404, {"X-Error-Code": "RepoNotFound"}, SourceNotFoundError, "no such repository on the Hub, or it is private"),
        (404, {"X-Error-Code": "RevisionNotFound"}, SourceNotFoundError, "no such branch, tag or commit"),
        (404, {"X-Error-Code": "EntryNotFound"}, SourceNotFoundError, "there is no such file|nothing matches"),
        (429, {"Retry-After": "0"}, StorageError, "rejects requests since they are too many"),
        (429, {"RateLimit": '"api";r=0;t=1200'}, StorageError, "they are too many .*in 1200 s, as it requests"),
        (500, {}, StorageError, "its server failed .*run again later"),
        (400, {"X-Error-Message": "too many parameters"}, StorageError, "Bad request: too many parameters"),
        (302, {"Location": "/api/datasets/some/one/round"}, StorageError, "redirects in a circle"),
    ],
)
def test_what_the_hub_answers_is_one_error_that_says_so(  # noqa: PLR0917 - a table
    hub: HubServer,
    monkeypatch: pytest.MonkeyPatch,
    status: int,
    heads: dict[str, str],
    kind: type[Exception],
    said: str,
    name: str,
) -> None:
    monkeypatch.setattr("time.sleep", lambda seconds: None)  # the client itself waits
    hub.faults = [Fault("/api/datasets/some/one", status, heads, times=1000)]
    with pytest.raises(StorageError, match=rf"^{ROOT}/{'[a*]'}\.jsonl: .*({said})") as caught:
        found(hub, f"{ROOT}/{name}")
    assert type(caught.value) is kind


@each("url", ["hf://datasets/some", "hf://datasets/*", "hf://datasets/some/*/a.jsonl", "hf://x"])
def test_a_name_that_is_none_of_the_hub_is_said_with_the_right_form(hub: HubServer, url: str) -> None:
    with pytest.raises(SourceNotFoundError, match="use hf://datasets/OWNER/NAME"):
        found(hub, url)


def test_a_folder_is_no_source(hub: HubServer) -> None:
    for url in (ROOT, f"{ROOT}/data", "hf://buckets/some/pail/data"):
        with pytest.raises(UsageError, match="expected a file, found a folder"):
            stat(url, hub.options)


def test_an_answer_without_a_version_is_not_believed(hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    listed = stat(f"{ROOT}/small.txt", hub.options)
    monkeypatch.setattr("tests.servers.hub.Blob.oid", "")
    with pytest.raises(StorageError, match="does not name the version of the file"):
        read_bytes(listed.url, hub.options)


def test_a_server_error_that_passes_is_tried_again(hub: HubServer) -> None:
    listed = stat(f"{ROOT}/data/a.jsonl", hub.options)
    hub.faults = [Fault("/resolve/", 503, times=2), Fault("/resolve/", None), Fault("/cdn/", 500)]
    assert RangeReader(listed.url, hub.options, listed=listed).read(0, 5) == DATA[:5]


def test_the_token_of_the_options_or_of_the_environment_is_sent_and_never_told(
    hub: HubServer, dataset: Repository, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    dataset.private = True
    caplog.set_level(logging.DEBUG)
    url = f"{ROOT}/data/a.jsonl"
    assert read_bytes(url, hub.options) == DATA
    with pytest.raises(StorageError, match=r"are missing or refused .*repository that does not exist.*HF_TOKEN"):
        stat(url, {"endpoint": hub.url, "token": False})
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    assert stat(url, {"endpoint": hub.url}).size == 100
    with pytest.raises(StorageError, match="credentials are missing or refused") as caught:
        stat(url, {"endpoint": hub.url, "token": "hf_wrongWrongWrongWrong"})
    assert "hf_wrong" not in f"{caught.value}{caught.value.__cause__}{caplog.text}"
    assert TOKEN not in caplog.text


def test_the_token_is_not_sent_to_where_the_content_lies(hub: HubServer) -> None:
    with hub_server() as elsewhere:
        elsewhere.store = hub.store
        listed = stat(f"{ROOT}/data/a.jsonl", hub.options)
        hub.store[listed.version] = DATA
        target = f"{elsewhere.url.replace('127.0.0.1', 'localhost')}/cdn/{listed.version}"
        heads = {"Location": target, "X-Linked-ETag": f'"{listed.version}"'}
        hub.faults = [Fault("/resolve/", 302, heads)]
        assert RangeReader(listed.url, hub.options, listed=listed).read(0, 5) == DATA[:5]
        assert elsewhere.tokens == {f"/cdn/{listed.version}": None}


def test_a_hub_that_cannot_be_reached_is_one_error_that_says_so() -> None:
    with pytest.raises(StorageError, match=r"a\.jsonl: cannot read, its host cannot be reached"):
        stat(f"{ROOT}/a.jsonl", {"endpoint": "http://127.0.0.1:9"})


OFFLINE = """
from ledgerbeam.errors import StorageError
from ledgerbeam.io.storage.stat import stat
try:
    stat("hf://datasets/some/one/a.jsonl")
except StorageError as error:
    print(error)
"""


def test_offline_is_said_at_once() -> None:
    env = {"HF_HUB_OFFLINE": "1", "PATH": "", "PYTHONPATH": ":".join(sys.path)}
    done = subprocess.run([sys.executable, "-c", OFFLINE], env=env, capture_output=True, text=True, check=True)
    said = "cannot read, HF_HUB_OFFLINE is set, so no request is sent to the Hub; unset it, or name local files"
    assert done.stdout == f"{ROOT}/a.jsonl: {said}\n"
    assert done.stderr == ""
