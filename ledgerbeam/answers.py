"""Answers of calls that leave the process: each is stored durably before it is used, and no call is paid twice.

    async def label(record):
        answer = await ledgerbeam.remember({"model": "m", "prompt": record["text"]}, ask)
        return {**record, "label": answer["label"]}

After a crash, the stored answers are used again. They are kept until their source is complete.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from hashlib import blake2b
from typing import Any, Protocol

import orjson

from ledgerbeam.errors import FunctionError

Call = Callable[..., Awaitable[Any]]


class Answers(Protocol):
    """The stored answers of a task."""

    async def answer(self, key: bytes, call: Callable[[], Awaitable[bytes]]) -> bytes:
        """Return the stored answer of a request; without one, call, and return the answer once it is durable."""


_current: ContextVar[Answers | None] = ContextVar("ledgerbeam.answers", default=None)
_in_job: ContextVar[bool] = ContextVar("ledgerbeam.answers.job", default=False)


async def remember(request: Any, call: Call) -> Any:
    """Return the answer to a request: the stored one, or that of `call`, which is stored durably first.

    Outside of a job, or with ``--sample``, nothing is stored.

    Args:
        request: Everything that the answer depends on, such as model, prompt and temperature, as JSON. Requests with
            equal JSON share an answer; the order of keys does not matter.
        call: Async function that asks, with the request as its argument, or with none if it takes none. It returns the
            answer as JSON.

    Returns:
        The answer, as JSON holds it: a tuple becomes a list.

    Raises:
        FunctionError: Request or answer are not JSON, or the running function is not async. Also the errors of `call`.
    """
    key = blake2b(_json(request, "request", orjson.OPT_SORT_KEYS), digest_size=16).digest()

    async def asked() -> bytes:
        return _json(await (call(request) if _takes_request(call) else call()), "answer")

    answers = _current.get()
    if answers is None and _in_job.get():
        raise FunctionError("ledgerbeam.remember is for async functions of a job: write the function with `async def`")
    return orjson.loads(await (asked() if answers is None else answers.answer(key, asked)))


def _json(value: Any, what: str, option: int = 0) -> bytes:
    try:
        return orjson.dumps(value, option=option)
    except TypeError as error:
        raise FunctionError(f"ledgerbeam.remember: the {what} is not JSON ({error}); use texts and numbers") from None


def _takes_request(call: Call) -> bool:
    try:
        parameters = inspect.signature(call).parameters.values()
    except (TypeError, ValueError):
        return True
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return any(one.kind in kinds and one.default is one.empty for one in parameters)


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
