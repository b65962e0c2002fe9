"""Files whose content belongs to a job."""

from __future__ import annotations

from hashlib import blake2b
from pathlib import Path

import fsspec
import pytest

from ledgerbeam.errors import ChangedSourceError, UsageError
from ledgerbeam.user_code import objects as watched
from ledgerbeam.user_code.objects import require_unchanged, watched_checksums


def test_the_whole_content_counts_however_large_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watched, "READ_BYTES", 3)
    path = tmp_path / "words"
    for content in (b"", b"abc", b"abcdefgh"):
        path.write_bytes(content)
        assert watched_checksums([str(path)]) == {str(path): blake2b(content, digest_size=16).hexdigest()}


def test_any_store_will_do() -> None:
    with fsspec.open("memory://watched/words", "wb") as file:
        file.write(b"abc")
    found = watched_checksums(["memory://watched/words"])
    assert list(found.values()) == [blake2b(b"abc", digest_size=16).hexdigest()]
    require_unchanged(found)
    fsspec.filesystem("memory").rm("/watched/words")
    with pytest.raises(ChangedSourceError, match="found no file"):
        require_unchanged(found)


def test_a_file_that_is_not_there_is_a_mistake_of_the_user(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=f"--watch-file {tmp_path}/none: there is no such file"):
        watched_checksums([f"{tmp_path}/none"])
    with pytest.raises(UsageError):
        watched_checksums([str(tmp_path)])


def test_a_file_that_changes_is_told_by_its_name(tmp_path: Path) -> None:
    path = tmp_path / "words"
    path.write_text("one")
    found = watched_checksums([str(path)])
    require_unchanged(found)
    path.write_text("two")
    with pytest.raises(ChangedSourceError, match=f"{path}: this watched file has changed"):
        require_unchanged(found)
