"""Sources that are done in part: whether their files are still those that the done parts were read from."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Sequence
from dataclasses import replace

from ledgerbeam.io import is_local
from ledgerbeam.ledger import LedgerStore, OpenSource, Source, with_progress

__all__ = ["ReplacedFiles"]

_log = logging.getLogger(__name__)

_COARSE = 0.1
"""Seconds by which the times of files may lag behind the clock."""


class ReplacedFiles:
    """Finds local files that were written or replaced since parts of them were read, though size and time are the same.

    When a file was changed is told by its inode, of which nobody can set that time. A source of which that is so is
    begun anew, for its parts would be of two contents.

    Args:
        store: The job's ledger.
        since: When the sources were looked at last, in seconds since 1970; None if nothing of them can be done yet.
    """

    def __init__(self, store: LedgerStore, since: float | None) -> None:
        self._store = store
        self._since = since

    def open_sources(self, sources: Sequence[Source]) -> list[OpenSource]:
        """Returns sources with what is done of them, as `with_progress`, for the next pass over them.

        Of those that are done in part it says which files they are, so that planning finds out if one is replaced.
        """
        now = time.time()
        found = with_progress(sources, self._store)
        begun = {row.source.id: _looked_at(row.source) for row in found if len(row.applied) > 1}
        changed = {known for known, source in begun.items() if self._is_changed(source, now)}
        self._since = now
        if changed:
            for known in sorted(changed):
                _log.warning(
                    "%s: written since parts of it were done, so nothing of it counts as done", begun[known].url
                )
            self._store.forget_sources(changed)
            found = with_progress(sources, self._store)
        return [
            replace(row, source=begun[row.source.id]) if row.source.id in begun.keys() - changed else row
            for row in found
        ]

    def _is_changed(self, source: Source, now: float) -> bool:
        """Tells whether a file was changed since; of a clock that was put back nothing can be told."""
        times = [file.changed_ns for file in source.members or (source,)]
        return (
            self._since is not None and any(times) and (self._since > now or max(times) / 1e9 > self._since - _COARSE)
        )


def _looked_at(source: Source) -> Source:
    if source.members:
        return replace(source, members=tuple(map(_looked_at, source.members)))
    try:
        return replace(source, changed_ns=os.stat(source.url).st_ctime_ns) if is_local(source.url) else source
    except OSError:  # planning says what is wrong with it
        return source
