"""Listings of sources: one pass over patterns or a list, in pages, with size and version.

Nothing is listed twice. Only one page is in memory; with several patterns, also all names listed so far.
"""

from __future__ import annotations

import errno
import itertools
import os
import re
import stat as stat_modes
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from html import unescape
from typing import Any
from urllib.parse import unquote

from ledgerbeam.errors import SourceNotFoundError, StorageError, UsageError
from ledgerbeam.io import native
from ledgerbeam.io.listing.patterns import (
    START,
    Part,
    Pattern,
    alternatives,
    below,
    expand_braces,
    files_of,
    may_vary,
    parse,
    with_skipped,
)
from ledgerbeam.io.storage.client import Options, call, filesystem
from ledgerbeam.io.storage.objects import s3_pages
from ledgerbeam.io.storage.ranges import RangeReader
from ledgerbeam.io.storage.responses import lacks_repository, storage_error
from ledgerbeam.io.storage.stat import info_of, require_regular, stat_many
from ledgerbeam.io.storage.urls import is_local, split_scheme, store_of

_PLAIN_AT_ONCE = 1024
_LIST_BLOCK = 1024 * 1024
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_DEEPEST = 64  # a server may generate folders without end


@dataclass(slots=True)
class Page:
    """Some sources, as three columns of equal length: canonical URLs, sizes in bytes, and versions as in `FileInfo`."""

    urls: list[str] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    versions: list[str] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.urls)

    def extend(self, other: Page) -> None:
        """Append the sources of another page."""
        self.urls += other.urls
        self.sizes += other.sizes
        self.versions += other.versions

    def cut(self, count: int) -> Page:
        """Remove the first `count` sources and return them."""
        head = Page(self.urls[:count], self.sizes[:count], self.versions[:count])
        del self.urls[:count], self.sizes[:count], self.versions[:count]
        return head

    def select(self, kept: list[bool]) -> Page:
        """Return the sources for which `kept` is true."""
        compress = itertools.compress
        return Page(
            list(compress(self.urls, kept)), list(compress(self.sizes, kept)), list(compress(self.versions, kept))
        )


def list_pages(
    patterns: Sequence[str],
    options: Options | None = None,
    page_size: int = 10_000,
    keep: Callable[[Page, Pattern], Page] = lambda page, _: page,
) -> Iterator[Page]:
    """Yield the sources that patterns match, in pages of `page_size`.

    Local folders are walked depth first, the files of a folder before its subfolders, both sorted by name. Object
    stores are listed by prefix, in the order of the store. Plain names need one `stat` each.

    Args:
        patterns: Paths or URLs, with or without braces and wildcards (`ledgerbeam.io.listing.patterns`).
        keep: Takes a page of matches and their pattern, and returns the page of those to keep, which may be empty.

    Raises:
        SourceNotFoundError: A pattern, or an alternative of one, matches nothing.
        UsageError: A name is a folder or not valid; a match is a pipe, a socket or a device; or a pattern is also the
            name of one file.
        StorageError: A folder or bucket cannot be listed.
    """
    expanded = [parsed for pattern in patterns for parsed in alternatives(pattern)]
    for parsed in expanded:
        if parsed.is_plain and is_local(parsed.text) and may_vary(parsed.text):
            _require_one_meaning(parsed.text)
    chunks = _chunks(expanded, options, page_size, keep)
    yield from _repage(_first_times(chunks) if len(expanded) > 1 else chunks, page_size)


def list_folder(folder: str, options: Options | None = None, page_size: int = 10_000) -> Iterator[Page]:
    """List the files of one folder, whose name is taken literally. SourceNotFoundError if it has no files."""
    yield from _repage(_chunks([files_of(folder)], options, page_size, lambda page, _: page), page_size)


def _require_one_meaning(name: str) -> None:
    """Raise UsageError if the name of a file is also a pattern that matches other files, since it is ambiguous."""
    for pattern in (parse(alternative, plain_if_file=False) for alternative in expand_braces(name)):
        if pattern.is_plain:
            matches = [pattern.text] if os.path.lexists(pattern.text) else []
        else:
            matches = [url for page in _list_local(pattern, 1, lambda _: False) for url in page.urls]
        if (other := next((url for url in matches if url != name), None)) is not None:
            raise UsageError(
                f"{name}: expected a pattern or the name of one file. A file has this name, but as a pattern it also "
                f"matches other files, such as {other}; rename {name}, or name all files in a list: "
                "--sources-from FILE"
            )


def _chunks(
    patterns: Sequence[Pattern], options: Options | None, size: int, keep: Callable[[Page, Pattern], Page]
) -> Iterator[Page]:
    for plain, group in itertools.groupby(patterns, key=lambda pattern: pattern.is_plain):
        run = list(group)
        if plain:
            for page in stat_pages([[pattern.text for pattern in run]], options, _PLAIN_AT_ONCE):
                yield keep(page, run[0])
            continue
        for pattern in run:
            found = 0
            for chunk in _matches(pattern, options, size, partial(_is_kept, keep, pattern)):
                found += len(chunk)
                yield keep(chunk, pattern)
            if not found:
                links = ", which must link to it" if store_of(pattern.base).api == "http" else ""
                raise SourceNotFoundError(
                    f"{pattern.text}: nothing matches this pattern below {pattern.base}{links}; check the name "
                    "(hidden files, *.idx, *.gzidx and *.lbtmp are sources only when named without wildcards)"
                )


def _is_kept(keep: Callable[[Page, Pattern], Page], pattern: Pattern, url: str) -> bool:
    return bool(keep(Page([url], [0], [""]), pattern))


def _matches(pattern: Pattern, options: Options | None, size: int, is_wanted: Callable[[str], bool]) -> Iterator[Page]:
    if is_local(pattern.base):
        return _list_local(pattern, size, is_wanted)
    if store_of(pattern.base).api == "s3":
        return _list_s3(pattern, options)
    if store_of(pattern.base).api == "http":
        return stat_pages(list_web(pattern, options), options, size)
    return _list_store(pattern, options, size)


def _first_times(chunks: Iterable[Page]) -> Iterator[Page]:
    seen: set[str] = set()
    for chunk in chunks:
        first: list[bool] = []
        for url in chunk.urls:
            first.append(url not in seen)
            seen.add(url)
        yield chunk.select(first)


def _repage(chunks: Iterable[Page], page_size: int) -> Iterator[Page]:
    page = Page()
    for chunk in chunks:
        page.extend(chunk)
        while len(page) >= page_size:
            yield page.cut(page_size)
    if len(page):
        yield page


def _list_local(pattern: Pattern, size: int, is_wanted: Callable[[str], bool]) -> Iterator[Page]:
    """Walk folders that may have matches. A match that is not a file is an error if `is_wanted(path)` is true."""
    waiting: list[tuple[str, frozenset[int]]] = [(pattern.base, START)]
    last = len(pattern.parts) - 1
    while waiting:
        folder, states = waiting.pop()
        states = with_skipped(pattern.parts, states)
        names, folders = _scan(folder)
        if last in states:
            names = pattern.parts[last].select(names)
            names.sort()
            for begin in range(0, len(names), size):
                yield _stat_local(folder, names[begin : begin + size], is_wanted)
        for name, linked in sorted(folders, reverse=True):
            if reached := below(pattern.parts, states, name, linked=linked):
                waiting.append((os.path.join(folder, name), reached))


def _scan(folder: str) -> tuple[list[str], list[tuple[str, bool]]]:
    """Return the names of the files in a folder, and (name, is a link) of its subfolders."""
    names = []
    folders = []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if _is_folder(entry):
                    folders.append((entry.name, entry.is_symlink()))
                else:
                    names.append(entry.name)
    except (FileNotFoundError, NotADirectoryError):
        pass  # a missing base matches nothing; a subfolder may have been removed meanwhile
    except OSError as error:
        raise storage_error(error, folder, "list") from error
    return names, folders


def _is_folder(entry: os.DirEntry[str]) -> bool:
    """Return whether an entry is a folder. A broken link is not; `stat` reports it later."""
    try:
        return entry.is_dir()
    except OSError:
        if entry.is_symlink():  # a circle of links, or no permission at its target
            return False
        raise


def _stat_local(folder: str, names: list[str], is_wanted: Callable[[str], bool]) -> Page:
    """Return those files of a folder that still exist and are wanted."""
    prefix, page, start = folder.rstrip("/") + "/", Page(), 0
    while start < len(names):
        if native.compiled is not None:  # up to the first one that is no file
            sizes, versions = native.compiled.stat_files(folder, names[start:])
            urls = [prefix + name for name in names[start : start + len(sizes)]]
            page.extend(Page(urls, sizes, versions))
            start += len(sizes)
        if start < len(names) and (found := _stat_file(url := prefix + names[start], is_wanted)) is not None:
            page.extend(Page([url], [found.st_size], [str(found.st_mtime_ns)]))
        start += 1
    return page


def _stat_file(url: str, is_wanted: Callable[[str], bool]) -> os.stat_result | None:
    """Return the status of a file; None if it was removed meanwhile, or if it is not a file and not wanted."""
    try:
        found = os.stat(url)
    except OSError as error:
        is_gone = isinstance(error, FileNotFoundError) and not os.path.lexists(url)
        if is_gone or not is_wanted(url):
            return None
        if isinstance(error, FileNotFoundError) or error.errno == errno.ELOOP:
            raise SourceNotFoundError(
                f"{url}: expected a file, found a link to {os.readlink(url)}, which is missing; repair the link"
            ) from error
        raise storage_error(error, url, "read") from error
    became_folder = stat_modes.S_ISDIR(found.st_mode)  # since its parent was read
    if became_folder or (not stat_modes.S_ISREG(found.st_mode) and not is_wanted(url)):
        return None
    require_regular(found, url)
    return found


def _list_s3(pattern: Pattern, options: Options | None) -> Iterator[Page]:
    """List by pages of the store, from the longest fixed prefix of the pattern."""
    bucket, _, folder = split_scheme(pattern.base)[1].partition("/")
    root = f"{folder}/" if folder else ""
    recursive = len(pattern.parts) > 1 or pattern.parts[0].any_depth
    matches = pattern.regex().fullmatch
    for page in s3_pages(
        pattern.text, root + re.split(r"[*?[]", pattern.parts[0].text)[0], options, recursive=recursive
    ):
        kept = [item for item in page if matches(item["Key"], len(root))]
        yield Page(
            [f"s3://{bucket}/{item['Key']}" for item in kept],
            [item["Size"] for item in kept],
            [item["ETag"].strip('"') for item in kept],
        )


def _list_store(pattern: Pattern, options: Options | None, size: int) -> Iterator[Page]:
    store = filesystem(pattern.base, options)
    store.invalidate_cache()
    found = _find(store, pattern)
    root = f"{pattern.base}/"
    matches = pattern.regex().fullmatch
    names = sorted(url for url in found if url.startswith(root) and matches(url, len(root)))
    for begin in range(0, len(names), size):
        page = names[begin : begin + size]
        infos = [info_of(url, found[url]) for url in page]
        yield Page([i.url for i in infos], [i.size for i in infos], [i.version for i in infos])


def _find(store: Any, pattern: Pattern) -> dict[str, Mapping[str, Any]]:
    try:
        if len(pattern.parts) == 1 and not pattern.parts[0].any_depth:
            infos = call(pattern.text, "list", store.ls, pattern.base, detail=True)
        else:
            infos = call(pattern.text, "list", store.find, pattern.base, detail=True).values()
    except SourceNotFoundError as error:
        if lacks_repository(error):
            raise
        return {}  # a missing base matches nothing
    scheme = split_scheme(pattern.base)[0]
    # Stores omit parts that are not folders, such as the account of `abfs://container@account/folder`.
    inside = store._strip_protocol(pattern.base).rstrip("/")  # noqa: SLF001 - fsspec offers no public name for it
    return {
        pattern.base + name.removeprefix(inside) if name.startswith(f"{inside}/") else f"{scheme}://{name}": info
        for info in infos
        if info.get("type") != "directory"
        for name in [info["name"].removeprefix(f"{scheme}://")]
    }


def stat_pages(blocks: Iterable[list[str]], options: Options | None = None, page_size: int = 10_000) -> Iterator[Page]:
    """Yield sources that are named one by one, in order, with sizes and versions. Remote requests are concurrent.

    Names have no wildcards. A name given twice is listed twice. All pages but the last have `page_size` sources.

    Raises:
        SourceNotFoundError: A source does not exist.
        UsageError: A name is a folder.
    """
    names = itertools.chain.from_iterable(blocks)
    while batch := list(itertools.islice(names, page_size)):
        infos = stat_many(batch, options)
        yield Page([i.url for i in infos], [i.size for i in infos], [i.version for i in infos])


def read_source_list(url: str, options: Options | None = None) -> Iterator[list[str]]:
    """Read a list of sources in blocks: one path or URL a line, UTF-8.

    Spaces around a name, blank lines and lines that begin with `#` are ignored. Names have no wildcards; relative paths
    are below the working folder.
    """
    with RangeReader(url, options) as reader:
        rest = b""
        for number, block in enumerate(reader.blocks(_LIST_BLOCK)):
            block = block if number else block.removeprefix(b"\xef\xbb\xbf")  # noqa: PLW2901 - the byte order mark
            whole, _, rest = (rest + block).rpartition(b"\n")
            if names := _names(whole):
                yield names
        if names := _names(rest):
            yield names


def _names(block: bytes) -> list[str]:
    # File names need not be UTF-8; other bytes are kept as surrogate escapes.
    lines = (line.strip() for line in os.fsdecode(block).split("\n"))
    return [line for line in lines if line and not line.startswith("#")]


def list_web(pattern: Pattern, options: Options | None) -> Iterator[list[str]]:
    """List the files of a web server that a pattern matches, sorted by name in each folder.

    The pattern is compared with the unescaped name, and also with the escaped name if the pattern contains `%`.
    `StorageError`: the folders are too deep.
    """
    waiting = [(f"{pattern.base}/", START)]
    last = len(pattern.parts) - 1
    while waiting:
        folder, states = waiting.pop()
        states = with_skipped(pattern.parts, states)
        names = _links(folder, options)
        if last in states:
            part = pattern.parts[last]
            files = [name for name in names if not name.endswith("/")]
            yield [folder + name for name in files if part.select(list(_spellings(part, name)))]
        for name in reversed(names):
            reached = [
                below(pattern.parts, frozenset({state}), spelling)
                for state in (states if name.endswith("/") else ())
                for spelling in _spellings(pattern.parts[state], name.removesuffix("/"))
            ]
            if any(reached):
                if folder.count("/") - pattern.base.count("/") > _DEEPEST:
                    raise StorageError(
                        f"{folder}: it is more than {_DEEPEST} folders deep; its server may generate folders without "
                        "end. Give a pattern without **, or a list with --sources-from"
                    )
                waiting.append((folder + name, frozenset().union(*reached)))


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
    plain = ((unquote(name.removesuffix("/")), name) for name in names if not set(name) & {"?", "#"})
    # Other hosts and folders, parent folders and queries do not count: Apache sorts its pages by links with queries.
    return sorted(name for part, name in plain if part not in ("", ".", "..") and not set(part) & {"/", "\\", "\0"})


def _spellings(part: Part, name: str) -> set[str]:
    """Return the spellings of a name to compare with: the escaped one only if the part of the pattern has escapes."""
    return {unquote(name), name} if "%" in part.text else {unquote(name)}
