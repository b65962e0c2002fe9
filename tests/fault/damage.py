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
from struct import Struct
from typing import Any, NamedTuple

from tests.fault.damage_job import GONE, STATES, Place, Ran, warm_up

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


PAGE = 4096

_HEADER = Struct("<QHHHH")  # number, padding, flags, lower, upper
_NODE = Struct("<HHHH")  # two halves of the size, or of the number of a page; flags, size of the key
_TABLE = Struct("<IHHQQQQQ")  # padding, flags, depth, branches, leaves, overflows, entries, root
_NUMBER = Struct("<Q")

_BRANCH, _LEAF = 0x01, 0x02
_LARGE, _SUBTABLE = 0x01, 0x02
HEADER_BYTES = _HEADER.size
_FREE, _MAIN, _TXN = 40, 88, 144
"""Where a meta page has the table of free pages, that of tables, and the number of its transaction."""

_NONE = 2**64 - 1


class Row(NamedTuple):
    """Where a row lies in the file: its table, its node, its key and its value, as begin and end."""

    table: str
    node: tuple[int, int]
    key: tuple[int, int]
    value: tuple[int, int]


class Files(NamedTuple):
    """Files of ledgers of one job: that which is damaged, what it was before, oldest first, and another one."""

    data: bytes
    older: list[bytes]
    other: bytes


class Layout(NamedTuple):
    """What of a file is in use."""

    pages: dict[str, list[int]]  # by table; ``""`` for the table of tables, ``"head"`` for that which counts
    rows: list[Row]  # of all tables


def layout(data: bytes) -> Layout:
    """Return what of a whole file is in use."""
    newest = max((0, 1), key=lambda page: _NUMBER.unpack_from(data, page * PAGE + _TXN))
    found = Layout({"head": [newest]}, [])
    _walk(data, _root(data, newest * PAGE + _MAIN), "", found)
    return found


def _root(data: bytes, place: int) -> int:
    root: int = _TABLE.unpack_from(data, place)[-1]
    return root


def _walk(data: bytes, page: int, table: str, found: Layout) -> None:
    if page == _NONE:
        return
    found.pages.setdefault(table, []).append(page)
    flags = _HEADER.unpack_from(data, page * PAGE)[2]
    for node in _nodes(data, page):
        low, high, kind, size = _NODE.unpack_from(data, node)
        begin = node + _NODE.size
        if flags & _BRANCH:
            _walk(data, low | high << 16 | kind << 32, table, found)
            continue
        value, length = begin + size, low | high << 16
        if kind & _SUBTABLE:
            _walk(data, _root(data, value), data[begin:value].decode(), found)
            continue
        if kind & _LARGE:
            first = _NUMBER.unpack_from(data, value)[0]
            found.pages[table] += range(first, first + (HEADER_BYTES + length + PAGE - 1) // PAGE)
            value = first * PAGE + HEADER_BYTES
        found.rows.append(Row(table, (node, begin), (begin, begin + size), (value, value + length)))


def _nodes(data: bytes, page: int) -> Iterator[int]:
    lower = _HEADER.unpack_from(data, page * PAGE)[3]
    for place in range(HEADER_BYTES, lower, 2):
        yield page * PAGE + int.from_bytes(data[page * PAGE + place : page * PAGE + place + 2], "little")


def damaged(files: Files, choice: random.Random) -> tuple[bytes, str]:
    """Damage one place of a file that is in use; return the file, and what was done to it."""
    data = files.data
    used = layout(data)
    table = choice.choice(sorted(used.pages))
    if choice.random() < 0.4:
        return _page(files, used, table, choice)
    begin, end, what = _place(data, used, choice.choice(sorted(used.pages)), choice)
    made = bytearray(data)
    length = min(end - begin, choice.choice([1, 1, 2, 8, 16, 64]))
    start = choice.randrange(begin, end - length + 1)
    match choice.choice(["bit", "bit", "bytes", "zeros", "ones"]):
        case "bit":
            made[start] ^= 1 << choice.randrange(8)
            how = f"bit at {start}"
        case "bytes":
            made[start : start + length] = choice.randbytes(length)
            how = f"{length} bytes at {start}"
        case "zeros":
            made[start : start + length] = bytes(length)
            how = f"{length} zeros at {start}"
        case _:
            made[start : start + length] = b"\xff" * length
            how = f"{length} ones at {start}"
    return bytes(made), f"{how} in {what}"


def _place(data: bytes, used: Layout, table: str, choice: random.Random) -> tuple[int, int, str]:
    """Return begin and end of what is to be damaged, and what it is."""
    rows = [row for row in used.rows if row.table == table]
    what = choice.random()
    if rows and what < 0.75:
        row = choice.choice(rows)
        part = choice.choice(["node", "key", "value", "value", "value"])
        begin, end = getattr(row, part)
        if begin < end:
            return begin, end, f"a {part} of {table}"
    page = choice.choice(used.pages[table])
    begin = page * PAGE
    lower = _HEADER.unpack_from(data, begin)[3]
    if table == "head" or what > 0.95 or not HEADER_BYTES < lower <= PAGE:
        return begin, begin + (PAGE if table != "head" else 160), f"page {page} of {table or 'the tables'}"
    return begin, begin + lower, f"the head of page {page} of {table or 'the tables'}"


def _page(files: Files, used: Layout, table: str, choice: random.Random) -> tuple[bytes, str]:
    data, older, other = files
    page = choice.choice(used.pages[table])
    made = bytearray(data)
    place = slice(page * PAGE, (page + 1) * PAGE)
    of = f"page {page} of {table or 'the tables'}"
    before = [file[place] for file in older if len(file) >= place.stop and file[place] != data[place]]
    match choice.choice(["zeroed", "older", "older", "swapped", "swapped with one of its table", "of another ledger"]):
        case "older" if before:
            number = choice.randrange(len(before))
            made[place] = before[number]
            return bytes(made), f"{of} as it was, {number} of {len(before)}"
        case "swapped":
            return _swapped(data, page, choice.choice([n for pages in used.pages.values() for n in pages]), of)
        case "swapped with one of its table" if len(used.pages[table]) > 1:
            return _swapped(data, page, choice.choice(used.pages[table]), of)
        case "of another ledger":
            there = layout(other).pages.get(table, [0])
            number = choice.choice(there)
            made[place] = other[number * PAGE : (number + 1) * PAGE]
            return bytes(made), f"{of} with page {number} of another ledger"
        case _:
            made[place] = bytes(PAGE)
            return bytes(made), f"{of} zeroed"


def _swapped(data: bytes, one: int, another: int, of: str) -> tuple[bytes, str]:
    made = bytearray(data)
    first, second = (slice(page * PAGE, (page + 1) * PAGE) for page in (one, another))
    made[first], made[second] = data[second], data[first]
    return bytes(made), f"{of} swapped with {another}"


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
