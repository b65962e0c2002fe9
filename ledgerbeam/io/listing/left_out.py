"""Files that match a pattern but are not sources: outputs of the job itself, and names without a known format."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from ledgerbeam._base.names import ASIDE
from ledgerbeam.errors import LedgerbeamError, UsageError
from ledgerbeam.io.listing.pages import Page
from ledgerbeam.io.listing.patterns import Pattern, expand_braces, fixed_part, parse
from ledgerbeam.io.storage.urls import canonical_url, is_local

MARKS_FOLDER = "_ledgerbeam"  # subfolder of an output with the marks of its ledgers; its files are never sources


@dataclass(frozen=True)
class OwnFiles:
    """The places that a job writes to: its output folder, and the folders of its ledger and of answers that it keeps.

    `form` is a regular expression that matches the endings of the names of outputs. The default matches nothing.
    """

    output: str | None = None
    form: str = r"(?!)"
    ledger: str | None = None
    answers: str | None = None


class Sieve:
    """Removes the files that a job writes from the pages of a listing, and counts them in `left_out`.

    If the output folder, or another of these folders, is below the path before the first wildcard of a pattern, all of
    it is left out. If the sources are in or below the output folder, only files that look like outputs of the job are
    left out. Folders of marks, and of rejected records unless a pattern names one, are left out too.

    UsageError: a pattern without wildcards names a file that the job writes.
    """

    def __init__(self, own: OwnFiles, patterns: Sequence[str]) -> None:
        self.left_out = 0
        self._form = re.compile(rf"(?:{own.form})\Z")
        output = own.output
        names = set() if output is None else {output, os.path.realpath(output)} if is_local(output) else {output}
        self._named = tuple(f"{name.rstrip('/')}/" for name in sorted(names))
        whole: list[str] = []
        mixed: list[str] = []
        for base in map(fixed_part, patterns):
            for folder, is_output in ((own.output, True), (own.ledger, False), (own.answers, False)):
                below = None if folder is None else _below(folder, base)
                if below:
                    whole.append(f"{base.rstrip('/')}/{below}/")
                elif folder is not None and is_output and _below(base, folder) is not None:
                    mixed.append(base.rstrip("/") + "/")
        self._whole, self._mixed = tuple(whole), tuple(mixed)
        # Rejected and dropped records are not sources, unless a pattern or a list names their folder.
        named = [f"/{folder}/" for folder in ASIDE]
        self._aside = [
            folder for folder in named if patterns and not any(folder in f"{pattern}/" for pattern in patterns)
        ]
        self.refuse(
            [pattern for pattern in patterns if fixed_part(f"{canonical_url(pattern)}/x") == canonical_url(pattern)]
        )

    def refuse(self, urls: Sequence[str]) -> None:
        """Raise UsageError if the job writes a file of one of these names."""
        if not self._named:
            return
        for url in urls:
            if url.startswith(self._named) and (self._form.search(url) or f"/{MARKS_FOLDER}/" in url):
                raise UsageError(
                    f"{url}: this job writes files of this name itself, in its --output; give another --output, or "
                    "leave this file out of the sources"
                )

    def keep(self, page: Page) -> Page:
        """Return a page without the files that the job writes."""
        whole, mixed, ends_as_ours = self._whole, self._mixed, self._form.search
        marks = f"/{MARKS_FOLDER}/"
        if not whole and not mixed:
            kept = [marks not in url for url in page.urls]
        else:
            kept = [
                marks not in url and (ends_as_ours(url) is None if url.startswith(mixed) else not url.startswith(whole))
                for url in page.urls
            ]
        for folder in self._aside:
            kept = [keep and folder not in url for keep, url in zip(kept, page.urls, strict=True)]
        if all(kept):
            return page
        self.left_out += kept.count(False)
        return page.select(kept)


def named_below(folder: str, patterns: Sequence[str]) -> Callable[[str], bool]:
    """Return a function that tests whether one of `patterns` matches a path, given relative to a folder.

    Names without wildcards match nothing. Nor do patterns whose path before the first wildcard is outside the folder.
    """
    found: list[tuple[str, re.Pattern[str]]] = []
    for pattern in (parse(plain) for text in patterns for plain in expand_braces(text)):
        below = None if pattern.is_plain else _below(pattern.base, folder)
        if below is not None:
            found.append((f"{below}/" if below else "", pattern.regex()))

    def is_named(name: str) -> bool:
        return any(name.startswith(base) and regex.fullmatch(name[len(base) :]) for base, regex in found)

    return is_named


def _below(folder: str, base: str) -> str | None:
    """Return the path of a folder relative to `base`: empty for the same folder, None if it is not inside."""
    if is_local(folder) != is_local(base):
        return None
    if is_local(folder):
        folder, base = os.path.realpath(folder), os.path.realpath(base)
    folder, base = folder.rstrip("/"), base.rstrip("/")
    if folder == base:
        return ""
    return folder[len(base) + 1 :] if folder.startswith(f"{base}/") else None


RequireSource: TypeAlias = Callable[[str], object]
"""Raises a `LedgerbeamError` if a name does not belong to a source. The result depends only on the part of the base
name after its first dot."""

_UP_TO_WILDCARD = re.compile(r".*[*?\]]", re.DOTALL)


@dataclass
class LeftOut:
    """Files that a listing has left out so far: the number of outputs of jobs, and of files with unknown endings."""

    own: int = 0
    passed_over: int = 0
    example: str = ""

    def lines(self) -> Iterator[str]:
        """Yield a line for each kind of files that were left out."""
        if self.own:
            yield f"left out of the sources, since jobs have written them: {_files(self.own)}"
        if self.passed_over:
            number = _files(self.passed_over)
            yield f"passed over, since their names are not those of sources: {number}, such as {self.example}"


class NameSieve:
    """Removes matches of a wildcard whose names do not belong to sources; `reason` is the error for the first one."""

    def __init__(self, require: RequireSource, left_out: LeftOut) -> None:
        self._require = require
        self._left_out = left_out
        self._decided: tuple[Pattern, bool] | None = None
        self.reason: LedgerbeamError | None = None

    def keep(self, page: Page, pattern: Pattern) -> Page:
        """Return the sources of a page, which has the matches of a pattern with wildcards."""
        if self._decided is None or self._decided[0] is not pattern:  # by the ending that all of its matches have
            ending = _UP_TO_WILDCARD.sub("", pattern.parts[-1].text)
            self._decided = pattern, "." in ending and self._is_source(f"{pattern.base}/x{ending}", probe=True)
        if self._decided[1]:
            return page
        endings = [url.rpartition("/")[2].partition(".")[2] for url in page.urls]
        verdicts = {ending: self._is_source(url) for ending, url in zip(endings, page.urls, strict=True)}
        if all(verdicts.values()):
            return page
        kept = [verdicts[ending] for ending in endings]
        self._left_out.passed_over += kept.count(False)
        self._left_out.example = self._left_out.example or page.urls[kept.index(False)]
        return page.select(kept)

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
