"""Messages of a request: templates with the fields of a record, and an estimate of their tokens."""

from __future__ import annotations

import json
import string
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import orjson

from ledgerbeam.errors import FunctionError, ServiceError, UsageError

_TOKENS_PER_MESSAGE = 16  # for the role, and the marks around a message


class Prompt:
    """Makes the messages of a request from a record. See `Chat` for the arguments."""

    def __init__(self, prompt: str | None, system: str | None, messages: Sequence[Any] | str | None) -> None:
        if (prompt is None) == (messages is None) or (messages is not None and system is not None):
            raise UsageError("Chat: expected either messages or a prompt; set prompt='... {text}'")
        both = [("system", system), ("user", prompt)]
        self._messages = messages or [{"role": role, "content": text} for role, text in both if text is not None]
        for template in _texts(self._messages) if not isinstance(self._messages, str) else ():
            _require_valid(template)

    def messages(self, record: Any) -> list[Any]:
        """Return the messages for a record. KeyError: it lacks a field."""
        if not isinstance(record, Mapping):
            raise ServiceError(
                f"Chat takes records that are objects, found a {type(record).__name__}; leave out --batch"
            )
        filled = record[self._messages] if isinstance(self._messages, str) else _filled(self._messages, record)
        if not isinstance(filled, list):
            raise FunctionError(f"Chat: expected a list in {self._messages!r}, found a {type(filled).__name__}")
        return filled


def most_tokens(body: Mapping[str, Any], bytes_per_token: float) -> int | None:
    """Return an estimate of the most tokens of a request and its answer; None without a limit of the answer."""
    limit = body.get("max_completion_tokens") or body.get("max_tokens")
    size = len(orjson.dumps([body["messages"], body.get("response_format")]))
    return limit and int(size / bytes_per_token) + 1 + _TOKENS_PER_MESSAGE * len(body["messages"]) + limit


class _Template(string.Formatter):
    """Formats like `str.format`, with lists, objects, booleans and null as JSON, and bytes as UTF-8 text."""

    def format_field(self, value: Any, format_spec: str) -> Any:
        if isinstance(value, bytes):
            value = value.decode()
        elif isinstance(value, dict | list | bool | None):
            value = json.dumps(value, ensure_ascii=False)
        return super().format_field(value, format_spec)


def _filled(value: Any, record: Mapping[str, Any]) -> Any:
    if isinstance(value, str):
        return _Template().vformat(value, (), record)
    if isinstance(value, Mapping):
        return {name: _filled(part, record) for name, part in value.items()}
    return [_filled(part, record) for part in value] if isinstance(value, list | tuple) else value


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping | list | tuple):
        for part in value.values() if isinstance(value, Mapping) else value:
            yield from _texts(part)


def _require_valid(template: str) -> None:
    try:
        names = [name for _, name, _, _ in string.Formatter().parse(template) if name is not None]
        if bad := [name for name in names if not name or name[0].isdigit() or set(name) & set("\"'\n ")]:
            raise ValueError(f"expected the name of a field in braces, found {bad[0]!r:.40}")
    except ValueError as error:
        raise UsageError(f"Chat: invalid prompt {template!r:.60}: {error}; write other braces twice") from None
