"""Exchanges as a user runs them, killed all over their stages."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import s3fs

from ledgerbeam.ledger.opening import open_local_store
from tests.conftest import S3Server
from tests.pipelines.conftest import Ran, Workspace


def tasks_done(workspace: Workspace, ledgers: Sequence[str]) -> int:
    """Return how many tasks the ledgers of all stages hold."""
    done = 0
    for ledger in ledgers:
        with suppress(FileNotFoundError):
            done += open_local_store(str(workspace.root / ledger), create=False, read_only=True).totals().tasks
    return done


def run_killed_at(workspace: Workspace, command: Sequence[str], fault: str, *options: str) -> Ran:
    """Run a command that is killed at a fault point, then the same command again to its end."""
    assert workspace.run(*command, *options, env={"LEDGERBEAM_FAULT": fault}).status != 0
    return workspace.succeed(*command, *options)


def run_with_kills(workspace: Workspace, command: Sequence[str], ledgers: Sequence[str], step: int) -> None:
    """Start a command again and again, and kill it whenever so many more tasks are done, until it ends.

    Args:
        workspace: Where it runs.
        command: Of the exchange.
        ledgers: Of all of its stages.
        step: Tasks that a start is left.
    """
    kills = 0
    while True:
        before = tasks_done(workspace, ledgers)
        process = workspace.start(*command, "--workers", "2", "--flush-interval", "0.01")
        while process.poll() is None and tasks_done(workspace, ledgers) < before + step:
            time.sleep(0.005)
        if process.poll() is not None:
            out = process.communicate()[0]
            assert process.returncode == 0, out
            break
        process.kill()
        process.communicate()
        kills += 1
    assert kills, "it was never killed"


class OnStore:
    """An exchange whose sources, outputs and ledger are on an object store.

    Args:
        workspace: Holds the sources.
        s3: The store.
        command: Of the exchange, as it is on a disk.
    """

    def __init__(self, workspace: Workspace, s3: S3Server, command: Sequence[str]) -> None:
        self._workspace, self._env, self.bucket = workspace, s3.env, s3.bucket()
        self.store = s3fs.S3FileSystem(**s3.options, skip_instance_cache=True)
        for path in sorted((workspace.root / "in").glob("*.jsonl")):
            self.store.pipe_file(f"{self.bucket}/in/{path.name}", path.read_bytes())
        places = {name: f"s3://{self.bucket}/{name}" for name in ("in/*.jsonl", "out", "L")}
        self._command = [places.get(word, word) for word in command]

    def kill(self) -> None:
        """Kill a start between two stages."""
        killing = {**self._env, "LEDGERBEAM_FAULT": "exchange.tabulated:1"}
        assert self._workspace.run(*self._command, env=killing).status != 0

    def start(self, *options: str) -> subprocess.Popen[str]:
        """Start it, as a host beside others would."""
        return self._workspace.start(*self._command, *options, env=self._env)

    def run(self) -> Ran:
        """Do what is left; return how it ended."""
        ran = self._workspace.succeed(*self._command, "--json", env=self._env)
        self.store.invalidate_cache()
        return ran

    def records(self) -> list[Any]:
        """Return what it has written."""
        names = sorted(self.store.glob(f"{self.bucket}/out/*.jsonl"))
        return [json.loads(line) for name in names for line in self.store.cat_file(name).splitlines()]
