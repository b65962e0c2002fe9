"""What a job reads: patterns or a list of URLs, as one value that every process can list."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ledgerbeam.errors import SourceNotFoundError, UsageError
from ledgerbeam.io.listing.own_files import OwnFiles
from ledgerbeam.io.listing.pages import Page, list_pages, read_source_list, stat_pages
from ledgerbeam.redaction import refuse_secrets

__all__ = ["SourceListing"]


@dataclass(frozen=True)
class SourceListing:
    """What a job reads.

    Attributes:
        patterns: URLs with ``*``, ``?``, ``[...]``, ``**`` and ``{a,b}`` or ``{000..127}`` braces.
        sources_from: URL of a text file that lists source URLs, one a line, in place of patterns.
        storage_options: Passed to fsspec unchanged.
        page_size: Sources of a page, at most.
        own: Where the job that reads them writes: that is left out.

    Raises:
        UsageError: If neither or both of `patterns` and `sources_from` are given, or one of them holds credentials.
    """

    patterns: tuple[str, ...] = ()
    sources_from: str | None = None
    storage_options: Mapping[str, Any] = field(default_factory=dict)
    page_size: int = 10_000
    own: OwnFiles = field(default_factory=OwnFiles)

    def __post_init__(self) -> None:
        if bool(self.patterns) == bool(self.sources_from):
            raise UsageError("give source patterns, or a list with --sources-from FILE (one of the two)")
        for url in (*self.patterns, *filter(None, [self.sources_from])):
            refuse_secrets(url, "a source")

    @property
    def title(self) -> str:
        """What a console shows."""
        return self.sources_from or " ".join(self.patterns)

    def pages(self, on_left_out: Callable[[int], None] | None = None) -> Iterator[Page]:
        """List the sources in one streaming pass, in an order that does not change between runs.

        Args:
            on_left_out: Told at the end how many files were left out since the job writes them itself, if any were.

        Raises:
            SourceNotFoundError: If a pattern matches nothing, or a file is missing.
            UsageError: If a file that is named without wildcards is one that the job writes, or a URL of the list holds
                credentials.
        """
        sieve = self.own.among(self.patterns)
        found = False
        if self.sources_from:
            blocks = read_source_list(self.sources_from, self.storage_options)
            urls = ([refuse_secrets(url, "a source") for url in block] for block in blocks)
            for names in stat_pages(urls, self.storage_options, self.page_size):
                sieve.refuse(names.urls)
                found = True
                yield names
            if not found:
                raise SourceNotFoundError(
                    f"{self.sources_from}: expected a list of sources, one URL a line, found none (blank lines and "
                    "lines that begin with # do not count); check what writes the list"
                )
            return
        for listed in list_pages(self.patterns, self.storage_options, self.page_size):
            page = sieve.keep(listed)
            if len(page):
                found = True
                yield page
        if sieve.left_out and not found:
            raise SourceNotFoundError(
                f"{self.title}: nothing matches but what this job writes itself ({sieve.left_out:,} files), below "
                f"{self.own.output or self.own.ledger}; check the pattern"
            )
        if sieve.left_out and on_left_out is not None:
            on_left_out(sieve.left_out)
