from __future__ import annotations

from hashlib import blake2b

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgerbeam.errors import LedgerError
from ledgerbeam.ledger.model.identity import (
    ROOT,
    are_comparable,
    checksum_of,
    content_checksum,
    content_version,
    name_key,
    node_id,
    pack_id,
    source_id,
    source_ids,
    url_key,
)

TEXT = st.text(alphabet="ab:/0129\0", max_size=6)
TRIPLE = st.tuples(TEXT, st.integers(0, 10**12), TEXT)
LINEAGE = st.lists(st.tuples(st.integers(0, 300), st.integers(1, 300)), max_size=4).map(tuple)


def test_identities_stay_what_they_are_for_ever() -> None:
    # A change of any of these makes every existing ledger forget its work.
    source = source_id("s3://bucket/part-000.jsonl", 1234, "etag-1")
    assert source.hex() == "200daa159acb2ba6573bf4916f7aea7b"
    assert node_id(source, ()).hex() == "f59274ffe81676de4d4656fd35b0d609"
    assert node_id(source, ((2, 7), (0, 1))).hex() == "6c63a004d5c108cbcc678b7a0f307264"
    assert pack_id([source, source]).hex() == "032273f141950ec1e1f342bb05150a0c"
    assert url_key("s3://bucket/part-000.jsonl").hex() == "f4f305ea3007630c72bb03af7a53c122"
    assert name_key("part-000-0.jsonl").hex() == "20e680125d01173ce8818803e68890bb"
    assert bytes(16) == ROOT


@given(TRIPLE, TRIPLE)
def test_sources_that_differ_anywhere_have_different_ids(
    one: tuple[str, int, str], other: tuple[str, int, str]
) -> None:
    assert (source_id(*one) == source_id(*other)) == (one == other)


@given(LINEAGE, LINEAGE)
def test_tasks_that_differ_have_different_nodes(
    one: tuple[tuple[int, int], ...], other: tuple[tuple[int, int], ...]
) -> None:
    source = source_id("/a", 1, "1")
    assert (node_id(source, one) == node_id(source, other)) == (one == other)
    assert node_id(source, one) != ROOT


@given(st.lists(TRIPLE, max_size=5))
def test_ids_of_a_page_equal_ids_one_by_one(rows: list[tuple[str, int, str]]) -> None:
    columns = [list(column) for column in zip(*rows, strict=True)] or [[], [], []]
    assert source_ids(*columns) == [source_id(*row) for row in rows]


def test_ids_of_a_ragged_page_are_refused() -> None:
    with pytest.raises(ValueError, match="zip"):
        source_ids(["/a", "/b"], [1], ["1", "1"])


def test_a_pack_depends_on_the_order_of_its_members_and_is_no_plain_source() -> None:
    one, two = source_id("/a", 1, "1"), source_id("/b", 1, "1")
    assert len({pack_id([one, two]), pack_id([two, one]), pack_id([one]), one, two}) == 5


def test_a_local_name_that_is_not_utf8_has_an_id() -> None:
    name = b"/data/\xff.jsonl".decode("utf-8", "surrogateescape")
    assert source_id(name, 1, "1") != source_id("/data/\u00ff.jsonl", 1, "1")
    assert len(url_key(name)) == len(name_key(name)) == 16


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
