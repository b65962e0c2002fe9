"""What a job writes below the folders that it reads: no source of the same job."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import compress

from ledgerbeam.errors import UsageError
from ledgerbeam.io.listing.pages import Page
from ledgerbeam.io.listing.patterns import fixed_part
from ledgerbeam.io.storage.urls import canonical_url, is_local
from ledgerbeam.names import REJECTS

__all__ = ["MARKS_FOLDER", "OwnFiles"]

MARKS_FOLDER = "_ledgerbeam"
"""Folder in an output folder in which ledgers say that they write there. Nothing in it is ever a source."""


@dataclass(frozen=True)
class OwnFiles:
    """Where a job writes.

    Attributes:
        output: Canonical URL of its output folder; None if it has none.
        form: Regular expression of what the names of its outputs end with.
        ledger: Canonical URL of its ledger's folder; None if it is not known.
    """

    output: str | None = None
    form: str = r"(?!)"
    ledger: str | None = None

    def among(self, patterns: Sequence[str]) -> Sieve:
        """Return what is left out of a listing.

        Args:
            patterns: Of the listing; none for a list of names.

        Raises:
            UsageError: A pattern without wildcards names what the job writes.
        """
        return Sieve(self, patterns)


class Sieve:
    """Leaves a job's own files out of the pages of a listing; counts them in `left_out`.

    An output folder below the folder in which a pattern begins to vary is left out whole; where sources lie in or
    below the output folder themselves, what has the form of the job's shards is.
    """

    def __init__(self, own: OwnFiles, patterns: Sequence[str]) -> None:
        self.left_out = 0
        self._form = re.compile(rf"(?:{own.form})\Z")
        self._named = _spellings(own.output)
        whole: list[str] = []
        mixed: list[str] = []
        for base in map(fixed_part, patterns):
            for folder, is_output in ((own.output, True), (own.ledger, False)):
                below = None if folder is None else _below(folder, base)
                if below:
                    whole.append(f"{base.rstrip('/')}/{below}/")
                elif folder is not None and is_output and _below(base, folder) is not None:
                    mixed.append(base.rstrip("/") + "/")
        self._whole, self._mixed = tuple(whole), tuple(mixed)
        # What a job has rejected is no source of any, unless a pattern or a list names that folder.
        self._rejects = bool(patterns) and not any(f"/{REJECTS}/" in f"{pattern}/" for pattern in patterns)
        self.refuse([pattern for pattern in patterns if _is_plain(pattern)])

    def refuse(self, urls: Sequence[str]) -> None:
        """Refuse names, given one by one, of what the job writes.

        Raises:
            UsageError: One of them is that.
        """
        if not self._named:
            return
        for url in urls:
            if url.startswith(self._named) and (self._form.search(url) or f"/{MARKS_FOLDER}/" in url):
                raise UsageError(
                    f"{url}: this job writes files of this name itself, in its --output; give another --output, or "
                    "leave it out of the sources"
                )

    def keep(self, page: Page) -> Page:
        """Return a page without the job's own files."""
        whole, mixed, ends_as_ours = self._whole, self._mixed, self._form.search
        marks, rejects = f"/{MARKS_FOLDER}/", f"/{REJECTS}/"
        if not whole and not mixed:
            kept = [marks not in url for url in page.urls]
        else:
            kept = [
                marks not in url and (ends_as_ours(url) is None if url.startswith(mixed) else not url.startswith(whole))
                for url in page.urls
            ]
        if self._rejects:
            kept = [keep and rejects not in url for keep, url in zip(kept, page.urls, strict=True)]
        if all(kept):
            return page
        self.left_out += kept.count(False)
        return Page(
            list(compress(page.urls, kept)), list(compress(page.sizes, kept)), list(compress(page.versions, kept))
        )


def _below(folder: str, base: str) -> str | None:
    """Return a folder's path relative to another: empty for the same one, None where it does not lie there."""
    if is_local(folder) != is_local(base):
        return None
    if is_local(folder):
        folder, base = os.path.realpath(folder), os.path.realpath(base)
    folder, base = folder.rstrip("/"), base.rstrip("/")
    if folder == base:
        return ""
    return folder[len(base) + 1 :] if folder.startswith(f"{base}/") else None


def _spellings(folder: str | None) -> tuple[str, ...]:
    if folder is None:
        return ()
    names = {folder, os.path.realpath(folder)} if is_local(folder) else {folder}
    return tuple(f"{name.rstrip('/')}/" for name in sorted(names))


def _is_plain(pattern: str) -> bool:
    url = canonical_url(pattern)
    return fixed_part(f"{url}/x") == url
