"""Versions of sources whose index is a part of their content, since it cannot be built, as that of a Megatron dataset.

Another `.idx` beside the same `.bin` makes other documents. So the version of such a source is that of both files.
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
    """Return a page of a listing with the versions of both files where a source has two.

    Args:
        page: As the store lists it.
        options: Storage options.
    """
    kinds: dict[str, OffsetFormat | None] = {}
    places, indexes = [], []
    for place, url in enumerate(page.urls):
        ending = url.rpartition("/")[2].partition(".")[2]  # of millions of names: little for each
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
    """Return the properties of a source as a listing has them; see `stat`."""
    found, kind = stat(url, options), _bringing_index(url)
    if kind is None:
        return found
    return dataclasses.replace(found, version=found.version + _of_index(_index_url(kind, url), options))


def own_version(version: str) -> str:
    """Return of the version of a source that of the listed file alone, as the store knows it."""
    return version.partition(_SIGN)[0]


def index_of(url: str, version: str) -> FileInfo | None:
    """Return the properties of the index that is a part of a source, as they were listed; None if it has none."""
    size, _, found = version.partition(_SIGN)[2].partition(" ")
    kind = _bringing_index(url) if found else None
    return None if kind is None else FileInfo(_index_url(kind, url), int(size), found)


def _bringing_index(url: str) -> OffsetFormat | None:
    """Return the format of a source if its index lies beside it and is a part of its content; else None."""
    try:
        kind = recognize(url).plain()
    except (NotIndexableError, UsageError):  # for whoever reads it to report
        return None
    return None if kind.is_indexable else kind


def _index_url(kind: OffsetFormat, url: str) -> str:
    return kind.index_file(url, IndexLocation()).url


def _of_index(url: str, options: Options | None) -> str:
    """Return what an index adds to the version; nothing if there is none, which whoever reads the source reports."""
    try:
        found = stat_object(url, options)
    except SourceNotFoundError:
        return ""
    return f"{_SIGN}{found.size} {found.version}"
