"""One request for each record."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from itertools import count
from typing import Any, Self

from ledgerbeam import stats
from ledgerbeam.answers import Unavailable, remember
from ledgerbeam.errors import UsageError
from ledgerbeam.llm.checks import AnswerCheck
from ledgerbeam.llm.prompts import Prompt, most_tokens
from ledgerbeam.llm.service import RefusedError, Service, TransientError
from ledgerbeam.results import Reject

_ATTEMPTS = 5  # of a request that fails for a transient reason; then the service is not available
_PAUSE_SECONDS = 0.5  # longest pause before the first retry; it doubles, up to 30 s
_ASKED_WITH = "ledgerbeam_schema"  # field of a stored answer: digest of the schema in its request

Asking = Callable[[Mapping[str, Any], Mapping[str, Any]], Awaitable[Any]]
"""Returns the stored answer of a request, or that of the service to the body of a request."""


class Chat:
    """Asks a model of an OpenAI-compatible service for each record, and adds the answer to the record.

    Set its parameters with ``--set``, or derive a class and override `result`. The answers are stored by `remember`.

    Args:
        model: Name of the model.
        url: URL before ``/chat/completions``. It belongs to the job and to the stored answers. The default, that of the
            environment variable ``OPENAI_BASE_URL``, does not.
        prompt: Message of the user. ``{text}`` stands for the field `text` of the record.
        system: Message of the system.
        messages: In place of `prompt` and `system`: messages with templates, or the name of a field with messages.
        schema: JSON Schema of the answer, or the path of its file.
        into: Field of the answer in the record. None returns the answer in place of the record.
        max_tokens: Limit of the answer, a longer one is rejected; None for that of the service.
        temperature: Temperature of the model; None for that of the service.
        parameters: Other parameters of the request, such as ``{"top_p": 0.9}``.
        attempts: Most requests for a record whose answers are refused, invalid or cut off.
        bytes_per_token: For the estimate of tokens: least UTF-8 bytes of a token, on average over a request.
        timeout: Longest time without a byte of the service, in seconds.
        key_env: Name of the environment variable with the API key.
    """

    file_values = ("schema",)

    def __init__(
        self,
        model: str,
        *,
        url: str | None = None,
        prompt: str | None = None,
        system: str | None = None,
        messages: Sequence[Any] | str | None = None,
        schema: Mapping[str, Any] | str | None = None,
        into: str | None = "answer",
        max_tokens: int | None = 1024,
        temperature: float | None = None,
        parameters: Mapping[str, Any] | None = None,
        attempts: int = 1,
        bytes_per_token: float = 2.0,
        timeout: float = 600.0,
        key_env: str = "OPENAI_API_KEY",
    ) -> None:
        self._prompt, self._check = Prompt(prompt, system, messages), AnswerCheck(schema)
        named = {"model": model, "max_tokens": max_tokens, "temperature": temperature}
        self._parameters = {**{name: value for name, value in named.items() if value is not None}, **(parameters or {})}
        if "max_completion_tokens" in self._parameters:
            self._parameters.pop("max_tokens", None)
        self._into, self._attempts, self._bytes_per_token = into, attempts, bytes_per_token
        self._url, self._seconds, self._key_env = url, timeout, key_env
        self._opened: Service | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_opened": None}

    async def __aenter__(self) -> Self:
        self.service()
        return self

    async def __aexit__(self, *error: object) -> None:
        if self._opened is not None:
            await self._opened.close()

    async def __call__(self, record: Any) -> Any:
        """Return the result for a record, or a `Reject`."""
        answer = await self.ask(self._prompt.messages(record))
        return answer if isinstance(answer, Reject) else self.result(record, answer)

    def result(self, record: Any, answer: Any) -> Any:
        """Return the result for a record and its checked answer: a text, or with a schema the decoded JSON."""
        return answer if self._into is None else {**record, self._into: answer}

    async def ask(self, messages: list[Any]) -> Any:
        """Return the checked answer to messages, or a `Reject`."""
        return await self._asked(messages, self._online)

    async def _asked(self, messages: list[Any], asking: Asking) -> Any:
        body = {"response_format": self._check.response_format, **self._parameters, "messages": messages}
        body = {name: value for name, value in body.items() if value is not None}
        request, left = self._request(messages), self._attempts
        for number in count(1):
            try:
                answer = await asking(request if number == 1 else {**request, "again": number}, body)
            except RefusedError as refused:
                return refused.reject
            for kind in ("prompt_tokens", "completion_tokens"):
                used = (answer.get("usage") or {}).get(kind)
                stats.count(kind, used if isinstance(used, int) else 0)
            value = self._check.value(answer)
            left -= answer[_ASKED_WITH] == self._check.digest  # others were asked before an edit of the schema
            if not isinstance(value, Reject) or left <= 0:
                break
        return value

    def _request(self, messages: list[Any]) -> dict[str, Any]:
        """Return what a stored answer depends on: not the schema, so its edit asks no valid answer again."""
        return {**self._parameters, "messages": messages, **({"url": self._url} if self._url else {})}

    async def _online(self, request: Mapping[str, Any], body: Mapping[str, Any]) -> Any:
        async def complete() -> dict[str, Any]:
            return self.stored(await self.service().json("POST", "/chat/completions", json=body))

        return await self.remembered(request, complete, most_tokens(body, self._bytes_per_token))

    def stored(self, answer: Mapping[str, Any]) -> dict[str, Any]:
        """Return an answer as it is stored."""
        return {**answer, _ASKED_WITH: self._check.digest}

    async def remembered(self, request: Any, call: Callable[[], Awaitable[Any]], tokens: int | None = None) -> Any:
        """Return the answer to a request. Each attempt is a call of `remember`, so that limits of rates count it."""
        import tenacity  # noqa: PLC0415 - the launcher does not need it

        again = tenacity.retry_if_exception_type(TransientError)
        pause = tenacity.wait_random_exponential(multiplier=_PAUSE_SECONDS, max=30)
        async for attempt in tenacity.AsyncRetrying(retry=again, wait=pause):
            with attempt:
                is_last = attempt.retry_state.attempt_number >= _ATTEMPTS
                answer = await remember(request, partial(_unavailable_after, call) if is_last else call, tokens=tokens)
        return answer

    def service(self) -> Service:
        """Return the connections to the service, which the first call opens."""
        if self._opened is None:
            if not (url := self._url or os.environ.get("OPENAI_BASE_URL")):
                raise UsageError("Chat: expected a url such as http://127.0.0.1:8000/v1; set url, or OPENAI_BASE_URL")
            self._opened = Service(url.rstrip("/"), self._key_env, self._seconds)
        return self._opened


async def _unavailable_after(call: Callable[[], Awaitable[Any]]) -> Any:
    try:
        return await call()
    except TransientError as error:
        raise Unavailable(str(error)) from None
