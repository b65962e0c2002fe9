"""Paths and URLs of ledgers, and modes of opening them."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from ledgerbeam.errors import JobMismatchError, UsageError
from ledgerbeam.ledger import opening
from ledgerbeam.ledger.lmdb.files import refuse_network_filesystem
from ledgerbeam.ledger.lmdb.store import LmdbStore
from ledgerbeam.ledger.opening import local_path, open_local_store, sidecar_folder
from tests.ledger.builders import ONE, leaf_of, plain


def test_a_local_ledger_is_named_by_a_path_or_a_url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert [local_path(url) for url in ("a/../L", f"file://{tmp_path}/L", f"{tmp_path}/L/")] == [
        str(tmp_path / "L")
    ] * 3
    with pytest.raises(UsageError, match="empty"):
        local_path("file://")
    with pytest.raises(UsageError, match="open_store"):
        local_path("s3://")


def test_a_store_that_is_opened_for_a_job_records_for_that_job_only(store: LmdbStore) -> None:
    store.open_job(ONE)
    store.register([plain()])
    ours, other = (open_local_store(store.url, create=False, job=job) for job in (ONE.fingerprint, "another"))
    with pytest.raises(JobMismatchError):
        other.commit([leaf_of(plain())])
    assert ours.commit([leaf_of(plain())]).completed == [plain().id]
    for opened in (ours, other):
        opened.close()


def test_a_store_that_is_opened_for_a_run_records_for_that_run_though_another_is_newer(store: LmdbStore) -> None:
    store.register([plain()])
    first, _ = store.begin_run({}), store.begin_run({})
    opened = open_local_store(store.url, create=False, run=first)
    opened.commit([leaf_of(plain())])
    opened.close()
    assert [row.run for row in store.history()] == [first]


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a file to another user: needs root")
def test_folders_of_others_and_links_of_root_may_hold_sidecars(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given, link = tmp_path / "given", tmp_path / "link"
    given.mkdir()
    os.chown(given, 12345, 12345)
    link.symlink_to(given)
    monkeypatch.setattr(os, "geteuid", lambda: 54321)
    for cache in (given, link):
        monkeypatch.setenv("LEDGERBEAM_CACHE", str(cache))
        assert Path(sidecar_folder("s3://bucket/ledger")).parent.parent == cache


URL = "s3://bucket/ledger"
OTHER_USER = 12345

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="gives a file to another user: needs root")


@pytest.fixture
def fallback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder below the system's temporary one, which is taken since no cache can be made; not made yet."""
    (tmp_path / "no-folder").touch()
    (tmp_path / "tmp").mkdir()
    monkeypatch.delenv("LEDGERBEAM_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "no-folder"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    return tmp_path / "tmp" / f"ledgerbeam-{os.geteuid()}"


def test_the_fallback_is_made_for_this_user_alone(fallback: Path) -> None:
    assert Path(sidecar_folder(URL)).parent.parent == fallback
    assert stat.S_IMODE(fallback.stat().st_mode) == 0o700
    assert Path(sidecar_folder(URL)).parent.parent == fallback, "and taken again"


def a_folder(path: Path, mode: int) -> None:
    path.mkdir()
    path.chmod(mode)


def a_link_to_a_folder(path: Path) -> None:
    path.with_name("victim").mkdir(mode=0o700)
    path.symlink_to("victim")


FALLBACKS: dict[str, Callable[[Path], object]] = {
    **{f"of mode {mode:o}": partial(a_folder, mode=mode) for mode in (0o770, 0o707, 0o777, 0o1777)},
    "a link": a_link_to_a_folder,
    "a link to nothing": lambda path: path.symlink_to("victim"),
    "a file": Path.touch,
}


@pytest.mark.parametrize("what", FALLBACKS)
def test_a_fallback_that_is_not_this_users_folder_alone_is_refused(fallback: Path, what: str) -> None:
    FALLBACKS[what](fallback)
    with pytest.raises(UsageError, match=r"found .*LEDGERBEAM_CACHE"):
        sidecar_folder(URL)
    assert list(fallback.parent.glob("victim/*")) == []


@needs_root
def test_a_fallback_of_another_user_is_refused(fallback: Path) -> None:
    fallback.mkdir(mode=0o700)
    os.chown(fallback, OTHER_USER, OTHER_USER)
    with pytest.raises(UsageError, match=rf"the owner {OTHER_USER}.*LEDGERBEAM_CACHE"):
        sidecar_folder(URL)


@needs_root
@pytest.mark.parametrize("depth", [0, 1, 2])
@pytest.mark.parametrize("variable", ["LEDGERBEAM_CACHE", "XDG_CACHE_HOME"])
def test_foreign_links_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str, depth: int) -> None:
    monkeypatch.delenv("LEDGERBEAM_CACHE", raising=False)
    monkeypatch.setenv(variable, str(tmp_path / "cache"))
    folder = Path(sidecar_folder(URL))
    planted = [folder.parent.parent, folder.parent, folder][depth]
    planted.parent.mkdir(parents=True, exist_ok=True)
    if planted.is_dir():
        planted.rmdir()
    (tmp_path / "victim").mkdir()
    planted.symlink_to(tmp_path / "victim")
    assert sidecar_folder(URL) == str(folder), "a link of our own may put the cache on another disk"
    os.chown(planted, OTHER_USER, OTHER_USER, follow_symlinks=False)
    with pytest.raises(UsageError, match=rf"link of this user.*the owner {OTHER_USER}"):
        sidecar_folder(URL)


# Which folder it is


def test_the_first_place_that_is_set_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for variable in ("LEDGERBEAM_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    places = [str(tmp_path / "home" / ".cache" / "ledgerbeam")]
    assert os.path.dirname(sidecar_folder(URL)) == f"{places[-1]}/sidecars"
    assert stat.S_IMODE(os.stat(places[-1]).st_mode) & 0o077 == 0
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert os.path.dirname(sidecar_folder(URL)) == str(tmp_path / "xdg" / "ledgerbeam" / "sidecars")
    monkeypatch.setenv("LEDGERBEAM_CACHE", "relative")
    assert os.path.dirname(sidecar_folder(URL)) == str(tmp_path / "relative" / "sidecars")


def test_each_ledger_has_a_folder_that_tells_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEDGERBEAM_CACHE", str(tmp_path))
    urls = ["s3://bucket/a/ledger", "gs://bucket/a/ledger", "s3://bucket/a-ledger"]
    urls += [f"s3://{'x' * 300}/end", "s3://é/ü/"]
    names = [os.path.basename(sidecar_folder(url)) for url in urls]
    assert len(set(names)) == len(urls)
    assert [name.rpartition("-")[0] for name in names[:3]] == ["bucket-a-ledger"] * 3
    assert names[3].rpartition("-")[0] == "x" * 36 + "-end"
    assert all(name.isascii() and len(name) <= 60 for name in names)


def test_a_cache_on_a_network_filesystem_or_that_cannot_be_written_is_passed_over(
    fallback: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LEDGERBEAM_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    refused: list[str] = [str(tmp_path / "xdg")]

    def refuse(path: str) -> None:
        if path.startswith(tuple(refused)):
            raise UsageError(f"{path}: nfs")
        refuse_network_filesystem(path)

    with monkeypatch.context() as patched:
        patched.setattr(opening, "refuse_network_filesystem", refuse)
        assert Path(sidecar_folder(URL)).parent.parent == fallback
        refused.append(str(fallback))
        with pytest.raises(
            UsageError, match=r"ledger s3://bucket/ledger: no local folder can hold its sidecar.*nfs.*LEDGERBEAM_CACHE"
        ):
            sidecar_folder(URL)
    assert sidecar_folder(URL).startswith(str(tmp_path / "xdg"))
    with monkeypatch.context() as patched:
        patched.setattr(os, "access", lambda path, mode: mode == 0)
        assert Path(sidecar_folder(URL)).parent.parent == fallback


def test_that_no_folder_can_be_made_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fallback: Path) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "no-folder" / "tmp"))
    with pytest.raises(UsageError, match=r"no local folder can hold its sidecar.*LEDGERBEAM_CACHE"):
        sidecar_folder(URL)
