"""Patterns over folder pages of web servers, in the forms of nginx and Apache: only files below the base are listed."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import quote

import pytest

from ledgerbeam.errors import SourceNotFoundError, StorageError, UsageError
from ledgerbeam.io.listing.pages import list_pages
from ledgerbeam.io.storage import client
from ledgerbeam.io.storage.ranges import RangeReader
from ledgerbeam.io.storage.stat import stat
from tests.servers.web import WebServer, web_server

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


def test_a_name_with_a_colon_is_a_name_if_it_is_marked_as_one(web: WebServer) -> None:
    web.files["data/at:noon.jsonl"] = b"12\n"
    web.links = ["./at:noon.jsonl"]
    assert found(web, "data/at*.jsonl")[-1] == "data/at:noon.jsonl"


def test_a_page_of_links_to_this_very_folder_by_its_address_is_read(web: WebServer) -> None:
    web.files["data/late.jsonl"] = b"late\n"
    web.links = [f"{web.url}/data/late.jsonl", "/data/late.jsonl"]
    assert found(web, "data/l*.jsonl") == ["data/late.jsonl"]


def test_folders_without_end_are_an_error(web: WebServer, monkeypatch: pytest.MonkeyPatch) -> None:
    page = web.page
    monkeypatch.setattr(web, "page", lambda folder: b'<a href="again/">x</a>' if "again" in folder else page(folder))
    web.links = ["again/"]
    with pytest.raises(StorageError, match=r"again/: more than 64 folders deep.*--sources-from"):
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
    with pytest.raises(UsageError, match=r"\? is a wildcard, and this looks like a query; .* --sources-from FILE"):
        found(web, "data/a.jsonl?download=true")
