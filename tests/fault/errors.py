"""``python -m tests.fault.errors [--seed S] [--every K]``: every Nth call fails, once and for good.

A small job runs with one fault at a time: in a system call (EIO, ENOSPC), or in an operation on the objects of its
ledger (refused, answer lost, body cut). The fault must be reported as an error of ours, or be of no consequence; the
ledger must stay right; and the next run must end with the bytes of a job that was never disturbed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeVar

from ledgerbeam.errors import LedgerbeamError, LedgerNotFoundError
from ledgerbeam.ledger.lmdb.store import LmdbStore
from ledgerbeam.ledger.model.identity import node_id
from ledgerbeam.ledger.remote.store import RemoteStore
from tests.fault.errors_job import SOURCES, Place, outcome_of
from tests.fault.errors_objects import FAULTS, Fault, FaultyObjects
from tests.fault.errors_strace import CALLS, Injection, JobServer, Outcome
from tests.fault.replay import memory_folder
from tests.fault.replay_judge import broken_sums
from tests.fault.replay_trace import why_no_strace

Contents = dict[str, bytes]

_Fault = TypeVar("_Fault", Injection, Fault)


@dataclass
class Figures:
    """What the injection of faults counts."""

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
        """Return one line of figures."""
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
        """Judge one run, and run it again."""
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
        store = RemoteStore(place.objects(), sidecar) if place.remote else place.store()
        try:
            store.open()
            yield store
        finally:
            store.close()

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
    """Faults in a folder of its own."""

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

    def system_calls(self, remote: bool, wanted: Callable[[Injection], bool] = lambda fault: True) -> Figures:
        """Injects faults into system calls: of those that are wanted, only so many."""
        figures = Figures()
        server = JobServer(self._folder)
        try:
            place = self._place(remote)
            calls = server.run(place, count=True).calls
            inspector = Inspector(contents(place), figures)
            for fault in self._some(list(filter(wanted, injections(calls)))):
                place = self._place(remote)
                outcome = server.run(place, fault)
                if outcome.hits:
                    inspector.judge(fault, place, outcome, partial(server.run, place))
                shutil.rmtree(place.folder)
        finally:
            server.close()
        return figures

    def objects(self) -> Figures:
        """Injects faults into operations on the objects of a remote ledger."""
        figures = Figures()
        place = self._place(True)
        counting = FaultyObjects(place.objects(), None)
        outcome_of(place, len, counting)
        inspector = Inspector(contents(place), figures)
        for fault in self._some(object_faults(counting.calls)):
            place = self._place(True)
            objects = FaultyObjects(place.objects(), fault)
            outcome = _run_here(place, objects)
            if objects.hits:
                inspector.judge(fault, place, outcome, partial(_run_here, place, None))
            shutil.rmtree(place.folder)
        return figures

    def _some(self, faults: list[_Fault]) -> list[_Fault]:
        count = -(-len(faults) // self._every)
        return [faults[place] for place in sorted(self._random.sample(range(len(faults)), count))]


def _run_here(place: Place, objects: FaultyObjects | None) -> Outcome:
    outcome = Outcome("died")
    outcome.hear(json.dumps(outcome_of(place, outcome.hear, objects)))
    return outcome


def injections(calls: Counter[str]) -> list[Injection]:
    """Return every fault of every call that a clean run makes."""
    return [
        Injection(call, error, when, for_good)
        for call, errors in CALLS.items()
        for when in range(1, calls[call] + 1)
        for error in errors
        for for_good in (False, True)
    ]


def object_faults(calls: Counter[str]) -> list[Fault]:
    """Return every fault of every operation that a clean run makes."""
    return [
        Fault(operation, kind, when, for_good)
        for operation, kinds in FAULTS.items()
        for when in range(1, calls[operation] + 1)
        for kind in kinds
        for for_good in (False, True)
    ]


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
