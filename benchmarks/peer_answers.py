"""The side of datatrove in the table `answers`. It runs in the peers' environment."""

from __future__ import annotations

import asyncio
import importlib
import random
import time
from itertools import islice
from typing import Any

from benchmarks.serve import serve

IN_FLIGHT = 256


def store(folder: str, count: int) -> list[float]:
    """Store answers in datatrove's request cache, and look them up. Return the seconds of both.

    A request takes the place of another one as soon as its answer is queued. `flush` waits for the commits.
    """
    text = " ".join(f"{number:x}" for number in random.Random(1).sample(range(10**6), 100_000))

    def answer_of(number: int) -> dict[str, Any]:
        chosen = random.Random(number)
        start = chosen.randrange(len(text) // 2)
        return {"text": text[start : start + int(200 * 10 ** chosen.random())]}

    def request_of(number: int) -> dict[str, Any]:
        return {"model": "m1", "temperature": 0, "prompt": f"Rate the page with the number {number}."}

    async def work() -> list[float]:
        made: Any = importlib.import_module("datatrove.pipeline.inference.checkpointing").RequestCache(folder)
        await made.initialize(0)
        began = time.perf_counter()
        numbers = iter(range(count))
        while some := [*islice(numbers, IN_FLIGHT)]:
            for number in some:
                key = made.prepare_payload(request_of(number))
                await made.store_result(0, str(number), 0, answer_of(number), payload_hash=key)
        await made.flush()
        stored = time.perf_counter()
        await made.close()
        await made.initialize(0)
        for number in range(count):
            key = made.prepare_payload(request_of(number))
            found, _ = await made.get_cached_response(str(number), 0, payload_hash=key)
            if found is None:
                raise RuntimeError(f"the answer {number} was not found")
        seconds = [stored - began, time.perf_counter() - stored]
        await made.close(delete_file=True)
        return seconds

    return asyncio.run(work())


if __name__ == "__main__":
    serve({"store": store})
