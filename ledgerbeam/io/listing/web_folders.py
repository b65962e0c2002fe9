"""List the files below a folder of a web server that match a pattern, from the links in its pages.

Only links to the next level count: no other host or folder, no query (Apache uses such links to sort its pages), and no
parent folder.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import unescape
from urllib.parse import unquote

from ledgerbeam.errors import SourceNotFoundError, StorageError
from ledgerbeam.io.listing.patterns import START, Part, Pattern, below, with_skipped
from ledgerbeam.io.storage.client import Options, call, filesystem

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_DEEPEST = 64  # a server may generate folders without end


def list_web(pattern: Pattern, options: Options | None) -> Iterator[list[str]]:
    """List the files of a web server that a pattern matches, sorted by name in each folder.

    Args:
        pattern: A pattern with wildcards. It is compared with the unescaped name, and if it contains `%` also with the
            escaped one.
        options: Storage options.

    Raises:
        StorageError: A page cannot be read, or the folders are too deep.
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
                        f"{folder}: more than {_DEEPEST} folders deep, so its server may generate folders without end; "
                        "give a pattern without **, or a list with --sources-from"
                    )
                waiting.append((folder + name, reached))


def _links(folder: str, options: Options | None) -> list[str]:
    """Return the sorted names of the files and folders that a page links to; folders end with a slash."""
    store = filesystem(folder, options)
    store.invalidate_cache()
    try:
        found = call(folder, "list", store.ls, folder, detail=False)
    except SourceNotFoundError:  # a missing base matches nothing; a folder may have been removed meanwhile
        return []
    links = {url.removeprefix(folder) for url in map(unescape, found) if url.startswith(folder)}
    # Skip links with a scheme such as `mailto:a`; a name with a colon is written `./a:b`.
    names = {link.removeprefix("./") for link in links if not _SCHEME.match(link)}
    return sorted(name for name in names if _is_below(name))


def _is_below(name: str) -> bool:
    """Return whether a link leads to a file or folder of the next level."""
    plain = unquote(name.removesuffix("/"))
    return plain not in ("", ".", "..") and not set(plain) & {"/", "\\", "\0"} and not set(name) & {"?", "#"}


def _is_kept(part: Part, name: str) -> bool:
    return any(part.select([spelling]) for spelling in _spellings(part, name))


def _below(parts: tuple[Part, ...], states: frozenset[int], name: str) -> frozenset[int]:
    reached = (below(parts, frozenset({s}), spelling) for s in states for spelling in _spellings(parts[s], name))
    return frozenset().union(*reached)


def _spellings(part: Part, name: str) -> set[str]:
    """Return the spellings of a name: the escaped one only if the pattern has escapes, since it can hide a dot."""
    return {unquote(name), name} if "%" in part.text else {unquote(name)}
