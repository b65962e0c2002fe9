"""``python -m tests.fault.replay --points N [--seed S]``: power cuts. Traces writers, and replays what a disk may keep.

A writer runs under strace. Its writes are then played to a disk that forgets what was not synced (`replay_disk`), which
is cut at N moments; each state that is left is opened by the real store, compared with what was acknowledged, and the
job is finished on it.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import select
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.fault.job import ROOT, environment
from tests.fault.replay_judge import State
from tests.fault.replay_stories import LOCK, STORIES
from tests.fault.replay_trace import Disk, Operation, Said, digest_of, lay_out, record, why_no_strace

LIMIT_SECONDS = 60.0  # a state that takes longer to judge hangs
MEMORY_FOLDER = "/dev/shm"

_LIVE = "from tests.fault.replay_stories import main; main()"


@dataclass
class Figures:
    operations: int = 0
    states: int = 0
    distinct: int = 0
    bad: int = 0
    findings: Counter[str] = field(default_factory=Counter)
    examples: dict[str, str] = field(default_factory=dict)

    def note(self, found: list[str]) -> None:
        self.distinct += 1
        self.bad += bool(found)
        for finding in found:
            kind = finding.partition(":")[0]
            self.findings[kind] += 1
            self.examples.setdefault(kind, finding)

    def line(self) -> str:
        kinds = "".join(f", {count} {kind}" for kind, count in sorted(self.findings.items()))
        return (
            f"{self.states} states replayed ({self.distinct} distinct) at cuts of {self.operations} traced calls, "
            f"{self.bad} bad{kinds}"
        )


@dataclass(frozen=True)
class Recording:
    """A story that was lived under strace."""

    story: str
    seed: int
    root: Path
    notes: Path
    operations: list[Operation]

    @classmethod
    def make(cls, story: str, seed: int, folder: Path, breakage: str | None = None) -> Recording:
        """Lives a story in a folder, which is made here."""
        root, notes = folder / "root", folder / "notes.json"
        root.mkdir(parents=True)
        command = [sys.executable, "-c", _LIVE, story, str(seed), str(root), str(notes)]
        operations = record([*command, *([breakage] if breakage else [])], root, folder / "trace", environment())
        return cls(story, seed, root, notes, operations)

    def locks(self) -> list[bytes | None]:
        """Return what may be left of LMDB's lock file: nothing, no byte, zeros, and what it held in life."""
        live = Path(f"{self.notes}.{LOCK}").read_bytes()
        return [None, b"", bytes(len(live)), live]


class JudgeProcess:
    """The process that judges, started again when a state has killed it."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._process: subprocess.Popen[str] | None = None

    def findings(self, state: State) -> list[str]:
        process = self._process = self._process or self._start()
        print(json.dumps([state.folder, state.acknowledged, state.begun]), file=process.stdin, flush=True)
        if process.stdout is None or not select.select([process.stdout], [], [], LIMIT_SECONDS)[0]:
            self.close()
            return [f"hangs: not judged after {LIMIT_SECONDS:.0f} s"]
        answer = process.stdout.readline()
        if not answer:
            self._process = None
            _, errors = process.communicate()
            return [f"kills its reader: exit status {process.returncode}: {errors[-600:]}"]
        found: list[str] = json.loads(answer)
        return found

    def _start(self) -> subprocess.Popen[str]:
        words, pipe = [sys.executable, "-m", "tests.fault.replay_judge"], subprocess.PIPE
        process = subprocess.Popen(words, cwd=ROOT, env=environment(), stdin=pipe, stdout=pipe, stderr=pipe, text=True)
        recording = self._recording
        print(json.dumps([recording.story, recording.seed, str(recording.notes)]), file=process.stdin, flush=True)
        return process

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None


def crashes(
    recording: Recording, points: int, chance: random.Random
) -> Iterator[tuple[dict[str, bytes | None], int, int]]:
    """Draw the states of crashes, spread over the whole story."""
    count = len(recording.operations)
    cuts = Counter(chance.sample(range(1, count + 1), points % count))
    cuts.update(dict.fromkeys(range(1, count + 1), points // count))
    disk = Disk(str(recording.root))
    locks = recording.locks()
    acknowledged = begun = 0
    for number, operation in enumerate(recording.operations, 1):
        if isinstance(operation, Said):
            word = operation.text.partition(" ")[0]
            begun += word == "begin"
            acknowledged += word == "done"
        disk.apply(operation)
        for _ in range(cuts[number]):
            files = disk.crash(chance)
            for path in [path for path in files if path.endswith(LOCK)]:
                lock = chance.choice(locks)
                if lock is None:
                    del files[path]
                else:
                    files[path] = lock
            yield files, acknowledged, begun


def replay(recording: Recording, points: int, seed: int, folder: Path, *, keep_bad: int = 0) -> Figures:
    """Judge the states of so many crashes; the first bad ones stay in `folder` if asked."""
    figures = Figures(len(recording.operations))
    seen: set[tuple[bytes, int, int]] = set()
    judge = JudgeProcess(recording)
    try:
        for number, (files, acknowledged, begun) in enumerate(crashes(recording, points, random.Random(seed))):
            figures.states += 1
            key = (digest_of(files), acknowledged, begun)
            if key in seen:
                continue
            seen.add(key)
            place = folder / f"{recording.story}-{number:06d}"
            lay_out(files, place)
            found = judge.findings(State(str(place), acknowledged, begun))
            figures.note(found)
            shutil.rmtree(place)
            if found and keep_bad > 0:
                keep_bad -= 1
                lay_out(files, place)
    finally:
        judge.close()
    return figures


def replay_stories(
    stories: Iterable[str], points: int, seed: int, folder: Path, keep_bad: int = 0
) -> dict[str, Figures]:
    """Records every story and replays its share of the points."""
    names = list(stories)
    found = {}
    for place, name in enumerate(names):
        recording = Recording.make(name, seed, folder / f"recording-{name}")
        found[name] = replay(recording, (points + place) // len(names), seed, folder, keep_bad=keep_bad)
    return found


def memory_folder() -> str | None:
    """Return a folder in memory, where there is one, in which syncing costs no time; else None."""
    return MEMORY_FOLDER if os.access(MEMORY_FOLDER, os.W_OK) else None


def main() -> int:
    """Return 0 if no state is bad, 1 if one is, 2 if nothing can be traced here."""
    parser = argparse.ArgumentParser(prog="python -m tests.fault.replay", description=__doc__)
    parser.add_argument("--points", type=int, default=600, metavar="N", help="crashes, in all (default: 600)")
    parser.add_argument("--seed", type=int, default=1, metavar="S", help="of stories and crashes (default: 1)")
    parser.add_argument("--story", choices=list(STORIES), help="only this one")
    parser.add_argument("--keep", type=int, default=0, metavar="N", help="keep so many bad states of each story")
    args = parser.parse_args()
    reason = why_no_strace()
    if reason is not None:
        print(reason, file=sys.stderr)
        return 2
    started = time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="ledgerbeam-replay-", dir=memory_folder()))
    try:
        found = replay_stories([args.story] if args.story else STORIES, args.points, args.seed, folder, args.keep)
    finally:
        if args.keep:
            print(f"recordings and bad states: {folder}")
        else:
            shutil.rmtree(folder)
    for name, figures in found.items():
        print(f"{name}: {figures.line()}")
        for example in figures.examples.values():
            print(f"  {example}")
    states, distinct, bad = (sum(getattr(f, n) for f in found.values()) for n in ("states", "distinct", "bad"))
    seconds = time.monotonic() - started
    print(f"{states} states replayed ({distinct} distinct), {bad} bad, {seconds:.0f} s, seed {args.seed}")
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
