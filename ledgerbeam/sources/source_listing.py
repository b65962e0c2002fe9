"""The sources of a job: patterns or a list of URLs, as one value that every process can list."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ledgerbeam._base.redaction import refuse_secrets
from ledgerbeam.errors import LedgerbeamError, SourceNotFoundError, UsageError
from ledgerbeam.io.compression.names import split_compression
from ledgerbeam.io.formats.registry import recognize
from ledgerbeam.io.listing.left_out import LeftOut, NameSieve, OwnFiles, RequireSource, Sieve
from ledgerbeam.io.listing.pages import Page, list_pages, read_source_list, stat_pages
from ledgerbeam.io.listing.patterns import Pattern, may_vary
from ledgerbeam.io.storage.stat import FolderGivenError, folder_error
from ledgerbeam.io.storage.urls import is_local, store_of
from ledgerbeam.sources.index_versions import with_index_versions


@dataclass(frozen=True)
class SourceListing:
    """The sources of a job.

    Attributes:
        patterns: URLs with ``*``, ``?``, ``[...]``, ``**`` and ``{a,b}`` or ``{000..127}`` braces.
        sources_from: URL of a text file that lists source URLs, one a line, in place of patterns.
        storage_options: Passed to fsspec unchanged.
        page_size: Largest number of sources of a page.
        own: Places where the reading job writes. Files there are left out.
        require: Raises an error for a name that is not the name of a source. Such names are skipped if a wildcard
            matches them; if they are given, the reader reports them. Default: the format must be known.

    Raises:
        UsageError: Neither or both of `patterns` and `sources_from` are given, or one of them holds credentials.
    """

    patterns: tuple[str, ...] = ()
    sources_from: str | None = None
    storage_options: Mapping[str, Any] = field(default_factory=dict)
    page_size: int = 10_000
    own: OwnFiles = field(default_factory=OwnFiles)
    require: RequireSource = recognize

    def __post_init__(self) -> None:
        if bool(self.patterns) == bool(self.sources_from):
            raise UsageError("give source patterns, or a list with --sources-from FILE (one of the two)")
        for url in (*self.patterns, *filter(None, [self.sources_from])):
            refuse_secrets(url, "a source")

    @property
    def title(self) -> str:
        """The name for the console."""
        return self.sources_from or " ".join(self.patterns)

    def pages(self, left_out: LeftOut | None = None) -> Iterator[Page]:
        """List the sources in one streaming pass, in an order that does not change between runs.

        Args:
            left_out: Counts the files that patterns match but that are not sources, page by page.

        Raises:
            SourceNotFoundError: A pattern matches nothing, or a file is missing.
            UsageError: A file that is named without wildcards is written by the job, all files that wildcards match are
                not sources, or a URL of the list holds credentials.
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
            raise folder_given_error(error.folder, self.storage_options, self.require) from error
        if not found and names.reason is not None:
            number = left_out.passed_over
            raise type(names.reason)(
                f"{self.title}: none of the {number:,} matching names is the name of a source: {names.reason}"
            )
        if not found:
            raise SourceNotFoundError(
                f"{self.title}: nothing matches except files that this job writes itself ({left_out.own:,} files), "
                f"below {self.own.output or self.own.ledger}; check the pattern"
            )


_LISTED = 1000
"""Largest number of files that are listed: an error must not wait for a listing of millions."""

_SHOWN = 3


def folder_given_error(folder: str, options: Mapping[str, Any], require: RequireSource) -> UsageError:
    """Return the error for a folder in place of sources. It suggests patterns that match sources in the folder.

    Args:
        folder: Canonical URL of the folder.
        options: Storage options.
        require: Raises an error for a name that is not the name of a source.
    """
    folder = folder.rstrip("/")
    if may_vary(folder):
        return folder_error(folder)
    try:
        urls = _listed(folder, options)
    except SourceNotFoundError:
        return UsageError(f"{folder} is a folder without files; expected files, or a pattern: check the name")
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
        return UsageError(f"{folder} is a folder without sources; expected files, or a pattern: {reason}")
    patterns = {
        f"{folder}/{'**/' if ending in deep else ''}*{ending}": n for ending, n in (direct + deep).most_common()
    }
    more = " or more" if len(urls) == _LISTED else ""
    shown = [f"'{text}' ({n:,} file{'' if n == 1 else 's'}{more})" for text, n in patterns.items()]
    return UsageError(f"{folder} is a folder; expected files, or a pattern such as {' or '.join(shown[:_SHOWN])}")


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
