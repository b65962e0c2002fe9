"""Ways to break the library that the suite must notice. Each is applied inside the processes of a job.

`arm` gives the environment with which every process of a job breaks itself when it starts.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

MUTANT_VARIABLE = "LEDGERBEAM_TEST_MUTANT"

HOOK = """
import sys
if any("ledgerbeam.pipelines.runners.wave" in word for word in sys.orig_argv):
    from tests.fault.mutants import apply
    apply()
"""
"""Python runs a module of this text before anything else, if it finds it as `sitecustomize`."""

LATE_SECONDS, NEVER_SECONDS = 1.5, 1e6


def arm(folder: Path, name: str, python_path: str) -> dict[str, str]:
    """Return environment variables that apply a mutant to the processes that do the work of a job."""
    folder.mkdir(parents=True)
    (folder / "sitecustomize.py").write_text(HOOK)
    return {MUTANT_VARIABLE: name, "PYTHONPATH": os.pathsep.join([str(folder), python_path])}


def apply() -> None:
    MUTANTS[os.environ[MUTANT_VARIABLE]]()


def _wrap(owner: Any, name: str, wrapper: Callable[[Any], Any]) -> None:
    """Replace a function of a module or class by what `wrapper` makes of it."""
    setattr(owner, name, wrapper(getattr(owner, name)))


def _publish_late() -> None:
    """Outputs are published in the background: they are recorded before they exist."""
    from ledgerbeam.transforms.chain import write

    def late(publish: Callable[..., None]) -> Callable[..., None]:
        return lambda *args, **named: threading.Timer(LATE_SECONDS, publish, args, named).start()

    _wrap(write, "publish_all", late)


def _drop_last_output() -> None:
    """The last task of a source records an output that it never publishes."""
    from ledgerbeam.transforms.chain import write
    from tests.fault.corpus import RECORDS, TASKS

    last = f"{(TASKS - 1) * RECORDS:010d}"

    def others(outputs: Any) -> list[Any]:
        return [output for output in outputs if last not in output[0]]

    def dropping(publish: Callable[..., None]) -> Callable[..., None]:
        return lambda outputs, *args, **named: publish(others(outputs), *args, **named)

    _wrap(write, "publish_all", dropping)


def _name_by_process() -> None:
    """Outputs are named after the process that wrote them: a task done again leaves two."""
    from ledgerbeam.transforms.chain import write

    _wrap(write, "output_name", lambda name: lambda *args, **how: f"{name(*args, **how)}.{os.getpid()}")


def _complete_early() -> None:
    """A source is complete with its first leaf, as where a child's -1 overtakes its parent's +N-1."""
    from ledgerbeam.ledger.lmdb import commit as lmdb_commit
    from tests.fault.corpus import TASKS

    _wrap(lmdb_commit, "fold", lambda fold: lambda _, *rest: (0, fold(TASKS, *rest)[1]))


def _commit_at_the_end() -> None:
    """The group commit waits for the end of the bundle, as bundle finalizers would."""
    from ledgerbeam.ledger.worker.writer import LedgerWriter

    def patient(init: Callable[..., None]) -> Callable[..., None]:
        return lambda self, store, interval, max_entries: init(self, store, NEVER_SECONDS, max_entries)

    _wrap(LedgerWriter, "__init__", patient)


def _forget_finished_tasks() -> None:
    """Have a restarted source begin anew, whatever is recorded of it: in the plan, and when a worker draws a task."""
    from ledgerbeam.ledger import selection
    from ledgerbeam.ledger.lmdb.store import LmdbStore

    _wrap(selection, "is_done", lambda _: lambda *_: False)
    _wrap(LmdbStore, "finished", lambda _: lambda _, tasks: [False for _ in tasks])


MUTANTS: dict[str, Callable[[], None]] = {
    "publish late": _publish_late,
    "drop last output": _drop_last_output,
    "name by process": _name_by_process,
    "complete early": _complete_early,
    "commit at the end": _commit_at_the_end,
    "forget finished tasks": _forget_finished_tasks,
}
