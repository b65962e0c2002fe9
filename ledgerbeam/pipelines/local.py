"""Runs waves on the local runner until nothing of them is left open, whatever dies on the way."""

from __future__ import annotations

import dataclasses
import os
import sys
import time
from collections.abc import Sequence

from ledgerbeam.errors import WorkerDiedError
from ledgerbeam.ledger import MAX_ATTEMPTS, LedgerStore, Source
from ledgerbeam.pipelines.listed import Listed
from ledgerbeam.pipelines.report import Reporter
from ledgerbeam.pipelines.spec import JobSpec
from ledgerbeam.pipelines.supervise import WaveEnd, run_wave
from ledgerbeam.pipelines.wave_files import dump_sources

__all__ = ["LocalRunner"]

FRUITLESS_WAVES = 3
"""Waves in a row that record nothing before the run is given up."""

PROGRESS_SECONDS = 0.5


class LocalRunner:
    """The local runner of one run.

    Args:
        spec: The job.
        store: Its ledger.
        reporter: Told of progress and deaths.
        run_dir: Folder of the run, which exists.
        beam_args: Beam options of the user.
        debug: Whether errors carry whole tracebacks.

    Attributes:
        deaths: How often a worker died so far.
    """

    def __init__(
        self,
        spec: JobSpec,
        store: LedgerStore,
        reporter: Reporter,
        run_dir: str,
        beam_args: Sequence[str],
        *,
        debug: bool,
    ) -> None:
        self._store = store
        self._reporter = reporter
        self._run_dir = run_dir
        self._debug = debug
        spec_path = os.path.join(run_dir, "job.json")
        self._wave_path = os.path.join(run_dir, "wave.json")
        with open(spec_path, "wb") as file:
            file.write(dataclasses.replace(spec, run_dir=run_dir).to_json())
        module = "ledgerbeam.pipelines.wave"
        self._command = [sys.executable, "-m", module, spec_path, self._wave_path, *beam_args]
        self._next_tick = 0.0
        self.deaths = 0

    def run(self, sources: Sequence[Source], listed: Listed) -> None:
        """Runs the tasks of `sources` until each source is complete or has a recorded failure.

        A source may need several passes: the index of a large file is assembled once its ranges are scanned, and a
        pass in which a worker died leaves work to the next.

        Raises:
            WorkerDiedError: If workers die again and again without getting anything done.
            LedgerbeamError: The error with which a worker ended the run.
        """
        fruitless = 0
        while sources:
            before = self._store.totals()
            dump_sources(self._wave_path, sources)
            end = run_wave(self._command, self._run_dir, on_tick=lambda: self._tick(listed), debug=self._debug)
            if end.died:
                self.deaths += 1
                self._blame(end)
            fruitless = 0 if end.marks or self._store.totals() != before else fruitless + 1
            if end.died and fruitless == FRUITLESS_WAVES:
                raise WorkerDiedError(
                    f"{end.died}: for the {fruitless}rd time in a row, before anything was done; what is recorded is "
                    "kept; find what ends the workers (memory?), then run the same command again"
                )
            sources = self._owing(sources, but_failed=not end.died)
            if fruitless and not end.died:
                return

    def _owing(self, sources: Sequence[Source], *, but_failed: bool) -> list[Source]:
        """Returns the sources that need another pass; one with a failure has had its turn if the pass was whole."""
        complete = self._store.completed_mask([source.id for source in sources])
        failed = {row.source_id for row in self._store.failures()} if but_failed else set()
        return [s for s, done in zip(sources, complete, strict=True) if not done and s.id not in failed]

    def _blame(self, end: WaveEnd) -> None:
        """Lays the death of a worker to the tasks that it was on."""
        quarantined = {mark.node for mark in self._store.blame(end.marks)} if end.marks else set()
        self._reporter.warn(f"{end.died}; starting again with what is left")
        for mark in end.marks:
            if mark.node in quarantined:
                self._reporter.warn(f"  quarantined, since its worker died {MAX_ATTEMPTS} times: {mark.name}")
            else:
                count = self._store.attempts(mark.source_id).get(mark.node, 0)
                self._reporter.warn(f"  it was on {mark.name} (start {count} of {MAX_ATTEMPTS})")

    def _tick(self, listed: Listed) -> None:
        now = time.monotonic()
        if now < self._next_tick:
            return
        self._next_tick = now + PROGRESS_SECONDS
        total = listed.found if listed.finished else None
        self._reporter.update(done=self._store.completed_count(), total=total, totals=self._store.totals())
