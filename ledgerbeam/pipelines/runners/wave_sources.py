"""Sources of waves: pages of open sources, gathered when a wave starts or during the wave before."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from ledgerbeam.errors import LedgerbeamError
from ledgerbeam.ledger import Source
from ledgerbeam.pipelines.jobs.sources import JobSources

WAVE_SOURCES = 100_000
WAVE_MEMBERS = 300_000  # of packs; a member takes a third of the memory of a source
WAVE_TASKS = 200_000
"""Maximum numbers of sources, members and expected tasks of a wave. FnApiRunner holds the data between stages in
memory, some kilobytes for each task."""

FIRST_BYTES = 1 << 30
WAVE_GROWTH = 4
"""Maximum number of bytes to index for the first wave, and for later waves per byte of the waves before. A wave has
at least one source for each worker. No task of a wave starts before all its sources are indexed, so a small first wave
shows faults of a function or an output early."""


class WaveSources:
    """The open sources of a job, wave by wave.

    Args:
        pages: Pages of open sources; a page may be empty.
        of: The sources of the job, for estimates.
        workers: Number of workers of a wave.
        most_tasks: Returns the number of tasks still wanted when a wave is gathered, None for all. A wave has at least
            one source.
    """

    def __init__(
        self,
        pages: Iterable[list[Source]],
        of: JobSources,
        workers: int,
        most_tasks: Callable[[], int | None] = lambda: None,
    ) -> None:
        self._steps = _gathered(pages, of, workers, most_tasks)
        self._next: list[Source] = []
        self._error: LedgerbeamError | None = None

    def take(self) -> list[Source]:
        """Return the sources of the next wave; empty if there are no more.

        Raises:
            LedgerbeamError: The listing failed, now or during `look_ahead`.
        """
        while not self._next:
            if self._error is not None:
                raise self._error
            if (found := next(self._steps, None)) is None:
                return []
            self._next = found
        wave, self._next = self._next, []
        return wave

    def look_ahead(self) -> list[Source]:
        """Gather one more page. Return the sources of the next wave if they are complete, otherwise an empty list."""
        if not self._next:
            try:
                self._next = next(self._steps, [])
            except LedgerbeamError as error:  # the error does not concern the current wave
                self._error = error
        return self._next


def indexed_bytes(of: JobSources, source: Source) -> int:
    """Return how many bytes of a source are read before its first task begins, if it has no index; at most."""
    return 0 if of.as_files is None else of.as_files.indexed_bytes(source)


def _gathered(
    pages: Iterable[list[Source]], of: JobSources, workers: int, most_tasks: Callable[[], int | None]
) -> Iterator[list[Source]]:
    """Yield each wave when it is complete, and an empty list after each page."""
    wave: list[Source] = []
    tasks = members = indexed = before = 0
    for page in pages:
        for source in page:
            more, within, read = of.expected_tasks(source), len(source.members), indexed_bytes(of, source)
            wanted = most_tasks()
            most = WAVE_TASKS if wanted is None else min(WAVE_TASKS, wanted)
            is_full = len(wave) == WAVE_SOURCES or tasks + more > most or members + within > WAVE_MEMBERS
            is_large = len(wave) >= workers and indexed + read > max(FIRST_BYTES, WAVE_GROWTH * before)
            if wave and (is_full or is_large):
                yield wave
                before += indexed
                wave, tasks, members, indexed = [], 0, 0, 0
            wave.append(source)
            tasks += more
            members += within
            indexed += read
        yield []
    if wave:
        yield wave
