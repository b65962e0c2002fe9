"""Start of waves. They are forked from one process that has imported Beam and the clients of stores once.

The process that builds indexes ahead is forked from another one, which does not wait for these imports.
"""

from __future__ import annotations

import json
import resource
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Literal, Self

from ledgerbeam._base.process import BeamParts
from ledgerbeam.errors import StorageError
from ledgerbeam.pipelines.console.run_progress import count
from ledgerbeam.pipelines.runners.server_process import ServerProcess, Wave

Forked = Literal["wave", "ahead"]

_DESCRIPTORS, _DESCRIPTORS_OF_WORKER = 64, 4
"""Number of files that a process of a wave may have open: a worker up to 50, the first process 25 and 4 for each
worker. The rest is for functions and files of Python modules."""


def require_descriptors(workers: int) -> None:
    """Check that processes of a wave may open enough files: gRPC would wait forever for one more.

    A soft limit that is too low is raised to the needed number.

    Args:
        workers: Worker processes of the wave.

    Raises:
        StorageError: The hard limit is too low.
    """
    needed = _DESCRIPTORS + _DESCRIPTORS_OF_WORKER * workers
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < needed:
        most = (hard - _DESCRIPTORS) // _DESCRIPTORS_OF_WORKER
        fewer = f", or give --workers {most} or fewer," if most > 0 else ""
        raise StorageError(
            f"the limit of open files (ulimit -n) is {hard}, and a run with {count(workers, 'local worker')} needs "
            f"{needed}: raise the limit{fewer} and run the same command again"
        )
    if soft != resource.RLIM_INFINITY and soft < needed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


class Waves:
    """The waves of a call. The server that forks them ends with the context.

    Args:
        log_level: Lowest level that their processes log.
        schemes: URL schemes of the stores that they are likely to use.
    """

    def __init__(self, log_level: str, schemes: Sequence[str] = ()) -> None:
        self._log_level = log_level
        self._schemes = schemes
        self._server: ServerProcess | None = None
        self._parts: BeamParts | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        if self._server is not None:
            self._server.end()

    def prepare(self, parts: BeamParts) -> None:
        """Start the imports for waves in the background."""
        if self._server is not None and not (self._server.lives and self._parts == parts):
            self._server.end()
            self._server = None
        if self._server is None:
            self._parts = parts
            arguments = [parts, self._log_level, *self._schemes]
            self._server = ServerProcess("ledgerbeam.pipelines.runners.wave", ("wave", "ahead"), arguments)

    def start(self, parts: BeamParts, arguments: Sequence[str], environment: Mapping[str, str]) -> Wave:
        """Start a wave.

        Args:
            parts: Parts of Beam that the wave needs.
            arguments: Arguments of the wave's process.
            environment: Environment of its processes.
        """
        return self._ask(parts, "wave", arguments, environment)

    def start_ahead(self, parts: BeamParts, arguments: Sequence[str], environment: Mapping[str, str]) -> Wave:
        """Start a process that builds indexes ahead; for arguments see `start`."""
        return self._ask(parts, "ahead", arguments, environment)

    def _ask(self, parts: BeamParts, what: Forked, arguments: Sequence[str], environment: Mapping[str, str]) -> Wave:
        self.prepare(parts)
        if self._server is None:
            raise AssertionError("a server was begun")
        request = json.dumps({"arguments": arguments, "environment": dict(environment)}).encode()
        return self._server.ask(what, request)
