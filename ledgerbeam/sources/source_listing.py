"""What a job reads: patterns or a list of URLs, as one value that every process can list."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ledgerbeam._base.redaction import refuse_secrets
from ledgerbeam.errors import SourceNotFoundError, UsageError
from ledgerbeam.io.formats.registry import recognize
from ledgerbeam.io.listing.left_out import LeftOut, NameSieve, RequireSource
from ledgerbeam.io.listing.own_files import OwnFiles, Sieve
from ledgerbeam.io.listing.pages import Page, list_pages, read_source_list, stat_pages
from ledgerbeam.io.listing.patterns import Pattern
from ledgerbeam.io.storage.stat import FolderGivenError
from ledgerbeam.sources.folder_sources import folder_given
from ledgerbeam.sources.index_versions import with_index_versions


@dataclass(frozen=True)
class SourceListing:
    """What a job reads.

    Attributes:
        patterns: URLs with ``*``, ``?``, ``[...]``, ``**`` and ``{a,b}`` or ``{000..127}`` braces.
        sources_from: URL of a text file that lists source URLs, one a line, in place of patterns.
        storage_options: Passed to fsspec unchanged.
        page_size: Sources of a page, at most.
        own: Where the job that reads them writes: that is left out.
        require: Raises an error for a name that is not that of a source. What a wildcard matches of such names is
            passed over; what is named is left to whoever reads it. Default: a format must be known.

    Raises:
        UsageError: If neither or both of `patterns` and `sources_from` are given, or one of them holds credentials.
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
        """What a console shows."""
        return self.sources_from or " ".join(self.patterns)

    def pages(self, left_out: LeftOut | None = None) -> Iterator[Page]:
        """List the sources in one streaming pass, in an order that does not change between runs.

        Args:
            left_out: Counts what patterns match and what is no source, page by page.

        Raises:
            SourceNotFoundError: If a pattern matches nothing, or a file is missing.
            UsageError: If a file that is named without wildcards is one that the job writes, if all that wildcards
                match is no source, or if a URL of the list holds credentials.
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
                f"{url}: expected a list of sources, one URL a line, found none (blank lines and lines that begin "
                "with # do not count); check what writes the list"
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
            raise folder_given(error.folder, self.storage_options, self.require) from error
        if not found and names.reason is not None:
            number = left_out.passed_over
            raise type(names.reason)(
                f"{self.title}: none of the {number:,} names that match is that of a source: {names.reason}"
            )
        if not found:
            raise SourceNotFoundError(
                f"{self.title}: nothing matches but what this job writes itself ({left_out.own:,} files), below "
                f"{self.own.output or self.own.ledger}; check the pattern"
            )
