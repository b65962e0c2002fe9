"""Calls of user code in a child process: a record that hangs, crashes or exhausts memory ends only this process.

Each worker has a server (`isolation_server`): a fresh interpreter that imports the user's modules. It forks the child,
which builds the user's object. The worker sends windows of values, and the child returns a result or an error for each.

Before each call the child writes the number of the value and the time to shared memory. So the worker knows at once
which value a child was working on when it died, or took too long. It kills the process group of a child that hangs,
starts the next child, and continues after this value. A value that ends a child is tried again as the first one of
a new child. So its outcome does not depend on earlier values, or on a signal from outside.
"""

from __future__ import annotations

import copyreg
import logging
import math
import mmap
import os
import pickle
import re
import select
import signal
import socket
import struct
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple, Never

import orjson

from ledgerbeam import stats
from ledgerbeam._base.forking import ServerProcess
from ledgerbeam._base.redaction import registered_texts
from ledgerbeam.errors import FunctionError, LedgerbeamError
from ledgerbeam.ledger.worker.reports import add_cpu_time
from ledgerbeam.transforms.mapping.outcomes import OUT_OF_MEMORY, TIMEOUT, ChildFailedError, memory_text
from ledgerbeam.transforms.mapping.stages import HostedFunctions
from ledgerbeam.user_code.guards import ReportedError, error_name, message_of
from ledgerbeam.user_code.objects import CLOSE_SECONDS, ReadyObject, note_set_up, open_object

# A window ends at any of these limits. A larger window takes less time for messages. If a child dies, the results of
# its window that it has not sent are computed again.
WINDOW_BYTES = 256 << 10
WINDOW_VALUES = 4096
WINDOW_SECONDS = 0.05

_DEATHS_OUTSIDE = 3  # deaths by a signal that probably came from outside, after which the value is the cause
_OUTSIDE = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_SERVER_SECONDS = 1.0  # longest wait for the end of a server that has closed its connections, in seconds
_AT_ONCE = 0.001
_MOST_IDLE_DEATHS = 5  # consecutive deaths of children that were not working on a value, after which the job ends

NOT_FORKABLE = 77  # exit status of a server that must not import the user's modules, see `isolation_server`

_HEAD = struct.Struct("<Q")  # length of a message, which is pickled. Values in it are pickled each by itself
# The shared memory has three numbers of 8 bytes: the value in work, or `IDLE`; the time at which its call was started;
# and the number of the function.
IDLE = -1.0


copyreg.pickle(orjson.Fragment, lambda fragment: (orjson.Fragment, (orjson.dumps(fragment),)))


class UnsentError(FunctionError):
    """A value or a result that cannot be sent to another process."""


def unsent(what: str, error: BaseException, remedy: str = "return plain values, or leave") -> UnsentError:
    """Return the error for a value or a result that cannot be sent."""
    return UnsentError(f"{what} ({error_name(error)}: {message_of(error)}); {remedy} --record-timeout out")


def send(connection: socket.socket, message: Any) -> None:
    """Send a message to another process."""
    data = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
    connection.sendall(_HEAD.pack(len(data)) + data)


def receive(connection: socket.socket, wait: Callable[[], None] = lambda: None) -> Any:
    """Return the next message. `wait` is called before each read. EOFError: the other process closed the connection."""
    (length,) = _HEAD.unpack(_exactly(connection, _HEAD.size, wait))
    return pickle.loads(_exactly(connection, length, wait))  # noqa: S301 - of the worker, or its child


def _exactly(connection: socket.socket, length: int, wait: Callable[[], None]) -> memoryview:
    view, got = memoryview(bytearray(length)), 0
    while got < length:
        wait()
        try:
            count = connection.recv_into(view[got:])
        except OSError:  # the other process has ended without reading all data
            count = 0
        if not count:
            raise EOFError
        got += count
    return view


class _Other(NamedTuple):
    """The outcome of a call that is not only a result: it has raised, or has observed statistics."""

    value: Any
    error: BaseException | None = None
    observed: Sequence[stats.Observation] = ()


@dataclass(eq=False)
class _ChildEndedError(Exception):
    """The child has ended, or was killed because a value took too long."""

    reason: str
    text: str  # continues the name of the function in a message
    number: int | None  # position in the window of the value in work; None if there was none
    function: int  # number of the function that was called with it
    is_outside: bool = False  # whether the child probably died by a signal from outside


class IsolatedCalls:
    """The functions of a job in a child process. One thread at a time may use them.

    Args:
        hosted: The functions.
        seconds: Longest time of a call; None for no limit. The set-up has no limit.
    """

    def __init__(self, hosted: HostedFunctions, seconds: float | None = None) -> None:
        self._hosted = hosted
        self._seconds = seconds
        self._server: ServerProcess | None = None
        self._child: _Child | None = None
        self._loads = True  # whether the server imports the modules
        self._facts: Sequence[tuple[bool, bool]] = ()  # of each function, see `set_up`
        self._unsent = 0  # number of values and results that could not be sent
        self._values = 1  # maximum number of values of the next window

    def set_up(self) -> tuple[ReadyObject, ...]:
        """Start a child, and return an object for each function, which can only be called through `ahead`.

        Raises the error of the import or of the constructor; FunctionError if the child dies in it.
        """
        self._ready()
        lock = threading.Lock()
        return tuple(ReadyObject(_only_ahead, lock, *facts) for facts in self._facts)

    def ahead(self, values: Iterable[Any], stage: int = 0) -> Callable[[Any], Any]:
        """Return a function that is to be called with each of `values`, in order, and maps windows of them ahead.

        It calls the stage with this number. It returns the result for a value, or raises the error of its call:
        `ReportedError`, FunctionError or RecordError. A `ReportedError` with `has_ended` says that the call ended the
        child.
        """
        found = self._outcomes(iter(values), stage)

        def call(_: Any) -> Any:
            outcome = next(found)
            if type(outcome) is not _Other:
                return outcome
            if outcome.observed:
                stats.replay(outcome.observed)
            if outcome.error is not None:
                if type(outcome.error) is UnsentError:
                    self._unsent += 1
                    raise FunctionError(message_of(outcome.error))
                raise outcome.error
            return outcome.value

        return call

    def take_unsent(self) -> int:
        """Return the number of values and results since the last call that could not be sent. Each was an error."""
        unsent, self._unsent = self._unsent, 0
        return unsent

    def close(self) -> None:
        """Let the child close the user's object, and end all processes. A later call starts them again."""
        child, self._child = self._child, None
        if child is not None:
            child.close()
        if self._server is not None:
            self._server.end()
            self._server = None

    def _outcomes(self, values: Iterator[Any], stage: int) -> Iterator[Any]:
        window: list[bytes | _Other] = []
        while True:
            size = 0
            for value in islice(values, self._values):
                window.append(packed := self._packed(value))
                size += len(packed)
                if size >= WINDOW_BYTES:
                    break
            if not window:
                return
            began = time.monotonic()
            yield from self._map(window, stage)
            each = (time.monotonic() - began) / len(window)
            most = min(2 * self._values, WINDOW_VALUES)
            self._values = min(most, max(1, int(WINDOW_SECONDS / each))) if each else most
            window = []

    def _packed(self, value: Any) -> bytes | _Other:
        try:
            return pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
        except Exception as error:  # noqa: BLE001 - a type of another package may raise anything
            what = f"{self._name}: a {type(value).__name__} cannot be sent to the process of the function"
            return _Other(None, unsent(what, error, "leave"))

    def _map(self, window: Sequence[bytes | _Other], stage: int) -> list[Any]:
        """Return the outcomes for the values of a window, which are computed in as many children as it takes."""
        outcomes: dict[int, Any] = {number: one for number, one in enumerate(window) if type(one) is _Other}
        deaths = Counter[int | None]()
        suspect: int | None = None  # a value that has ended a child, and is to be the first one of the next
        try:
            while left := [number for number in range(len(window)) if number not in outcomes]:
                child, part = self._restarted(), left if suspect is None else [suspect]
                suspect, is_first, got = None, child.is_fresh, 0
                try:
                    for found in child.map([window[number] for number in part], stage):
                        outcomes.update(zip(part[got : got + len(found)], found, strict=True))
                        got += len(found)
                except _ChildEndedError as ended:
                    self._drop()
                    suspect = None if ended.number is None else part[ended.number]
                    deaths[suspect] += 1
                    if self._is_cause(ended, deaths[suspect], is_first=is_first):
                        if suspect is None:
                            raise ChildFailedError(f"{self._name} {ended.text}") from None
                        outcomes[suspect] = _Other(None, self._error(ended))
                        suspect = None
        except BaseException:  # such as an interrupt
            self._drop()
            raise
        return [outcomes[number] for number in range(len(window))]

    def _restarted(self) -> _Child:
        try:
            return self._ready()
        except LedgerbeamError as error:
            raise ChildFailedError(message_of(error)) from error

    def _is_cause(self, ended: _ChildEndedError, deaths: int, *, is_first: bool) -> bool:
        """Return whether the value in work has caused the end, or without one, whether to stop trying."""
        if ended.number is None:
            return deaths == _MOST_IDLE_DEATHS
        if ended.reason == TIMEOUT:
            return True
        return is_first and ended.number == 0 and deaths >= (_DEATHS_OUTSIDE if ended.is_outside else 1)

    def _error(self, ended: _ChildEndedError) -> ReportedError:
        name = self._hosted.names[ended.function]
        return ReportedError(ended.reason, f"{name} {ended.text}", has_ended=True, function=ended.function)

    @property
    def _name(self) -> str:
        return ", ".join(self._hosted.names)

    def _drop(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            child.kill()

    def _ready(self) -> _Child:
        """Return the child, which is started if there is none."""
        if self._child is None:
            started = time.monotonic()
            self._child, self._facts = self._start()
            note_set_up(time.monotonic() - started)
        return self._child

    def _start(self) -> tuple[_Child, Sequence[tuple[bool, bool]]]:
        """Start a child, and wait for its set-up. Return it, and the facts of each `ReadyObject`."""
        deaths_outside = 0
        while True:
            server = self._running_server()
            child = _Child(server, self._hosted, self._seconds)
            try:
                return child, child.set_up()
            except _ChildEndedError as ended:
                child.kill()
                if child.server_status == NOT_FORKABLE and self._loads:
                    self._loads = False
                    continue
                deaths_outside += ended.is_outside
                if 0 < deaths_outside < _DEATHS_OUTSIDE:
                    continue
                raise FunctionError(
                    f"{self._name} {ended.text} during its set-up: each worker process imports its module and builds "
                    "one object first; correct the module or the constructor"
                ) from None
            except BaseException:
                child.kill()
                raise

    def _running_server(self) -> ServerProcess:
        if self._server is not None and not self._server.lives:
            self._server.end()
            self._server = None
        elif self._server is None:
            open_object(self._name, self)
        if self._server is None:
            self._server = ServerProcess("ledgerbeam.transforms.mapping.isolation_server", [str(int(self._loads))])
        return self._server


class _Child:
    """One child process, and the connection to it."""

    def __init__(self, server: ServerProcess, hosted: HostedFunctions, seconds: float | None) -> None:
        self._name = ", ".join(hosted.names)
        self._seconds = seconds
        self._server = server
        self.server_status: int | None = None  # exit status of the server, if the child died with it
        self.is_fresh = True  # whether the child has not received a value
        self._delayed = 0.0  # result of `_delay` when the last values were sent
        self._told: stats.Collected | None = None  # the statistics whose names the child has received
        self._kills = _oom_kills()
        memory = os.memfd_create("ledgerbeam")
        try:
            os.truncate(memory, mmap.PAGESIZE)
            self._slots = memoryview(mmap.mmap(memory, mmap.PAGESIZE)).cast("d")
            self._slots[0] = IDLE
            self._connection, far = socket.socketpair()
            with far:
                self._group = server.ask(_request(hosted), [far.fileno(), memory])
        finally:
            os.close(memory)
        self._events = select.poll()
        self._events.register(self._connection, select.POLLIN)
        self._events.register(self._group, select.POLLIN)
        self._since = math.inf  # time at which the last message was sent or received; infinite while there is no limit

    def set_up(self) -> Sequence[tuple[bool, bool]]:
        """Wait until the objects are built. Return for each whether it depends on batches, and whether it is async.

        Raises the error of the import or of a constructor.
        """
        found = self._receive()
        if isinstance(found, LedgerbeamError):
            raise found
        facts: Sequence[tuple[bool, bool]] = found
        return facts

    def map(self, values: Sequence[Any], stage: int) -> Iterator[list[Any]]:
        """Yield the outcomes for pickled values, in order, some at a time. Raises _ChildEndedError."""
        self._slots[0] = IDLE
        self._since = time.monotonic()
        self._delayed = self._delay()
        self.is_fresh = False
        collected, names = stats.current(), None
        if collected is not self._told or collected is None:
            self._told = collected
            parts = [] if collected is None else collected.parts or [collected.sketches]
            names = [{name: found.kind for name, found in part.items()} for part in parts]
        self._send((names, stage, values))
        got = 0
        while got < len(values):
            results, others, memory, seconds = self._receive()
            add_cpu_time("function", seconds)
            try:
                found: list[Any] = [*map(pickle.loads, results)]  # noqa: S301 - of the child
            except Exception:  # noqa: BLE001 - code of the user's classes, which may raise anything
                found = [*map(self._read, results)]
            for number, (error, observed) in others.items():
                result = found[number]
                is_unread = type(result) is _Other
                found[number] = result._replace(observed=observed) if is_unread else _Other(result, error, observed)
            yield found
            got += len(found)
            self._since = time.monotonic()
            if memory is not None:
                raise _ChildEndedError(OUT_OF_MEMORY, memory_text(memory), got, self._function())

    def _read(self, result: bytes) -> Any:
        try:
            return pickle.loads(result)  # noqa: S301 - of the child
        except Exception as error:  # noqa: BLE001 - see above
            return _Other(None, unsent(f"{self._name} returned a result that cannot be loaded", error))

    def close(self) -> None:
        """Let the child close its object and end; kill it after `CLOSE_SECONDS`."""
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_WR)
        self._group.wait(CLOSE_SECONDS)
        self.kill()

    def kill(self) -> None:
        self._group.kill()
        self._connection.close()

    def _send(self, message: Any) -> None:
        self._connection.settimeout(self._seconds)
        try:
            send(self._connection, message)
        except TimeoutError:
            self._kill_late()
        except OSError:
            self._raise_ended()

    def _receive(self) -> Any:
        try:
            return receive(self._connection, self._wait)
        except EOFError:
            self._raise_ended()

    def _wait(self) -> None:
        """Wait for data. Raises _ChildEndedError if there are none and the child has ended, or if a call is late."""
        while True:
            late = self._late_in()
            if late <= 0 and (late := late + self._delay() - self._delayed) <= 0:
                self._kill_late()
            if self._is_readable(None if late == math.inf else math.ceil(late * 1000)):
                return
            if self._group.wait(_AT_ONCE) and not self._is_readable(0):
                self._raise_ended()

    def _is_readable(self, milliseconds: int | None) -> bool:
        """Wait for data, or for a report of the server; return whether there are data."""
        return self._connection.fileno() in dict(self._events.poll(milliseconds))

    def _late_in(self) -> float:
        """Return the seconds until the call in work is late; infinite without a limit."""
        if self._seconds is None or self._since == math.inf:
            return math.inf
        return self._seconds - (time.monotonic() - max(self._since, self._slots[1]))

    def _delay(self) -> float:
        """Return the seconds for which the child has waited for a processor, so that load causes no time-out."""
        if self._seconds is None:
            return 0.0
        try:
            with open(f"/proc/{self._group.pid}/schedstat", encoding="ascii") as file:
                return int(file.read().split()[1]) / 1e9
        except OSError:  # the child has died, or the system has no such file
            return self._delayed

    def _in_work(self) -> int | None:
        """Return the position in the window of the value in work; None if there is none."""
        return None if self._slots[0] == IDLE else int(self._slots[0])

    def _function(self) -> int:
        return int(self._slots[2])

    def _kill_late(self) -> Never:
        """Kill the child. The value in work is late, unless its call has begun a moment ago."""
        before = self._in_work()
        self._group.kill()
        number = before if self._in_work() == before else None
        raise _ChildEndedError(TIMEOUT, f"took more than {self._seconds:g} s", number, self._function())

    def _raise_ended(self) -> Never:
        self._group.kill()
        number, function = self._in_work(), self._function()
        status = self._group.status
        if status is None:
            status = self.server_status = self._server.wait(_SERVER_SECONDS)
        if status is not None and status >= 0:
            raise _ChildEndedError(
                f"exit status {status}", f"ended its process with exit status {status}", number, function
            )
        found = signal.SIGKILL if status is None else -status
        if found == signal.SIGKILL and _oom_kills() > self._kills:
            raise _ChildEndedError(OUT_OF_MEMORY, "was killed, because memory was exhausted", number, function)
        text = f"was killed by signal {found}{_named(found)}"
        raise _ChildEndedError(f"signal {found}", text, number, function, is_outside=found in _OUTSIDE)


def _only_ahead(_: Any) -> Any:
    raise AssertionError("the object is in another process")


def _request(hosted: HostedFunctions) -> bytes:
    """Return the request for a child: the user code, and the state of this process on which the code depends."""
    try:
        code = pickle.dumps(hosted, pickle.HIGHEST_PROTOCOL)
    except Exception:  # noqa: BLE001 - an object of a script, which Beam has sent to this process
        code = b""
    if not code or b"__main__" in code:
        import cloudpickle  # noqa: PLC0415 - few jobs need it

        code = cloudpickle.dumps(hosted)
    level = logging.getLevelName(logging.getLogger().getEffectiveLevel())
    return pickle.dumps((sys.path, level, registered_texts(), code))


def _named(number: int) -> str:
    try:
        return f" ({signal.Signals(number).name})"
    except ValueError:  # most real-time signals have no name
        return ""


_KILLS = re.compile(rb"^oom_kill (\d+)$", re.MULTILINE)


def _oom_kills() -> int:
    """Return a number that grows when the kernel kills a process on this host, or of this container, for memory."""
    paths = ["/proc/vmstat", "/sys/fs/cgroup/memory.events"]
    with suppress(OSError), open("/proc/self/cgroup", encoding="utf-8", errors="replace") as file:
        for line in file:
            _, controllers, path = line.rstrip("\n").split(":", 2)
            if not controllers:
                paths.append(f"/sys/fs/cgroup{path}/memory.events")
            elif controllers == "memory":
                paths += [f"/sys/fs/cgroup/memory{path}/memory.oom_control", "/sys/fs/cgroup/memory/memory.oom_control"]
    kills = 0
    for path in dict.fromkeys(paths):
        with suppress(OSError), open(path, "rb") as counts:
            kills += sum(map(int, _KILLS.findall(counts.read())))
    return kills
