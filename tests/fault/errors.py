"""``python -m tests.fault.errors [--seed S] [--every K]``: every Nth call fails, once and for good.

A small job runs with one fault at a time: in a system call (EIO, ENOSPC), or in an operation on the objects of its
ledger (refused, answer lost, body cut). The fault must be reported as an error of ours, or be of no consequence; the
ledger must stay right; and the next run must end with the bytes of a job that was never disturbed. System calls
are made to fail by strace, from outside, and operations by a stand-in for the network between a ledger and its objects.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeVar

from ledgerbeam.errors import LedgerbeamError, LedgerNotFoundError, StorageError
from ledgerbeam.ledger.lmdb.store import LmdbStore
from ledgerbeam.ledger.model.identity import node_id
from ledgerbeam.ledger.remote.segment import Objects
from ledgerbeam.ledger.remote.store import RemoteStore
from tests.fault.errors_job import SOURCES, START, Place, outcome_of
from tests.fault.job import ROOT, environment
from tests.fault.replay import memory_folder
from tests.fault.replay_judge import broken_sums
from tests.fault.replay_trace import why_no_strace

OPERATIONS = {
    "names": ("refused",),
    "read": ("refused", "short"),
    "create": ("refused", "lost"),
    "exists": ("refused",),
    "delete": ("refused", "lost", "half"),
}
"""Operations on objects that are made to fail, and how."""

CALLS = {
    **dict.fromkeys(("openat", "write", "writev", "pwrite64", "pwritev"), ("EIO", "ENOSPC")),
    **dict.fromkeys(("fsync", "fdatasync", "fallocate", "rename", "link", "mkdir"), ("EIO", "ENOSPC")),
    **dict.fromkeys(("read", "pread64", "unlink"), ("EIO",)),
}
"""System calls that are made to fail, and how."""

HANG_SECONDS = 60.0

_CALL = re.compile(r"^(?:\d+ +)?(\w+)\(")
_T = TypeVar("_T")


@dataclass(frozen=True)
class Fault:
    """A fault of a system call, or of a method of `Objects`.

    The latter is ``refused``: nothing is done, and the error is what the store says after its retries; ``lost``: it is
    done, and its answer is lost; ``half`` done; or ``short``: objects are read but for their end.
    """

    name: str
    how: str  # the error of a system call
    when: int  # the number of the call that fails, from 1
    for_good: bool  # all after it fail too

    def __str__(self) -> str:
        return f"{self.name} {self.when}{'+' if self.for_good else ''} {self.how}"


def faults_of(kinds: Mapping[str, Sequence[str]], calls: Counter[str]) -> list[Fault]:
    """Return every fault of every call that a clean run makes."""
    return [
        Fault(name, how, when, for_good)
        for name, ways in kinds.items()
        for when in range(1, calls[name] + 1)
        for how in ways
        for for_good in (False, True)
    ]


class FaultyObjects:
    """Real objects, of which one operation fails, or all from one on."""

    def __init__(self, objects: Objects, fault: Fault | None) -> None:
        self.url, self.exclusive = objects.url, objects.exclusive
        self._objects = objects
        self._fault = fault
        self.calls: Counter[str] = Counter()
        self.hits = 0

    def _kind(self, operation: str) -> str | None:
        """Return how this call of an operation fails; None if it does not."""
        self.calls[operation] += 1
        fault, number = self._fault, self.calls[operation]
        if fault is None or fault.name != operation or number < fault.when:
            return None
        if number > fault.when and not fault.for_good:
            return None
        self.hits += 1
        return fault.how

    def _do(self, operation: str, do: Callable[[], _T]) -> _T:
        kind = self._kind(operation)
        if kind == "lost":
            do()
        if kind is not None:
            raise StorageError(f"{self.url}: cannot {operation} (503, Service Unavailable).")
        return do()

    def names(self, folder: str) -> list[str]:
        return self._do("names", lambda: self._objects.names(folder))

    def read(self, names: Sequence[str]) -> list[bytes | None]:
        if self._fault is not None and self._fault.how == "short":
            found = self._objects.read(names)
            return [data and data[: len(data) // 2] for data in found] if self._kind("read") else found
        return self._do("read", lambda: self._objects.read(names))

    def create(self, name: str, data: bytes) -> bool:
        return self._do("create", lambda: self._objects.create(name, data))

    def replace(self, name: str, data: bytes) -> None:
        self._do("replace", lambda: self._objects.replace(name, data))

    def exists(self, name: str) -> bool:
        return self._do("exists", lambda: self._objects.exists(name))

    def delete(self, names: Iterable[str]) -> None:
        asked = list(names)
        if self._fault is not None and self._fault.how == "half":
            kind = self._kind("delete")
            # The last ones: a request that deletes many keys promises no order.
            self._objects.delete(asked[len(asked) // 2 :] if kind else asked)
            if kind:
                raise StorageError(f"{self.url}: cannot delete (503, Service Unavailable).")
            return
        self._do("delete", lambda: self._objects.delete(asked))


@dataclass
class Outcome:
    """How a run ended: ``ended``, ``typed`` or ``untyped`` (of the error that was raised), ``hung`` or ``died``."""

    end: str
    message: str = ""
    done: list[tuple[bytes, tuple[tuple[int, int], ...]]] = field(default_factory=list)  # leaves that were acknowledged
    hits: int = 0  # system calls that were made to fail
    calls: Counter[str] = field(default_factory=Counter)  # system calls that were made

    def hear(self, text: str) -> None:
        word, *rest = json.loads(text)
        if word == "done":
            self.done += [(bytes.fromhex(s), tuple((o, c) for o, c in lineage)) for s, lineage in rest[0]]
        elif word == "raised":
            self.end, self.message = rest
        else:
            self.end = word


class JobServer:
    """A process that runs jobs in forks of itself."""

    def __init__(self, folder: Path) -> None:
        self._folder = Path(tempfile.mkdtemp(dir=folder))
        self._messages, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [sys.executable, "-m", "tests.fault.errors_job", str(theirs.fileno()), str(self._folder / "warm")]
        self._process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=environment(),
            pass_fds=[theirs.fileno()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        theirs.close()

    def run(self, place: Place, injection: Fault | None = None, *, count: bool = False) -> Outcome:
        """Run a job to its end, under strace if something is injected or counted."""
        print(json.dumps([place.folder, place.remote]), file=self._process.stdin, flush=True)
        pid = int(self._line(HANG_SECONDS) or "0")
        trace = self._folder / "trace"
        with self._strace(pid, trace, injection) if injection or count else contextlib.nullcontext():
            os.kill(pid, START)
            status = self._line(HANG_SECONDS)
            if status is None:
                os.kill(pid, signal.SIGKILL)
                self._line(HANG_SECONDS)
        outcome = Outcome("hung" if status is None else "died", f"status {status}")
        while select.select([self._messages], [], [], 0)[0]:
            outcome.hear(self._messages.recv(1 << 20).decode())
        if injection or count:
            lines = trace.read_text(errors="replace").splitlines()
            outcome.hits = sum("(INJECTED)" in line for line in lines)
            outcome.calls = Counter(match[1] for line in lines if (match := _CALL.match(line)))
        return outcome

    def _line(self, seconds: float) -> str | None:
        output = self._process.stdout
        if output is None or not select.select([output], [], [], seconds)[0]:
            return None
        return output.readline().strip()

    @contextlib.contextmanager
    def _strace(self, pid: int, trace: Path, injection: Fault | None) -> Iterator[None]:
        command = ["strace", "-qq", "-f", "-s", "0", "-o", str(trace), "-p", str(pid), "-e", "signal=none"]
        command += ["-e", f"trace={','.join(CALLS)}"]
        if injection is not None:
            when = f"{injection.when}+" if injection.for_good else f"{injection.when}"
            command += ["-e", f"inject={injection.name}:error={injection.how}:when={when}"]
        strace = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        try:
            while (
                "TracerPid:\t0\n" in Path(f"/proc/{pid}/status").read_text(encoding="utf-8") and strace.poll() is None
            ):
                time.sleep(0.001)
            yield
            strace.wait(HANG_SECONDS)
        finally:
            strace.kill()
            strace.wait()

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()
        self._messages.close()


Contents = dict[str, bytes]


@dataclass
class Figures:
    injected: int = 0
    reported: int = 0
    tolerated: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    findings: Counter[str] = field(default_factory=Counter)
    examples: list[str] = field(default_factory=list)

    def note(self, fault: object, found: list[str]) -> None:
        """Count what is wrong with one run and its rerun."""
        for finding in found:
            self.findings[finding.partition(":")[0]] += 1
            self.examples.append(f"{fault}: {finding}")

    def line(self) -> str:
        names = ("not reported", "hung", "false completion", "lost", "not completed by rerun", "broken")
        kinds = ", ".join(f"{self.findings[name]} {name}" for name in names)
        return f"{self.injected} faults injected, {self.reported} reported, {self.tolerated} of no consequence, {kinds}"


def contents(place: Place) -> Contents:
    """Return what lies in the folders of sources and outputs but the marks of their owners, by name."""
    top = Path(place.folder)
    paths = [path for name in ("in", "out") for path in top.joinpath(name).rglob("*") if path.is_file()]
    paths = [path for path in paths if path.parent.name != "_ledgerbeam"]
    return {str(path.relative_to(top)): path.read_bytes() for path in paths}


class Inspector:
    """Judges runs and their reruns by what a run that nobody disturbs leaves."""

    def __init__(self, clean: Contents, figures: Figures) -> None:
        self._clean = clean
        self._figures = figures

    def judge(self, fault: object, place: Place, outcome: Outcome, rerun: Callable[[], Outcome]) -> None:
        self._figures.injected += 1
        found = list(self._findings(place, outcome))
        again = rerun()
        if again.end != "ended":
            found.append(f"not completed by rerun: {again.end}: {again.message}")
        elif contents(place) != self._clean:
            found.append("not completed by rerun: other bytes, or other files, than those of a clean run")
        else:
            found += self._incomplete(place)
        self._figures.note(fault, found)

    def _incomplete(self, place: Place) -> Iterator[str]:
        try:
            complete, failed = self._state(place)
        except LedgerbeamError as error:
            yield f"broken: the ledger does not open after the rerun: {type(error).__name__}: {error}"
            return
        if not complete or failed:
            yield f"not completed by rerun: complete {complete}, {failed} failures"

    def _findings(self, place: Place, outcome: Outcome) -> Iterator[str]:
        try:
            complete, failed = self._state(place)
            yield from self._ledger(place, outcome)
        except LedgerNotFoundError:
            complete, failed = False, 0
            if outcome.done:
                yield f"lost: there is no ledger, and {len(outcome.done)} tasks were acknowledged"
        except LedgerbeamError as error:
            complete, failed = False, 0
            yield f"broken: the ledger does not open: {type(error).__name__}: {error}"
        if outcome.end == "typed" or (outcome.end == "ended" and failed):
            self._figures.reported += 1
            self._figures.errors[outcome.message.partition(":")[0] if outcome.end == "typed" else "failed tasks"] += 1
        elif outcome.end == "ended" and complete:
            self._figures.tolerated += 1
        else:
            yield f"{'hung' if outcome.end == 'hung' else 'not reported'}: {outcome.end}: {outcome.message}"

    def _state(self, place: Place) -> tuple[bool, int]:
        with self._opened(place) as store:
            return store.completed_count() == SOURCES, len(list(store.failures()))

    @contextlib.contextmanager
    def _opened(self, place: Place) -> Iterator[LmdbStore]:
        """Return the ledger, as a host sees it that is new to it."""
        sidecar = place.below("sidecar-of-inspector")
        shutil.rmtree(sidecar, ignore_errors=True)
        with contextlib.closing(RemoteStore(place.objects(), sidecar) if place.remote else place.store()) as store:
            store.open()
            yield store

    def _ledger(self, place: Place, outcome: Outcome) -> Iterator[str]:
        with self._opened(place) as store:
            yield from (f"broken: {finding}" for finding in broken_sums(store))
            found = contents(place)
            for row in store.outputs():
                name = f"out/{row.output.name}"
                if found.get(name) != self._clean[name]:
                    yield f"{'false completion' if row.complete else 'lost'}: {name} is recorded and not there"
            names = {row.output.name for row in store.outputs() if row.complete}
            for source in (row for row in store.sources() if row.state == "complete"):
                stem = Path(source.url).name
                owed = {name[4:] for name in self._clean if name.startswith(f"out/{stem}")}
                if not owed <= names:
                    yield f"false completion: {source.url} is complete without {owed - names}"
            for source_id, lineage in outcome.done:
                known = store.completed_mask([source_id])[0] or node_id(source_id, lineage) in store.applied(source_id)
                if not known:
                    yield f"lost: task {lineage} was acknowledged and is not recorded"


class Suite:
    def __init__(self, folder: Path, every: int = 1, seed: int = 1) -> None:
        self._folder = folder
        self._every = every
        self._random = random.Random(seed)
        self._count = 0

    def _place(self, remote: bool) -> Place:
        self._count += 1
        place = Place(str(self._folder / f"{self._count:06d}"), remote)
        place.make()
        return place

    def system_calls(self, remote: bool, wanted: Callable[[Fault], bool] = lambda fault: True) -> Figures:
        """Injects faults into system calls: of those that are wanted, only so many."""
        figures = Figures()
        with contextlib.closing(JobServer(self._folder)) as server:
            place = self._place(remote)
            calls = server.run(place, count=True).calls
            inspector = Inspector(contents(place), figures)
            for fault in self._some(list(filter(wanted, faults_of(CALLS, calls)))):
                place = self._place(remote)
                outcome = server.run(place, fault)
                if outcome.hits:
                    inspector.judge(fault, place, outcome, partial(server.run, place))
                shutil.rmtree(place.folder)
        return figures

    def objects(self) -> Figures:
        """Injects faults into operations on the objects of a remote ledger."""
        figures = Figures()
        place = self._place(True)
        counting = FaultyObjects(place.objects(), None)
        outcome_of(place, len, counting)
        inspector = Inspector(contents(place), figures)
        for fault in self._some(faults_of(OPERATIONS, counting.calls)):
            place = self._place(True)
            objects = FaultyObjects(place.objects(), fault)
            outcome = _run_here(place, objects)
            if objects.hits:
                inspector.judge(fault, place, outcome, partial(_run_here, place, None))
            shutil.rmtree(place.folder)
        return figures

    def _some(self, faults: list[Fault]) -> list[Fault]:
        count = -(-len(faults) // self._every)
        return [faults[place] for place in sorted(self._random.sample(range(len(faults)), count))]


def _run_here(place: Place, objects: FaultyObjects | None) -> Outcome:
    outcome = Outcome("died")
    outcome.hear(json.dumps(outcome_of(place, outcome.hear, objects)))
    return outcome


def main() -> int:
    """Return 0 if nothing was found, 1 if something was, 2 if no system call can be made to fail here."""
    parser = argparse.ArgumentParser(prog="python -m tests.fault.errors", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, metavar="S", help="of which faults are taken (default: 1)")
    parser.add_argument("--every", type=int, default=1, metavar="K", help="only one of K faults (default: 1)")
    args = parser.parse_args()
    reason = why_no_strace()
    if reason is not None:
        print(reason, file=sys.stderr)
        return 2
    started = time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="ledgerbeam-errors-", dir=memory_folder()))
    suite = Suite(folder, args.every, args.seed)
    parts: dict[str, Callable[[], Figures]] = {
        "operations on objects": suite.objects,
        "system calls, local ledger": partial(suite.system_calls, False),
        "system calls, ledger of objects": partial(suite.system_calls, True),
    }
    found = []
    try:
        for name, part in parts.items():
            found.append(part())
            errors = ", ".join(f"{count} {kind}" for kind, count in found[-1].errors.most_common())
            print(f"{name}: {found[-1].line()}", f"reports: {errors}", *found[-1].examples, sep="\n  ", flush=True)
    finally:
        shutil.rmtree(folder)
    injected = sum(figures.injected for figures in found)
    bad = sum(figures.findings.total() for figures in found)
    print(f"{injected} faults injected, {bad} findings, {time.monotonic() - started:.0f} s, seed {args.seed}")
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
