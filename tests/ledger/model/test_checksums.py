"""Checksums name their algorithm, so that a ledger can have checksums of two versions."""

from __future__ import annotations

from hashlib import blake2b

import pytest

from ledgerbeam.errors import LedgerError
from ledgerbeam.ledger.model.identity import are_comparable, checksum_of, content_checksum, content_version


def test_a_checksum_says_its_algorithm_and_does_not_depend_on_chunks() -> None:
    # The test vector of BLAKE3 for no input; the checksum is its first 16 bytes.
    assert content_checksum([]) == "blake3:af1349b9f5f9a1a6a0404dea36dcc949"
    assert content_checksum([b"ab", b"", b"c"]) == content_checksum([b"abc"]) != content_checksum([b"abd"])


def test_a_recorded_checksum_is_compared_with_one_of_its_own_algorithm() -> None:
    earlier = blake2b(b"abc", digest_size=16).hexdigest()
    assert content_checksum([b"a", b"bc"], like=earlier) == earlier
    assert content_checksum([b"abc"], like=content_checksum([b"x"])) == content_checksum([b"abc"])
    assert are_comparable(earlier, "0" * 32)
    assert not are_comparable(earlier, content_checksum([b"abc"]))


def test_an_algorithm_of_a_later_version_is_refused_by_name() -> None:
    with pytest.raises(LedgerError, match="found later:1234; use the version"):
        content_checksum([b"abc"], like="later:1234")


@pytest.mark.parametrize("checksum", ["blake3:af13", "af13", ""])
def test_the_version_of_a_content_names_its_checksum(checksum: str) -> None:
    assert content_version(checksum) == f"content:{checksum}"
    assert checksum_of(content_version(checksum)) == checksum


@pytest.mark.parametrize("version", ["", "af13", "blake3:af13", "1700000000000000000"])
def test_another_version_names_no_checksum(version: str) -> None:
    assert checksum_of(version) is None
