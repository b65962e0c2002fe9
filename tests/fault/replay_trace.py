"""The operations of a traced process on the files below one folder, its output, and what a power cut may leave.

A file keeps what was synced. Of what was written since, any 4 KiB page may be there, in any of its versions, or torn
between two of them at 512 byte sectors; the size may be that of any moment, and what was never written reads as
zeros. Names are kept apart from files: a name that was made, moved or taken away is sure only when its folder was
synced. Until then any of these changes may be missing, each by itself (as POSIX allows) or all from some moment on (as
journals do).
"""

from __future__ import annotations

import os
import random
import re
import shutil
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any

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
    text: str


@dataclass(frozen=True)
class Create:
    """A new file under a free name."""

    path: str


@dataclass(frozen=True)
class MakeFolder:
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
    strace = ["strace", "-qq", "-xx", "-s", str(_LONGEST), "-o", str(trace)]
    strace += ["-e", f"trace={CALLS}", "-e", "signal=none"]
    done = subprocess.run([*strace, *command], env=env, capture_output=True, text=True, check=False, timeout=300)
    if done.returncode:
        raise RuntimeError(f"{command} ended with {done.returncode}: {done.stderr[-2000:]}")
    with trace.open(encoding="ascii") as lines:
        return list(parse(lines, str(root)))


def parse(lines: Iterable[str], root: str) -> Iterator[Operation]:
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


SECTOR = 512
KEEP = (0.0, 1.0, 0.5, 0.1, 0.9)  # shares of what is not synced that a crash leaves; each crash has one of them
TORN = 0.2  # how often a page that is left is torn


@dataclass(eq=False)
class _File:
    synced: bytes = b""
    content: bytearray = field(default_factory=bytearray)
    versions: dict[int, list[bytes]] = field(default_factory=dict)
    sizes: list[int] = field(default_factory=list)

    def write(self, offset: int, data: bytes) -> None:
        end = offset + len(data)
        self.resize(max(end, len(self.content)))
        self.content[offset:end] = data
        for page in range(offset // PAGE, -(-end // PAGE)):
            self.versions.setdefault(page, []).append(bytes(self.content[page * PAGE : (page + 1) * PAGE]))

    def resize(self, size: int) -> None:
        if size == len(self.content):
            return
        self.content[size:] = bytes(max(0, size - len(self.content)))
        self.sizes.append(size)

    def sync(self, pages: range | None) -> None:
        if pages is None or self.versions.keys() <= set(pages):
            self.synced = bytes(self.content)
            self.versions.clear()
            self.sizes.clear()
            return
        kept = bytearray(self.synced)
        for page in pages:
            self.versions.pop(page, None)
            part = self.content[page * PAGE : (page + 1) * PAGE]
            kept.extend(bytes(max(0, page * PAGE + len(part) - len(kept))))
            kept[page * PAGE : page * PAGE + len(part)] = part
        self.synced = bytes(kept)

    def crash(self, chance: random.Random, keep: float) -> bytes:
        size = len(self.synced)
        if self.sizes and chance.random() < keep:
            size = chance.choice([self.sizes[-1], *self.sizes])
        left = bytearray(self.synced[:size]) + bytes(max(0, size - len(self.synced)))
        for page, versions in self.versions.items():
            start = page * PAGE
            if start < size and chance.random() < keep:
                version = chance.choice([versions[-1], *versions])
                _put(left, start, version, chance if chance.random() < TORN else None)
        return bytes(left[:size])


def _put(content: bytearray, start: int, page: bytes, chance: random.Random | None) -> None:
    for sector in range(0, len(page), SECTOR):
        if chance is None or chance.random() < 0.5:
            part = page[sector : sector + SECTOR]
            content[start + sector : start + sector + len(part)] = part


@dataclass(eq=False)
class _Folder:
    synced: dict[str, _File | _Folder] = field(default_factory=dict)
    names: dict[str, _File | _Folder] = field(default_factory=dict)


@dataclass(frozen=True)
class _Change:
    """What one call does to names, as a whole or not at all: (folder, name, what it names from then on)."""

    parts: tuple[tuple[_Folder, str, _File | _Folder | None], ...]


class Disk:
    """The files below a folder, as they are and as they were synced."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._top = _Folder()
        self._handles: dict[int, _File | _Folder] = {}
        self._changes: list[_Change] = []
        self._do: dict[type, Callable[[Any], None]] = {
            Create: lambda op: self._rename((op.path, _File())),
            MakeFolder: lambda op: self._rename((op.path, _Folder())),
            Link: lambda op: self._rename((op.new, self._find(op.old))),
            Rename: lambda op: self._rename((op.old, None), (op.new, self._find(op.old))),
            Unlink: lambda op: self._rename((op.path, None)),
            Open: lambda op: self._handles.__setitem__(op.handle, self._find(op.path)),
            Write: lambda op: self._file(op.handle).write(op.offset, op.data),
            Truncate: self._truncate,
            Sync: self._sync,
        }

    def apply(self, operation: Operation) -> None:
        do = self._do.get(type(operation))
        if do is not None:
            do(operation)

    def crash(self, chance: random.Random) -> dict[str, bytes | None]:
        """Draw what a crash at this moment leaves: the content of each file by its path, None for a folder."""
        keep = chance.choice(KEEP)
        names = self._names_left(chance, keep)
        contents: dict[int, bytes] = {}

        def walk(folder: _Folder, path: str) -> Iterator[tuple[str, bytes | None]]:
            for name, node in names.get(id(folder), folder.synced).items():
                below = os.path.join(path, name)
                if isinstance(node, _Folder):
                    yield below, None
                    yield from walk(node, below)
                else:
                    if id(node) not in contents:
                        contents[id(node)] = node.crash(chance, keep)
                    yield below, contents[id(node)]

        return dict(walk(self._top, ""))

    def _names_left(self, chance: random.Random, keep: float) -> Mapping[int, dict[str, _File | _Folder]]:
        if chance.random() < 0.5:
            left = self._changes[: chance.randint(0, len(self._changes))]
        else:
            left = [change for change in self._changes if chance.random() < keep]
        names: dict[int, dict[str, _File | _Folder]] = {}
        for change in left:
            for folder, name, node in change.parts:
                _name(names.setdefault(id(folder), dict(folder.synced)), name, node)
        return names

    def _place(self, path: str) -> tuple[_Folder, str]:
        folder = self._top
        *above, name = os.path.relpath(path, self._root).split("/")
        for part in above:
            below = folder.names[part]
            if not isinstance(below, _Folder):
                raise NotADirectoryError(path)
            folder = below
        return folder, name

    def _find(self, path: str) -> _File | _Folder:
        if path == self._root:
            return self._top
        folder, name = self._place(path)
        return folder.names[name]

    def _file(self, handle: int) -> _File:
        found = self._handles[handle]
        if not isinstance(found, _File):
            raise IsADirectoryError(handle)
        return found

    def _rename(self, *pairs: tuple[str, _File | _Folder | None]) -> None:
        parts = tuple((*self._place(path), node) for path, node in pairs)
        for folder, name, node in parts:
            _name(folder.names, name, node)
        self._changes.append(_Change(parts))

    def _truncate(self, operation: Truncate) -> None:
        file = self._file(operation.handle)
        if not operation.grows or operation.size > len(file.content):
            file.resize(operation.size)

    def _sync(self, operation: Sync) -> None:
        node = self._handles[operation.handle]
        if isinstance(node, _File):
            node.sync(operation.pages)
            return
        waiting = []
        for change in self._changes:
            if any(folder is node for folder, _, _ in change.parts):
                for folder, name, named in change.parts:
                    _name(folder.synced, name, named)
            else:
                waiting.append(change)
        self._changes = waiting


def _name(names: dict[str, _File | _Folder], name: str, node: _File | _Folder | None) -> None:
    if node is None:
        names.pop(name, None)
    else:
        names[name] = node


def digest_of(files: Mapping[str, bytes | None]) -> bytes:
    """Tell states apart: 16 bytes of their names and contents."""
    digest = blake2b(digest_size=16)
    for path, content in sorted(files.items()):
        digest.update(f"{path}\0{-1 if content is None else len(content)}\0".encode(errors="surrogateescape"))
        digest.update(content or b"")
    return digest.digest()


def lay_out(files: Mapping[str, bytes | None], folder: Path) -> None:
    """Make real files of a state; `folder` is made too."""
    folder.mkdir()
    for path, content in sorted(files.items()):
        if content is None:
            (folder / path).mkdir()
        else:
            (folder / path).write_bytes(content)
