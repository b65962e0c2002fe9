"""Patterns of the sources in a folder, for the error when a folder is given in place of files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from ledgerbeam.errors import LedgerbeamError, SourceNotFoundError, UsageError
from ledgerbeam.io.compression.names import split_compression
from ledgerbeam.io.listing.left_out import RequireSource
from ledgerbeam.io.listing.pages import list_pages
from ledgerbeam.io.listing.patterns import may_vary
from ledgerbeam.io.storage.stat import folder_error
from ledgerbeam.io.storage.urls import is_local, store_of

_LISTED = 1000
"""Number of files that are listed at most: an error must not wait for a listing of millions."""

_SHOWN = 3


def folder_given(folder: str, options: Mapping[str, Any], require: RequireSource) -> UsageError:
    """Return the error for a folder in place of sources; it suggests patterns that match sources in the folder.

    Args:
        folder: Canonical URL of the folder.
        options: Storage options.
        require: Raises an error for a name that is not that of a source.
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
    """Return the suffix of a name that tells its format, with that of its compression."""
    suffixes = [f".{part}" for part in name.split(".")[1:]]
    kept = 2 if suffixes and split_compression(f"x{suffixes[-1]}").compression is not None else 1
    return "".join(suffixes[-kept:])
