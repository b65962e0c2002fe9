"""Listings of the sources of a job: patterns or a list of URLs, or the recorded outputs of other jobs.

A listing can be pickled, so that every process can list the sources. Recorded outputs are identified by name and
content, never by a time.

The index of some sources, such as Megatron datasets, cannot be built from the data: another `.idx` beside the same
`.bin` gives other documents. So the version of such a source covers both files.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ledgerbeam._base.names import check_name
from ledgerbeam._base.redaction import refuse_secrets
from ledgerbeam.errors import (
    LedgerbeamError,
    LedgerError,
    LedgerNotFoundError,
    NotIndexableError,
    SourceNotFoundError,
    UsageError,
)
from ledgerbeam.io.compression.streams import split_compression
from ledgerbeam.io.formats.format import OffsetFormat
from ledgerbeam.io.formats.registry import recognize
from ledgerbeam.io.index.file import IndexLocation
from ledgerbeam.io.listing.left_out import LeftOut, NameSieve, OwnFiles, RequireSource, Sieve
from ledgerbeam.io.listing.pages import Page, list_pages, read_source_list, stat_pages
from ledgerbeam.io.listing.patterns import Pattern, may_vary
from ledgerbeam.io.storage.client import Options, ask_each
from ledgerbeam.io.storage.stat import FileInfo, FolderGivenError, folder_error, stat, stat_object
from ledgerbeam.io.storage.urls import is_local, store_of
from ledgerbeam.ledger import LedgerStore
from ledgerbeam.ledger.model.identity import content_version


@dataclass(frozen=True)
class SourceListing:
    """The sources of a job: patterns, or a list. Raises UsageError for neither, for both, and for credentials in them.

    `require` raises an error for a name that is not the name of a source. A file with such a name is skipped if a
    wildcard matches it. If the user gives the whole name, the file is listed, and its reader raises the error.
    """

    patterns: tuple[str, ...] = ()  # URLs with ``*``, ``?``, ``[...]``, ``**`` and ``{a,b}`` or ``{000..127}`` braces
    sources_from: str | None = None  # URL of a text file that lists source URLs, one a line
    storage_options: Mapping[str, Any] = field(default_factory=dict)
    page_size: int = 10_000  # largest number of sources of a page
    own: OwnFiles = field(default_factory=OwnFiles)  # where the reading job writes; files there are left out
    require: RequireSource = recognize

    def __post_init__(self) -> None:
        if bool(self.patterns) == bool(self.sources_from):
            raise UsageError("give source patterns, or a list with --sources-from FILE (one of the two)")
        for url in (*self.patterns, *filter(None, [self.sources_from])):
            refuse_secrets(url, "a source")

    @property
    def title(self) -> str:
        return self.sources_from or " ".join(self.patterns)

    def pages(self, left_out: LeftOut | None = None) -> Iterator[Page]:
        """Yield the sources in pages, in an order that does not change between runs.

        `left_out` counts the files that patterns match but that are not sources; it grows with each page. Raises
        SourceNotFoundError if a pattern matches nothing or a file is missing. Raises UsageError for credentials, if the
        job itself writes a file that is named without wildcards, or if no file that wildcards match is a source.
        """
        if self.sources_from:
            return self._named(self.sources_from)
        return self._matched(LeftOut() if left_out is None else left_out)

    def _named(self, url: str) -> Iterator[Page]:
        sieve = Sieve(self.own, ())
        found = False
        blocks = read_source_list(url, self.storage_options)
        urls = ([refuse_secrets(url, "a source") for url in block] for block in blocks)
        for names in stat_pages(urls, self.storage_options, self.page_size):
            sieve.refuse(names.urls)
            found = True
            yield with_index_versions(names, self.storage_options)
        if not found:
            raise SourceNotFoundError(
                f"{url}: expected a list of sources, one URL a line, found none (blank lines and lines that start "
                "with # do not count); check the program that writes the list"
            )

    def _matched(self, left_out: LeftOut) -> Iterator[Page]:
        own, names = Sieve(self.own, self.patterns), NameSieve(self.require, left_out)

        def keep(page: Page, pattern: Pattern) -> Page:
            kept = own.keep(page)
            left_out.own += len(page) - len(kept)
            return kept if pattern.is_plain else names.keep(kept, pattern)

        found = False
        try:
            for page in list_pages(self.patterns, self.storage_options, self.page_size, keep):
                found = True
                yield with_index_versions(page, self.storage_options)
        except FolderGivenError as error:
            raise _folder_given_error(error.folder, self.storage_options, self.require) from error
        if not found and names.reason is not None:
            number = left_out.passed_over
            raise type(names.reason)(
                f"{self.title}: none of the {number:,} matching names is the name of a source, e.g. {names.reason}"
            )
        if not found:
            raise SourceNotFoundError(
                f"{self.title}: nothing matches except files that this job writes itself ({left_out.own:,}), "
                f"below {self.own.output or self.own.ledger}; check the pattern"
            )


_LISTED = 1000  # largest number of files that are listed: an error must not wait for a listing of millions

_SHOWN = 3


def _folder_given_error(folder: str, options: Mapping[str, Any], require: RequireSource) -> UsageError:
    """Return the error for a folder in place of sources. It suggests patterns that match sources in the folder."""
    folder = folder.rstrip("/")
    if may_vary(folder):
        return folder_error(folder)
    try:
        urls = _listed(folder, options)
    except SourceNotFoundError:
        return UsageError(f"{folder}: expected files, or a pattern, found a folder without files; check the name")
    except LedgerbeamError:
        return folder_error(folder)
    direct: Counter[str] = Counter()
    deep: Counter[str] = Counter()
    reason: LedgerbeamError | None = None
    for url in urls:
        try:
            require(url)
        except LedgerbeamError as error:
            reason = reason or error
            continue
        parent, _, name = url.rpartition("/")
        (direct if parent == folder else deep)[_ending(name)] += 1
    if not direct and not deep and reason is not None:
        return UsageError(f"{folder}: expected files, or a pattern, found a folder without sources, e.g. {reason}")
    patterns = {
        f"{folder}/{'**/' if ending in deep else ''}*{ending}": n for ending, n in (direct + deep).most_common()
    }
    more = " or more" if len(urls) == _LISTED else ""
    shown = [f"'{text}' ({n:,} file{'' if n == 1 else 's'}{more})" for text, n in patterns.items()]
    return UsageError(f"{folder}: expected files, found a folder; give a pattern such as {' or '.join(shown[:_SHOWN])}")


def _listed(folder: str, options: Mapping[str, Any]) -> list[str]:
    # Other stores list everything below a folder before they return the first name.
    by_pages = is_local(folder) or store_of(folder).api == "s3"
    pages = list_pages([f"{folder}/{'**/*' if by_pages else '*'}"], options, _LISTED)
    return next(iter(pages)).urls


def _ending(name: str) -> str:
    """Return the suffix of a name that gives its format, including the suffix of its compression."""
    suffixes = [f".{part}" for part in name.split(".")[1:]]
    kept = 2 if suffixes and split_compression(f"x{suffixes[-1]}").compression is not None else 1
    return "".join(suffixes[-kept:])


_SIGN = " .idx "  # no store has spaces in a version


def with_index_versions(page: Page, options: Options | None = None) -> Page:
    """Return a page of a listing. The version of a source whose index is a part of its content covers both files."""
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
    """Return the properties of a source, with the same version as in a listing; see `stat`."""
    found, kind = stat(url, options), _bringing_index(url)
    if kind is None:
        return found
    return dataclasses.replace(found, version=found.version + _of_index(_index_url(kind, url), options))


def own_version(version: str) -> str:
    """Return the version that the store gives the file, given the version of the source, which may cover an index."""
    return version.partition(_SIGN)[0]


def index_of(url: str, version: str) -> FileInfo | None:
    """Return the listed properties of the index that is a part of a source, from the source's version; else None."""
    size, _, found = version.partition(_SIGN)[2].partition(" ")
    kind = _bringing_index(url) if found else None
    return None if kind is None else FileInfo(_index_url(kind, url), int(size), found)


def _bringing_index(url: str) -> OffsetFormat | None:
    """Return the format of a source if its index is a part of its content; else None."""
    try:
        kind = recognize(url).plain()
    except (NotIndexableError, UsageError):  # the reader of the source reports it
        return None
    return None if kind.is_indexable else kind


def _index_url(kind: OffsetFormat, url: str) -> str:
    return kind.index_file(url, IndexLocation()).url


def _of_index(url: str, options: Options | None) -> str:
    """Return the text that an index adds to the version of its source; "" without an index, as the reader reports."""
    try:
        found = stat_object(url, options)
    except SourceNotFoundError:
        return ""
    return f"{_SIGN}{found.size} {found.version}"


PAGE = 10_000
_INDEXES = (".idx", ".gzidx")


@dataclass(frozen=True)
class RecordedListing:
    """Lists the outputs of complete jobs, one job after the other."""

    outputs: tuple[RecordedOutputs, ...]
    storage_options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def title(self) -> str:
        return " ".join(one.shown for one in self.outputs)

    def pages(self, left_out: LeftOut | None = None) -> Iterator[Page]:
        """List the outputs of each job in the order of their names, the order of the job's sources and records.

        A job may have no outputs. All names of a job are in memory, about 200 bytes each. Raises LedgerError if a job
        is not complete, or if a run of it starts during the listing.
        """
        del left_out  # no file is left out
        for outputs in self.outputs:
            store = opened(outputs, self.storage_options)
            _require_complete(outputs, store)
            yield from _pages(outputs, store)
            _require_complete(outputs, store)


def opened(outputs: RecordedOutputs, storage_options: Mapping[str, Any]) -> LedgerStore:
    """Return the ledger of the job that wrote the outputs, opened to read. LedgerError: the job has not run yet."""
    from ledgerbeam.ledger.opening import open_store  # noqa: PLC0415 - imports LMDB, which help does not need

    try:
        return open_store(outputs.ledger, dict(storage_options), create=False, read_only=True)
    except LedgerNotFoundError as error:
        raise LedgerError(f"{outputs.shown}: the job has not run yet ({error}); run it first") from error


def _pages(outputs: RecordedOutputs, store: LedgerStore) -> Iterator[Page]:
    """Return the recorded outputs of a route, sorted by name, without outputs of sources that no longer exist."""
    gone = store.gone_ids()
    found: list[tuple[str, int, str]] = []
    for page in store.content_columns():
        found += (
            (name, size, content_version(checksum))
            for source, name, size, checksum, route in zip(*page, strict=True)
            if is_output(outputs, name, route) and source not in gone
        )
    return outputs_pages(outputs, found)


def outputs_pages(outputs: RecordedOutputs, found: list[tuple[str, int, str]]) -> Iterator[Page]:
    """Yield outputs, given by name, size and version, as pages of sources, in the order of their names."""
    found.sort()
    for start in range(0, len(found), PAGE):
        names, sizes, versions = zip(*found[start : start + PAGE], strict=True)
        yield Page([f"{outputs.output}/{check_name(name)}" for name in names], list(sizes), list(versions))


def is_output(outputs: RecordedOutputs, name: str, route: str) -> bool:
    """Return whether an output is of the route, and not an index of another output."""
    return route == outputs.route and not name.endswith(_INDEXES)


def _require_complete(outputs: RecordedOutputs, store: LedgerStore) -> None:
    """Check that a job is complete. Called before and after a listing, since a run may start between the two."""
    status = store.status()
    if not status["complete"]:
        left = status["sources"]
        raise LedgerError(
            f"{outputs.shown}: the job is not complete. Its sources: {left['complete']:,} complete, {left['open']:,} "
            f"open, {left['failed']:,} failed; finish that job, then run this one again"
        )


def missing_outputs_warning(outputs: RecordedOutputs, storage_options: Mapping[str, Any]) -> str | None:
    """Return a warning if a complete job has no outputs of a route: the name of the route may be wrong."""
    store = opened(outputs, storage_options)
    gone = store.gone_ids()
    routes = {row.output.route for row in store.outputs(ordered=False) if row.source_id not in gone}
    if outputs.route in routes:
        return None
    has = ", ".join(f"outputs in route {route}" if route else "outputs without a route" for route in sorted(routes))
    wanted = f"in route {outputs.route}" if outputs.route else "without a route"
    return f"{outputs.shown}: expected outputs {wanted}, found {has or 'none'}; check the name of the route"


@dataclass(frozen=True)
class RecordedOutputs:
    """The outputs of one route of a job."""

    ledger: str
    output: str
    route: str = ""  # empty for the main dataset
    title: str = ""  # name of the job in messages

    @property
    def folder(self) -> str:
        """URL of the folder that contains the outputs, directly or deeper."""
        return f"{self.output}/{self.route}" if self.route else self.output

    @property
    def shown(self) -> str:
        """Name of the outputs in messages."""
        return self.title or self.folder
