"""Patterns of sources: braces, wildcards, and their fixed part.

    {a,b}  {000..127}   alternatives; each one is a separate pattern and must match something
    *  ?  [a-z]  [!a]   within one folder level
    **                  any number of folder levels, links to folders not followed

As in a shell, a wildcard at the start of a name does not match a leading dot, so hidden files and folders are skipped.
A name that ends with `.idx`, `.gzidx` or `.lbtmp` matches only if the last part of the pattern has no wildcards.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ledgerbeam.errors import UsageError
from ledgerbeam.io.storage.urls import canonical_url, is_local, store_of

_MAGIC = re.compile(r"[*?[]")
_QUERY = re.compile(r"\?[\w.~-]+=")
_NUMBERS = re.compile(r"(-?\d+)\.\.(-?\d+)(?:\.\.(-?\d+))?")
_NOT_SOURCES = (".idx", ".gzidx", ".lbtmp")
_MOST_NUMBERS = 10_000_000
_ANY_DEPTH = r"(?:[^/.][^/]*/)*"
_ANY_NAME = r"[^/.][^/]*"

Select = Callable[[list[str]], list[str]]  # returns the matching names of one folder, in their order


@dataclass(frozen=True)
class Part:
    """One level of a pattern, between two slashes; `any_depth` stands for `**`."""

    text: str
    any_depth: bool
    select: Select


@dataclass(frozen=True)
class Pattern:
    """A canonical pattern without braces, split into a fixed folder and the levels below it."""

    text: str
    base: str  # canonical URL of the folder below which names vary, without trailing slash except for `/`
    parts: tuple[Part, ...]  # the levels below `base`; empty for a plain name

    @property
    def is_plain(self) -> bool:
        """Whether the pattern is the name of one source, without wildcards."""
        return not self.parts

    def regex(self) -> re.Pattern[str]:
        """Return the regular expression that a path relative to `base` must match completely."""
        last = len(self.parts) - 1
        pieces = []
        for level, part in enumerate(self.parts):
            if part.any_depth:
                pieces.append(_ANY_DEPTH + (_ANY_NAME if level == last else ""))
            else:
                pieces.append(_level_regex(part.text) + ("" if level == last else "/"))
        unwanted = "|".join(map(re.escape, _NOT_SOURCES))
        ahead = rf"(?!.*(?:{unwanted})\Z)" if _MAGIC.search(self.parts[last].text) else ""
        return re.compile(ahead + "".join(pieces), re.DOTALL)


def canonical_pattern(pattern: str, folder: str | None = None) -> str:
    """Return a pattern, or a plain name, as an absolute path or a URL.

    A relative path is relative to `folder`, a path or a URL; None for the working folder.

    Raises:
        UsageError: The pattern is relative, and the name of the folder has wildcards or braces, so that it could match
            files of another folder. Also the errors of `canonical_url`.
    """
    if "://" in pattern or not is_local(pattern) or os.path.isabs(pattern.removeprefix("file:")):
        return canonical_url(pattern)
    text = canonical_url(pattern if folder is None else f"{folder}/{pattern}")
    if is_local(text) and os.path.lexists(text):
        return text
    below = canonical_url(folder or os.getcwd())
    kept = os.path.commonpath([text, below]) if is_local(text) else below
    if _MAGIC.search(kept) or _first_group(kept):
        raise UsageError(
            f"{pattern}: expected a folder without *, ?, [ and braces in its name above a pattern, found {kept}. "
            "Rename this folder, list the files with --sources-from FILE, or give an absolute pattern, in which [*], "
            "[?] and [[] stand for the characters themselves"
        )
    return text


def may_vary(text: str) -> bool:
    """Return whether a name has wildcards, or braces with alternatives."""
    return _MAGIC.search(text) is not None or _first_group(text) is not None


def expand_braces(pattern: str) -> list[str]:
    """Expand alternatives and number ranges.

    Args:
        pattern: May contain `{a,b}` and `{000..127}` or `{0..90..10}` (inclusive, zero-padded to the wider bound if
            either has leading zeros), also nested. Other braces are not changed.

    Returns:
        The patterns without braces, the leftmost group varying slowest.

    Raises:
        UsageError: A range has more than ten million numbers or a step of 0.

    Example:
        >>> expand_braces("s-{08..10}.{tar,jsonl}")[:3]
        ['s-08.tar', 's-08.jsonl', 's-09.tar']
    """
    if (group := _first_group(pattern)) is None:
        return [pattern]
    start, stop, choices = group
    tails = expand_braces(pattern[stop:])
    return [
        f"{pattern[:start]}{inner}{tail}" for choice in choices for inner in expand_braces(choice) for tail in tails
    ]


def _first_group(pattern: str) -> tuple[int, int, list[str]] | None:
    """Find the first braces with alternatives: (start, end, alternatives)."""
    start = pattern.find("{")
    while start >= 0:
        stop, pieces = _matching(pattern, start)
        if len(pieces) > 1:
            return start, stop, pieces
        if pieces and (numbers := _NUMBERS.fullmatch(pieces[0])):
            return start, stop, _numbers(pattern, *numbers.groups())
        start = pattern.find("{", start + 1)
    return None


def _matching(pattern: str, start: int) -> tuple[int, list[str]]:
    """Return the end of the braces that open at `start`, and the parts between their top-level commas."""
    depth = 0
    pieces = []
    begin = start + 1
    for position in range(start, len(pattern)):
        letter = pattern[position]
        if letter == "{":
            depth += 1
        elif letter == "," and depth == 1:
            pieces.append(pattern[begin:position])
            begin = position + 1
        elif letter == "}":
            depth -= 1
            if depth == 0:
                return position + 1, [*pieces, pattern[begin:position]]
    return start, []


def _numbers(pattern: str, first: str, last: str, step: str | None) -> list[str]:
    low, high = int(first), int(last)
    stride = abs(int(step)) if step else 1
    if stride == 0 or abs(high - low) // stride >= _MOST_NUMBERS:
        raise UsageError(
            f"{pattern}: the range {first}..{last} needs a step other than 0 and at most {_MOST_NUMBERS} numbers"
        )
    padded = any(len(bound.lstrip("-")) > 1 and bound.lstrip("-").startswith("0") for bound in (first, last))
    width = max(len(first), len(last)) if padded else 0
    numbers = range(low, high + 1, stride) if low <= high else range(low, high - 1, -stride)
    return [f"{number:0{width}d}" for number in numbers]


def parse(pattern: str, *, plain_if_file: bool = True) -> Pattern:
    """Parse a pattern without braces.

    With `plain_if_file`, wildcards are literal if a local file of exactly this name exists.

    UsageError: the scheme or the bucket of a URL has wildcards, or `canonical_pattern` refuses the name.
    """
    text = canonical_pattern(pattern)
    if store_of(text).api == "http" and _QUERY.search(text):
        raise UsageError(
            f"{text}: ? is a wildcard in a pattern, but this looks like a query; remove the query, or name the URL in "
            "a list: --sources-from FILE"
        )
    if not _MAGIC.search(text) or (plain_if_file and is_local(text) and os.path.lexists(text)):
        return Pattern(text, _folder_of(text), ())
    base = _fixed(text)
    return Pattern(text, base, tuple(_part(level) for level in text[len(base) :].lstrip("/").split("/")))


def alternatives(pattern: str) -> list[Pattern]:
    """Parse the alternatives of a pattern, which may have braces. The name of a local file is taken literally."""
    whole = parse(pattern)
    if whole.is_plain and is_local(whole.text) and os.path.lexists(whole.text):
        return [whole]
    return [parse(alternative) for alternative in expand_braces(pattern)]


def files_of(folder: str) -> Pattern:
    """Return the pattern of the files of one folder, whose name is taken literally."""
    base = canonical_url(folder)
    return Pattern(f"{base.rstrip('/')}/*", base, (_part("*"),))


def files_of_folders(pattern: str) -> str:
    """Return the pattern of the files in matching folders. UsageError if the pattern is also the name of one folder."""
    text = canonical_pattern(pattern).rstrip("/")
    if is_local(text) and may_vary(text) and os.path.lexists(text):
        raise UsageError(
            f"{pattern}: expected a folder without *, ?, [ and braces in its name, which would be read as a pattern, "
            f"found {text}; rename this folder"
        )
    return f"{text}/*"


def fixed_part(pattern: str) -> str:
    """Return the deepest folder that contains all matches of a pattern, which may have braces.

    It is a canonical URL without trailing slash (`/` for the root): `/d` for `/d/x*/y.jsonl`, `s3://b` for
    `s3://b/{u,v}/*.tar`, and for a plain name its folder (for a bucket `s3://b` itself).

    UsageError: the scheme or the bucket of a URL has wildcards or braces.
    """
    return _fixed(canonical_pattern(pattern))


def common_base(patterns: Sequence[str]) -> str | None:
    """Return the deepest folder that contains the fixed parts of several patterns; see `fixed_part`.

    None without patterns, or if their schemes or buckets differ. UsageError: a bucket has wildcards; braces are
    allowed there. Local patterns always share `/`.
    """
    bases = [fixed_part(alternative) for pattern in patterns for alternative in expand_braces(pattern)]
    if not bases:
        return None
    if all(map(is_local, bases)):
        return os.path.commonpath(bases)
    if any(map(is_local, bases)):
        return None
    shared = []
    for level in zip(*(base.split("/") for base in bases), strict=False):
        if len(set(level)) > 1:
            break
        shared.append(level[0])
    return "/".join(shared) if len(shared) > 2 else None  # `scheme:`, nothing, bucket


def _fixed(text: str) -> str:
    """Return the folder of a canonical pattern before the first character that varies."""
    group = _first_group(text)
    magic = _MAGIC.search(text)
    cuts = [len(text)]
    if group:
        cuts.append(group[0])
    if magic:
        cuts.append(magic.start())
    head = text[: min(cuts)]
    if len(head) < len(text) and not is_local(text) and "/" not in head.partition("://")[2]:
        raise UsageError(f"{text}: expected the whole name of the bucket; use wildcards and braces only after it")
    return _folder_of(head)


def _folder_of(text: str) -> str:
    folder = text.rpartition("/")[0]
    if is_local(text):
        return folder or "/"
    return folder if "://" in folder else text


def _part(text: str) -> Part:
    if text == "**":
        return Part(text, True, _select_any)
    if not _MAGIC.search(text):
        return Part(text, False, lambda names: [name for name in names if name == text])
    if text.startswith("*") and not _MAGIC.search(text, 1) and not text.endswith(_NOT_SOURCES):
        return Part(text, False, _select_suffix(text[1:]))
    matches = re.compile(_level_regex(text), re.DOTALL).fullmatch
    return Part(
        text, False, lambda names: [name for name in names if matches(name) and not name.endswith(_NOT_SOURCES)]
    )


def _select_any(names: list[str]) -> list[str]:
    return [name for name in names if not name.startswith(".") and not name.endswith(_NOT_SOURCES)]


def _select_suffix(suffix: str) -> Select:
    if not suffix:
        return _select_any
    # If no unwanted name can end with this suffix, the names need no second check.
    if any(unwanted.endswith(suffix) for unwanted in _NOT_SOURCES):
        return lambda names: [name for name in _select_any(names) if name.endswith(suffix)]
    return lambda names: [name for name in names if name.endswith(suffix) and name[0] != "."]


def _level_regex(text: str) -> str:
    pieces = [r"(?!\.)"] if text.startswith(("*", "?", "[")) else []
    position = 0
    while position < len(text):
        letter = text[position]
        # The first character of a class may be `]`.
        close = text.find("]", position + (3 if text[position + 1 : position + 2] == "!" else 2))
        if letter == "*":
            pieces.append("[^/]*")
        elif letter == "?":
            pieces.append("[^/]")
        elif letter == "[" and close > 0:
            pieces.append(_class_regex(text[position + 1 : close]))
            position = close
        else:
            pieces.append(re.escape(letter))
        position += 1
    return "".join(pieces)


def _class_regex(text: str) -> str:
    members = text.removeprefix("!")
    pieces = []
    position = 0
    while position < len(members):
        low, high = members[position], members[position]
        if members[position + 1 : position + 2] == "-" and position + 2 < len(members):
            high = members[position + 2]
            position += 2
        if low <= high:  # otherwise a range of nothing
            pieces.append(f"{re.escape(low)}-{re.escape(high)}")
        position += 1
    if not pieces:
        return "[^/]" if text.startswith("!") else "(?!)"
    return f"(?!/)[{'^' if text.startswith('!') else ''}{''.join(pieces)}]"


START = frozenset({0})  # the states of the base folder of a pattern


def with_skipped(parts: Sequence[Part], states: frozenset[int]) -> frozenset[int]:
    """Return the states of a folder, and also those in which `**` matches no folder level.

    A state of a folder is a number of levels of the pattern that the folder matches. A folder may have several states.
    A folder without a state is skipped.
    """
    grown = set(states)
    for level, part in enumerate(parts[:-1]):
        if level in grown and part.any_depth:
            grown.add(level + 1)
    return frozenset(grown)


def below(parts: Sequence[Part], states: frozenset[int], name: str, *, linked: bool = False) -> frozenset[int]:
    """Return the states (see `with_skipped`) of a subfolder; empty if nothing in it can match."""
    reached = set()
    for level in states:
        if parts[level].any_depth:
            if not linked and not name.startswith("."):  # a link could lead to a parent folder
                reached.add(level)
        elif level + 1 < len(parts) and parts[level].select([name]):
            reached.add(level + 1)
    return frozenset(reached)
