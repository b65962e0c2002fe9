"""Outputs on the Hub: only what is missing is sent, one commit, nothing of others is touched, and kills cost little."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import fsspec
import pytest

from ledgerbeam.errors import PublicationError, SourceNotFoundError, StorageError, UsageError
from ledgerbeam.io.storage import client
from ledgerbeam.ledger.model.identity import content_checksum
from ledgerbeam.pipelines.outputs.hub import CARD, HubPublication, LocalFile, publish_to_hub
from tests.servers.hub import Fault, HubServer, Repository, hub_server

pytest.importorskip("huggingface_hub")

# Of the client's own way to upload without Xet.
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=<...>':DeprecationWarning")

TO = "hf://datasets/some/one"
NOTE = ".ledgerbeam/ledger.json"


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    monkeypatch.setattr(client, "PAUSE_SECONDS", 0.01)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_XET", True)
    with hub_server() as server:
        server.dataset("some/one", {".gitattributes": b"*.jsonl filter=lfs\n"})
        yield server


@pytest.fixture
def dataset(hub: HubServer) -> Repository:
    return hub.repositories["datasets/some/one"]


class Local:
    """Files of a dataset in a folder, as a ledger knows them."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.files: dict[str, bytes] = {}

    def write(self, **files: bytes) -> None:
        for name, data in files.items():
            path = self.root / name.replace("__", "/").replace("_", ".")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
            self.files[str(path.relative_to(self.root))] = data

    @property
    def listed(self) -> list[LocalFile]:
        sums = {name: content_checksum([data]) for name, data in self.files.items() if name.endswith(".jsonl")}
        return [LocalFile(n, str(self.root / n), len(data), sums.get(n)) for n, data in self.files.items()]


@pytest.fixture
def local(tmp_path: Path) -> Local:
    found = Local(tmp_path / "out")
    found.write(a_jsonl=b"a" * 1000, sub__b_jsonl=b"b" * 2000, a_jsonl_idx=b"i" * 16)
    return found


def publish(hub: HubServer, local: Local, to: str = TO, **options: Any) -> HubPublication:
    given = {"ledger_id": "ledger", "options": hub.options, **options}
    return publish_to_hub(to, local.listed, **given)


def there(dataset: Repository, branch: str = "main") -> dict[str, bytes]:
    """Return what the dataset holds, without the notes."""
    ours = (".ledgerbeam/", ".gitattributes")
    return {path: blob.data for path, blob in dataset.files(branch).items() if not path.startswith(ours)}


def test_all_files_come_in_one_commit_that_says_what_it_has(hub: HubServer, dataset: Repository, local: Local) -> None:
    done = publish(hub, local)
    assert there(dataset) == local.files
    assert done == HubPublication(TO, dataset.branches["main"], list(local.files), [], [], 0, [])
    assert dataset.messages == ["ledgerbeam publish: add 3 files"]
    assert hub.uploaded == 3000  # what is small travels in the commit
    assert json.loads(dataset.files()[NOTE].data)["files"].keys() == local.files.keys()


def test_the_same_again_sends_and_reads_nothing(hub: HubServer, dataset: Repository, local: Local) -> None:
    publish(hub, local)
    head = dataset.branches["main"]
    hub.asked.clear()
    for name in ("a.jsonl", "sub/b.jsonl"):  # the ledger knows that they are the same
        (local.root / name).unlink()
    assert publish(hub, local) == HubPublication(TO, None, [], [], [], 3, [])
    assert dataset.branches["main"] == head
    assert hub.count("^POST|^PUT") == 0


def test_next_week_only_new_files_go(hub: HubServer, dataset: Repository, local: Local) -> None:
    publish(hub, local)
    before = hub.uploaded
    local.write(c_jsonl=b"c" * 500)
    done = publish(hub, local)
    assert (done.added, done.same, hub.uploaded - before) == (["c.jsonl"], 3, 500)
    assert there(dataset) == local.files
    assert dataset.messages[1:] == ["ledgerbeam publish: add 1 file"]


def test_what_the_ledger_has_put_there_is_replaced_or_goes(hub: HubServer, dataset: Repository, local: Local) -> None:
    publish(hub, local)
    local.write(a_jsonl=b"A" * 1000, a_jsonl_idx=b"I" * 16)
    del local.files["sub/b.jsonl"]
    done = publish(hub, local)
    assert (done.added, done.replaced, done.removed) == ([], ["a.jsonl", "a.jsonl.idx"], ["sub/b.jsonl"])
    assert there(dataset) == local.files
    assert dataset.messages[1:] == ["ledgerbeam publish: replace 2 files, remove 1 file"]


def test_a_folder_and_a_branch_are_left_as_are_elsewhere(hub: HubServer, dataset: Repository, local: Local) -> None:
    dataset.commit({"train/x.jsonl": hub.blob("x", b"x")})
    dataset.branches["week"] = dataset.branches["main"]
    publish(hub, local, f"{TO}@week/train/new")
    assert there(dataset) == {"train/x.jsonl": b"x"}
    named = {f"train/new/{name}": data for name, data in local.files.items()}
    assert set(dataset.files("week")) == {"train/x.jsonl", "train/new/.ledgerbeam/ledger.json", *named}
    assert publish(hub, local, f"{TO}@week/train/new").commit is None


def test_files_of_others_are_refused_or_replaced_if_asked(hub: HubServer, dataset: Repository, local: Local) -> None:
    theirs = {"a.jsonl": b"theirs", "sub/b.jsonl": local.files["sub/b.jsonl"], "mine.txt": b"mine"}
    dataset.commit({path: hub.blob(path, data) for path, data in theirs.items()})
    with pytest.raises(UsageError, match=r"one: a\.jsonl is there with content that this ledger .* --overwrite"):
        publish(hub, local)
    assert there(dataset) == theirs
    assert hub.uploaded == 0
    done = publish(hub, local, overwrite=True)
    assert (done.replaced, done.added, done.same) == (["a.jsonl"], ["a.jsonl.idx"], 1)
    assert there(dataset) == {**local.files, "mine.txt": b"mine"}


def test_what_others_have_changed_since_is_theirs(hub: HubServer, dataset: Repository, local: Local) -> None:
    publish(hub, local)
    edited = {**dataset.files(), "sub/b.jsonl": hub.blob("b.jsonl", b"edited")}
    dataset.commit(edited)
    with pytest.raises(UsageError, match=r"sub/b\.jsonl is there with content that this ledger"):
        publish(hub, local)
    del local.files["sub/b.jsonl"]
    done = publish(hub, local)
    assert (done.removed, done.kept) == ([], ["sub/b.jsonl"])
    assert there(dataset)["sub/b.jsonl"] == b"edited"
    assert publish(hub, local).commit is None


def test_what_others_have_deleted_comes_back(hub: HubServer, dataset: Repository, local: Local) -> None:
    publish(hub, local)
    dataset.commit({path: blob for path, blob in dataset.files().items() if path != "a.jsonl"})
    before = hub.uploaded
    assert publish(hub, local).added == ["a.jsonl"]
    assert hub.uploaded == before  # the Hub has its content


def test_a_card_that_was_edited_on_the_hub_stays(hub: HubServer, dataset: Repository, local: Local) -> None:
    local.write(README_md=b"---\n---\nours\n")
    publish(hub, local)
    dataset.commit({**dataset.files(), CARD: hub.blob(CARD, b"edited\n")})
    local.write(c_jsonl=b"c")
    assert publish(hub, local).kept == [CARD]
    assert there(dataset)[CARD] == b"edited\n"
    assert publish(hub, local).commit is None
    local.write(README_md=b"---\n---\nours, too\n")
    with pytest.raises(UsageError, match=r"README\.md is there with content that this ledger"):
        publish(hub, local)
    with pytest.raises(UsageError, match=r"the dataset card README\.md must be in the root folder; leave /train out"):
        publish(hub, local, f"{TO}/train")


def test_two_ledgers_publish_side_by_side(hub: HubServer, dataset: Repository, local: Local, tmp_path: Path) -> None:
    publish(hub, local)
    other = Local(tmp_path / "other")
    other.write(c_jsonl=b"c" * 10)
    assert publish(hub, other, ledger_id="other").removed == []
    other.write(d_jsonl=b"d" * 10)
    assert publish(hub, other, ledger_id="other").added == ["d.jsonl"]
    assert publish(hub, local).commit is None
    assert there(dataset) == {**local.files, **other.files}


def test_a_commit_of_others_meanwhile_is_followed(hub: HubServer, dataset: Repository, local: Local) -> None:
    def once(repository: Repository) -> None:
        hub.on_commit = None
        repository.commit({**repository.files(), "theirs.txt": hub.blob("theirs.txt", b"theirs")})

    hub.on_commit = once
    publish(hub, local)
    assert there(dataset) == {**local.files, "theirs.txt": b"theirs"}
    assert hub.uploaded == 3000
    assert hub.count("POST .*/commit/") == 2


def test_a_commit_of_others_to_the_files_is_looked_at_anew(hub: HubServer, dataset: Repository, local: Local) -> None:
    def once(repository: Repository) -> None:
        hub.on_commit = None
        repository.commit({**repository.files(), "a.jsonl": hub.blob("a.jsonl", b"theirs")})

    hub.on_commit = once
    with pytest.raises(UsageError, match=r"a\.jsonl is there with content that this ledger"):
        publish(hub, local)
    assert there(dataset) == {"a.jsonl": b"theirs"}


def test_a_dataset_that_others_change_all_the_time_is_given_up(hub: HubServer, local: Local) -> None:
    hub.on_commit = lambda repository: print(repository.commit({"x": hub.blob("x", os.urandom(8))}))
    with pytest.raises(PublicationError, match="another commit was made during each of 5 attempts"):
        publish(hub, local)


def test_a_commit_whose_answer_is_lost_is_not_made_twice(hub: HubServer, dataset: Repository, local: Local) -> None:
    hub.faults = [Fault("POST .*/commit/", None, late=True)]
    assert publish(hub, local).same == 3
    assert dataset.messages == ["ledgerbeam publish: add 3 files"]
    assert there(dataset) == local.files


STEPS = {
    "head": "GET /api/datasets/some/one/revision",
    "tree": "GET /api/datasets/some/one/tree",
    "preupload": "POST .*/preupload/",
    "batch": "POST .*/objects/batch",
    "upload": "PUT /lfs/",
    "verify": "POST /verify/",
    "commit": "POST .*/commit/",
}


@pytest.mark.slow
@pytest.mark.parametrize("status", [503, None], ids=["503", "cut"])
@pytest.mark.parametrize("step", STEPS)
def test_each_step_is_tried_again(  # noqa: PLR0917 - a table
    hub: HubServer, dataset: Repository, local: Local, monkeypatch: pytest.MonkeyPatch, step: str, status: int | None
) -> None:
    monkeypatch.setattr("huggingface_hub.utils._http.time.sleep", lambda seconds: None)
    hub.faults = [Fault(STEPS[step], status, times=2)]
    publish(hub, local)
    assert hub.faults[0].times == 0
    assert there(dataset) == local.files
    assert len(dataset.messages) == 1


@pytest.mark.parametrize("step", ["preupload", "batch", "commit"])
def test_a_token_that_may_not_write_is_told(hub: HubServer, local: Local, step: str) -> None:
    hub.faults = [Fault(STEPS[step], 403, times=100)]
    with pytest.raises(
        StorageError, match=r"one: cannot write, permission denied .*HF_TOKEN to a token that may write"
    ):
        publish(hub, local)


def test_a_large_file_goes_in_parts(hub: HubServer, dataset: Repository, local: Local) -> None:
    hub.part = 700
    publish(hub, local)
    assert there(dataset) == local.files
    assert hub.count("PUT /part/") == 5


WRONG = {
    "hf://datasets/some/none": (SourceNotFoundError, "no such repository.*\nTo make .*hf repos create some/none"),
    "hf://datasets/some/one@nope": (
        SourceNotFoundError,
        "no such branch, tag or commit.*\nTo make the branch: hf repos branch",
    ),
    "hf://buckets/some/one": (UsageError, "expected a dataset of the Hub, .* found a bucket"),
    "hf://some/one": (UsageError, "expected a dataset of the Hub, .* found a model"),
    "hf://datasets/one": (UsageError, r"expected hf://datasets/OWNER/NAME\[@BRANCH\]\[/FOLDER\], found no such name"),
    "s3://some/one": (UsageError, "expected hf://datasets"),
}


@pytest.mark.parametrize("url", WRONG)
def test_a_place_that_is_none_is_refused(hub: HubServer, local: Local, url: str) -> None:
    kind, said = WRONG[url]
    with pytest.raises(kind, match=said):
        publish(hub, local, url)
    assert hub.uploaded == 0


def test_a_shard_that_is_not_as_recorded_is_not_published(hub: HubServer, dataset: Repository, local: Local) -> None:
    (local.root / "a.jsonl").write_bytes(b"x" * 1000)
    with pytest.raises(StorageError, match=r"a\.jsonl: expected the recorded content .* nothing was published"):
        publish(hub, local)
    assert there(dataset) == {}


def test_outputs_on_a_store_come_by_way_of_a_local_copy(
    hub: HubServer, dataset: Repository, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", hub.url)
    monkeypatch.setenv("HF_TOKEN", hub.env["HF_TOKEN"])
    files = {"a.jsonl": os.urandom(20_000_000), "a.jsonl.idx": b"i" * 16}
    store = fsspec.filesystem("memory")
    for name, data in files.items():
        store.pipe_file(f"/outputs/{name}", data)
    listed = [LocalFile(name, f"memory://outputs/{name}", len(data)) for name, data in files.items()]
    publish_to_hub(TO, listed, ledger_id="ledger", options={})
    assert there(dataset) == files
    assert list(tmp_path.iterdir()) == []


def test_a_commit_of_many_regular_files_is_refused_with_the_remedy(
    hub: HubServer, dataset: Repository, local: Local, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ledgerbeam.pipelines.outputs.hub.MOST_IN_COMMIT", 2_500)
    publish(hub, local)
    hub.regular = (".jsonl", ".idx", ".json")
    local.write(c_jsonl=b"c" * 2000, d_jsonl=b"d" * 1000)
    with pytest.raises(UsageError, match=r"found 2 files with 3,000 bytes; .*\.gitattributes"):
        publish(hub, local)
    assert len(dataset.messages) == 1


def test_a_damaged_note_is_refused(hub: HubServer, dataset: Repository, local: Local) -> None:
    for data in (b"{", b"[]", b'{"format": 2}', b'{"format": 1, "files": []}', b'{"format": 1, "files": {"a": 1}}'):
        dataset.commit({NOTE: hub.blob(NOTE, data)})
        with pytest.raises(StorageError, match=r"ledger\.json: expected the list of published files, found another"):
            publish(hub, local)


SCRIPT = """
import json, sys
from ledgerbeam.pipelines.outputs.hub import LocalFile, publish_to_hub
to, files = sys.argv[1], json.loads(sys.argv[2])
publish_to_hub(to, [LocalFile(*one) for one in files], ledger_id="ledger", options={})
"""


def start(hub: HubServer, local: Local, **env: str) -> subprocess.Popen[bytes]:
    files = json.dumps([[one.name, one.url, one.size, one.checksum] for one in local.listed])
    around: Mapping[str, str] = {**os.environ, **hub.env, **env}
    return subprocess.Popen([sys.executable, "-c", SCRIPT, TO, files], env=around)


@pytest.mark.slow
@pytest.mark.parametrize("point", ["hub.send:1", "hub.sent:1", "hub.commit:1", "hub.committed:1"])
def test_a_kill_costs_nothing_that_was_sent(hub: HubServer, dataset: Repository, local: Local, point: str) -> None:
    assert start(hub, local, LEDGERBEAM_FAULT=point).wait(60) == -signal.SIGKILL
    assert there(dataset) in ({}, local.files)  # all or nothing
    assert start(hub, local).wait(60) == 0
    assert there(dataset) == local.files
    assert hub.uploaded == 3000
    assert len(dataset.messages) == 1


@pytest.mark.slow
def test_the_way_of_xet_ends_in_the_same_commit_and_sends_known_chunks_once(
    hub: HubServer, dataset: Repository, local: Local, tmp_path: Path
) -> None:
    """The client keeps in its cache which chunks it has sent; the server of the test cannot say so."""
    pytest.importorskip("hf_xet")
    local.write(a_jsonl=random.Random(1).randbytes(500_000))
    # Nobody but a server of Xet could join the chunks; a commit needs the contents.
    hub.store = {blob.sha256: blob.data for blob in (hub.blob("x", data) for data in local.files.values())}
    env = {"HF_HUB_DISABLE_XET": "0", "HF_HOME": str(tmp_path / "home")}
    hub.faults = [Fault("POST .*/commit/", 400)]
    assert start(hub, local, **env).wait(60) == 1
    sent = hub.count("POST /cas/v1/xorb")
    assert sent == 1
    assert start(hub, local, **env).wait(60) == 0
    assert hub.count("POST /cas/v1/xorb") == sent
    assert hub.count("objects/batch") == 0
    assert there(dataset) == local.files


@pytest.mark.slow
def test_kills_send_each_file_once_but_those_in_flight(hub: HubServer, dataset: Repository, tmp_path: Path) -> None:
    dice = random.Random(16)
    local = Local(tmp_path / "out")
    size = 8_000_000  # more than what a socket holds when its process is killed
    local.write(**{f"{number:02d}_jsonl": dice.randbytes(size) for number in range(16)})
    total = size * len(local.files)
    hub.pause = 0.004
    kills = 0
    while kills < 20:
        process = start(hub, local)
        deadline = time.monotonic() + 60
        goal = hub.uploaded + dice.randrange(1, 2 * size)
        while process.poll() is None and hub.uploaded < goal and time.monotonic() < deadline:
            time.sleep(0.001)
        if process.poll() is not None:
            assert process.returncode == 0
            break
        process.send_signal(signal.SIGKILL)
        process.wait()
        kills += 1
        assert there(dataset) == {}
    hub.pause = 0
    assert start(hub, local).wait(60) == 0
    assert there(dataset) == local.files
    assert len(dataset.messages) == 1
    assert kills >= 5
    assert total < hub.uploaded <= total + kills * size
