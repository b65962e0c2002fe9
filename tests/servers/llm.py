"""An OpenAI-compatible service on loopback, with faults as wanted, and a log of requests with their times.

It answers `/v1/chat/completions`, `/v1/files` and `/v1/batches` in one thread, some thousand requests a second.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

KEY = "sk-loopbackKeyOfTheTests0123456789"


class Request(NamedTuple):
    """A request, when it was complete, and what it was answered."""

    seconds: float  # of the monotonic clock
    method: str
    path: str
    body: Any  # of JSON
    status: int  # 0 if the connection was reset
    key: str


def labelled(body: Mapping[str, Any]) -> str:
    """Return a label that is another one each time."""
    return json.dumps({"label": random.choice(["good", "bad"]), "chance": random.random()})


@dataclass
class LoopbackService:
    """What the service answers, and what it was asked.

    Attributes:
        seconds: Time of an answer.
        content: Returns the text of an answer, from the body of the request; or the message, or the whole choice.
        faults: Share of requests by fault: `reset`, a status such as `503`, `refusal`, `invalid`, `length`.
        fault: Returns the fault of a request, from its number and body; None for that of `faults`.
        retry_after: Headers of 429 and 503.
        errors: Body of the response by status, for errors.
        limit: Most requests per second; then 429. None for any number.
        log: The requests, in order.
        most: Largest number of requests that were in work at once.
        lost: Methods and paths, as `POST /v1/batches`, whose next response is lost: the connection is reset.
        batch_seconds: Time of a batch.
        batch_errors: Codes of errors of the next batches, which fail.
        expires: Returns whether a request of a batch expires.
    """

    seconds: float = 0.0
    content: Callable[[Mapping[str, Any]], Any] = labelled
    faults: Mapping[str, float] = field(default_factory=dict)
    fault: Callable[[int, Mapping[str, Any]], str | None] = lambda number, body: None
    retry_after: Mapping[str, str] = field(default_factory=dict)
    errors: dict[int, Mapping[str, Any]] = field(default_factory=dict)
    limit: int | None = None
    lost: list[str] = field(default_factory=list)
    batch_seconds: float = 0.0
    batch_errors: list[str] = field(default_factory=list)
    expires: Callable[[Mapping[str, Any]], bool] = lambda body: False
    log: list[Request] = field(default_factory=list)
    most: int = 0
    files: dict[str, bytes] = field(default_factory=dict)
    batches: dict[str, dict[str, Any]] = field(default_factory=dict)
    port: int = 0
    running: int = 0
    connections: set[Any] = field(default_factory=set)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def asked(self) -> list[Any]:
        """Return the bodies of the requests for answers that were given, in order; those of batches too."""
        online = [one.body for one in self.log if one.path == "/v1/chat/completions" and one.status == 200]
        return online + [line["body"] for batch in self.batches.values() for line in self._lines(batch)]

    def prompts(self) -> list[str]:
        """Return the last message of each request that was answered."""
        return [body["messages"][-1]["content"] for body in self.asked()]

    def respond(self, method: str, path: str, data: bytes) -> tuple[int, Mapping[str, str], bytes, Any]:
        """Return status, headers and body of a response, and the body of the request; status 0 resets."""
        if method == "POST" and path == "/v1/files":
            name = f"file-{len(self.files)}"
            self.files[name] = re.split(rb"\r\n\r\n", data.split(b'name="file"')[1], maxsplit=1)[1].rsplit(
                b"\r\n--", 2
            )[0]
            return _json({"id": name})
        if (found := re.fullmatch(r"/v1/files/(.+)/content", path)) is not None:
            return 200, {}, self.files[found[1]], None
        if path.startswith("/v1/batches"):
            return self._of_batches(method, path.partition("?")[0], data)
        if path == "/v1/models":
            return _json({"object": "list", "data": [{"id": "m", "object": "model"}]})
        if path != "/v1/chat/completions":
            return _json({"error": {"message": f"no such path: {path}"}}, 404)
        body = json.loads(data)
        status, headers, answer = self._answer(body)
        return status, headers, json.dumps(answer).encode(), body

    def _answer(self, body: Mapping[str, Any]) -> tuple[int, Mapping[str, str], Any]:
        now = time.monotonic()
        if self.limit is not None:
            recent = 0
            for one in reversed(self.log):
                if one.seconds <= now - 1 or recent >= self.limit:
                    break
                recent += one.status == 200
            if recent >= self.limit:
                return 429, self.retry_after, {"error": {"message": "too many requests"}}
        fault = self.fault(len(self.log), body) or self._by_chance()
        if fault == "reset":
            return 0, {}, None
        if fault is not None and fault.isdecimal():
            status = int(fault)
            headers = self.retry_after if status in (429, 503) else {}
            return status, headers, self.errors.get(status, {"error": {"message": f"fault {fault}", "param": None}})
        content = self.content(body)
        choice: dict[str, Any] = {"index": 0, "finish_reason": "stop"}
        if isinstance(content, Mapping) and "message" in content:
            choice |= content
        else:
            choice["message"] = content if isinstance(content, Mapping) else {"role": "assistant", "content": content}
        if fault == "refusal":
            choice["message"] = {"role": "assistant", "content": None, "refusal": "I cannot help with that."}
        elif fault == "invalid":
            choice["message"] = {"role": "assistant", "content": '{"label": '}
        elif fault == "length":
            choice["finish_reason"] = "length"
        usage = {"prompt_tokens": 10, "completion_tokens": 3, "total_tokens": 13}
        return 200, {}, {"id": f"c-{len(self.log)}", "model": body["model"], "choices": [choice], "usage": usage}

    def _by_chance(self) -> str | None:
        chance = random.random() if self.faults else 0.0
        for name, share in self.faults.items():
            chance -= share
            if chance < 0:
                return name
        return None

    def _of_batches(self, method: str, path: str, data: bytes) -> tuple[int, Mapping[str, str], bytes, Any]:
        if method == "POST":
            body = json.loads(data)
            name = f"batch-{len(self.batches)}"
            until = time.monotonic() + self.batch_seconds
            self.batches[name] = {"id": name, "status": "validating", "until": until, **body}
            return _json(self.batches[name], body=body)
        if path == "/v1/batches":
            return _json({"data": [*map(self._seen, reversed(self.batches))]})
        name = path.rpartition("/")[2]
        return _json(self._seen(name)) if name in self.batches else _json({"error": {"message": "no such batch"}}, 404)

    def _seen(self, name: str) -> dict[str, Any]:
        """Return a batch as it is now."""
        batch = self.batches[name]
        if batch["status"] == "validating" and self.batch_errors:
            errors = {"data": [{"code": self.batch_errors.pop(), "message": "this batch cannot run"}]}
            batch |= {"status": "failed", "errors": errors}
        elif batch["status"] == "validating":
            batch["status"] = "in_progress"
        elif batch["status"] == "in_progress" and time.monotonic() >= batch["until"]:
            self._complete(batch)
        return batch

    def _lines(self, batch: Mapping[str, Any]) -> list[Any]:
        return [json.loads(line) for line in self.files[batch["input_file_id"]].splitlines()]

    def _complete(self, batch: dict[str, Any]) -> None:
        outputs: dict[str, list[Any]] = {"output_file_id": [], "error_file_id": []}
        for line in random.sample(lines := self._lines(batch), len(lines)):
            common = {"id": "r", "custom_id": line["custom_id"]}
            if self.expires(line["body"]):
                error = {"code": "batch_expired", "message": "not executed before it expired"}
                outputs["error_file_id"].append({**common, "response": None, "error": error})
                continue
            status, _, answer = self._answer(line["body"])
            kind = "output_file_id" if status == 200 else "error_file_id"
            outputs[kind].append({**common, "response": {"status_code": status, "body": answer}, "error": None})
        for kind, answers in outputs.items():
            if answers:
                batch[kind] = f"file-{len(self.files)}"
                self.files[batch[kind]] = "".join(json.dumps(one) + "\n" for one in answers).encode()
        batch["status"] = "expired" if any(one["response"] is None for one in outputs["error_file_id"]) else "completed"


def _json(
    answer: Any, status: int = 200, headers: Mapping[str, str] | None = None, body: Any = None
) -> tuple[int, Mapping[str, str], bytes, Any]:
    return status, headers or {}, json.dumps(answer).encode(), body


class _Connection(asyncio.Protocol):
    def __init__(self, service: LoopbackService) -> None:
        self._service, self._data = service, b""

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self._service.connections.add(transport)

    def connection_lost(self, error: Exception | None) -> None:
        self._service.connections.discard(self._transport)

    def data_received(self, data: bytes) -> None:
        self._data += data
        head, end, rest = self._data.partition(b"\r\n\r\n")
        length = re.search(rb"content-length: *(\d+)", head, re.IGNORECASE)
        size = int(length[1]) if length else 0
        if not end or len(rest) < size:
            return
        self._data = rest[size:]
        method, path, _ = head.split(b"\r\n", 1)[0].decode().split(" ")
        found = re.search(rb"authorization: *bearer ([^\r]*)", head, re.IGNORECASE)
        service = self._service
        status, headers, answer, body = service.respond(method, path, rest[:size])
        if f"{method} {path}" in service.lost:
            service.lost.remove(f"{method} {path}")
            status = 0
        service.log.append(Request(time.monotonic(), method, path, body, status, found[1].decode() if found else ""))
        service.running += 1
        service.most = max(service.most, service.running)
        ends = re.search(rb"connection: *close", head, re.IGNORECASE) is not None
        asyncio.get_running_loop().call_later(service.seconds, self._end, status, headers, answer, ends)

    def _end(self, status: int, headers: Mapping[str, str], answer: bytes, ends: bool) -> None:
        self._service.running -= 1
        if not status:
            self._transport.abort()
            return
        more = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        self._transport.write(f"HTTP/1.1 {status} x\r\ncontent-length: {len(answer)}\r\n{more}\r\n".encode() + answer)
        if ends:
            self._transport.close()


@contextmanager
def loopback_service(**settings: Any) -> Iterator[LoopbackService]:
    """Serve in a thread until the body ends."""
    service, loop, ready = LoopbackService(**settings), asyncio.new_event_loop(), threading.Event()

    async def serve() -> None:
        server = await asyncio.get_running_loop().create_server(lambda: _Connection(service), "127.0.0.1", service.port)
        service.port = server.sockets[0].getsockname()[1]
        ready.set()
        try:
            await asyncio.Event().wait()
        finally:
            server.close()
            for connection in [*service.connections]:
                connection.abort()
            await asyncio.sleep(0)

    serving = loop.create_task(serve())

    def run() -> None:
        loop.run_until_complete(asyncio.wait([serving]))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    ready.wait()
    try:
        yield service
    finally:
        loop.call_soon_threadsafe(serving.cancel)
        thread.join()
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()
