"""What the pages of a web server's folders link to: files below a folder that match a pattern.

A page may link anywhere. What counts are links one level down: no other host or folder, no query (Apache sorts its
pages by such links), no way up.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import unescape
from urllib.parse import unquote

from ledgerbeam.errors import SourceNotFoundError, StorageError
from ledgerbeam.io.listing.levels import START, below, with_skipped
from ledgerbeam.io.listing.patterns import Part, Pattern
from ledgerbeam.io.storage.client import Options, call, filesystem

__all__ = ["list_web"]

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_DEEPEST = 64  # a server may make up folders without end


def list_web(pattern: Pattern, options: Options | None) -> Iterator[list[str]]:
    """List the files of a web server that a pattern matches, those of each folder sorted by name.

    Args:
        pattern: With wildcards. A name matches as it reads, or as it is escaped if the pattern is.
        options: Storage options.

    Raises:
        StorageError: A page cannot be read, or folders do not end.
    """
    waiting = [(f"{pattern.base}/", START)]
    last = len(pattern.parts) - 1
    while waiting:
        folder, states = waiting.pop()
        states = with_skipped(pattern.parts, states)
        names = _links(folder, options)
        if last in states:
            yield [folder + name for name in names if not name.endswith("/") and _is_kept(pattern.parts[last], name)]
        for name in reversed(names):
            reached = _below(pattern.parts, states, name.removesuffix("/")) if name.endswith("/") else frozenset()
            if reached:
                if folder.count("/") - pattern.base.count("/") > _DEEPEST:
                    raise StorageError(
                        f"{folder}: more than {_DEEPEST} folders deep, so its server may make them up; give a pattern "
                        "without **, or a list with --sources-from"
                    )
                waiting.append((folder + name, reached))


def _links(folder: str, options: Options | None) -> list[str]:
    """Return what a page links to in its folder, names of folders with a slash at the end, sorted."""
    store = filesystem(folder, options)
    store.invalidate_cache()
    try:
        found = call(folder, "list", store.ls, folder, detail=False)
    except SourceNotFoundError:  # a base that is not there matches nothing; a folder was removed meanwhile
        return []
    links = {url.removeprefix(folder) for url in map(unescape, found) if url.startswith(folder)}
    # What begins like a scheme is one, unless it is marked as a name: `mailto:a`, `./a:b`.
    names = {link.removeprefix("./") for link in links if not _SCHEME.match(link)}
    return sorted(name for name in names if _is_below(name))


def _is_below(name: str) -> bool:
    """Return whether a link leads to a file or folder one level down, and nowhere else."""
    plain = unquote(name.removesuffix("/"))
    return plain not in ("", ".", "..") and not set(plain) & {"/", "\\", "\0"} and not set(name) & {"?", "#"}


def _is_kept(part: Part, name: str) -> bool:
    return any(part.select([spelling]) for spelling in _spellings(part, name))


def _below(parts: tuple[Part, ...], states: frozenset[int], name: str) -> frozenset[int]:
    reached = (below(parts, frozenset({s}), spelling) for s in states for spelling in _spellings(parts[s], name))
    return frozenset().union(*reached)


def _spellings(part: Part, name: str) -> set[str]:
    """Return how a name may be meant: escapes count only if the pattern has some, or they would hide a dot."""
    return {unquote(name), name} if "%" in part.text else {unquote(name)}
