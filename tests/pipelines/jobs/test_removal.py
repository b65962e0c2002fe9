"""What is removed lies below the folder that it is removed for, whatever a ledger says."""

from __future__ import annotations

from pathlib import Path

import pytest

from ledgerbeam.errors import LedgerDamagedError, StorageError
from ledgerbeam.io import ObjectFolder
from ledgerbeam.pipelines.jobs.removal import remove_below, require_own_folder


@pytest.fixture
def out(tmp_path: Path) -> Path:
    for name in ("out/deep/er/mine", "out/mine", "victim/mine"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("precious")
    (tmp_path / "out/link").symlink_to(tmp_path / "victim")
    return tmp_path / "out"


@pytest.mark.parametrize(
    "name", ["../victim/mine", "deep/../mine", "link/mine", "a\0b", "a\0b/mine", "", "deep/../../out/mine"]
)
def test_nothing_outside_of_the_folder_is_removed(out: Path, name: str) -> None:
    before = sorted(out.parent.rglob("*"))
    with pytest.raises(LedgerDamagedError, match=r"ledger /l: it names .*nothing was removed"):
        remove_below(str(out), ["mine", name], {}, ledger="/l")
    assert sorted(out.parent.rglob("*")) == before
    remove_below(str(out), ["mine", "link", "gone", "deep/gone"], {}, ledger="/l")
    assert sorted(path.name for path in out.iterdir()) == ["deep"]
    assert (out.parent / "victim/mine").exists()


def test_a_folder_that_is_reached_by_a_link_is_the_folder(out: Path) -> None:
    (out.parent / "alias").symlink_to(out)
    remove_below(str(out.parent / "alias"), ["mine", "deep/er/mine"], {}, ledger="/l")
    assert not (out / "mine").exists()
    assert not (out / "deep/er/mine").exists()


def test_empty_folders_go_with_what_was_in_them(out: Path) -> None:
    (out / "link").unlink()
    (out / "deep/other").write_text("x")
    remove_below(str(out), ["deep/er/mine"], {}, ledger="/l", prune=True)
    assert sorted(path.name for path in out.rglob("*")) == ["deep", "mine", "other"]
    remove_below(str(out), ["deep/other"], {}, ledger="/l")
    assert (out / "deep").is_dir()
    (out / "deep/again").write_text("x")
    (out.parent / "victim/mine").unlink()
    (out.parent / "victim").rmdir()
    remove_below(str(out), ["deep/again", "mine"], {}, ledger="/l", prune=True)
    assert not out.exists()
    assert out.parent.is_dir()


def test_a_folder_of_a_store_is_never_taken_for_a_local_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    url = f"memory://{tmp_path.name}"
    (tmp_path / url / "deep").mkdir(parents=True)
    folder = ObjectFolder(url)
    for name in ("deep/mine", "other"):
        folder.create(name, b"x")
    remove_below(url, ["deep/mine"], {}, ledger="/l", prune=True)
    assert folder.names("") == ["other"]
    assert (tmp_path / url / "deep").is_dir()
    (tmp_path / url / "work").write_text("x")
    require_own_folder(f"{url}/work")


@pytest.mark.parametrize("what", ["link", "broken", "file"])
def test_a_link_or_a_file_is_no_folder_of_ours(tmp_path: Path, what: str) -> None:
    work = tmp_path / "work"
    require_own_folder(str(work))
    (tmp_path / "victim").mkdir()
    if what == "file":
        work.write_text("x")
    else:
        work.symlink_to(tmp_path / ("victim" if what == "link" else "nowhere"))
    with pytest.raises(StorageError, match="found a link or a file"):
        require_own_folder(str(work))
    require_own_folder(str(tmp_path / "victim"))
