"""Client of a process that runs `serve`: a peer in its own environment, or our work that needs a fresh process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, Self

ROOT = Path(__file__).resolve().parents[1]
PEERS = ROOT / ".cache" / "peers"
PEERS_REMEDY = "run scripts/peers.sh"


class PeerError(RuntimeError):
    """The work of the other process raised an error. The message is its traceback."""


class Peer:
    """A process that does named work.

    Args:
        module: Module of this repository that calls `serve`.
        python: Interpreter that runs it. Default: that of this process.
        environment: Environment variables that are added to those of this process.
    """

    def __init__(
        self, module: str, python: str | Path = sys.executable, environment: dict[str, str] | None = None
    ) -> None:
        self._module = module
        self._said = TemporaryFile("w+", encoding="utf-8")  # noqa: SIM115 - open as long as the process, shown when it dies
        self._process = subprocess.Popen(
            [str(python), "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            text=True,
            cwd=ROOT,
            env={**os.environ, **(environment or {})},
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def ask(self, work: str, **arguments: Any) -> Any:
        """Let the other process do some work, and return the result.

        Raises:
            PeerError: The work raised an error, or the process ended.
        """
        if self._process.stdin is None or self._process.stdout is None:
            raise PeerError(f"{self._module}: it has no pipes")
        self._process.stdin.write(json.dumps({"work": work, **arguments}) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            status = self._process.wait()
            self._said.seek(0)
            raise PeerError(f"{self._module}: the process ended with {status} during {work!r}:\n{self._said.read()}")
        answer = json.loads(line)
        if "error" in answer:
            raise PeerError(f"{self._module}: {work!r} failed:\n{answer['error']}")
        return answer["result"]

    def contender(self, work: str, **arguments: Any) -> Callable[[], float]:
        """Return a contender from work whose result is its own duration in seconds."""
        return lambda: float(self.ask(work, **arguments))

    def close(self) -> None:
        """End the process and wait for it."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None and not pipe.closed:
                pipe.close()
        self._process.wait()
        self._said.close()


def peer_python() -> Path | None:
    """Return the interpreter of the peers' environment, if it is complete."""
    python = PEERS / "bin" / "python"
    return python if (PEERS / ".ready").is_file() and python.exists() else None
