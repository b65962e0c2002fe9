"""Files that have the name of what is to be written, and are something else: they are somebody else's, and stay."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from ledgerbeam.errors import SourceNotFoundError, UsageError
from ledgerbeam.io.storage.client import Options
from ledgerbeam.io.storage.ranges import RangeReader
from ledgerbeam.io.storage.stat import stat

_LOOKED_AT = 64 * 1024
_WORD = 8


class Looks(Protocol):
    """How a file of a kind looks; a compiled regular expression is one."""

    def match(self, content: bytes, /) -> object:
        """Return something true if a file may be of the kind.

        Args:
            content: The whole file, or of a large one the beginning and the end, from a multiple of 8 bytes.
        """


def refuse_foreign(
    files: Mapping[str, Looks],
    options: Options | None,
    *,
    kind: str,
    remedy: str = "or give another name",
) -> list[str]:
    """Check that files that are to be written are not there, or that such ones are, which are replaced.

    Args:
        files: How each one looks, by its URL.
        options: Storage options.
        kind: What they are, for the message.
        remedy: What to do once a file of others is moved away, or instead.

    Returns:
        The URLs of those that are there.

    Raises:
        UsageError: One is there that looks otherwise; also StorageError.
    """
    there = []
    for url, looks in files.items():
        try:
            found = stat(url, options)
        except SourceNotFoundError:
            continue
        with RangeReader(url, options, listed=found) as reader:
            content = reader.read(0, min(found.size, _LOOKED_AT))
            behind = max(_LOOKED_AT, (found.size - _LOOKED_AT) // _WORD * _WORD)
            if behind < found.size:
                content += reader.read(behind, found.size)
        if not looks.match(content):
            raise UsageError(
                f"{found.url}: expected no file, or {kind}, which is replaced; found another file: move it away, "
                f"{remedy}"
            )
        there.append(url)
    return there
