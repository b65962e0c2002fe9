"""What is told of a file that is not as it was noted: its size, its content, and what is in its place."""

from __future__ import annotations

from hashlib import blake2b
from pathlib import Path

import pytest

from ledgerbeam.errors import SourceNotFoundError
from ledgerbeam.ledger.model.identity import content_checksum
from ledgerbeam.pipelines.outputs.published import checksum_at, content_problem, size_problem

CONTENT = b"to be or not\n"
SUM = content_checksum([CONTENT])


def test_a_file_as_it_was_noted_has_no_problem(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(CONTENT)
    url = f"{tmp_path}/file"
    assert checksum_at(url, {}) == SUM
    assert size_problem(url, len(CONTENT), {}) is None
    for noted in (SUM, blake2b(CONTENT, digest_size=16).hexdigest()):  # the latter by earlier versions
        assert content_problem(url, len(CONTENT), noted, {}) is None


def test_another_size_or_content_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(CONTENT)
    url = f"{tmp_path}/file"
    for size in (len(CONTENT) - 1, len(CONTENT) + 1):
        said = f"expected {size} bytes, found {len(CONTENT)}"
        assert (size_problem(url, size, {}), content_problem(url, size, SUM, {})) == (said, said)
    other = content_checksum([b"to be or naught"])
    assert content_problem(url, len(CONTENT), other, {}) == f"expected the checksum {other}, found {SUM}"


def test_a_span_is_compared_alone_in_a_file_of_its_size(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(CONTENT)
    url, size = f"{tmp_path}/file", len(CONTENT)
    for start, stop in ((0, size), (3, 5), (size, size), (0, 0)):
        assert content_problem(url, size, content_checksum([CONTENT[start:stop]]), {}, (start, stop)) is None
    said = f"bytes 3 to 5: expected the checksum {SUM}, found {content_checksum([CONTENT[3:5]])}"
    assert content_problem(url, size, SUM, {}, (3, 5)) == said
    assert content_problem(url, size + 1, SUM, {}, (0, size)) == f"expected {size + 1} bytes, found {size}"


def test_a_file_that_is_gone_is_told(tmp_path: Path) -> None:
    url, said = f"{tmp_path}/file", "expected 3 bytes, found no such file or object"
    assert (size_problem(url, 3, {}), content_problem(url, 3, SUM, {})) == (said, said)
    with pytest.raises(SourceNotFoundError):
        checksum_at(url, {})


def test_what_cannot_be_read_is_told_in_the_words_of_the_error(tmp_path: Path) -> None:
    (tmp_path / "file").symlink_to("file")
    url = f"{tmp_path}/file"
    for said in (size_problem(url, 3, {}), content_problem(url, 3, SUM, {})):
        assert "symbolic links" in str(said)
        assert url in str(said)
