"""Indexes of large sources, built ahead: while the workers of their wave start, or during the wave before.

A process beside the waves builds them one after the other. It may die. It leaves faulty sources to the worker that
plans them, which builds missing indexes itself.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress

from ledgerbeam.errors import LedgerbeamError
from ledgerbeam.ledger import Source
from ledgerbeam.ledger.selection import PendingSource
from ledgerbeam.ledger.worker.run_folders import building_index, file_errors
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
"""Minimum size of a source for an index ahead, in bytes. Workers plan several smaller sources at once, and soon."""

_JOB = "ahead.json"
_AT_ONCE = 0.001


class IndexesAhead:
    """Builds indexes ahead of the waves of a run, for one wave at a time.

    Args:
        spec: The job.
        waves: Forks the process that builds indexes.
        folder: Folder of the run.
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
        """Start the indexes of a wave, unless they are started, or an index of the wave before is still being built.

        Raises:
            DiskFullError: The disk is full.
            StorageError: The list of sources cannot be written.
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
        """Stop before the next index of a wave, because its workers have started. The current index is completed."""
        if self._of is sources and self._list:
            with suppress(OSError):  # it was removed before, or the folder is gone, which is reported elsewhere
                os.unlink(self._list)

    def end(self) -> None:
        """End the process that builds indexes."""
        if self._process is not None:
            self._process.end()
            self._process = None


def make_indexes(job: str, path: str) -> None:
    """Build the missing indexes of the sources in a list, one after the other, until the list is removed.

    Args:
        job: Path of the job file.
        path: Path of the list, in the folder of the run.

    Raises:
        StorageError: A file cannot be read.
    """
    spec = load_job_file(job)
    sources = spec.sources().opened(spec.storage_options)
    for pending in load_sources(path):
        if not os.path.exists(path):
            return
        with suppress(LedgerbeamError), building_index(os.path.dirname(path), pending.source):
            sources.kind_of(pending.source).make_index(pending.source)
