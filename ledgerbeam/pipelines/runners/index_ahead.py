"""Indexes of large sources are made ahead: while the workers of their wave start, or the wave before it works.

A process beside the waves makes them, one after the other. It may die, and whatever is wrong with a source it leaves to
the worker that plans it: that makes the indexes which are not there.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress

from ledgerbeam.errors import LedgerbeamError
from ledgerbeam.ledger import Source
from ledgerbeam.ledger.selection import PendingSource
from ledgerbeam.ledger.worker.index_marks import building_index
from ledgerbeam.ledger.worker.run_folders import file_errors
from ledgerbeam.pipelines.jobs.spec import JobSpec
from ledgerbeam.pipelines.runners.server_process import Wave
from ledgerbeam.pipelines.runners.wave_files import (
    dump_job_file,
    dump_sources,
    environment_of,
    load_job_file,
    load_sources,
)
from ledgerbeam.pipelines.runners.wave_sources import indexed_bytes
from ledgerbeam.pipelines.runners.waves import Waves

LEAST_BYTES = 8 << 20
"""Size of a source from which on its index is made ahead. Workers plan several smaller ones at once, and soon."""

_JOB = "ahead.json"
_AT_ONCE = 0.001


class IndexesAhead:
    """Has indexes made ahead of the waves of a run, of one wave at a time.

    Args:
        spec: The job.
        waves: Fork the process that makes them.
        folder: Of the run.
    """

    def __init__(self, spec: JobSpec, waves: Waves, folder: str) -> None:
        self._spec = spec
        self._waves = waves
        self._folder = folder
        self._of: list[Source] = []
        self._list = ""
        self._lists = 0
        self._process: Wave | None = None

    def begin(self, sources: list[Source]) -> None:
        """Begin with a wave, unless it was begun, or an index of the one before is still being made.

        Raises:
            DiskFullError: There is no room for the list of sources.
            StorageError: It cannot be written.
        """
        if self._of is sources or (self._process is not None and not self._process.wait(_AT_ONCE)):
            return
        self.end()
        self._of = sources
        of = self._spec.sources()
        large = [one for one in sources if indexed_bytes(of, one) >= LEAST_BYTES]
        if large:
            self._start(large)

    def _start(self, sources: Sequence[Source]) -> None:
        job = os.path.join(self._folder, _JOB)
        self._lists += 1
        self._list = os.path.join(self._folder, f"ahead-{self._lists:04d}")
        with file_errors(self._list):
            if self._lists == 1:
                dump_job_file(job, self._spec)
            dump_sources(self._list, [PendingSource(source) for source in sources])
        arguments, environment = [job, self._list], environment_of(self._spec)
        self._process = self._waves.start_ahead(self._spec.parts_of_beam(), arguments, environment)

    def leave(self, sources: list[Source]) -> None:
        """Have no more indexes made for a wave but the one that is being made: its workers have begun."""
        if self._of is sources and self._list:
            with suppress(OSError):  # it was removed before; or the folder is gone, which others tell
                os.unlink(self._list)

    def end(self) -> None:
        """End what still makes indexes."""
        if self._process is not None:
            self._process.end()
            self._process = None


def make_indexes(job: str, path: str) -> None:
    """Make the indexes of the sources of a list, those that are not there, for as long as the list lies there.

    Args:
        job: File of the job.
        path: Of the list, in the folder of the run.

    Raises:
        StorageError: One of the two files cannot be read.
    """
    spec = load_job_file(job)
    sources = spec.sources().opened(spec.storage_options)
    for pending in load_sources(path):
        if not os.path.exists(path):
            return
        with suppress(LedgerbeamError), building_index(os.path.dirname(path), pending.source):
            sources.kind_of(pending.source).make_index(pending.source)
