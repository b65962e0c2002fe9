"""What a run records about itself when it begins, and what can be said about it later."""

from __future__ import annotations

import os
import secrets
import shlex
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple

from ledgerbeam._base.redaction import command_without_secrets, without_secrets
from ledgerbeam.ledger import LedgerStore
from ledgerbeam.ledger.model.rows import HISTORY_SECONDS, HistoryRow
from ledgerbeam.pipelines.jobs.spec import JobSpec

COMMAND = "ledgerbeam"
ONLY_FAILED = "--only-failed"
ONLY_REJECTED = "--only-rejected"

LONGEST_COMMAND = 100_000
"""Letters of a command line that is recorded; a shell that expands patterns makes longer ones."""

DONE: Final = "done"
TASKS_FAILED: Final = "tasks failed"
"""Outcomes of a run that has done all that it could: the second if the ledger then holds failures."""

UNSEEN: Final = "running, or killed"
"""The state of a run that has not ended and cannot be seen from here."""

RunState = Literal["done", "tasks failed", "interrupted", "failed", "running", "killed", "running, or killed"]


class Work(NamedTuple):
    """What was recorded in some time.

    Attributes:
        tasks: Finished tasks.
        records: Their records.
        bytes: Their bytes.
        sources: Sources that became complete.
    """

    tasks: int = 0
    records: int = 0
    bytes: int = 0
    sources: int = 0

    @classmethod
    def of(cls, rows: Iterable[HistoryRow]) -> Work:
        """Add up steps of history."""
        parts = [(row.totals.tasks, row.totals.records, row.totals.bytes, row.completed) for row in rows]
        return cls(*map(sum, zip(*parts, strict=True))) if parts else cls()


def run_info(store: LedgerStore, spec: JobSpec, runner: str, words: Sequence[str] | None = None) -> dict[str, Any]:
    """Return what `LedgerStore.begin_run` records of this process.

    ``{"pid", "host", "place", "workers", "runner", "command", "folder", "token", "output"}``: where it can be seen
    whether it lives, see `is_seen`; the runner as the Beam options name it, or ``local``; the command line without
    secrets, as a list of words, of `ledgerbeam` or of the program that called it, left out if it is very long or if
    that was no program; the working folder; an id that distinguishes this run from all others, also in copies of the
    ledger; the URL of the output folder, of which `OutputOwner` had nothing to say; and as ``steps`` the labels of the
    steps of a pipeline.

    Args:
        store: The ledger.
        spec: The job.
        runner: Of the run.
        words: The words of the command line behind ``ledgerbeam``; None if Python called.
    """
    command = command_without_secrets(_program() if words is None else [COMMAND, *words])
    where = {"pid": os.getpid(), "host": os.uname().nodename, "place": store.environment_id(), "folder": os.getcwd()}
    info: dict[str, Any] = {**where, "workers": spec.workers, "runner": runner, "token": secrets.token_hex(8)}
    if spec.output is not None:
        info["output"] = without_secrets(spec.output)
    if labels := spec.labels():
        info["steps"] = [without_secrets(label) for label in labels]
    if command and sum(map(len, command)) <= LONGEST_COMMAND:
        info["command"] = command
    return info


def _program() -> list[str]:
    """Return the words that started the program that this process runs; none of a notebook or a prompt."""
    return sys.orig_argv if hasattr(sys.modules["__main__"], "__file__") else []


def is_seen(run: Mapping[str, Any], store: LedgerStore) -> bool:
    """Return whether locks can show here if a run is alive: names of hosts and processes cannot.

    The workers of a local run die with its launcher. That has its lock beside a local ledger, or beside what its host
    keeps of a remote one.
    """
    info = run["info"]
    return info.get("runner") == "local" and info.get("place") == store.environment_id()


def run_elsewhere(last: Mapping[str, Any], store: LedgerStore) -> str | None:
    """Describe the last run if it has not ended and it cannot be seen here whether it lives."""
    if last["outcome"] is not None or is_seen(last, store):
        return None
    info = last["info"]
    where = "" if info.get("runner") == "local" else f" with {info.get('runner')}"
    return f"run {last['id']}, launched by process {info.get('pid')} on {info.get('host')}{where}"


def run_state(run: Mapping[str, Any], store: LedgerStore, living: Collection[str]) -> RunState:
    """Return how a run ended, or whether it still works; one that has not ended and cannot be seen may do either.

    Args:
        run: The run.
        store: Its ledger.
        living: Ids of the runs whose launchers are seen to be at work.
    """
    if run["outcome"] is not None:
        state: RunState = run["outcome"]
        return state
    if run["id"] in living:
        return "running"
    return "killed" if is_seen(run, store) else UNSEEN


def work_by_run(runs: Sequence[Mapping[str, Any]], recorded: Mapping[str | None, HistoryRow]) -> list[Work | None]:
    """Return what each run has recorded; None of those that older versions may have recorded for.

    Args:
        runs: All runs of a ledger, in order.
        recorded: What `LedgerStore.recorded` gave.
    """
    unknown = recorded[None].time + HISTORY_SECONDS if None in recorded else -1
    return [
        Work.of([recorded[run["id"]]]) if run["id"] in recorded else Work() if run["began"] > unknown else None
        for run in runs
    ]


def retry_command(run: Mapping[str, Any] | None, ledger: str, reason: str) -> str | None:
    """Return the shell command that does again the sources with a failure of this reason, and only those if it can.

    Args:
        run: A run of the job, normally the last.
        ledger: URL of the ledger; named in the command even where the run took the default, whose folder hangs on
            the folder that the run was started in.
        reason: As in `FailureRow.reason`.

    Returns:
        The run's own command line with ``--only-failed``, for the folder that it ran in; of a program in Python, which
        does all that failed, as it was started. None if the run did not record its command.
    """
    info = {} if run is None else run["info"]
    command = info.get("command")
    if not command:
        return None
    if command[0] != COMMAND:
        return _in_folder(shlex.join(command), info)
    words = _without(_without(command, ONLY_FAILED), ONLY_REJECTED)
    cut = words.index("--") if "--" in words else len(words)
    if not any(word == "--ledger" or word.startswith("--ledger=") for word in words[:cut]):
        words[cut:cut] = ["--ledger", without_secrets(ledger)]
        cut += 2
    retry = shlex.join([*words[:cut], f"{ONLY_FAILED}={_literal(reason)}", *words[cut:]])
    return _in_folder(retry, info)


def _in_folder(command: str, info: Mapping[str, Any]) -> str:
    folder = info.get("folder", os.getcwd())
    return command if folder == os.getcwd() else f"cd {shlex.quote(folder)} && {command}"


def _literal(text: str) -> str:
    """Return a shell pattern that matches exactly `text`."""
    return "".join(f"[{letter}]" if letter in "*?[" else letter for letter in text)


def _without(words: Sequence[str], option: str) -> list[str]:
    kept: list[str] = []
    skip = False
    for word in words:
        is_value = skip and not word.startswith("-")
        if not is_value and word != option and not word.startswith(f"{option}="):
            kept.append(word)
        skip = word == option
    return kept
