"""Versions of sources whose index is a part of their content, since it cannot be built: datasets of Megatron.

Another `.idx` beside the same `.bin` makes other documents. So the version of such a source is that of both files.
"""

from __future__ import annotations

import dataclasses

from ledgerbeam.errors import SourceNotFoundError
from ledgerbeam.io.formats.registry import recognize
from ledgerbeam.io.listing.pages import Page
from ledgerbeam.io.storage.client import Options
from ledgerbeam.io.storage.stat import FileInfo, ask_each, stat, stat_object

__all__ = ["index_of", "own_version", "stat_source", "with_index_versions"]

_DATA, _INDEX = ".bin", ".idx"
_SIGN = " .idx "  # no store has spaces in a version


def with_index_versions(page: Page, options: Options | None = None) -> Page:
    """Return a page of a listing with the versions of both files where a source has two.

    Args:
        page: As the store lists it.
        options: Storage options.
    """
    places = [place for place, url in enumerate(page.urls) if _has_index(url)]
    if not places:
        return page
    versions = list(page.versions)
    found = ask_each(lambda url: _of_index(url, options), [page.urls[place] for place in places])
    for place, index in zip(places, found, strict=True):
        versions[place] += index
    return Page(page.urls, page.sizes, versions)


def stat_source(url: str, options: Options | None = None) -> FileInfo:
    """Return the properties of a source as a listing has them; see `stat`."""
    found = stat(url, options)
    return dataclasses.replace(found, version=found.version + _of_index(url, options)) if _has_index(url) else found


def own_version(version: str) -> str:
    """Return of the version of a source that of the listed file alone, as the store knows it."""
    return version.partition(_SIGN)[0]


def index_of(url: str, version: str) -> FileInfo | None:
    """Return the properties of the index that is a part of a source, as they were listed; None if it has none."""
    size, _, found = version.partition(_SIGN)[2].partition(" ")
    return FileInfo(_index_url(url), int(size), found) if found else None


def _has_index(url: str) -> bool:
    return url.endswith(_DATA) and recognize(url).format.name == "megatron"


def _index_url(url: str) -> str:
    return url.removesuffix(_DATA) + _INDEX


def _of_index(url: str, options: Options | None) -> str:
    """Return what the index adds to the version; nothing if there is none, which whoever reads the source reports."""
    try:
        found = stat_object(_index_url(url), options)
    except SourceNotFoundError:
        return ""
    return f"{_SIGN}{found.size} {found.version}"
