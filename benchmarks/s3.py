"""Table: transfers to and from S3 in large requests, by ledgerbeam, obstore and s5cmd: wall time and CPU time."""

from __future__ import annotations

import os
import random
import resource
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import fsspec

from benchmarks.data import Data
from benchmarks.minio import BINARY, REMEDY, s3_server
from benchmarks.peer import PEERS, PEERS_REMEDY, Peer, peer_python
from benchmarks.table import Row, absent_row, most_row, rate
from benchmarks.timing import alternate

PIECE = 16 * 2**20
PIECES, SMALL_PIECES = 16, 4
TITLE = f"Raw S3 (MinIO on loopback, in memory): requests of {PIECE >> 20} MiB, all at once"

LIMIT = 1.3
"""Greatest ratio of our time to that of a peer, for wall time and for CPU time."""

ROUNDS = 5
_BUCKET, _OBJECT = "bench", "whole.bin"
_READ, _WRITE = "conditional ranged GETs", "puts, hashed"
_PEERS = ("obstore", "s5cmd")


@dataclass(frozen=True)
class Used:
    """The time of some work.

    Attributes:
        wall: Wall time, in seconds.
        cpu: CPU time of the process that did the work, in seconds.
    """

    wall: float
    cpu: float


def rows(data: Data) -> Iterator[Row]:
    python = peer_python()
    if python is None or not BINARY.is_file():
        remedy = REMEDY if python else PEERS_REMEDY
        for work in (_READ, _WRITE):
            yield absent_row(f"{work}, vs {' and '.join(_PEERS)}", f"<= {LIMIT:g} x", remedy)
        return
    count = PIECES if data.factor == 1 else SMALL_PIECES
    memory = Path("/dev/shm")
    with ExitStack() as stack:
        # A disk would decide how fast the store takes what it is sent.
        where = memory if os.access(memory, os.W_OK) else data.work
        folder = Path(stack.enter_context(TemporaryDirectory(dir=where)))
        options = stack.enter_context(s3_server(folder))
        contents = _write_files(folder / "in", count)
        store = fsspec.filesystem("s3", **options)
        store.mkdir(_BUCKET)
        store.pipe_file(f"{_BUCKET}/{_OBJECT}", contents)
        sides = _Sides(
            folder,
            options,
            stack.enter_context(Peer("benchmarks.s3_work")),
            stack.enter_context(Peer("benchmarks.peer_obstore", python)),
        )
        sides.require_reads(sha256(contents).hexdigest())
        readers, writers = sides.readers(count), sides.writers()
        yield from _compared(_READ, len(contents), _least(alternate(readers, ROUNDS)))
        found = _least(alternate(writers, ROUNDS))
        for side in writers:
            names = sorted(store.ls(f"{_BUCKET}/{side}", detail=False))
            if sha256(b"".join(store.cat_file(name) for name in names)).digest() != sha256(contents).digest():
                raise RuntimeError(f"{side} has not put what it was given: {names}")
        yield from _compared(_WRITE, len(contents), found)


@dataclass(frozen=True)
class _Sides:
    """The processes that do the work.

    Attributes:
        folder: Folder with the files to upload in `in`. s5cmd downloads into a file in it.
        options: Storage options of the server.
        ours: The process of ledgerbeam.
        obstore: The process of obstore.
    """

    folder: Path
    options: dict[str, Any]
    ours: Peer
    obstore: Peer

    @property
    def _their_options(self) -> dict[str, str]:
        key, secret, endpoint = self.options["key"], self.options["secret"], self._endpoint
        return {"bucket": _BUCKET, "key": key, "secret": secret, "endpoint": endpoint}

    @property
    def _endpoint(self) -> str:
        return str(self.options["client_kwargs"]["endpoint_url"])

    def require_reads(self, digest: str) -> None:
        """Raise RuntimeError if a reader does not read the exact content of the object."""
        found = {
            "ours": self.ours.ask("digest", url=f"s3://{_BUCKET}/{_OBJECT}", options=self.options, piece=PIECE),
            "obstore": self.obstore.ask("digest", name=_OBJECT, options=self._their_options, piece=PIECE),
        }
        self._s5cmd("cp", f"s3://{_BUCKET}/{_OBJECT}", str(self._target))
        found["s5cmd"] = sha256(self._target.read_bytes()).hexdigest()
        if set(found.values()) != {digest}:
            raise RuntimeError(f"{_OBJECT}: expected the digest {digest} of all, found {found}")

    def readers(self, count: int) -> dict[str, Callable[[], Used]]:
        """Return, by name, the functions that read the object in `count` pieces."""

        def s5cmd() -> Used:
            self._target.unlink(missing_ok=True)
            parts = ("--concurrency", str(count), "--part-size", str(PIECE >> 20))
            return self._s5cmd("cp", *parts, f"s3://{_BUCKET}/{_OBJECT}", str(self._target))

        url, asked = f"s3://{_BUCKET}/{_OBJECT}", {"name": _OBJECT, "options": self._their_options, "piece": PIECE}
        return {
            "ours": lambda: Used(*self.ours.ask("read", url=url, options=self.options, piece=PIECE)),
            "obstore": lambda: Used(*self.obstore.ask("read", **asked)),
            "s5cmd": s5cmd,
        }

    def writers(self) -> dict[str, Callable[[], Used]]:
        """Return, by name, the functions that upload all files, each below another name."""
        files, url = str(self.folder / "in"), f"s3://{_BUCKET}/ours"
        asked = {"folder": files, "name": "obstore", "options": self._their_options}
        return {
            "ours": lambda: Used(*self.ours.ask("write", folder=files, url=url, options=self.options)),
            "obstore": lambda: Used(*self.obstore.ask("write", **asked)),
            "s5cmd": lambda: self._s5cmd("cp", f"{files}/*", f"s3://{_BUCKET}/s5cmd/"),
        }

    @property
    def _target(self) -> Path:
        return self.folder / "read.bin"

    def _s5cmd(self, *command: str) -> Used:
        """Run s5cmd. The time includes its start, a hundredth of a second."""
        (program,) = PEERS.glob("lib/python*/site-packages/s5cmd/bin/s5cmd")  # the one of bin is a script of Python
        secrets = {"AWS_ACCESS_KEY_ID": self.options["key"], "AWS_SECRET_ACCESS_KEY": self.options["secret"]}
        environment = {**os.environ, **secrets, "AWS_REGION": "us-east-1"}
        return run([str(program), "--endpoint-url", self._endpoint, *command], environment)


def run(command: Sequence[str], environment: Mapping[str, str]) -> Used:
    """Run a program to its end and return its time.

    Raises:
        RuntimeError: The program ended with an error. The message has its output.
    """
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    wall, after = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr[-4000:]}")
    return Used(wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


def _compared(work: str, size: int, found: Mapping[str, Used]) -> Iterator[Row]:
    ours = found["ours"]
    for peer in _PEERS:
        theirs = found[peer]
        shown = {"ours": _shown(size, ours), "other": f"{peer} {_shown(size, theirs)}"}
        yield most_row(f"{work}, vs {peer}", ours.wall / theirs.wall, LIMIT, " x", **shown)
        yield most_row(f"{work}, processors, vs {peer}", ours.cpu / theirs.cpu, LIMIT, " x", **shown)


def _shown(size: int, used: Used) -> str:
    return f"{rate(size / used.wall, 'B')}, {used.cpu:.2f} CPU s"


def _least(runs: Mapping[str, list[Used]]) -> dict[str, Used]:
    """Return the least wall time and CPU time of each program."""
    return {name: Used(min(one.wall for one in each), min(one.cpu for one in each)) for name, each in runs.items()}


def _write_files(folder: Path, count: int) -> bytes:
    """Write files of random bytes, of the size of a request. Return their bytes, joined."""
    folder.mkdir()
    contents = [random.Random(number).randbytes(PIECE) for number in range(count)]
    for number, content in enumerate(contents):
        (folder / f"{number:04d}.bin").write_bytes(content)
    return b"".join(contents)
