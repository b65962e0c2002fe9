"""User functions that hang, crash and exhaust memory, chosen by the record: ``{"do": "hang"}``."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow as pa

from ledgerbeam import Drop, Reject, Route, stats

MEMORY = 1 << 27  # limit of the address space that `Limited` adds to the memory of its process


def hostile(record: dict[str, Any]) -> Any:
    do = record.get("do")
    stats.count("calls")
    match do:
        case "hang":
            time.sleep(60)
        case "spin":
            while True:
                pass
        case "segfault":
            ctypes.string_at(0)
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "exit":
            os._exit(3)
        case "leave":
            sys.exit("bye")
        case "memory":
            raise MemoryError("no")
        case "eat":
            held = []
            while True:
                held.append(bytearray(16 << 20))
        case "raise":
            raise KeyError(record["id"])
        case "drop":
            return Drop("short")
        case "reject":
            return Reject("bad", "text")
        case "route":
            return Route("other", record)
        case "none":
            return None
        case "generator":
            return (one for one in [record])
        case "start":
            child = subprocess.Popen(["sleep", "60"])
            Path(record["pids"]).write_text(str(child.pid), encoding="utf-8")
            time.sleep(60)
        case "killed":
            if not os.path.exists(record["pids"]):
                Path(record["pids"]).touch()
                os.kill(os.getpid(), signal.SIGKILL)
        case "fork":
            if not os.fork():
                return record
    return {"id": record["id"]}


def keeping(record: dict[str, Any]) -> Any:
    made = hostile(record)
    return {**record, **made} if isinstance(made, dict) else made


def hostile_batch(records: list[dict[str, Any]]) -> list[Any]:
    return [hostile(record) for record in records]


def hostile_arrow(batch: pa.RecordBatch) -> pa.RecordBatch:
    for record in batch.to_pylist():
        hostile(record)
    return batch


class Built:
    """`hostile` in an object that writes a line when it is built, and one when it is closed."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._write("built")

    def __call__(self, record: dict[str, Any]) -> Any:
        return hostile(record)

    def close(self) -> None:
        self._write("closed")

    def _write(self, line: str) -> None:
        with open(self._path, "a", encoding="utf-8") as file:
            print(line, file=file)


class NotBuilt:
    def __init__(self) -> None:
        raise ValueError("no")

    def __call__(self, record: Any) -> Any: ...


class Crashing:
    def __init__(self) -> None:
        ctypes.string_at(0)

    def __call__(self, record: Any) -> Any: ...


class Limited:
    """`hostile` in a process of little memory."""

    def __init__(self) -> None:
        used = int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, resource.RLIM_INFINITY))

    def __call__(self, record: dict[str, Any]) -> Any:
        return hostile(record)


class Once:
    """A function that can be built once."""

    def __init__(self, folder: str) -> None:
        os.mkdir(f"{folder}/built")

    def __call__(self, record: dict[str, Any]) -> Any:
        return hostile(record)


class OnceBatch(Once):
    def __call__(self, records: Any) -> Any:
        return hostile_batch(records)
