"""``python -m tests.fault.damage --damages N --seed S``: a disk that returns other bytes of a ledger than were written.

A local ledger in one of several states is damaged in one place: bits, bytes, or a page that is lost, of an earlier
time, in the place of another, or of another ledger. Then the job's command runs again. It must end with the outputs of
a clean run and status 0, or with another status and a message that names the ledger and what to do.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import random
import shutil
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.fault.damage_job import GONE, STATES, Place, Ran, warm_up
from tests.fault.damage_pages import Files, damaged

REMEDIES = ("restore", "give another", "ledger forget", "run the same command again", "run again")


@dataclass(frozen=True)
class State:
    """A job in a state, and what a run of its command makes of it."""

    place: Place
    kept: Path
    files: Files
    expected: dict[str, bytes]
    numbers: dict[str, Any]

    def restore(self) -> None:
        for folder in (self.place.ledger, self.place.output):
            shutil.rmtree(folder, ignore_errors=True)
            shutil.copytree(self.kept / folder.name, folder)


def make_state(name: str, folder: Path) -> State:
    """Make a job, bring it into a state, and find out what a run makes of it undamaged."""
    place = Place(folder / name / "job")
    place.folder.mkdir(parents=True)
    place.make_sources()
    STATES[name](place)
    kept = folder / name / "kept"
    for part in (place.ledger, place.output):
        shutil.copytree(part, kept / part.name)
    data = place.data.read_bytes()
    went_on = place.run()
    if went_on.status:
        raise AssertionError(f"{name}: an undamaged run ended with {went_on.status}: {went_on.said}")
    continued = place.outputs()
    shutil.rmtree(place.ledger)
    shutil.rmtree(place.output)
    place.output.mkdir()
    (place.output / "notes.txt").write_text("mine")
    clean = place.run()
    expected, other = place.outputs(), place.data.read_bytes()
    of_gone = {output: data for output, data in continued.items() if GONE in output}  # what a source had that is gone
    if (clean.status, continued) != (0, expected | of_gone):
        raise AssertionError(f"{name}: a clean run ended with {clean.status} and others: {clean.said}")
    older = [path.read_bytes() for path in sorted(place.history.iterdir())]
    return State(place, kept, Files(data, older, other), continued, _comparable(went_on.numbers, clean.numbers))


def _comparable(numbers: dict[str, Any], clean: dict[str, Any]) -> dict[str, Any]:
    """Return what a ledger says after a run; sources that are gone it keeps, which a clean run never saw."""
    if numbers["sources"] == clean["sources"] and numbers != clean:
        raise AssertionError(f"an undamaged run leaves {numbers}, a clean one {clean}")
    return numbers


@dataclass
class Campaign:
    """Damages and what came of them."""

    counts: Counter[str] = field(default_factory=Counter)
    findings: list[str] = field(default_factory=list)

    def one(self, state: State, name: str, seed: str) -> None:
        state.restore()
        data, what = damaged(state.files, random.Random(seed))
        state.place.data.write_bytes(data)
        ran = state.place.run()
        outcome = judge(state, ran)
        self.counts[outcome] += 1
        if outcome not in ("right", "refused"):
            self.findings.append(f"{outcome}: {seed} ({name}): {what}: {ran.said.strip()[-600:]}")


def judge(state: State, ran: Ran) -> str:
    """Return what a run of a damaged ledger comes to."""
    outputs = state.place.outputs()
    if outputs.get("notes.txt") != b"mine":
        return "touched"
    if ran.status == -signal.SIGALRM:
        return "hung"
    if ran.status < 0:
        return "crashed"
    if ran.status == 0:
        if outputs != state.expected:
            return "wrong"
        is_told = "error" in ran.numbers  # by the command that looks at what is damaged
        return "right" if is_told or ran.numbers == state.numbers else "miscounted"
    if "Traceback" in ran.said or str(state.place.ledger) not in ran.said:
        return "untyped"
    return "refused" if any(remedy in ran.said.lower() for remedy in REMEDIES) else "no remedy"


@contextmanager
def _folder(seed: int) -> Iterator[Path]:
    """Return a seed its folder in memory, of one name: the ids of sources come from URLs."""
    folder = Path(f"/dev/shm/ledgerbeam-damage-{os.getuid()}-{seed}")
    with Path(f"{folder}.lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        try:
            yield folder
        finally:
            shutil.rmtree(folder)


def campaign(damages: int, seed: int, names: list[str] | None = None, *, show: bool = False) -> Campaign:
    found = Campaign()
    with _folder(seed) as folder:
        warm_up(folder)
        states = {name: make_state(name, folder) for name in names or STATES}
        for number in range(damages):
            name = list(states)[number % len(states)]
            before = len(found.findings)
            found.one(states[name], name, f"{seed} {number}")
            if show and len(found.findings) > before:
                print(found.findings[-1], flush=True)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fault.damage", description=__doc__)
    parser.add_argument("--damages", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--state", action="append", choices=STATES)
    args = parser.parse_args()
    found = campaign(args.damages, args.seed, args.state, show=True)
    told = ", ".join(f"{what} {number}" for what, number in sorted(found.counts.items()))
    print(f"{args.damages} damages of seed {args.seed}: {told}")
    return 1 if found.findings else 0


if __name__ == "__main__":
    os.environ.pop("LEDGERBEAM_DAMAGE_TROUBLE", None)
    sys.exit(main())
