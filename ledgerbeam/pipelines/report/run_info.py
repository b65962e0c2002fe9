"""Facts that a run records at its start; from them, the state of the run and the command to retry failures."""

from __future__ import annotations

import glob
import os
import secrets
import shlex
import sys
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple

from ledgerbeam._base.redaction import command_without_secrets, without_secrets
from ledgerbeam.ledger import LedgerStore
from ledgerbeam.ledger.model.rows import HISTORY_SECONDS, HistoryRow
from ledgerbeam.ledger.worker.run_folders import RunFolders
from ledgerbeam.pipelines.jobs.spec import JobSpec

_LONG_SECONDS = 86400  # after which a run on another host without an end counts as dead

COMMAND = "ledgerbeam"
ONLY_FAILED = "--only-failed"
ONLY_REJECTED = "--only-rejected"

LONGEST_COMMAND = 100_000  # characters of a recorded command line; a shell that expands patterns makes longer ones

# Outcomes of a run that reached its end. The second means that the ledger contains failures.
DONE: Final = "done"
TASKS_FAILED: Final = "tasks failed"

UNSEEN: Final = "running, or killed"  # state of a run that has not ended and cannot be observed from here

RunState = Literal["done", "tasks failed", "interrupted", "failed", "running", "killed", "running, or killed"]


class Work(NamedTuple):
    """Work recorded in a period: finished tasks, their records and bytes, and sources that became complete."""

    tasks: int = 0
    records: int = 0
    bytes: int = 0
    sources: int = 0

    @classmethod
    def of(cls, rows: Iterable[HistoryRow]) -> Work:
        """Return the sum of rows of history."""
        parts = [(row.totals.tasks, row.totals.records, row.totals.bytes, row.completed) for row in rows]
        return cls(*map(sum, zip(*parts, strict=True))) if parts else cls()


def run_info(store: LedgerStore, spec: JobSpec, runner: str, words: Sequence[str] | None = None) -> dict[str, Any]:
    """Return the facts about this process that `LedgerStore.begin_run` records.

    ``pid``, ``host``, ``place``: identify the process; see `is_seen`.
    ``workers``: number of workers.
    ``runner``: name of the runner in the Beam options, or ``local``.
    ``command``: command line without secrets, a list of words, of `ledgerbeam` or of the calling program. Left out if
    it is very long, or if a notebook or prompt called.
    ``folder``: working folder.
    ``token``: random ID of the run, also unique among copies of the ledger.
    ``output``: URL of the output folder, which `OutputOwner` has accepted.
    ``answers``: URL of the folder that keeps answers of calls.
    ``steps``: labels of the steps of a pipeline.

    `words` is the command line after ``ledgerbeam``; None if Python called.
    """
    # The command line of the process is unknown in a notebook or a prompt.
    program = sys.orig_argv if hasattr(sys.modules["__main__"], "__file__") else []
    command = command_without_secrets(program if words is None else [COMMAND, *words])
    where = {"pid": os.getpid(), "host": os.uname().nodename, "place": store.environment_id(), "folder": os.getcwd()}
    info: dict[str, Any] = {**where, "workers": spec.workers, "runner": runner, "token": secrets.token_hex(8)}
    if spec.output is not None:
        info["output"] = without_secrets(spec.output)
    if spec.answers is not None:
        info["answers"] = without_secrets(spec.answers)
    if labels := spec.labels():
        info["steps"] = [without_secrets(label) for label in labels]
    if command and sum(map(len, command)) <= LONGEST_COMMAND:
        info["command"] = command
    return info


def is_seen(run: Mapping[str, Any], store: LedgerStore) -> bool:
    """Return whether locks on this host show if a run is alive. Host names and process IDs are not reliable.

    The workers of a local run exit with its launcher. The launcher has a lock beside a local ledger, or beside the
    host's local files of a remote ledger.
    """
    info = run["info"]
    return info.get("runner") == "local" and info.get("place") == store.environment_id()


def run_elsewhere(last: Mapping[str, Any], store: LedgerStore) -> str | None:
    """Describe the last run if it has not ended and its liveness cannot be observed here; None otherwise."""
    if last["outcome"] is not None or is_seen(last, store):
        return None
    info = last["info"]
    where = "" if info.get("runner") == "local" else f" with {info.get('runner')}"
    return f"run {last['id']}, launched by process {info.get('pid')} on {info.get('host')}{where}"


def others_may_work(run: str, store: LedgerStore, folders: RunFolders) -> bool:
    """Return whether a run other than `run` may be at work on the ledger now.

    A run on another host that began or did work in the last day counts, unless it has ended.
    """
    living = {found.run for found in folders.launchers() if found.lives}
    recorded, began_after = store.recorded(), time.time() - _LONG_SECONDS
    for other in store.runs():
        if other["id"] != run and (state := run_state(other, store, living)) in ("running", UNSEEN):
            last_work = recorded[other["id"]].time if other["id"] in recorded else 0.0
            if state == "running" or max(other["began"], last_work) > began_after:
                return True
    return False


def run_state(run: Mapping[str, Any], store: LedgerStore, living: Collection[str]) -> RunState:
    """Return the outcome of a run, ``running`` or ``killed``; `UNSEEN` if it has not ended and cannot be observed.

    `living` are the IDs of the runs whose launchers are observed to be alive.
    """
    if run["outcome"] is not None:
        return run["outcome"]
    if run["id"] in living:
        return "running"
    return "killed" if is_seen(run, store) else UNSEEN


def work_by_run(runs: Sequence[Mapping[str, Any]], recorded: Mapping[str | None, HistoryRow]) -> list[Work | None]:
    """Return the recorded work of each run, in order; None if it is not known.

    Older versions recorded work without its run, so the work of runs before the last such record is not known.
    """
    unknown = recorded[None].time + HISTORY_SECONDS if None in recorded else -1
    return [
        Work.of([recorded[run["id"]]]) if run["id"] in recorded else Work() if run["began"] > unknown else None
        for run in runs
    ]


def retry_command(run: Mapping[str, Any] | None, ledger: str, reason: str) -> str | None:
    """Return the shell command that processes the sources with a failure of this reason again.

    It is the run's command line with ``--only-failed``, for the run's working folder. It names the ledger even if the
    run used the default, which depends on the working folder. The command line of a Python program is unchanged; it
    processes all failures again. None if the run did not record its command.
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
    return _in_folder(shlex.join([*words[:cut], f"{ONLY_FAILED}={glob.escape(reason)}", *words[cut:]]), info)


def _in_folder(command: str, info: Mapping[str, Any]) -> str:
    folder = info.get("folder", os.getcwd())
    return command if folder == os.getcwd() else f"cd {shlex.quote(folder)} && {command}"


def _without(words: Sequence[str], option: str) -> list[str]:
    kept: list[str] = []
    skip = False
    for word in words:
        is_value = skip and not word.startswith("-")
        if not is_value and word != option and not word.startswith(f"{option}="):
            kept.append(word)
        skip = word == option
    return kept
