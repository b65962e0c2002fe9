"""Requests to an OpenAI-compatible service, and the meaning of its responses."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from typing import Any

import orjson

from ledgerbeam._base.extensions import import_extra
from ledgerbeam._base.redaction import register_credentials, without_secrets
from ledgerbeam.answers import Unavailable
from ledgerbeam.errors import ServiceError
from ledgerbeam.io.storage.responses import seconds_of_headers
from ledgerbeam.llm.checks import rejected
from ledgerbeam.results import Reject

_SHOWN = 500  # characters of a response in a message
_MOST_BAD = 16  # requests that are refused for an unknown reason before any success; then all seem wrong
_CONTEXT = re.compile(
    r"context.?(length|window)|maximum.{0,40}tokens|too (long|large|many tokens)|string_above_max", re.I
)
_FILTER = re.compile(r"content.?(filter|policy|management)|moderation|flagged", re.I)
_QUOTA = re.compile(r"insufficient_quota|billing", re.I)


class TransientError(Exception):
    """The same request may succeed soon."""


class RefusedError(Exception):
    """The service refused a request for its own content: the record is rejected."""

    def __init__(self, reject: Reject) -> None:
        super().__init__(reject.reason)
        self.reject = reject


class Service:
    """A pool of connections to one service. Only its client has the API key.

    Its methods raise `TransientError` and `RefusedError`; `Unavailable` if the service limits the rate or names a time;
    `ServiceError` if it would refuse all requests.

    Args:
        url: The URL before ``/chat/completions``.
        key_env: Name of the environment variable that has the key. Without the variable, requests have none.
        seconds: Longest time without a byte of the service.
    """

    def __init__(self, url: str, key_env: str, seconds: float) -> None:
        httpx = import_extra("httpx2", "llm", "ledgerbeam.llm needs httpx2")
        key = os.environ.get(key_env, "").strip()
        register_credentials({"api_key": key} if key else {})
        self.url, self._key_env, self._errors = url, key_env, httpx.TransportError
        self._bad = 0
        self._client = httpx.AsyncClient(
            headers={"Authorization": f"Bearer {key}"} if key else {},
            timeout=httpx.Timeout(seconds, pool=None),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=None),
        )

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()

    async def send(self, method: str, path: str, **content: Any) -> bytes:
        """Send a request and return the body of its response."""
        try:
            response = await self._client.request(method, f"{self.url}{path}", **content)
        except self._errors as error:
            raise TransientError(without_secrets(f"{self.url}: {type(error).__name__} {error}")) from None
        self.check(response.status_code, response.content, seconds_of_headers(response.headers))
        found: bytes = response.content
        return found

    async def json(self, method: str, path: str, **content: Any) -> dict[str, Any]:
        """Send a request and return its response, an object in JSON."""
        data = await self.send(method, path, **content)
        with suppress(ValueError):
            if isinstance(found := orjson.loads(data), dict):
                return found
        raise ServiceError(
            f"{self.url}{path}: expected an object in JSON, found {_text(data)[:_SHOWN]!r}; check the url"
        )

    def check(self, status: int, data: bytes, after: float | None = None) -> None:
        """Raise the error that a response stands for. `after`: time that the service names, in seconds."""
        if 200 <= status < 300:
            self._bad = -_MOST_BAD
            return
        text = _text(data)
        said = f"{self.url}: status {status}: {text[:_SHOWN]}"
        if status == 429 and not _QUOTA.search(text):
            raise Unavailable(said, after)
        if status >= 500 or status in (408, 409, 425):
            raise TransientError(said) if after is None else Unavailable(said, after)
        if status in (400, 403, 413, 422) and (reason := self._reason(status, text)):
            raise RefusedError(rejected(reason, f"status {status}", text))
        key = f"set {self._key_env} to a key that may use this model, in the environment of the workers"
        remedy = {401: key, 403: key, 404: "check the url and the model", 429: "check the account"}.get(status)
        raise ServiceError(f"{said}; {remedy or 'correct the parameters'}")

    def _reason(self, status: int, text: str) -> str:
        """Return the reason to reject the record of a request. Empty if all requests would be refused."""
        if _FILTER.search(text):
            return "content filter"
        if status == 413 or _CONTEXT.search(text):
            return "context length"
        parameter = None
        with suppress(ValueError, KeyError, TypeError):
            parameter = orjson.loads(text)["error"]["param"]
        self._bad += 1
        is_of_all = status == 403 or self._bad >= _MOST_BAD or not str(parameter or "messages").startswith("messages")
        return "" if is_of_all else "bad request"


def _text(data: bytes) -> str:
    return without_secrets(data.decode("utf-8", "replace"))
