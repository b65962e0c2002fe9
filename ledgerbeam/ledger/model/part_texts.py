"""Texts of the parts of a job: source code, values and small files, so that a ledger can show changes.

A job holds hashes. Their texts are stored beside the job in its ledger, by hash, without credentials and bounded in
size. The texts only explain a difference; the hashes alone decide equality.
"""

from __future__ import annotations

import base64
import json
import re
import textwrap
import threading
import zlib
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from difflib import unified_diff
from typing import Any

from ledgerbeam._base.redaction import HIDDEN, holds_credential, is_credential, is_opaque, printable, without_secrets

LONGEST = 64_000
"""Largest number of characters of a stored text. Longer texts have only a hash."""

MOST = 256_000
"""Largest number of characters of all stored texts of a job. The longest texts are left out first."""

_MOST_NOTED = 4_000
_SHOWN_LINES = 12
_WIDEST = 110
_LEAVES = 500

_QUOTED = re.compile(
    r"""(?P<name>[\w.-]+)(?P<sign>["'\]]*\s*(?::\s*\w+\s*)?[:=]\s*[rbfuRBFU]*)"""
    r"""(?P<quote>["'])(?P<value>.*?)(?P=quote)"""
)
_PLAIN = re.compile(r"""(?P<name>[\w.-]+)(?P<sign>\s*[:=]\s*)(?P<value>[^\s"'(){}\[\],#]+)""")
_WORD = re.compile(r"[A-Za-z0-9+/=_-]{20,}")

_noted: OrderedDict[str, tuple[Callable[[], str], bool]] = OrderedDict()
_lock = threading.Lock()


def note_text(key: str, read: Callable[[], str], *, is_code: bool = True) -> None:
    """Note in this process how the text behind a hash is read.

    Args:
        key: The hash, as in the parameters of a job.
        read: Returns the text. If it raises, there is no text.
        is_code: Whether the text is code, in which values are quoted. In other texts a bare word may be a credential.
    """
    with _lock:
        _noted[key] = read, is_code
        while len(_noted) > _MOST_NOTED:
            _noted.popitem(last=False)


def known_texts(values: Iterator[Any]) -> dict[str, str]:
    """Return the texts of those values that are hashes with a text noted in this process.

    The texts have no credentials, and together at most `MOST` characters.
    """
    found: dict[str, str] = {}
    for key in values:
        with _lock:
            noted = _noted.get(key) if isinstance(key, str) else None
        if noted is not None and (text := _read(*noted)) is not None:
            found[key] = text
    left = MOST
    kept: dict[str, str] = {}
    for key, text in sorted(found.items(), key=lambda item: (len(item[1]), item[0])):
        left -= len(text)
        if left >= 0:
            kept[key] = text
    return kept


def pack_texts(texts: Mapping[str, str]) -> str:
    """Encode texts for a ledger."""
    return base64.b64encode(zlib.compress(json.dumps(dict(texts)).encode())).decode()


def unpack_texts(packed: Any) -> dict[str, str]:
    """Decode the texts of `pack_texts`; empty if they are damaged, since they only explain."""
    try:
        data = zlib.decompressobj().decompress(base64.b64decode(packed), 8 * MOST)
        found = json.loads(data)
    except (TypeError, ValueError, zlib.error):
        return {}
    texts = found.items() if isinstance(found, dict) else ()
    return {key: text for key, text in texts if isinstance(text, str)}


def changed_lines(before: str, after: str) -> list[str]:
    """Return the changed lines of a text, with ``-`` and ``+`` in front; of many lines only the first."""
    lines: list[str] = []
    for line in list(unified_diff(before.splitlines(), after.splitlines(), lineterm="", n=0))[2:]:
        if not line.startswith("@@"):
            lines.append(printable(f"{line[0]} {line[1:]}"))
        elif lines:
            lines.append("...")
    if not lines:
        return ["only what is hidden here has changed, or the version of Python"]
    more = len(lines) - _SHOWN_LINES
    shown = [line if len(line) <= _WIDEST else f"{line[: _WIDEST - 3]}..." for line in lines[:_SHOWN_LINES]]
    return [*shown, f"... and {more:,} more lines"] if more > 0 else shown


def shown_value(name: str, value: Any) -> str:
    """Return a value as text without credentials, with one line for each part of a list or mapping.

    Raises:
        ValueError: JSON cannot hold the value, or it has too many parts.
    """
    if isinstance(value, (str, bool, int, float, type(None))):
        return HIDDEN if holds_credential(name, value) else str(value)
    return "\n".join(_parts(name, value, [_LEAVES]))


def _parts(name: str, value: Any, left: list[int], indent: str = "") -> Iterator[str]:
    left[0] -= 1
    if left[0] < 0 or len(indent) > 20:
        raise ValueError("it has many parts")
    if type(value) in (set, frozenset):
        value = sorted(value, key=repr)
    if type(value) is dict:
        for key, part in value.items():
            yield from _labelled(f"{indent}{key!r}:", str(key), part, left, indent)
    elif type(value) in (list, tuple):
        for part in value:
            yield from _labelled(f"{indent}-", name, part, left, indent)
    else:
        raise ValueError(f"it holds a {type(value).__name__}")


def _labelled(label: str, name: str, part: Any, left: list[int], indent: str) -> Iterator[str]:
    if isinstance(part, (str, bool, int, float, type(None))):
        left[0] -= 1
        yield f"{label} {HIDDEN if holds_credential(name, part) else repr(part)}"
    else:
        yield label
        yield from _parts(name, part, left, f"{indent}  ")


def _read(read: Callable[[], str], is_code: bool) -> str | None:
    try:
        text = read()
    except Exception:  # noqa: BLE001 - a text that cannot be read is left out
        return None
    if len(text) > LONGEST:
        return None
    return "\n".join(
        _without_credentials(line, is_code) for line in without_secrets(textwrap.dedent(text)).splitlines()
    )


def _without_credentials(line: str, is_code: bool) -> str:
    line = _QUOTED.sub(_hidden, line)
    code, mark, comment = line.partition("#") if is_code else ("", "", line)
    line = code + mark + _PLAIN.sub(_hidden, comment)
    return _WORD.sub(lambda found: HIDDEN if is_opaque(found[0]) else found[0], line)


def _hidden(found: re.Match[str]) -> str:
    if not is_credential(found["name"], found["value"]):
        return found[0]
    quote = found.groupdict().get("quote") or ""
    return f"{found['name']}{found['sign']}{quote}{HIDDEN}{quote}"
