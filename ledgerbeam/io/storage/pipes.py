"""`pipe:` sources: the output of a shell command.

Such a name can run any program. It is refused unless the environment variable `LEDGERBEAM_ALLOW_PIPES` is `1`.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from tempfile import TemporaryFile

from ledgerbeam._base.redaction import printable, without_secrets
from ledgerbeam.errors import SourceError, UsageError

ALLOW_PIPES = "LEDGERBEAM_ALLOW_PIPES"
"""The environment variable that allows pipes in this process and its child processes."""

_SCHEME = "pipe:"
_BLOCK = 1024 * 1024
_SHOWN = 300
_ENDED_EARLY = 128 + signal.SIGPIPE  # with pipefail: the next command stopped reading, which is no failure


def is_pipe(url: str) -> bool:
    """Return whether a name is a `pipe:` command."""
    return url.startswith(_SCHEME)


def read_pipe(url: str) -> Iterator[bytes]:
    """Run the command of a pipe and return its output in blocks. Each read runs the command again.

    Args:
        url: `pipe:` and a shell command. A pipeline (`a | b`) fails if one of its commands fails.

    Raises:
        SourceError: The command fails; the output up to the failure was already returned.
        UsageError: Pipes are not allowed, or the command is empty.
    """
    command = url.removeprefix(_SCHEME).strip()
    if os.environ.get(ALLOW_PIPES) != "1":
        raise UsageError(
            f"{without_secrets(url)}: a pipe runs any command, and pipes are not allowed; if you trust where this name "
            f"comes from, set the environment variable {ALLOW_PIPES}=1"
        )
    if not command:
        raise UsageError(f"{url}: expected a command such as 'pipe:zcat a.jsonl.gz', found none")
    return _output(url, command)


def _output(url: str, command: str) -> Iterator[bytes]:
    bash = shutil.which("bash")
    shell = [bash, "-o", "pipefail", "-c"] if bash else ["/bin/sh", "-c"]
    with (
        TemporaryFile() as said,
        subprocess.Popen(
            [*shell, command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=said,
            start_new_session=True,  # so that its child processes can be killed too
        ) as process,
    ):
        ended = False
        try:
            while process.stdout is not None and (block := process.stdout.read1(_BLOCK)):  # type: ignore[attr-defined]
                yield block
            ended = True
        finally:
            if not ended:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGTERM)
        status = process.wait()
        if status not in (0, _ENDED_EARLY):
            said.seek(0)
            words = printable(said.read().decode(errors="replace")).strip()[-_SHOWN:]
            raise SourceError(
                without_secrets(
                    f"{url}: expected the command to end with status 0, found {status}, so its output is incomplete: "
                    f"{words or 'no error message'}"
                )
            )
