"""The fork server of `isolation`, and the child that calls the user's object.

Command: ``python -m ledgerbeam.transforms.mapping.isolation_server SOCKET LOADS``, with the descriptor of the socket
for requests. If LOADS is 1, the server imports the user's modules, so that a new child has them at once. A module may
have started threads or opened a GPU at its import, which a forked process cannot use. Then the server exits with the
status `NOT_FORKABLE`, and the next server leaves the import to the child.

The server runs in a session of its own. It dies with the worker, and kills the process groups of its children then.
"""

from __future__ import annotations

import gc
import mmap
import os
import pickle
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Never

from ledgerbeam import errors, stats
from ledgerbeam._base.forking import ForkServer
from ledgerbeam._base.process import hold_standard_descriptors, show_log
from ledgerbeam._base.redaction import redact_streams, register_texts
from ledgerbeam.errors import FunctionError, LedgerbeamError, RecordError
from ledgerbeam.transforms.mapping.isolation import (
    IDLE,
    NOT_FORKABLE,
    WINDOW_BYTES,
    UnsentError,
    receive,
    send,
    unsent,
)
from ledgerbeam.transforms.mapping.stages import CallStage, HostedFunctions
from ledgerbeam.user_code.guards import (
    ReportedError,
    children,
    describe_error,
    end_child,
    error_name,
    ignore_interrupt,
    is_break,
    message_of,
    raised_at,
    running_user_code,
)
from ledgerbeam.user_code.objects import ReadyObject, close_objects

_NOTHING = pickle.dumps(None)
SEND_SECONDS = 0.02  # longest time for which a finished result waits for others before it is sent


def main(argv: Sequence[str]) -> Never:
    """Fork children until the worker ends."""
    hold_standard_descriptors()
    listener, loads = argv
    signal.signal(signal.SIGINT, ignore_interrupt)  # the worker handles the interrupt and ends this process
    _Children(socket.socket(fileno=int(listener)), loads=loads == "1").serve(lifeline=0)


class _Children(ForkServer):
    name = "ledgerbeam-isol"
    leads = True

    def __init__(self, listener: socket.socket, *, loads: bool) -> None:
        super().__init__(listener)
        self._loads = loads
        self._code: bytes | None = None  # None before the first request; all requests are equal

    def accepted(self, request: bytes) -> None:
        if self._code is not None:
            return
        path, level, texts, self._code = pickle.loads(request)  # noqa: S301 - of the worker, see `ForkServer`
        sys.path[:] = path
        output: Any = sys.stdout
        output.reconfigure(line_buffering=True)  # a killed child flushes nothing
        with suppress(KeyError):  # a level of the program's own
            show_log(level)
        register_texts(texts)
        redact_streams()
        if self._loads:
            with suppress(BaseException):  # the child loads the code again, and reports the error
                self._hosted().load()
            if not _is_forkable():
                os._exit(NOT_FORKABLE)
            gc.freeze()

    def work(self, request: bytes, descriptors: list[int]) -> int:  # noqa: ARG002 - see `accepted`
        connection, memory = descriptors
        with open("/proc/self/oom_score_adj", "w", encoding="ascii") as score:
            score.write("1000")  # if memory is exhausted, the kernel kills this process, and not the worker
        slots: Any = memoryview(mmap.mmap(memory, mmap.PAGESIZE)).cast("d")
        os.close(memory)
        with socket.socket(fileno=connection) as worker:
            hosted = self._hosted()
            try:
                with running_user_code():
                    if numpy := sys.modules.get("numpy"):
                        numpy.random.seed(None)  # otherwise all children would draw the same numbers
                    ready = hosted.build()
            except BaseException as error:  # noqa: BLE001 - reported
                kind: Any = type(error) if type(error).__module__ == errors.__name__ else FunctionError
                _send(worker, kind(message_of(error) if isinstance(error, LedgerbeamError) else describe_error(error)))
            else:
                _send(worker, tuple((one.depends_on_batches, one.is_async) for one in ready))
                with running_user_code(), suppress(EOFError):  # the worker has closed the connection
                    _HostedCalls(worker, slots, hosted, ready).run()
        close_objects()
        return 0

    def _hosted(self) -> HostedFunctions:
        hosted: HostedFunctions = pickle.loads(self._code or b"")  # noqa: S301 - see `accepted`
        return hosted


def _is_forkable() -> bool:
    """Return whether a forked process can use the imported modules: they have no threads and no GPU."""
    if threading.active_count() > 1:
        return False
    for descriptor in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            if os.readlink(f"/proc/self/fd/{descriptor}").startswith(("/dev/nvidia", "/dev/kfd")):
                return False
    return True


class _HostedCalls:
    """The calls of the functions with the values that the worker sends."""

    def __init__(
        self, worker: socket.socket, slots: Any, hosted: HostedFunctions, ready: Sequence[ReadyObject]
    ) -> None:
        self._worker = worker
        self._slots = slots
        self._hosted = hosted
        self._ready = ready if len(ready) == 1 else [*map(self._noted, range(len(ready)), ready)]
        self._cpu = time.process_time()
        self._clear(0.0)

    def _clear(self, now: float) -> None:
        self._results: list[bytes] = []
        self._others: dict[int, tuple[Any, Any]] = {}  # error and statistics of a call, by the number of the result
        self._size = 0
        self._sent = now

    def run(self) -> Never:
        """Map windows of values. EOFError: the worker has closed the connection."""
        names, stage, values = receive(self._worker)
        while True:
            with stats.collecting(into=stats.Observing(self._hosted.labels, names or ())) as collected:
                stages, names = self._hosted.stages(self._ready, collected), None
                while names is None:  # of the same task
                    self._map(collected, stages[stage], values)
                    names, stage, values = receive(self._worker)

    def _noted(self, number: int, ready: ReadyObject) -> ReadyObject:
        """Return an object of several ones that notes its number in the shared memory before a call."""
        slots, call = self._slots, ready.call

        def called(value: Any) -> Any:
            slots[2] = number
            try:
                return call(value)
            except MemoryError as error:
                self._end_short(error)

        return replace(ready, call=called)

    def _map(self, collected: Any, stage: CallStage, values: Sequence[bytes]) -> None:
        slots, now, results = self._slots, time.monotonic, self._results
        call, running = stage.call, stage.running
        self._sent = now()
        for number, value in enumerate(values):
            slots[1] = began = now()
            slots[0] = number
            if began - self._sent > SEND_SECONDS or self._size > WINDOW_BYTES:
                self._flush(began)
                results = self._results
            collected.running = running
            try:
                result = call(pickle.loads(value))  # noqa: S301 - of the worker
                if children:
                    end_child()
                results.append(self._pickled(result))
            except BaseException as error:  # noqa: BLE001 - reported
                if children:
                    end_child()
                self._note(error)
            if collected.observations:
                place = len(results) - 1
                self._others[place] = self._others.get(place, (None,))[0], collected.observations
                collected.observations = []
            self._size += len(results[-1])
        slots[1] = ended = now()
        slots[0] = IDLE
        self._flush(ended)

    def _pickled(self, result: Any) -> bytes:
        """Pickle a result at once: the next call may change it."""
        try:
            return pickle.dumps(result, pickle.HIGHEST_PROTOCOL)
        except MemoryError:
            raise
        except BaseException as error:
            what = f"{self._hosted.names[int(self._slots[2])]} returned a {type(result).__name__}"
            raise unsent(f"{what} that cannot be sent to the worker", error) from error

    def _note(self, error: BaseException) -> None:
        """Note the error of a call in the place of its result."""
        kind: Any = type(error)
        if issubclass(kind, MemoryError):
            self._end_short(error)
        message = message_of(error)
        if kind in (FunctionError, RecordError, UnsentError):
            sent: Exception = kind(message)
        else:
            described = describe_error(error), raised_at(error), is_break(error)
            sent = ReportedError(error_name(error), message, *described)
        self._others[len(self._results)] = sent, ()
        self._results.append(_NOTHING)

    def _end_short(self, error: BaseException) -> Never:
        """End this process after a MemoryError: the next call would suffer from this one."""
        traceback.clear_frames(error.__traceback__)  # frees the memory that the call has allocated
        self._flush(0.0, message_of(error))
        os._exit(0)

    def _flush(self, now: float, memory: str | None = None) -> None:
        """Send the finished results. `memory` is the text of a MemoryError in the next call."""
        cpu = time.process_time()
        _send(self._worker, (self._results, self._others, memory, cpu - self._cpu))
        self._cpu = cpu
        self._clear(now)


def _send(worker: socket.socket, message: Any) -> None:
    with suppress(OSError):  # the worker has died, or has closed the connection
        send(worker, message)


if __name__ == "__main__":
    main(sys.argv[1:])
