"""One run of a job: list, skip, run what is left in waves, tidy up."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ledgerbeam.io import expand_braces
from ledgerbeam.ledger import LedgerStore, Source, Totals
from ledgerbeam.pipelines.listed import Listed
from ledgerbeam.pipelines.local import LocalRunner
from ledgerbeam.pipelines.logs import quiet_beam
from ledgerbeam.pipelines.report import Reporter
from ledgerbeam.pipelines.spec import JobSpec
from ledgerbeam.pipelines.tidy import drop_dead_runs, remove_superseded, sweep_temporaries

__all__ = ["Outcome", "run_job"]

WAVE_SOURCES = 100_000
"""Sources of a wave: the local runner holds what lies between stages in memory, some 0.7 KB a task."""


@dataclass(frozen=True)
class Outcome:
    """How a run ended.

    Attributes:
        status: The ledger's status after the run.
        skipped: Sources that were complete before it.
        done: What the run added to the ledger's totals.
        seconds: How long it took.
        interrupted: Whether it was ended by Ctrl-C or SIGTERM.
    """

    status: dict[str, Any]
    skipped: int
    done: Totals
    seconds: float
    interrupted: bool


def run_job(
    spec: JobSpec,
    store: LedgerStore,
    reporter: Reporter,
    beam_args: Sequence[str] = (),
    *,
    force: bool = False,
    debug: bool = False,
) -> Outcome:
    """Runs a job to its end: every source complete, or with failures recorded.

    Args:
        spec: The job.
        store: Its ledger, taken for the job.
        reporter: Told of the course of the run.
        beam_args: Beam options of the user; a ``--runner`` other than FnApiRunner leaves the local runner.
        force: Whether sources that the ledger holds as complete are done again.
        debug: Whether errors carry whole tracebacks.

    Raises:
        LedgerbeamError: What ended the run early. All that was recorded stays recorded.
    """
    if beam_args:
        quiet_beam()
        from ledgerbeam.pipelines.remote import check_options  # noqa: PLC0415 - brings Beam

        check_options(beam_args)
    started = time.monotonic()
    others = drop_dead_runs(spec)
    if others:
        reporter.warn(
            f"another run is at work on this ledger (processes {', '.join(map(str, others))}): nothing is lost, "
            "but tasks may be done twice"
        )
    before = store.totals()
    last = store.status()["last_run"]
    clean = last is None or last["outcome"] == "done"
    run = store.begin_run({"pid": os.getpid(), "host": os.uname().nodename, "workers": spec.workers})
    if force:
        _forget_sources(spec, store)
    listed = Listed(spec, store, run)
    outcome = "failed"
    try:
        if _is_local(beam_args):
            clean &= _run_local(spec, store, reporter, listed, beam_args, debug=debug)
        else:
            from ledgerbeam.pipelines.remote import run_on_beam  # noqa: PLC0415 - brings Beam

            run_on_beam(spec, store, beam_args)
            counts = store.status()["sources"]
            store.note_listing(run, listed=sum(counts.values()), finished=True)
        if not others:
            remove_superseded(spec, store)
        outcome = "done"
    except KeyboardInterrupt:
        outcome = "interrupted"
    finally:
        store.end_run(run, outcome)
        if not clean or outcome != "done":
            sweep_temporaries(spec)
    after = store.totals()
    done = Totals(*(now - then for now, then in zip(after, before, strict=True)))
    return Outcome(store.status(), listed.skipped, done, time.monotonic() - started, outcome == "interrupted")


def _forget_sources(spec: JobSpec, store: LedgerStore) -> None:
    """Makes the ledger forget what the patterns may match; of the shell's patterns ``*`` also matches ``/``."""
    for pattern in spec.patterns or ("*",):
        for plain in expand_braces(pattern):
            store.forget(plain.replace("**/", "*").replace("**", "*"))


def _is_local(beam_args: Sequence[str]) -> bool:
    runners = [word for word in beam_args if word.startswith("--runner")]
    return not runners or runners == ["--runner=FnApiRunner"]


def _run_local(
    spec: JobSpec,
    store: LedgerStore,
    reporter: Reporter,
    listed: Listed,
    beam_args: Sequence[str],
    *,
    debug: bool,
) -> bool:
    """Runs the job in waves; returns whether no worker died."""
    run_dir = os.path.join(spec.ledger, "run", listed.run)
    os.makedirs(run_dir)
    try:
        runner = LocalRunner(spec, store, reporter, run_dir, beam_args, debug=debug)
        with reporter.progress():
            for wave in _waves(listed.open_sources()):
                runner.run(wave, listed)
        return not runner.deaths
    finally:
        shutil.rmtree(run_dir, ignore_errors=True)  # nothing in it outlives the run; the next run makes its own


def _waves(pages: Iterator[list[Source]]) -> Iterator[list[Source]]:
    """Gathers pages of open sources into waves; a page of a fresh job is smaller than a wave."""
    wave: list[Source] = []
    for sources in pages:
        wave.extend(sources)
        if len(wave) >= WAVE_SOURCES:
            yield wave
            wave = []
    if wave:
        yield wave
