"""Derived names stay below their root, are short enough, and differ for different sources."""

from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgerbeam._base.names import beside, check_name, check_root, relative_name
from ledgerbeam.errors import UsageError
from ledgerbeam.io.index.file import IndexLocation
from ledgerbeam.ledger import Source, Task
from ledgerbeam.transforms import WriteTasks
from ledgerbeam.transforms.chain.write import output_name


def is_text(path: str) -> bool:
    try:
        path.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return False
    return True


HEX = "0123456789abcdef" * 2
ODD = ["", ".", "..", "%", "%2E", "%2E%2E", "%25", "%25x", "a%2Eb", "\0", "a\0", "a%", f"x~{HEX}", "\udcff", "\ud800"]
parts = st.one_of(
    st.sampled_from([*ODD, "a", "b.jsonl", "b.jsonl.gz", "b.jsonl-gz", "x.gz.x-gz", "x.gz-x.gz", "s3"]),
    st.text(st.characters(exclude_characters="/"), max_size=6),
    st.builds(
        lambda letter, size: letter * size, st.sampled_from(["a", "é", "語", "😀", "\udcff"]), st.integers(50, 400)
    ),
)
paths = st.one_of(
    st.lists(parts, min_size=1, max_size=6).map("/".join), st.lists(parts, min_size=20, max_size=60).map("/".join)
)
urls_of_sources = paths.filter(is_text)  # others are refused as sources
roots = st.sampled_from(["/", "/out", "s3://bucket", "s3://bucket/some/folder"])


def size_of(text: str) -> int:
    try:
        return len(text.encode("utf-8", "surrogateescape"))
    except UnicodeEncodeError:
        return len(text.encode("utf-8", "surrogatepass"))


@given(paths, st.integers(0, 64), roots)
def test_a_name_stays_below_its_root_and_fits(path: str, room: int, root: str) -> None:
    name = relative_name(path, room, below=root)
    check_name(name)
    assert not {"", ".", ".."} & set(name.split("/"))
    assert max(map(size_of, name.split("/"))) <= 255
    assert size_of(name.rpartition("/")[2]) + room <= 255
    assert size_of(name) + room <= (4096 if root.startswith("/") else 1024 - size_of("some/folder/"))
    if root.startswith("s3"):
        name.encode()  # an object's key is UTF-8


@given(paths, paths, st.integers(0, 64), roots)
def test_different_paths_have_different_names(one: str, other: str, room: int, root: str) -> None:
    names = {relative_name(path, room, below=root) for path in (one, other)}
    assert len(names) == len({one, other})
    assert names == {relative_name(path, room, below=root) for path in (one, other)}


@given(paths, roots)
def test_what_was_made_of_a_name_is_not_the_name_of_another_source(path: str, root: str) -> None:
    """A source may have the derived name of another source."""
    made = relative_name(path, 10, below=root)
    if made != path:
        assert relative_name(made, 10, below=root) != made


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("books/a.jsonl", "books/a.jsonl"),
        ("a%2Fb/100%.jsonl", "a%2Fb/100%.jsonl"),
        ("a/../b", "a/%2E%2E/b"),
        ("a/./b//c", "a/%2E/b/%/c"),
        ("%2E%2E/b", "%252E%2E/b"),
        ("...", "..."),
        (".hidden/~a", ".hidden/~a"),
        ("x" * 245, "x" * 245),
    ],
)
def test_ordinary_names_stay_as_they_are(path: str, name: str) -> None:
    assert relative_name(path, 10, below="/out") == name


def test_a_long_part_is_cut_between_characters_and_has_a_hash() -> None:
    name = relative_name("語" * 85, 10, below="/out")
    front, _, mark = name.rpartition("~")
    assert front == "語" * ((255 - 10 - 33) // 3)
    assert len(mark) == 32


def test_a_long_path_keeps_its_first_folders() -> None:
    path = "/".join(["folder"] * 200) + "/a.jsonl"
    name = relative_name(path, 20, below="s3://bucket/out")
    assert name.startswith("folder/folder/folder/")
    assert 800 < len(name) < 1024
    assert relative_name(path, 20, below="/out") == path  # a disk accepts any bytes


def test_a_root_or_an_ending_without_room_for_names_is_told() -> None:
    with pytest.raises(UsageError, match="no room"):
        relative_name("a" * 300, 20, below="s3://bucket/" + "r" * 950)
    with pytest.raises(UsageError, match="no room"):
        relative_name("a" * 300, 230, below="/out")


@given(paths, paths, st.sampled_from(["s3://bucket/", "s3://bucket/x/"]))
def test_no_two_objects_share_what_lies_beside_them(one: str, other: str, root: str) -> None:
    urls = {beside(f"{root}{path}", ".idx") for path in (one, other)}
    assert len(urls) == len({one, other})
    for url in urls:
        assert url.startswith("s3://bucket/")
        key = url.removeprefix("s3://bucket/")
        check_name(key)
        assert size_of(key) <= 1024
        assert max(map(size_of, key.split("/"))) <= 255 or max(map(size_of, (one + "/" + other).split("/"))) > 255


def is_name_of_a_file(part: str) -> bool:
    return part not in {"", ".", ".."} and not set(part) & NO_BYTES


NO_BYTES = {chr(code) for code in (*range(0xD800, 0xDC80), *range(0xDD00, 0xE000))}
"""Surrogates without a byte cannot occur in names of files."""


@given(parts.filter(is_name_of_a_file))
def test_what_lies_beside_a_file_is_in_its_folder_and_fits(part: str) -> None:
    url = beside(f"/data/{part}", ".idx")
    assert os.path.dirname(url) == "/data"
    assert size_of(os.path.basename(url)) <= 255
    if not ({*part} & {"\0", "\ud800"} or part.endswith(HEX)) and size_of(part) <= 251:
        assert url == f"/data/{part}.idx"


def test_a_root_of_an_object_store_has_no_dots() -> None:
    for url in ("s3://bucket/../x", "s3://bucket/.."):
        with pytest.raises(UsageError, match="without parts"):
            check_root(url)
        with pytest.raises(UsageError, match="without parts"):
            WriteTasks(url, "jsonl")
        with pytest.raises(UsageError, match="without parts"):
            IndexLocation(url).url_for("/data/a.jsonl")
    assert check_root("s3://bucket/..x") == "s3://bucket/..x"


@pytest.mark.parametrize("name", ["", "..", "a/../b", "../a", "a/..", "a\0b"])
def test_a_name_that_leads_out_is_not_recorded(name: str) -> None:
    with pytest.raises(ValueError, match="name of an output"):
        check_name(name)


@pytest.mark.parametrize("name", ["a", "a/b", "..a/b..", "a/./b", "/data/a.idx", "s3://bucket/a.idx"])
def test_other_names_are_recorded(name: str) -> None:
    assert check_name(name) == name


@given(urls_of_sources, urls_of_sources, st.sampled_from([None, "s3://bucket/base/"]))
def test_no_two_sources_share_an_output(one: str, other: str, base: str | None) -> None:
    urls = {f"{root}{path}" for path in (one, other) for root in ("s3://bucket/base/", "s3://", "/")}
    tasks = [Task(Source(url, 1, "1"), 0, 1, ((0, 1),)) for url in urls]
    for room in (6, 100):
        names = {output_name(task, base, ".jsonl", room=room, below="s3://bucket/out") for task in tasks}
        assert len(names) == len(urls)
        for name in names:
            assert not {"", ".", ".."} & set(name.split("/"))


def test_all_outputs_of_a_source_begin_alike() -> None:
    source = Source("/data/" + "a" * 249 + ".jsonl", 1, "1")
    names = [
        output_name(Task(source, start, start + 1, lineage), "/data/", ending, room=20, below="/out")
        for start in (0, 12)
        for lineage in (((0, 2),), ((0, 2), (3, 4)), ((0, 2), (3, 4), (1, 2)))
        for ending in (".jsonl", ".recording.tar.idx")
    ]
    assert len({name.rpartition("~")[0] for name in names}) == 1
    assert len({name.rpartition("~")[2][:32] for name in names}) == 1
    assert max(map(len, names)) <= 255
