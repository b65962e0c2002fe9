"""Answers of calls that leave the process: each is stored durably before it is used, and no call is paid twice.

    async def label(record):
        answer = await ledgerbeam.remember({"model": "m", "prompt": record["text"]}, ask)
        return {**record, "label": answer["label"]}

After a crash, the stored answers are used again. They are kept until their source is complete, with `answers=` longer.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from hashlib import blake2b
from typing import Any, Protocol

import orjson

from ledgerbeam._base.lazy import asyncio
from ledgerbeam.errors import FunctionError

Call = Callable[..., Awaitable[Any]]

_PAUSE_SECONDS = 1.0  # before the next call, after the first `Unavailable`; each later pause is twice as long


class Unavailable(Exception):  # noqa: N818 - like `Drop` and `Reject`, it is not a mistake of the function
    """Raised by a call of `remember`: the service cannot answer now. All calls wait, then this call is made again.

    Args:
        reason: The answer of the service, or the error of the connection.
        retry_after: Time until the next call, in seconds. By default it grows from one second to a minute.
    """

    def __init__(self, reason: str, retry_after: float | None = None) -> None:
        super().__init__(reason)
        self.retry_after = retry_after


class Answers(Protocol):
    """The stored answers of a task."""

    async def answer(self, key: bytes, call: Callable[[], Awaitable[bytes]]) -> bytes:
        """Return the stored answer of a request; without one, call, and return the answer once it is durable."""


_current: ContextVar[Answers | None] = ContextVar("ledgerbeam.answers", default=None)
_in_job: ContextVar[bool] = ContextVar("ledgerbeam.answers.job", default=False)


async def remember(request: Any, call: Call, *, tokens: int | None = None) -> Any:  # noqa: ARG001
    """Return the answer to a request: the stored one, or that of `call`, which is stored durably first.

    Outside of a job, or with ``--sample``, nothing is stored.

    Args:
        request: Everything that the answer depends on, such as model, prompt and temperature, as JSON. Requests with
            equal JSON share an answer; the order of keys does not matter.
        call: Async function that asks, with the request as its argument, or with none if it takes none. It returns the
            answer as JSON. It may raise `Unavailable`.
        tokens: Most tokens of the request and its answer, which count for limits in tokens; None if there are none.

    Returns:
        The answer, as JSON holds it: a tuple becomes a list.

    Raises:
        FunctionError: Request or answer are not JSON, or the running function is not async. Also the errors of `call`.
    """
    key = blake2b(_json(request, "request", orjson.OPT_SORT_KEYS), digest_size=16).digest()
    arguments = (request,) if _takes_request(call) else ()

    async def asked() -> bytes:
        if not inspect.isawaitable(asking := call(*arguments)):
            raise FunctionError(
                f"ledgerbeam.remember: the call returned a {type(asking).__name__}; use an async function"
            )
        return _json(await asking, "answer")

    async def asked_until_available() -> bytes:
        pause = _PAUSE_SECONDS
        while True:
            try:
                return await asked()
            except Unavailable as error:
                await asyncio.sleep(pause if error.retry_after is None else error.retry_after)
                pause = min(2 * pause, 60 * _PAUSE_SECONDS)

    answers = _current.get()
    if answers is None and _in_job.get():
        raise FunctionError(
            "ledgerbeam.remember: expected to be awaited by an async function for a record, not by another function or "
            "its set-up; write the function with `async def`"
        )
    called = asked_until_available
    return orjson.loads(await (called() if answers is None else answers.answer(key, called)))


def _json(value: Any, what: str, option: int = 0) -> bytes:
    try:
        data = orjson.dumps(value, option=option)
        if b"null" in data:
            json.dumps(value, allow_nan=False)  # in `data`, NaN and infinities are null
    except (TypeError, ValueError) as error:
        raise FunctionError(
            f"ledgerbeam.remember: the {what} is not JSON ({error}); use finite numbers, texts"
        ) from None
    return data


def _takes_request(call: Call) -> bool:
    """Return whether a call takes the request. FunctionError: its only arguments have defaults."""
    try:
        parameters = inspect.signature(call).parameters.values()
    except (TypeError, ValueError):
        return True
    by_position = [one for one in parameters if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
    if by_position and all(one.default is not one.empty for one in by_position):
        raise FunctionError(
            f"ledgerbeam.remember: the argument {by_position[0].name!r} of the call has a default; give a call with "
            "one argument without a default, for the request, or with none"
        )
    return bool(by_position) or any(one.kind is one.VAR_POSITIONAL for one in parameters)


@contextmanager
def answering(answers: Answers | None) -> Iterator[None]:
    """Let `remember` in the body use these answers."""
    token = _current.set(answers)
    try:
        yield
    finally:
        _current.reset(token)


@contextmanager
def in_job() -> Iterator[None]:
    """Let `remember` in the body refuse to answer without stored answers."""
    token = _in_job.set(True)
    try:
        yield
    finally:
        _in_job.reset(token)
