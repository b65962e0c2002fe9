"""Random damage to files, and parsers that read it: typed errors only, little time, and memory bounded by the input."""

from __future__ import annotations

import os
import random
import resource
import signal
import sys
import time
import tracemalloc
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal, TypeAlias

from ledgerbeam.errors import LedgerbeamError, SourceNotFoundError, UsageError

MOST_BYTES = 4_000_000  # far more than the inputs have, and far less than damaged numbers claim

_ROOM = 768 << 20  # address space of a long run, including a Zstandard window of up to 128 MiB
_SECONDS = 30  # of processor time
_TIME_NS = 1_700_000_000_000_000_000

Trial: TypeAlias = Callable[[random.Random], str]
"""Makes an input, reads it and returns the outcome. May raise typed errors that name the input."""


class Files:
    """Small files, of which one at a time is damaged. Their times do not change, so no index is older than its source.

    Args:
        folder: Their folder.
        contents: The files that may be damaged, with their intact contents.
        fields: Offsets of number fields in binary files.
    """

    def __init__(self, folder: Path, contents: Mapping[str, bytes], fields: Mapping[str, Sequence[int]]) -> None:
        self.contents = dict(contents)
        self._folder = str(folder)
        self._fields = dict(fields)
        self._names = list(contents)
        self._damaged = ""
        for name in contents:
            self._put(name, contents[name])
        for path in folder.iterdir():
            os.utime(path, ns=(_TIME_NS, _TIME_NS))

    def damage(self, chance: random.Random) -> tuple[str, bytes]:
        """Repair the damaged file and damage another one; return its name and content."""
        if self._damaged:
            self._put(self._damaged, self.contents[self._damaged])
        name = self._damaged = chance.choice(self._names)
        sound = self.contents[name]
        content = mangled(sound, chance, self._fields[name]) if name in self._fields else damaged(sound, chance)
        self._put(name, content)
        return name, content

    def _put(self, name: str, content: bytes) -> None:
        path = f"{self._folder}/{name}"
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.write(descriptor, content)
        os.utime(descriptor, ns=(_TIME_NS, _TIME_NS))
        os.close(descriptor)


def fuzz(trial: Trial, inputs: int, seed: int, *, first: int = 0, name: str = "") -> Counter[str]:
    """Make and read damaged inputs. Each depends on the seed and its number only.

    Args:
        trial: Uses one input.
        inputs: Number of inputs.
        seed: Seed of the damages.
        first: Number of the first input.
        name: Text that every error must contain.

    Returns:
        The number of times of each outcome. Other errors are raised, with the number of the input as a note. So is
        UsageError, which blames the caller.
    """
    chance = random.Random()
    outcomes: Counter[str] = Counter()
    before = signal.signal(signal.SIGPROF, _too_long)
    try:
        for number in range(first, first + inputs):
            chance.seed(seed << 40 | number)
            signal.setitimer(signal.ITIMER_PROF, _SECONDS)
            try:
                outcome = trial(chance)
            except Exception as error:
                named = name in str(error) or isinstance(error, SourceNotFoundError)  # for a name in the damaged data
                if not isinstance(error, LedgerbeamError) or isinstance(error, UsageError) or not named:
                    error.add_note(f"input {number} of seed {seed}")
                    raise
                outcome = type(error).__name__
            outcomes[outcome] += 1
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
    return outcomes


def fuzz_briefly(trial: Trial, inputs: int, seed: int = 1, *, most: int = MOST_BYTES, name: str = "") -> Counter[str]:
    """Fuzz, and assert that it needs little memory."""
    fuzz(trial, 50, seed + 1, name=name)  # imports and caches
    tracemalloc.start()
    try:
        outcomes = fuzz(trial, inputs, seed, name=name)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < most
    return outcomes


def limit_memory() -> None:
    """Limit the address space of this process so that no damaged number can allocate its value."""
    used = int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + _ROOM, -1))


def main(make: Callable[[Path], Trial], name: str = "") -> None:
    """Do a long run, `INPUTS [SEED [FIRST]]`, in limited memory."""
    given = list(map(int, sys.argv[1:]))
    inputs, seed, first = [*given, 1, 0] if len(given) == 1 else [*given, 0][:3]
    warnings.simplefilter("ignore")  # warnings of libraries about damaged data
    with TemporaryDirectory(dir="/dev/shm") as folder:
        trial = make(Path(folder))
        fuzz(trial, 200, seed + 1, name=name)  # imports and caches
        limit_memory()
        before, started = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.monotonic()
        outcomes = fuzz(trial, inputs, seed, first=first, name=name)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    figures = ", ".join(f"{what} {count:,}" for what, count in sorted(outcomes.items()))
    print(
        f"{inputs:,} inputs of seed {seed} in {time.monotonic() - started:,.0f} s: {figures}; grew by {grown:.1f} MiB"
    )


def _too_long(*_: object) -> None:
    raise TimeoutError(f"an input took more than {_SECONDS} s")


_TEXT = [*(bytes([byte]) for byte in b'{}[]":,-'), b"9" * 30, b"null", b"1e999", b"..", b"\\ud800", b"\xff", b"\n"]

# Values for damaged fields. The last one is -1, too.
NUMBERS = [0, 1, 2, 7, 255, 2**15, 2**31 - 1, 2**31, 2**32 - 1, 2**60, 2**62, 2**63 - 1, 2**63, 2**64 - 8, 2**64 - 1]


def mangled(content: bytes, chance: random.Random, fields: Sequence[int] = (), width: int = 8) -> bytes:
    """Change bits, numbers, blocks and the length of a binary file.

    Args:
        content: The intact content.
        chance: Source of random changes.
        fields: Offsets of its number fields, from its end if negative. They are changed more often than other bytes.
        width: Size of these fields in bytes.
    """
    data = bytearray(content)
    orders: list[Literal["little", "big"]] = ["little", "little", "big"]
    for _ in range(chance.choice([1, 1, 1, 2, 4])):
        at = chance.randrange(len(data) + 1)
        order = chance.choice(orders)
        match chance.randrange(11):
            case 0 if data:
                data[at % len(data)] ^= 1 << chance.randrange(8)
            case 1:
                data[at : at + 1] = chance.randbytes(1)
            case 2:
                size = chance.choice([2, 4, 8])
                data[at : at + size] = (chance.choice(NUMBERS) & (1 << 8 * size) - 1).to_bytes(size, order)
            case 3:
                at -= at % width
                data[at : at + width] = (chance.choice(NUMBERS) & (1 << 8 * width) - 1).to_bytes(width, order)
            case 4 | 5 if fields:
                at = chance.choice(fields) % max(1, len(data))
                data[at : at + width] = (chance.choice(NUMBERS) & (1 << 8 * width) - 1).to_bytes(width, order)
            case 6:  # a little more or less than before
                at = chance.choice(fields) % max(1, len(data)) if fields else at - at % width
                number = int.from_bytes(data[at : at + width], "little") + chance.choice([-512, -8, -1, 1, 8, 512])
                data[at : at + width] = (number & (1 << 8 * width) - 1).to_bytes(width, "little")
            case 7:
                del data[at:]
            case 8:
                data[at:at] = chance.randbytes(chance.choice([1, 8, 40]))
            case 9:
                size, other = chance.choice([1, 8, 16, 512]), chance.randrange(len(data) + 1)
                data[at:at] = data[other : other + size]
            case _:
                del data[at : at + chance.choice([1, 8, 16, 512])]
    return bytes(data)


def damaged(content: bytes, chance: random.Random) -> bytes:
    """Change a text file at random."""
    data = bytearray(content)
    for _ in range(chance.choice([1, 1, 2, 5])):
        at = chance.randrange(len(data) + 1)
        match chance.randrange(6):
            case 0:
                data[at : at + 1] = chance.randbytes(1)
            case 1:
                data[at:at] = chance.choice(_TEXT)
            case 2:
                data[at : at + chance.randrange(1, 9)] = chance.choice(_TEXT)
            case 3:
                del data[at:]
            case 4:
                other = chance.randrange(len(data) + 1)
                data[at:at] = data[other : other + chance.randrange(1, 40)]
            case _:
                del data[at : at + chance.randrange(1, 600)]
    return bytes(data)
