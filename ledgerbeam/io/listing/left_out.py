"""Files that match a pattern but are left out: outputs of the job, and names that are not those of sources."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

from ledgerbeam.errors import LedgerbeamError
from ledgerbeam.io.listing.pages import Page
from ledgerbeam.io.listing.patterns import Pattern

RequireSource: TypeAlias = Callable[[str], object]
"""Raises a `LedgerbeamError` if a name is not that of a source. The result depends only on the part of the base name
after its first dot."""

_UP_TO_WILDCARD = re.compile(r".*[*?\]]", re.DOTALL)


@dataclass
class LeftOut:
    """Counts the files that a listing has left out so far.

    Attributes:
        own: Number of files that the job writes itself.
        passed_over: Number of names that a wildcard matches but that are not those of sources.
        example: One of these names.
    """

    own: int = 0
    passed_over: int = 0
    example: str = ""

    def lines(self) -> Iterator[str]:
        """Yield a line for each kind of files that were left out."""
        if self.own:
            yield f"left out of the sources, since jobs write there themselves: {_files(self.own)}"
        if self.passed_over:
            number = _files(self.passed_over)
            yield f"passed over, since their names are not those of sources: {number}, such as {self.example}"


class NameSieve:
    """Removes names that a wildcard matches but that are not those of sources.

    Args:
        require: Checks the name of a source.
        left_out: Counts the removed names.

    Attributes:
        reason: Why the first of them is not a source; None if there is none.
    """

    def __init__(self, require: RequireSource, left_out: LeftOut) -> None:
        self._require = require
        self._left_out = left_out
        self._decided: tuple[Pattern, bool] | None = None
        self.reason: LedgerbeamError | None = None

    def keep(self, page: Page, pattern: Pattern) -> Page:
        """Return a page of the matches of a pattern with wildcards, without the names that are not those of sources."""
        if self._all_are(pattern):
            return page
        endings = [url.rpartition("/")[2].partition(".")[2] for url in page.urls]
        verdicts = {ending: self._is_source(url) for ending, url in zip(endings, page.urls, strict=True)}
        if all(verdicts.values()):
            return page
        kept = [verdicts[ending] for ending in endings]
        self._left_out.passed_over += kept.count(False)
        self._left_out.example = self._left_out.example or page.urls[kept.index(False)]
        return page.select(kept)

    def _all_are(self, pattern: Pattern) -> bool:
        """Return whether the common ending of all matches of a pattern makes them sources."""
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
