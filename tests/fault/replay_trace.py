"""What a traced process did to the files below one folder, and what it said meanwhile, in order."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

CALLS = (
    "openat,close,lseek,write,writev,pwrite64,pwritev,pwritev2,ftruncate,fallocate,fsync,fdatasync,sync_file_range,"
    "msync,rename,renameat,renameat2,link,linkat,unlink,unlinkat,mkdir,mkdirat,rmdir,dup,dup2,dup3"
)
"""The system calls that a replay must know. What writes through a mapping is not seen."""

_LINE = re.compile(r"(\w+)\((.*)\)\s+= (-?\d+)(?: .*)?$")
_STRING = re.compile(r'"((?:\\x[0-9a-f]{2})*)"')
_LONGEST = 1 << 26


@dataclass(frozen=True)
class Said:
    """A line on standard output."""

    text: str


@dataclass(frozen=True)
class Create:
    """A new file under a free name."""

    path: str


@dataclass(frozen=True)
class MakeFolder:
    """A new folder."""

    path: str


@dataclass(frozen=True)
class Write:
    """Bytes into a file, which is named by the path under which it was opened and by how many opens came before."""

    handle: int
    offset: int
    data: bytes


@dataclass(frozen=True)
class Truncate:
    """A new size of a file, zeros where it grows; `grows` if it stays as it is where it is larger."""

    handle: int
    size: int
    grows: bool = False


@dataclass(frozen=True)
class Open:
    """A handle of a file or folder that exists by now."""

    handle: int
    path: str


@dataclass(frozen=True)
class Sync:
    """What was written through any handle of the file is on the disk; of a folder, its names are."""

    handle: int
    pages: range | None = None


@dataclass(frozen=True)
class Rename:
    """Another name in the place of whatever had it."""

    old: str
    new: str


@dataclass(frozen=True)
class Link:
    """A further name."""

    old: str
    new: str


@dataclass(frozen=True)
class Unlink:
    """A name less, of a file or an empty folder."""

    path: str


Operation = Said | Create | MakeFolder | Write | Truncate | Open | Sync | Rename | Link | Unlink

PAGE = 4096


def why_no_strace() -> str | None:
    """Return why processes cannot be traced here; None if they can."""
    if shutil.which("strace") is None:
        return "no strace: install the package of that name"
    probe = subprocess.run(["strace", "-qq", "-o", "/dev/null", "true"], capture_output=True, text=True, check=False)
    if probe.returncode:
        return f"strace may not trace here ({probe.stderr.strip()[:100]}): allow ptrace (CAP_SYS_PTRACE)"
    return None


def record(command: Sequence[str], root: Path, trace: Path, env: Mapping[str, str]) -> list[Operation]:
    """Run a command of one thread and return what it did below `root`, and what it said."""
    strace = [
        "strace",
        "-qq",
        "-xx",
        "-s",
        str(_LONGEST),
        "-o",
        str(trace),
        "-e",
        f"trace={CALLS}",
        "-e",
        "signal=none",
    ]
    done = subprocess.run([*strace, *command], env=env, capture_output=True, text=True, check=False, timeout=300)
    if done.returncode:
        raise RuntimeError(f"{command} ended with {done.returncode}: {done.stderr[-2000:]}")
    with trace.open(encoding="ascii") as lines:
        return list(parse(lines, str(root)))


def parse(lines: Iterable[str], root: str) -> Iterator[Operation]:
    """Read strace's lines."""
    return _Parser(root).parse(lines)


@dataclass
class _Handle:
    number: int
    position: int = 0
    is_synced: bool = False


class _Parser:
    """Descriptors come and go; each open below the root becomes a handle with a number of its own."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._open: dict[int, _Handle] = {}
        self._count = 0
        self._known = {root}

    def parse(self, lines: Iterable[str]) -> Iterator[Operation]:
        for line in lines:
            match = _LINE.match(line)
            if match is None:
                raise ValueError(f"not a finished call: {line[:200]}")
            name, arguments, result = match[1], match[2], int(match[3])
            if result >= 0:
                yield from self._call(name, arguments, result)

    def _call(self, name: str, arguments: str, result: int) -> Iterator[Operation]:
        texts = [bytes.fromhex(found.replace("\\x", "")) for found in _STRING.findall(arguments)]
        if name == "openat":
            yield from self._openat(os.fsdecode(texts[0]), arguments, result)
        elif name in {"rename", "link", "unlink", "mkdir", "rmdir"} or name.endswith("at"):
            yield from self._names(name, [os.fsdecode(text) for text in texts])
        else:
            yield from self._descriptor(name, arguments, texts, result)

    def _openat(self, path: str, arguments: str, descriptor: int) -> Iterator[Operation]:
        self._open.pop(descriptor, None)
        if not self._is_below(path):
            return
        self._count += 1
        handle = self._open[descriptor] = _Handle(self._count, is_synced="SYNC" in arguments)
        if "O_CREAT" in arguments and path not in self._known:
            self._known.add(path)
            yield Create(path)
        yield Open(handle.number, path)
        if "O_TRUNC" in arguments:
            yield Truncate(handle.number, 0)

    def _names(self, name: str, paths: Sequence[str]) -> Iterator[Operation]:
        if not any(self._is_below(path) for path in paths):
            return
        kind = name.removesuffix("at")
        first, last = paths[0], paths[-1]
        if kind == "mkdir":
            self._known.add(first)
            yield MakeFolder(first)
        elif kind in {"unlink", "rmdir"}:
            self._known.discard(first)
            yield Unlink(first)
        elif kind == "link":
            self._known.add(last)
            yield Link(first, last)
        elif kind == "rename":
            self._known.discard(first)
            self._known.add(last)
            yield Rename(first, last)
        else:
            raise ValueError(f"{name} of {paths} is not understood")

    def _descriptor(self, name: str, arguments: str, texts: Sequence[bytes], result: int) -> Iterator[Operation]:
        words = arguments.split(",")
        descriptor = int(words[0]) if words[0].isdecimal() else -1
        if name == "write" and descriptor == 1:
            yield from (Said(line) for line in texts[0].decode().splitlines())
            return
        handle = self._open.get(descriptor)
        if handle is None:
            return
        if name == "close":
            del self._open[descriptor]
        elif name == "lseek":
            handle.position = result
        elif name in {"fsync", "fdatasync"}:
            yield Sync(handle.number)
        elif name == "ftruncate":
            yield Truncate(handle.number, int(words[1]))
        elif name == "fallocate":
            yield Truncate(handle.number, int(words[2]) + int(words[3]), grows=True)
        elif name in {"write", "writev"}:
            yield from _written(handle, handle.position, b"".join(texts)[:result])
            handle.position += result
        elif name in {"pwrite64", "pwritev"}:
            yield from _written(handle, int(words[-1]), b"".join(texts)[:result])
        else:
            raise ValueError(f"{name}({arguments[:100]}) is not understood")

    def _is_below(self, path: str) -> bool:
        return path == self._root or path.startswith(f"{self._root}/")


def _written(handle: _Handle, offset: int, data: bytes) -> Iterator[Operation]:
    yield Write(handle.number, offset, data)
    if handle.is_synced:
        yield Sync(handle.number, range(offset // PAGE, (offset + len(data) - 1) // PAGE + 1))
