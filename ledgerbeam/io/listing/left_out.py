"""What patterns match and a listing leaves out: what the job writes itself, and names that are not of sources."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import compress
from typing import TypeAlias

from ledgerbeam.errors import LedgerbeamError
from ledgerbeam.io.listing.pages import Page
from ledgerbeam.io.listing.patterns import Pattern

__all__ = ["LeftOut", "NameSieve", "RequireSource"]

RequireSource: TypeAlias = Callable[[str], object]
"""Raises a `LedgerbeamError` if a name is not that of a source. What it finds depends on what follows the first dot of
the base name alone."""

_UP_TO_WILDCARD = re.compile(r".*[*?\]]", re.DOTALL)


@dataclass
class LeftOut:
    """What a listing has left out so far; each is counted, and told at its end.

    Attributes:
        own: Files that the job writes itself.
        passed_over: Names that a wildcard matched and that are not of sources.
        example: One of these names.
    """

    own: int = 0
    passed_over: int = 0
    example: str = ""

    def lines(self) -> Iterator[str]:
        """Yield a line for each kind of which something was left out."""
        if self.own:
            yield f"left out of the sources, since jobs write there themselves: {_files(self.own)}"
        if self.passed_over:
            number = _files(self.passed_over)
            yield f"passed over, since their names are not those of sources: {number}, such as {self.example}"


class NameSieve:
    """Passes over names, matched by wildcards, that are not of sources.

    Args:
        require: What a source must be called.
        left_out: Where they are counted.

    Attributes:
        reason: Why the first of them is no source; None if there is none.
    """

    def __init__(self, require: RequireSource, left_out: LeftOut) -> None:
        self._require = require
        self._left_out = left_out
        self._decided: tuple[Pattern, bool] | None = None
        self.reason: LedgerbeamError | None = None

    def keep(self, page: Page, pattern: Pattern) -> Page:
        """Return a page of what a pattern with wildcards matches without the names that are not of sources."""
        if self._all_are(pattern):
            return page
        endings = [url.rpartition("/")[2].partition(".")[2] for url in page.urls]
        verdicts = {ending: self._is_source(url) for ending, url in zip(endings, page.urls, strict=True)}
        if all(verdicts.values()):
            return page
        kept = [verdicts[ending] for ending in endings]
        self._left_out.passed_over += kept.count(False)
        self._left_out.example = self._left_out.example or page.urls[kept.index(False)]
        return Page(
            list(compress(page.urls, kept)), list(compress(page.sizes, kept)), list(compress(page.versions, kept))
        )

    def _all_are(self, pattern: Pattern) -> bool:
        """Return whether how all matches of a pattern end makes them sources: then no name is looked at."""
        if self._decided is None or self._decided[0] is not pattern:
            ending = _UP_TO_WILDCARD.sub("", pattern.parts[-1].text)
            self._decided = pattern, "." in ending and self._is_source(f"{pattern.base}/x{ending}", probe=True)
        return self._decided[1]

    def _is_source(self, url: str, *, probe: bool = False) -> bool:
        try:
            self._require(url)
        except LedgerbeamError as error:
            if not probe:
                self.reason = self.reason or error
            return False
        return True


def _files(number: int) -> str:
    return f"{number:,} file{'' if number == 1 else 's'}"
