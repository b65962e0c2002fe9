"""Files of a local folder."""

from __future__ import annotations

from pathlib import Path

from ledgerbeam.io.listing.nested_folders import list_files


def test_what_lies_behind_a_link_to_a_folder_is_not_in_it(tmp_path: Path) -> None:
    for name in ("out/mine", "out/deep/mine", "victim/other"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "out/link").symlink_to(tmp_path / "victim")
    names = [name for page in list_files(str(tmp_path / "out")) for name in page.names]
    assert sorted(names) == ["deep/mine", "mine"]
