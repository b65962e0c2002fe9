from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from ledgerbeam.errors import SourceNotFoundError, StorageError, UsageError
from ledgerbeam.io.listing import pages
from ledgerbeam.io.listing.pages import Page, list_folder, list_pages, read_source_list, stat_pages
from ledgerbeam.io.storage import client
from ledgerbeam.io.storage import files as storage
from ledgerbeam.io.storage.publish import publish_bytes
from ledgerbeam.io.storage.ranges import RangeReader
from ledgerbeam.io.storage.stat import stat, stat_many
from tests.conftest import S3Requests, S3Server
from tests.io.conftest import Place
from tests.servers.web import WebServer, web_server

pytestmark = pytest.mark.usefixtures("implementation")

TREE = ["b.jsonl", "a.jsonl", "a.jsonl.idx", ".hidden.jsonl", ".x.jsonl.1-2.lbtmp", "c.tar", ".git/a.jsonl"]
TREE += ["sub/a.jsonl", "sub/deep/a.jsonl", "sub/deep/er/z.jsonl", "sub/.cache/a.jsonl"]
TREE += ["other/a.jsonl", "other/b[1].jsonl"]


@pytest.fixture
def tree(place: Place) -> Place:
    for name in TREE:
        publish_bytes(place / name, name.encode(), place.options)
    return place


def names(place: Place, *patterns: str, page_size: int = 10_000) -> list[str]:
    pages = list_pages([place / pattern for pattern in patterns], place.options, page_size)
    return [url.removeprefix(f"{place.url}/") for page in pages for url in page.urls]


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("*.jsonl", ["a.jsonl", "b.jsonl"]),
        ("[!b].*", ["a.jsonl", "c.tar"]),
        ("?.tar", ["c.tar"]),
        ("a*", ["a.jsonl"]),
        ("*/a.jsonl", ["other/a.jsonl", "sub/a.jsonl"]),
        ("s*/*/a*l", ["sub/deep/a.jsonl"]),
        ("sub/**", ["sub/a.jsonl", "sub/deep/a.jsonl", "sub/deep/er/z.jsonl"]),
        ("**/z.jsonl", ["sub/deep/er/z.jsonl"]),
        ("**/deep/**/*.jsonl", ["sub/deep/a.jsonl", "sub/deep/er/z.jsonl"]),
        ("**/**/a.jsonl", ["a.jsonl", "other/a.jsonl", "sub/a.jsonl", "sub/deep/a.jsonl"]),
        ("**/a.jsonl.idx", ["a.jsonl.idx"]),
        (".hid*", [".hidden.jsonl"]),
        ("*/.cache/*", ["sub/.cache/a.jsonl"]),
        ("a.jsonl", ["a.jsonl"]),
        ("a.jsonl.idx", ["a.jsonl.idx"]),
        ("{b,a}.jsonl", ["b.jsonl", "a.jsonl"]),
        ("{sub,other}/*.jsonl", ["other/a.jsonl", "other/b[1].jsonl", "sub/a.jsonl"]),
        ("other/b[[]1].jsonl", ["other/b[1].jsonl"]),
    ],
)
def test_patterns_list_what_they_name(tree: Place, pattern: str, expected: list[str]) -> None:
    found = names(tree, pattern)
    assert sorted(found) == sorted(expected)


def test_pages_are_full_but_the_last_and_carry_what_stat_tells(tree: Place) -> None:
    pages = list(list_pages([tree / "**/*.jsonl"], tree.options, page_size=3))
    assert [len(page) for page in pages] == [3, 3, 1]
    assert [page.urls for page in pages] == [page.urls for page in list_pages([tree / "**/*.jsonl"], tree.options, 3)]
    for page in [*pages, *list_pages([tree / "c.tar"], tree.options)]:
        infos = stat_many(page.urls, tree.options)
        assert page == Page(page.urls, [i.size for i in infos], [i.version for i in infos])


def test_a_source_comes_once_however_often_it_is_named(tree: Place) -> None:
    found = names(tree, "b.jsonl", "*.jsonl", "**/*.jsonl", "b.jsonl")
    assert found[0] == "b.jsonl"
    assert sorted(found) == sorted(names(tree, "**/*.jsonl"))


def test_local_listings_are_sorted_folder_by_folder(tmp_path: Path) -> None:
    for name in ("b/2.x", "b/10.x", "a/1.x", "c.x", "a.x", "b/0/z.x"):
        publish_bytes(str(tmp_path / name), b"")
    assert names(Place(str(tmp_path)), "**/*.x") == ["a.x", "c.x", "a/1.x", "b/10.x", "b/2.x", "b/0/z.x"]


@pytest.mark.parametrize(
    "pattern", ["*.nothing", "nowhere/*.jsonl", "{a,nothing}.jsonl", "{sub,nowhere}/*.jsonl", "*.idx"]
)
def test_what_matches_nothing_is_named(tree: Place, pattern: str) -> None:
    with pytest.raises(SourceNotFoundError, match=r"nothing|nowhere|\*\.idx"):
        names(tree, "a.jsonl", pattern)


def test_a_folder_is_refused_with_the_remedy(tree: Place) -> None:
    with pytest.raises(UsageError, match="sub: expected a file, found a folder"):
        names(tree, "sub")
    assert names(tree, "s*b/**")
    with pytest.raises(SourceNotFoundError):
        names(tree, "su*")  # it matches a folder only


@pytest.fixture(scope="module")
def pages_of_s3(s3: S3Server) -> Place:
    """A bucket with several pages of objects, filled once for both implementations."""
    place = Place(f"s3://{s3.bucket()}", s3.options)
    keys = [place / f"d/part-{i:04d}.jsonl" for i in range(1100)]
    below = [place / f"d/deep/{i:04d}.jsonl" for i in range(1000)]
    client.filesystem(place.url, place.options).pipe(dict.fromkeys([*keys, *below, place / "e/y.jsonl"], b"x"))
    return place


@pytest.mark.slow
@pytest.mark.s3
def test_a_listing_of_s3_asks_once_for_each_page_of_the_store(pages_of_s3: Place, s3_requests: S3Requests) -> None:
    s3_requests.take()
    assert sum(map(len, list_pages([pages_of_s3 / "d/*.jsonl"], pages_of_s3.options))) == 1100
    assert s3_requests.take() == ["list_objects_v2"] * 2
    assert sum(map(len, list_pages([pages_of_s3 / "d/part-00*.jsonl"], pages_of_s3.options))) == 100
    assert s3_requests.take() == ["list_objects_v2"]
    assert sum(map(len, list_pages([pages_of_s3 / "**"], pages_of_s3.options))) == 2101
    assert s3_requests.take() == ["list_objects_v2"] * 3


def test_odd_keys_are_listed_and_read_as_they_are(place: Place) -> None:
    odd = ["a b.jsonl", "a+b.jsonl", "ä%20.jsonl", "q&a=1.jsonl", "#?.jsonl", "x:y@z.jsonl"]
    for key in odd:
        publish_bytes(place / f"odd/{key}", key.encode(), place.options)
    found = names(place, "odd/*.jsonl")
    assert sorted(found) == sorted(f"odd/{key}" for key in odd)
    contents = storage.read_many_files([place / name for name in found], place.options)
    assert contents == [name.removeprefix("odd/").encode() for name in found]


@pytest.mark.s3
def test_a_missing_bucket_is_named(s3_place: Place) -> None:
    with pytest.raises(SourceNotFoundError, match="no bucket no-such-bucket"):
        list(list_pages(["s3://no-such-bucket/*"], s3_place.options))


def test_names_with_wildcard_characters_are_plain_when_they_exist(tmp_path: Path) -> None:
    for folder, name in enumerate(("a[1].jsonl", "a{b,c}.jsonl", "a*.jsonl", "{d..f}[1].jsonl")):
        publish_bytes(str(tmp_path / str(folder) / name), b"")
        publish_bytes(str(tmp_path / str(folder) / "z.jsonl"), b"")
        assert names(Place(str(tmp_path / str(folder))), name) == [name]


@pytest.mark.parametrize(
    ("name", "other"),
    [("*.jsonl", "a.jsonl"), ("[ab].jsonl", "a.jsonl"), ("{a,b}.jsonl", "b.jsonl"), ("{a,b}*.jsonl", "aa.jsonl")],
)
def test_a_file_with_the_name_of_a_pattern_that_matches_others_is_an_error(
    tmp_path: Path, name: str, other: str
) -> None:
    """A new file with the name of the pattern does not remove other files from a job."""
    place = Place(str(tmp_path))
    publish_bytes(place / other, b"")
    expected = names(place, "*.jsonl")
    publish_bytes(place / name, b"")
    patterns = [name, f"../{tmp_path.name}/{name}"]
    if "{" not in name:  # a name with braces is literal only as a whole
        patterns.append(f"../{{{tmp_path.name},none}}/{name}")
    for pattern in patterns:
        with pytest.raises(UsageError, match=rf"the name of one file\. A file .*{other}.*--sources-from FILE"):
            names(place, pattern)
    os.remove(place / name)
    assert names(place, "*.jsonl") == expected == [other]


def test_the_name_of_a_folder_whose_files_are_listed_is_no_pattern(place: Place) -> None:
    folders = {"run[1]": ["b"], "{x,y}": ["d"], "*": ["*", "e"]}
    if place.url.startswith("az:"):  # its client parses brackets as an address
        del folders["run[1]"]
    for name in ("run1/a", "x/c", *(f"{folder}/{name}" for folder, found in folders.items() for name in found)):
        publish_bytes(place / name, b"", place.options)
    for folder, found in folders.items():
        pages = list_folder(place / folder, place.options)
        assert [url for page in pages for url in page.urls] == [place / f"{folder}/{name}" for name in found]


def test_links_to_files_are_sources_and_links_to_folders_only_by_name(tmp_path: Path) -> None:
    publish_bytes(str(tmp_path / "real" / "x.jsonl"), b"abc")
    (tmp_path / "link.jsonl").symlink_to("real/x.jsonl")
    (tmp_path / "loop").symlink_to(".")
    place = Place(str(tmp_path))
    assert names(place, "**/*.jsonl") == ["link.jsonl", "real/x.jsonl"]
    assert names(place, "loo*/real/*.jsonl") == ["loop/real/x.jsonl"]
    (page,) = list_pages([f"{tmp_path}/*.jsonl"])
    assert page.sizes == [3]


def test_a_link_to_no_file_is_an_error_where_a_pattern_names_it(tmp_path: Path) -> None:
    place = Place(str(tmp_path))
    publish_bytes(place / "a.jsonl", b"")
    for name, target in (("b.txt", "b.txt"), ("c.md", "gone")):
        (tmp_path / name).symlink_to(target)
        with pytest.raises(SourceNotFoundError, match=rf"{name}: .* found a link to {target}, which is missing"):
            names(place, f"*{name[1:]}")
    assert names(place, "*.jsonl") == names(place, "a*") == ["a.jsonl"]


def test_a_file_removed_while_listing_is_passed_over(tmp_path: Path) -> None:
    for i in range(6):
        publish_bytes(str(tmp_path / f"{i}.jsonl"), b"")
    pages = list_pages([f"{tmp_path}/*.jsonl"], page_size=2)
    assert len(next(pages)) == 2
    os.unlink(tmp_path / "4.jsonl")
    assert [os.path.basename(url) for page in pages for url in page.urls] == ["2.jsonl", "3.jsonl", "5.jsonl"]


def test_a_folder_removed_while_listing_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    for i in range(3000):
        (tmp_path / "d" / f"{i:04d}.jsonl").touch()
    pages = list_pages([f"{tmp_path}/d/*.jsonl"], page_size=1000)
    assert len(next(pages)) == 1000
    shutil.rmtree(tmp_path / "d")
    assert list(pages) == []


def make_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))


SPECIAL: dict[str, Callable[[Path], object]] = {
    "pipe": os.mkfifo,
    "socket": make_socket,
    "device": lambda path: path.symlink_to("/dev/null"),
}


@pytest.mark.parametrize("kind", SPECIAL)
@pytest.mark.parametrize("pattern", ["*.jsonl", "**/*.jsonl", "{a,b}.jsonl"])
def test_pipes_and_sockets_that_match_are_refused(tmp_path: Path, kind: str, pattern: str) -> None:
    """A run that skips files behind links would report that it is complete."""
    SPECIAL[kind](tmp_path / "a.jsonl")
    publish_bytes(str(tmp_path / "b.jsonl"), b"")
    with pytest.raises(UsageError, match=rf"a\.jsonl: expected a file .*, found a {kind}"):
        names(Place(str(tmp_path)), pattern)


def test_a_file_that_becomes_a_folder_while_listing_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in "abc":
        publish_bytes(str(tmp_path / f"{name}.jsonl"), b"")
    scan = pages._scan

    def changing(folder: str) -> Any:
        found = scan(folder)
        (tmp_path / "b.jsonl").unlink()
        (tmp_path / "b.jsonl").mkdir()
        return found

    monkeypatch.setattr(pages, "_scan", changing)
    assert names(Place(str(tmp_path)), "*.jsonl") == ["a.jsonl", "c.jsonl"]


def test_a_folder_that_cannot_be_read_is_an_error(tmp_path: Path, nobody: AbstractContextManager[None]) -> None:
    publish_bytes(str(tmp_path / "open" / "a.jsonl"), b"")
    (tmp_path / "closed").mkdir(mode=0)
    with nobody, pytest.raises(StorageError, match="permission"):
        names(Place(str(tmp_path)), "**/*.jsonl")


def test_relative_patterns_are_below_the_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    publish_bytes(str(tmp_path / "d" / "a.jsonl"), b"")
    monkeypatch.chdir(tmp_path)
    assert [page.urls for page in list_pages(["*/*.jsonl"])] == [[f"{tmp_path}/d/a.jsonl"]]
    assert [page.urls for page in list_pages(["d/a.jsonl"])] == [[f"{tmp_path}/d/a.jsonl"]]


def test_a_list_names_one_source_a_line(place: Place) -> None:
    def read(text: str) -> list[list[str]]:
        publish_bytes(place / "list.txt", text.encode(), place.options)
        return list(read_source_list(place / "list.txt", place.options))

    found = read("\ufeff/a/x.jsonl\r\n\n  # a note\n s3://b/k with space.jsonl \n/a/*.jsonl\n#\n/last")
    assert found == [["/a/x.jsonl", "s3://b/k with space.jsonl", "/a/*.jsonl"], ["/last"]]
    assert read("") == []
    lines = [f"/some/where/{i:08d}.jsonl" for i in range(100_000)]
    blocks = read("\n".join(lines) + "\n")
    assert len(blocks) > 1
    assert [line for block in blocks for line in block] == lines


def test_listed_names_are_described_in_their_order(tree: Place) -> None:
    wanted = [tree / name for name in ("sub/a.jsonl", "other/b[1].jsonl", "a.jsonl.idx", "a.jsonl")]
    pages = list(stat_pages([wanted[:1], wanted[1:]], tree.options, page_size=3))
    assert [page.urls for page in pages] == [wanted[:3], wanted[3:]]
    assert pages[1].sizes == [len("a.jsonl")]
    with pytest.raises(SourceNotFoundError, match="missing"):
        list(stat_pages([[*wanted, tree / "missing"]], tree.options))


FILES = {
    "data/a.jsonl": b"a\n",
    "data/b.jsonl": b"bb\n",
    "data/b.jsonl.idx": b"",
    "data/.hidden.jsonl": b"h\n",
    "data/two words & an ä.jsonl": b"words\n",
    "data/notes.txt": b"n\n",
    "data/one/c.jsonl": b"c\n",
    "data/one/deep/d.jsonl": b"d\n",
    "data/two/c.jsonl": b"cc\n",
    "other/e.jsonl": b"e\n",
}


@pytest.fixture(params=["nginx", "apache"])
def web(request: pytest.FixtureRequest) -> Iterator[WebServer]:
    with web_server(files=dict(FILES), pages=request.param) as server:
        yield server


def found(web: WebServer, pattern: str) -> list[str]:
    """Return the matches of a pattern, without the address of the server."""
    return [url.removeprefix(f"{web.url}/") for page in list_pages([f"{web.url}/{pattern}"]) for url in page.urls]


ESCAPED = quote("two words & an ä.jsonl")

PATTERNS = {
    "data/*.jsonl": ["data/a.jsonl", "data/b.jsonl", f"data/{ESCAPED}"],
    "data/?.jsonl": ["data/a.jsonl", "data/b.jsonl"],
    "data/[b-z].jsonl": ["data/b.jsonl"],
    "data/{a,b}.jsonl": ["data/a.jsonl", "data/b.jsonl"],
    "data/two w*.jsonl": [f"data/{ESCAPED}"],
    "data/two%20w*.jsonl": [f"data/{ESCAPED}"],
    "data/*ä.jsonl": [f"data/{ESCAPED}"],
    "data/*/c.jsonl": ["data/one/c.jsonl", "data/two/c.jsonl"],
    "data/*/*/*.jsonl": ["data/one/deep/d.jsonl"],
    "data/**/[cd].jsonl": ["data/one/c.jsonl", "data/one/deep/d.jsonl", "data/two/c.jsonl"],
    "**/e.jsonl": ["other/e.jsonl"],
    "data/.hid*.jsonl": ["data/.hidden.jsonl"],
}


@pytest.mark.slow
@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_pattern_is_matched_against_the_links_of_pages(web: WebServer, pattern: str) -> None:
    assert found(web, pattern) == PATTERNS[pattern]


def test_an_escaped_name_is_read_and_has_its_version(web: WebServer) -> None:
    (page,) = list_pages([f"{web.url}/data/two*.jsonl"])
    (url,) = page.urls
    listed = stat(url)
    assert (page.sizes, page.versions) == ([6], [listed.version])
    assert RangeReader(url, listed=listed).read(0, 6) == b"words\n"


def test_only_folders_that_may_match_are_asked_for(web: WebServer) -> None:
    assert found(web, "data/one/*.jsonl") == ["data/one/c.jsonl"]
    assert web.paths == ["data/one/", "data/one/c.jsonl"]
    web.paths.clear()
    found(web, "data/t*/*.jsonl")
    assert "data/one/" not in web.paths


@pytest.mark.slow
@pytest.mark.parametrize(
    "link",
    [
        "https://elsewhere.example/x.jsonl",
        "//elsewhere.example/x.jsonl",
        "/other/e.jsonl",
        "../other/e.jsonl",
        "..%2Fother/e.jsonl",
        "%2e%2e/e.jsonl",
        "one%2Fc.jsonl",
        "sub/e.jsonl",
        "x.jsonl?version=2",
        "get?file=x.jsonl",
        "a.jsonl#top",
        "page#x.jsonl",
        "?C=S;O=A",
        "javascript:alert(1).jsonl",
        "mailto:some@one.jsonl",
        "%00.jsonl",
        "",
        "/",
        ".",
        "./",
    ],
)
def test_a_link_that_leads_elsewhere_is_not_followed(web: WebServer, link: str) -> None:
    web.links = [link]
    expected = ["data/a.jsonl", "data/b.jsonl", f"data/{ESCAPED}"]
    assert [name for name in found(web, "data/*.jsonl") if ":" not in name] == expected
    deep = found(web, "data/**/*.jsonl")
    assert not [name for name in deep if name.startswith("other") or "elsewhere" in name]
    assert not [path for path in web.paths if not path.startswith("data/")]


def test_links_of_a_page_may_be_marked_as_names_or_have_the_address_of_the_folder(web: WebServer) -> None:
    web.files |= {"data/at:noon.jsonl": b"12\n", "data/late.jsonl": b"late\n"}
    web.links = ["./at:noon.jsonl"]
    assert found(web, "data/at*.jsonl")[-1] == "data/at:noon.jsonl"
    web.links = [f"{web.url}/data/late.jsonl", "/data/late.jsonl"]
    assert found(web, "data/l*.jsonl") == ["data/late.jsonl"]


@pytest.mark.slow
def test_folders_without_end_are_an_error(web: WebServer, monkeypatch: pytest.MonkeyPatch) -> None:
    page = web.page
    monkeypatch.setattr(web, "page", lambda folder: b'<a href="again/">x</a>' if "again" in folder else page(folder))
    web.links = ["again/"]
    with pytest.raises(StorageError, match=r"again/: it is more than 64 folders deep.*--sources-from"):
        found(web, "data/**/*.jsonl")


def test_what_is_not_there_is_said(web: WebServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "PAUSE_SECONDS", 0.01)
    with pytest.raises(SourceNotFoundError, match=r"nothing matches this pattern below .*/data, which must link to it"):
        found(web, "data/*.tar")
    with pytest.raises(SourceNotFoundError, match="nothing matches"):
        found(web, "nowhere/*.jsonl")
    web.refusals = [(403, {})]
    with pytest.raises(StorageError, match="cannot list, permission denied"):
        found(web, "data/*.jsonl")


def test_a_query_in_a_pattern_is_refused_with_the_way_to_name_it(web: WebServer) -> None:
    with pytest.raises(UsageError, match=r"\? is a wildcard in a pattern, .* like a query; .* --sources-from FILE"):
        found(web, "data/a.jsonl?download=true")
