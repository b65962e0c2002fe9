"""Small JSONL files that change as a seed decides, and what each version of them has held."""

from __future__ import annotations

import os
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

SECOND = 10**9
_PAST, _FUTURE = 1_000_000_000, 4_000_000_000  # seconds since 1970; tests run between them
_RECORDS = 6


class Version(NamedTuple):
    """What a listing sees of a file."""

    path: str
    size: int
    time: int


class ChangingSources:
    """The files of one folder.

    Attributes:
        held: What a version has held, newest last. A listing sees no difference between two contents of the same
            size and time, so what counts as complete may be any of them, but never parts of two.
        changed: When each file was changed last, by the clock.
    """

    def __init__(self, folder: Path, choice: random.Random, clock: Callable[[], float]) -> None:
        folder.mkdir()
        self.folder = folder
        self.held: dict[Version, list[bytes]] = {}
        self.changed: dict[Path, float] = {}
        self._clock = clock
        self._choice = choice
        self._edition = 0
        self._former: dict[Path, list[tuple[bytes, int]]] = {}
        self._rest: dict[Path, bytes] = {}
        for name in "abc"[: choice.randint(1, 3)]:
            path = folder / f"{name}.jsonl"
            self._former[path] = []
            self._write(path, self._content(path))

    def change(self) -> str:
        path = self._choice.choice(sorted(self._former))
        if path in self._rest:
            return self._finish(path)
        changes: list[Callable[[Path], None]] = [
            *(self._overwrite, self._overwrite_slowly, self._replace, self._replace_in_time, self._append),
            *(self._replace_unseen, self._overwrite_unseen),
            *(self._truncate, self._empty, self._touch, self._restore, self._delete),
        ]
        change = self._choice.choice(changes) if path.exists() else self._restore
        change(path)
        return f"{change.__name__.strip('_')} {path.name}"

    def settle(self) -> None:
        """End what is half written, and sees that there is a file."""
        for path in list(self._rest):
            self._finish(path)
        for path in sorted(self._former):
            if not any(other.exists() for other in self._former):
                self._write(path, self._content(path))

    def now(self) -> dict[Version, bytes]:
        found = (_version(path) for path in sorted(self._former) if path.exists())
        return {version: self.held[version][-1] for version in found}

    def _content(self, path: Path) -> bytes:
        """Make records of a new edition, which all name it."""
        self._edition += 1
        line = f'{{"id":"{path.stem}-{self._edition:04d}-%d"}}\n'
        return "".join(line % number for number in range(self._choice.randint(1, _RECORDS))).encode()

    def _time(self) -> int:
        self._edition += 1  # no two are the same
        kind = self._choice.random()
        seconds = _FUTURE if kind < 0.08 else _PAST - 10**6 if kind < 0.2 else _PAST
        return (seconds + self._edition) * SECOND + self._choice.randrange(SECOND)

    def _note(self, path: Path, modified: int | None = None) -> None:
        os.utime(path, ns=(modified or self._time(),) * 2)
        data = path.read_bytes()
        version = _version(path)
        held = self.held.setdefault(version, [])
        if data in held:
            held.remove(data)
        held.append(data)
        self._former[path].append((data, version.time))
        self.changed[path] = self._clock()

    def _write(self, path: Path, data: bytes, time: int | None = None) -> None:
        aside = path.with_suffix(".new")
        aside.write_bytes(data)
        time = time or self._time()
        os.utime(aside, ns=(time, time))
        aside.replace(path)
        self._note(path, time)

    def _overwrite(self, path: Path) -> None:
        path.write_bytes(self._content(path))
        self._note(path)

    def _overwrite_slowly(self, path: Path) -> None:
        data = self._content(path)
        cut = self._choice.randint(0, len(data))
        path.write_bytes(data[:cut])
        self._rest[path] = data[cut:]
        self._note(path)

    def _finish(self, path: Path) -> str:
        rest = self._rest.pop(path)
        with path.open("ab") as file:
            file.write(rest)
        self._note(path)
        return f"overwritten {path.name}"

    def _replace(self, path: Path) -> None:
        self._write(path, self._content(path))

    def _replace_in_time(self, path: Path) -> None:
        self._write(path, self._content(path), _version(path).time)

    def _replace_unseen(self, path: Path) -> None:
        """Put a file of the same size and time in the place of one, as `cp -p` of a corrected file may."""
        self._write(path, self._other(path), _version(path).time)

    def _overwrite_unseen(self, path: Path) -> None:
        """Write other bytes into a file and put its time back."""
        data, before = self._other(path), _version(path).time
        path.write_bytes(data)
        self._note(path, before)

    def _other(self, path: Path) -> bytes:
        """Make a content of the same size: records of another edition."""
        self._edition += 1
        return re.sub(rb"-\d{4}-", b"-%04d-" % self._edition, path.read_bytes())

    def _append(self, path: Path) -> None:
        with path.open("ab") as file:
            file.write(self._content(path))
        self._note(path)

    def _truncate(self, path: Path) -> None:
        os.truncate(path, self._choice.randint(0, path.stat().st_size))
        self._note(path)

    def _empty(self, path: Path) -> None:
        os.truncate(path, 0)
        self._note(path)

    def _touch(self, path: Path) -> None:
        self._note(path)

    def _restore(self, path: Path) -> None:
        data, time = self._choice.choice(self._former[path])
        self._write(path, data, time)

    def _delete(self, path: Path) -> None:
        path.unlink()


def _version(path: Path) -> Version:
    found = path.stat()
    return Version(str(path), found.st_size, found.st_mtime_ns)
