"""Answers of calls that leave the process: each is stored durably before it is used, and no call is paid twice.

    async def label(record):
        answer = await ledgerbeam.remember({"model": "m", "prompt": record["text"]}, ask)
        return {**record, "label": answer["label"]}

After a crash, the stored answers are used again. They are kept until their source is complete, with `answers=` longer.
"""

from __future__ import annotations

import inspect
import json
import math
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from contextvars import ContextVar
from hashlib import blake2b
from typing import Any, Protocol

import orjson

from ledgerbeam._base.lazy import asyncio
from ledgerbeam._base.process import library_logger
from ledgerbeam.errors import FunctionError

Call = Callable[..., Awaitable[Any]]

_FIRST_WAIT = 0.1  # of a refused call, in seconds: each wait is twice as long as the one before
_DOWN = 10  # refused calls without a success, after which the service counts as down
_FIRST_PAUSE, _MOST_PAUSE = 1.0, 60.0  # while the service is down, in seconds: each pause is twice as long
_WORTH_WORDS = 4.0  # shortest pause that is logged, in seconds
_LOOK_SECONDS = 1.0  # longest time between two checks whether a call may start

_log = library_logger(__name__)


class Unavailable(Exception):  # noqa: N818 - like `Drop` and `Reject`, it is not a mistake of the function
    """Raised by a call of `remember`: the service cannot answer now. The call is made again after a time.

    If many calls are refused, and none succeeds meanwhile, all calls of the worker wait.

    Args:
        reason: The answer of the service, or the error of the connection.
        retry_after: Time until the next call, in seconds. By default it grows from 0.1 seconds to a minute, and also if
            the given time is not positive or not finite.
    """

    def __init__(self, reason: str, retry_after: float | None = None) -> None:
        super().__init__(reason)
        seconds = math.nan if retry_after is None else float(retry_after)  # of a header it may be a text
        self.retry_after = seconds if 0 < seconds < math.inf else None


class Limits(Protocol):
    """Limits of the calls of a job."""

    def asked(self) -> None:
        """Record that a function has called `remember`."""

    def take(self, tokens: int | None) -> float:
        """Count a call if it may start now. Return 0 then, else the seconds after which to try again."""

    def give_back(self, tokens: int | None) -> None:
        """Give a call that the service has refused back to the budgets."""


class Gate:
    """Admission of the calls of a process: in order, within limits, and not while the service is down.

    A call that is refused is made again after a time. If no call has succeeded for many that were refused, the service
    is down: all calls pause, then one call tries the service, and the others start once it has answered.
    """

    def __init__(self, limits: Limits | None = None) -> None:
        self.limits = limits
        self._turn = asyncio.Lock()
        self._refused = 0  # calls since the last success
        self._pause = 0.0  # length of the last pause that the service did not set
        self._until = 0.0  # time of its end
        self._warned = -math.inf

    async def call(self, ask: Callable[[], Awaitable[bytes]], tokens: int | None) -> bytes:
        """Return the answer of a call, once it may start. If the service refuses it, call again."""
        wait = _FIRST_WAIT
        while True:
            async with AsyncExitStack() as turn:
                with waiting():
                    await turn.enter_async_context(self._turn)
                    await self._admitted(tokens)
                if not (tries := self._is_down):  # else no other call starts until this one has ended
                    await turn.aclose()
                try:
                    answer = await ask()
                    if tries or not self._is_down:  # else the call was in progress when the pause began
                        self._resume()
                    return answer
                except Unavailable as error:
                    if self.limits is not None:
                        self.limits.give_back(tokens)
                    refused = error
                self._refused += 1
                if self._is_down:
                    self._begin_pause(refused, is_new=tries or self._refused == _DOWN)
            with waiting():
                await asyncio.sleep(wait if refused.retry_after is None else refused.retry_after)
            wait = min(2 * wait, _MOST_PAUSE)

    @property
    def _is_down(self) -> bool:
        return self._refused >= _DOWN

    async def _admitted(self, tokens: int | None) -> None:
        while (wait := self._until - time.monotonic()) > 0 or (
            self.limits is not None and (wait := self.limits.take(tokens)) > 0
        ):
            await asyncio.sleep(min(wait, _LOOK_SECONDS))

    def _begin_pause(self, error: Unavailable, *, is_new: bool) -> None:
        now = time.monotonic()
        if is_new:
            self._pause = min(max(2 * self._pause, _FIRST_PAUSE), _MOST_PAUSE)
        self._until = max(self._until, now + (self._pause if error.retry_after is None else error.retry_after))
        if self._until - now >= _WORTH_WORDS and now >= self._warned + _MOST_PAUSE:
            self._warned = now
            seconds = f"{self._until - now:.0f} s"
            _log.warning("the service is not available (%s): calls wait, and the next one is in %s", error, seconds)

    def _resume(self) -> None:
        if self._warned > -math.inf:
            _log.warning("the service answers again")
        self._refused, self._pause, self._warned = 0, 0.0, -math.inf


class Waits:
    """The time that a call of a function has waited for its turn to ask, or for stored answers."""

    def __init__(self) -> None:
        self._open = 0  # waits: a function may wait for several answers at once
        self._since = 0.0
        self._seconds = 0.0

    def seconds(self) -> float:
        """Return the time so far."""
        return self._seconds + (time.monotonic() - self._since if self._open else 0.0)

    def change(self, waits: int) -> None:
        """Begin a wait (1), or end one (-1)."""
        self._seconds, self._since = self.seconds(), time.monotonic()
        self._open += waits


class Answers(Protocol):
    """The stored answers of a task."""

    async def answer(self, key: bytes, call: Callable[[], Awaitable[bytes]], tokens: int | None) -> bytes:
        """Return the stored answer of a request; without one, call, and return the answer once it is durable."""


_current: ContextVar[Answers | None] = ContextVar("ledgerbeam.answers", default=None)
_waits: ContextVar[Waits | None] = ContextVar("ledgerbeam.answers.waits", default=None)
_in_job: ContextVar[bool] = ContextVar("ledgerbeam.answers.job", default=False)


async def remember(request: Any, call: Call, *, tokens: int | None = None) -> Any:
    """Return the answer to a request: the stored one, or that of `call`, which is stored durably first.

    Outside of a job, nothing is stored.

    Args:
        request: Everything that the answer depends on, such as model, prompt and temperature, as JSON. Requests with
            equal JSON share an answer; the order of keys does not matter.
        call: Async function that asks, with the request as its argument, or with none if it takes none. It returns the
            answer as JSON. It may raise `Unavailable`.
        tokens: Most tokens of the request and its answer. Limits in tokens count them, and then they are required.

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
                f"ledgerbeam.remember: expected an async function for the call, which returned {type(asking).__name__}"
            )
        return _json(await asking, "answer")

    answers = _current.get()
    if answers is None and _in_job.get():
        raise FunctionError(
            "ledgerbeam.remember: expected to be awaited by an async function for a record, not by another function or "
            "its set-up; write the function with `async def`"
        )
    return orjson.loads(await (Gate().call(asked, tokens) if answers is None else answers.answer(key, asked, tokens)))


def _json(value: Any, what: str, option: int = 0) -> bytes:
    try:
        data = orjson.dumps(value, option=option)
        if b"null" in data:
            json.dumps(value, allow_nan=False)  # in `data`, NaN and infinities are null
    except (TypeError, ValueError) as error:
        raise FunctionError(
            f"ledgerbeam.remember: the {what} is not JSON ({error}); use lists, dicts, texts, finite numbers"
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
def answering(answers: Answers | None, waits: Waits | None = None) -> Iterator[None]:
    """Let `remember` in the body use these answers. `waits` measures how long it waits."""
    tokens = _current.set(answers), _waits.set(waits)
    try:
        yield
    finally:
        _current.reset(tokens[0])
        _waits.reset(tokens[1])


@contextmanager
def waiting() -> Iterator[None]:
    """Measure the body as a wait of the running function."""
    waits = _waits.get() or Waits()
    waits.change(1)
    try:
        yield
    finally:
        waits.change(-1)


@contextmanager
def in_job() -> Iterator[None]:
    """Let `remember` in the body refuse to answer without stored answers."""
    token = _in_job.set(True)
    try:
        yield
    finally:
        _in_job.reset(token)
