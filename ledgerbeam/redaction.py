"""Text without secrets: what a ledger, a report or a terminal may show of URLs, messages and command lines."""

from __future__ import annotations

import re
from collections.abc import Iterable

__all__ = ["HIDDEN", "command_without_secrets", "printable", "without_secrets"]

HIDDEN = "***"
"""Stands where a secret was."""

_USERINFO = re.compile(r"([a-z][a-z0-9+.-]*://[^\s/:@]*):[^\s/@]+@", re.IGNORECASE)
_SENSITIVE = r"[\w.-]*(?:secret|password|passwd|token|signature|credential|api[_-]?key|access[_-]?key)[\w.-]*"
_QUERY = re.compile(rf"([?&](?:{_SENSITIVE}|sig)=)[^&\s'\"]+", re.IGNORECASE)
_SECRET_OPTION = re.compile(rf"--{_SENSITIVE}", re.IGNORECASE)
_UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\u202a-\u202e\u2066-\u2069]")
_STORAGE_OPTIONS = "--storage-options"


def without_secrets(text: str) -> str:
    """Hides passwords in URLs (``scheme://user:password@host``) and the values of signed query parameters."""
    if "@" in text:
        text = _USERINFO.sub(rf"\1:{HIDDEN}@", text)
    if "=" in text:
        text = _QUERY.sub(rf"\1{HIDDEN}", text)
    return text


def command_without_secrets(words: Iterable[str]) -> list[str]:
    """Hides in a command line what `without_secrets` does, storage options, and options named after a secret."""
    shown: list[str] = []
    hide_next = False
    for word in words:
        name, equals, _ = word.partition("=")
        secret = name == _STORAGE_OPTIONS or _SECRET_OPTION.fullmatch(name) is not None
        if hide_next:
            shown.append(HIDDEN)
        elif secret and equals:
            shown.append(f"{name}={HIDDEN}")
        else:
            shown.append(without_secrets(word))
        hide_next = secret and not equals and not hide_next
    return shown


def printable(text: str) -> str:
    """Replaces what could steer a terminal or is no text by escapes as Python writes them; keeps line ends and tabs."""
    return _UNPRINTABLE.sub(lambda found: found[0].encode("unicode_escape").decode(), text)
