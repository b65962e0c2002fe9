"""What a job reads: patterns or a list of URLs, as one value that every process can list."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ledgerbeam.errors import UsageError
from ledgerbeam.io.listing import Page, list_pages, read_source_list, stat_pages
from ledgerbeam.redaction import refuse_secrets

__all__ = ["SourceListing"]


@dataclass(frozen=True)
class SourceListing:
    """What a job reads.

    Attributes:
        patterns: URLs with ``*``, ``?``, ``[...]``, ``**`` and ``{a,b}`` or ``{000..127}`` braces.
        sources_from: URL of a text file that lists source URLs, one a line, in place of patterns.
        storage_options: Passed to fsspec untouched.
        page_size: Sources of a page, at most.

    Raises:
        UsageError: If neither or both of `patterns` and `sources_from` are given, or one of them holds credentials.
    """

    patterns: tuple[str, ...] = ()
    sources_from: str | None = None
    storage_options: Mapping[str, Any] = field(default_factory=dict)
    page_size: int = 10_000

    def __post_init__(self) -> None:
        if bool(self.patterns) == bool(self.sources_from):
            raise UsageError("give source patterns, or a list with --sources-from FILE (one of the two)")
        for url in (*self.patterns, *filter(None, [self.sources_from])):
            refuse_secrets(url, "a source")

    @property
    def title(self) -> str:
        """What a console shows."""
        return self.sources_from or " ".join(self.patterns)

    def pages(self) -> Iterator[Page]:
        """Lists the sources in one streaming pass, in an order that does not change between runs.

        Raises:
            SourceNotFoundError: If a pattern matches nothing or a file is missing.
            UsageError: If a URL of the list holds credentials.
        """
        if self.sources_from:
            blocks = read_source_list(self.sources_from, self.storage_options)
            urls = ([refuse_secrets(url, "a source") for url in block] for block in blocks)
            yield from stat_pages(urls, self.storage_options, self.page_size)
        else:
            yield from list_pages(self.patterns, self.storage_options, self.page_size)
