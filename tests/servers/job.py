"""A tiny Beam job: squares the numbers below a bound, slowly, and writes each into a file of its own.

A command line: `python -m tests.servers.job FOLDER BOUND SECONDS [BEAM OPTION ...]`.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions


def run(folder: str, bound: int, seconds: float, options: Sequence[str]) -> None:
    """Run the job to its end; every number takes `seconds`."""

    def write(square: int) -> None:
        time.sleep(seconds)
        temporary = f"{folder}/.{square}-{os.getpid()}"
        with open(temporary, "w", encoding="utf-8") as file:
            file.write(str(square))
        os.rename(temporary, f"{folder}/{square}")

    with beam.Pipeline(options=PipelineOptions(list(options))) as pipeline:
        numbers = pipeline | beam.Create(range(bound)) | beam.Reshuffle()
        numbers | beam.Map(lambda number: number * number) | "Write" >> beam.Map(write)


class Job:
    """The job in a process of its own."""

    def __init__(self, folder: Path, bound: int, seconds: float, options: Sequence[str]) -> None:
        folder.mkdir(exist_ok=True)
        self._folder = folder
        self._squares = {str(number * number) for number in range(bound)}
        self._log = folder.with_suffix(".log")
        command = [sys.executable, "-m", "tests.servers.job", str(folder), str(bound), str(seconds), *options]
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def done(self) -> set[str]:
        """Return the squares that are written."""
        return {path.name for path in self._folder.iterdir() if not path.name.startswith(".")}

    def wait_until_done(self, count: int, seconds: float = 90) -> None:
        """Wait until some of the squares are written while it runs."""
        deadline = time.monotonic() + seconds
        while len(self.done()) < count:
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(f"{len(self.done())} of {count} squares are there:\n{self.log[-3000:]}")
            time.sleep(0.05)

    def status(self, seconds: float = 120) -> int:
        """Wait until it has ended; return its exit status."""
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise AssertionError(f"the job did not end within {seconds} s:\n{self.log[-3000:]}") from None

    def check(self) -> None:
        """Check that it ends well, with the right result."""
        assert self.status() == 0, self.log[-3000:]
        assert self.done() == self._squares
        assert all((self._folder / name).read_text() == name for name in self._squares)


if __name__ == "__main__":
    run(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), sys.argv[4:])
    # A thread of gRPC that Beam leaves behind may hold a lock which the interpreter waits for as it ends, for ever.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
