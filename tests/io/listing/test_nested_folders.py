"""Nested output folders with separate owners: the outer folder has a note of each, in any order of claims."""

from __future__ import annotations

import os
import tempfile
from contextlib import AbstractContextManager
from pathlib import Path

from ledgerbeam.io.listing.nested_folders import nested_owners, note_nested
from ledgerbeam.io.storage.files import delete
from ledgerbeam.io.storage.objects import list_files
from ledgerbeam.io.storage.publish import publish_bytes
from tests.io.conftest import Place


def claim(place: Place, folder: str, ledger: str) -> str:
    """Mark a folder with its ledger, as a job does."""
    output, options = f"{place.url}/{folder}", place.options
    publish_bytes(f"{output}/_ledgerbeam/{ledger}.json", b"{}", options)
    note_nested(output, ledger, options)
    return output


def test_folders_below_are_known_that_were_claimed_before_and_after(place: Place) -> None:
    options = place.options
    first = claim(place, "out/a/b", "1")
    outer = claim(place, "out", "2")
    assert nested_owners(outer, options) == {"a/b": "_ledgerbeam/1.json"}
    claim(place, "out/a", "3")
    claim(place, "outside", "4")
    claim(place, "out/odd %name\xe4", "5")
    assert nested_owners(outer, options) == {
        "a/b": "_ledgerbeam/1.json",
        "a": "_ledgerbeam/3.json",
        "odd %name\xe4": "_ledgerbeam/5.json",
    }
    assert nested_owners(f"{place.url}/out/a", options) == {"b": "_ledgerbeam/1.json"}
    assert nested_owners(first, options) == {}


def test_who_claims_a_folder_is_told_of_those_around_it_that_others_own(place: Place) -> None:
    for folder, ledger in (("out", "1"), ("out/a/b", "2"), ("out/a/b/c/d", "3"), ("other", "4")):
        claim(place, folder, ledger)
    around = note_nested(f"{place.url}/out/a/b/c", "2", place.options)
    assert around == [f"{place.url}/out"]
    assert note_nested(f"{place.url}/out/a/b/c/d/e", "5", place.options) == [
        f"{place.url}/{folder}" for folder in ("out/a/b/c/d", "out/a/b", "out")
    ]
    assert note_nested(f"{place.url}/out", "1", place.options) == []


def test_a_folder_whose_mark_is_gone_has_no_owner(place: Place) -> None:
    outer = claim(place, "out", "1")
    inner = claim(place, "out/a", "2")
    assert nested_owners(outer, place.options) == {"a": "_ledgerbeam/2.json"}
    claim(place, "out/a/b", "3")  # has a note in `out/a`, and stays
    delete(f"{inner}/_ledgerbeam/2.json", place.options)
    assert nested_owners(outer, place.options) == {"a/b": "_ledgerbeam/3.json"}


def test_a_folder_with_two_owners_is_not_below_itself(place: Place) -> None:
    outer = claim(place, "out", "1")
    claim(place, "out", "2")
    assert nested_owners(outer, place.options) == {}
    claim(place, "out/a", "1")  # the other owner of `out` must not write there
    assert nested_owners(outer, place.options) == {"a": "_ledgerbeam/1.json"}


def test_folders_of_stages_are_not_noted_and_those_of_rejects_are(place: Place) -> None:
    claim(place, "out/_runs", "1")
    outer = claim(place, "out", "2")
    for folder in ("out/_drops/x", "out/a/_runs", "out/_rejects"):
        claim(place, folder, "3")
    assert nested_owners(outer, place.options) == {"_rejects": "_ledgerbeam/3.json"}


def test_folders_of_one_ledger_are_not_those_of_others(place: Place) -> None:
    outer = claim(place, "out", "1")
    inner = claim(place, "out/a", "1")
    claim(place, "out", "1")
    for folder in (outer, inner):
        assert nested_owners(folder, place.options) == {}


def test_a_folder_around_where_one_may_not_look_is_passed_over(nobody: AbstractContextManager[None]) -> None:
    with tempfile.TemporaryDirectory() as outer:
        for folder, mode in (("", 0o755), ("_ledgerbeam", 0o300), ("a", 0o777)):
            os.makedirs(f"{outer}/{folder}", exist_ok=True)
            os.chmod(f"{outer}/{folder}", mode)
        with nobody:
            for folder in ("a", "a/b"):
                publish_bytes(f"{outer}/{folder}/_ledgerbeam/{len(folder)}.json", b"{}")
                note_nested(f"{outer}/{folder}", f"{len(folder)}")
            assert nested_owners(f"{outer}/a") == {"b": "_ledgerbeam/3.json"}
        assert os.listdir(f"{outer}/_ledgerbeam") == []


def test_what_lies_behind_a_link_to_a_folder_is_not_in_it(tmp_path: Path) -> None:
    for name in ("out/mine", "out/deep/mine", "victim/other"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "out/link").symlink_to(tmp_path / "victim")
    names = [name for page in list_files(str(tmp_path / "out")) for name in page.names]
    assert sorted(names) == ["deep/mine", "mine"]
