"""Versions of sources whose index is a part of their content, since it cannot be built, such as Megatron datasets.

Another `.idx` beside the same `.bin` makes other documents. So the version of such a source covers both files.
"""

from __future__ import annotations

import dataclasses

from ledgerbeam.errors import NotIndexableError, SourceNotFoundError, UsageError
from ledgerbeam.io.formats.format import OffsetFormat
from ledgerbeam.io.formats.registry import recognize
from ledgerbeam.io.index.location import IndexLocation
from ledgerbeam.io.listing.pages import Page
from ledgerbeam.io.storage.client import Options
from ledgerbeam.io.storage.concurrency import ask_each
from ledgerbeam.io.storage.stat import FileInfo, stat, stat_object

_SIGN = " .idx "  # no store has spaces in a version


def with_index_versions(page: Page, options: Options | None = None) -> Page:
    """Return a page of a listing, with versions of both files for sources that have two.

    Args:
        page: The page, as the store lists it.
        options: Storage options.
    """
    kinds: dict[str, OffsetFormat | None] = {}
    places, indexes = [], []
    for place, url in enumerate(page.urls):
        ending = url.rpartition("/")[2].partition(".")[2]  # a cheap key, for millions of names
        if ending not in kinds:
            kinds[ending] = _bringing_index(url)
        if (kind := kinds[ending]) is not None:
            places.append(place)
            indexes.append(_index_url(kind, url))
    if not places:
        return page
    versions = list(page.versions)
    for place, added in zip(places, ask_each(lambda index: _of_index(index, options), indexes), strict=True):
        versions[place] += added
    return Page(page.urls, page.sizes, versions)


def stat_source(url: str, options: Options | None = None) -> FileInfo:
    """Return the properties of a source, with the version that a listing would have; see `stat`."""
    found, kind = stat(url, options), _bringing_index(url)
    if kind is None:
        return found
    return dataclasses.replace(found, version=found.version + _of_index(_index_url(kind, url), options))


def own_version(version: str) -> str:
    """Return the store's version of the listed file alone, from the version of a source."""
    return version.partition(_SIGN)[0]


def index_of(url: str, version: str) -> FileInfo | None:
    """Return the listed properties of the index that is a part of a source; None if there is no such index."""
    size, _, found = version.partition(_SIGN)[2].partition(" ")
    kind = _bringing_index(url) if found else None
    return None if kind is None else FileInfo(_index_url(kind, url), int(size), found)


def _bringing_index(url: str) -> OffsetFormat | None:
    """Return the format of a source if its index is beside it and a part of its content; else None."""
    try:
        kind = recognize(url).plain()
    except (NotIndexableError, UsageError):  # the reader of the source reports it
        return None
    return None if kind.is_indexable else kind


def _index_url(kind: OffsetFormat, url: str) -> str:
    return kind.index_file(url, IndexLocation()).url


def _of_index(url: str, options: Options | None) -> str:
    """Return the addition of an index to the version; empty if it is missing: the reader of the source reports that."""
    try:
        found = stat_object(url, options)
    except SourceNotFoundError:
        return ""
    return f"{_SIGN}{found.size} {found.version}"
