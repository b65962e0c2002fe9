"""Batch endpoints of a provider: many requests in one file, answered within hours at a lower price."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from hashlib import blake2b
from itertools import count
from typing import Any

import orjson

from ledgerbeam._base.process import library_logger
from ledgerbeam.answers import Unavailable
from ledgerbeam.errors import FunctionError, LedgerbeamError, ServiceError
from ledgerbeam.llm.chat import Chat
from ledgerbeam.llm.service import RefusedError, TransientError
from ledgerbeam.results import Reject

_log = library_logger(__name__)

_QUIET_SECONDS = 1.0  # without another request, after which those that wait are sent
_MOST_EMPTY = 3  # batches in a row without an answer that was awaited
_PENDING = ("validating", "in_progress", "finalizing", "cancelling")
_ENDPOINT = "/v1/chat/completions"


class ChatBatches(Chat):
    """Asks for many records with the batch endpoints ``/files`` and ``/batches``. Needs ``--batch N``.

    The stored answers are those of `Chat`: the same requests share them. The ID of a batch is stored before its answers
    are awaited, so a new run waits for the same batch. Requests that expired are sent again, in another batch.

    Args:
        model: Name of the model.
        poll: Longest pause between two looks at a batch, in seconds.
        window: Time in which the provider answers.
        of_chat: The other parameters of `Chat`.
    """

    def __init__(self, model: str, *, poll: float = 60.0, window: str = "24h", **of_chat: Any) -> None:
        super().__init__(model, **of_chat)
        self.poll, self.window = poll, window

    async def __call__(self, records: Sequence[Any]) -> list[Any]:
        """Return the results for records, with a `Reject` for each record without a result."""
        if not isinstance(records, list):
            raise ServiceError("ChatBatches takes batches of records; add --batch N")
        sender = _BatchSender(self)
        results = [asyncio.ensure_future(self._one(record, sender)) for record in records]
        try:
            await sender.run(results)
            return [one.result() for one in results]
        finally:
            for one in results:
                one.cancel()

    async def _one(self, record: Any, sender: _BatchSender) -> Any:
        try:
            messages = self._prompt.messages(record)
            sender.expected.append(_id_of(self._request(messages)))
            answer = await self._asked(messages, sender.answer)
            return answer if isinstance(answer, Reject) else self.result(record, answer)
        except Exception as error:
            if isinstance(error, LedgerbeamError) and not isinstance(error, FunctionError):
                raise
            return Reject(type(error).__name__, str(error))  # of this record, not of the batch


class _BatchSender:
    """Sends the requests of one call that have no stored answers, in one batch or more."""

    def __init__(self, chat: ChatBatches) -> None:
        self.expected: list[str] = []  # IDs of the first requests for all records
        self._chat, self._service = chat, chat.service()
        self._waiting: dict[str, tuple[Mapping[str, Any], asyncio.Future[Any]]] = {}
        self._is_new = False  # whether this call created the last batch

    async def answer(self, request: Mapping[str, Any], body: Mapping[str, Any]) -> Any:
        """Return the stored answer of a request, or wait for that of a batch."""
        return await self._chat.remembered(request, partial(self._collected, _id_of(request), body))

    async def _collected(self, name: str, body: Mapping[str, Any]) -> Any:
        future = self._waiting.setdefault(name, (body, asyncio.get_running_loop().create_future()))[1]
        return self._chat.stored(await asyncio.shield(future))

    async def run(self, results: Sequence[asyncio.Future[Any]]) -> None:
        """Send batches until all results are there."""
        empty = 0
        for number in count():
            await self._quiet(results)
            if all(one.done() for one in results):
                return
            # The name does not depend on the answers that are stored, so that a new run finds the batch.
            answered = await self._send(_id_of([sorted(self.expected), number]))
            empty = 0 if answered or not self._is_new else empty + 1
            if empty >= _MOST_EMPTY:
                raise ServiceError(f"{self._service.url}: {empty} batches in a row expired without answers; run later")

    async def _quiet(self, results: Sequence[asyncio.Future[Any]]) -> None:
        """Wait until all requests without stored answers are there, or for some time no other came."""
        while left := [one for one in results if not one.done()]:
            waiting = len(self._waiting)
            if waiting < len(left):
                done, _ = await asyncio.wait(left, timeout=_QUIET_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            if waiting == len(left) or (waiting == len(self._waiting) > 0 and not done):
                return

    async def _send(self, name: str) -> int:
        """Send a batch, or find the one that was sent under this name. Return the number of its awaited answers."""
        self._is_new = False
        made = await self._chat.remembered({"batch": name}, partial(self._create, name))
        answered, batch = 0, await self._awaited(made["id"], _PENDING)
        for file in filter(None, (batch.get("output_file_id"), batch.get("error_file_id"))):
            for line in map(orjson.loads, (await self._again("send", f"/files/{file}/content")).splitlines()):
                answered += self._answered(line["custom_id"], line.get("response") or {})
        return answered

    def _answered(self, name: str, response: Mapping[str, Any]) -> bool:
        """Give a response to its request. Return whether it waits for no other one."""
        if name not in self._waiting or not response:  # without a response it expired
            return False
        try:
            self._service.check(response["status_code"], orjson.dumps(response["body"]))
            self._waiting.pop(name)[1].set_result(response["body"])
        except RefusedError as refused:
            self._waiting.pop(name)[1].set_exception(refused)
        except (TransientError, Unavailable):
            return False
        return True

    async def _create(self, name: str) -> dict[str, str]:
        """Create a batch, or find one that was created under this name just before a crash."""
        self._is_new = True
        recent = (await self._service.json("GET", "/batches", params={"limit": 100})).get("data", [])
        same = [one for one in recent if (one.get("metadata") or {}).get("ledgerbeam") == name]
        found = [one["id"] for one in same if one["status"] in (*_PENDING[:3], "completed")] or [
            await self._created(name)
        ]
        batch = await self._awaited(found[0], _PENDING[:1])
        said = f"{self._service.url}: batch {found[0]} failed: {orjson.dumps(batch.get('errors')).decode():.500}"
        if batch["status"] == "failed" and "token_limit_exceeded" in said:  # of all batches together
            raise Unavailable(said)
        if batch["status"] == "failed":
            raise ServiceError(f"{said}; correct the parameters")
        return {"id": found[0]}

    async def _created(self, name: str) -> Any:
        common = {"method": "POST", "url": _ENDPOINT}
        lines = [{"custom_id": one, **common, "body": body} for one, (body, _) in self._waiting.items()]
        content = b"".join(orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE) for line in lines)
        files = {"file": (f"{name}.jsonl", content, "application/jsonl")}
        file = await self._service.json("POST", "/files", data={"purpose": "batch"}, files=files)
        asked = {"endpoint": _ENDPOINT, "completion_window": self._chat.window, "metadata": {"ledgerbeam": name}}
        return (await self._service.json("POST", "/batches", json={"input_file_id": file["id"], **asked}))["id"]

    async def _awaited(self, batch: str, states: Sequence[str]) -> dict[str, Any]:
        """Return a batch once its status is none of these."""
        pause = min(1.0, self._chat.poll)
        while (found := await self._again("json", f"/batches/{batch}"))["status"] in states:
            await asyncio.sleep(pause)
            pause = min(2 * pause, self._chat.poll)
        return found

    async def _again(self, kind: str, path: str) -> Any:
        """Read from the service, until it succeeds."""
        while True:
            try:
                return await getattr(self._service, kind)("GET", path)
            except (TransientError, Unavailable) as error:
                _log.warning("%s; asking again", error)
                await asyncio.sleep(self._chat.poll)


def _id_of(request: Any) -> str:
    return blake2b(orjson.dumps(request, option=orjson.OPT_SORT_KEYS), digest_size=16).hexdigest()
